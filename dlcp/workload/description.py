"""The workload of one rank: layers in the order of the forward pass, their parameters and their computing times.

It says what a training step asks of the network: which gradients become ready when during the backward pass (in the reverse order
of the layers), and when the next forward pass needs which parameters back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, ClassVar, Final, Self

from dlcp.schema import refuse, required, section, setting
from dlcp.schema_kinds import Choice, Integer, Items, Text
from dlcp.schema_lines import ListDocument
from dlcp.units import Delay, Quantity, Table

DTYPE_BYTES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element."""

_NAME: Final = Text(r"[^\s\x00-\x1f\x7f]{1,200}", "a name of up to 200 characters without spaces")
_NOTE: Final = Text(r"[^\x00-\x1f\x7f]{0,500}", "one line of text, up to 500 characters")
_TIME: Final = Quantity(Delay, "0 s", "10000 s")


@section
class Layer:
    """A layer: what runs at once and whose gradients become ready together."""

    name: str = required(_NAME, doc="Its name, for example that of the module.")
    kind: str = setting(_NOTE, default="", doc="What it is, for example the class of the module; for readers only.")
    elements: int = setting(
        Integer(0, 10**13), default=0, doc="Elements of all its parameters; what layers share counts where it is used first."
    )
    dtype: str = setting(Choice(tuple(DTYPE_BYTES)), default="float32", doc="Type of the parameters and their gradients.")
    forward: Delay = setting(_TIME, default=Delay(0), doc="Time of its forward pass for a whole batch.")
    backward: Delay = setting(_TIME, default=Delay(0), doc="Time of its backward pass for a whole batch.")

    @property
    def bytes(self) -> int:
        """Bytes of its gradients."""
        return self.elements * DTYPE_BYTES[self.dtype]


@section
class Workload(ListDocument):
    """A model, as the network sees it; all ranks have the same."""

    title: ClassVar[str] = "DLCP workload."

    name: str = setting(_NAME, default="workload", doc="What the model is called.")
    batch: int = setting(Integer(1, 10**9), default=1, doc="Samples of one rank in one step; the times are for that many.")
    optimizer: Delay = setting(_TIME, default=Delay(0), doc="Time of the optimizer's step, once the gradients are reduced.")
    note: str = setting(_NOTE, default="", doc="Where the numbers come from: measured where, or estimated how.")
    layers: tuple[Layer, ...] = required(Items(Table(Layer), 1, 100_000), doc="The layers, in the order of the forward pass.")

    @classmethod
    def from_layers(cls, name: str, layers: Iterable[Layer | tuple[Any, ...]], **fields: Any) -> Self:
        """Makes a workload of a list.

        Args:
            name: What it is called.
            layers: In the order of the forward pass; either :class:`Layer`, or a tuple of name, elements, and if known forward
                and backward time as :class:`~dlcp.units.Delay` or text such as ``"1.5 ms"``.
            **fields: Further fields of :class:`Workload`, such as ``batch``.

        Raises:
            ConfigError: A value is not accepted, or a name stands twice.
        """
        columns = ("name", "elements", "forward", "backward")
        made = [layer if isinstance(layer, Layer) else dict(zip(columns, layer, strict=False)) for layer in layers]
        return cls.from_dict({"name": name, **fields, "layers": made}, source=f"workload {name}")

    @classmethod
    def named(cls, name: str, *, batch: int | None = None, flops: float | None = None, **shape: object) -> Workload:
        """Returns the workload of a published model; see :func:`dlcp.workload.named.named`, which has their names.

        Raises:
            ConfigError: There is no such model; the error lists them.
        """
        from dlcp.workload.named import named

        return named(name, batch=batch, flops=flops, **shape)

    def check(self) -> None:
        """Refuses layers of one name, and models without parameters."""
        seen: dict[str, int] = {}
        for index, layer in enumerate(self.layers):
            if layer.name in seen:
                problem = f"{layer.name!r} is also the name of layers[{seen[layer.name]}]"
                raise refuse(f"layers[{index}].name", problem, "a name of its own")
            seen[layer.name] = index
        if not any(layer.elements for layer in self.layers):
            raise refuse("layers", "no layer has parameters", "a layer with elements above 0")

    @property
    def elements(self) -> int:
        """Elements of all parameters."""
        return sum(layer.elements for layer in self.layers)

    @property
    def bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(layer.bytes for layer in self.layers)

    @property
    def forward(self) -> Delay:
        """Time of the forward pass."""
        return Delay(sum(layer.forward for layer in self.layers))

    @property
    def backward(self) -> Delay:
        """Time of the backward pass."""
        return Delay(sum(layer.backward for layer in self.layers))

    @property
    def compute(self) -> Delay:
        """Time of a step without any communication."""
        return Delay(self.forward + self.backward + self.optimizer)

    def sizes(self) -> list[int]:
        """Returns the bytes of every layer, in the order of the forward pass; what classes of priority are assigned by."""
        return [layer.bytes for layer in self.layers]

    def gradients(self) -> Iterator[tuple[int, Layer, Delay]]:
        """Yields the layers with parameters in the order in which their gradients become ready.

        With each comes its position in :attr:`layers`, and when it is ready: the time since the backward pass began.
        """
        backwards = list(enumerate(self.layers))[::-1]
        for (index, layer), ready in zip(backwards, accumulate(int(layer.backward) for _, layer in backwards), strict=True):
            if layer.elements:
                yield index, layer, Delay(ready)

    def needed(self) -> Iterator[tuple[int, Layer, Delay]]:
        """Yields the layers with parameters in the order in which the next forward pass needs them.

        With each comes its position, and when it is needed: the time since the forward pass began, if nothing holds it up.
        """
        begin = 0
        for index, layer in enumerate(self.layers):
            if layer.elements:
                yield index, layer, Delay(begin)
            begin += int(layer.forward)

    def scaled(self, *, time: float = 1.0, batch: int | None = None) -> Self:
        """Returns the same model on another device or with another batch.

        Args:
            time: Factor on every time; 0.5 is a device twice as fast.
            batch: Samples; the times of the layers grow with them, that of the optimizer does not.

        Raises:
            ValueError: ``time`` is negative or not a number.
            ConfigError: ``batch``, or a time that comes out, is out of range.
        """
        if not 0 <= time < math.inf:
            raise ValueError(f"time {time}; it has to be a number from 0 upwards")
        factor = time * (1 if batch is None else batch / self.batch)
        plain = self.to_dict()
        plain["batch"] = self.batch if batch is None else batch
        plain["optimizer"] = Delay(round(self.optimizer * time))
        for layer, item in zip(self.layers, plain["layers"], strict=True):
            item["forward"], item["backward"] = Delay(round(layer.forward * factor)), Delay(round(layer.backward * factor))
        return self.from_dict(plain, source=f"workload {self.name}, scaled")


__all__ = ["DTYPE_BYTES", "Layer", "Workload"]
