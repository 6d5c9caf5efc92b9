"""The order in which a model runs, which is what decides the classes of its layers (:mod:`dlcp.tagging.classes`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dlcp.tagging.classes import assign_classes, packet_classes


class ExecutionRecorder(TorchFunctionMode):
    """Notes in which order a model's parameters are used while the context is entered.

    Every torch function that is given a parameter and returns a tensor counts as a use, so that parameters that a module hands to
    a function without calling their owner (attention projections, tied weights) are seen where they are used.

    Attributes:
        names: Names of the parameters used so far, the first used in front.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        # Identity is the key: comparing tensors would compare their elements.
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._parameters = list(model.parameters())  # keeps the identities from being given to something else
        self._seen: dict[str, None] = {}

    @property
    def names(self) -> list[str]:
        return list(self._seen)

    def order(self) -> list[str]:
        """Returns all parameters: those used in the order of their first use, then the others in the order of the model."""
        return [*self._seen, *(name for name in self._names.values() if name not in self._seen)]

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if len(self._seen) < len(self._names) and _holds_tensor(result):  # reading a shape or a dtype is no use
            self._note(args)
            self._note((kwargs or {}).values())
        return result

    def _note(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, Tensor):
                name = self._names.get(id(value))
                if name is not None:
                    self._seen.setdefault(name)
            elif isinstance(value, list | tuple):
                self._note(value)


def _holds_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, list | tuple) and any(map(_holds_tensor, value)))


def record_execution_order(model: nn.Module, *example_inputs: Any, **example_kwargs: Any) -> list[str]:
    """Runs one forward pass and returns the parameters' names in the order of their first use.

    The model is left as it was: no gradients are recorded, and buffers (running statistics) and the random state are put back.
    Parameters that are not used go last.

    Args:
        model: Any module.
        example_inputs: What to call it with.
        example_kwargs: The same by keyword.
    """
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    recorder = ExecutionRecorder(model)
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices), torch.no_grad(), recorder:
            model(*example_inputs, **example_kwargs)
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
    return recorder.order()


class FirstForward:
    """Records the execution order of a module's next forward pass, then takes itself away.

    Args:
        module: The module itself, not its data-parallel wrapper, whose own bookkeeping touches parameters as well.

    Attributes:
        order: All parameters' names in the order of first use, once that forward pass is over; None before.
    """

    def __init__(self, module: nn.Module) -> None:
        self.order: list[str] | None = None
        self._recorder: ExecutionRecorder | None = None
        self._active = ExitStack()
        self._handles = [
            module.register_forward_pre_hook(self._before),
            # always_call: a mode that is entered must be left, also when the forward pass raises.
            module.register_forward_hook(self._after, always_call=True),
        ]

    def remove(self) -> None:
        """Takes the hooks off the module."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # A module that is being compiled must not be traced with a mode in its way: it goes without an order.

    def _before(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling() or self._recorder is not None:
            return
        self._recorder = ExecutionRecorder(module)
        self._active.enter_context(self._recorder)

    def _after(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        recorder, self._recorder = self._recorder, None
        self._active.close()
        if recorder is not None and recorder.names:
            self.order = recorder.order()
            self.remove()


__all__ = ["ExecutionRecorder", "FirstForward", "assign_classes", "packet_classes", "record_execution_order"]
