"""Arrays of state that both planes read and write: registers, counters, meters.

Compiled code holds the plain lists and checks indices itself; the methods here are the control plane's.  An index of None means
every cell, as an unset index does in P4Runtime.
"""

from __future__ import annotations

from softswitch.errors import BadValue, OutOfBounds
from softswitch.program.model import CounterModel, MeterModel, RegisterModel
from softswitch.runtime.journal import Journal
from softswitch.runtime.meter import Meter, MeterConfig


def _span(name: str, index: int | None, size: int) -> range:
    if index is None:
        return range(size)
    if index < 0:
        raise BadValue(f"{name}: index {index} is negative")
    if index >= size:
        raise OutOfBounds(f"{name}: index {index} is beyond the {size} cells")
    return range(index, index + 1)


class RegisterArray:
    """``cells``: one int of ``model.width`` bits each, all 0 at first."""

    __slots__ = ("_journal", "cells", "model", "name")

    def __init__(self, model: RegisterModel, journal: Journal) -> None:
        self.model = model
        self.name = model.name
        self.cells: list[int] = [0] * model.size
        self._journal = journal

    def write(self, index: int | None, value: int) -> None:
        """Set one cell, or all.  ``BadValue`` if the value does not fit, ``OutOfBounds`` for the index."""
        span = _span(self.name, index, len(self.cells))
        if value < 0 or value >> self.model.width:
            raise BadValue(f"{self.name}: {value} does not fit {self.model.width} bits")
        self._journal.record(self._put, span, self.cells[span.start : span.stop])
        self._put(span, [value] * len(span))

    def read(self, index: int) -> int:
        """One cell, or ``OutOfBounds``."""
        return self.cells[_span(self.name, index, len(self.cells)).start]

    def _put(self, span: range, values: list[int]) -> None:
        self.cells[span.start : span.stop] = values


class CounterArray:
    """``packets`` and ``bytes``: one int a cell."""

    __slots__ = ("_journal", "bytes", "model", "name", "packets")

    def __init__(self, model: CounterModel, journal: Journal) -> None:
        self.model = model
        self.name = model.name
        self.packets: list[int] = [0] * model.size
        self.bytes: list[int] = [0] * model.size
        self._journal = journal

    def write(self, index: int | None, packets: int, bytes: int) -> None:
        """Set one cell, or all."""
        span = _span(self.name, index, len(self.packets))
        if packets < 0 or bytes < 0:
            raise BadValue(f"{self.name}: counters are not negative")
        self._journal.record(self._put, span, self.packets[span.start : span.stop], self.bytes[span.start : span.stop])
        self._put(span, [packets] * len(span), [bytes] * len(span))

    def read(self, index: int) -> tuple[int, int]:
        """``(packets, bytes)`` of one cell, or ``OutOfBounds``."""
        cell = _span(self.name, index, len(self.packets)).start
        return self.packets[cell], self.bytes[cell]

    def _put(self, span: range, packets: list[int], bytes: list[int]) -> None:
        self.packets[span.start : span.stop] = packets
        self.bytes[span.start : span.stop] = bytes


class MeterArray:
    """``cells``: one meter each."""

    __slots__ = ("_journal", "cells", "model", "name")

    def __init__(self, model: MeterModel, journal: Journal) -> None:
        self.model = model
        self.name = model.name
        self.cells = [Meter(model.unit) for _ in range(model.size)]
        self._journal = journal

    def write(self, index: int | None, config: MeterConfig | None) -> None:
        """Configure one cell, or all; None makes every packet green."""
        span = _span(self.name, index, len(self.cells))
        if config is not None:
            config.check(self.name)
        for cell in span:
            meter = self.cells[cell]
            self._journal.record(meter.restore, meter.state())
            meter.configure(config)

    def read(self, index: int) -> MeterConfig | None:
        """Configuration of one cell, or ``OutOfBounds``."""
        return self.cells[_span(self.name, index, len(self.cells)).start].config


__all__ = ["CounterArray", "MeterArray", "RegisterArray"]
