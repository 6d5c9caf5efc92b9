"""What there is to say about a topology, as plain data: the document of ``dlcp topology show --json``."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dlcp.topology.cuts import bisection
from dlcp.topology.description import Topology
from dlcp.topology.measures import fast_domains, oversubscription
from dlcp.units import Rate


def summarize(topology: Topology) -> dict[str, Any]:
    """Returns counts, what the network carries, and every derived address and port; rates in bit/s, times in seconds."""
    graph = topology.graph
    tier = graph.tiers()
    cut = bisection(topology)
    fast = fast_domains(topology)
    return {
        "name": topology.name,
        "digest": topology.digest(),
        "counts": {
            "hosts": len(topology.hosts),
            "switches": len(topology.switches),
            "links": len(topology.links),
            "ranks": topology.world,
            "tiers": max(tier.values()),
        },
        "bisection": {"rate_bps": int(cut.rate), "exact": cut.exact},
        "oversubscription": oversubscription(topology),
        "fast_domains": [list(domain) for domain in fast.domains],
        "boundary_links": list(fast.boundaries),
        "farthest": _farthest(topology),
        "link_kinds": link_kinds(topology),
        "hosts": [
            {
                "name": host.name,
                "ipv4": topology.addresses[host.name],
                "mac": topology.macs[host.name],
                "ranks": list(host.ranks),
                "nic_bps": int(topology.nics[host.name]),
                "ports": _ports(topology, host.name),
            }
            for host in topology.hosts
        ],
        "switches": [
            {
                "name": switch.name,
                "device_id": topology.device_ids[switch.name],
                "target": switch.target,
                "grpc": switch.grpc,
                "tier": tier[switch.name],
                "ports": _ports(topology, switch.name),
            }
            for switch in topology.switches
        ],
    }


def link_kinds(topology: Topology) -> list[dict[str, Any]]:
    """Counts the links that are alike and join nodes of the same tiers."""
    tier = topology.graph.tiers()
    counts: Counter[tuple[Any, ...]] = Counter()
    for link in topology.links:
        low, high = sorted((tier[link.a], tier[link.b]))
        counts[low, high, str(link.rate), str(link.delay), str(link.buffer), link.loss, link.mtu, link.metric] += 1
    keys = ("tier", "to_tier", "rate", "delay", "buffer", "loss", "mtu", "metric")
    return [{"count": count, **dict(zip(keys, kind, strict=True))} for kind, count in counts.items()]


def _ports(topology: Topology, node: str) -> list[dict[str, Any]]:
    return [{"port": arc.port, "peer": arc.target, "link": arc.link} for arc in topology.graph.leaving(node)]


def _farthest(topology: Topology) -> dict[str, Any] | None:
    """Describes the way from the first host to the one that is longest away from it."""
    first, *others = topology.graph.hosts
    if not others:
        return None
    routes = topology.routes
    delay, other = max(((routes.delay(first, host) or 0, host) for host in others), key=lambda found: found[0])
    path = next(routes.paths(first, other))
    return {
        "from": first,
        "to": other,
        "links": len(path),
        "paths": routes.path_count(first, other),
        "delay_s": delay / 10**12,
        "capacity_bps": routes.capacity(first, other),
        "path_capacity_bps": routes.path_capacity(first, other),
    }


def ratio(oversubscription: float) -> str:
    """Writes an oversubscription as people do: ``4:1``."""
    return f"{oversubscription:.3g}:1"


def rate(bits_per_second: float) -> str:
    """Writes a rate to three digits."""
    return str(Rate(float(f"{bits_per_second:.3g}")))


__all__ = ["link_kinds", "rate", "ratio", "summarize"]
