"""RoCE: packets in order or not at all, go-back-N, and the notices of congestion of DCQCN's receiver.

The receiver takes only the packet that it expects. For one further on it asks, once for every gap, to go back there; a timer
helps where that gets lost. Every packet is answered with what is expected next.
"""

from __future__ import annotations

from sim.engine.agenda import arm
from sim.engine.hosts import send_control
from sim.engine.layout import (
    ACK,
    CE,
    CLASS_MASK,
    ECT,
    F_BACK,
    F_CUM,
    F_ENDED,
    F_FLAGS,
    F_FROM,
    F_MARKS,
    F_MISSING,
    F_PACKETS,
    F_RTO,
    F_SENT,
    F_TIMER,
    H_CONTROL_BYTES,
    KEPT,
    KIND_SHIFT,
    NAK,
    NOTICE,
    P_FLAGS,
    P_FLOW,
    P_SENT,
    P_SEQ,
    P_TO,
    SIZE_SHIFT,
)
from sim.engine.layout_rates import (
    V_EXPECTED,
    V_NAKED,
    V_NOTICED,
)
from sim.engine.ports import give_packet, take_packet
from sim.engine.rate import MICROSECOND, end_rate
from sim.engine.words import Words, ld, st

NOTICE_EVERY = 50 * MICROSECOND


def on_segment(m: Words, flow: int, packet: int, now: int) -> int:
    """Takes a packet in at the receiver, and answers; returns 1 if the message is complete with it."""
    note_mark(m, flow, packet, now)
    index = ld(m, packet + P_SEQ)
    expected = ld(m, flow + V_EXPECTED)
    kind = ACK
    done = 0
    if index == expected:
        st(m, flow + V_EXPECTED, expected + 1)
        st(m, flow + V_NAKED, 0)
        missing = ld(m, flow + F_MISSING) - 1
        st(m, flow + F_MISSING, missing)
        done = 1 if missing == 0 else 0
    elif index > expected:
        if ld(m, flow + V_NAKED):
            give_packet(m, packet)
            return 0
        st(m, flow + V_NAKED, 1)
        kind = NAK
    st(m, packet + P_SEQ, ld(m, flow + V_EXPECTED))
    answer(m, flow, packet, kind, (ld(m, flow + F_FLAGS) & ~ECT) | KEPT, now)
    return done


def note_mark(m: Words, flow: int, packet: int, now: int) -> None:
    """A packet may bear a mark, of which the sender is told, but not too often."""
    if ld(m, packet + P_FLAGS) & CE == 0:
        return
    st(m, flow + F_MARKS, ld(m, flow + F_MARKS) + 1)
    before = ld(m, flow + V_NOTICED)
    if before == 0 or now - before >= NOTICE_EVERY:
        st(m, flow + V_NOTICED, now)
        notice = take_packet(m)
        st(m, notice + P_FLOW, flow)
        st(m, notice + P_SENT, now)
        answer(m, flow, notice, NOTICE, (ld(m, flow + F_FLAGS) & ~ECT) | CLASS_MASK | KEPT, now)


def answer(m: Words, flow: int, packet: int, kind: int, flags: int, now: int) -> None:
    """Sends a packet of the shortest length back."""
    st(m, packet + P_FLAGS, flags | (kind << KIND_SHIFT) | (ld(m, H_CONTROL_BYTES) << SIZE_SHIFT))
    st(m, packet + P_TO, ld(m, flow + F_FROM))
    send_control(m, ld(m, flow + F_BACK), packet, now)


def on_expected(m: Words, flow: int, packet: int, kind: int, now: int) -> None:
    """The sender learns what its receiver expects, and maybe that it has to go back there."""
    expected = ld(m, packet + P_SEQ)
    give_packet(m, packet)
    if ld(m, flow + F_ENDED):
        return
    if expected > ld(m, flow + F_CUM):
        st(m, flow + F_CUM, expected)
        arm(m, flow + F_TIMER, now + ld(m, flow + F_RTO))
        if expected > ld(m, flow + F_SENT):
            st(m, flow + F_SENT, expected)
        if expected == ld(m, flow + F_PACKETS):
            end_rate(m, flow)
            return
    if kind == NAK and expected == ld(m, flow + F_CUM):
        st(m, flow + F_SENT, expected)


def on_roce_timeout(m: Words, flow: int) -> None:
    """Nothing new was expected for too long: goes back to what is."""
    if ld(m, flow + F_ENDED) == 0:
        st(m, flow + F_SENT, ld(m, flow + F_CUM))
