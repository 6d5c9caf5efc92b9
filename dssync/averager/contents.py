"""Which tensors of a model, and of its optimizer, take part in averages."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from dlcp.errors import ConfigError
from dssync.averager.layout import Slot, buffer_slots, parameter_slots, state_slots


class Contents:
    """What is averaged, looked up anew for every round, because layers may be frozen and thawed on the way.

    Args:
        model: The bare module.
        buffers: Whether floating-point buffers take part.
        moments: Whether the optimizer's moments do.

    Attributes:
        optimizer: The optimizer, once it is known.
    """

    def __init__(self, model: nn.Module, buffers: bool, moments: bool) -> None:
        self._model, self._buffers, self._moments = model, buffers, moments
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.optimizer: Optimizer | None = None

    def parameters(self) -> list[Slot]:
        """Returns the parameters that are trained."""
        return parameter_slots(self._model.parameters(), self._names)

    def slots(self) -> list[Slot]:
        """Returns everything that a round averages.

        Raises:
            ConfigError: Nothing is.
        """
        slots = self.parameters()
        if self._buffers:
            slots += buffer_slots(self._model)[0]
        if self._moments and self.optimizer is not None:
            slots += state_slots(self.optimizer, [p for p in self._model.parameters() if p.requires_grad], self._names)
        if not slots:
            raise ConfigError("dssync", "model", "nothing in it is trained", "a parameter that requires a gradient")
        return slots

    def forget_state(self) -> None:
        """Makes the optimizer forget what it knows of the model's parameters."""
        if self.optimizer is not None:
            for parameter in self._model.parameters():
                self.optimizer.state.pop(parameter, None)


__all__ = ["Contents"]
