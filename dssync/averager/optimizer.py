"""An optimizer that averages parameters after its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from dlcp.errors import ConfigError
from dssync.averager.averager import DivideShuffleAverager

_KEY = "dssync"


class DivideShuffleOptimizer(Optimizer):
    """Wraps an optimizer: a step of it, then of the averager.

    Typical use, in a script that trains ``model`` with ``optimizer``::

        averager = DivideShuffleAverager(model)
        optimizer = DivideShuffleOptimizer(optimizer, averager)

    Learning-rate schedulers and gradient clipping work on it as on the optimizer inside.  A ``GradScaler`` leaves out steps on
    ranks whose gradients overflow, and with them averages that other ranks wait for: there, step the inner optimizer with the
    scaler, and call ``averager.average_parameters()`` afterwards on all ranks.

    Args:
        optim: The local optimizer.
        averager: Of the same model.
    """

    def __init__(self, optim: Optimizer, averager: DivideShuffleAverager) -> None:
        # Optimizer.__init__ would make parameter groups and state of its own.
        self.optim = optim
        self.averager = averager
        averager.optimizer = optim

    if not TYPE_CHECKING:

        @property
        def param_groups(self) -> list[dict[str, Any]]:
            """Those of the inner optimizer."""
            return self.optim.param_groups

        @property
        def state(self) -> Any:
            """That of the inner optimizer."""
            return self.optim.state

    def __getattr__(self, name: str) -> Any:
        if name == "optim":  # asked for while unpickling, before there is one
            raise AttributeError(name)
        return getattr(self.optim, name)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a DivideShuffleOptimizer holds process groups: save its state_dict()")

    def __repr__(self) -> str:
        return f"DivideShuffleOptimizer({self.optim!r}, {self.averager.schedule!r})"

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Does a step of the optimizer, and a round if one is due.

        Raises:
            DLCPError: See :meth:`DivideShuffleAverager.average_parameters`.
        """
        loss = self.optim.step() if closure is None else self.optim.step(closure)
        self.averager.average_parameters()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients."""
        self.optim.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, which have to belong to the averager's model."""
        self.optim.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Returns the inner optimizer's state, and the averager's under ``dssync``."""
        return {**self.optim.state_dict(), _KEY: self.averager.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up both.

        Raises:
            ConfigError: The averager's state is missing, malformed, or of other ranks that did not agree.
        """
        if _KEY not in state_dict:
            raise ConfigError("<state_dict>", _KEY, "missing", "the state of a DivideShuffleOptimizer")
        self.averager.load_state_dict(state_dict[_KEY])
        self.optim.load_state_dict({key: value for key, value in state_dict.items() if key != _KEY})


__all__ = ["DivideShuffleOptimizer"]
