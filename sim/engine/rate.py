"""Senders with a rate, which notices of congestion cut: DCQCN (Zhu et al., SIGCOMM 2015), and others that send alike.

A flow sends at its rate, packet by packet. A notice cuts the rate by half of alpha, which notices raise and silence lets decay.
Afterwards the rate comes back in stages, which a timer and a count of bytes each advance: five halvings of what is missing to
the rate before, then steps, then, once both are past the fifth stage, larger steps. Rates are in kbit/s, alpha in 1/65536. The
steps are those of the paper at 40 Gbit/s, in proportion to the interface.
"""

from __future__ import annotations

from sim.engine.agenda import arm
from sim.engine.dlcp_rules import set_earlier
from sim.engine.layout import (
    AGAIN,
    F_ENDED,
    F_FLAGS,
    F_KIND,
    F_PACKETS,
    F_RESENT,
    F_RTO,
    F_SENT,
    F_TIMER,
    F_TO,
    N_SENDERS,
    P_FLAGS,
    ROCE,
    SIZE_SHIFT,
    T_WANTED,
    TIMEOUT,
)
from sim.engine.layout_rates import (
    V_ALPHA,
    V_BY_BYTES,
    V_BY_TIME,
    V_BYTES,
    V_DECAY,
    V_HIGHEST,
    V_LINE,
    V_NEXT,
    V_RATE,
    V_RISE,
    V_SPEND,
    V_TARGET,
)
from sim.engine.window import make_data
from sim.engine.words import Words, ld, st

MICROSECOND = 1000000
DECAY_EVERY = 55 * MICROSECOND
RISE_EVERY = 55 * MICROSECOND
RISE_BYTES = 10000000
STAGES = 5
WHOLE = 65536


def take_rate(m: Words, flow: int, now: int) -> int:
    """Returns the next packet of a flow, or 0 if its rate or its end holds it back."""
    index = ld(m, flow + F_SENT)
    if ld(m, flow + F_ENDED) or index >= ld(m, flow + F_PACKETS):
        return 0
    due = ld(m, flow + V_NEXT)
    if now < due:
        set_earlier(m, flow + V_SPEND, due)
        return 0
    st(m, flow + F_SENT, index + 1)
    flags = ld(m, flow + F_FLAGS)
    if index < ld(m, flow + V_HIGHEST):
        flags |= AGAIN
        st(m, flow + F_RESENT, ld(m, flow + F_RESENT) + 1)
    else:
        st(m, flow + V_HIGHEST, index + 1)
    packet = make_data(m, flow, index, flags, now)
    rate = ld(m, flow + V_RATE)
    line = ld(m, flow + V_LINE)
    if ld(m, flow + F_KIND) == TIMEOUT:
        share = line // ld(m, ld(m, flow + F_TO) + N_SENDERS)
        rate = rate if rate < share else share
    if rate < line:
        size = ld(m, packet + P_FLAGS) >> SIZE_SHIFT
        st(m, flow + V_NEXT, now + size * 8000000000 // rate)
        count = ld(m, flow + V_BYTES) + size
        if count >= RISE_BYTES:
            count = 0
            st(m, flow + V_BY_BYTES, ld(m, flow + V_BY_BYTES) + 1)
            rise(m, flow)
        st(m, flow + V_BYTES, count)
    if ld(m, flow + F_KIND) != TIMEOUT and ld(m, flow + F_TIMER + T_WANTED) == 0:
        arm(m, flow + F_TIMER, now + ld(m, flow + F_RTO))
    return packet


def on_notice(m: Words, flow: int, now: int) -> None:
    """The receiver tells of congestion: cuts the rate."""
    if ld(m, flow + F_ENDED) or ld(m, flow + F_KIND) == ROCE:
        return
    rate = ld(m, flow + V_RATE)
    alpha = ld(m, flow + V_ALPHA)
    st(m, flow + V_TARGET, rate)
    rate -= (rate * alpha) >> 17
    least = ld(m, flow + V_LINE) >> 10
    rate = rate if rate > least else least
    st(m, flow + V_RATE, rate if rate > 1 else 1)
    st(m, flow + V_ALPHA, alpha - (alpha >> 8) + (WHOLE >> 8))
    st(m, flow + V_BYTES, 0)
    st(m, flow + V_BY_BYTES, 0)
    st(m, flow + V_BY_TIME, 0)
    arm(m, flow + V_DECAY, now + DECAY_EVERY)
    arm(m, flow + V_RISE, now + RISE_EVERY)


def on_decay(m: Words, flow: int, now: int) -> None:
    """No notice came for a while: congestion counts for less."""
    alpha = ld(m, flow + V_ALPHA)
    alpha -= alpha >> 8
    st(m, flow + V_ALPHA, alpha)
    if alpha >> 8 and ld(m, flow + F_ENDED) == 0:
        arm(m, flow + V_DECAY, now + DECAY_EVERY)


def on_rise(m: Words, flow: int, now: int) -> None:
    """The timer advances the rate."""
    st(m, flow + V_BY_TIME, ld(m, flow + V_BY_TIME) + 1)
    rise(m, flow)
    if ld(m, flow + V_RATE) < ld(m, flow + V_LINE) and ld(m, flow + F_ENDED) == 0:
        arm(m, flow + V_RISE, now + RISE_EVERY)


def rise(m: Words, flow: int) -> None:
    """Brings the rate half of the way to its target, which moves up after the fifth stage."""
    line = ld(m, flow + V_LINE)
    target = ld(m, flow + V_TARGET)
    by_time = ld(m, flow + V_BY_TIME)
    by_bytes = ld(m, flow + V_BY_BYTES)
    least = by_time if by_time < by_bytes else by_bytes
    most = by_time if by_time > by_bytes else by_bytes
    if least > STAGES:
        target += (least - STAGES) * (line // 400 + 1)
    elif most > STAGES:
        target += line // 1000 + 1
    target = target if target < line else line
    rate = (ld(m, flow + V_RATE) + target) >> 1
    if target == line and line - rate <= line >> 10:
        # Halves would never get there.
        rate = line
    st(m, flow + V_TARGET, target)
    st(m, flow + V_RATE, rate if rate > 1 else 1)


def end_rate(m: Words, flow: int) -> None:
    """A sender is done: its timers stop."""
    st(m, flow + F_ENDED, 1)
    arm(m, flow + F_TIMER, 0)
    arm(m, flow + V_SPEND, 0)
    arm(m, flow + V_DECAY, 0)
    arm(m, flow + V_RISE, 0)


__all__ = ["end_rate", "on_decay", "on_notice", "on_rise", "take_rate"]
