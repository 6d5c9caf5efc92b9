"""A transport after NDP (Handley et al., SIGCOMM 2017): a first window at line rate, then one packet for every pull.

Switches trim what they have no room for; the receiver turns every packet, whole or trimmed, into an answer at once and a pull
that waits for its turn, so that all its senders together send at the rate of its link. Acknowledgements are those of
:mod:`sim.engine.window`, with the mark of trimming in one of a trimmed packet. A timer finds what got lost all the same.
"""

from __future__ import annotations

from sim.engine.agenda import arm
from sim.engine.layout import (
    AGAIN,
    CLASS_MASK,
    CUT,
    F_ACKS,
    F_BACK,
    F_BACKOFF,
    F_CREDIT,
    F_CUM,
    F_ENDED,
    F_FLAGS,
    F_FROM,
    F_GAPS,
    F_HOLES,
    F_MISSING,
    F_PACKETS,
    F_PULL_NEXT,
    F_PULLS,
    F_RETRY,
    F_SENT,
    F_TIMER,
    F_TO,
    H_CONTROL_BYTES,
    KEPT,
    KIND_SHIFT,
    N_PULL,
    N_PULL_GAP,
    N_PULL_RING,
    P_FLAGS,
    P_FLOW,
    P_SENT,
    P_SEQ,
    P_TO,
    PULL,
    SIZE_SHIFT,
    T_WANTED,
)
from sim.engine.ports import give_packet, take_packet
from sim.engine.window import choose, make_data, mark_lost, retry_time, sample
from sim.engine.words import Words, clear, has, ld, put, st


def take_ndp(m: Words, flow: int, now: int) -> int:
    """Returns the next packet, one that was trimmed before any new one, or 0 without a pull to send it for."""
    credit = ld(m, flow + F_CREDIT)
    if credit == 0 or ld(m, flow + F_ENDED):
        return 0
    choice = choose(m, flow)
    if choice < 0:
        return 0
    st(m, flow + F_CREDIT, credit - 1)
    if ld(m, flow + F_TIMER + T_WANTED) == 0:
        arm(m, flow + F_TIMER, now + retry_time(m, flow))
    return make_data(m, flow, choice >> 1, ld(m, flow + F_FLAGS) | (AGAIN if choice & 1 else 0), now)


def want_pull(m: Words, flow: int, now: int) -> None:
    """A packet came: its flow may be sent for another, when its receiver gets round to it."""
    if ld(m, flow + F_MISSING) == 0:
        return
    node = ld(m, flow + F_TO)
    pulls = ld(m, flow + F_PULLS)
    st(m, flow + F_PULLS, pulls + 1)
    if pulls:
        return
    last = ld(m, node + N_PULL_RING)
    if last:
        st(m, flow + F_PULL_NEXT, ld(m, last + F_PULL_NEXT))
        st(m, last + F_PULL_NEXT, flow)
    else:
        st(m, flow + F_PULL_NEXT, flow)
        if ld(m, node + N_PULL + T_WANTED) == 0:
            arm(m, node + N_PULL, now + 1)
    st(m, node + N_PULL_RING, flow)


def next_pull(m: Words, node: int, now: int) -> int:
    """Takes the next pull of a host, flow by flow; returns the packet, or 0 if there is none, which ends the pace."""
    while True:
        last = ld(m, node + N_PULL_RING)
        if last == 0:
            return 0
        flow = ld(m, last + F_PULL_NEXT)
        pulls = ld(m, flow + F_PULLS) - 1
        done = ld(m, flow + F_MISSING) == 0
        st(m, flow + F_PULLS, 0 if done else pulls)
        if pulls and not done:
            st(m, node + N_PULL_RING, flow)
        elif flow == last:
            st(m, node + N_PULL_RING, 0)
        else:
            st(m, last + F_PULL_NEXT, ld(m, flow + F_PULL_NEXT))
        if not done:
            break
    arm(m, node + N_PULL, now + ld(m, node + N_PULL_GAP))
    packet = take_packet(m)
    st(m, packet + P_FLOW, flow)
    st(m, packet + P_TO, ld(m, flow + F_FROM))
    flags = CLASS_MASK | KEPT | (ld(m, flow + F_FLAGS) & ~CLASS_MASK) | (PULL << KIND_SHIFT)
    st(m, packet + P_FLAGS, flags | (ld(m, H_CONTROL_BYTES) << SIZE_SHIFT))
    return packet


def pull_arc(m: Words, packet: int) -> int:
    """Returns the interface that a pull leaves through."""
    return ld(m, ld(m, packet + P_FLOW) + F_BACK)


def on_pull(m: Words, flow: int, packet: int) -> None:
    """The receiver asks for a packet."""
    give_packet(m, packet)
    st(m, flow + F_CREDIT, ld(m, flow + F_CREDIT) + 1)


def on_answer(m: Words, flow: int, packet: int, now: int) -> None:
    """A packet came, or only its header."""
    index = ld(m, packet + P_SEQ)
    flags = ld(m, packet + P_FLAGS)
    sample(m, flow, now - ld(m, packet + P_SENT))
    give_packet(m, packet)
    acks = ld(m, flow + F_ACKS)
    if ld(m, flow + F_ENDED) or has(m, acks, index):
        return
    st(m, flow + F_BACKOFF, 0)
    holes = ld(m, flow + F_HOLES)
    if flags & CUT:
        if has(m, holes, index) == 0:
            put(m, holes, index)
            st(m, flow + F_GAPS, ld(m, flow + F_GAPS) + 1)
            if index < ld(m, flow + F_RETRY):
                st(m, flow + F_RETRY, index)
    else:
        put(m, acks, index)
        if has(m, holes, index):
            clear(m, holes, index)
            st(m, flow + F_GAPS, ld(m, flow + F_GAPS) - 1)
        cum = ld(m, flow + F_CUM)
        sent = ld(m, flow + F_SENT)
        while cum < sent and has(m, acks, cum):
            cum += 1
        st(m, flow + F_CUM, cum)
        if cum == ld(m, flow + F_PACKETS):
            st(m, flow + F_ENDED, 1)
            arm(m, flow + F_TIMER, 0)
            return
    arm(m, flow + F_TIMER, now + retry_time(m, flow))


def on_ndp_timeout(m: Words, flow: int) -> None:
    """Nothing came for too long: what is out counts as lost, and one packet is sent unasked."""
    mark_lost(m, flow, ld(m, flow + F_CUM), ld(m, flow + F_SENT))
    st(m, flow + F_BACKOFF, ld(m, flow + F_BACKOFF) + 1)
    if ld(m, flow + F_CREDIT) == 0:
        st(m, flow + F_CREDIT, 1)
