"""Permitted jobs: entries that the operator writes, which deployments leave alone.

A job is known by the cookie in its packets' headers, by the hosts that it runs on, or by both.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dlcp.errors import ConfigError
from dlcp.fabric.entities import Action, Entity, Entry, MatchValue, Meter
from dlcp.fabric.treatment import PORT_MASK
from dlcp.topology import Topology
from dlcp.units import Rate

PRIORITY: Final = 10
"""Priority of a job's entries, above that of the entries between switches."""

_COOKIE_MASK: Final = (1 << 64) - 1
_BURST_SECONDS: Final = 0.01
_LEAST_BURST: Final = 64 * 1024


def entries(
    topology: Topology, switch: str, *, cookie: int | None, hosts: Collection[str], rate: Rate | None = None, hard: bool = False
) -> list[Entity]:
    """Returns what permits a job at a switch: one entry, or one for each of its hosts that is attached there.

    Args:
        topology: The network.
        switch: The switch.
        cookie: What the job's packets bear; None for any.
        hosts: Where they come from; empty for anywhere.
        rate: What a switch lets it send; None is no limit.
        hard: What is beyond that is dropped, whatever it is; otherwise only droppable packets, and others lose their urgency.

    Raises:
        ConfigError: An unknown host, or neither cookie nor hosts.
    """
    if cookie is None and not hosts:
        raise ConfigError("(command line)", "COOKIE", "is missing", "the job's cookie, or --host NAME")
    known = [host.name for host in topology.hosts]
    for host in hosts:
        if host not in known:
            raise ConfigError(f"topology {topology.name}", "hosts", f"there is no host {host!r}", "the name of a host")
    action, meter = Action.of("permit"), None
    if rate is not None:
        action = Action.of("police", hard=int(hard))
        bytes_per_second = max(int(rate) // 8, 1)
        burst = max(round(bytes_per_second * _BURST_SECONDS), _LEAST_BURST)
        # Yellow begins at the rate, red at once above it: one bucket decides.
        meter = Meter(bytes_per_second, burst, bytes_per_second, burst)
    bears: tuple[tuple[str, MatchValue], ...] = () if cookie is None else (("cookie", (cookie, _COOKIE_MASK)),)
    if not hosts:
        return [Entry("jobs", bears, action, PRIORITY, meter)]
    ports = [arc.port for arc in topology.graph.leaving(switch) if arc.target in hosts]
    return [Entry("jobs", (*bears, ("port", (port, PORT_MASK))), action, PRIORITY, meter) for port in ports]


def permitted(held: Collection[Entity]) -> list[Entry]:
    """Returns the entries of jobs."""
    return [entity for entity in held if isinstance(entity, Entry) and entity.table == "jobs" and entity.priority == PRIORITY]


def with_job(held: list[Entity], job: Collection[Entity]) -> list[Entity]:
    """Returns what is held when the job is permitted; an entry with the same key is replaced."""
    keys = {entity.key for entity in job}
    return [*(entity for entity in held if entity.key not in keys), *job]


def without_job(held: list[Entity], job: Collection[Entity]) -> list[Entity]:
    """Returns what is held when the job is no longer permitted, at whatever rate it was."""
    keys = {entity.key for entity in job}
    return [entity for entity in held if entity.key not in keys]


__all__ = ["PRIORITY", "entries", "permitted", "with_job", "without_job"]
