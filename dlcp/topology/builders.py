"""Networks of regular shape, made from a few numbers.

Each is a section like any other: its fields are the keys of a file's ``[generate]`` table, the options of ``dlcp topology make``,
and the arguments in Python; :meth:`Shape.build` gives the topology.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from dlcp.schema import names, refuse, section, setting
from dlcp.schema_kinds import Integer, Number, listing, shown, suggestion
from dlcp.topology.description import DELAY, RATE, Host, Link, Switch, Topology
from dlcp.units import Auto, Buffer, Delay, Rate, Room, Table


@dataclass(frozen=True)
class Parts:
    """What a shape consists of, in the order of the description."""

    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]


@section
class Shape:
    """What all shapes have in common."""

    kind: ClassVar[str] = ""

    rate: Rate = setting(RATE, default=Rate.parse("10 Gbit/s"), doc="Rate of the links of hosts.")
    delay: Delay = setting(DELAY, default=Delay.parse("1 us"), doc="Propagation delay of every link.")
    buffer: Buffer = setting(Room(), default=Buffer(100, "packets"), doc="Room of every queue.")
    loss: float = setting(Number(0, 1), default=0.0, doc="Probability that a link loses a packet.")
    mtu: int = setting(Integer(576, 65_535, "bytes"), default=1500, doc="Largest IP packet.")
    ranks_per_host: int = setting(Integer(0, 64), default=1, doc="Ranks on each host, numbered host by host.")

    def parts(self) -> Parts:
        """Returns the hosts, switches and links."""
        raise NotImplementedError

    def build(self, name: str = "", **fields: Any) -> Topology:
        """Returns the topology; ``fields`` are further ones of :class:`Topology`, such as ``subnet``."""
        parts = self.parts()
        return Topology(name=name or self.kind, hosts=parts.hosts, switches=parts.switches, links=parts.links, **fields)

    def _hosts(self, count: int) -> tuple[Host, ...]:
        each = self.ranks_per_host
        return tuple(Host(name=f"h{index}", ranks=tuple(range(each * index, each * index + each))) for index in range(count))

    def _link(self, a: str, b: str, rate: Rate | None = None, parallel: bool = False) -> Link:
        rate = self.rate if rate is None else rate
        return Link(a=a, b=b, rate=rate, delay=self.delay, buffer=self.buffer, loss=self.loss, mtu=self.mtu, parallel=parallel)


@section
class Star(Shape):
    """Hosts around one switch."""

    kind: ClassVar[str] = "star"

    hosts: int = setting(Integer(1, 4096), default=4, doc="Number of hosts.")

    def parts(self) -> Parts:
        hosts = self._hosts(self.hosts)
        return Parts(hosts, (Switch(name="s0"),), tuple(self._link(host.name, "s0") for host in hosts))


@section
class Dumbbell(Shape):
    """Two switches with hosts on either side of one link."""

    kind: ClassVar[str] = "dumbbell"

    left: int = setting(Integer(1, 4096), default=2, doc="Hosts on the left, which are numbered first.")
    right: int = setting(Integer(1, 4096), default=2, doc="Hosts on the right.")
    bottleneck: str | Rate = setting(
        Auto(RATE), default="auto", doc="Rate of the link in the middle; auto is that of the hosts' links."
    )

    def parts(self) -> Parts:
        hosts = self._hosts(self.left + self.right)
        ends = ["left"] * self.left + ["right"] * self.right
        middle = self._link("left", "right", self.rate if isinstance(self.bottleneck, str) else self.bottleneck)
        links = tuple(self._link(host.name, end) for host, end in zip(hosts, ends, strict=True))
        return Parts(hosts, (Switch(name="left"), Switch(name="right")), (*links, middle))


@section
class LeafSpine(Shape):
    """Leaf switches with hosts, every one of them linked to every spine switch (a folded Clos network of two tiers)."""

    kind: ClassVar[str] = "leaf-spine"

    leaves: int = setting(Integer(1, 1024), default=4, doc="Number of leaf switches.")
    spines: int = setting(Integer(1, 1024), default=2, doc="Number of spine switches.")
    hosts_per_leaf: int = setting(Integer(1, 1024), default=4, doc="Hosts on each leaf.")
    uplinks: int = setting(Integer(1, 64), default=1, doc="Links from each leaf to each spine.")
    oversubscription: float = setting(
        Number(0, 1000, above=True),
        default=1.0,
        doc="What the hosts of a leaf send in all, over what its links to the spines carry. It sets the rate of those links.",
    )
    uplink_rate: str | Rate = setting(
        Auto(RATE),
        default="auto",
        doc="Rate of each link to a spine, in place of oversubscription, which then has to be left out.",
    )

    def check(self) -> None:
        if not isinstance(self.uplink_rate, str) and self.oversubscription != 1:
            raise refuse("uplink_rate", "is given besides oversubscription", "one of the two")
        if self.leaves * self.hosts_per_leaf > 65_536:
            raise refuse("hosts_per_leaf", f"makes {self.leaves * self.hosts_per_leaf} hosts", "at most 65536 hosts in all")
        RATE.parse(self.rate_up(), "oversubscription")

    def rate_up(self) -> Rate:
        """Returns the rate of each link between a leaf and a spine, to the next whole bit/s."""
        if not isinstance(self.uplink_rate, str):
            return self.uplink_rate
        return Rate(round(self.hosts_per_leaf * self.rate / (self.spines * self.uplinks * self.oversubscription)))

    def parts(self) -> Parts:
        hosts = self._hosts(self.leaves * self.hosts_per_leaf)
        leaves = [f"leaf{index}" for index in range(self.leaves)]
        spines = [f"spine{index}" for index in range(self.spines)]
        up = self.rate_up()
        links = [self._link(host.name, leaves[index // self.hosts_per_leaf]) for index, host in enumerate(hosts)]
        links += [
            self._link(leaf, spine, up, parallel=number > 0)
            for leaf in leaves
            for spine in spines
            for number in range(self.uplinks)
        ]
        return Parts(hosts, tuple(Switch(name=name) for name in (*leaves, *spines)), tuple(links))


@section
class FatTree(Shape):
    """The fat tree of Al-Fares et al. (SIGCOMM 2008, section 2.2) from switches of k ports.

    k pods of k/2 edge and k/2 aggregation switches each, (k/2)² core switches, and k/2 hosts on each edge switch: k³/4 hosts and
    5k²/4 switches, all links alike.
    """

    kind: ClassVar[str] = "fat-tree"

    k: int = setting(Integer(2, 64), default=4, doc="Ports of a switch, an even number.")
    hosts_per_edge: str | int = setting(
        Auto(Integer(1, 1024)), default="auto", doc="Hosts on each edge switch; auto is k/2, more are oversubscribed."
    )

    def check(self) -> None:
        if self.k % 2:
            raise refuse("k", f"{self.k} is odd", "an even number")
        if self.k * self.k // 2 * self._each() > 65_536:
            raise refuse("hosts_per_edge", f"makes {self.k * self.k // 2 * self._each()} hosts", "at most 65536 hosts in all")

    def _each(self) -> int:
        return self.k // 2 if isinstance(self.hosts_per_edge, str) else self.hosts_per_edge

    def parts(self) -> Parts:
        half = self.k // 2
        each = self._each()
        hosts = self._hosts(self.k * half * each)
        edges = [[f"edge{pod}-{index}" for index in range(half)] for pod in range(self.k)]
        aggregations = [[f"agg{pod}-{index}" for index in range(half)] for pod in range(self.k)]
        cores = [f"core{index}" for index in range(half * half)]
        links = [self._link(host.name, edges[index // each // half][index // each % half]) for index, host in enumerate(hosts)]
        links += [self._link(*pair) for pair in self._wires(edges, aggregations, cores)]
        switches = [name for tier in (*edges, *aggregations) for name in tier] + cores
        return Parts(hosts, tuple(Switch(name=name) for name in switches), tuple(links))

    def _wires(self, edges: list[list[str]], aggregations: list[list[str]], cores: list[str]) -> Iterator[tuple[str, str]]:
        half = self.k // 2
        for pod in range(self.k):
            for edge in edges[pod]:
                for aggregation in aggregations[pod]:
                    yield edge, aggregation
        for pod in range(self.k):
            for index, aggregation in enumerate(aggregations[pod]):
                for core in cores[index * half : (index + 1) * half]:
                    yield aggregation, core


SHAPES: Final[Mapping[str, type[Shape]]] = {shape.kind: shape for shape in (Star, Dumbbell, LeafSpine, FatTree)}
"""Kind to section."""


def shape(mapping: object, key: str = "generate") -> Shape:
    """Makes a shape of a mapping with its ``kind`` and its fields.

    Raises:
        ConfigError: There is no such kind, or a wrong key or value.
    """
    kinds = listing(f'"{kind}"' for kind in SHAPES)
    if not isinstance(mapping, Mapping):
        raise refuse(key, f"{shown(mapping)} is not a table", f"a table with a kind, one of {kinds}")
    fields = dict(mapping)
    kind = fields.pop("kind", None)
    if kind is None:
        raise refuse(f"{key}.kind", "missing", kinds)
    if not isinstance(kind, str) or kind not in SHAPES:
        near = suggestion(str(kind), {known: known for known in SHAPES})
        raise refuse(f"{key}.kind", f"{shown(kind)} is not one of them{near}", kinds)
    made: Shape = Table(SHAPES[kind]).parse(fields, key)
    return made


def fields_of(kind: str) -> list[str]:
    """Returns the names of the fields of a kind."""
    return names(SHAPES[kind])


__all__ = ["SHAPES", "Dumbbell", "FatTree", "LeafSpine", "Parts", "Shape", "Star", "fields_of", "shape"]
