"""The sections of a scenario that say what is sent: patterns, training jobs, background flows."""

from __future__ import annotations

from dlcp.schema import refuse, required, section, setting
from dlcp.schema_kinds import Choice, Flag, Integer, Items, Number, Text
from dlcp.units import Delay, Quantity, Size
from sim.flows import KINDS
from sim.traffic.background import BETWEEN, SHARES_OF
from sim.traffic.collectives import COLLECTIVES
from sim.traffic.primitives import HALVES
from sim.traffic.sizes import SIZES
from sim.traffic.units import SCHEDULES

_SIZE = Quantity(Size, "1 B", "1 TiB")
_CREDIT = Quantity(Size, "0 B", "1 TiB")
_TIME = Quantity(Delay, "0 s", "10000 s")
_HOSTS = Items(Text(r"[A-Za-z][A-Za-z0-9_.-]{0,80}", "the name of a host, or first..last"), 0, 65_535)
_NAME = Text(r"[A-Za-z0-9_.-]{1,40}", "a name of up to 40 letters, digits, points, hyphens and underscores")
_FILE = Text(r"[^\x00-\x1f\x7f]{0,1000}", "a path, relative to the file that it stands in, or nothing")
_MODEL = Text(r"[^\x00-\x1f\x7f]{0,1000}", "the name of a model, a path relative to the file that it stands in, or nothing")
ROUNDS = ("base-k", "bsp", "digits", "random", "topology")


@section
class Training:
    """A training job."""

    algorithm: str = setting(Choice(tuple(COLLECTIVES)), default="ring", doc="All-reduce of training.")
    iterations: int = setting(Integer(1, 100_000), default=3, doc="Steps of training.")
    schedule: str = setting(
        Choice(SCHEDULES), default="buckets", doc="What leaves at once: buckets as of DDP, whole layers, or layers in chunks."
    )
    bucket: Size = setting(_SIZE, default=Size.parse("25 MiB"), doc="A bucket of gradients is full from here on.")
    chunk: Size = setting(_SIZE, default=Size.parse("4 MiB"), doc="Largest chunk of a layer.")
    credit: Size = setting(
        _CREDIT,
        default=Size(0),
        doc="Bytes that a rank has under way at most; what waits goes by layer, the front ones first. 0 B is no bound.",
    )
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
    jitter: float = setting(
        Number(0, 3), default=0.0, doc="Deviation of the logarithm of a random factor, of mean 1, for every rank and step."
    )
    straggle_probability: float = setting(Number(0, 1), default=0.0, doc="Probability that a rank straggles in a step.")
    straggle_factor: float = setting(Number(1, 1000), default=2.0, doc="Factor on its computing times if it does.")
    servers: tuple[str, ...] = setting(_HOSTS, default=(), doc="Hosts of the parameter servers; nothing is the last of the job.")
    server_count: int = setting(Integer(1, 65_535), default=1, doc="How many of the last hosts serve, if none are named.")
    inner: str = setting(Choice(tuple(HALVES)), default="ring", doc="How racks, or groups, reduce among themselves.")
    across: str = setting(Choice(tuple(HALVES)), default="ring", doc="How racks reduce among each other.")
    rounds: str = setting(Choice(ROUNDS), default="base-k", doc="Schedule of the groups of ds-sync.")
    group: int = setting(Integer(0, 65_535), default=0, doc="Ranks of the largest group; 0 is the schedule's own.")
    local_steps: int = setting(
        Integer(1, 100_000), default=1, doc="Steps from one synchronization to the next; above 1 parameters are averaged."
    )
    batch: int = setting(Integer(0, 10**9), default=0, doc="Samples of a rank in a step; 0 is the workload's.")
    tflops: float = setting(
        Number(0, 1e6), default=0.0, doc="10^12 operations a second of a rank's device, for a model by name; 0 is the usual."
    )
    tensor: int = setting(
        Integer(0, 1024), default=0, doc="Degree of tensor parallelism of a model that has one; 0 is the usual."
    )
    pipeline: int = setting(Integer(0, 1024), default=0, doc="Degree of its pipeline parallelism; 0 is the usual.")


@section
class Traffic(Training):
    """What is sent."""

    kind: str = setting(
        Choice(("permutation", "incast", "training", "file", "none")),
        default="permutation",
        doc="Every host to one other; many to one; a training job on the ranks of the topology; a file; or only background.",
    )
    size: Size = setting(_SIZE, default=Size.parse("1 MB"), doc="Bytes of each message of permutation and incast.")
    fan_in: int = setting(Integer(1, 65_535), default=16, doc="Senders of incast.")
    priority: int = setting(Integer(0, 6), default=0, doc="Class of the messages of permutation and incast.")
    file: str = setting(_FILE, default="", doc="File of messages, CSV or JSON lines.")


@section
class TrainingJob(Training):
    """One of several training jobs."""

    name: str = required(_NAME, doc="What it is called.")
    workload: str = setting(_MODEL, default="", doc="Model or file; nothing is that of the scenario.")
    hosts: tuple[str, ...] = setting(_HOSTS, default=(), doc="Hosts whose ranks it runs on; nothing is all.")
    start: Delay = setting(_TIME, default=Delay(0), doc="When its first forward pass begins.")


@section
class BackgroundFlows:
    """Flows at random times between random hosts."""

    name: str = setting(_NAME, default="background", doc="Their group in results.")
    load: float = required(Number(0, 10, above=True), doc="What they offer, over what of carries.")
    of: str = setting(
        Choice(SHARES_OF),
        default="hosts",
        doc="The interfaces of the hosts that send; or the bisection, of which only flows across it count.",
    )
    sizes: str = setting(Choice((*SIZES, "fixed")), default="web-search", doc="Distribution of their sizes.")
    size: Size = setting(_SIZE, default=Size.parse("100 kB"), doc="Size of fixed ones.")
    between: str = setting(Choice(BETWEEN), default="hosts", doc="Any two hosts, or two in different racks.")
    hosts: tuple[str, ...] = setting(_HOSTS, default=(), doc="Hosts that send and receive; nothing is all.")
    priority: int = setting(Integer(0, 7), default=0, doc="Class of the flows.")
    transport: str = setting(Choice(("same", *KINDS)), default="same", doc="What carries them; same is the scenario's.")
    start: Delay = setting(_TIME, default=Delay(0), doc="When they begin.")
    duration: Delay = setting(_TIME, default=Delay(0), doc="For how long they arrive; 0 s is until the run ends.")

    def check(self) -> None:
        """Refuses what would say nothing."""
        if self.sizes != "fixed" and self.size != Size.parse("100 kB"):
            raise refuse("size", f"is given, but sizes is {self.sizes}", 'sizes = "fixed"')


__all__ = ["BackgroundFlows", "Traffic", "Training", "TrainingJob"]
