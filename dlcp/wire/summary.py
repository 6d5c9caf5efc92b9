"""Sums up the DLCP packets of a capture, by verdict, type, class and flow.

Whole batches go through the numpy codec; Python runs once a captured frame, and once more for each round of packets that a
segmentation-offload burst hides behind the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.wire.bodies import PREFIX_BYTES, expected_bytes
from dlcp.wire.codec import check_ok, gather
from dlcp.wire.header import HEADER, HEADER_BYTES, UDP_PORT, VERSION, PacketType, Phase, WireType
from dlcp.wire.pcap import Datagram

BATCH: Final = 4096
_CUT_BYTES: Final = HEADER.slots["dtype"].byte + 1
_NEVER: Final = np.iinfo(np.int64).max


class Verdict(IntEnum):
    """What is to be said of a packet; the first that applies."""

    GOOD = 0
    CUT = 1
    """The capture holds too little of it to verify the check."""
    TRUNCATED = 2
    """Shorter than the header."""
    VERSION = 3
    TYPE = 4
    CHECK = 5
    MALFORMED = 6
    """Its size contradicts its fields."""
    FOREIGN = 7
    """Another protocol's, or without the cookie that was asked for."""


_KEPT: Final = (
    "type",
    "priority",
    "protected",
    "trimmed",
    "retransmission",
    "source",
    "destination",
    "cookie",
    "operation",
    "phase",
    "part",
    "length",
    "offset",
    "sequence",
)


class Summary:
    """Takes datagrams in, gives the sums out.

    Args:
        ports: UDP ports whose datagrams are DLCP whatever they look like.  Elsewhere, a datagram that does not look like DLCP is
            foreign, unless others between the same two endpoints do.
        cookie: Count packets without this job cookie as foreign.
    """

    def __init__(self, ports: Collection[int] = (UDP_PORT,), cookie: int | None = None) -> None:
        self._ports = frozenset(ports)
        self._cookie = cookie
        self._conversations: dict[tuple[bytes, bytes], int] = {}
        self._on_port: list[bool] = []
        self._batches: list[dict[str, NDArray[Any]]] = []
        self._datagrams = 0
        self._bursts = 0

    def add(self, datagrams: Iterable[Datagram]) -> None:
        """Takes datagrams in, batch by batch."""
        batch: list[Datagram] = []
        for datagram in datagrams:
            batch.append(datagram)
            if len(batch) == BATCH:
                self._take(batch)
                batch = []
        if batch:
            self._take(batch)

    def _take(self, batch: list[Datagram]) -> None:
        self._datagrams += len(batch)
        captured = np.array([min(len(d.payload), d.size) for d in batch], np.int64)
        memory = np.frombuffer(b"".join(d.payload[: d.size] for d in batch) + bytes(PREFIX_BYTES), np.uint8)
        ends = np.cumsum(captured)
        per_datagram = {
            "start": ends - captured,
            "end": ends,
            "left": np.array([d.size for d in batch], np.int64),
            "ecn": np.array([d.tos & 3 for d in batch], np.uint8),
            "time": np.array([d.time for d in batch], np.float64),
            "conversation": np.array([self._conversation(d) for d in batch], np.int64),
        }
        for rank, rows in enumerate(self._segments(memory, per_datagram)):
            self._batches.append(rows)
            if rank == 1:
                self._bursts += len(rows["type"])

    def _conversation(self, datagram: Datagram) -> int:
        ends = (datagram.source, datagram.destination)
        key = ends if ends[0] <= ends[1] else ends[::-1]
        number = self._conversations.setdefault(key, len(self._conversations))
        if number == len(self._on_port):
            self._on_port.append(not self._ports.isdisjoint(datagram.ports))
        return number

    def _segments(self, memory: NDArray[np.uint8], at: dict[str, NDArray[Any]]) -> Iterator[dict[str, NDArray[Any]]]:
        """Yields the first packet of every datagram, then the second of those that have one, and so on."""
        while at["start"].size:
            rows, captured = _prefixes(memory, at["start"], at["end"])
            size = _size(rows, captured, at["left"])
            following = np.zeros(len(rows), bool)
            behind = np.flatnonzero((size > 0) & (size < at["left"]))
            if behind.size:
                next_rows, next_captured = _prefixes(memory, at["start"][behind] + size[behind], at["end"][behind])
                following[behind] = _looks_like_dlcp(next_rows, next_captured)
                # Where the capture ends before the next header would, nobody knows whether there is one.
                size[behind[(next_captured < HEADER_BYTES) & (captured[behind] < at["left"][behind])]] = _NEVER
            length = np.where(following, size, at["left"])
            fields = HEADER.decode(rows)
            out = {name: fields[name] for name in _KEPT}
            out["verdict"] = self._judge(rows, np.minimum(captured, length), length, size, fields)
            yield out | {"bytes": length} | {name: at[name] for name in ("ecn", "time", "conversation")}
            at = {name: column[following] for name, column in at.items()}
            at["start"] = at["start"] + length[following]
            at["left"] = at["left"] - length[following]

    def _judge(
        self,
        rows: NDArray[np.uint8],
        captured: NDArray[np.int64],
        length: NDArray[np.int64],
        size: NDArray[np.int64],
        fields: dict[str, NDArray[Any]],
    ) -> NDArray[np.uint8]:
        truncated = length < HEADER_BYTES
        cut = captured < HEADER_BYTES
        foreign = np.zeros(len(rows), bool) if self._cookie is None else fields["cookie"] != np.uint64(self._cookie)
        tests = (
            (Verdict.FOREIGN, cut & ~truncated & ~_plausible(rows, captured)),
            (Verdict.TRUNCATED, truncated),
            (Verdict.CUT, cut),
            (Verdict.VERSION, fields["version"] != VERSION),
            (Verdict.TYPE, fields["type"] >= len(PacketType)),
            (Verdict.CHECK, ~check_ok(gather(rows))),
            (Verdict.FOREIGN, foreign),
            (Verdict.MALFORMED, (size != length) & (size != _NEVER)),
        )
        return np.select([test for _, test in tests], [np.uint8(verdict) for verdict, _ in tests], np.uint8(Verdict.GOOD))

    def columns(self) -> dict[str, NDArray[Any]]:
        """Returns a column for each header field kept, ``verdict``, ``bytes``, ``ecn`` and ``time``, one element a packet.

        Packets of a datagram that segmentation offload sent as one stand after all those that came first in theirs.
        """
        if not self._batches:
            names = {"verdict": np.uint8, "bytes": np.int64, "ecn": np.uint8, "time": np.float64}
            return {name: np.zeros(0, np.int64) for name in _KEPT} | {name: np.zeros(0, kind) for name, kind in names.items()}
        joined = {name: np.concatenate([batch[name] for batch in self._batches]) for name in self._batches[0]}
        verdict, conversation = joined["verdict"], joined.pop("conversation")
        ours = np.array(self._on_port)
        ours[conversation[(verdict == Verdict.GOOD) | (verdict == Verdict.CUT)]] = True
        verdict[~ours[conversation]] = Verdict.FOREIGN
        return joined

    def to_dict(self) -> dict[str, Any]:
        """Returns the sums as plain data; see ``docs/wire-format.md`` for the keys."""
        table = self.columns()
        verdicts = {v.name.lower(): int(np.count_nonzero(table["verdict"] == v)) for v in Verdict}
        good = {name: column[table["verdict"] == Verdict.GOOD] for name, column in table.items()}
        time = good["time"]
        return {
            "datagrams": self._datagrams,
            "bursts": self._bursts,
            "packets": int(table["verdict"].size),
            "verdicts": verdicts,
            "types": {PacketType(kind).name.lower(): _sums(good, good["type"] == kind) for kind in _distinct(good["type"])},
            "classes": {str(level): _sums(good, good["priority"] == level) for level in _distinct(good["priority"])},
            "flows": list(_flows(good)),
            "jobs": [f"{cookie:016x}" for cookie in _distinct(good["cookie"])],
            "operations": len(_distinct(good["operation"])),
            "seconds": float(time.max() - time.min()) if time.size else 0.0,
        }


def _prefixes(
    memory: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Copies the first bytes of what lies between ``start`` and ``end``, zeros where it is shorter, and how many there are."""
    start = np.minimum(start, end)
    rows = memory[start[:, None] + np.arange(PREFIX_BYTES)]
    captured = end - start
    rows[np.arange(PREFIX_BYTES) >= captured[:, None]] = 0
    return rows, captured


def _size(rows: NDArray[np.uint8], captured: NDArray[np.int64], left: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns how long each packet says it is: -1 where it contradicts itself, a huge number where too little was captured."""
    size = expected_bytes(rows, left)
    size[captured < np.minimum(left, PREFIX_BYTES)] = _NEVER
    return size


def _looks_like_dlcp(rows: NDArray[np.uint8], captured: NDArray[np.int64]) -> NDArray[np.bool_]:
    head = rows[:, 0]
    known = (head >> 4 == VERSION) & (head & 15 < len(PacketType))
    looks: NDArray[np.bool_] = (captured >= HEADER_BYTES) & known & check_ok(gather(rows))
    return looks


def _plausible(rows: NDArray[np.uint8], captured: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The dissector's rule for packets whose check was not captured: every value that was must make sense."""
    fields = HEADER.decode(rows)
    sense: NDArray[np.bool_] = (
        (captured >= _CUT_BYTES)
        & (fields["version"] == VERSION)
        & (fields["type"] < len(PacketType))
        & (fields["reserved"] == 0)
        & (fields["phase"] < len(Phase))
        & (fields["dtype"] & 15 < len(WireType))
    )
    return sense


def _distinct(column: NDArray[Any]) -> list[int]:
    return [int(value) for value in np.unique(column)]


def _sums(table: dict[str, NDArray[Any]], which: NDArray[np.bool_]) -> dict[str, int]:
    return {
        "packets": int(np.count_nonzero(which)),
        "bytes": int(table["bytes"][which].sum()),
        "protected": int(np.count_nonzero(table["protected"][which])),
        "retransmissions": int(np.count_nonzero(table["retransmission"][which])),
        "trimmed": int(np.count_nonzero(table["trimmed"][which])),
        "marked": int(np.count_nonzero(table["ecn"][which] == 3)),
    }


def _flows(table: dict[str, NDArray[Any]]) -> Iterator[dict[str, Any]]:
    keys = np.stack([table[name].astype(np.uint64) for name in ("cookie", "source", "destination")], axis=1)
    found, which = np.unique(keys, axis=0, return_inverse=True)
    for number, (cookie, source, destination) in enumerate(found.tolist()):
        yield {"job": f"{cookie:016x}", "source": source, "destination": destination, **_sums(table, which == number)}
