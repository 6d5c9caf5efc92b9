"""Packets, queues and links: what a port does to a packet.

A port has eight queues, seven first, and one link, on which packets follow each other in order. Only the foremost packet of a
link has an event, and a port has one only while something waits for it.

The verdict on a packet is that of the P4 program (``p4/dropping.p4``, ``p4/marking.p4``): it depends on how many packets wait
in the queue that it would join, the one that is being sent left out.
"""

from __future__ import annotations

from sim.engine.agenda import schedule
from sim.engine.layout import (
    A_ARRIVE,
    A_ASKED,
    A_BACKLOG,
    A_BUSY,
    A_BYTES,
    A_CLASSES,
    A_DEEPEST,
    A_DELAY,
    A_DOWN,
    A_DROP_AT,
    A_DROPPED,
    A_ERRORS,
    A_FULL,
    A_HEAD,
    A_LEAVE,
    A_LIMIT,
    A_LIMIT_BYTES,
    A_LOSS,
    A_MARK_AT,
    A_MARKED,
    A_MASK,
    A_PACKETS,
    A_PAUSES,
    A_PENDING,
    A_QUEUES,
    A_REVERSE,
    A_SWITCH,
    A_TAIL,
    A_TICKS,
    A_TRIMMED,
    A_UP,
    A_WAIT,
    A_WAITED,
    BY_INGRESS,
    C_BINS,
    C_DEEPEST,
    C_FOUND,
    C_SHIFT,
    C_WAIT,
    CE,
    CLASS_MASK,
    CUT,
    DATA,
    DEAD,
    ECT,
    F_CUTS,
    F_LOST,
    F_LOST_BYTES,
    H_CONTROL_BYTES,
    H_FREE,
    H_FREE_COUNT,
    H_NOW,
    H_PATIENCE,
    H_RANDOM,
    H_TRIM,
    H_TRIM_BYTES,
    KEPT,
    KIND_MASK,
    KIND_SHIFT,
    N_ALPHA,
    N_ROOM,
    N_USED,
    NOTIFY,
    P_FLAGS,
    P_FLOW,
    P_NEXT,
    P_SEQ,
    P_TIME,
    P_TO,
    PAUSE,
    PAUSED_SHIFT,
    Q_BYTES,
    Q_COUNT,
    Q_HEAD,
    Q_TAIL,
    RANKED,
    SERVICE,
    SIZE_SHIFT,
)
from sim.engine.pause import charge, discharge, has_space, set_paused
from sim.engine.ranks import before_first, before_last, rank_of
from sim.engine.words import MASK32, MASK63, Words, highest, ld, st


def take_packet(m: Words) -> int:
    """Returns a packet from the pool; the engine returns for more before the pool can be empty."""
    packet = ld(m, H_FREE)
    st(m, H_FREE, ld(m, packet + P_NEXT))
    st(m, H_FREE_COUNT, ld(m, H_FREE_COUNT) - 1)
    return packet


def give_packet(m: Words, packet: int) -> None:
    """Puts a packet back into the pool."""
    st(m, packet + P_NEXT, ld(m, H_FREE))
    st(m, H_FREE, packet)
    st(m, H_FREE_COUNT, ld(m, H_FREE_COUNT) + 1)


def chance(m: Words) -> int:
    """Returns the next 40 random bits."""
    value = (ld(m, H_RANDOM) * 6364136223846793005 + 1442695040888963407) & MASK63
    st(m, H_RANDOM, value)
    return value >> 23


def tally(m: Words, arc: int, flags: int, counter: int, amount: int) -> None:
    """Adds to a counter of an arc, and to that of the packet's class if classes are counted."""
    st(m, arc + counter, ld(m, arc + counter) + amount)
    classes = ld(m, arc + A_CLASSES)
    if classes:
        at = classes + ((flags & CLASS_MASK) << C_SHIFT) + counter - A_PACKETS
        st(m, at, ld(m, at) + amount)


def note_depth(m: Words, arc: int, queue: int, depth: int, held: int) -> None:
    """Counts what a packet finds in its queue: packets, exactly to 7 and then four steps an octave; and the most bytes in it."""
    classes = ld(m, arc + A_CLASSES)
    if classes:
        classes += (queue - arc - A_QUEUES) >> 2 << C_SHIFT
        place = depth
        if depth > 7:
            top = highest(depth)
            place = 4 * top - 4 + ((depth >> (top - 2)) & 3)
        at = classes + C_FOUND + (place if place < C_BINS else C_BINS - 1)
        st(m, at, ld(m, at) + 1)
        if held > ld(m, classes + C_DEEPEST):
            st(m, classes + C_DEEPEST, held)


def lose(m: Words, packet: int, arc: int, cause: int) -> None:
    """A packet is gone; ``cause`` is the counter of the arc that says why."""
    flags = ld(m, packet + P_FLAGS)
    if arc:
        tally(m, arc, flags, cause, 1)
    else:
        st(m, cause, ld(m, cause) + 1)
    if (flags >> KIND_SHIFT) & KIND_MASK == DATA:
        flow = ld(m, packet + P_FLOW)
        st(m, flow + F_LOST, ld(m, flow + F_LOST) + 1)
        st(m, flow + F_LOST_BYTES, ld(m, flow + F_LOST_BYTES) + (flags >> SIZE_SHIFT))
    give_packet(m, packet)


def transmit(m: Words, arc: int, packet: int, now: int) -> None:
    """Puts a packet on the link, which is free."""
    flags = ld(m, packet + P_FLAGS)
    size = flags >> SIZE_SHIFT
    busy = now + ((size * ld(m, arc + A_TICKS)) >> 12)
    st(m, arc + A_BUSY, busy)
    tally(m, arc, flags, A_PACKETS, 1)
    tally(m, arc, flags, A_BYTES, size)
    loss = ld(m, arc + A_LOSS)
    if loss and chance(m) < loss:
        lose(m, packet, arc, A_ERRORS)
        return
    arrival = busy + ld(m, arc + A_DELAY)
    st(m, packet + P_NEXT, 0)
    tail = ld(m, arc + A_TAIL)
    if tail:
        # A link whose delay was shortened still keeps order.
        before = ld(m, tail + P_TIME)
        st(m, packet + P_TIME, arrival if arrival > before else before)
        st(m, tail + P_NEXT, packet)
    else:
        st(m, packet + P_TIME, arrival)
        st(m, arc + A_HEAD, packet)
        schedule(m, arc + A_ARRIVE, arrival)
    st(m, arc + A_TAIL, packet)


def arrived(m: Words, arc: int) -> int:
    """Takes the foremost packet off a link, and enters the arrival of the one behind it."""
    packet = ld(m, arc + A_HEAD)
    behind = ld(m, packet + P_NEXT)
    st(m, arc + A_HEAD, behind)
    if behind:
        schedule(m, arc + A_ARRIVE, ld(m, behind + P_TIME))
    else:
        st(m, arc + A_TAIL, 0)
    return packet


def wait_for(m: Words, arc: int, now: int) -> None:
    """Sees to it that the port is served when its link is free."""
    pending = ld(m, arc + A_PENDING)
    if pending & SERVICE == 0:
        st(m, arc + A_PENDING, pending | SERVICE)
        busy = ld(m, arc + A_BUSY)
        schedule(m, arc + A_LEAVE, busy if busy > now else now)


def offer(m: Words, arc: int, packet: int, now: int) -> None:
    """Gives a packet to the port of a switch: drops, trims or marks it, and sends it or lets it wait."""
    if ld(m, arc + A_UP) == 0:
        lose(m, packet, arc, A_DOWN)
        return
    flags = ld(m, packet + P_FLAGS)
    queue = arc + A_QUEUES + ((flags & CLASS_MASK) << 2)
    count = ld(m, queue + Q_COUNT)
    depth = count & MASK32
    cut = 0
    if flags & KEPT == 0 and depth >= ld(m, arc + A_DROP_AT) and count >> 32 < ld(m, H_PATIENCE):
        st(m, queue + Q_COUNT, count + (1 << 32))
        if ld(m, H_TRIM) == 0:
            lose(m, packet, arc, A_DROPPED)
            return
        cut = 1
        flow = ld(m, packet + P_FLOW)
        st(m, flow + F_CUTS, ld(m, flow + F_CUTS) + 1)
        tally(m, arc, flags, A_TRIMMED, 1)
        flags = (flags & ((1 << SIZE_SHIFT) - 1)) | CLASS_MASK | KEPT | CUT | (ld(m, H_TRIM_BYTES) << SIZE_SHIFT)
        st(m, packet + P_FLAGS, flags)
        queue = arc + A_QUEUES + (CLASS_MASK << 2)
        depth = ld(m, queue + Q_COUNT) & MASK32
    if cut == 0 and flags & (ECT | CE) == ECT and depth >= ld(m, arc + A_MARK_AT):
        flags |= CE
        st(m, packet + P_FLAGS, flags)
        tally(m, arc, flags, A_MARKED, 1)
    admit(m, arc, queue, depth, packet, now)


def admit(m: Words, arc: int, queue: int, depth: int, packet: int, now: int) -> None:
    """Sends a packet if the link is free and nothing waits; else it waits, if there is room."""
    if ld(m, arc + A_MASK) == 0 and ld(m, arc + A_PENDING) == 0 and ld(m, arc + A_BUSY) <= now:
        st(m, queue + Q_COUNT, 0)
        note_depth(m, arc, queue, 0, 0)
        transmit(m, arc, packet, now)
        return
    size = ld(m, packet + P_FLAGS) >> SIZE_SHIFT
    limit = ld(m, arc + A_LIMIT)
    limit_bytes = ld(m, arc + A_LIMIT_BYTES)
    node = ld(m, arc + A_SWITCH)
    room = ld(m, node + N_ROOM)
    if room == BY_INGRESS:
        ingress = ld(m, packet + P_TO) >> 32
        number = (queue - arc - A_QUEUES) >> 2
        if has_space(m, ingress, number, size) == 0:
            lose(m, packet, arc, A_FULL)
            return
        notify(m, charge(m, ingress, number, size, now), now)
    elif room:
        # Dynamic threshold (Choudhury and Hahne, 1998): no port may hold more than alpha times what is left.
        used = ld(m, node + N_USED)
        left = room - used
        if size > left or (ld(m, arc + A_BACKLOG) + size) * 256 > left * ld(m, node + N_ALPHA):
            lose(m, packet, arc, A_FULL)
            return
        st(m, node + N_USED, used + size)
    else:
        while (limit and depth >= limit) or (limit_bytes and ld(m, queue + Q_BYTES) + size > limit_bytes):
            if displace(m, arc, queue, packet, now) == 0:
                lose(m, packet, arc, A_FULL)
                return
            depth = ld(m, queue + Q_COUNT) & MASK32
    held = ld(m, queue + Q_BYTES)
    st(m, packet + P_NEXT, 0)
    st(m, packet + P_TIME, now)
    if depth:
        st(m, ld(m, queue + Q_TAIL) + P_NEXT, packet)
    else:
        st(m, queue + Q_HEAD, packet)
        st(m, arc + A_MASK, ld(m, arc + A_MASK) | (1 << ((queue - arc - A_QUEUES) >> 2)))
    st(m, queue + Q_TAIL, packet)
    st(m, queue + Q_COUNT, depth + 1)
    st(m, queue + Q_BYTES, held + size)
    note_depth(m, arc, queue, depth, held + size)
    backlog = ld(m, arc + A_BACKLOG) + size
    st(m, arc + A_BACKLOG, backlog)
    if backlog > ld(m, arc + A_DEEPEST):
        st(m, arc + A_DEEPEST, backlog)
    wait_for(m, arc, now)


def displace(m: Words, arc: int, queue: int, packet: int, now: int) -> int:
    """Drops a packet of a lower rank than one that finds no room; returns 0 if there is none."""
    if ld(m, packet + P_FLAGS) & RANKED == 0 or ld(m, queue + Q_COUNT) & MASK32 == 0:
        return 0
    before = before_last(m, queue)
    worst = ld(m, before + P_NEXT) if before else ld(m, queue + Q_HEAD)
    if rank_of(m, worst) <= rank_of(m, packet):
        return 0
    take_out(m, arc, queue, before)
    lose(m, worst, arc, A_FULL)
    return 1


def first_waiting(m: Words, arc: int, mask: int, now: int) -> int:
    """Takes the next packet out of a port's queues, of those in the mask; at ``now`` 0 its wait does not count."""
    number = highest(mask)
    queue = arc + A_QUEUES + (number << 2)
    packet = ld(m, queue + Q_HEAD)
    before = before_first(m, queue) if ld(m, packet + P_FLAGS) & RANKED else 0
    packet = take_out(m, arc, queue, before)
    node = ld(m, arc + A_SWITCH)
    if ld(m, node + N_ROOM) == BY_INGRESS:
        notify(m, discharge(m, ld(m, packet + P_TO) >> 32, number, ld(m, packet + P_FLAGS) >> SIZE_SHIFT), now)
    if now:
        waited = now - ld(m, packet + P_TIME)
        st(m, arc + A_WAIT, ld(m, arc + A_WAIT) + waited)
        classes = ld(m, arc + A_CLASSES)
        if classes:
            at = classes + (number << C_SHIFT) + C_WAIT
            st(m, at, ld(m, at) + waited)
        st(m, arc + A_WAITED, ld(m, arc + A_WAITED) + 1)
    return packet


def take_out(m: Words, arc: int, queue: int, before: int) -> int:
    """Takes the packet behind another, or at 0 the first, out of a queue, which is not empty."""
    depth = (ld(m, queue + Q_COUNT) & MASK32) - 1
    st(m, queue + Q_COUNT, depth)
    if before:
        packet = ld(m, before + P_NEXT)
        st(m, before + P_NEXT, ld(m, packet + P_NEXT))
        if ld(m, queue + Q_TAIL) == packet:
            st(m, queue + Q_TAIL, before)
    else:
        packet = ld(m, queue + Q_HEAD)
        st(m, queue + Q_HEAD, ld(m, packet + P_NEXT))
    if depth == 0:
        st(m, arc + A_MASK, ld(m, arc + A_MASK) ^ (1 << ((queue - arc - A_QUEUES) >> 2)))
    size = ld(m, packet + P_FLAGS) >> SIZE_SHIFT
    st(m, queue + Q_BYTES, ld(m, queue + Q_BYTES) - size)
    st(m, arc + A_BACKLOG, ld(m, arc + A_BACKLOG) - size)
    node = ld(m, arc + A_SWITCH)
    if ld(m, node + N_ROOM) > 0:
        st(m, node + N_USED, ld(m, node + N_USED) - size)
    return packet


def serve(m: Words, arc: int, now: int) -> None:
    """The link of a switch's port is free: sends what is next."""
    busy = ld(m, arc + A_BUSY)
    if busy > now:
        schedule(m, arc + A_LEAVE, busy)
        return
    state = ld(m, arc + A_PENDING) ^ SERVICE
    st(m, arc + A_PENDING, state)
    if state & NOTIFY:
        send_pause(m, arc, state, now)
    else:
        mask = ld(m, arc + A_MASK) & ~(state >> PAUSED_SHIFT)
        if mask == 0:
            return
        transmit(m, arc, first_waiting(m, arc, mask, now), now)
    if ld(m, arc + A_MASK) & ~(state >> PAUSED_SHIFT):
        wait_for(m, arc, now)


def notify(m: Words, port: int, now: int) -> None:
    """Lets a port, if there is one, send a pause frame as soon as its link is free."""
    if port and ld(m, port + A_UP):
        st(m, port + A_PENDING, ld(m, port + A_PENDING) | NOTIFY)
        wait_for(m, port, now if now else ld(m, H_NOW))


def send_pause(m: Words, port: int, state: int, now: int) -> None:
    """Sends a pause frame, which says of every class whether it is to be paused, before all that waits."""
    st(m, port + A_PENDING, state ^ NOTIFY)
    st(m, port + A_PAUSES, ld(m, port + A_PAUSES) + 1)
    packet = take_packet(m)
    st(m, packet + P_SEQ, ld(m, ld(m, port + A_REVERSE) + A_ASKED))
    flags = CLASS_MASK | KEPT | (PAUSE << KIND_SHIFT)
    st(m, packet + P_FLAGS, flags | (ld(m, H_CONTROL_BYTES) << SIZE_SHIFT))
    transmit(m, port, packet, now)


def flush(m: Words, arc: int) -> None:
    """The link is cut: what waits for it is lost, and what is on it will not arrive."""
    packet = ld(m, arc + A_HEAD)
    while packet:
        st(m, packet + P_FLAGS, ld(m, packet + P_FLAGS) | DEAD)
        packet = ld(m, packet + P_NEXT)
    while ld(m, arc + A_MASK):
        lose(m, first_waiting(m, arc, ld(m, arc + A_MASK), 0), arc, A_DOWN)
    st(m, arc + A_PENDING, ld(m, arc + A_PENDING) & ~NOTIFY)
    set_paused(m, arc, 0, ld(m, H_NOW))
