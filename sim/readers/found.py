"""What a reader returns, and what all of them check."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dlcp.topology import Topology
from dlcp.workload import Workload
from sim.messages import Message

POLICY = -1.0
"""In place of a message's bound or protected share: what the policy of the run says."""


@dataclass
class Found:
    """What stood in files.

    Attributes:
        topology: The network, if they describe one.
        hosts: How many hosts the messages take, if they describe no network.
        messages: What is sent.
        workload: The model, if they describe one; then there are no messages.
        notes: What was left out or taken otherwise than in the tool that the files come from.
    """

    topology: Topology | None = None
    hosts: int = 0
    messages: list[Message] = field(default_factory=list)
    workload: Workload | None = None
    notes: list[str] = field(default_factory=list)


def stuck(messages: Sequence[Message]) -> int | None:
    """Returns the first message that can never start because it waits, over others, for itself; None if there is none.

    All that messages wait for has to exist.
    """
    waits = [len(message.after) for message in messages]
    followers: list[list[int]] = [[] for _ in messages]
    for index, message in enumerate(messages):
        for other in message.after:
            followers[other].append(index)
    free = deque(index for index, count in enumerate(waits) if not count)
    while free:
        for index in followers[free.popleft()]:
            waits[index] -= 1
            if not waits[index]:
                free.append(index)
    return next((index for index, count in enumerate(waits) if count), None)


__all__ = ["POLICY", "Found", "stuck"]
