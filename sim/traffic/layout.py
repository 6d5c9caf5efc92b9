"""Where a job runs: its hosts, ranks, servers, racks, and the groups of divide-and-shuffle synchronization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlcp.errors import ConfigError
from dlcp.topology import Topology
from sim.traffic.background import racks


def ranks_of(topology: Topology) -> list[int]:
    """Returns the host of every rank, by position; every host runs one rank if the topology names none."""
    positions = {host.name: index for index, host in enumerate(topology.hosts)}
    return [positions[name] for name in topology.places] or list(range(len(topology.hosts)))


def chosen(topology: Topology, names: Sequence[str], key: str) -> list[int]:
    """Returns the positions of hosts that are named one by one or as ``first..last``; none is all.

    Raises:
        ConfigError: There is no such host, or one is named twice.
    """
    positions = {host.name: index for index, host in enumerate(topology.hosts)}
    if not names:
        return list(positions.values())
    found: list[int] = []
    for name in names:
        first, _, last = name.partition("..")
        for end in (first, last or first):
            if end not in positions:
                raise ConfigError(f"topology {topology.name}", key, f"there is no host {end!r}", "names of hosts, or first..last")
        found += range(positions[first], positions[last or first] + 1)
    if len(set(found)) != len(found) or not found:
        raise ConfigError(
            f"topology {topology.name}", key, "a host twice, or a range that ends before it begins", "every host once"
        )
    return found


def places(topology: Topology, hosts: Sequence[int], servers: Sequence[int]) -> list[int]:
    """Returns the host of every rank of a job on some of the hosts, of which some serve and run none."""
    free = set(hosts) - set(servers)
    return [host for host in ranks_of(topology) if host in free]


def racks_of(topology: Topology, ranks: Sequence[int]) -> list[list[int]]:
    """Returns the ranks of every rack, ranks being given by their hosts; ranks on one host are in one rack."""
    switch = racks(topology)
    found: dict[str, list[int]] = {}
    for rank, host in enumerate(ranks):
        found.setdefault(switch[host], []).append(rank)
    return list(found.values())


def rounds_of(kind: str, world: int, group: int, domains: Sequence[Sequence[int]], seed: int = 0) -> list[list[tuple[int, ...]]]:
    """Returns the groups of every round of a schedule of ``dssync``.

    Args:
        kind: Its kind; ``topology`` averages within ``domains`` and crosses between them.
        world: Number of ranks.
        group: Ranks of the largest group; 0 leaves it to the schedule.
        domains: A partition of the ranks.
        seed: Of random groups.

    Raises:
        ConfigError: The schedule does not fit the ranks.
    """
    from dssync.schedule.make import make_schedule

    settings: dict[str, Any] = {"group": group or None}
    if kind == "topology":
        settings["domains"] = domains
    elif kind == "random":
        settings["seed"] = seed
    elif kind == "bsp":
        settings = {}
    schedule = make_schedule(kind, world, **settings)
    return [[one.ranks for one in groups] for groups in schedule.rounds]


__all__ = ["chosen", "places", "racks_of", "ranks_of", "rounds_of"]
