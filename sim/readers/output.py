"""Writes what readers found as files that ``dlcp sim run`` takes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from dlcp.errors import ConfigError
from dlcp.topology import Host, Link, Switch, Topology
from dlcp.units import Buffer, Delay, Rate
from sim.message_file import write_messages
from sim.readers.found import Found

_SCENARIO: Final = """\
# Made of files of {kind} by dlcp sim import.
topology = "topology.toml"
{workload}limit = "100 s"

[transport]
name = "{transport}"{window}

[traffic]
{traffic}
"""


def write(
    folder: Path,
    found: Found,
    kind: str,
    *,
    topology: Path | None,
    rate: Rate,
    delay: Delay,
    buffer: Buffer,
    transport: str,
) -> dict[str, Any]:
    """Writes ``topology.toml``, ``messages.csv`` or ``workload.toml``, and ``scenario.toml``.

    Args:
        folder: Where; made if it is not there.
        found: What to write.
        kind: Where it comes from, for the comment.
        topology: The network, if the files described none; without it all hosts hang on one switch.
        rate, delay, buffer: Of the links to that switch.
        transport: Of the scenario.

    Returns:
        Counts: hosts, links, messages, bytes, layers.

    Raises:
        ConfigError: The topology has too few hosts, or is given besides one of the files, or the folder cannot be written to.
    """
    network = _network(found, topology, rate, delay, buffer)
    workload, traffic = "", 'kind = "permutation"'
    if found.workload is not None:
        workload, traffic = 'workload = "workload.toml"\n', 'kind = "training"'
    elif found.messages:
        traffic = 'kind = "file"\nfile = "messages.csv"'
    # NDP sends its first window blindly and then only what is pulled: with less than a round trip holds it never fills a link.
    window = f"\ninitial_window = {_round_trip(network)}" if transport == "ndp" else ""
    text = _SCENARIO.format(kind=kind, workload=workload, transport=transport, window=window, traffic=traffic)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "topology.toml").write_text(network.to_toml(), encoding="utf-8")
        if found.workload is not None:
            (folder / "workload.toml").write_text(found.workload.to_toml(), encoding="utf-8")
        elif found.messages:
            write_messages(folder / "messages.csv", found.messages, [host.name for host in network.hosts])
        (folder / "scenario.toml").write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(folder, "--out", f"cannot be written to: {error.strerror or error}", "a folder of yours") from None
    sent = [message for message in found.messages if message.source != message.destination]
    return {
        "hosts": len(network.hosts),
        "links": len(network.links),
        "messages": len(sent),
        "bytes": sum(message.size for message in sent),
        "layers": len(found.workload.layers) if found.workload is not None else 0,
    }


def _round_trip(network: Topology) -> int:
    """Returns how many full packets are on their way, there and back, between the first and the last host; at least 10."""
    hosts = network.graph.hosts
    path = next(iter(network.routes.paths(hosts[0], hosts[-1])), ())
    links = [network.link(arc) for arc in path]
    if not links:
        return 10
    seconds = sum(2 * link.delay.seconds + link.rate.seconds(link.mtu) for link in links)
    return min(max(math.ceil(seconds / links[0].rate.seconds(links[0].mtu)), 10), 65_535)


def _network(found: Found, path: Path | None, rate: Rate, delay: Delay, buffer: Buffer) -> Topology:
    if found.topology is not None:
        if path is not None:
            raise ConfigError("--topology", str(path), "is given, but the files describe a network", "one of the two")
        return found.topology
    if path is not None:
        network = Topology.from_toml(path)
        if len(network.hosts) < found.hosts:
            problem = f"{len(network.hosts)} hosts, for {found.hosts} ranks"
            raise ConfigError(path, "hosts", problem, f"{found.hosts} hosts or more")
        return network
    names = [f"h{rank}" for rank in range(found.hosts)]
    try:
        return Topology(
            name="star",
            subnet="10.0.0.0/8",
            hosts=tuple(Host(name=name, ranks=(rank,)) for rank, name in enumerate(names)),
            switches=(Switch(name="s0"),),
            links=tuple(Link(a=name, b="s0", rate=rate, delay=delay, buffer=buffer) for name in names),
        )
    except ConfigError as error:
        raise ConfigError("the star", error.key, error.problem, error.accepted) from None


__all__ = ["write"]
