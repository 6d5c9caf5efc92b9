"""The intent: all that a switch should hold, from topology, policy and the ports that are drained.

A drained port takes its whole link out of use, in both directions and for the whole network: only leaving it out at its own
switch would let the neighbours go on sending what then has no way on.  Which ports are drained is written into the switches
themselves, as a multicast group that nothing refers to, so that whoever plans next, from whatever machine, knows of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Final

from dlcp.errors import ConfigError
from dlcp.fabric.entities import Entity, MulticastGroup
from dlcp.fabric.forwarding import flooding_tree, forwarding
from dlcp.fabric.treatment import treatment
from dlcp.policy import Policy
from dlcp.topology import Routes, Topology

DRAINED_GROUP: Final = 2
"""Multicast group whose ports are the drained ones."""

TABLES: Final = ("paths", "bridge", "dlcp_classes", "dscp_classes", "limits")
"""Tables that belong to the intent: an entry that is not in it is deleted.  ``jobs`` and the routing tables are others'."""

DEFAULTS: Final = ("bridge", "jobs")
"""Tables whose default action belongs to the intent."""

GROUPS: Final = (1, DRAINED_GROUP)
"""Multicast groups that belong to the intent."""

DEPLOYABLE: Final = ("any", "softswitch", "bmv2", "p4runtime")
"""Targets that speak P4Runtime."""


class Intent:
    """What every switch should hold.

    Args:
        topology: The network.
        policy: The policy.
        drained: Switch and port of what is out of use.

    Raises:
        ConfigError: A drained port does not exist.
    """

    def __init__(self, topology: Topology, policy: Policy, drained: Collection[tuple[str, int]] = ()) -> None:
        self.topology = topology
        self.policy = policy
        self.drained = frozenset(drained)
        self.down = frozenset(link_of(topology, switch, port) for switch, port in self.drained)

    @cached_property
    def routes(self) -> Routes:
        """Shortest paths without what is drained."""
        return Routes(self.topology, down=self.down)

    @cached_property
    def tree(self) -> frozenset[int]:
        """Links of the flooding tree."""
        return flooding_tree(self.topology, self.down)

    def entities(self, switch: str) -> list[Entity]:
        """Returns what ``switch`` should hold, each key once.

        Raises:
            ConfigError: It does not fit into the program's tables.
        """
        entities = forwarding(self.topology, self.routes, self.tree, switch)
        entities += treatment(self.topology, self.policy, switch)
        ports = sorted(port for name, port in self.drained if name == switch)
        if ports:
            entities.append(MulticastGroup(DRAINED_GROUP, tuple(ports)))
        return entities

    def cut_off(self) -> list[tuple[str, str]]:
        """Returns pairs of a switch and a host that it cannot reach; without drained ports there are none."""
        if not self.down:
            return []
        hosts = [host.name for host in self.topology.hosts]
        switches = [switch.name for switch in self.topology.switches]
        return [(switch, host) for switch in switches for host in hosts if not self.routes.next_hops(switch, host)]


def link_of(topology: Topology, switch: str, port: int) -> int:
    """Returns the position of the link at a port.

    Raises:
        ConfigError: There is no such switch or port.
    """
    source = f"topology {topology.name}"
    names = [each.name for each in topology.switches]
    if switch not in names:
        raise ConfigError(source, "switches", f"there is no switch {switch!r}", ", ".join(names) or "a topology with switches")
    arcs = topology.graph.leaving(switch)
    for arc in arcs:
        if arc.port == port:
            return arc.link
    raise ConfigError(source, switch, f"has no port {port}", ", ".join(f"{arc.port} (to {arc.target})" for arc in arcs))


def both_ends(topology: Topology, switch: str, port: int) -> frozenset[tuple[str, int]]:
    """Returns the ports at the ends of a link that are switches': both know of the drain, so that one may be out of reach."""
    link = link_of(topology, switch, port)
    arcs = (topology.graph.arcs[2 * link], topology.graph.arcs[2 * link + 1])
    return frozenset((arc.source, arc.port) for arc in arcs if not topology.graph.is_host(arc.source))


def drained_ports(switch: str, held: Iterable[Entity]) -> set[tuple[str, int]]:
    """Returns what a switch says is drained."""
    groups = (entity for entity in held if isinstance(entity, MulticastGroup) and entity.id == DRAINED_GROUP)
    return {(switch, port) for group in groups for port in group.ports}


__all__ = [
    "DEFAULTS",
    "DEPLOYABLE",
    "DRAINED_GROUP",
    "GROUPS",
    "TABLES",
    "Intent",
    "both_ends",
    "drained_ports",
    "link_of",
]
