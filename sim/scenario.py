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
from sim.changes import Change
from sim.flows import KINDS, SPRAYS, Transport
from sim.network import Buffers
from sim.scenario_messages import background_of, messages_of
from sim.scenario_traffic import BackgroundFlows, Traffic, TrainingJob
from sim.simulation import Simulation

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
        doc="dlcp; tcp (Reno with SACK), cubic, dctcp; ndp; pfabric; roce, dcqcn (go-back-N); timeout (datagrams with a "
        "deadline); or raw datagrams, of which nothing is sent again.",
    )
    spray: str = setting(
        Choice(("auto", *SPRAYS)),
        default="auto",
        doc="How packets spread over equal paths; auto is the policy's for dlcp, in turn for ndp and pfabric, else by hash.",
    )
    initial_window: int = setting(Integer(1, 65_535, "packets"), default=10, doc="First window of TCP, DCTCP and NDP.")
    reordering: int = setting(
        Integer(1, 65_535, "packets"), default=3, doc="By how many packets TCP lets one be passed over before it counts as lost."
    )
    least_timeout: Delay = setting(
        _TIME, default=Delay.parse("1 ms"), doc="Shortest retransmission timeout of TCP; that of RoCE."
    )
    deadline: str | Delay = setting(
        Auto(_TIME), default="auto", doc="How long a message of timeout may take; auto is what the first ones of its size take."
    )
    warmup: int = setting(
        Integer(0, 100_000, "steps"), default=1, doc="Training steps that timeout carries reliably to find out."
    )
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
    pfc: bool = setting(
        Flag(),
        default=False,
        doc="Switches ask the other end of a link for pauses, by class, and hold what came over each link apart, shared or not.",
    )
    xoff: str | Size = setting(
        Auto(_SIZE),
        default="auto",
        doc="What a class may hold of what came over a link until it is paused; auto: half the buffer.",
    )
    xon: str | Size = setting(Auto(_SIZE), default="auto", doc="What it holds when the pause ends; auto is half of xoff.")

    def build(self) -> Buffers:
        """Returns what the network is made with."""
        xoff, xon = (0 if isinstance(size, str) else int(size) for size in (self.xoff, self.xon))
        return Buffers(self.shared, self.alpha, self.pfc, xoff, xon)


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
    workload: str = setting(_PATH, default="", doc="Model, or file of the workload, for training.")
    seed: int = setting(Integer(0, 2**31 - 1), default=0, doc="Of all randomness.")
    limit: Delay = setting(_TIME, default=Delay.parse("10 s"), doc="Simulated time after which the run ends whatever is open.")
    series: Delay = setting(
        _TIME, default=Delay.parse("0 s"), doc="Interval at which all ports are sampled into series.csv; 0 s is never."
    )
    reroute: Delay = setting(_TIME, default=Delay.parse("1 ms"), doc="How long after a link fails all routes avoid it.")
    transport: Carrier = setting(Record(Carrier), default=Carrier(), doc="The transport.")
    buffers: Buffering = setting(Record(Buffering), default=Buffering(), doc="Memory of the switches.")
    traffic: Traffic = setting(Table(Traffic), default=Traffic(), doc="What is sent.")
    jobs: tuple[TrainingJob, ...] = setting(
        Items(Table(TrainingJob), 0, 1000), default=(), doc="Several training jobs, in place of traffic."
    )
    background: tuple[BackgroundFlows, ...] = setting(
        Items(Table(BackgroundFlows), 0, 100), default=(), doc="Flows besides; the run does not wait for them."
    )
    events: tuple[Event, ...] = setting(Items(Table(Event), 0, 10_000), default=(), doc="What happens to links.")

    def check(self) -> None:
        """Refuses training without a workload, and what contradicts itself."""
        if self.jobs:
            if self.traffic != Traffic():
                raise refuse("jobs", "stand besides traffic", "one of the two")
            seen: set[str] = set()
            for index, job in enumerate(self.jobs):
                if job.name in seen:
                    raise refuse(f"jobs[{index}].name", f"{job.name!r} is another job's name too", "a name of its own")
                seen.add(job.name)
                if not (job.workload or self.workload):
                    raise refuse(f"jobs[{index}].workload", "missing, and the scenario has none", "a model, or a file")
        elif self.traffic.kind == "training" and not self.workload:
            raise refuse("workload", "missing, but traffic.kind is training", "a model, or the file of a workload")
        elif self.traffic.kind == "file" and not self.traffic.file:
            raise refuse("traffic.file", "missing, but traffic.kind is file", "a file of messages")
        elif self.traffic.kind == "none" and not (self.background and all(flows.duration for flows in self.background)):
            problem = "is none, but there is no background, or one without a duration"
            raise refuse("traffic.kind", problem, "something to wait for")

    def build(self, folder: Path, engine: str = "compiled") -> Simulation:
        """Returns the simulation; paths are relative to ``folder``.

        Raises:
            ConfigError: One of the files is wrong, or does not fit the scenario.
        """
        topology = Topology.from_toml(folder / self.topology)
        policy = Policy.from_toml(folder / self.policy) if self.policy else Policy()
        transport = self._transport(self.transport.name, policy)
        carriers = {name: self._transport(name, policy) for name in {each.transport for each in self.background} - {"same"}}
        alone = self.traffic.kind == "none" and not self.jobs
        return Simulation(
            topology,
            messages_of(self, topology, policy, folder),
            transport,
            policy,
            seed=self.seed,
            engine=engine,
            buffers=self.buffers.build(),
            changes=[change for event in self.events for change in _changes(event, topology)],
            reroute=int(self.reroute),
            background=background_of(self.background, topology, carriers, self.seed, required=alone),
        )

    def _transport(self, name: str, policy: Policy) -> Transport:
        """Returns a transport by name, with the settings of the scenario's; how it spreads over paths is its own."""
        chosen = self.transport
        automatic = {"dlcp": policy.switch.spray, "ndp": "round-robin", "pfabric": "round-robin"}.get(name, "hash")
        return Transport(
            name,
            spray=automatic if chosen.spray == "auto" or name != chosen.name else chosen.spray,
            initial_window=chosen.initial_window,
            reordering=chosen.reordering,
            least_timeout=int(chosen.least_timeout),
            gain=policy.congestion.gain,
            trust_class=policy.switch.trust_dscp,
            scale=chosen.host_times,
            warmup=chosen.warmup,
            deadline=0 if isinstance(chosen.deadline, str) else int(chosen.deadline),
        )


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
