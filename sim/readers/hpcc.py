"""Inputs of the HPCC simulator (ns-3): ``topology.txt`` and ``flow.txt``.

The formats are those that its ``scratch/third.cc`` reads.  A topology has three counts (nodes, switches, links), the numbers of
the switches, and a line for every link: two nodes, rate, delay, error rate.  Flows have a count, and lines of source,
destination, priority group, port, bytes, and start in seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from dlcp.errors import ConfigError
from dlcp.topology import Host, Link, Switch, Topology
from dlcp.units import Buffer, Delay, Rate
from sim.messages import Message
from sim.readers.found import POLICY
from sim.readers.text import LIMIT, MAX_MESSAGES, PICOSECONDS, InputError, Line, lines, number, rows, shown

MAX_NODES: Final = 65_000
MAX_LINKS: Final = 200_000
_LINK: Final = "two nodes, rate, delay, error rate"
_FLOW: Final = "source, destination, priority group, port, bytes, start in seconds"
_PREFIXES: Final = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_RATE: Final = re.compile(r"([0-9.eE+-]+)(?:((?:[kKMG]i?)?)(b|B)(?:ps|/s))?", re.ASCII)
_TIME: Final = re.compile(r"([0-9.eE+-]+?)(s|ms|us|ns|ps|fs|min)?", re.ASCII)
_UNITS: Final = {
    **{unit: Fraction(10**power) for unit, power in (("s", 12), ("ms", 9), ("us", 6), ("ns", 3), ("ps", 0))},
    "fs": Fraction(1, 1000),
    "min": Fraction(60 * 10**12),
}


@dataclass(frozen=True)
class Network:
    """A topology, and the position of the host that each node is.

    Attributes:
        topology: Hosts ``h0``, ``h1``, ..., switches ``s65``, ..., named by their numbers in the file.
        hosts: Number in the file to position in the topology.
        notes: What was not read.
    """

    topology: Topology
    hosts: dict[int, int]
    notes: list[str]


def read_topology(path: str | Path, *, buffer: Buffer | None = None, mtu: int = 1500, limit: int = LIMIT) -> Network:
    """Reads a topology; every host gets a rank.

    Args:
        path: The file.
        buffer: Room of every queue, which the file does not say.
        mtu: Of every link.
        limit: Most bytes of the file.

    Raises:
        InputError: With file and line.
    """
    found = lines(path, limit)
    found[0].expect(3, "nodes, switches, links")
    nodes = found[0].integer(0, "nodes", 1, MAX_NODES)
    switches = found[0].integer(1, "switches", 0, nodes - 1)
    count = found[0].integer(2, "links", 0, MAX_LINKS)
    numbers: dict[int, None] = {}
    at = 1
    while len(numbers) < switches:
        if at == len(found):
            raise found[-1].error(f"the file ends after {len(numbers)} switches", f"{switches} numbers of switches")
        line = found[at]
        if len(line.words) > switches - len(numbers):
            problem = f"{len(numbers) + len(line.words)} numbers of switches"
            raise line.error(problem, f"{switches}, as the first line says, and each link on a line of its own")
        for index in range(len(line.words)):
            switch = line.integer(index, "switch", 0, nodes - 1)
            if switch in numbers:
                raise line.error(f"switch {switch} for the second time", "every switch once")
            numbers[switch] = None
        at += 1
    chosen = rows(found, count, at, "links", _LINK)
    notes = []
    if len(found) > at + count:
        notes.append(f"{path}: {len(found) - at - count} lines after the {count} links that line 1 announces were not read")
    names = [f"s{node}" if node in numbers else f"h{node}" for node in range(nodes)]
    room = buffer or Buffer(256 << 10, "bytes")
    seen: set[frozenset[int]] = set()
    links = [_link(line, nodes, names, room, mtu, seen) for line in chosen]
    hosts = [node for node in range(nodes) if node not in numbers]
    try:
        topology = Topology(
            name="hpcc",
            hosts=tuple(Host(name=names[node], ranks=(rank,)) for rank, node in enumerate(hosts)),
            switches=tuple(Switch(name=names[node]) for node in numbers),
            links=tuple(links),
        )
    except ConfigError as error:
        raise InputError(path, "(file)", error.problem, error.accepted) from None
    return Network(topology, {node: position for position, node in enumerate(hosts)}, notes)


def _link(line: Line, nodes: int, names: list[str], buffer: Buffer, mtu: int, seen: set[frozenset[int]]) -> Link:
    line.expect(5, _LINK)
    a, b = line.integer(0, "node", 0, nodes - 1), line.integer(1, "node", 0, nodes - 1)
    if a == b:
        raise line.error(f"joins node {a} to itself", "two nodes")
    rate, delay = _rate(line), _delay(line)
    loss = float(line.fraction(4, "error rate", 0, 1))
    pair = frozenset((a, b))
    parallel = pair in seen
    seen.add(pair)
    return Link(a=names[a], b=names[b], rate=rate, delay=delay, loss=loss, buffer=buffer, mtu=mtu, parallel=parallel)


def _rate(line: Line) -> Rate:
    """Reads a rate as ns-3 writes it: ``100Gbps``, ``50Mb/s``, or a number of bit/s."""
    text = line.word(2, "rate")
    accepted = "a rate such as 100Gbps, from 1kbps to 100000Gbps"
    match = _RATE.fullmatch(text)
    value = number(match[1]) if match else None
    if match is None or value is None:
        raise line.error(f"rate is {shown(text)}", accepted)
    bits = value * _PREFIXES[match[2] or ""] * (8 if match[3] == "B" else 1)
    if not 10**3 <= bits <= 10**14:
        raise line.error(f"rate is {shown(text)}", accepted)
    return Rate(round(bits))


def _delay(line: Line) -> Delay:
    """Reads a time as ns-3 writes it: ``1000ns``, ``0.001ms``, or a number of seconds."""
    text = line.word(3, "delay")
    accepted = "a time such as 1000ns, from 0s to 1000s"
    match = _TIME.fullmatch(text)
    value = number(match[1]) if match else None
    if match is None or value is None:
        raise line.error(f"delay is {shown(text)}", accepted)
    picoseconds = value * _UNITS[match[2] or "s"]
    if not 0 <= picoseconds <= 1000 * PICOSECONDS:
        raise line.error(f"delay is {shown(text)}", accepted)
    return Delay(round(picoseconds))


def read_flows(path: str | Path, hosts: dict[int, int], *, limit: int = LIMIT) -> tuple[list[Message], list[str]]:
    """Reads flows.

    Args:
        path: The file.
        hosts: Number of a node to position of its host, from :class:`Network`.
        limit: Most bytes of the file.

    Returns:
        The messages, their class the priority group; and notes.

    Raises:
        InputError: With file and line.
    """
    found = lines(path, limit)
    found[0].expect(1, "the number of flows")
    count = found[0].integer(0, "number of flows", 0, MAX_MESSAGES)
    messages = [_flow(line, hosts) for line in rows(found, count, 1, "flows", _FLOW)]
    notes = []
    if len(found) > count + 1:
        notes.append(f"{path}: {len(found) - count - 1} lines after the {count} flows that line 1 announces were not read")
    return messages, notes


def _flow(line: Line, hosts: dict[int, int]) -> Message:
    line.expect(6, _FLOW)
    ends = [line.integer(index, name) for index, name in enumerate(("source", "destination"))]
    for end, name in zip(ends, ("source", "destination"), strict=True):
        if end not in hosts:
            raise line.error(f"{name} is {end}", "the number of a node of the topology that is no switch")
    if ends[0] == ends[1]:
        raise line.error(f"goes from {ends[0]} to itself", "two hosts")
    group = line.integer(2, "priority group", 0, 6)
    line.integer(3, "port", 0, 65_535)
    size = line.integer(4, "bytes", 1, 1 << 40)
    start = line.time(5, "start", PICOSECONDS)
    source, destination = (hosts[end] for end in ends)
    return Message(source, destination, size, start, group, protected=POLICY, bound=POLICY, group="flow")


__all__ = ["Network", "read_flows", "read_topology"]
