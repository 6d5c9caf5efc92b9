"""Layer to priority class: what the next forward pass needs first travels first.

Under strict priority a class is worth having only if the classes above it do not carry nearly everything, so that layers are
dealt out by bytes rather than by number (DLCP, arXiv 2008.08445, deals them out by number).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dlcp.wire.header import LAYER_CLASSES


def assign_classes(sizes_in_execution_order: Sequence[int], classes: int = LAYER_CLASSES) -> list[int]:
    """Deals layers out to classes of about equal bytes.

    A layer's class is where the middle of its bytes falls when all are laid end to end and cut into ``classes`` equal parts.  The
    whole is then raised so that the first layer is in the most urgent class; it would not be if it held more than two parts.

    Args:
        sizes_in_execution_order: Bytes of each layer or parameter, the one used first in front.
        classes: Number of classes, 1 to 7.

    Returns:
        The class of each, from ``classes - 1`` (most urgent, first) downwards; never rising.

    Raises:
        ValueError: A size is negative, or the number of classes is out of range.
    """
    if not 1 <= classes <= LAYER_CLASSES:
        raise ValueError(f"{classes} classes; 1 to {LAYER_CLASSES} are possible")
    if any(size < 0 for size in sizes_in_execution_order):
        raise ValueError("a layer has a negative size")
    total = sum(sizes_in_execution_order)
    if total == 0:
        return [classes - 1] * len(sizes_in_execution_order)
    parts, before = [], 0
    for size in sizes_in_execution_order:
        # Whole numbers: a layer exactly on a cut must fall to the same side on every machine.
        parts.append(min((2 * before + size) * classes // (2 * total), classes - 1))
        before += size
    return [classes - 1 - part + parts[0] for part in parts]


def packet_classes(
    edges: Sequence[int] | NDArray[np.int64], classes: Sequence[int], elements_per_packet: int
) -> NDArray[np.uint8]:
    """Returns the class of each packet: the most urgent of the tensors that it touches.

    Args:
        edges: T + 1 element offsets, ascending from 0: tensor i is [edges[i], edges[i + 1]) of the flat array.
        classes: Class of each of the T tensors.
        elements_per_packet: Packet k is [k * elements_per_packet, (k + 1) * elements_per_packet), the last one perhaps shorter.

    Returns:
        ``uint8[packets]``.
    """
    offsets = np.asarray(edges, np.int64)
    of_tensor = np.asarray(classes, np.uint8)
    starts = np.arange(0, offsets[-1], elements_per_packet)
    result = of_tensor[np.searchsorted(offsets, starts, side="right") - 1]
    # Besides the tensor of its first element a packet touches just those that begin inside it.
    filled = offsets[:-1] < offsets[1:]
    np.maximum.at(result, offsets[:-1][filled] // elements_per_packet, of_tensor[filled])
    return result


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
