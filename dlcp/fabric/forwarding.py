"""Forwarding: which way each switch sends what is for each host, and how it floods.

All hosts of a topology are in one subnet, so switches bridge by MAC address.  Where several next hops are equally near, the
address leads to a group of paths, from which the program picks one by flow or by packet.  Floods follow a tree, because a
network with equal paths has loops."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from typing import Final

from dlcp.errors import ConfigError
from dlcp.fabric.entities import Action, Default, Entity, Entry, MulticastGroup, Path, mac_number
from dlcp.topology import Routes, Topology

FLOOD_GROUP: Final = 1
"""Multicast group of the tree."""

GROUPS: Final = 1024
"""Size of the table ``paths``; group 0 is not used."""

MAX_PORT: Final = 510
"""Highest port: v1model's ports have 9 bits, and 511 means drop."""


def forwarding(topology: Topology, routes: Routes, tree: Collection[int], switch: str) -> list[Entity]:
    """Returns what ``switch`` needs to reach every host.

    Args:
        topology: The network.
        routes: Shortest paths, without the links that are out of use.
        tree: Positions of the links of the flooding tree, as :func:`flooding_tree` returns them.
        switch: Name of the switch.

    Raises:
        ConfigError: A port number, or the number of different sets of paths, is beyond what the program holds.
    """
    for arc in topology.graph.leaving(switch):
        if not 1 <= arc.port <= MAX_PORT:
            where = f"port {arc.port} of {switch}"
            raise ConfigError(f"topology {topology.name}", where, "cannot be used", f"a port from 1 to {MAX_PORT}")
    salt = zlib.crc32(switch.encode())
    ways = {host.name: routes.next_ports(switch, host.name) for host in topology.hosts}
    groups = number_groups({ports for ports in ways.values() if len(ports) > 1}, switch)
    crashes = topology.switch(switch).target == "bmv2"

    def unwatched(ports: tuple[int, ...]) -> int | None:
        # BMv2 1.15 divides by the number of paths that are up, and dies where that is none.
        return ports[0] if crashes else None

    entities: list[Entity] = []
    flooded = sorted(arc.port for arc in topology.graph.leaving(switch) if arc.link in tree)
    if flooded:
        entities.append(MulticastGroup(FLOOD_GROUP, tuple(flooded)))
    for ports, group in groups.items():
        paths = tuple(Path(Action.of("path", port=port), watch_port=0 if port == unwatched(ports) else port) for port in ports)
        entities.append(Entry("paths", (("group", group),), paths))
    for host, ports in ways.items():
        if not ports:
            continue
        way = Action.of("to_group", group=groups[ports], salt=salt) if len(ports) > 1 else Action.of("to_port", port=ports[0])
        entities.append(Entry("bridge", (("dst_addr", mac_number(topology.macs[host])),), way))
    entities.append(Default("bridge", Action.of("flood", group=FLOOD_GROUP) if flooded else Action.of("discard")))
    return entities


def number_groups(sets: Iterable[tuple[int, ...]], switch: str) -> dict[tuple[int, ...], int]:
    """Gives every set of ports a number from 1 to 1023 that hardly depends on the other sets.

    So when paths change, a new group is written beside the old one before any address is led to it, and no group ever changes its
    meaning while traffic uses it.

    Raises:
        ConfigError: There are more sets than numbers.
    """
    wanted = sorted(sets)
    if len(wanted) >= GROUPS:
        raise ConfigError("topology", f"switches.{switch}", f"needs {len(wanted)} groups of paths", f"at most {GROUPS - 1}")
    numbers: dict[tuple[int, ...], int] = {}
    taken: set[int] = set()
    for ports in wanted:
        number = zlib.crc32(repr(ports).encode()) % (GROUPS - 1) + 1
        while number in taken:
            number = number % (GROUPS - 1) + 1
        taken.add(number)
        numbers[ports] = number
    return numbers


def flooding_tree(topology: Topology, down: Collection[int]) -> frozenset[int]:
    """Returns the links of a tree over all switches and hosts, the shortest from the first switch; links that are down are
    left out.

    Hosts with several links get what is flooded over the first one.  Where links that are down part the network, every part has a
    tree.
    """
    graph = topology.graph
    links: set[int] = set()
    switches: set[str] = set()
    for root in graph.switches:
        if root in switches:
            continue
        reached = {root}
        front = [root]
        while front:
            following = []
            for node in front:
                for arc in graph.leaving(node):
                    if arc.link in down or arc.target in reached:
                        continue
                    reached.add(arc.target)
                    links.add(arc.link)
                    if not graph.is_host(arc.target):
                        following.append(arc.target)
            front = following
        switches |= reached
    return frozenset(links)


__all__ = ["FLOOD_GROUP", "GROUPS", "MAX_PORT", "flooding_tree", "forwarding", "number_groups"]
