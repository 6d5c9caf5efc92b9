"""A transport after OptiReduce (Warraich et al., NSDI 2025): datagrams, and a receiver that waits no longer than it decided to.

Messages of the first training steps, or the first twenty, of about a size are carried reliably, and their times noted; the
95th percentile is from then on the bound of all. A message is complete when everything is there, when its bound is over, or,
once one of its last packets has come, after a share of the usual time: what is missing then is given up. The share doubles
after losses of more than 0.1 %, and falls by a point in a hundred after less than 0.01 %. Where OptiReduce's senders watch
round trips, these follow notices of congestion; where it lets few send to one receiver at a time, those that do so here share
its rate.
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
    N_SENDERS,
    P_SEQ,
    TIMEOUT,
    WARMUP,
)
from sim.engine.layout_rates import (
    L_BOUND,
    L_COUNT,
    L_EARLY,
    L_SAMPLES,
    L_SHARE,
    V_BOUND,
    V_DEADLINE,
    V_LAST,
    V_WARM,
)
from sim.engine.ports import give_packet
from sim.engine.rate import end_rate
from sim.engine.roce import note_mark
from sim.engine.words import Words, has, highest, ld, put, st

SAMPLES = 20
"""Fewest from which a bound is taken."""
STEPS = 16
BINS = 760
"""Of times: four bits of them, to 2^50 picoseconds."""
POINT = 655
"""One in a hundred of 65536; shares begin at ten and end at fifty."""


def start_bounded(m: Words, flow: int, now: int) -> int:
    """Begins a message with its clock if there is a bound; returns 0 if it has to be carried reliably."""
    known = ld(m, flow + V_BOUND)
    if ld(m, known + L_BOUND) == 0 and ld(m, flow + V_WARM) == 0 and ld(m, known + L_COUNT) >= SAMPLES:
        st(m, known + L_EARLY, time_of(m, known, 50))
        st(m, known + L_BOUND, time_of(m, known, 95))
    bound = ld(m, known + L_BOUND)
    if bound == 0 or ld(m, flow + V_WARM):
        st(m, flow + F_KIND, WARMUP)
        return 0
    st(m, flow + F_KIND, TIMEOUT)
    node = ld(m, flow + F_TO)
    st(m, node + N_SENDERS, ld(m, node + N_SENDERS) + 1)
    # What comes exactly at the end of the bound still counts.
    arm(m, flow + V_DEADLINE, now + bound + 1)
    return 1


def learn(m: Words, flow: int, now: int) -> None:
    """A message that was carried reliably is complete: counts its time among those of its size, to a sixteenth of a doubling."""
    known = ld(m, flow + V_BOUND)
    took = now - ld(m, flow + F_START)
    place = took
    if took >= STEPS:
        top = highest(took) - 4
        place = (top << 4) + (took >> top)
    place = place if place < BINS else BINS - 1
    st(m, known + L_SAMPLES + place, ld(m, known + L_SAMPLES + place) + 1)
    st(m, known + L_COUNT, ld(m, known + L_COUNT) + 1)


def time_of(m: Words, known: int, percent: int) -> int:
    """Returns the longest time of the bin in which a percentile of what was counted lies."""
    left = (ld(m, known + L_COUNT) * percent + 99) // 100
    place = -1
    while left > 0:
        place += 1
        left -= ld(m, known + L_SAMPLES + place)
    if place < STEPS:
        return place
    top = (place >> 4) - 1
    return ((place - (top << 4) + 1) << top) - 1


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
