"""Treatment: which queue each class gets, how its packets spread over paths, and what happens when queues grow.

Thresholds are shares of a queue's buffer in the policy, and numbers of packets in the switch, which rounds them, to at least one.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from dlcp.errors import ConfigError
from dlcp.fabric.entities import Action, Default, Entity, Entry
from dlcp.policy import Policy
from dlcp.topology import Topology
from dlcp.wire.header import CONTROL_CLASS

NEVER: Final = (1 << 19) - 1
"""A threshold that no queue reaches (``limits`` has 19 bits)."""

LIMITS: Final = 1024
"""Size of the table ``limits``."""

SPRAY: Final = {"hash": 0, "round-robin": 1, "random": 2}
"""How ``treat`` spreads packets over paths."""

CLASSES: Final = CONTROL_CLASS + 1
ETHERNET_BYTES: Final = 14
PORT_MASK: Final = 0x1FF
TRUNK_PRIORITY: Final = 1
"""Priority of the entries of ``jobs`` that let in what comes from other switches; those of jobs have others."""

_ANY_PORT, _ONE_PORT = 1, 2
"""Priorities: what is said of one port goes before what is said of all."""


def treatment(topology: Topology, policy: Policy, switch: str) -> list[Entity]:
    """Returns what ``switch`` does to the packets that it forwards.

    Raises:
        ConfigError: The thresholds of the ports differ too much for the table that holds them.
    """
    return [*_classes(policy), *_limits(topology, policy, switch), *_jobs(topology, policy, switch)]


def _classes(policy: Policy) -> list[Entity]:
    rules = policy.switch
    entities: list[Entity] = [
        Entry(
            "dlcp_classes",
            (("class", priority),),
            Action.of("treat", queue=priority, spray=SPRAY[rules.spray], stamp=int(rules.stamp_depth)),
        )
        for priority in range(CLASSES)
    ]
    if rules.trust_dscp:
        # Of classes with the same DSCP the most urgent one.
        queues = {dscp: priority for priority, dscp in enumerate(policy.classes.dscp)}
        entities += [
            Entry("dscp_classes", (("dscp", dscp),), Action.of("assign", queue=queue)) for dscp, queue in sorted(queues.items())
        ]
    return entities


def _limits(topology: Topology, policy: Policy, switch: str) -> list[Entity]:
    """What most ports have in common is said once; the others are listed."""
    thresholds = {}
    for arc in topology.graph.leaving(switch):
        link = topology.link(arc)
        room = link.buffer.packets(link.mtu + ETHERNET_BYTES)
        rules = policy.switch
        thresholds[arc.port] = (_packets(rules.drop_share, room), _packets(rules.mark_share, room))
    if not thresholds:
        return []
    common, _ = max(Counter(thresholds.values()).items(), key=lambda item: (item[1], item[0]))
    entities: list[Entity] = [*_port_limits(policy, *common, port=None)]
    for port, own in sorted(thresholds.items()):
        if own != common:
            entities += _port_limits(policy, *own, port=port)
    if len(entities) > LIMITS:
        problem = f"its ports have buffers of {len(set(thresholds.values()))} sizes, which takes {len(entities)} entries"
        raise ConfigError(f"topology {topology.name}", f"switches.{switch}", problem, f"at most {LIMITS} entries")
    return entities


def _port_limits(policy: Policy, drop_at: int, mark_at: int, port: int | None) -> list[Entity]:
    if policy.switch.overload == "trim":
        give_up = Action.of("trim_from", trim_at=drop_at, mark_at=mark_at, dscp=policy.classes.dscp[CONTROL_CLASS])
    else:
        give_up = Action.of("drop_from", drop_at=drop_at, mark_at=mark_at)
    mark = Action.of("drop_from", drop_at=NEVER, mark_at=mark_at)
    where = () if port is None else (("port", (port, PORT_MASK)),)
    order = _ANY_PORT if port is None else _ONE_PORT
    entities: list[Entity] = []
    for queue in range(CLASSES):
        # What is in class 7 has lost its payload already, or tells others what is lost.
        actions = (mark if queue == CONTROL_CLASS else give_up, mark)
        for protected, action in enumerate(actions):
            entities.append(Entry("limits", (*where, ("queue", queue), ("protected", protected)), action, order))
    return entities


def _packets(share: float, room: int) -> int:
    return NEVER if share >= 1 else min(max(round(share * room), 1), NEVER)


def _jobs(topology: Topology, policy: Policy, switch: str) -> list[Entity]:
    """Jobs are told apart where hosts are attached; what comes from another switch has been let in there."""
    action = {"none": "permit", "demote": "demote", "refuse": "refuse"}[policy.switch.isolation]
    entities: list[Entity] = [Default("jobs", Action.of(action))]
    if policy.switch.isolation != "none":
        for arc in topology.graph.leaving(switch):
            if not topology.graph.is_host(arc.target):
                entities.append(Entry("jobs", (("port", (arc.port, PORT_MASK)),), Action.of("permit"), TRUNK_PRIORITY))
    return entities


__all__ = ["NEVER", "PORT_MASK", "SPRAY", "TRUNK_PRIORITY", "treatment"]
