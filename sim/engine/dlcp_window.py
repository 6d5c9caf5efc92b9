"""Congestion control of DLCP: the algorithm ``dctcp`` of ``dlcp/transport/congestion``, in whole numbers.

Windows are in 1/1024 packets, shares in 1/65536. One thing is simpler: the sample over which losses beyond the tolerated share
are judged starts anew once it has 64 packets, where the product lets old rounds slide out.
"""

from __future__ import annotations

from sim.engine.dlcp_rules import rule
from sim.engine.layout import (
    R_ALPHA,
    R_CC_END,
    R_DELIVERED,
    R_HISTORY,
    R_HISTORY_LOST,
    R_LIMITED,
    R_LOST,
    R_MARKED,
    R_THRESHOLD,
    R_WINDOW,
    U_GAIN,
    U_GREATEST,
    U_TOLERANCE,
)
from sim.engine.words import Words, ld, st

PACKET = 1024
SHARE = 65536
LEAST = 2 * PACKET
SAMPLE = 64


def note_feedback(m: Words, pair: int, delivered: int, lost: int, marked: int, limited: int, rtt: int, now: int) -> None:
    """Takes one feedback: ``limited`` says that the window held the flow back."""
    st(m, pair + R_DELIVERED, ld(m, pair + R_DELIVERED) + delivered)
    st(m, pair + R_LOST, ld(m, pair + R_LOST) + lost)
    st(m, pair + R_MARKED, ld(m, pair + R_MARKED) + marked)
    st(m, pair + R_LIMITED, ld(m, pair + R_LIMITED) | limited)
    if ld(m, pair + R_CC_END) == 0:
        st(m, pair + R_CC_END, now + rtt)
    window = ld(m, pair + R_WINDOW)
    threshold = ld(m, pair + R_THRESHOLD)
    if window < threshold and limited and marked == 0:
        window += delivered * PACKET
        st(m, pair + R_WINDOW, window if window < threshold else threshold)
    if now >= ld(m, pair + R_CC_END):
        if ld(m, pair + R_DELIVERED) + ld(m, pair + R_LOST):
            end_round(m, pair)
        st(m, pair + R_DELIVERED, 0)
        st(m, pair + R_LOST, 0)
        st(m, pair + R_MARKED, 0)
        st(m, pair + R_LIMITED, 0)
        st(m, pair + R_CC_END, now + rtt)
    window = ld(m, pair + R_WINDOW)
    most = rule(m, U_GREATEST)
    window = window if window < most else most
    st(m, pair + R_WINDOW, window if window > LEAST else LEAST)


def end_round(m: Words, pair: int) -> None:
    """A round trip is over: shrinks by the share of marks, or of losses beyond what is tolerated, or else grows by a packet."""
    delivered = ld(m, pair + R_DELIVERED)
    marked = ld(m, pair + R_MARKED) * SHARE // (delivered if delivered > 1 else 1)
    marked = marked if marked < SHARE else SHARE
    excess = excess_loss(m, pair, ld(m, pair + R_LOST), delivered + ld(m, pair + R_LOST))
    alpha = ld(m, pair + R_ALPHA)
    alpha += ((marked - alpha) * rule(m, U_GAIN)) >> 16
    st(m, pair + R_ALPHA, alpha)
    window = ld(m, pair + R_WINDOW)
    growing = window < ld(m, pair + R_THRESHOLD)
    congested = marked > 0 or excess > 0
    if congested:
        cut = alpha if marked > 0 else 0
        cut = excess if excess > cut else cut
        cut = SHARE if growing else cut
        window -= (window * cut) >> 17
        st(m, pair + R_THRESHOLD, window)
    if ld(m, pair + R_LIMITED) and (congested or not growing):
        window += PACKET
    st(m, pair + R_WINDOW, window)


def excess_loss(m: Words, pair: int, lost: int, total: int) -> int:
    """Returns the share of packets lost beyond the tolerated one, 0 while chance explains it (four deviations)."""
    lost += ld(m, pair + R_HISTORY_LOST)
    total += ld(m, pair + R_HISTORY)
    full = total >= SAMPLE
    st(m, pair + R_HISTORY_LOST, 0 if full else lost)
    st(m, pair + R_HISTORY, 0 if full else total)
    if lost == 0:
        return 0
    tolerance = rule(m, U_TOLERANCE)
    beyond = lost * 1024 - tolerance * total - (1024 if tolerance else 0)
    if beyond <= 0 or beyond * beyond <= 16 * tolerance * (1024 - tolerance) * total:
        return 0
    return (lost * 1024 // total - tolerance) * 64


def collapse(m: Words, pair: int) -> None:
    """Persistent congestion: starts again from the least window."""
    half = ld(m, pair + R_WINDOW) >> 1
    st(m, pair + R_THRESHOLD, half if half > LEAST else LEAST)
    st(m, pair + R_WINDOW, LEAST)
