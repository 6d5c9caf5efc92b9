"""The loop: takes the next event and does what it says, until the pause, the budget, or the end."""

from __future__ import annotations

from sim.engine.agenda import advance, arm, fires
from sim.engine.bounded import learn, on_datagram, settle, start_bounded
from sim.engine.dlcp_receive import decide, note_arrival, on_feedback_timer, on_part, on_probe, send_pings
from sim.engine.dlcp_rules import in_flight, probe_timeout
from sim.engine.dlcp_send import join, on_feedback, on_probe_timer, on_status, on_stop, remaining
from sim.engine.gates import arrived_whole, ask, give_back, next_admitted
from sim.engine.hosts import enlist, rouse, rouse_pair, send_control, serve_host
from sim.engine.layout import (
    A_DOWN,
    A_EXPIRE,
    A_HOST,
    A_LEAVE,
    A_REFRESH,
    A_REVERSE,
    A_TARGET,
    A_UP,
    ACK,
    BY_INGRESS,
    CUT,
    D_COMPLETE,
    DATA,
    DCQCN,
    DEAD,
    DLCP,
    E_KIND,
    F_AFTER,
    F_BACK,
    F_EDGE_COUNT,
    F_EDGES,
    F_END,
    F_ENDED,
    F_EXTRA,
    F_FROM,
    F_GATE,
    F_KIND,
    F_PAIR,
    F_START,
    F_TIMER,
    F_TO,
    F_WAITS,
    FEEDBACK,
    H_BUDGET,
    H_DONE,
    H_DONE_COUNT,
    H_EVENTS,
    H_FAR_COUNT,
    H_FAR_ROOM,
    H_FREE_COUNT,
    H_HOPS,
    H_NEAR_COUNT,
    H_NO_ROUTE,
    H_NOW,
    H_OPEN,
    H_WAITING,
    K_ARRIVE,
    K_COMPLETE,
    K_CREDIT,
    K_DECAY,
    K_EXPIRE,
    K_FEEDBACK,
    K_FREE,
    K_PACE,
    K_PING,
    K_PROBE,
    K_REFRESH,
    K_RISE,
    K_SPEND,
    K_START,
    K_WINDOW,
    KIND_MASK,
    KIND_SHIFT,
    MORE_EVENTS,
    MORE_PACKETS,
    N_PULL,
    N_ROOM,
    N_SWITCH,
    NDP,
    NOTICE,
    P_EXTRA,
    P_FLAGS,
    P_FLOW,
    P_SENT,
    P_SEQ,
    P_TO,
    PAUSE,
    PAUSED,
    PFABRIC,
    PING,
    PROBE,
    PULL,
    QUIET,
    R_FEEDBACK,
    R_PACE,
    R_PENDING,
    R_PING,
    R_UNANSWERED,
    RAW,
    RESERVE,
    ROCE,
    STATUS,
    TIMEOUT,
    WARMUP,
)
from sim.engine.layout_rates import (
    V_DEADLINE,
    V_DECAY,
    V_RISE,
    V_SPEND,
)
from sim.engine.ndp import next_pull, on_answer, on_ndp_timeout, on_pull, pull_arc, want_pull
from sim.engine.pause import refresh, set_paused
from sim.engine.pfabric import on_ranked_ack, on_ranked_timeout
from sim.engine.ports import arrived, give_packet, lose, notify, offer, serve, wait_for
from sim.engine.rate import on_decay, on_notice, on_rise
from sim.engine.roce import on_expected, on_roce_timeout, on_segment
from sim.engine.routing import route
from sim.engine.window import on_ack, on_data, on_timeout, to_ack
from sim.engine.words import MASK32, Words, ld, st


def run(m: Words) -> int:
    """Runs until :data:`H_UNTIL`, for at most :data:`H_BUDGET` events, and returns why it stopped.

    A shortage of packets or of room for events is told before anything is done about the next event, so that it can be resumed.
    """
    budget = ld(m, H_BUDGET)
    while budget > 0:
        if ld(m, H_FREE_COUNT) < RESERVE:
            return MORE_PACKETS
        if ld(m, H_FAR_COUNT) + RESERVE > ld(m, H_FAR_ROOM):
            return MORE_EVENTS
        event = advance(m)
        if event == 0:
            return PAUSED if ld(m, H_NEAR_COUNT) + ld(m, H_FAR_COUNT) + ld(m, H_WAITING) > 0 else QUIET
        budget -= 1
        st(m, H_EVENTS, ld(m, H_EVENTS) + 1)
        now = ld(m, H_NOW)
        kind = ld(m, event + E_KIND)
        if kind == K_ARRIVE:
            arrive(m, event, now)
        elif kind == K_FREE:
            if ld(m, event - A_LEAVE + A_HOST):
                serve_host(m, event - A_LEAVE, now)
            else:
                serve(m, event - A_LEAVE, now)
        elif fires(m, event, ld(m, 0), now):
            ring(m, event, kind, now)
        if ld(m, H_OPEN) == 0:
            return QUIET
    st(m, H_BUDGET, 0)
    return PAUSED


def arrive(m: Words, arc: int, now: int) -> None:
    """A packet arrives at the far end of a link."""
    packet = arrived(m, arc)
    flags = ld(m, packet + P_FLAGS)
    if flags & DEAD:
        lose(m, packet, arc, A_DOWN)
        return
    st(m, H_HOPS, ld(m, H_HOPS) + 1)
    kind = (flags >> KIND_SHIFT) & KIND_MASK
    if kind == PAUSE:
        obey(m, ld(m, arc + A_REVERSE), ld(m, packet + P_SEQ), now)
        give_packet(m, packet)
        return
    node = ld(m, arc + A_TARGET)
    if ld(m, node + N_SWITCH):
        if ld(m, node + N_ROOM) == BY_INGRESS:
            st(m, packet + P_TO, (ld(m, packet + P_TO) & MASK32) | (arc << 32))
        out = route(m, node, packet)
        if out:
            offer(m, out, packet, now)
        else:
            lose(m, packet, 0, H_NO_ROUTE)
        return
    flow = ld(m, packet + P_FLOW)
    transport = ld(m, flow + F_KIND)
    if kind == PULL:
        on_pull(m, flow, packet)
        enlist(m, flow, now)
        return
    if kind > PAUSE or (kind < PROBE and (transport == ROCE or transport == DCQCN or transport == TIMEOUT)):
        arrive_rate(m, flow, kind, packet, now)
        return
    if transport == PFABRIC and kind:
        if kind == PROBE:
            to_ack(m, flow, packet)
            st(m, packet + P_FLAGS, ld(m, packet + P_FLAGS) | CUT)
            send_control(m, ld(m, flow + F_BACK), packet, now)
            return
        on_ranked_ack(m, flow, packet, now)
        enlist(m, flow, now)
        return
    if kind > ACK or transport == DLCP:
        arrive_dlcp(m, flow, kind, packet, now)
        return
    if kind == ACK:
        if transport == NDP:
            on_answer(m, flow, packet, now)
        else:
            on_ack(m, flow, packet, now)
        enlist(m, flow, now)
        return
    done = on_data(m, flow, packet)
    if transport == NDP:
        want_pull(m, flow, now)
    if transport == RAW:
        give_packet(m, packet)
    else:
        to_ack(m, flow, packet)
        send_control(m, ld(m, flow + F_BACK), packet, now)
    if done:
        complete(m, flow, now)


def arrive_rate(m: Words, flow: int, kind: int, packet: int, now: int) -> None:
    """A packet of a flow with a rate arrives."""
    if kind == DATA:
        if ld(m, flow + F_KIND) == TIMEOUT:
            done = on_datagram(m, flow, packet, now)
        else:
            done = on_segment(m, flow, packet, now)
        if done:
            complete(m, flow, now)
    elif kind == NOTICE:
        give_packet(m, packet)
        on_notice(m, flow, now)
    else:
        on_expected(m, flow, packet, kind, now)
        enlist(m, flow, now)


def obey(m: Words, arc: int, classes: int, now: int) -> None:
    """Pauses classes of the port that feeds an arc, and sends what may be sent again."""
    if set_paused(m, arc, classes, now) and ld(m, arc + A_UP):
        wait_for(m, arc, now)


def arrive_dlcp(m: Words, flow: int, kind: int, packet: int, now: int) -> None:
    """A packet of DLCP arrives; of feedback and pings ``flow`` is the pair."""
    value = ld(m, packet + P_SEQ)
    extra = ld(m, packet + P_EXTRA)
    sent = ld(m, packet + P_SENT)
    if kind == DATA:
        if on_part(m, flow, packet, now):
            complete(m, flow, now)
    elif kind == PROBE:
        if on_probe(m, flow, packet, now):
            complete(m, flow, now)
    elif kind == PING:
        note_arrival(m, flow, packet, now)
        give_packet(m, packet)
    elif kind == FEEDBACK:
        give_packet(m, packet)
        if on_feedback(m, flow, value, extra >> 31, extra & ((1 << 31) - 1), sent, now):
            rouse_pair(m, flow, now)
    elif kind == STATUS:
        give_packet(m, packet)
        on_status(m, flow, extra, value)
        if ld(m, flow + F_ENDED) == 0 and remaining(m, flow):
            rouse(m, flow, now)
    else:
        give_packet(m, packet)
        on_stop(m, flow)


def complete(m: Words, flow: int, now: int) -> None:
    """A message is complete at its receiver: starts what waited for it."""
    st(m, flow + F_END, now)
    if ld(m, flow + F_KIND) == WARMUP:
        learn(m, flow, now)
    count = ld(m, H_DONE_COUNT)
    st(m, ld(m, H_DONE) + count, flow)
    st(m, H_DONE_COUNT, count + 1)
    if ld(m, flow + F_EXTRA) == 0:
        st(m, H_OPEN, ld(m, H_OPEN) - 1)
    if ld(m, flow + F_GATE):
        arrived_whole(m, flow, now)
    edge = ld(m, flow + F_EDGES)
    end = edge + ld(m, flow + F_EDGE_COUNT)
    while edge < end:
        other = ld(m, edge)
        waits = ld(m, other + F_WAITS) - 1
        st(m, other + F_WAITS, waits)
        if waits == 0:
            # The sender may have been computing on the data that it waited for.
            start = now + ld(m, other + F_AFTER)
            earliest = ld(m, other + F_START)
            begin(m, other, start if start > earliest else earliest)
        edge += 1


def begin(m: Words, flow: int, start: int) -> None:
    """Enters the start of a flow, whose timer serves for that too."""
    # A timer that is wanted at 0 is stopped: what starts at once starts a picosecond later.
    start = start if start else 1
    st(m, flow + F_START, start)
    st(m, flow + F_TIMER + E_KIND, K_START)
    arm(m, flow + F_TIMER, start)


def launch(m: Words, flow: int, now: int) -> None:
    """Starts a flow; from then on its timer is its transport's."""
    if ld(m, flow + F_KIND) == DLCP:
        st(m, flow + F_TIMER + E_KIND, K_PROBE)
        join(m, flow)
        rouse_pair(m, ld(m, flow + F_PAIR), now)
    else:
        st(m, flow + F_TIMER + E_KIND, K_WINDOW)
        if ld(m, flow + F_KIND) == TIMEOUT:
            start_bounded(m, flow, now)
        enlist(m, flow, now)


def ring(m: Words, timer: int, kind: int, now: int) -> None:
    """A timer has run out."""
    if kind == K_START:
        flow = timer - F_TIMER
        if ld(m, flow + F_FROM) == ld(m, flow + F_TO):
            complete(m, flow, now)
        elif ld(m, flow + F_GATE) == 0 or ask(m, flow):
            launch(m, flow, now)
    elif kind == K_WINDOW:
        transport = ld(m, timer - F_TIMER + F_KIND)
        if transport == NDP:
            on_ndp_timeout(m, timer - F_TIMER)
        elif transport == PFABRIC:
            on_ranked_timeout(m, timer - F_TIMER, now)
        elif transport == DCQCN or transport == ROCE:
            on_roce_timeout(m, timer - F_TIMER)
        else:
            on_timeout(m, timer - F_TIMER, now)
        enlist(m, timer - F_TIMER, now)
    elif kind == K_PROBE:
        if on_probe_timer(m, timer - F_TIMER):
            rouse(m, timer - F_TIMER, now)
    elif kind == K_COMPLETE:
        if decide(m, timer - D_COMPLETE, now):
            complete(m, timer - D_COMPLETE, now)
    elif kind == K_FEEDBACK:
        on_feedback_timer(m, timer - R_FEEDBACK, now)
    elif kind == K_PING:
        pair = timer - R_PING
        if in_flight(m, pair) and ld(m, pair + R_PENDING):
            unanswered = ld(m, pair + R_UNANSWERED) + 1
            st(m, pair + R_UNANSWERED, unanswered)
            send_pings(m, pair, now)
            arm(m, timer, now + probe_timeout(m, pair, unanswered))
    elif kind == K_PACE:
        rouse_pair(m, timer - R_PACE, now)
    elif kind == K_CREDIT:
        gate = give_back(m, timer)
        flow = next_admitted(m, gate)
        while flow:
            st(m, flow + F_START, now)
            launch(m, flow, now)
            flow = next_admitted(m, gate)
    elif kind < K_REFRESH and kind >= K_SPEND:
        ring_rate(m, timer, kind, now)
    elif kind == K_REFRESH:
        notify(m, refresh(m, timer - A_REFRESH, now), now)
    elif kind == K_EXPIRE:
        obey(m, timer - A_EXPIRE, 0, now)
    else:
        packet = next_pull(m, timer - N_PULL, now)
        if packet:
            send_control(m, pull_arc(m, packet), packet, now)


def ring_rate(m: Words, timer: int, kind: int, now: int) -> None:
    """A timer of a flow with a rate has run out."""
    if kind == K_SPEND:
        enlist(m, timer - V_SPEND, now)
    elif kind == K_DECAY:
        on_decay(m, timer - V_DECAY, now)
    elif kind == K_RISE:
        on_rise(m, timer - V_RISE, now)
    elif ld(m, timer - V_DEADLINE + F_END) == 0:
        settle(m, timer - V_DEADLINE, now)
        complete(m, timer - V_DEADLINE, now)


__all__ = ["begin", "complete", "run"]
