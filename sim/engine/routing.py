"""Routing: the port on which a packet leaves a switch.

Hosts that hang on the same switch share a class; a switch knows a group of next hops for every class. What is for a host of
its own goes to that host's port. Ports that are down are passed over, as the P4 target does with members that watch their
port.
"""

from __future__ import annotations

from sim.engine.layout import (
    A_BACKLOG,
    A_UP,
    F_HASH,
    G_ARCS,
    G_COUNT,
    G_TURN,
    N_CLASS,
    N_LAST,
    N_ROUTES,
    N_SALT,
    P_FLAGS,
    P_FLOW,
    P_TO,
    SPRAY_LEAST,
    SPRAY_RANDOM,
    SPRAY_SHIFT,
    SPRAY_TURN,
)
from sim.engine.ports import chance
from sim.engine.words import MASK32, Words, ld, mix, st

OWN = -1
"""In place of a group: the port of the host itself."""


def route(m: Words, node: int, packet: int) -> int:
    """Returns the arc on which a packet leaves a switch, or 0 if there is none."""
    to = ld(m, packet + P_TO) & MASK32
    group = ld(m, ld(m, node + N_ROUTES) + ld(m, to + N_CLASS))
    if group == OWN:
        return ld(m, to + N_LAST)
    if group == 0:
        return 0
    count = ld(m, group + G_COUNT)
    if count == 1:
        return ld(m, group + G_ARCS)
    spray = (ld(m, packet + P_FLAGS) >> SPRAY_SHIFT) & 3
    if spray == SPRAY_TURN:
        pick = ld(m, group + G_TURN)
        st(m, group + G_TURN, pick + 1)
    elif spray == SPRAY_RANDOM:
        pick = chance(m)
    elif spray == SPRAY_LEAST:
        # Of equally short queues the next in turn, lest all go to the first.
        turn = ld(m, group + G_TURN)
        st(m, group + G_TURN, turn + 1)
        pick = turn
        least = -1
        index = 0
        while index < count:
            arc = ld(m, group + G_ARCS + (turn + index) % count)
            backlog = ld(m, arc + A_BACKLOG)
            if ld(m, arc + A_UP) and (least < 0 or backlog < least):
                least = backlog
                pick = turn + index
            index += 1
    else:
        pick = mix(ld(m, ld(m, packet + P_FLOW) + F_HASH) ^ ld(m, node + N_SALT))
    arc = ld(m, group + G_ARCS + pick % count)
    if ld(m, arc + A_UP):
        return arc
    return standing(m, group, count, pick)


def standing(m: Words, group: int, count: int, pick: int) -> int:
    """Returns one of the arcs of a group that are up, the same for the same pick; any one if none is."""
    up = 0
    index = 0
    while index < count:
        up += ld(m, ld(m, group + G_ARCS + index) + A_UP)
        index += 1
    if up == 0:
        return ld(m, group + G_ARCS)
    left = pick % up
    index = 0
    while True:
        arc = ld(m, group + G_ARCS + index)
        if ld(m, arc + A_UP):
            if left == 0:
                return arc
            left -= 1
        index += 1
