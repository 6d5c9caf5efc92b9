"""The gate: which of the received datagrams are ours, whole and well-formed.  Everything else is counted and changes nothing."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.packets import Frames
from dlcp.wire.codec import check_ok, gather, records
from dlcp.wire.header import HEADER, HEADER_BYTES, VERSION, PacketType

_KEY_WORD: Final = HEADER.slots["operation"].byte // 8
_COOKIE_WORD: Final = HEADER.slots["cookie"].byte // 8
_SOURCE_WORD: Final = HEADER.slots["source"].byte // 2
_DESTINATION_WORD: Final = HEADER.slots["destination"].byte // 2
_TYPES: Final = len(PacketType)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a datagram must say to be let in."""

    rank: int
    world: int
    cookie: int


@dataclass(slots=True)
class Screened:
    """Datagrams that passed, in order of arrival.

    Attributes:
        headers: ``uint8[n, 48]``.
        records: The same as structured records of the header table (big-endian).
        types: ``uint8[n]``.
        sources: ``int64[n]``.
        keys: ``uint64[n]``, message ids in network byte order as a native word: good for equality only.
        lengths: ``int64[n]``, bytes of the datagram.
        ecn: ``uint8[n]``.
        frame: ``int64[n]``, which of the frames.
        row: ``int64[n]``, which row of it.
    """

    headers: NDArray[np.uint8]
    records: NDArray[Any]
    types: NDArray[np.uint8]
    sources: NDArray[np.int64]
    keys: NDArray[np.uint64]
    lengths: NDArray[np.int64]
    ecn: NDArray[np.uint8]
    frame: NDArray[np.int64]
    row: NDArray[np.int64]


def screen(frames: list[Frames], identity: Identity, counters: Counter[str]) -> Screened | None:
    """Sorts out what is not ours.

    Args:
        frames: As they came from the socket.
        identity: Own rank, world size and cookie.
        counters: Verdicts are counted here: ``truncated``, ``version``, ``foreign``, ``check``, ``misaddressed``.

    Returns:
        What passed, or None if nothing did.
    """
    usable = [(i, f) for i, f in enumerate(frames) if len(f.lengths)]
    for _, f in usable:
        if f.data.shape[1] < HEADER_BYTES:
            counters["truncated"] += len(f.lengths)
    usable = [(i, f) for i, f in usable if f.data.shape[1] >= HEADER_BYTES]
    if not usable:
        return None
    if len(usable) == 1:
        index, only = usable[0]
        headers, lengths, ecn = gather(only.data), only.lengths, only.ecn
        count = len(lengths)
        frame, row = np.full(count, index, np.int64), np.arange(count, dtype=np.int64)
    else:
        headers = np.concatenate([f.data[:, :HEADER_BYTES] for _, f in usable])
        lengths = np.concatenate([f.lengths for _, f in usable])
        ecn = np.concatenate([f.ecn for _, f in usable])
        counts = np.array([len(f.lengths) for _, f in usable])
        frame = np.repeat(np.array([i for i, _ in usable], np.int64), counts)
        row = np.concatenate([np.arange(c, dtype=np.int64) for c in counts])
    words = headers.view("=u8")
    halves = headers.view(">u2")
    sources = halves[:, _SOURCE_WORD].astype(np.int64)
    first = headers[:, 0]
    types: NDArray[np.uint8] = first & np.uint8(0x0F)
    cookie = np.uint64(int.from_bytes(identity.cookie.to_bytes(8, "big"), sys.byteorder))
    tests = (
        ("truncated", lengths >= HEADER_BYTES),
        ("version", ((first >> 4) == VERSION) & (types < _TYPES)),
        ("foreign", words[:, _COOKIE_WORD] == cookie),
        ("check", check_ok(headers)),
        (
            "misaddressed",
            (halves[:, _DESTINATION_WORD] == identity.rank) & (sources < identity.world) & (sources != identity.rank),
        ),
    )
    passed = np.ones(len(lengths), bool)
    for verdict, ok in tests:
        if not ok.all():
            refused = passed & ~ok
            counters[verdict] += int(np.count_nonzero(refused))
            passed &= ok
    keys = words[:, _KEY_WORD]
    if not passed.all():
        if not passed.any():
            return None
        headers, types, sources, keys = headers[passed], types[passed], sources[passed], keys[passed]
        lengths, ecn, frame, row = lengths[passed], ecn[passed], frame[passed], row[passed]
    return Screened(headers, records(headers), types, sources, keys, lengths, ecn, frame, row)
