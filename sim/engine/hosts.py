"""Hosts: packets come out of flows at the pace of the interface, the most urgent class first, flows of a class in turn.

DLCP's messages from one rank to another go one after the other; in turn are those to different ranks.

A flow is *listed* at its interface while it may have something to send. What a flow has, its transport says when it is asked;
so nothing waits in the host but control packets, and a flow that is stopped sends no more.
"""

from __future__ import annotations

from sim.engine.agenda import schedule
from sim.engine.dlcp_send import foremost, take_dlcp
from sim.engine.layout import (
    A_BUSY,
    A_DOWN,
    A_LEAVE,
    A_MASK,
    A_PENDING,
    A_QUEUES,
    A_READY,
    A_RINGS,
    A_UP,
    CLASS_MASK,
    D_PROBE_CLASS,
    D_PROBE_DUE,
    D_URGENCY,
    DCQCN,
    DLCP,
    F_ARC,
    F_CLASS,
    F_KIND,
    F_LISTED,
    F_NEXT,
    F_PAIR,
    NDP,
    P_FLAGS,
    PAUSED_SHIFT,
    PFABRIC,
    Q_COUNT,
    RAW,
    ROCE,
    SERVICE,
    TIMEOUT,
)
from sim.engine.ndp import take_ndp
from sim.engine.pfabric import take_pfabric, turn_to_shortest
from sim.engine.ports import admit, first_waiting, lose, transmit, wait_for
from sim.engine.rate import take_rate
from sim.engine.window import take_raw, take_window
from sim.engine.words import MASK32, Words, highest, ld, st


def take(m: Words, flow: int, now: int) -> int:
    """Returns the next packet of a flow, or 0 if it may not send now."""
    kind = ld(m, flow + F_KIND)
    if kind == DLCP:
        return take_dlcp(m, flow, now)
    if kind == RAW:
        return take_raw(m, flow, now)
    if kind == NDP:
        return take_ndp(m, flow, now)
    if kind == PFABRIC:
        return take_pfabric(m, flow, now)
    if kind == DCQCN or kind == ROCE or kind == TIMEOUT:
        return take_rate(m, flow, now)
    return take_window(m, flow, now)


def line_up(m: Words, flow: int, arc: int) -> None:
    """Lists a flow at its interface, if it is not."""
    if ld(m, flow + F_LISTED) == 0:
        st(m, flow + F_LISTED, 1)
        number = ld(m, flow + F_CLASS)
        ring = arc + A_RINGS + number
        last = ld(m, ring)
        if last:
            st(m, flow + F_NEXT, ld(m, last + F_NEXT))
            st(m, last + F_NEXT, flow)
        else:
            st(m, flow + F_NEXT, flow)
            st(m, arc + A_READY, ld(m, arc + A_READY) | (1 << number))
        st(m, ring, flow)


def enlist(m: Words, flow: int, now: int) -> None:
    """Lists a flow at its interface, if it is not, and wakes the interface."""
    arc = ld(m, flow + F_ARC)
    line_up(m, flow, arc)
    wake(m, arc, now)


def rouse(m: Words, flow: int, now: int) -> None:
    """Lists a DLCP message that has something to send, by its class, even if it is sent again."""
    choose_class(m, flow)
    enlist(m, flow, now)


def choose_class(m: Words, flow: int) -> None:
    """Says in which ring a DLCP message that is not listed goes."""
    if ld(m, flow + F_LISTED) == 0:
        kind = ld(m, flow + D_PROBE_CLASS) if ld(m, flow + D_PROBE_DUE) else ld(m, flow + D_URGENCY)
        st(m, flow + F_CLASS, kind)


def rouse_pair(m: Words, pair: int, now: int) -> None:
    """A window has opened, or a pace allows more: lists the message of a pair whose turn it is."""
    flow = foremost(m, pair)
    if flow:
        rouse(m, flow, now)


def give_way(m: Words, flow: int, arc: int, now: int) -> None:
    """A DLCP message has nothing to send, or must not now: lists the one of its pair whose turn it is, if it is another."""
    first = foremost(m, ld(m, flow + F_PAIR))
    if first != 0 and first != flow:
        choose_class(m, first)
        line_up(m, first, ld(m, first + F_ARC))
        if ld(m, first + F_ARC) != arc:
            wake(m, ld(m, first + F_ARC), now)


def wake(m: Words, arc: int, now: int) -> None:
    """Sees to it that an interface whose link is up is served when the link is free."""
    if ld(m, arc + A_UP):
        wait_for(m, arc, now)


def send_control(m: Words, arc: int, packet: int, now: int) -> None:
    """Sends a packet that waits for no flow's turn: an acknowledgement, or control."""
    if ld(m, arc + A_UP) == 0:
        lose(m, packet, arc, A_DOWN)
        return
    queue = arc + A_QUEUES + ((ld(m, packet + P_FLAGS) & CLASS_MASK) << 2)
    admit(m, arc, queue, ld(m, queue + Q_COUNT) & MASK32, packet, now)


def serve_host(m: Words, arc: int, now: int) -> None:
    """The link of an interface is free: sends what is next."""
    busy = ld(m, arc + A_BUSY)
    if busy > now:
        schedule(m, arc + A_LEAVE, busy)
        return
    state = ld(m, arc + A_PENDING) & ~SERVICE
    st(m, arc + A_PENDING, state)
    if ld(m, arc + A_UP) == 0:
        return
    paused = state >> PAUSED_SHIFT
    while True:
        mask = ld(m, arc + A_MASK) & ~paused
        both = mask | (ld(m, arc + A_READY) & ~paused)
        if both == 0:
            return
        number = highest(both)
        if mask >> number & 1:
            packet = first_waiting(m, arc, mask, now)
        else:
            ring = arc + A_RINGS + number
            last = turn_to_shortest(m, ld(m, ring))
            flow = ld(m, last + F_NEXT)
            packet = take(m, flow, now)
            if packet == 0:
                st(m, flow + F_LISTED, 0)
                if flow == last:
                    st(m, ring, 0)
                    st(m, arc + A_READY, ld(m, arc + A_READY) ^ (1 << number))
                else:
                    st(m, last + F_NEXT, ld(m, flow + F_NEXT))
                    if ld(m, ring) == flow:
                        st(m, ring, last)
                if ld(m, flow + F_KIND) == DLCP:
                    give_way(m, flow, arc, now)
                continue
            st(m, ring, flow)
            kind = ld(m, packet + P_FLAGS) & CLASS_MASK
            if paused >> kind & 1:
                # What is sent again may be of another class than its message.
                send_control(m, arc, packet, now)
                continue
        transmit(m, arc, packet, now)
        break
    if (ld(m, arc + A_MASK) | ld(m, arc + A_READY)) & ~paused:
        wait_for(m, arc, now)
