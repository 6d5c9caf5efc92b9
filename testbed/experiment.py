"""An experiment: which network, which training, which candidates, what else is going on, and how often.

One TOML file.  Everything in it, and everything that it refers to, is checked before anything is built.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from dlcp.errors import ConfigError
from dlcp.policy import Policy
from dlcp.schema import Document, read_toml, refuse, required, section, setting
from dlcp.schema_kinds import Choice, Either, Flag, Integer, Items, Kind, Number, Text, join, refused, suggestion
from dlcp.topology import Topology
from dlcp.topology.description import NAME, RATE
from dlcp.units import Auto, Delay, Quantity, Rate, Table

TARGETS: Final = ("softswitch", "bmv2", "kernel", "bridge")
"""What the switches are: this project's P4 target, BMv2, the Linux kernel's queues with a classifier, plain FIFO bridges."""
COMMS: Final = ("gloo", "gloo-fp16", "powersgd", "postlocalsgd", "dlcp", "pipelined", "ds-sync")
CONGESTION: Final = ("cubic", "bbr", "reno", "dctcp")
_TIME: Final = Quantity(Delay, "0 s", "3600 s")
_PATH: Final = Text(r".{0,4096}", "the path of a file")


class Values(dict[str, Any]):
    """A table as it stands in a file; hashable, as the descriptions that hold it are, and so not to be changed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(json.dumps(self, sort_keys=True, default=str))


NOTHING: Final = Values()


@dataclass(frozen=True)
class Keys(Kind):
    """A table whose keys are checked later, by the description that it changes."""

    @property
    def accepted(self) -> str:
        return "a table"

    def parse(self, value: object, key: str) -> Values:
        if not isinstance(value, Mapping):
            raise refused(key, value, "is not a table", self.accepted)
        return Values(copy.deepcopy(dict(value)))

    def dump(self, value: Values) -> dict[str, Any]:
        return copy.deepcopy(dict(value))


@section
class Training:
    """What is trained, the same for all candidates."""

    task: str = setting(Choice(("digits", "charlm")), default="digits", doc="What is learnt; see examples/train.py.")
    width: int = setting(Integer(1, 65_536), default=32, doc="Width of the model; its bytes grow with the square, about.")
    batch_size: int = setting(Integer(1, 65_536), default=16, doc="Samples for each rank and step.")
    epochs: int = setting(Integer(1, 100_000), default=4, doc="Passes over the data.")
    lr: float = setting(Number(0, 100, above=True), default=0.05, doc="Learning rate.")
    algorithm: str = setting(Choice(("sharded", "ring")), default="sharded", doc="How dlcp reduces; gloo has a ring of its own.")
    bucket_mb: float = setting(Number(0, 1024, "MB", above=True), default=1.0, doc="Size of DDP's buckets.")
    accuracy: float = setting(Number(0, 1), default=0.9, doc="Accuracy on the test data whose first reaching is timed.")
    eval_every: int = setting(Integer(1, 100_000), default=5, doc="Steps between two looks at the test data; they are not timed.")


@section
class Candidate:
    """One way to carry gradients, to be compared with the others."""

    name: str = required(NAME, doc="What it is called in tables.")
    comm: str = required(Choice(COMMS), doc="How gradients travel.")
    baseline: bool = setting(Flag(), default=False, doc="Whether people use it today: the best of these is the yardstick.")
    congestion: str = setting(Choice(CONGESTION), default="cubic", doc="TCP's congestion control, for what travels over TCP.")
    target: str = setting(Auto(Choice(TARGETS)), default="auto", doc="What the switches are; auto is the experiment's.")
    algorithm: str = setting(Auto(Choice(("sharded", "ring"))), default="auto", doc="How dlcp reduces; auto is the training's.")
    over: str = setting(
        Choice(("gloo", "dlcp")), default="gloo", doc="What carries the exchanges of gloo, powersgd, postlocalsgd, ds-sync."
    )
    schedule: str = setting(
        Choice(("base-k", "digits", "random", "topology")), default="base-k", doc="For ds-sync: who averages with whom."
    )
    policy: Mapping[str, Any] = setting(Keys(), default=NOTHING, doc="Keys of the policy that differ.")


@section
class Traffic:
    """What shares the network with the job."""

    name: str = required(NAME, doc="What it is called in reports.")
    kind: str = required(
        Choice(("tcp", "udp", "on-off", "incast")),
        doc="tcp: flows that take what they get; udp: a constant rate; on-off: udp in bursts; incast: all senders answer at "
        "once, time and again.",
    )
    sources: tuple[str, ...] = required(Items(NAME, 1, 1024), doc="Sending hosts.")
    sinks: tuple[str, ...] = required(Items(NAME, 1, 1024), doc="Receiving hosts; flow i goes from source i to sink i, cyclic.")
    flows: int = setting(Integer(1, 1024), default=1, doc="Flows, over all sources and sinks.")
    rate: str | Rate = setting(Auto(RATE), default="auto", doc="Of each flow while it sends; auto, for tcp: what it gets.")
    congestion: str = setting(Choice(CONGESTION), default="cubic", doc="TCP's congestion control.")
    on: Delay = setting(_TIME, default=Delay(50_000_000_000), doc="Length of a burst, for on-off.")
    off: Delay = setting(_TIME, default=Delay(50_000_000_000), doc="Pause between two, for on-off; period, for incast.")
    burst_packets: int = setting(Integer(1, 100_000), default=32, doc="Packets that each sender answers with, for incast.")
    start: Delay = setting(_TIME, default=Delay(0), doc="When it begins, from the first training step on.")
    stop: str | Delay = setting(Auto(_TIME), default="auto", doc="When it ends; auto: with the run.")
    dscp: int = setting(Integer(0, 63), default=0, doc="DSCP of its packets.")


@section
class Event:
    """Something that happens to the network or the job."""

    at: Delay = required(_TIME, doc="When, from the first training step on.")
    kind: str = required(
        Choice(("link-down", "link-up", "link-loss", "link-rate", "switch-restart", "rank-kill")), doc="What happens."
    )
    link: tuple[str, ...] = setting(Items(NAME, 0, 2), default=(), doc="The two ends of the link that it happens to.")
    switch: str = setting(Text(r"[A-Za-z0-9_.-]{0,32}", "the name of a switch"), default="", doc="The switch.")
    rank: int = setting(Integer(-1, 65_534), default=-1, doc="The rank.")
    loss: float = setting(Number(0, 1), default=0.0, doc="For link-loss: the probability from then on.")
    rate: str | Rate = setting(Auto(RATE), default="auto", doc="For link-rate: the rate from then on; auto is the topology's.")

    def check(self) -> None:
        if self.kind.startswith("link-") and len(self.link) != 2:
            raise refuse("link", f"{list(self.link)} with kind = {self.kind!r}", "the names of two nodes that a link joins")
        if self.kind == "switch-restart" and not self.switch:
            raise refuse("switch", "missing", "the name of a switch")
        if self.kind == "rank-kill" and self.rank < 0:
            raise refuse("rank", "missing", "a rank")


@section
class Experiment(Document):
    """The whole file."""

    title: ClassVar[str] = "DLCP testbed experiment."

    name: str = required(NAME, doc="Its name.")
    summary: str = setting(Text(r"[^\n]{0,400}", "a line"), default="", doc="What it shows.")
    topology: str | Mapping[str, Any] = required(Either((_PATH, Keys())), doc="The network: a path from here, or a table.")
    policy: str | Mapping[str, Any] = setting(Either((_PATH, Keys())), default=NOTHING, doc="The policy: likewise.")
    target: str = setting(Choice(TARGETS), default="softswitch", doc="What the switches are.")
    jobs: int = setting(
        Integer(1, 64),
        default=1,
        doc="Copies of the job that run at once; the ranks of the topology are dealt to them in turn, and the first is reported.",
    )
    repeats: int = setting(Integer(1, 1000), default=5, doc="Runs of every candidate; candidates take turns.")
    seed: int = setting(Integer(0, 2**31 - 1), default=1, doc="Seed of the first repeat; later ones count up.")
    timeout: Delay = setting(Quantity(Delay, "1 s", "86400 s"), default=Delay(300_000_000_000_000), doc="Longest run.")
    training: Training = setting(Table(Training), default=Training(), doc="What is trained.")
    candidates: tuple[Candidate, ...] = required(Items(Table(Candidate), 1, 64), doc="What is compared.")
    traffic: tuple[Traffic, ...] = setting(Items(Table(Traffic), 0, 64), default=(), doc="What else is on the network.")
    events: tuple[Event, ...] = setting(Items(Table(Event), 0, 1024), default=(), doc="What happens.")

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Reads and checks a file and all that it refers to.

        Raises:
            ConfigError: A file cannot be read, or something in it is wrong.
        """
        return cls.from_dict(read_toml(path), str(path), Path(path).parent)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], source: str = "<dict>", folder: Path | None = None) -> Self:
        """Checks plain values like those of a file.

        Args:
            mapping: The values.
            source: Stands in the errors in place of a file.
            folder: Where relative paths begin; None for the current folder.

        Raises:
            ConfigError: Something is wrong.
        """
        try:
            made: Self = Table(cls).parse(mapping, "")
        except ConfigError as error:
            raise ConfigError(source, error.key or "(top level)", error.problem, error.accepted) from None
        object.__setattr__(made, "_folder", folder if folder is not None else Path())
        object.__setattr__(made, "_source", source)
        made._check_references(source)
        return made

    @cached_property
    def network(self) -> Topology:
        """The topology."""
        if isinstance(self.topology, str):
            return Topology.from_toml(self._path(self.topology))
        try:
            return Topology.from_dict(self.topology, self.source)
        except ConfigError as error:
            raise self._within("topology", error) from None

    def policy_of(self, candidate: Candidate) -> Policy:
        """Returns the experiment's policy with what the candidate changes.

        Raises:
            ConfigError: A key is wrong.
        """
        base = read_toml(self._path(self.policy)) if isinstance(self.policy, str) else self.policy
        try:
            return Policy.from_dict(merged(base, candidate.policy), self.source)
        except ConfigError as error:
            if _stands_in(error.key, candidate.policy) or not _stands_in(error.key, base):
                raise self._within(f"candidates[{self.candidates.index(candidate)}].policy", error) from None
            if isinstance(self.policy, str):
                raise ConfigError(self._path(self.policy), error.key, error.problem, error.accepted) from None
            raise self._within("policy", error) from None

    def target_of(self, candidate: Candidate) -> str:
        """Returns what the switches are for a candidate."""
        return self.target if candidate.target == "auto" else candidate.target

    def algorithm_of(self, candidate: Candidate) -> str:
        """Returns how dlcp reduces for a candidate."""
        return self.training.algorithm if candidate.algorithm == "auto" else candidate.algorithm

    def alone(self) -> Self:
        """Returns the same experiment without references to files."""
        plain = self.to_dict() | {"topology": self.network.to_dict()}
        if isinstance(self.policy, str):
            plain["policy"] = read_toml(self._path(self.policy))
        return self.from_dict(plain, self.source)

    @property
    def source(self) -> str:
        """The file that it comes from, or what stands for it in errors."""
        source: str = getattr(self, "_source", self.name)
        return source

    def _within(self, key: str, error: ConfigError) -> ConfigError:
        """Returns an error of a table in this file, with the key that it has here."""
        return ConfigError(self.source, join(key, error.key), error.problem, error.accepted)

    def seeds(self) -> tuple[int, ...]:
        """Returns the seed of every repeat."""
        return tuple(self.seed + repeat for repeat in range(self.repeats))

    def _path(self, name: str) -> Path:
        folder: Path = getattr(self, "_folder", Path())
        return folder / name

    def _check_references(self, source: str) -> None:
        try:
            network = self.network
            if network.world < 2:
                raise refuse("topology", f"{network.world} ranks", "a network with at least two ranks")
            if network.world % self.jobs or network.world < 2 * self.jobs:
                raise refuse(
                    "jobs", f"{self.jobs} with {network.world} ranks", "a number that leaves each two ranks or more, equally"
                )
            _check_unique("candidates", [candidate.name for candidate in self.candidates])
            _check_unique("traffic", [traffic.name for traffic in self.traffic])
            for candidate in self.candidates:
                self.policy_of(candidate)
            _check_traffic(self.traffic, network)
            _check_events(self.events, network)
        except ConfigError as error:
            if error.source != "<python>":
                raise
            raise ConfigError(source, error.key, error.problem, error.accepted) from None


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested tables with some of their keys changed; neither argument is."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(value, Mapping) and isinstance(inner, Mapping) else copy.deepcopy(value)
    return result


def _stands_in(key: str, table: Mapping[str, Any]) -> bool:
    """Tells whether a table has a dotted key."""
    found: Any = table
    for word in key.split("."):
        if not isinstance(found, Mapping) or word not in found:
            return False
        found = found[word]
    return True


def _check_unique(where: str, found: Iterable[str]) -> None:
    seen: dict[str, int] = {}
    for index, name in enumerate(found):
        if name in seen:
            raise refuse(f"{where}[{index}].name", f"{name!r} is also the name of {where}[{seen[name]}]", "a name of its own")
        seen[name] = index


def _check_traffic(traffic: Iterable[Traffic], network: Topology) -> None:
    hosts = {host.name: host.name for host in network.hosts}
    for index, item in enumerate(traffic):
        where = f"traffic[{index}]"
        for key, given in (("sources", item.sources), ("sinks", item.sinks)):
            for position, host in enumerate(given):
                if host not in hosts:
                    problem = f"there is no host {host!r}{suggestion(host, hosts)}"
                    raise refuse(f"{where}.{key}[{position}]", problem, "the name of a host of the topology")
        for flow in range(item.flows):
            source, sink = item.sources[flow % len(item.sources)], item.sinks[flow % len(item.sinks)]
            if source == sink:
                raise refuse(f"{where}.sinks", f"flow {flow} would go from {source} to itself", "another host")
        if item.kind in ("udp", "on-off") and item.rate == "auto":
            raise refuse(f"{where}.rate", f"auto with kind = {item.kind!r}", RATE.accepted)
        if not isinstance(item.stop, str) and item.stop <= item.start:
            raise refuse(f"{where}.stop", f"{item.stop} is not after start = {item.start}", "a later time, or auto")


def _check_events(events: Iterable[Event], network: Topology) -> None:
    nodes = {name: name for name in (*(host.name for host in network.hosts), *(switch.name for switch in network.switches))}
    for index, event in enumerate(events):
        where = f"events[{index}]"
        for position, node in enumerate(event.link):
            if node not in nodes:
                problem = f"there is no node {node!r}{suggestion(node, nodes)}"
                raise refuse(join(where, f"link[{position}]"), problem, "the name of a host or a switch of the topology")
        if event.link and not network.links_between(*event.link):
            raise refuse(join(where, "link"), f"no link joins {event.link[0]} and {event.link[1]}", "the two ends of a link")
        if event.switch and event.switch not in {switch.name for switch in network.switches}:
            raise refuse(join(where, "switch"), f"there is no switch {event.switch!r}", "the name of a switch of the topology")
        if event.rank >= network.world:
            raise refuse(join(where, "rank"), f"there is no rank {event.rank}", f"0 to {network.world - 1}")


__all__ = ["COMMS", "CONGESTION", "TARGETS", "Candidate", "Event", "Experiment", "Traffic", "Training", "merged"]
