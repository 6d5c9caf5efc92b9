"""A small assembler for eBPF, enough for a classifier: no compiler is needed where the switch is configured.

Encoding: RFC 9669 (BPF instruction set), section 3: opcode 8 bits, destination and source register 4 each, offset 16, immediate
32, little-endian.  Numbers of helpers are those of ``include/uapi/linux/bpf.h``.
"""

from __future__ import annotations

import struct
from typing import Final

R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)

SKB_LOAD_BYTES_RELATIVE: Final = 68
SKB_ECN_SET_CE: Final = 97
KTIME_GET_NS: Final = 5
_PSEUDO_MAP_VALUE: Final = 2

_SIZES: Final = {1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18}
_ALU: Final = {"add": 0x00, "sub": 0x10, "mul": 0x20, "and": 0x50, "lsh": 0x60, "rsh": 0x70, "mov": 0xB0}
_JUMPS: Final = {"eq": 0x10, "gt": 0x20, "ge": 0x30, "ne": 0x50, "lt": 0xA0, "le": 0xB0}
_ALU64, _JMP, _LDX, _STX, _LD = 0x07, 0x05, 0x61, 0x63, 0x18


class Assembler:
    """Collects instructions; labels stand for places that are not known yet.

    Attributes:
        maps: Positions of the instructions into which the loader has to write the file descriptor of the map.
    """

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int | str, int]] = []
        self._labels: dict[str, int] = {}
        self.maps: list[int] = []

    def label(self, name: str) -> None:
        """Names the next instruction."""
        if name in self._labels:
            raise ValueError(f"label {name} is there already")
        self._labels[name] = len(self._code)

    def alu(self, operation: str, register: int, value: int) -> None:
        """``register`` = ``register`` operation ``value``, 64 bits, with a constant of 32 bits."""
        self._code.append((_ALU64 | _ALU[operation], register, 0, 0, value))

    def alu_register(self, operation: str, register: int, other: int) -> None:
        """The same with a register."""
        self._code.append((_ALU64 | _ALU[operation] | 0x08, register, other, 0, 0))

    def big_endian_16(self, register: int) -> None:
        """Reads the lower 16 bits as big-endian and clears the rest."""
        self._code.append((0xDC, register, 0, 0, 16))

    def load(self, size: int, register: int, base: int, offset: int) -> None:
        """``register`` = the ``size`` bytes at ``base + offset``."""
        self._code.append((_LDX | _SIZES[size], register, base, offset, 0))

    def store(self, size: int, base: int, offset: int, register: int) -> None:
        """The ``size`` bytes at ``base + offset`` = ``register``."""
        self._code.append((_STX | _SIZES[size], base, register, offset, 0))

    def constant(self, register: int, value: int) -> None:
        """``register`` = a constant of 64 bits."""
        self._wide(register, 0, value & 0xFFFF_FFFF, value >> 32)

    def map_value(self, register: int) -> None:
        """``register`` = address of the first value of the map."""
        self.maps.append(len(self._code))
        self._wide(register, _PSEUDO_MAP_VALUE, 0, 0)

    def _wide(self, register: int, source: int, low: int, high: int) -> None:
        self._code.append((_LD, register, source, 0, low))
        self._code.append((0, 0, 0, 0, high))

    def jump(self, target: str) -> None:
        """Goes to ``target``."""
        self._code.append((_JMP, 0, 0, target, 0))

    def jump_if(self, condition: str, register: int, value: int, target: str) -> None:
        """Goes to ``target`` if ``register`` compares so with a constant of 32 bits, unsigned."""
        self._code.append((_JMP | _JUMPS[condition], register, 0, target, value))

    def jump_if_register(self, condition: str, register: int, other: int, target: str) -> None:
        """The same with a register."""
        self._code.append((_JMP | _JUMPS[condition] | 0x08, register, other, target, 0))

    def call(self, helper: int) -> None:
        """Calls a helper of the kernel: arguments in r1 to r5, which it clobbers, result in r0."""
        self._code.append((0x85, 0, 0, 0, helper))

    def leave(self) -> None:
        """Returns r0."""
        self._code.append((0x95, 0, 0, 0, 0))

    def assemble(self) -> bytes:
        """Returns the instructions, eight bytes each.

        Raises:
            ValueError: A label is missing, or a number does not fit.
        """
        out = bytearray()
        for position, (opcode, destination, source, offset, immediate) in enumerate(self._code):
            if isinstance(offset, str):
                if offset not in self._labels:
                    raise ValueError(f"there is no label {offset}")
                offset = self._labels[offset] - position - 1
            unsigned = immediate & 0xFFFF_FFFF
            if not -(1 << 31) <= immediate < 1 << 32 or not -(1 << 15) <= offset < 1 << 15:
                raise ValueError(f"instruction {position}: a number does not fit")
            out += struct.pack("<BBhI", opcode, destination | source << 4, offset, unsigned)
        return bytes(out)


__all__ = [
    "KTIME_GET_NS",
    "R0",
    "R1",
    "R2",
    "R3",
    "R4",
    "R5",
    "R6",
    "R7",
    "R8",
    "R9",
    "R10",
    "SKB_ECN_SET_CE",
    "SKB_LOAD_BYTES_RELATIVE",
    "Assembler",
]
