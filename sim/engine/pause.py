"""Priority flow control (IEEE 802.1Qbb): what a switch holds of what came in over a link, and when it asks for a pause.

A switch counts the bytes that wait in it by the arc over which they came and their class. Above *XOFF* it asks the other end
to pause the class, at *XON* or below to go on. A pause frame says of all classes at once whether they are to be paused, waits
for the packet before it, and takes its time on the link; what is sent until it arrives fits above XOFF. A pause ends by itself
after 65535 quanta of 512 bit times, so it is asked for again before; a frame that gets lost hence stops nothing for ever.
"""

from __future__ import annotations

from sim.engine.agenda import arm
from sim.engine.layout import (
    A_ASKED,
    A_EXPIRE,
    A_INGRESS,
    A_PAUSED,
    A_PAUSED_AT,
    A_PENDING,
    A_QUANTA,
    A_REFRESH,
    A_REVERSE,
    A_SPACE,
    A_XOFF,
    A_XON,
    NOTIFY,
    PAUSED_SHIFT,
    SERVICE,
)
from sim.engine.words import Words, ld, st


def has_space(m: Words, arc: int, number: int, size: int) -> bool:
    """Whether a packet of a class that came over an arc still fits."""
    return ld(m, arc + A_INGRESS + number) + size <= ld(m, arc + A_SPACE)


def charge(m: Words, arc: int, number: int, size: int, now: int) -> int:
    """Counts a packet that waits; returns the port that has to send a pause frame, or 0."""
    held = ld(m, arc + A_INGRESS + number) + size
    st(m, arc + A_INGRESS + number, held)
    asked = ld(m, arc + A_ASKED)
    if held <= ld(m, arc + A_XOFF) or asked >> number & 1:
        return 0
    st(m, arc + A_ASKED, asked | (1 << number))
    arm(m, arc + A_REFRESH, now + (ld(m, arc + A_QUANTA) >> 1))
    return ld(m, arc + A_REVERSE)


def discharge(m: Words, arc: int, number: int, size: int) -> int:
    """Counts a packet that waits no longer; returns the port that has to send a pause frame, or 0."""
    held = ld(m, arc + A_INGRESS + number) - size
    st(m, arc + A_INGRESS + number, held)
    asked = ld(m, arc + A_ASKED)
    if asked >> number & 1 == 0 or held > ld(m, arc + A_XON):
        return 0
    asked ^= 1 << number
    st(m, arc + A_ASKED, asked)
    if asked == 0:
        arm(m, arc + A_REFRESH, 0)
    return ld(m, arc + A_REVERSE)


def refresh(m: Words, arc: int, now: int) -> int:
    """Returns the port that has to ask again for the pauses which still stand."""
    arm(m, arc + A_REFRESH, now + (ld(m, arc + A_QUANTA) >> 1))
    return ld(m, arc + A_REVERSE)


def set_paused(m: Words, arc: int, classes: int, now: int) -> int:
    """A pause frame came, or a pause is over by itself; returns the classes that may be sent again."""
    pending = ld(m, arc + A_PENDING)
    before = pending >> PAUSED_SHIFT
    if before:
        st(m, arc + A_PAUSED, ld(m, arc + A_PAUSED) + now - ld(m, arc + A_PAUSED_AT))
    st(m, arc + A_PAUSED_AT, now)
    st(m, arc + A_PENDING, (pending & (SERVICE | NOTIFY)) | (classes << PAUSED_SHIFT))
    arm(m, arc + A_EXPIRE, now + ld(m, arc + A_QUANTA) if classes else 0)
    return before & ~classes
