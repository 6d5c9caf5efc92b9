"""The topology: hosts, switches, the links between them, and which ranks run where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from dlcp.schema import refuse, required, section, setting
from dlcp.schema_kinds import Choice, Flag, Integer, Items, Number, Text, suggestion
from dlcp.schema_lines import ListDocument
from dlcp.topology.addresses import (
    AUTO,
    MAC,
    Address,
    Endpoint,
    Network,
    device_ids,
    host_addresses,
    host_macs,
)
from dlcp.topology.graph import Arc, Graph
from dlcp.units import Auto, Buffer, Delay, Quantity, Rate, Room, Table

if TYPE_CHECKING:
    from dlcp.topology.routes import Routes

NAME: Final = Text(
    r"[A-Za-z][A-Za-z0-9_.-]{0,31}", "a name that begins with a letter: up to 32 letters, digits, points, hyphens and underscores"
)
RATE: Final = Quantity(Rate, "1 kbit/s", "100 Tbit/s")
DELAY: Final = Quantity(Delay, "0 s", "1000 s")
MAX_RANKS: Final = 65_535
MAX_NODES: Final = 100_000
_PORT: Final = Auto(Integer(0, 65_535))


@section
class Host:
    """A machine that runs ranks, or only cross traffic."""

    name: str = required(NAME, doc="Its name.")
    ranks: tuple[int, ...] = setting(
        Items(Integer(0, MAX_RANKS - 1), 0, 1024), default=(), doc="The ranks that run on it; none is allowed."
    )
    ipv4: str = setting(Auto(Address()), default=AUTO, doc="Its address; auto takes the lowest free one of subnet.")
    mac: str = setting(Auto(MAC()), default=AUTO, doc="Its MAC address; auto is 02:00 and the four bytes of the IPv4 address.")
    nic: str | Rate = setting(
        Auto(RATE), default=AUTO, doc="Most that the host sends and receives in all; auto is as much as its links carry."
    )


@section
class Switch:
    """A switch."""

    name: str = required(NAME, doc="Its name.")
    device_id: str | int = setting(
        Auto(Integer(0, 2**64 - 1)), default=AUTO, doc="P4Runtime's device id; auto takes the lowest free one from 1."
    )
    target: str = setting(
        Choice(("any", "softswitch", "bmv2", "p4runtime", "linux", "bridge")),
        default="any",
        doc="What the switch is: this project's P4 target, BMv2's simple_switch_grpc, another P4Runtime server with v1model, the "
        "Linux kernel's queues without P4, or a plain bridge. any leaves it to whoever builds the network.",
    )
    grpc: str = setting(Endpoint(), default="", doc="Where its P4Runtime server listens; nothing if whoever builds it decides.")


@section
class Link:
    """A cable: what is said of it holds for either direction."""

    a: str = required(NAME, doc="The node at one end.")
    b: str = required(NAME, doc="The node at the other.")
    rate: Rate = required(RATE, doc="What it carries in each direction.")
    delay: Delay = setting(DELAY, default=Delay(0), doc="Propagation delay, one way.")
    buffer: Buffer = setting(Room(), default=Buffer(100, "packets"), doc="Room of the queue before it, at either end.")
    loss: float = setting(Number(0, 1), default=0.0, doc="Probability that it loses a packet, for each packet on its own.")
    mtu: int = setting(Integer(576, 65_535, "bytes"), default=1500, doc="Largest IP packet.")
    metric: int = setting(Integer(1, 65_535), default=1, doc="Cost of crossing it; packets take the paths of the lowest total.")
    a_port: str | int = setting(
        _PORT, default=AUTO, doc="Port at a; auto takes the lowest free one, from 0 on hosts, 1 on switches."
    )
    b_port: str | int = setting(_PORT, default=AUTO, doc="Port at b.")
    parallel: bool = setting(Flag(), default=False, doc="Says that another link before it joins the same nodes, on purpose.")


@section
class Topology(ListDocument):
    """The whole network.

    Everything that is computed from it (addresses, ports, routes) is computed once, when it is first asked for.
    """

    title: ClassVar[str] = "DLCP topology."

    name: str = setting(NAME, default="topology", doc="What the network is called.")
    subnet: str = setting(Network(), default="10.0.0.0/16", doc="Where the addresses come from that hosts do not give.")
    hosts: tuple[Host, ...] = required(Items(Table(Host), 1, MAX_NODES), doc="The hosts.")
    switches: tuple[Switch, ...] = setting(Items(Table(Switch), 0, MAX_NODES), default=(), doc="The switches.")
    links: tuple[Link, ...] = setting(Items(Table(Link), 0, 10 * MAX_NODES), default=(), doc="The links.")

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], source: str = "<dict>") -> Self:
        """Checks plain values like those of a file, its shorthands (``generate``, ``link_defaults``, ``override``) included.

        Raises:
            ConfigError: A wrong key, type or value.
        """
        from dlcp.topology.reader import read

        return read(cls, mapping, source)

    def check(self) -> None:
        """Refuses what the parts cannot see: names, ends, ranks, addresses and ports that clash, and hosts that are cut off."""
        _check_names(self.hosts, self.switches)
        _check_links(self.links, {name: name for name, _ in _named(self.hosts, self.switches)})
        _check_ranks(self.hosts)
        _ = (self.macs, self.device_ids, self.graph)  # computing them finds what clashes
        self._check_connected()

    def _check_connected(self) -> None:
        parted = self.graph.parted()
        if parted is None:
            return
        start, cut_off = parted
        alone = not self.graph.leaving(cut_off)
        problem = f"no link leads to {cut_off}" if alone else f"no path of switches leads from {start} to {cut_off}"
        raise refuse(f"{dict(_named(self.hosts, self.switches))[cut_off]}.name", problem, "a connected network")

    @cached_property
    def addresses(self) -> dict[str, str]:
        """IPv4 address of each host."""
        chosen = host_addresses([host.ipv4 for host in self.hosts], self.subnet)
        return dict(zip((host.name for host in self.hosts), chosen, strict=True))

    @cached_property
    def macs(self) -> dict[str, str]:
        """MAC address of each host."""
        chosen = host_macs([host.mac for host in self.hosts], list(self.addresses.values()))
        return dict(zip(self.addresses, chosen, strict=True))

    @cached_property
    def device_ids(self) -> dict[str, int]:
        """P4Runtime device id of each switch."""
        chosen = device_ids([switch.device_id for switch in self.switches], [switch.grpc for switch in self.switches])
        return dict(zip((switch.name for switch in self.switches), chosen, strict=True))

    @cached_property
    def nics(self) -> dict[str, Rate]:
        """What each host sends at most: its ``nic``, or the sum of its links, in bit/s."""
        sums = {host.name: 0 for host in self.hosts}
        for link in self.links:
            for end in (link.a, link.b):
                if end in sums:
                    sums[end] += int(link.rate)
        return {host.name: Rate(sums[host.name]) if isinstance(host.nic, str) else host.nic for host in self.hosts}

    @cached_property
    def graph(self) -> Graph:
        """Ports, and the two directions of every link."""
        hosts = (host.name for host in self.hosts)
        return Graph(hosts, (switch.name for switch in self.switches), self.links, self.nics)

    @cached_property
    def routes(self) -> Routes:
        """Shortest paths with every link up; ``Routes(topology, down=...)`` computes those without some of them."""
        from dlcp.topology.routes import Routes

        return Routes(self)

    @cached_property
    def places(self) -> tuple[str, ...]:
        """Name of the host of every rank."""
        return tuple(host for _, host in sorted((rank, host.name) for host in self.hosts for rank in host.ranks))

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.places)

    def rank_addresses(self) -> tuple[str, ...]:
        """Returns the IPv4 address of every rank's host."""
        return tuple(self.addresses[host] for host in self.places)

    def host(self, name: str) -> Host:
        """Returns the host of that name; KeyError if there is none."""
        return self._hosts[name]

    def switch(self, name: str) -> Switch:
        """Returns the switch of that name; KeyError if there is none."""
        return self._switches[name]

    def links_between(self, a: str, b: str) -> tuple[int, ...]:
        """Returns the positions of the links that join two nodes."""
        return tuple(arc.link for arc in self.graph.leaving(a) if arc.target == b)

    def link(self, arc: Arc) -> Link:
        """Returns the link of a direction."""
        return self.links[arc.link]

    @cached_property
    def _hosts(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    @cached_property
    def _switches(self) -> dict[str, Switch]:
        return {switch.name: switch for switch in self.switches}


def _named(hosts: Sequence[Host], switches: Sequence[Switch]) -> Iterator[tuple[str, str]]:
    """Yields the name of every node, and where it stands."""
    yield from ((host.name, f"hosts[{index}]") for index, host in enumerate(hosts))
    yield from ((switch.name, f"switches[{index}]") for index, switch in enumerate(switches))


def _check_names(hosts: Sequence[Host], switches: Sequence[Switch]) -> None:
    seen: dict[str, str] = {}
    for name, where in _named(hosts, switches):
        if name in seen:
            raise refuse(f"{where}.name", f"{name!r} is also the name of {seen[name]}", "a name of its own")
        seen[name] = where


def _check_links(links: Sequence[Link], known: Mapping[str, str]) -> None:
    joined: dict[frozenset[str], int] = {}
    for index, link in enumerate(links):
        where = f"links[{index}]"
        for end, node in (("a", link.a), ("b", link.b)):
            if node not in known:
                problem = f"there is no node {node!r}{suggestion(node, known)}"
                raise refuse(f"{where}.{end}", problem, "the name of a host or a switch")
        if link.a == link.b:
            raise refuse(f"{where}.b", f"{link.b!r} is joined to itself", "another node")
        pair = frozenset((link.a, link.b))
        if link.parallel != (pair in joined):
            if link.parallel:
                raise refuse(f"{where}.parallel", f"no link before it joins {link.a} and {link.b}", "false, or a link before it")
            problem = f"{link.a} and {link.b} are joined by links[{joined[pair]}] already"
            raise refuse(where, problem, "other nodes, or parallel = true")
        joined.setdefault(pair, index)


def _check_ranks(hosts: Sequence[Host]) -> None:
    seen: dict[int, str] = {}
    for where, rank in _rank_places(hosts):
        if rank in seen:
            raise refuse(where, f"rank {rank} stands at {seen[rank]} too", "every rank once")
        seen[rank] = where
    for rank in range(len(seen)):
        if rank not in seen:
            highest = max(seen)
            raise refuse(seen[highest], f"there is a rank {highest}, but no rank {rank}", "ranks from 0 without a gap")


def _rank_places(hosts: Sequence[Host]) -> Iterator[tuple[str, int]]:
    for index, host in enumerate(hosts):
        for position, rank in enumerate(host.ranks):
            yield f"hosts[{index}].ranks[{position}]", rank


__all__ = ["DELAY", "NAME", "RATE", "Host", "Link", "Switch", "Topology"]
