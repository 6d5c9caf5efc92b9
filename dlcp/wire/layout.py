"""Declarative bit layouts and the vectorized numpy codec derived from them.

A :class:`Layout` is an ordered list of :class:`Field`; everything that needs to know the bytes (this codec, the scapy layer, the
Wireshark dissector, the tables in ``docs/wire-format.md``, the P4 header) is generated from it, so the description exists once.

Fields are big-endian (network order), most significant bit first, packed without gaps.  Fields narrower than a byte share a
*word* with their neighbours; a word is 1, 2, 4 or 8 bytes long and is what numpy stores.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_WORD_BITS = (8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Field:
    """One header field.

    Attributes:
        name: Identifier, also the name of the scapy field and of the dissector's filter (``dlcp.<name>``).
        bits: Width.
        doc: One sentence for humans: documentation, dissector and scapy all show it.
        mutable: A switch on the path may change it, so the header check does not cover it.
        values: Names of particular values, if the field is an enumeration.
        parts: What the bits of the field mean one by one, most significant first, where one number carries several things.  The
            codec reads and writes the whole field; documentation, scapy and dissector also show the parts.
    """

    name: str
    bits: int
    doc: str
    mutable: bool = False
    values: Mapping[int, str] | None = None
    parts: tuple[Field, ...] = ()

    def __post_init__(self) -> None:
        if self.parts and sum(part.bits for part in self.parts) != self.bits:
            raise ValueError(f"{self.name}: the parts do not fill {self.bits} bits")

    def part_shifts(self) -> list[tuple[Field, int]]:
        """Returns every part with the number of bits to its right inside the field."""
        left, out = self.bits, []
        for part in self.parts:
            left -= part.bits
            out.append((part, left))
        return out


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a field lives: its word, its place inside that word, and how many bits of the record come after it."""

    field: Field
    word: str
    byte: int
    word_bytes: int
    shift: int
    behind: int
    mask: int


class Layout:
    """A fixed-size record on the wire.

    Args:
        name: Short name of the record.
        fields: Fields in wire order.  Their widths must fill whole words.

    Raises:
        ValueError: The fields do not tile words of 8, 16, 32 or 64 bits.
    """

    def __init__(self, name: str, fields: Sequence[Field]) -> None:
        self.name = name
        self.fields = tuple(fields)
        self.slots: dict[str, Slot] = {}
        members: list[tuple[str, str, int]] = []
        byte = 0
        behind = sum(field.bits for field in self.fields)
        pending: list[Field] = []
        for field in self.fields:
            pending.append(field)
            bits = sum(f.bits for f in pending)
            if bits not in _WORD_BITS:
                if bits > 64:
                    raise ValueError(f"{name}: {[f.name for f in pending]} do not fill a word")
                continue
            word = pending[0].name if len(pending) == 1 else "_".join(f.name for f in pending)
            members.append((word, f">u{bits // 8}", byte))
            shift = bits
            for member in pending:
                shift -= member.bits
                behind -= member.bits
                self.slots[member.name] = Slot(member, word, byte, bits // 8, shift, behind, (1 << member.bits) - 1)
            byte += bits // 8
            pending = []
        if pending:
            raise ValueError(f"{name}: {[f.name for f in pending]} do not fill a word")
        self.size = byte
        # Records of whole words, which most bodies are, take no arithmetic at all.
        whole = all(slot.field.bits == 8 * slot.word_bytes for slot in self.slots.values())
        codes = {1: "B", 2: "H", 4: "I", 8: "Q"}
        self._struct = struct.Struct(">" + "".join(codes[slot.word_bytes] for slot in self.slots.values())) if whole else None
        self._names = tuple(self.slots)
        self._masks = tuple(slot.mask for slot in self.slots.values())
        self.dtype = np.dtype(
            {
                "names": [m[0] for m in members],
                "formats": [m[1] for m in members],
                "offsets": [m[2] for m in members],
                "itemsize": byte,
            }
        )

    def encode(self, count: int = 1, /, **columns: ArrayLike) -> NDArray[np.uint8]:
        """Packs columns into records.

        Args:
            count: Number of records.
            columns: Field name to a scalar or an array of length ``count``.  Fields left out are zero.

        Returns:
            ``uint8[count, size]``, C-contiguous.

        Raises:
            KeyError: Unknown field name.
        """
        # What all records share is gathered in one long integer, which saves a numpy assignment for each such column.
        common = 0
        arrays = []
        for name, value in columns.items():
            slot = self.slots[name]
            if isinstance(value, int | np.integer):
                common |= (int(value) & slot.mask) << slot.behind
            else:
                arrays.append((slot, value))
        rows = np.empty((count, self.size), np.uint8)
        rows[...] = np.frombuffer(common.to_bytes(self.size, "big"), np.uint8)
        records = rows.reshape(-1).view(self.dtype)
        for slot, value in arrays:
            put(records, slot, value)
        return rows

    def records(self, rows: NDArray[np.uint8]) -> NDArray[Any]:
        """Views ``uint8[n, >= size]`` as ``n`` records (copies only if the rows are not contiguous).

        Raises:
            ValueError: Rows shorter than ``size``.
        """
        if rows.shape[1] < self.size:
            raise ValueError(f"{self.name}: {rows.shape[1]} bytes, {self.size} needed")
        head = rows[:, : self.size]
        if not head.flags.c_contiguous:
            head = np.ascontiguousarray(head)
        return head.reshape(-1).view(self.dtype)

    def get(self, records: NDArray[Any], name: str) -> NDArray[Any]:
        """Reads one column of ``records`` in native byte order."""
        slot = self.slots[name]
        word = records[slot.word]
        if slot.field.bits != slot.word_bytes * 8:
            word = (word >> slot.shift) & slot.mask
        return word.astype(word.dtype.newbyteorder("="))

    def decode(self, rows: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Unpacks every column of ``uint8[n, >= size]``.

        Raises:
            ValueError: Rows shorter than ``size``.
        """
        records = self.records(rows)
        return {name: self.get(records, name) for name in self.slots}

    def encode_one(self, **values: int) -> bytes:
        """Packs a single record from Python integers, much faster than :meth:`encode` does it for one.

        Values are reduced modulo their field's width; fields left out are zero.

        Raises:
            KeyError: Unknown field name.
        """
        if self._struct is not None:
            numbers = [values.pop(name, 0) & mask for name, mask in zip(self._names, self._masks, strict=True)]
            if values:
                raise KeyError(next(iter(values)))
            return self._struct.pack(*numbers)
        record = 0
        for name, value in values.items():
            slot = self.slots[name]
            record |= (value & slot.mask) << slot.behind
        return record.to_bytes(self.size, "big")

    def decode_one(self, body: bytes | memoryview | NDArray[np.uint8]) -> dict[str, int]:
        """Unpacks a single record into Python integers; bytes behind it are not looked at.

        Raises:
            ValueError: Fewer than ``size`` bytes.
        """
        if len(body) < self.size:
            raise ValueError(f"{self.name}: {len(body)} bytes, {self.size} needed")
        if self._struct is not None:
            return dict(zip(self._names, self._struct.unpack(bytes(body[: self.size])), strict=True))
        record = int.from_bytes(bytes(body[: self.size]), "big")
        return {name: record >> slot.behind & slot.mask for name, slot in self.slots.items()}

    def immutable_mask(self) -> NDArray[np.uint8]:
        """Returns ``uint8[size]`` with a one bit wherever no switch may write."""
        mask = np.zeros(1, self.dtype)
        for slot in self.slots.values():
            if not slot.field.mutable:
                mask[slot.word] |= mask.dtype[slot.word].type(slot.mask << slot.shift)
        return mask.view(np.uint8).reshape(self.size)


def put(records: NDArray[Any], slot: Slot, value: ArrayLike) -> None:
    """Writes one column into ``records`` in place; values are reduced modulo the field's width."""
    word = records[slot.word]
    if slot.field.bits == slot.word_bytes * 8:
        # Without asarray numpy refuses a Python integer that is too wide, where it wraps an array of the same.
        word[...] = np.asarray(value)
        return
    kind = word.dtype.newbyteorder("=")
    bits = (np.asarray(value).astype(kind) & kind.type(slot.mask)) << kind.type(slot.shift)
    keep = kind.type(~(slot.mask << slot.shift) & ((1 << (8 * slot.word_bytes)) - 1))
    word[...] = (word & keep) | bits
