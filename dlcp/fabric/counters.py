"""The program's counters: what was forwarded, given up, trimmed and marked, by class and by kind of packet.

``docs/switch.md`` says what the cells mean: droppable packets of class 0 to 7, protected ones of class 0 to 7, ordinary
traffic by queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from finsy.proto import p4r

from dlcp.fabric.program import Program
from dlcp.fabric.session import Session

CLASSES: Final = 8
KINDS: Final = ("droppable", "protected", "ordinary")
VERDICTS: Final = ("forwarded", "dropped", "trimmed", "marked")
CAUSES: Final = ("malformed", "unknown", "refused", "policed", "expired", "hairpin")


@dataclass
class Counts:
    """Packets and bytes.

    Attributes:
        packets: By verdict: a number for each cell.
        bytes: Likewise.
        discarded: Packets dropped for other reasons, by cause.
    """

    packets: dict[str, list[int]] = field(default_factory=lambda: {verdict: [0] * CLASSES * len(KINDS) for verdict in VERDICTS})
    bytes: dict[str, list[int]] = field(default_factory=lambda: {verdict: [0] * CLASSES * len(KINDS) for verdict in VERDICTS})
    discarded: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))

    def of(self, verdict: str, kind: str, priority: int) -> int:
        """Returns a number of packets."""
        return self.packets[verdict][KINDS.index(kind) * CLASSES + priority]

    def add(self, other: Counts, sign: int = 1) -> Counts:
        """Returns the sum, or with ``sign`` -1 the difference."""
        result = Counts()
        for verdict in VERDICTS:
            pairs = zip(self.packets[verdict], other.packets[verdict], strict=True)
            result.packets[verdict] = [one + sign * two for one, two in pairs]
            pairs = zip(self.bytes[verdict], other.bytes[verdict], strict=True)
            result.bytes[verdict] = [one + sign * two for one, two in pairs]
        result.discarded = {cause: self.discarded[cause] + sign * other.discarded[cause] for cause in CAUSES}
        return result

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data: verdict to kind to packets and bytes by class."""
        plain: dict[str, Any] = {}
        for verdict in VERDICTS:
            plain[verdict] = {
                kind: {
                    "packets": self.packets[verdict][place * CLASSES : (place + 1) * CLASSES],
                    "bytes": self.bytes[verdict][place * CLASSES : (place + 1) * CLASSES],
                }
                for place, kind in enumerate(KINDS)
            }
        return {**plain, "discarded": dict(self.discarded)}


def total(counts: Mapping[str, Counts]) -> Counts:
    """Sums what several switches have counted."""
    result = Counts()
    for each in counts.values():
        result = result.add(each)
    return result


async def read(session: Session, program: Program) -> Counts:
    """Reads the counters of one switch."""
    schema = program.schema
    names = {schema.counters[name].id: name for name in (*VERDICTS, "discarded")}
    wanted = [p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=number)) for number in names]
    result = Counts()
    for message in await session.read(wanted):
        entry = message.counter_entry
        name, index = names.get(entry.counter_id), entry.index.index
        if name == "discarded":
            if index < len(CAUSES):
                result.discarded[CAUSES[index]] = entry.data.packet_count
        elif name is not None and index < len(result.packets[name]):
            result.packets[name][index] = entry.data.packet_count
            result.bytes[name][index] = entry.data.byte_count
    return result


__all__ = ["CAUSES", "CLASSES", "KINDS", "VERDICTS", "Counts", "read", "total"]
