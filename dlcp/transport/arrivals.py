"""Sorts a batch of data packets into messages and runs, so that the work left per packet is copying its payload.

A *group* is all packets of one message in the batch; a *run* is a stretch of a group that lies in consecutive rows of one frame
and carries consecutive packets of the message: one slice assignment moves it.  All tests are made on whole batches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dlcp.transport.screening import Screened
from dlcp.wire.header import HEADER, HEADER_BYTES

Indices = NDArray[np.int64]

_FLAGS_BYTE: Final = HEADER.slots["priority"].byte
_PROTECTED_BIT: Final = 1 << HEADER.slots["protected"].shift
_TRIMMED_BIT: Final = 1 << HEADER.slots["trimmed"].shift
_LENGTH_WORD: Final = HEADER.slots["length"].byte // 4
_OFFSET_WORD: Final = HEADER.slots["offset"].byte // 4
_STRIDE_HALF: Final = HEADER.slots["stride"].byte // 2
_STRIDE_BOUND_WORD: Final = HEADER.slots["stride"].byte // 4
_BOUND_HALF: Final = HEADER.slots["bound"].byte // 2
_PROTECTED_PACKETS_HALF: Final = HEADER.slots["protected_packets"].byte // 2


@dataclass(slots=True)
class Group:
    """Packets of one message.

    Attributes:
        source: Sender.
        message: 64-bit message id.
        length, stride, bound, protected_packets: What every header of the group says.
        flags: ``uint8[n]``, the header byte that holds class, protection, trimming and retransmission.
        indices: ``int64[n]``, packet numbers in order of arrival.
        ascending: They ascend strictly, so none is there twice.
        protected: ``bool[n]``.
        frame, row: ``int64[n]``, where each packet lies.
        runs: (frame, first row, one past the last row, first packet) of each run.
    """

    source: int
    message: int
    length: int
    stride: int
    bound: int
    protected_packets: int
    flags: NDArray[np.uint8]
    indices: Indices
    ascending: bool
    protected: NDArray[np.bool_]
    frame: Indices
    row: Indices
    runs: list[tuple[int, int, int, int]]

    @property
    def size(self) -> int:
        """Number of packets."""
        return int(self.indices.size)


def arrange(screened: Screened, which: Indices) -> Iterator[Group] | None:
    """Groups the data packets ``which`` of ``screened``.

    Returns:
        The groups; or None if any packet is trimmed, malformed, or contradicts another one of its message: such batches are rare
        and are taken apart packet by packet instead.
    """
    whole = which.size == screened.types.size
    headers = screened.headers if whole else screened.headers[which]
    words, halves = headers.view(">u4"), headers.view(">u2")
    flags = headers[:, _FLAGS_BYTE]
    if (flags & _TRIMMED_BIT).any():
        return None
    strides = halves[:, _STRIDE_HALF].astype(np.int64)
    if not strides.all():
        return None
    offsets = words[:, _OFFSET_WORD].astype(np.int64)
    lengths = words[:, _LENGTH_WORD].astype(np.int64)
    payloads = (screened.lengths if whole else screened.lengths[which]) - HEADER_BYTES
    indices = offsets // strides
    ok = payloads == np.minimum(strides, lengths - offsets)
    ok &= offsets == indices * strides
    ok &= (offsets < lengths) | (lengths == 0)
    if not ok.all():
        return None
    sources, keys = screened.sources, screened.keys
    frame, row = screened.frame, screened.row
    if not whole:
        sources, keys, frame, row = sources[which], keys[which], frame[which], row[which]
    if not ((keys == keys[0]).all() and (sources == sources[0]).all()):
        order = np.lexsort((keys, sources))
        headers, flags, strides, lengths, indices = headers[order], flags[order], strides[order], lengths[order], indices[order]
        sources, keys, frame, row = sources[order], keys[order], frame[order], row[order]
        halves = headers.view(">u2")
    return _cut(headers, flags, strides, lengths, indices, sources, keys, frame, row, halves)


def _cut(
    headers: NDArray[np.uint8],
    flags: NDArray[np.uint8],
    strides: Indices,
    lengths: Indices,
    indices: Indices,
    sources: Indices,
    keys: NDArray[np.uint64],
    frame: Indices,
    row: Indices,
    halves: NDArray[np.uint16],
) -> Iterator[Group] | None:
    """Cuts packets, sorted by message, into groups and runs."""
    count = indices.size
    change = (keys[1:] != keys[:-1]) | (sources[1:] != sources[:-1])
    pairs, counts = headers.view("=u4")[:, _STRIDE_BOUND_WORD], halves[:, _PROTECTED_PACKETS_HALF]
    differs = (lengths[1:] != lengths[:-1]) | (pairs[1:] != pairs[:-1]) | (counts[1:] != counts[:-1])
    if (differs & ~change).any():
        return None
    step = np.diff(indices)
    falls = np.flatnonzero((step <= 0) & ~change)
    breaks = np.flatnonzero(change | (step != 1) | (np.diff(frame) != 0) | (np.diff(row) != 1)) + 1
    first = np.concatenate([[0], np.flatnonzero(change) + 1])
    disordered = set((np.searchsorted(first, falls, side="right") - 1).tolist()) if falls.size else set()
    run_starts = np.concatenate([[0], breaks])
    run_ends = np.concatenate([breaks, [count]])
    run_rows = row[run_starts]
    runs = list(
        zip(
            frame[run_starts].tolist(),
            run_rows.tolist(),
            (run_rows + (run_ends - run_starts)).tolist(),
            indices[run_starts].tolist(),
            strict=True,
        )
    )
    run_bounds = [*np.searchsorted(run_starts, first).tolist(), len(runs)]
    bounds = [*first.tolist(), count]
    protected = (flags & _PROTECTED_BIT) != 0
    described = zip(
        sources[first].tolist(),
        (keys[first].byteswap() if sys.byteorder == "little" else keys[first]).tolist(),
        lengths[first].tolist(),
        strides[first].tolist(),
        halves[first, _BOUND_HALF].tolist(),
        counts[first].tolist(),
        strict=True,
    )

    def groups() -> Iterator[Group]:
        for number, (source, message, length, stride, bound, protected_packets) in enumerate(described):
            part = slice(bounds[number], bounds[number + 1])
            yield Group(
                source,
                message,
                length,
                stride,
                bound,
                protected_packets,
                flags[part],
                indices[part],
                number not in disordered,
                protected[part],
                frame[part],
                row[part],
                runs[run_bounds[number] : run_bounds[number + 1]],
            )

    return groups()
