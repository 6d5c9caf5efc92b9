"""Queues by rank, as pFabric's (Alizadeh et al., SIGCOMM 2013): the lowest rank is sent first, the highest dropped first.

A packet's rank is what its flow has left to send. A queue stays in the order of arrival; it is searched, as it is short.
"""

from __future__ import annotations

from sim.engine.layout import P_EXTRA, P_FLAGS, P_FLOW, P_NEXT, Q_HEAD, RANKED
from sim.engine.words import Words, ld


def rank_of(m: Words, packet: int) -> int:
    """Returns the rank of a packet; one without goes first."""
    return ld(m, packet + P_EXTRA) if ld(m, packet + P_FLAGS) & RANKED else 0


def before_first(m: Words, queue: int) -> int:
    """Returns the packet before the one to be sent next, or 0 if that is at the head.

    That is the earliest packet of the flow that has the packet of lowest rank: its later packets have lower ranks.
    """
    packet = ld(m, queue + Q_HEAD)
    best = packet
    least = rank_of(m, packet)
    while packet:
        rank = rank_of(m, packet)
        if rank < least:
            least = rank
            best = packet
        packet = ld(m, packet + P_NEXT)
    flow = ld(m, best + P_FLOW)
    before = 0
    packet = ld(m, queue + Q_HEAD)
    while ld(m, packet + P_FLOW) != flow:
        before = packet
        packet = ld(m, packet + P_NEXT)
    return before


def before_last(m: Words, queue: int) -> int:
    """Returns the packet before the latest one of highest rank, or 0 if that is at the head."""
    before = 0
    found = 0
    packet = ld(m, queue + Q_HEAD)
    most = rank_of(m, packet)
    while packet:
        rank = rank_of(m, packet)
        if rank >= most:
            most = rank
            found = before
        before = packet
        packet = ld(m, packet + P_NEXT)
    return found
