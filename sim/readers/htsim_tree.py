"""Fat trees of htsim (``.topo``): a header of nodes, tiers and pod size, and a block of settings for every tier.

Grammar and wiring are those of csg-htsim's ``fat_tree_topology.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dlcp.schema_kinds import suggestion
from dlcp.topology import Host, Link, Switch, Topology
from dlcp.units import Buffer, Delay, Rate
from sim.readers.text import LIMIT, InputError, Line, lines, shown

MAX_LINKS: Final = 200_000
_HEADER: Final = {"nodes": 65_000, "tiers": 3, "podsize": 65_000}
_SETTINGS: Final = {
    "downlink_speed_gbps": (1, 100_000),
    "radix_down": (1, 65_000),
    "radix_up": (1, 65_000),
    "queue_down": (1, 1 << 40),
    "queue_up": (1, 1 << 40),
    "oversubscribed": (1, 65_000),
    "bundle": (1, 65_000),
    "switch_latency_ns": (0, 10**9),
    "downlink_latency_ns": (1, 10**9),
}
"""Setting of a tier to the range of its value."""
_NAMES: Final = {
    "downlink_speed_gbps": "Downlink_speed_Gbps",
    "downlink_latency_ns": "Downlink_Latency_ns",
    "radix_down": "Radix_Down",
    "radix_up": "Radix_Up",
}


@dataclass
class _Tier:
    """The settings of a tier, and the line where it begins."""

    line: Line
    values: dict[str, int] = field(default_factory=dict)

    def get(self, name: str, default: int) -> int:
        return self.values.get(name, default)

    def need(self, name: str) -> int:
        if name not in self.values:
            raise self.line.error(f"the tier has no {_NAMES[name]}", f"{_NAMES[name]} and a number")
        return self.values[name]


@dataclass(frozen=True)
class _Shape:
    """How many switches and links there are."""

    pods: int
    tors: int
    aggs: int
    cores: int


def read_tree(
    path: str | Path, *, buffer: Buffer | None = None, mtu: int = 1500, limit: int = LIMIT
) -> tuple[Topology, list[str]]:
    """Reads a tree, wired as in htsim; hosts ``h0``, ..., switches ``tor0``, ``agg0``, ``core0``, ...

    Half of a switch's latency is added to each of its links, so that a packet that crosses it takes all of it.

    Args:
        path: The file.
        buffer: Room of the queues where the file does not say.
        mtu: Of every link.
        limit: Most bytes of the file.

    Returns:
        The topology, a rank on every host; and notes.

    Raises:
        InputError: With file and line.
    """
    found = lines(path, limit)
    header, tiers = _parse(found)
    for name in _HEADER:
        if name not in header:
            raise found[0].error(f"the header has no {name.capitalize()}", f"{name.capitalize()} and a number")
    count = header["tiers"]
    if count < 2:
        raise found[0].error(f"{count} tiers", "2 or 3 tiers")
    for number in range(count):
        if number not in tiers:
            raise found[-1].error(f"the file ends without tier {number}", f"tiers 0 to {count - 1}")
    for number, tier in tiers.items():
        if number >= count:
            raise tier.line.error(f"tier {number}", f"tiers 0 to {count - 1}, as Tiers in the header says")
    chosen = [tiers[number] for number in range(count)]
    shape = _shape(found[0], header, chosen)
    return _build(path, header["nodes"], chosen, shape, buffer or Buffer(256 << 10, "bytes"), mtu)


def _parse(found: list[Line]) -> tuple[dict[str, int], dict[int, _Tier]]:
    header: dict[str, int] = {}
    tiers: dict[int, _Tier] = {}
    current: _Tier | None = None
    for line in found:
        name = line.words[0].lower()
        line.expect(2, "a setting and a whole number")
        if name == "tier":
            number = line.integer(1, "tier", 0, 2)
            if number in tiers:
                raise line.error(f"tier {number} for the second time", "each tier once")
            current = tiers[number] = _Tier(line)
            continue
        known: dict[str, int] | dict[str, tuple[int, int]] = _HEADER if current is None else _SETTINGS
        if name not in known:
            near = suggestion(name, {word: word for word in known})
            raise line.error(f"the unknown setting {shown(line.words[0])}{near}", ", ".join(known))
        values = header if current is None else current.values
        if name in values:
            raise line.error(f"{line.words[0]} for the second time", "each setting once in a tier")
        low, high = (1, _HEADER[name]) if current is None else _SETTINGS[name]
        values[name] = line.integer(1, line.words[0], low, high)
    return header, tiers


def _shape(line: Line, header: dict[str, int], tiers: list[_Tier]) -> _Shape:
    """Returns the counts, and refuses what does not go together, as htsim does."""
    nodes, size = header["nodes"], header["podsize"]
    speeds = [tier.need("downlink_speed_gbps") for tier in tiers]
    radix = [tier.need("radix_down") for tier in tiers]
    for tier in tiers:
        tier.need("downlink_latency_ns")
    if tiers[0].get("bundle", 1) != 1:
        raise tiers[0].line.error("hosts with several links (Bundle)", "no Bundle in tier 0")
    for number, tier in enumerate(tiers[1:], 1):
        for low, name in ((tier, "radix_down"), (tiers[number - 1], "radix_up")):
            if low.need(name) % tier.get("bundle", 1):
                raise low.line.error(f"{_NAMES[name]} {low.need(name)}", f"a multiple of the Bundle of tier {number}")
    if len(tiers) == 2 and size != nodes:
        raise line.error(f"Podsize {size} with 2 tiers and {nodes} nodes", f"Podsize {nodes}")
    pods, rest = divmod(nodes, size)
    if rest or size % radix[0]:
        raise line.error(f"{nodes} nodes in pods of {size}, {radix[0]} at a switch", "multiples of each other")
    tors = nodes // radix[0]
    _whole_radix(tiers[0], speeds[0], speeds[1], "tier 0")
    aggs, rest = divmod(tors * tiers[0].need("radix_up"), radix[1])
    if rest or not aggs or aggs % pods:
        raise tiers[1].line.error(
            f"{tors} switches of tier 0 with {tiers[0].need('radix_up')} uplinks, Radix_Down {radix[1]}",
            f"a Radix_Down that fills equally many switches in each of {pods} pods",
        )
    if aggs // pods * tiers[1].get("bundle", 1) != tiers[0].need("radix_up"):
        problem = f"{aggs // pods} switches in a pod, with a Bundle of {tiers[1].get('bundle', 1)}"
        raise tiers[1].line.error(problem, f"{tiers[0].need('radix_up')} links to each switch of tier 0, its Radix_Up")
    cores = 0
    if len(tiers) == 3:
        _whole_radix(tiers[1], speeds[1], speeds[2], "tier 1")
        cores, rest = divmod(aggs * tiers[1].need("radix_up"), radix[2])
        each = aggs // pods
        if rest or not cores or cores % each or cores // each * tiers[2].get("bundle", 1) != tiers[1].need("radix_up"):
            problem = f"{aggs} switches of tier 1 with {tiers[1].need('radix_up')} uplinks, Radix_Down {radix[2]}"
            raise tiers[2].line.error(problem, f"a Radix_Down, and a Bundle, for a multiple of {each} switches")
    links = nodes + tors * tiers[0].need("radix_up") + (aggs * tiers[1].need("radix_up") if cores else 0)
    if links > MAX_LINKS:
        raise line.error(f"makes {links} links", f"up to {MAX_LINKS}")
    return _Shape(pods, tors, aggs, cores)


def _whole_radix(tier: _Tier, down: int, up: int, name: str) -> None:
    """Refuses an oversubscription that contradicts the ports and their speeds."""
    below, above = tier.need("radix_down") * down, tier.need("radix_up") * up
    if below != above * tier.get("oversubscribed", 1):
        problem = f"{name} has {below} Gbit/s down, {above} up, and Oversubscribed {tier.get('oversubscribed', 1)}"
        raise tier.line.error(problem, "an Oversubscribed that is the quotient")


def _build(
    path: str | Path, nodes: int, tiers: list[_Tier], shape: _Shape, buffer: Buffer, mtu: int
) -> tuple[Topology, list[str]]:
    notes: list[str] = []
    latency = [1000 * tier.get("switch_latency_ns", 0) // 2 for tier in tiers]
    made: list[Link] = []

    def rooms(level: int) -> Buffer:
        sizes = [tiers[level].get("queue_down", 0), tiers[level - 1].get("queue_up", 0) if level else 0]
        if all(sizes) and sizes[0] != sizes[1]:
            notes.append(f"links of tier {level}: queues of {sizes[0]} bytes down and {sizes[1]} up; both get the larger")
        return Buffer(max(sizes), "bytes") if any(sizes) else buffer

    room = [rooms(level) for level in range(len(tiers))]

    def join(level: int, low: str, high: str) -> None:
        halves = latency[level] + (latency[level - 1] if level else 0)
        for copy in range(tiers[level].get("bundle", 1)):
            made.append(
                Link(
                    a=low,
                    b=high,
                    rate=Rate(tiers[level].need("downlink_speed_gbps") * 10**9),
                    delay=Delay(1000 * tiers[level].need("downlink_latency_ns") + halves),
                    buffer=room[level],
                    mtu=mtu,
                    parallel=copy > 0,
                )
            )

    for node in range(nodes):
        join(0, f"h{node}", f"tor{node // tiers[0].need('radix_down')}")
    in_pod, each = shape.tors // shape.pods, shape.aggs // shape.pods
    for tor in range(shape.tors):
        for agg in range(tor // in_pod * each, (tor // in_pod + 1) * each):
            join(1, f"tor{tor}", f"agg{agg}")
    for agg in range(shape.aggs if shape.cores else 0):
        for turn in range(shape.cores // each):
            join(2, f"agg{agg}", f"core{agg % each + each * turn}")
    kinds = (("tor", shape.tors), ("agg", shape.aggs), ("core", shape.cores))
    try:
        topology = Topology(
            name="htsim",
            hosts=tuple(Host(name=f"h{node}", ranks=(node,)) for node in range(nodes)),
            switches=tuple(Switch(name=f"{kind}{index}") for kind, count in kinds for index in range(count)),
            links=tuple(made),
        )
    except ValueError as error:
        raise InputError(path, "(file)", str(error), "a tree whose parts fit") from None
    return topology, notes


__all__ = ["read_tree"]
