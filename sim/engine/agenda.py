"""The agenda: which event is next, in the total order of (time, sequence).

Events of arcs, of which there is at most one of each kind at a time, hang in the slots of a timing wheel; a slot that comes
due is poured into a small heap, *near*. Timers, and what lies beyond the wheel, wait in another heap, *far*. Timers are lazy:
one that is put off stays where it is and is entered again when it comes up; one that is brought forward is entered anew, and
the old entry, known by its sequence, is passed over.
"""

from __future__ import annotations

from sim.engine.layout import (
    E_NEXT,
    E_SEQUENCE,
    E_TIME,
    H_BITS,
    H_FAR,
    H_FAR_COUNT,
    H_NEAR,
    H_NEAR_COUNT,
    H_NOW,
    H_SEQUENCE,
    H_SHIFT,
    H_SLOT,
    H_SLOTS,
    H_UNTIL,
    H_WAITING,
    H_WHEEL,
    HEAP_WORDS,
    T_WANTED,
)
from sim.engine.words import Words, ld, lowest, st


def push(m: Words, heap: int, count: int, time: int, sequence: int, event: int) -> None:
    """Enters an event into a heap of ``count`` entries; the caller counts."""
    hole = count
    while hole > 0:
        parent = (hole - 1) >> 1
        at = heap + parent * HEAP_WORDS
        other = ld(m, at)
        if other < time or (other == time and ld(m, at + 1) < sequence):
            break
        to = heap + hole * HEAP_WORDS
        st(m, to, other)
        st(m, to + 1, ld(m, at + 1))
        st(m, to + 2, ld(m, at + 2))
        hole = parent
    to = heap + hole * HEAP_WORDS
    st(m, to, time)
    st(m, to + 1, sequence)
    st(m, to + 2, event)


def pop(m: Words, heap: int, count: int) -> None:
    """Removes the first of ``count`` entries; the caller counts."""
    last = heap + (count - 1) * HEAP_WORDS
    time = ld(m, last)
    sequence = ld(m, last + 1)
    event = ld(m, last + 2)
    left = count - 1
    hole = 0
    child = 1
    while child < left:
        at = heap + child * HEAP_WORDS
        best = ld(m, at)
        if child + 1 < left:
            other = ld(m, at + HEAP_WORDS)
            if other < best or (other == best and ld(m, at + HEAP_WORDS + 1) < ld(m, at + 1)):
                child += 1
                at += HEAP_WORDS
                best = other
        if best > time or (best == time and ld(m, at + 1) > sequence):
            break
        to = heap + hole * HEAP_WORDS
        st(m, to, best)
        st(m, to + 1, ld(m, at + 1))
        st(m, to + 2, ld(m, at + 2))
        hole = child
        child = 2 * hole + 1
    to = heap + hole * HEAP_WORDS
    st(m, to, time)
    st(m, to + 1, sequence)
    st(m, to + 2, event)


def schedule(m: Words, event: int, time: int) -> None:
    """Enters the event of an arc, which is not entered yet."""
    sequence = ld(m, H_SEQUENCE) + 1
    st(m, H_SEQUENCE, sequence)
    slot = time >> ld(m, H_SHIFT)
    distance = slot - ld(m, H_SLOT)
    if distance <= 0:
        count = ld(m, H_NEAR_COUNT)
        push(m, ld(m, H_NEAR), count, time, sequence, event)
        st(m, H_NEAR_COUNT, count + 1)
    elif distance < ld(m, H_SLOTS):
        st(m, event + E_TIME, time)
        st(m, event + E_SEQUENCE, sequence)
        index = slot & (ld(m, H_SLOTS) - 1)
        at = ld(m, H_WHEEL) + index
        st(m, event + E_NEXT, ld(m, at))
        st(m, at, event)
        at = ld(m, H_BITS) + (index >> 5)
        st(m, at, ld(m, at) | (1 << (index & 31)))
        st(m, H_WAITING, ld(m, H_WAITING) + 1)
    else:
        enter(m, event, time, sequence)


def enter(m: Words, event: int, time: int, sequence: int) -> None:
    """Enters an event into the far heap."""
    count = ld(m, H_FAR_COUNT)
    push(m, ld(m, H_FAR), count, time, sequence, event)
    st(m, H_FAR_COUNT, count + 1)


def arm(m: Words, timer: int, wanted: int) -> None:
    """Sets a timer, which then is for this time only; 0 stops it."""
    st(m, timer + T_WANTED, wanted)
    if wanted and (ld(m, timer + E_SEQUENCE) == 0 or ld(m, timer + E_TIME) > wanted):
        sequence = ld(m, H_SEQUENCE) + 1
        st(m, H_SEQUENCE, sequence)
        st(m, timer + E_TIME, wanted)
        st(m, timer + E_SEQUENCE, sequence)
        enter(m, timer, wanted, sequence)


def fires(m: Words, timer: int, sequence: int, now: int) -> int:
    """Takes a timer's entry off; returns 1 if it is due, 0 if it is an old entry, stopped, or was put off."""
    if ld(m, timer + E_SEQUENCE) != sequence:
        return 0
    st(m, timer + E_SEQUENCE, 0)
    wanted = ld(m, timer + T_WANTED)
    if wanted == 0:
        return 0
    if wanted > now:
        arm(m, timer, wanted)
        return 0
    st(m, timer + T_WANTED, 0)
    return 1


def turn(m: Words) -> int:
    """Returns the next slot of the wheel that holds events, as a number since time 0; some slot has to."""
    slots = ld(m, H_SLOTS)
    start = ld(m, H_SLOT) + 1
    index = start & (slots - 1)
    word = index >> 5
    last = (slots >> 5) - 1
    bits = ld(m, ld(m, H_BITS) + word) >> (index & 31) << (index & 31)
    while bits == 0:
        word = (word + 1) & last
        bits = ld(m, ld(m, H_BITS) + word)
    found = (word << 5) + lowest(bits)
    return start + ((found - index) & (slots - 1))


def pour(m: Words, slot: int) -> None:
    """Moves what hangs in a slot into the near heap."""
    st(m, H_SLOT, slot)
    index = slot & (ld(m, H_SLOTS) - 1)
    at = ld(m, H_WHEEL) + index
    event = ld(m, at)
    st(m, at, 0)
    at = ld(m, H_BITS) + (index >> 5)
    st(m, at, ld(m, at) & ~(1 << (index & 31)))
    near = ld(m, H_NEAR)
    count = ld(m, H_NEAR_COUNT)
    moved = 0
    while event:
        push(m, near, count + moved, ld(m, event + E_TIME), ld(m, event + E_SEQUENCE), event)
        moved += 1
        event = ld(m, event + E_NEXT)
    st(m, H_NEAR_COUNT, count + moved)
    st(m, H_WAITING, ld(m, H_WAITING) - moved)


def advance(m: Words) -> int:
    """Takes the next event off and returns it, with :data:`H_NOW` set to its time; 0 if none is due before the pause.

    Old entries of timers are among what it returns, for :func:`fires` to tell; then the sequence is left in the header's word 0.
    """
    if ld(m, H_NEAR_COUNT) == 0 and ld(m, H_WAITING) > 0:
        slot = turn(m)
        if ld(m, H_FAR_COUNT) == 0 or ld(m, ld(m, H_FAR)) >= slot << ld(m, H_SHIFT):
            if slot << ld(m, H_SHIFT) >= ld(m, H_UNTIL):
                return 0
            pour(m, slot)
    near = ld(m, H_NEAR)
    far = ld(m, H_FAR)
    nears = ld(m, H_NEAR_COUNT)
    fars = ld(m, H_FAR_COUNT)
    if nears == 0 and fars == 0:
        return 0
    first = nears > 0
    if nears > 0 and fars > 0:
        mine = ld(m, near)
        other = ld(m, far)
        first = mine < other or (mine == other and ld(m, near + 1) < ld(m, far + 1))
    at = near if first else far
    time = ld(m, at)
    if time >= ld(m, H_UNTIL):
        return 0
    event = ld(m, at + 2)
    st(m, 0, ld(m, at + 1))
    st(m, H_NOW, time)
    if first:
        pop(m, near, nears)
        st(m, H_NEAR_COUNT, nears - 1)
    else:
        if nears == 0:
            # Nothing hangs in the slots up to here: what is entered now shall find the wheel in reach.
            st(m, H_SLOT, time >> ld(m, H_SHIFT))
        pop(m, far, fars)
        st(m, H_FAR_COUNT, fars - 1)
    return event
