"""The scenario: what a run file says, and the simulation that it describes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

from dlcp.errors import ConfigError
from dlcp.policy import Policy
from dlcp.schema import Document, Record, refuse, required, section, setting
from dlcp.schema_kinds import Choice, Flag, Integer, Items, Number, Text
from dlcp.topology import Topology
from dlcp.units import Auto, Delay, Quantity, Rate, Size, Table
from dlcp.workload import Workload
from sim.changes import Change
from sim.flows import KINDS, SPRAYS, Transport
from sim.messages import Message
from sim.network import Buffers
from sim.simulation import Simulation
from sim.traffic import COLLECTIVES, Job, incast, permutation, ranks_of, training

_PATH: Final = Text(r"[^\x00-\x1f\x7f]{0,1000}", "a path, relative to the file that it stands in, or nothing")
_NODE: Final = Text(r"[A-Za-z][A-Za-z0-9_.-]{0,31}", "the name of a node")
_TIME: Final = Quantity(Delay, "0 s", "10000 s")
_SIZE: Final = Quantity(Size, "1 B", "1 TiB")


@section
class Carrier:
    """The transport, and how its packets go."""

    name: str = setting(
        Choice(tuple(KINDS)),
        default="dlcp",
        doc="dlcp; tcp (Reno with SACK), cubic, dctcp; ndp; or raw datagrams, of which nothing is sent again.",
    )
    spray: str = setting(
        Choice(("auto", *SPRAYS)),
        default="auto",
        doc="How packets spread over equal paths; auto is the policy's for dlcp, in turn for ndp, else by hash.",
    )
    initial_window: int = setting(Integer(1, 65_535, "packets"), default=10, doc="First window of TCP, DCTCP and NDP.")
    reordering: int = setting(
        Integer(1, 65_535, "packets"), default=3, doc="By how many packets TCP lets one be passed over before it counts as lost."
    )
    least_timeout: Delay = setting(_TIME, default=Delay.parse("1 ms"), doc="Shortest retransmission timeout of TCP.")
    host_times: float = setting(
        Number(0, 100, above=True),
        default=1.0,
        doc="Factor on every wait of DLCP's end hosts (feedback, stragglers, grace, probes). 1 is the product on ordinary hosts; "
        "0.01 suits links a hundred times as fast as those that it was made for.",
    )


@section
class Buffering:
    """Memory of the switches."""

    shared: bool = setting(Flag(), default=False, doc="All queues of a switch share its memory; else each has its own.")
    alpha: float = setting(
        Number(0, 1024, above=True), default=1.0, doc="What one port may hold of a shared memory, times what is left of it."
    )


@section
class Traffic:
    """What is sent."""

    kind: str = setting(
        Choice(("permutation", "incast", "training")),
        default="permutation",
        doc="Every host to one other; many to one; or a training job on the ranks of the topology.",
    )
    size: Size = setting(_SIZE, default=Size.parse("1 MB"), doc="Bytes of each message of permutation and incast.")
    fan_in: int = setting(Integer(1, 65_535), default=16, doc="Senders of incast.")
    priority: int = setting(Integer(0, 6), default=0, doc="Class of the messages of permutation and incast.")
    algorithm: str = setting(Choice(tuple(COLLECTIVES)), default="ring", doc="All-reduce of training.")
    iterations: int = setting(Integer(1, 100_000), default=3, doc="Steps of training.")
    bucket: Size = setting(_SIZE, default=Size.parse("25 MiB"), doc="A bucket of gradients is full from here on.")
    pipelined: bool = setting(
        Flag(),
        default=False,
        doc="Whether a forward pass begins once its first layers are reduced; otherwise all have to be.",
    )
    slowness: tuple[float, ...] = setting(
        Items(Number(0, 1000), 0, 65_535),
        default=(),
        doc="Factor on the computing times of ranks 0, 1, ...; the rest is 1.",
    )


@section
class Event:
    """A change of the links between two nodes."""

    at: Delay = required(_TIME, doc="When.")
    a: str = required(_NODE, doc="A node.")
    b: str = required(_NODE, doc="The other.")
    state: str = setting(Choice(("as-is", "up", "down")), default="as-is", doc="Whether they are up from then on.")
    rate: str | Rate = setting(Auto(Quantity(Rate, "1 kbit/s", "100 Tbit/s")), default="auto", doc="Rate; auto leaves it.")
    delay: str | Delay = setting(Auto(_TIME), default="auto", doc="Propagation delay; auto leaves it.")
    loss: str | float = setting(Auto(Number(0, 1)), default="auto", doc="Probability that a packet is lost; auto leaves it.")


@section
class Scenario(Document):
    """A run: a topology, what it carries, and how."""

    title: ClassVar[str] = "Simulation."

    topology: str = required(_PATH, doc="File of the topology.")
    policy: str = setting(_PATH, default="", doc="File of the policy; nothing is the default policy.")
    workload: str = setting(_PATH, default="", doc="File of the workload, for training.")
    seed: int = setting(Integer(0, 2**31 - 1), default=0, doc="Of all randomness.")
    limit: Delay = setting(_TIME, default=Delay.parse("10 s"), doc="Simulated time after which the run ends whatever is open.")
    series: Delay = setting(
        _TIME, default=Delay.parse("0 s"), doc="Interval at which all ports are sampled into series.csv; 0 s is never."
    )
    reroute: Delay = setting(_TIME, default=Delay.parse("1 ms"), doc="How long after a link fails all routes avoid it.")
    transport: Carrier = setting(Record(Carrier), default=Carrier(), doc="The transport.")
    buffers: Buffering = setting(Record(Buffering), default=Buffering(), doc="Memory of the switches.")
    traffic: Traffic = setting(Record(Traffic), default=Traffic(), doc="What is sent.")
    events: tuple[Event, ...] = setting(Items(Table(Event), 0, 10_000), default=(), doc="What happens to links.")

    def check(self) -> None:
        """Refuses training without a workload."""
        if self.traffic.kind == "training" and not self.workload:
            raise refuse("workload", "missing, but traffic.kind is training", "the file of a workload")

    def build(self, folder: Path, engine: str = "compiled") -> Simulation:
        """Returns the simulation; paths are relative to ``folder``.

        Raises:
            ConfigError: One of the files is wrong, or does not fit the scenario.
        """
        topology = Topology.from_toml(folder / self.topology)
        policy = Policy.from_toml(folder / self.policy) if self.policy else Policy()
        chosen = self.transport
        automatic = {"dlcp": policy.switch.spray, "ndp": "round-robin"}.get(chosen.name, "hash")
        transport = Transport(
            chosen.name,
            spray=automatic if chosen.spray == "auto" else chosen.spray,
            initial_window=chosen.initial_window,
            reordering=chosen.reordering,
            least_timeout=int(chosen.least_timeout),
            gain=policy.congestion.gain,
            trust_class=policy.switch.trust_dscp,
            scale=chosen.host_times,
        )
        return Simulation(
            topology,
            self._messages(topology, policy, folder),
            transport,
            policy,
            seed=self.seed,
            engine=engine,
            buffers=Buffers(self.buffers.shared, self.buffers.alpha),
            changes=[change for event in self.events for change in _changes(event, topology)],
            reroute=int(self.reroute),
        )

    def _messages(self, topology: Topology, policy: Policy, folder: Path) -> list[Message]:
        traffic = self.traffic
        hosts = len(topology.hosts)
        if traffic.kind == "training":
            job = Job(ranks_of(topology), policy)
            training(
                job,
                Workload.from_toml(folder / self.workload),
                traffic.algorithm,
                traffic.iterations,
                int(traffic.bucket),
                pipelined=traffic.pipelined,
                slowness=traffic.slowness,
            )
            return job.messages
        try:
            if traffic.kind == "permutation":
                messages = permutation(hosts, int(traffic.size), self.seed)
            else:
                messages = incast(hosts, traffic.fan_in, int(traffic.size))
        except ValueError as error:
            raise ConfigError(str(folder / self.topology), f"traffic.{traffic.kind}", str(error), "more hosts") from None
        for message in messages:
            message.priority = traffic.priority
            message.protected, message.bound = policy.protection.share, policy.loss.push
        return messages


def _changes(event: Event, topology: Topology) -> list[Change]:
    known = {*topology.graph.hosts, *topology.graph.switches}
    links = topology.links_between(event.a, event.b) if event.a in known else ()
    if not links:
        where = f"topology {topology.name}"
        raise ConfigError(where, "events", f"no link joins {event.a} and {event.b}", "two nodes that a link joins")
    return [
        Change(
            int(event.at),
            link,
            up=None if event.state == "as-is" else event.state == "up",
            rate=None if isinstance(event.rate, str) else int(event.rate),
            delay=None if isinstance(event.delay, str) else int(event.delay),
            loss=None if isinstance(event.loss, str) else event.loss,
        )
        for link in links
    ]


__all__ = ["Buffering", "Carrier", "Event", "Scenario", "Traffic"]
