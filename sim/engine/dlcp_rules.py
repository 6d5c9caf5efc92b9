"""The rules of DLCP's transport that both ends share: round trips, timeouts, and how long a gap may be a straggler.

They are those of ``dlcp/transport`` (rtt, ordering, peer), in picoseconds and whole numbers.
"""

from __future__ import annotations

from sim.engine.agenda import arm
from sim.engine.layout import (
    H_RULES,
    R_ACKED,
    R_CLASS_DELAY,
    R_CLASS_HIGH,
    R_CLEAN,
    R_EXTENT,
    R_IN_ORDER,
    R_LOST_AT,
    R_NEXT,
    R_PACKETS,
    R_PASSED,
    R_PATIENCE,
    R_RTTMIN,
    R_RTTVAR,
    R_SRTT,
    T_WANTED,
    U_FIRST_RTT,
    U_LEAST_DELAY,
    U_LONG_DELAY,
    U_MOST_DELAY,
    U_PROBE_LEAST,
    U_PROBE_MOST,
    U_SHORTEST,
    U_UNKNOWN,
)
from sim.engine.words import Words, ld, st

CLEAN_RUN = 1024
ORDERLY_RUN = 128
LOSSLESS_RUN = 1024
MOST_PATIENCE = 4


def rule(m: Words, which: int) -> int:
    """Returns one of the rules."""
    return ld(m, ld(m, H_RULES) + which)


def in_flight(m: Words, pair: int) -> int:
    """Returns how many numbered packets are not reported and do not count as lost."""
    count = ld(m, pair + R_NEXT) - 1 - ld(m, pair + R_ACKED) + ld(m, pair + R_PASSED)
    return count if count > 0 else 0


def is_lossy(m: Words, pair: int) -> bool:
    """Whether the path has been losing packets lately, or is too new to tell."""
    return ld(m, pair + R_CLEAN) < CLEAN_RUN


def smoothed(m: Words, pair: int) -> int:
    """Returns the smoothed round trip; before there is one, and for no pair at all, what is assumed."""
    value = ld(m, pair + R_SRTT) if pair else 0
    return value if value else rule(m, U_FIRST_RTT)


def feedback_delay(m: Words, pair: int) -> int:
    """Returns how long feedback may be held back: a quarter of a round trip, within limits."""
    longest = rule(m, U_LONG_DELAY)
    patient = ld(m, pair + R_RTTMIN) >> 2 if pair else 0
    queued = ld(m, pair + R_SRTT) >> 2 if pair else 0
    patient = patient if patient > queued else queued
    longest = patient if patient < longest else longest
    most = rule(m, U_MOST_DELAY)
    longest = longest if longest > most else most
    least = rule(m, U_LEAST_DELAY)
    delay = smoothed(m, pair) >> 2
    delay = delay if delay > least else least
    return delay if delay < longest else longest


def patience(m: Words, pair: int) -> int:
    """Returns the smoothed round trip and four deviations."""
    value = ld(m, pair + R_SRTT) if pair else 0
    return value + 4 * ld(m, pair + R_RTTVAR) if value else 3 * rule(m, U_FIRST_RTT)


def sample_rtt(m: Words, pair: int, rtt: int) -> None:
    """Takes a round trip."""
    least = ld(m, pair + R_RTTMIN)
    if least == 0:
        st(m, pair + R_RTTMIN, rtt)
        st(m, pair + R_SRTT, rtt)
        st(m, pair + R_RTTVAR, rtt >> 1)
        return
    if rtt < least:
        st(m, pair + R_RTTMIN, rtt)
    mean = ld(m, pair + R_SRTT)
    off = mean - rtt
    variation = ld(m, pair + R_RTTVAR)
    st(m, pair + R_RTTVAR, variation + (((off if off > 0 else -off) - variation) >> 2))
    st(m, pair + R_SRTT, mean - (off >> 3))


def probe_timeout(m: Words, pair: int, attempt: int) -> int:
    """Returns how long to wait for the answer to the ``attempt``-th unanswered probe."""
    base = patience(m, pair)
    least = rule(m, U_PROBE_LEAST)
    most = rule(m, U_PROBE_MOST)
    attempt = attempt if attempt > 0 else 0
    base = (base if base > least else least) << (attempt if attempt < 16 else 16)
    return base if base < most else most


def set_earlier(m: Words, timer: int, wanted: int) -> None:
    """Sets a timer unless it runs out before anyway."""
    before = ld(m, timer + T_WANTED)
    if before == 0 or wanted < before:
        arm(m, timer, wanted)


def note_order(m: Words, pair: int, number: int, kind: int, delay: int) -> None:
    """A numbered packet of a class came: was it overtaken, and by how much?"""
    st(m, pair + R_PACKETS, ld(m, pair + R_PACKETS) + 1)
    st(m, pair + R_IN_ORDER, ld(m, pair + R_IN_ORDER) + 1)
    if number > ld(m, pair + R_CLASS_HIGH + kind):
        st(m, pair + R_CLASS_HIGH + kind, number)
        st(m, pair + R_CLASS_DELAY + kind, delay)
    else:
        extra = delay - ld(m, pair + R_CLASS_DELAY + kind)
        if extra > ld(m, pair + R_EXTENT):
            st(m, pair + R_EXTENT, extra)
        st(m, pair + R_IN_ORDER, 0)


def straggler_window(m: Words, pair: int, reverse: int, for_good: bool) -> int:
    """Returns how long to wait for stragglers before calling them lost.

    ``reverse`` is the pair towards the sender, which knows the round trip, or 0.
    """
    if ld(m, pair + R_PACKETS) - ld(m, pair + R_LOST_AT) >= LOSSLESS_RUN:
        st(m, pair + R_PATIENCE, MOST_PATIENCE)
    shortest = ld(m, reverse + R_RTTMIN) if reverse else 0
    late = ld(m, pair + R_EXTENT) * 5 // 4
    quarters = ld(m, pair + R_PATIENCE)
    if shortest == 0 or (for_good and quarters == MOST_PATIENCE):
        wait = rule(m, U_UNKNOWN)
        wait = late if late > wait else wait
        return shortest if shortest > wait else wait
    least = rule(m, U_SHORTEST)
    if ld(m, pair + R_IN_ORDER) >= ORDERLY_RUN:
        wait = shortest >> 4
    else:
        wait = shortest * quarters // 4
        wait = late if late > wait else wait
    return wait if wait > least else least


def waited_in_vain(m: Words, pair: int) -> None:
    """A wait for stragglers is over, and something is missing still."""
    quarters = ld(m, pair + R_PATIENCE) - 1
    st(m, pair + R_PATIENCE, quarters if quarters > 1 else 1)
    extent = ld(m, pair + R_EXTENT)
    st(m, pair + R_EXTENT, extent - (extent >> 2))
    st(m, pair + R_LOST_AT, ld(m, pair + R_PACKETS))


def straggler_came(m: Words, pair: int) -> None:
    """Something came that had been called lost."""
    st(m, pair + R_PATIENCE, MOST_PATIENCE)
    st(m, pair + R_IN_ORDER, 0)
