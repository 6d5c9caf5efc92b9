"""What a bucket holds: which parameters, where, and how its packets are tagged.

DDP rebuilds its buckets after the first backward pass, so that a bucket's index says nothing about its contents.  Everything that
outlives a step is therefore kept by the name of a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dlcp.errors import ConfigError
from dlcp.policy import Policy
from dlcp.tagging.layers import assign_classes, packet_classes
from dlcp.tagging.magnitude import PacketLayout, packet_tags, protect, upload

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class ParameterNames:
    """Names of parameters: the model's if it is known, otherwise ``parameter.<k>`` in the order in which they are met.

    Args:
        model: The module that owns them (not its data-parallel wrapper, which would prefix every name).
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self._known = model is not None
        # The parameters are kept so that no other tensor can get the identity of one that is gone.
        self._names: dict[int, tuple[str, Tensor]] = {}
        if model is not None:
            self._names = {id(parameter): (name, parameter) for name, parameter in model.named_parameters()}

    def __call__(self, parameter: Tensor) -> str:
        found = self._names.get(id(parameter))
        if found is None:
            if self._known:
                raise ConfigError(
                    "bucket",
                    "parameters",
                    f"one of shape {tuple(parameter.shape)} does not belong to the model that the state was given",
                    "the parameters of the model whose gradients are reduced; one state serves one model",
                )
            found = (f"parameter.{len(self._names)}", parameter)
            self._names[id(parameter)] = found
        return found[0]

    def in_order(self) -> list[str]:
        """Returns the names: in the order of the model, or else as they were met."""
        return [name for name, _ in self._names.values()]

    def bytes(self) -> dict[str, int]:
        """Returns the size of each parameter's gradient."""
        return {name: parameter.numel() * parameter.element_size() for name, parameter in self._names.values()}


class LayerClasses:
    """The class of each parameter, from the best knowledge there is of the order in which the model runs.

    In rising order of trust: the order of the model's definition; the reverse of the order in which gradients become ready, which
    DDP's rebuilt buckets follow; an order that was recorded in a forward pass.
    """

    def __init__(self, names: ParameterNames, classes: int) -> None:
        self._names = names
        self._count = classes
        self._recorded: list[str] | None = None
        self._passes: list[tuple[BucketLayout, ...]] = []
        self._current: list[BucketLayout] = []
        self._classes: dict[str, int] = {}
        self.version = 0
        self._assign(names.in_order())

    @property
    def recorded(self) -> list[str] | None:
        """The order that was recorded, if one was."""
        return self._recorded

    def record(self, order: Sequence[str]) -> None:
        """Takes a recorded order of execution; from then on it decides."""
        if self._recorded != list(order):
            self._recorded = list(order)
            self._assign(self._recorded)

    def observe(self, layout: BucketLayout, first: bool, last: bool) -> None:
        """Takes note of a bucket as it becomes ready, and learns from the whole pass with the last one."""
        if first:  # a pass that failed half-way leaves something behind
            self._current = []
        self._current.append(layout)
        if not last:
            return
        buckets, self._current = tuple(self._current), []
        if self._recorded is not None or (self._passes and self._passes[-1] == buckets):
            return
        self._passes = [*self._passes[-1:], buckets]
        if len(self._passes) == 1:
            # Not rebuilt yet: buckets come from the back of the model, but each holds its parameters in the model's order.
            self._assign([name for bucket in reversed(buckets) for name in bucket.names])
        else:
            self._assign([name for bucket in reversed(buckets) for name in reversed(bucket.names)])

    def of(self, name: str) -> int:
        """Returns the class of a parameter; the least urgent if nothing is known of it."""
        return self._classes.get(name, 0)

    def _assign(self, order: list[str]) -> None:
        sizes = self._names.bytes()
        known = [name for name in order if name in sizes]
        rest = [name for name in sizes if name not in set(known)]
        order = known + rest
        self._classes = dict(zip(order, assign_classes([sizes[name] for name in order], self._count), strict=True))
        self.version += 1


class BucketLayout:
    """One bucket's contents; made once for each set of parameters that DDP puts together.

    Attributes:
        names: The parameters' names, in the order of the buffer.
        edges: ``int64[P + 1]``, element offsets: parameter i is [edges[i], edges[i + 1]).
        parameters: The parameters themselves.
    """

    def __init__(self, parameters: Sequence[Tensor], names: ParameterNames) -> None:
        self.parameters = tuple(parameters)
        self.names = tuple(names(parameter) for parameter in parameters)
        self.edges: NDArray[np.int64] = np.cumsum([0, *(parameter.numel() for parameter in parameters)], dtype=np.int64)
        self._packets: dict[tuple[int, torch.device], PacketLayout] = {}
        self._classes: tuple[int, int, torch.device, Tensor] | None = None

    @property
    def elements(self) -> int:
        return int(self.edges[-1])

    def check(self, buffer: Tensor) -> None:
        """Refuses what DDP would accept in silence.

        Raises:
            ConfigError: The buffer is no dense vector of a supported dtype with the elements of the bucket's parameters.
        """
        where = f"bucket of {self.names[0]}" if self.names else "empty bucket"
        if buffer.layout != torch.strided:
            raise ConfigError(where, "gradient", f"layout {buffer.layout}", "dense gradients (an embedding with sparse=False)")
        if buffer.dtype not in DTYPES:
            accepted = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise ConfigError(where, "gradient", f"dtype {buffer.dtype}", accepted)
        if buffer.ndim != 1 or buffer.numel() != self.elements or not buffer.is_contiguous():
            raise ConfigError(
                where, "gradient", f"shape {tuple(buffer.shape)}", f"a contiguous vector of the bucket's {self.elements} elements"
            )

    def tags(self, work: Tensor, width: int, classes: LayerClasses, policy: Policy) -> Tensor:
        """Tags the bucket's packets.

        Args:
            work: What is about to be contributed, a floating vector.
            width: Elements a packet.
            classes: Classes of all parameters.
            policy: Gives the protected share and the sampling.

        Returns:
            ``uint8[packets]`` on the device of ``work``, class * 2 + protected.
        """
        key = (width, work.device)
        packets = self._packets.get(key)
        if packets is None:
            packets = self._packets[key] = PacketLayout(self.edges, width, policy.protection.sample, work.device)
        stamp = (classes.version, *key)
        if self._classes is None or self._classes[:3] != stamp:
            urgency = packet_classes(self.edges, [classes.of(name) for name in self.names], width)
            self._classes = (*stamp, upload(urgency, work.device))
        return packet_tags(self._classes[3], protect(packets.scores(work), policy.protection.share))
