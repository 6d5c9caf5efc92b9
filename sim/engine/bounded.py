"""A transport after OptiReduce (Warraich et al., NSDI 2025): datagrams, and a receiver that waits no longer than it decided to.

The first messages of about a size are carried reliably, and their times noted; the 95th percentile is from then on the bound
of all. A message is complete when everything is there, when its bound is over, or, once one of its last packets has come, after
a share of the usual time: what is missing then is given up. The share doubles after losses of more than 0.1 %, and falls by a
point in a hundred after less than 0.01 %. Where OptiReduce's senders watch round trips, these follow notices of congestion;
where it lets few send to one receiver at a time, those that do so here share its rate.
"""

from __future__ import annotations

from sim.engine.agenda import arm
from sim.engine.dlcp_rules import set_earlier
from sim.engine.layout import (
    F_END,
    F_GOT,
    F_KIND,
    F_MISSING,
    F_PACKETS,
    F_START,
    F_TO,
    L_BOUND,
    L_COUNT,
    L_EARLY,
    L_SAMPLES,
    L_SHARE,
    N_SENDERS,
    P_SEQ,
    TIMEOUT,
    V_BOUND,
    V_DEADLINE,
    V_LAST,
    WARMUP,
)
from sim.engine.ports import give_packet
from sim.engine.rate import end_rate
from sim.engine.roce import note_mark
from sim.engine.words import Words, has, ld, put, st

SAMPLES = 20
POINT = 655
"""One in a hundred of 65536; shares begin at ten and end at fifty."""


def start_bounded(m: Words, flow: int, now: int) -> int:
    """Begins a message with its clock if there is a bound; returns 0 if it has to be carried reliably."""
    bound = ld(m, ld(m, flow + V_BOUND) + L_BOUND)
    if bound == 0:
        st(m, flow + F_KIND, WARMUP)
        return 0
    st(m, flow + F_KIND, TIMEOUT)
    node = ld(m, flow + F_TO)
    st(m, node + N_SENDERS, ld(m, node + N_SENDERS) + 1)
    # What comes exactly at the end of the bound still counts.
    arm(m, flow + V_DEADLINE, now + bound + 1)
    return 1


def learn(m: Words, flow: int, now: int) -> None:
    """A message that was carried reliably is complete: notes its time, by size, and with enough of them the bound."""
    known = ld(m, flow + V_BOUND)
    count = ld(m, known + L_COUNT)
    if count >= SAMPLES:
        return
    took = now - ld(m, flow + F_START)
    place = count
    while place > 0 and ld(m, known + L_SAMPLES + place - 1) > took:
        st(m, known + L_SAMPLES + place, ld(m, known + L_SAMPLES + place - 1))
        place -= 1
    st(m, known + L_SAMPLES + place, took)
    count += 1
    st(m, known + L_COUNT, count)
    if count == SAMPLES:
        st(m, known + L_EARLY, ld(m, known + L_SAMPLES + SAMPLES // 2))
        st(m, known + L_BOUND, ld(m, known + L_SAMPLES + SAMPLES * 95 // 100 - 1))


def on_datagram(m: Words, flow: int, packet: int, now: int) -> int:
    """Takes a packet in at the receiver; returns 1 if it was the last one missing."""
    note_mark(m, flow, packet, now)
    index = ld(m, packet + P_SEQ)
    give_packet(m, packet)
    got = ld(m, flow + F_GOT)
    if ld(m, flow + F_END) or has(m, got, index):
        return 0
    put(m, got, index)
    missing = ld(m, flow + F_MISSING) - 1
    st(m, flow + F_MISSING, missing)
    if missing == 0:
        settle(m, flow, now)
        return 1
    if index >= ld(m, flow + V_LAST):
        known = ld(m, flow + V_BOUND)
        usual = ld(m, known + L_EARLY)
        if usual:
            set_earlier(m, flow + V_DEADLINE, now + (usual * ld(m, known + L_SHARE) >> 16) + 1)
    return 0


def settle(m: Words, flow: int, now: int) -> None:
    """A message is over, complete or not: its sender stops, and the next ones know."""
    end_rate(m, flow)
    node = ld(m, flow + F_TO)
    st(m, node + N_SENDERS, ld(m, node + N_SENDERS) - 1)
    arm(m, flow + V_DEADLINE, 0)
    known = ld(m, flow + V_BOUND)
    early = ld(m, known + L_EARLY)
    took = now - ld(m, flow + F_START)
    if early:
        st(m, known + L_EARLY, early + (took - early) // 20)
    elif ld(m, flow + F_MISSING) == 0:
        st(m, known + L_EARLY, took)
    lost = ld(m, flow + F_MISSING) * 10000
    packets = ld(m, flow + F_PACKETS)
    share = ld(m, known + L_SHARE)
    if lost > 10 * packets:
        share = 2 * share if share < 25 * POINT else 50 * POINT
    elif lost < packets:
        share = share - POINT if share > 10 * POINT else 10 * POINT
    st(m, known + L_SHARE, share)
