"""The receiving half of DLCP: the completion rule, reports, and feedback.

As ``dlcp/transport/receiver.py``, ``incoming.py`` and ``feedback.py`` have it.
"""

from __future__ import annotations

from sim.engine.agenda import arm
from sim.engine.dlcp_rules import (
    CLEAN_RUN,
    feedback_delay,
    note_order,
    patience,
    rule,
    set_earlier,
    smoothed,
    straggler_came,
    straggler_window,
    waited_in_vain,
)
from sim.engine.dlcp_send import numbered_packet
from sim.engine.hosts import send_control
from sim.engine.layout import (
    AGAIN,
    CE,
    CLASS_MASK,
    CUT,
    D_ALLOWED,
    D_COMPLETE,
    D_ECHO,
    D_FORGONE,
    D_GAP,
    D_LAST,
    D_PROBED,
    D_PROBED_AT,
    D_PROTECTED,
    D_PROTECTED_MISSING,
    D_REPORT,
    D_REPORTED,
    D_SEEN,
    D_SETTLED,
    DATA,
    ECT,
    F_BACK,
    F_END,
    F_FROM,
    F_GOT,
    F_MARKS,
    F_MISSING,
    F_PACKETS,
    F_PAIR,
    FEEDBACK,
    H_TRIM_BYTES,
    KEPT,
    KIND_MASK,
    KIND_SHIFT,
    P_EXTRA,
    P_FLAGS,
    P_FLOW,
    P_SENT,
    P_SEQ,
    P_TO,
    PING,
    R_BACK,
    R_ECHO,
    R_ECHO_AT,
    R_FEEDBACK,
    R_FORTH,
    R_FROM,
    R_GAP_AT,
    R_GAPS,
    R_HIGHEST,
    R_INCOMING,
    R_LAST,
    R_LAST_CLASS,
    R_MARKS,
    R_RECEIVED,
    R_REVERSE,
    R_SPRAY,
    R_TO,
    R_UNREPORTED,
    SIZE_SHIFT,
    STATUS,
    STOP,
    U_EVERY,
    U_GRACE_FACTOR,
    U_GRACE_FLOOR,
    U_LEAST_DELAY,
)
from sim.engine.ports import give_packet, take_packet
from sim.engine.words import MASK32, Words, has, ld, put, st


def note_arrival(m: Words, pair: int, packet: int, now: int) -> None:
    """Counts a numbered packet, and sends feedback if it is time."""
    flags = ld(m, packet + P_FLAGS)
    number = ld(m, packet + P_EXTRA)
    sent = ld(m, packet + P_SENT)
    if number > ld(m, pair + R_HIGHEST):
        st(m, pair + R_HIGHEST, number)
        st(m, pair + R_ECHO, sent)
        st(m, pair + R_ECHO_AT, now)
    note_order(m, pair, number, flags & CLASS_MASK, now - sent)
    st(m, pair + R_RECEIVED, ld(m, pair + R_RECEIVED) + 1)
    if flags & (CE | CUT):
        st(m, pair + R_MARKS, ld(m, pair + R_MARKS) + 1)
    unreported = ld(m, pair + R_UNREPORTED) + 1
    st(m, pair + R_UNREPORTED, unreported)
    if unreported >= rule(m, U_EVERY) or (flags >> KIND_SHIFT) & KIND_MASK != DATA:
        send_feedback(m, pair, 1, now)
    else:
        set_earlier(m, pair + R_FEEDBACK, now + feedback_delay(m, ld(m, pair + R_REVERSE)))


def send_feedback(m: Words, pair: int, repeat: int, now: int) -> None:
    """Sends what was counted: the highest number, how many came, how many were marked or trimmed."""
    arm(m, pair + R_FEEDBACK, 0)
    st(m, pair + R_UNREPORTED, 0)
    received = ld(m, pair + R_RECEIVED)
    gaps = ld(m, pair + R_HIGHEST) - received
    if gaps != ld(m, pair + R_GAPS):
        st(m, pair + R_GAPS, gaps)
        st(m, pair + R_GAP_AT, received + 1)
    packet = take_packet(m)
    st(m, packet + P_FLOW, pair)
    st(m, packet + P_SEQ, ld(m, pair + R_HIGHEST))
    st(m, packet + P_EXTRA, (received << 31) | ld(m, pair + R_MARKS))
    st(m, packet + P_SENT, ld(m, pair + R_ECHO) + now - ld(m, pair + R_ECHO_AT))
    control(m, packet, FEEDBACK, ld(m, pair + R_SPRAY), ld(m, pair + R_FROM), ld(m, pair + R_BACK), now)
    since = ld(m, pair + R_GAP_AT)
    if repeat and ld(m, pair + R_INCOMING) and since and received + 1 - since < CLEAN_RUN:
        reverse = ld(m, pair + R_REVERSE)
        arm(m, pair + R_FEEDBACK, now + 3 * smoothed(m, reverse) // 2 + rule(m, U_LEAST_DELAY))


def control(m: Words, packet: int, kind: int, spray: int, to: int, arc: int, now: int) -> None:
    """Sends a packet without a number, in class 7."""
    size = ld(m, H_TRIM_BYTES)
    st(m, packet + P_FLAGS, CLASS_MASK | KEPT | ECT | spray | (kind << KIND_SHIFT) | (size << SIZE_SHIFT))
    st(m, packet + P_TO, to)
    send_control(m, arc, packet, now)


def on_feedback_timer(m: Words, pair: int, now: int) -> None:
    """Feedback was held back for long enough, or nothing came of it."""
    if ld(m, pair + R_UNREPORTED):
        send_feedback(m, pair, 1, now)
    elif ld(m, pair + R_INCOMING):
        send_feedback(m, pair, 0, now)


def send_pings(m: Words, pair: int, now: int) -> None:
    """Asks for feedback, twice, in the class of what may be on its way."""
    flags = ld(m, pair + R_LAST_CLASS) | KEPT | ECT | (PING << KIND_SHIFT) | (ld(m, H_TRIM_BYTES) << SIZE_SHIFT)
    count = 0
    while count < 2:
        packet = numbered_packet(m, pair, pair, ld(m, pair + R_TO), flags, now)
        send_control(m, ld(m, pair + R_FORTH), packet, now)
        count += 1


def report(m: Words, flow: int, kind: int, echo: int, value: int, now: int) -> None:
    """Sends STATUS or STOP."""
    packet = take_packet(m)
    st(m, packet + P_FLOW, flow)
    st(m, packet + P_SEQ, value)
    st(m, packet + P_EXTRA, echo)
    control(m, packet, kind, ld(m, ld(m, flow + F_PAIR) + R_SPRAY), ld(m, flow + F_FROM), ld(m, flow + F_BACK), now)


def on_part(m: Words, flow: int, packet: int, now: int) -> int:
    """Takes a data packet; returns 1 if the message is complete with it."""
    flags = ld(m, packet + P_FLAGS)
    index = ld(m, packet + P_SEQ)
    pair = ld(m, flow + F_PAIR)
    note_arrival(m, pair, packet, now)
    give_packet(m, packet)
    if flags & CE:
        st(m, flow + F_MARKS, ld(m, flow + F_MARKS) + 1)
    if ld(m, flow + F_END):
        if ld(m, flow + F_MISSING) and flags & AGAIN == 0:
            straggler_came(m, pair)
        return 0
    first_seen(m, flow, pair, now)
    got = ld(m, flow + F_GOT)
    if flags & CUT:
        on_cut(m, flow, index, now)
        return 0
    fresh = has(m, got, index) == 0
    if fresh:
        put(m, got, index)
        st(m, flow + F_MISSING, ld(m, flow + F_MISSING) - 1)
        if index < ld(m, flow + D_PROTECTED):
            st(m, flow + D_PROTECTED_MISSING, ld(m, flow + D_PROTECTED_MISSING) - 1)
        gap = now - ld(m, flow + D_LAST)
        mean = ld(m, flow + D_GAP)
        st(m, flow + D_GAP, mean + ((gap - mean) >> 2) if mean else gap)
        st(m, flow + D_LAST, now)
    st(m, pair + R_LAST, now)
    if ld(m, flow + D_REPORTED):
        if flags & AGAIN == 0:
            straggler_came(m, pair)
        elif fresh:
            waited_in_vain(m, pair)
    if ld(m, flow + F_MISSING) == 0:
        finish(m, flow, pair, now)
        return 1
    due = deadline(m, flow)
    if due:
        arm(m, flow + D_COMPLETE, due)
    return 0


def first_seen(m: Words, flow: int, pair: int, now: int) -> None:
    """The first sign of a message starts the clock of its gaps."""
    if ld(m, flow + D_SEEN) == 0:
        st(m, flow + D_SEEN, 1)
        st(m, flow + D_LAST, now)
        st(m, pair + R_INCOMING, ld(m, pair + R_INCOMING) + 1)


def on_cut(m: Words, flow: int, index: int, now: int) -> None:
    """A switch kept only the header: asks for the packet at once, unless the bound covers it."""
    settled = ld(m, flow + D_SETTLED)
    if has(m, ld(m, flow + F_GOT), index) or has(m, settled, index):
        return
    put(m, settled, index)
    forgone = ld(m, flow + D_FORGONE)
    if index >= ld(m, flow + D_PROTECTED) and forgone < ld(m, flow + D_ALLOWED):
        st(m, flow + D_FORGONE, forgone + 1)
    else:
        report(m, flow, STATUS, 0, index, now)


def is_satisfied(m: Words, flow: int) -> bool:
    """All protected packets are in, and no more is missing than the bound allows."""
    return ld(m, flow + D_PROTECTED_MISSING) <= 0 and ld(m, flow + F_MISSING) <= ld(m, flow + D_ALLOWED)


def deadline(m: Words, flow: int) -> int:
    """Returns when something has to be done about a message if nothing more arrives; 0: never."""
    pair = ld(m, flow + F_PAIR)
    reverse = ld(m, pair + R_REVERSE)
    last = ld(m, flow + D_LAST)
    good = is_satisfied(m, flow)
    if ld(m, flow + D_PROBED):
        probed = ld(m, flow + D_PROBED_AT)
        return (last if last > probed else probed) + straggler_window(m, pair, reverse, good)
    if good:
        # A sender that waits for feedback is silent for a round trip and for as long as feedback is held back here.
        floor = patience(m, reverse) + feedback_delay(m, reverse)
        least = rule(m, U_GRACE_FLOOR)
        floor = floor if floor > least else least
        gaps = ld(m, flow + D_GAP) * rule(m, U_GRACE_FACTOR) >> 8
        any_last = ld(m, pair + R_LAST)
        return (last if last > any_last else any_last) + (gaps if gaps > floor else floor)
    return 0


def on_probe(m: Words, flow: int, packet: int, now: int) -> int:
    """The sender has sent all; returns 1 if the message is complete."""
    number = ld(m, packet + P_EXTRA)
    pair = ld(m, flow + F_PAIR)
    note_arrival(m, pair, packet, now)
    give_packet(m, packet)
    if ld(m, flow + F_END):
        report(m, flow, STOP, number, 0, now)
        return 0
    first_seen(m, flow, pair, now)
    if ld(m, flow + D_PROBED) == 0:
        st(m, flow + D_PROBED, 1)
        st(m, flow + D_PROBED_AT, now)
    st(m, flow + D_ECHO, number)
    return decide(m, flow, now)


def decide(m: Words, flow: int, now: int) -> int:
    """Completes a message, or asks for what is missing, or waits; returns 1 if it is complete."""
    if ld(m, flow + F_END):
        return 0
    due = deadline(m, flow)
    if due == 0:
        return 0
    if now < due:
        arm(m, flow + D_COMPLETE, due)
        return 0
    pair = ld(m, flow + F_PAIR)
    if is_satisfied(m, flow):
        waited_in_vain(m, pair)
        finish(m, flow, pair, now)
        return 1
    st(m, flow + D_PROBED, 0)
    st(m, flow + D_REPORTED, 1)
    words = (ld(m, flow + F_PACKETS) + 31) >> 5
    got = ld(m, flow + F_GOT)
    listed = ld(m, flow + D_REPORT)
    word = 0
    while word < words:
        st(m, listed + word, ld(m, got + word) ^ MASK32)
        word += 1
    needed = ld(m, flow + F_MISSING) - ld(m, flow + D_ALLOWED)
    protected = ld(m, flow + D_PROTECTED_MISSING)
    report(m, flow, STATUS, ld(m, flow + D_ECHO), protected if protected > needed else needed, now)
    return 0


def finish(m: Words, flow: int, pair: int, now: int) -> None:
    """A message is complete: tells its sender."""
    arm(m, flow + D_COMPLETE, 0)
    st(m, pair + R_INCOMING, ld(m, pair + R_INCOMING) - 1)
    report(m, flow, STOP, ld(m, flow + D_ECHO), 0, now)
