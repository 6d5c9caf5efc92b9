"""The sending half of DLCP: rounds of a message, probes, and what reports and feedback do.

As ``dlcp/transport/sender.py``, ``outgoing.py`` and ``peer.py`` have it. The packets of a message are numbered in the order in
which they are sent: the first ones are the protected ones.
"""

from __future__ import annotations

from sim.engine.agenda import arm
from sim.engine.dlcp_rules import (
    feedback_delay,
    in_flight,
    is_lossy,
    probe_timeout,
    rule,
    sample_rtt,
    set_earlier,
    smoothed,
)
from sim.engine.dlcp_window import collapse, note_feedback
from sim.engine.layout import (
    AGAIN,
    CLASS_MASK,
    D_AGAIN,
    D_AGAIN_COUNT,
    D_AGAIN_FROM,
    D_ATTEMPT,
    D_LINK,
    D_NUDGES,
    D_ORDER,
    D_PROBE_CLASS,
    D_PROBE_DUE,
    D_PROBE_NUMBER,
    D_PROBE_ROUND,
    D_PROTECTED,
    D_REPORT,
    D_SENT,
    D_URGENCY,
    ECT,
    F_ENDED,
    F_FULL,
    F_PACKETS,
    F_PAIR,
    F_RESENT,
    F_TAIL,
    F_TIMER,
    F_TO,
    H_TRIM_BYTES,
    KEPT,
    KIND_SHIFT,
    P_EXTRA,
    P_FLAGS,
    P_FLOW,
    P_SENT,
    P_SEQ,
    P_TO,
    PROBE,
    R_ACKED,
    R_BLOCKED,
    R_BURST,
    R_CLEAN,
    R_FLOWS,
    R_LAST_CLASS,
    R_LATE,
    R_LEAST,
    R_NEXT,
    R_OUT,
    R_PACE,
    R_PASSED,
    R_PENDING,
    R_PING,
    R_QUIET,
    R_RELEASE,
    R_REPORTED,
    R_REPORTED_MARKS,
    R_ROUND_END,
    R_RTTMIN,
    R_RTTVAR,
    R_SPRAY,
    R_THRESHOLD,
    R_UNANSWERED,
    R_WINDOW,
    SIZE_SHIFT,
    T_WANTED,
    U_EVERY,
    U_QUANTUM,
    U_SHORTEST,
    U_UNKNOWN,
)
from sim.engine.ports import take_packet
from sim.engine.words import Words, clear, has, ld, lowest, put, st

ONE = 1024
COLLAPSE_TIMEOUTS = 7


def remaining(m: Words, flow: int) -> int:
    """Returns how many packets a message still has to hand out."""
    return ld(m, flow + D_AGAIN_COUNT) + ld(m, flow + F_PACKETS) - ld(m, flow + D_SENT)


def join(m: Words, flow: int) -> None:
    """A message starts: it joins those of its pair, behind those of its order that started before."""
    pair = ld(m, flow + F_PAIR)
    order = ld(m, flow + D_ORDER)
    before = pair + R_FLOWS - D_LINK
    behind = ld(m, pair + R_FLOWS)
    while behind != 0 and ld(m, behind + D_ORDER) <= order:
        before = behind
        behind = ld(m, behind + D_LINK)
    st(m, flow + D_LINK, behind)
    st(m, before + D_LINK, flow)
    st(m, pair + R_PENDING, ld(m, pair + R_PENDING) + 1)


def foremost(m: Words, pair: int) -> int:
    """Returns the message of a pair whose packets go next, or 0: by class, there what is sent again first, order, start."""
    best = 0
    highest = -1
    flow = ld(m, pair + R_FLOWS)
    while flow:
        if ld(m, flow + F_ENDED) == 0 and remaining(m, flow):
            urgency = 2 * ld(m, flow + D_URGENCY) + (1 if ld(m, flow + D_AGAIN_COUNT) else 0)
            if urgency > highest:
                highest = urgency
                best = flow
        flow = ld(m, flow + D_LINK)
    return best


def number_one(m: Words, pair: int, now: int) -> int:
    """Draws a sequence number."""
    if in_flight(m, pair) == 0:
        st(m, pair + R_QUIET, now)
    number = ld(m, pair + R_NEXT)
    st(m, pair + R_NEXT, number + 1)
    return number


def numbered_packet(m: Words, flow: int, pair: int, to: int, flags: int, now: int) -> int:
    """Returns a packet with the next number of a pair; the caller fills in what it is about."""
    packet = take_packet(m)
    st(m, packet + P_FLOW, flow)
    st(m, packet + P_FLAGS, flags | ld(m, pair + R_SPRAY))
    st(m, packet + P_SENT, now)
    st(m, packet + P_TO, to)
    st(m, packet + P_EXTRA, number_one(m, pair, now))
    out = pair + R_OUT + (flags & CLASS_MASK)
    st(m, out, ld(m, out) + 1)
    return packet


def take_dlcp(m: Words, flow: int, now: int) -> int:
    """Returns the next packet of a message, or 0 if it has none, is not the first of its pair, or window or pace hold it back."""
    if ld(m, flow + F_ENDED):
        return 0
    pair = ld(m, flow + F_PAIR)
    if ld(m, flow + D_PROBE_DUE):
        return take_probe(m, flow, pair, now)
    if ld(m, pair + R_PENDING) == 0:
        st(m, pair + R_BURST, 0)
        return 0
    if foremost(m, pair) != flow:
        return 0
    window = ld(m, pair + R_WINDOW)
    room = room_for(m, pair, ld(m, flow + D_URGENCY))
    st(m, pair + R_BLOCKED, 1 if room <= 0 else 0)
    if room <= 0:
        if ld(m, pair + R_PING + T_WANTED) == 0 and in_flight(m, pair):
            arm(m, pair + R_PING, now + probe_timeout(m, pair, ld(m, pair + R_UNANSWERED)))
        return 0
    rtt = smoothed(m, pair)
    # Windows a round trip, in quarters: two in slow start.
    pace = 8 if window < ld(m, pair + R_THRESHOLD) else 5
    if ld(m, pair + R_BURST) <= 0:
        release = ld(m, pair + R_RELEASE)
        if now < release:
            set_earlier(m, pair + R_PACE, release)
            return 0
        quantum = rule(m, U_QUANTUM)
        quantum = quantum if quantum > rtt >> 3 else rtt >> 3
        # In thousandths of a round trip, lest it overflow.
        burst = (window * (pace * 250 * quantum // rtt) // 1000) >> 10
        burst = burst if burst < room else room
        st(m, pair + R_BURST, burst if burst > 1 else 1)
    st(m, pair + R_BURST, ld(m, pair + R_BURST) - 1)
    release = ld(m, pair + R_RELEASE)
    st(m, pair + R_RELEASE, (release if release > now else now) + rtt * 4 // pace * ONE // window)
    return take_part(m, flow, pair, now)


def room_for(m: Words, pair: int, urgency: int) -> int:
    """Returns how many packets of a class the window allows: less urgent ones count only once there are two windows' worth."""
    window = ld(m, pair + R_WINDOW)
    window = window >> 10 if window > ONE else 1
    flying = in_flight(m, pair)
    if flying < window:
        return window - flying
    ahead = 0
    kind = urgency
    while kind <= CLASS_MASK:
        ahead += ld(m, pair + R_OUT + kind)
        kind += 1
    room = window - ahead
    most = 2 * window - flying
    return room if room < most else most


def note_arrived(m: Words, pair: int) -> None:
    """Fewer packets are under way than were counted by class: the most urgent ones have arrived first."""
    excess = -in_flight(m, pair)
    kind = 0
    while kind <= CLASS_MASK:
        excess += ld(m, pair + R_OUT + kind)
        kind += 1
    kind = CLASS_MASK
    while kind >= 0 and excess > 0:
        out = ld(m, pair + R_OUT + kind)
        gone = out if out < excess else excess
        st(m, pair + R_OUT + kind, out - gone)
        excess -= gone
        kind -= 1


def take_part(m: Words, flow: int, pair: int, now: int) -> int:
    """Returns the next data packet: one that was asked for before any new one."""
    urgency = ld(m, flow + D_URGENCY)
    again = 0
    if ld(m, flow + D_AGAIN_COUNT):
        index = next_again(m, flow)
        urgency = CLASS_MASK
        again = AGAIN | KEPT
        st(m, flow + F_RESENT, ld(m, flow + F_RESENT) + 1)
    else:
        index = ld(m, flow + D_SENT)
        st(m, flow + D_SENT, index + 1)
    flags = urgency | again | ((KEPT | ECT) if index < ld(m, flow + D_PROTECTED) else 0)
    size = ld(m, flow + F_TAIL) if index == ld(m, flow + F_PACKETS) - 1 else ld(m, flow + F_FULL)
    packet = numbered_packet(m, flow, pair, ld(m, flow + F_TO), flags | (size << SIZE_SHIFT), now)
    st(m, packet + P_SEQ, index)
    st(m, pair + R_LAST_CLASS, urgency)
    if remaining(m, flow) == 0:
        pending = ld(m, pair + R_PENDING) - 1
        st(m, pair + R_PENDING, pending)
        st(m, flow + D_PROBE_CLASS, urgency)
        if is_lossy(m, pair) or ld(m, pair + R_RTTMIN) == 0:
            # With nothing behind it, only a timeout would tell that this probe was lost.
            st(m, flow + D_PROBE_DUE, 2 if pending == 0 and is_lossy(m, pair) else 1)
        else:
            st(m, flow + D_ATTEMPT, -1)
            st(m, flow + D_PROBE_NUMBER, ld(m, pair + R_NEXT) - 1)
            arm(m, flow + F_TIMER, now + probe_timeout(m, pair, 0))
    return packet


def next_again(m: Words, flow: int) -> int:
    """Takes the lowest packet that was asked for again."""
    bitmap = ld(m, flow + D_AGAIN)
    word = ld(m, flow + D_AGAIN_FROM) >> 5
    while ld(m, bitmap + word) == 0:
        word += 1
    index = (word << 5) + lowest(ld(m, bitmap + word))
    st(m, flow + D_AGAIN_FROM, index)
    clear(m, bitmap, index)
    st(m, flow + D_AGAIN_COUNT, ld(m, flow + D_AGAIN_COUNT) - 1)
    return index


def take_probe(m: Words, flow: int, pair: int, now: int) -> int:
    """Returns a probe, which travels in the class of the packet before it."""
    due = ld(m, flow + D_PROBE_DUE) - 1
    flags = ld(m, flow + D_PROBE_CLASS) | KEPT | ECT | (PROBE << KIND_SHIFT) | (ld(m, H_TRIM_BYTES) << SIZE_SHIFT)
    packet = numbered_packet(m, flow, pair, ld(m, flow + F_TO), flags, now)
    number = ld(m, packet + P_EXTRA)
    if ld(m, flow + D_PROBE_ROUND) == 0:
        st(m, flow + D_PROBE_ROUND, number)
    if due == 0 or ld(m, flow + D_PROBE_NUMBER) == 0:
        st(m, flow + D_PROBE_NUMBER, number)
    st(m, flow + D_PROBE_DUE, due)
    arm(m, flow + F_TIMER, now + probe_timeout(m, pair, ld(m, flow + D_ATTEMPT)))
    return packet


def on_probe_timer(m: Words, flow: int) -> int:
    """A probe went unanswered; returns whether there is one to be sent."""
    if ld(m, flow + F_ENDED) or remaining(m, flow):
        return 0
    st(m, flow + D_ATTEMPT, ld(m, flow + D_ATTEMPT) + 1)
    st(m, flow + D_NUDGES, ld(m, flow + D_NUDGES) + 1)
    st(m, flow + D_PROBE_NUMBER, 0)
    st(m, flow + D_PROBE_DUE, 2 if is_lossy(m, ld(m, flow + F_PAIR)) else 1)
    return 1


def on_status(m: Words, flow: int, echo: int, value: int) -> None:
    """The receiver asks: for packet ``value``, which came trimmed, or for ``value`` packets out of its report."""
    if ld(m, flow + F_ENDED):
        return
    pair = ld(m, flow + F_PAIR)
    before = remaining(m, flow)
    again = ld(m, flow + D_AGAIN)
    found = 0
    if echo == 0:
        if has(m, again, value):
            return
        put(m, again, value)
        found = 1
        if value < ld(m, flow + D_AGAIN_FROM):
            st(m, flow + D_AGAIN_FROM, value)
    else:
        if before or ld(m, flow + D_PROBE_ROUND) == 0 or echo < ld(m, flow + D_PROBE_ROUND):
            return
        report = ld(m, flow + D_REPORT)
        index = 0
        wanted = value if value > 1 else 1
        packets = ld(m, flow + F_PACKETS)
        while index < packets and found < wanted:
            if has(m, report, index):
                put(m, again, index)
                found += 1
            index += 1
        st(m, flow + D_AGAIN_FROM, 0)
    arm(m, flow + F_TIMER, 0)
    st(m, flow + D_AGAIN_COUNT, ld(m, flow + D_AGAIN_COUNT) + found)
    st(m, flow + D_PROBE_NUMBER, 0)
    st(m, flow + D_PROBE_DUE, 0)
    st(m, flow + D_PROBE_ROUND, 0)
    st(m, flow + D_ATTEMPT, 0)
    st(m, flow + D_NUDGES, 0)
    if before == 0 and found:
        st(m, pair + R_PENDING, ld(m, pair + R_PENDING) + 1)


def on_stop(m: Words, flow: int) -> None:
    """The receiver is done with a message: whatever is left of it is not sent."""
    if ld(m, flow + F_ENDED) == 0:
        st(m, flow + F_ENDED, 1)
        arm(m, flow + F_TIMER, 0)
        if remaining(m, flow):
            pair = ld(m, flow + F_PAIR)
            st(m, pair + R_PENDING, ld(m, pair + R_PENDING) - 1)


def on_feedback(m: Words, pair: int, highest: int, received: int, marks: int, sent: int, now: int) -> int:
    """Takes feedback; returns 0 if it says nothing new."""
    progress = highest - ld(m, pair + R_ACKED)
    news = received - ld(m, pair + R_REPORTED)
    if progress < 0 or (news < 0 and progress == 0):
        return 0
    news = news if news > 0 else 0
    unknown = ld(m, pair + R_RTTMIN) == 0
    limited = ld(m, pair + R_BLOCKED) or 2 * in_flight(m, pair) * ONE >= ld(m, pair + R_WINDOW)
    marked = marks - ld(m, pair + R_REPORTED_MARKS)
    marked = marked if marked < news else news
    if progress > 0:
        sample_rtt(m, pair, now - sent)
    st(m, pair + R_ACKED, highest)
    st(m, pair + R_REPORTED, received)
    st(m, pair + R_REPORTED_MARKS, marks)
    st(m, pair + R_UNANSWERED, 0)
    silence = now - ld(m, pair + R_QUIET)
    st(m, pair + R_QUIET, now)
    lost = count_losses(m, pair, progress, news, now)
    st(m, pair + R_CLEAN, 0 if lost else ld(m, pair + R_CLEAN) + news)
    note_arrived(m, pair)
    note_feedback(m, pair, news, lost, marked if marked > 0 else 0, 1 if limited else 0, smoothed(m, pair), now)
    if silence >= COLLAPSE_TIMEOUTS * probe_timeout(m, pair, 0) and 2 * lost > progress:
        collapse(m, pair)
    if in_flight(m, pair) == 0 or ld(m, pair + R_PENDING) == 0:
        arm(m, pair + R_PING, 0)
    elif highest == ld(m, pair + R_NEXT) - 1:
        arm(m, pair + R_PING, now + (smoothed(m, pair) >> 1))
    else:
        arm(m, pair + R_PING, now + probe_timeout(m, pair, 0))
    hasten(m, pair, unknown, now)
    return 1


def count_losses(m: Words, pair: int, progress: int, received: int, now: int) -> int:
    """Returns how many packets count as lost from now on; where any has ever been late, only after a round trip."""
    if received > progress:
        st(m, pair + R_LATE, 1)
    passed = ld(m, pair + R_PASSED) + progress - received
    passed = passed if passed > 0 else 0
    if ld(m, pair + R_LATE) == 0:
        st(m, pair + R_PASSED, 0)
        return passed
    least = ld(m, pair + R_LEAST)
    least = least if least < passed else passed
    if now < ld(m, pair + R_ROUND_END):
        st(m, pair + R_PASSED, passed)
        st(m, pair + R_LEAST, least)
        return 0
    st(m, pair + R_PASSED, passed - least)
    st(m, pair + R_LEAST, passed - least)
    st(m, pair + R_ROUND_END, now + smoothed(m, pair) + 4 * ld(m, pair + R_RTTVAR))
    return least


def hasten(m: Words, pair: int, everything: bool, now: int) -> None:
    """Brings forward the timers of probes that the peer has seen, or seen overtaken, without an answer so far."""
    reach = rule(m, U_EVERY) if is_lossy(m, pair) else 0
    before = pair + R_FLOWS - D_LINK
    flow = ld(m, pair + R_FLOWS)
    while flow:
        behind = ld(m, flow + D_LINK)
        if ld(m, flow + F_ENDED):
            st(m, before + D_LINK, behind)
            flow = behind
            continue
        number = ld(m, flow + D_PROBE_NUMBER)
        beyond = number - ld(m, pair + R_ACKED)
        if number and beyond <= reach:
            if beyond > 0:
                allowed = ld(m, pair + R_RTTMIN)
                delay = feedback_delay(m, pair)
                allowed = allowed if allowed > delay else delay
            else:
                st(m, flow + D_PROBE_NUMBER, 0)
                allowed = answer_delay(m, pair, beyond == 0)
                if ld(m, flow + D_ATTEMPT) > 0:
                    st(m, flow + D_ATTEMPT, 0)
            nudges = ld(m, flow + D_NUDGES)
            allowed <<= nudges if nudges < 16 else 16
            most = probe_timeout(m, pair, 0)
            set_earlier(m, flow + F_TIMER, now + (allowed if allowed < most else most))
        elif number and everything:
            set_earlier(m, flow + F_TIMER, now + probe_timeout(m, pair, ld(m, flow + D_ATTEMPT)))
        before = flow
        flow = behind


def answer_delay(m: Words, pair: int, seen: bool) -> int:
    """Returns how long to wait for the answer to a probe that the peer has seen, or seen overtaken."""
    least = ld(m, pair + R_RTTMIN)
    if least == 0:
        return 2 * rule(m, U_UNKNOWN)
    wait = least >> 2 if seen or ld(m, pair + R_LATE) == 0 else smoothed(m, pair)
    shortest = 2 * rule(m, U_SHORTEST)
    return wait if wait > shortest else shortest
