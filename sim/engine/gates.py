"""Gates: a sender that lets its messages out one after another, the most urgent first, while it has credit.

As in ByteScheduler (SOSP 2019, section 4.2): so many bytes may be under way, so that a more urgent message which becomes ready
later overtakes those that have not begun. A message that is let through a gate has a *ticket*, whose timer brings the credit
back when its sender can know that the message has arrived.
"""

from __future__ import annotations

from sim.engine.agenda import arm, pop, push
from sim.engine.layout import (
    B_BYTES,
    B_FLOW,
    B_GATE,
    B_RETURN,
    B_URGENCY,
    F_GATE,
    HEAP_WORDS,
    S_COUNT,
    S_CREDIT,
    S_HEAP,
    S_NEXT,
    S_OUT,
)
from sim.engine.words import Words, ld, st


def passes(m: Words, gate: int, size: int) -> bool:
    """Whether a gate has credit for a message; one alone may be larger than the credit."""
    out = ld(m, gate + S_OUT)
    return out == 0 or out + size <= ld(m, gate + S_CREDIT)


def ask(m: Words, flow: int) -> int:
    """Returns 1 if a flow that is ready may begin; otherwise it waits at its gate."""
    ticket = ld(m, flow + F_GATE)
    gate = ld(m, ticket + B_GATE)
    size = ld(m, ticket + B_BYTES)
    count = ld(m, gate + S_COUNT)
    if count == 0 and passes(m, gate, size):
        st(m, gate + S_OUT, ld(m, gate + S_OUT) + size)
        return 1
    sequence = ld(m, gate + S_NEXT)
    st(m, gate + S_NEXT, sequence + 1)
    push(m, ld(m, gate + S_HEAP), count, ld(m, ticket + B_URGENCY), sequence, flow)
    st(m, gate + S_COUNT, count + 1)
    return 0


def next_admitted(m: Words, gate: int) -> int:
    """Returns the next flow that may begin, or 0."""
    count = ld(m, gate + S_COUNT)
    if count == 0:
        return 0
    heap = ld(m, gate + S_HEAP)
    flow = ld(m, heap + HEAP_WORDS - 1)
    size = ld(m, ld(m, flow + F_GATE) + B_BYTES)
    if not passes(m, gate, size):
        return 0
    pop(m, heap, count)
    st(m, gate + S_COUNT, count - 1)
    st(m, gate + S_OUT, ld(m, gate + S_OUT) + size)
    return flow


def arrived_whole(m: Words, flow: int, now: int) -> None:
    """A flow is complete at its receiver: its sender learns of that a way back later."""
    ticket = ld(m, flow + F_GATE)
    arm(m, ticket, now + ld(m, ticket + B_RETURN))


def give_back(m: Words, ticket: int) -> int:
    """Gives the credit of a ticket back; returns its gate."""
    gate = ld(m, ticket + B_GATE)
    st(m, gate + S_OUT, ld(m, gate + S_OUT) - ld(m, ticket + B_BYTES))
    st(m, ld(m, ticket + B_FLOW) + F_GATE, 0)
    return gate


__all__ = ["arrived_whole", "ask", "give_back", "next_admitted"]
