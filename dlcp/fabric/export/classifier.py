"""The classifier that a Linux switch runs for each port: class by DSCP, selective dropping and marking by queue depth.

It is attached as a filter of the port's HTB qdisc, so it runs under that qdisc's lock and needs none of its own.  A filter
cannot see how long a queue is.  So the program keeps a model of all queues of the port: the fluid model of strict priority,
which serves the queues from the most urgent one down at the rate of the port.  HTB serves the real ones at the same rate and
in the same order, so that model and reality differ by a packet or two.  Depths are kept as transmission times, in 2^-16 ns, so
nothing has to be divided.

The value of the map, all numbers 64 bits: time of the last packet (ns), depths of the eight queues, then eight counters for each
class in the order of :data:`COUNTERS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dlcp.fabric.export.bpf import (
    KTIME_GET_NS,
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
    SKB_ECN_SET_CE,
    SKB_LOAD_BYTES_RELATIVE,
    Assembler,
)

CLASSES: Final = 8
COUNTERS: Final = ("packets", "bytes", "dropped", "marked")
"""What is counted of each class: forwarded packets and bytes, packets given up, and packets marked with CE."""

FRAME_OVERHEAD: Final = 24
"""Preamble, start of frame, check sequence and gap: what a frame takes on the wire besides its bytes (IEEE 802.3)."""

_SCALE: Final = 16
_LONGEST: Final = 1 << 40
_LAST, _DEPTHS, _COUNTERS = 0, 8, 8 + 8 * CLASSES
MAP_BYTES: Final = _COUNTERS + 8 * CLASSES * len(COUNTERS)

# Offsets in struct __sk_buff (include/uapi/linux/bpf.h).
_PROTOCOL, _TC_CLASSID, _WIRE_LEN = 16, 72, 160
_OK, _SHOT = 0, 2
_HEADER_NETWORK: Final = 1
_NO_ECN: Final = 4


@dataclass(frozen=True)
class Thresholds:
    """What one port does.

    Attributes:
        rate_bps: Bits per second of the port.
        mark_bytes: Depth of a queue from which ECT packets are marked; None: never.
        drop_bytes: Depth of a queue from which droppable packets are given up; None: never.
        limit_bytes: Room of a queue.
        dscp: DSCP of classes 0 to 7; what has another is in class 0.
        droppable_ecn: ECN codepoint of droppable packets (RFC 3168).
        first_minor: Minor number of the HTB class of class 0; those of the others follow.
    """

    rate_bps: int
    mark_bytes: int | None
    drop_bytes: int | None
    limit_bytes: int
    dscp: Sequence[int]
    droppable_ecn: int
    first_minor: int


def classifier(wanted: Thresholds) -> tuple[bytes, list[int]]:
    """Returns the program, and the positions of the instructions that take the descriptor of the map."""
    program = Assembler()
    program.alu_register("mov", R6, R1)
    program.map_value(R7)
    _read_tos(program)
    _choose_class(program, wanted.dscp)
    _drain(program)
    _admit(program, wanted)
    return program.assemble(), program.maps


def _cost(wanted: Thresholds, size: int) -> int:
    """Time that ``size`` bytes take, scaled; more than 19 hours are 19 hours, which fit into 64 bits with room to add."""
    return min(round(size * 8 * 10**9 * (1 << _SCALE) / wanted.rate_bps), 1 << 62)


def _read_tos(program: Assembler) -> None:
    """r2 = ToS byte, r9 = ECN; what holds the network together goes with control traffic and is never given up.

    That is what is not IP (ARP, spanning tree), and neighbour discovery (RFC 4861: ICMPv6 types 133 to 137).
    """
    program.alu("mov", R8, CLASSES - 1)
    program.alu("mov", R9, _NO_ECN)
    program.load(4, R2, R6, _PROTOCOL)
    program.big_endian_16(R2)
    program.jump_if("eq", R2, 0x0800, "ipv4")
    program.jump_if("ne", R2, 0x86DD, "account")
    _load_header(program, 6, 1)
    program.jump_if("ne", R0, 0, "account")
    program.load(1, R2, R10, -8)
    program.jump_if("ne", R2, 58, "ipv6")
    _load_header(program, 40, 1)
    program.jump_if("ne", R0, 0, "account")
    program.load(1, R2, R10, -8)
    program.jump_if("lt", R2, 133, "ipv6")
    program.jump_if("le", R2, 137, "account")
    program.label("ipv6")
    _load_header(program, 0, 2)
    program.jump_if("ne", R0, 0, "account")
    program.load(2, R2, R10, -8)
    program.big_endian_16(R2)
    program.alu("rsh", R2, 4)
    program.alu("and", R2, 0xFF)
    program.jump("tos")
    program.label("ipv4")
    _load_header(program, 1, 1)
    program.jump_if("ne", R0, 0, "account")
    program.load(1, R2, R10, -8)
    program.label("tos")
    program.alu_register("mov", R9, R2)
    program.alu("and", R9, 3)
    program.alu("rsh", R2, 2)


def _load_header(program: Assembler, offset: int, size: int) -> None:
    program.alu_register("mov", R1, R6)
    program.alu("mov", R2, offset)
    program.alu_register("mov", R3, R10)
    program.alu("add", R3, -8)
    program.alu("mov", R4, size)
    program.alu("mov", R5, _HEADER_NETWORK)
    program.call(SKB_LOAD_BYTES_RELATIVE)


def _choose_class(program: Assembler, dscp: Sequence[int]) -> None:
    """r8 = class; of classes with the same DSCP the most urgent one."""
    for priority in reversed(range(CLASSES)):
        program.jump_if("eq", R2, dscp[priority], f"class{priority}")
    program.alu("mov", R8, 0)
    program.jump("account")
    for priority in reversed(range(CLASSES)):
        program.label(f"class{priority}")
        program.alu("mov", R8, priority)
        program.jump("account")


def _drain(program: Assembler) -> None:
    """Takes out of the queues what the port has sent since the last packet."""
    program.label("account")
    program.call(KTIME_GET_NS)
    program.load(8, R3, R7, _LAST)
    program.store(8, R7, _LAST, R0)
    program.alu_register("sub", R0, R3)
    program.constant(R3, _LONGEST)
    program.jump_if_register("le", R0, R3, "recent")
    program.alu_register("mov", R0, R3)
    program.label("recent")
    program.alu("lsh", R0, _SCALE)
    for priority in reversed(range(CLASSES)):
        place = _DEPTHS + 8 * priority
        program.load(8, R3, R7, place)
        program.jump_if_register("gt", R3, R0, f"stays{priority}")
        program.alu_register("sub", R0, R3)
        program.alu("mov", R3, 0)
        program.store(8, R7, place, R3)
    program.jump("drained")
    for priority in range(CLASSES):
        program.label(f"stays{priority}")
        program.alu_register("sub", R3, R0)
        program.store(8, R7, _DEPTHS + 8 * priority, R3)
        program.jump("drained")


def _admit(program: Assembler, wanted: Thresholds) -> None:
    """Gives the packet up, or marks it and says which class it belongs to."""
    program.label("drained")
    program.alu("and", R8, CLASSES - 1)
    program.alu_register("mov", R3, R8)
    program.alu("lsh", R3, 3)
    program.alu_register("add", R3, R7)  # r3: depth of the queue, at offset _DEPTHS
    program.alu_register("mov", R4, R8)
    program.alu("lsh", R4, (8 * len(COUNTERS)).bit_length() - 1)
    program.alu_register("add", R7, R4)  # r7: counters of the class, at offset _COUNTERS
    program.load(8, R5, R3, _DEPTHS)
    if wanted.drop_bytes is not None:
        program.jump_if("eq", R8, CLASSES - 1, "enqueue")
        program.jump_if("ne", R9, wanted.droppable_ecn, "enqueue")
        program.constant(R0, _cost(wanted, wanted.drop_bytes))
        program.jump_if_register("lt", R5, R0, "enqueue")
        _count(program, "dropped")
        program.alu("mov", R0, _SHOT)
        program.leave()
    program.label("enqueue")
    program.load(4, R4, R6, _WIRE_LEN)
    _count(program, "bytes", R4)
    _count(program, "packets")
    program.alu("add", R4, FRAME_OVERHEAD)
    program.constant(R0, _cost(wanted, 1))
    program.alu_register("mul", R4, R0)
    program.alu_register("add", R4, R5)
    program.constant(R0, _cost(wanted, wanted.limit_bytes))
    program.jump_if_register("le", R4, R0, "fits")
    program.alu_register("mov", R4, R0)  # the real queue takes no more either
    program.label("fits")
    program.store(8, R3, _DEPTHS, R4)
    if wanted.mark_bytes is not None:
        program.jump_if("eq", R9, 0, "send")
        program.jump_if("gt", R9, 2, "send")
        program.constant(R0, _cost(wanted, wanted.mark_bytes))
        program.jump_if_register("lt", R5, R0, "send")
        program.alu_register("mov", R1, R6)
        program.call(SKB_ECN_SET_CE)
        program.jump_if("ne", R0, 1, "send")
        _count(program, "marked")
    program.label("send")
    program.alu("add", R8, wanted.first_minor)
    program.store(4, R6, _TC_CLASSID, R8)
    program.alu("mov", R0, _OK)
    program.leave()


def _count(program: Assembler, counter: str, amount: int | None = None) -> None:
    place = _COUNTERS + 8 * COUNTERS.index(counter)
    program.load(8, R0, R7, place)
    if amount is None:
        program.alu("add", R0, 1)
    else:
        program.alu_register("add", R0, amount)
    program.store(8, R7, place, R0)


__all__ = ["CLASSES", "COUNTERS", "FRAME_OVERHEAD", "MAP_BYTES", "Thresholds", "classifier"]
