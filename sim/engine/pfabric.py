"""A transport after pFabric (Alizadeh et al., SIGCOMM 2013): the network decides, senders hardly do.

Every packet bears what its flow has left, by which ports choose whom to send and whom to drop (:mod:`sim.engine.ranks`). A flow
begins with a bandwidth-delay product. Only a timer, of three round trips, finds losses; the window then starts again from one
packet. After five times in a row the flow only probes, until something is answered.
"""

from __future__ import annotations

from sim.engine.agenda import arm
from sim.engine.layout import (
    CUT,
    F_BACKOFF,
    F_CREDIT,
    F_CUM,
    F_ENDED,
    F_FLAGS,
    F_GREATEST,
    F_KIND,
    F_NEXT,
    F_PACKETS,
    F_PULLS,
    F_RTO,
    F_THRESHOLD,
    F_TIMER,
    H_CONTROL_BYTES,
    KIND_SHIFT,
    P_EXTRA,
    P_FLAGS,
    PFABRIC,
    PROBE,
    RANKED,
    SIZE_SHIFT,
    T_WANTED,
)
from sim.engine.ports import give_packet
from sim.engine.window import make_data, on_ack, on_timeout, take_window
from sim.engine.words import Words, ld, st

GIVE_UP = 5
"""Timeouts in a row from which on a flow only probes; ``F_CREDIT`` is 1 while it does, ``F_PULLS`` if a probe is due."""


def left(m: Words, flow: int) -> int:
    """Returns how many packets of a flow are not known to have arrived with all before them."""
    return ld(m, flow + F_PACKETS) - ld(m, flow + F_CUM)


def take_pfabric(m: Words, flow: int, now: int) -> int:
    """Returns the next packet of a flow, or 0 if its window is full."""
    if ld(m, flow + F_ENDED):
        return 0
    if ld(m, flow + F_CREDIT):
        if ld(m, flow + F_PULLS) == 0:
            return 0
        st(m, flow + F_PULLS, 0)
        arm(m, flow + F_TIMER, now + ld(m, flow + F_RTO))
        packet = make_data(m, flow, ld(m, flow + F_CUM), 0, now)
        flags = ld(m, flow + F_FLAGS) | (PROBE << KIND_SHIFT) | (ld(m, H_CONTROL_BYTES) << SIZE_SHIFT)
        st(m, packet + P_FLAGS, flags)
    else:
        packet = take_window(m, flow, now)
        if packet == 0:
            return 0
    st(m, packet + P_FLAGS, ld(m, packet + P_FLAGS) | RANKED)
    st(m, packet + P_EXTRA, left(m, flow))
    return packet


def on_ranked_ack(m: Words, flow: int, packet: int, now: int) -> None:
    """Takes an acknowledgement, or the answer to a probe, in at the sender."""
    if ld(m, flow + F_CREDIT):
        st(m, flow + F_CREDIT, 0)
        st(m, flow + F_BACKOFF, 0)
        st(m, flow + F_THRESHOLD, ld(m, flow + F_GREATEST))
        arm(m, flow + F_TIMER, 0)
    if ld(m, packet + P_FLAGS) & CUT:
        give_packet(m, packet)
        return
    before = ld(m, flow + F_CUM)
    due = ld(m, flow + F_TIMER + T_WANTED)
    on_ack(m, flow, packet, now)
    if due and ld(m, flow + F_CUM) == before and ld(m, flow + F_ENDED) == 0:
        # What is behind a gap does not put off the search for what is missing.
        arm(m, flow + F_TIMER, due)


def on_ranked_timeout(m: Words, flow: int, now: int) -> None:
    """The timer has run out: starts again from one packet, or only probes."""
    if ld(m, flow + F_ENDED):
        return
    if ld(m, flow + F_CREDIT) == 0:
        threshold = ld(m, flow + F_THRESHOLD)
        on_timeout(m, flow, now)
        if ld(m, flow + F_BACKOFF) > 1:
            # RFC 5681, section 3.1: only the first of several timeouts halves it.
            st(m, flow + F_THRESHOLD, threshold)
        if ld(m, flow + F_BACKOFF) < GIVE_UP:
            return
        st(m, flow + F_CREDIT, 1)
    st(m, flow + F_PULLS, 1)


def turn_to_shortest(m: Words, last: int) -> int:
    """Returns the flow of a ring before the one of pFabric that has the least left; others stay in turn."""
    best = last
    first = ld(m, last + F_NEXT)
    if ld(m, first + F_KIND) != PFABRIC:
        return last
    least = left(m, first)
    before = first
    while before != last:
        flow = ld(m, before + F_NEXT)
        if ld(m, flow + F_KIND) == PFABRIC and left(m, flow) < least:
            least = left(m, flow)
            best = before
        before = flow
    return best
