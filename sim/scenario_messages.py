"""From the sections of a scenario to messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlcp.errors import ConfigError
from dlcp.policy import Policy
from dlcp.topology import Topology
from dlcp.workload import Workload
from sim.flows import Transport
from sim.message_file import read_messages
from sim.messages import Message
from sim.readers.found import POLICY
from sim.scenario_traffic import BackgroundFlows, Training, TrainingJob
from sim.traffic.background import Background, together
from sim.traffic.job import Job
from sim.traffic.layout import chosen, places, racks_of, rounds_of
from sim.traffic.pace import Pace
from sim.traffic.patterns import incast, permutation
from sim.traffic.sizes import SIZES, fixed
from sim.traffic.training import training

if TYPE_CHECKING:
    from sim.scenario import Scenario


def messages_of(scenario: Scenario, topology: Topology, policy: Policy, folder: Path) -> list[Message]:
    """Returns the messages of a scenario without its background; paths are relative to ``folder``.

    Raises:
        ConfigError: It does not fit the topology, or a workload is wrong.
    """
    traffic = scenario.traffic
    messages: list[Message] = []
    jobs: Sequence[TrainingJob | Training] = scenario.jobs or ([traffic] if traffic.kind == "training" else [])
    for job in jobs:
        _train(job, scenario, topology, policy, folder, messages)
    if jobs or traffic.kind == "none":
        return messages
    if traffic.kind == "file":
        messages = read_messages(folder / traffic.file, topology.graph.hosts)
        for message in messages:
            message.protected = policy.protection.share if message.protected == POLICY else message.protected
            message.bound = policy.loss.push if message.bound == POLICY else message.bound
        return messages
    hosts = len(topology.hosts)
    try:
        if traffic.kind == "permutation":
            messages = permutation(hosts, int(traffic.size), scenario.seed)
        else:
            messages = incast(hosts, traffic.fan_in, int(traffic.size))
    except ValueError as error:
        raise ConfigError(str(folder / scenario.topology), f"traffic.{traffic.kind}", str(error), "more hosts") from None
    for message in messages:
        message.priority = traffic.priority
        message.protected, message.bound = policy.protection.share, policy.loss.push
    return messages


def _train(
    training_: Training, scenario: Scenario, topology: Topology, policy: Policy, folder: Path, messages: list[Message]
) -> None:
    named = training_ if isinstance(training_, TrainingJob) else None
    key = f"jobs.{named.name}" if named else "traffic"
    hosts = chosen(topology, named.hosts if named else (), f"{key}.hosts")
    servers: list[int] = []
    if training_.algorithm == "ps":
        count = training_.server_count
        servers = chosen(topology, training_.servers, f"{key}.servers") if training_.servers else hosts[-count:]
    ranks = places(topology, hosts, servers)
    if not ranks:
        raise ConfigError(f"topology {topology.name}", key, "no host is left that runs a rank", "more hosts, or fewer servers")
    racks = racks_of(topology, ranks)
    seed = f"{scenario.seed}/{named.name}" if named else scenario.seed
    job = Job(
        ranks,
        policy,
        messages,
        name=named.name if named else "",
        servers=servers,
        racks=racks,
        inner=training_.inner,
        across=training_.across,
        local_steps=training_.local_steps,
        start=int(named.start) if named else 0,
        credit=int(training_.credit) or None,
    )
    if training_.algorithm == "ds-sync":
        job.rounds = rounds_of(training_.rounds, len(ranks), training_.group, racks, scenario.seed)
    training(
        job,
        workload_of((named.workload if named else "") or scenario.workload, folder, training_),
        training_.algorithm,
        training_.iterations,
        int(training_.bucket),
        schedule=training_.schedule,
        chunk_bytes=int(training_.chunk),
        pipelined=training_.pipelined,
        pace=Pace(training_.slowness, training_.jitter, training_.straggle_probability, training_.straggle_factor, seed),
    )


def workload_of(text: str, folder: Path, wanted: Training | None = None) -> Workload:
    """Returns the workload that a scenario names: a model, or a file relative to ``folder``.

    Args:
        text: Name of a model, or a path; what has a point or a slash is one.
        folder: Where the scenario stands.
        wanted: Batch, device and degrees of parallelism.

    Raises:
        ConfigError: Neither a model nor a file, or it does not go with what is wanted.
    """
    wanted = wanted or Training()
    only = {"tensor": wanted.tensor, "pipeline": wanted.pipeline}
    if "." not in text and "/" not in text:
        shape = {key: value for key, value in only.items() if value}
        return Workload.named(text, batch=wanted.batch or None, flops=wanted.tflops * 1e12 or None, **shape)
    for key, value in {"tflops": wanted.tflops, **only}.items():
        if value:
            raise ConfigError(
                folder / text, key, "is given for a file, whose layers and times are fixed", "0, or the name of a model"
            )
    workload = Workload.from_toml(folder / text)
    return workload.scaled(batch=wanted.batch) if wanted.batch else workload


def background_of(
    flows: Sequence[BackgroundFlows], topology: Topology, transports: dict[str, Transport], seed: int, *, required: bool
) -> Iterator[Message] | None:
    """Returns the background flows of a scenario by their start, or None.

    Args:
        flows: Its sections.
        topology: The network.
        transports: By name, those that they may use; ``same`` is left out.
        seed: Of their times, ends and sizes.
        required: Whether the run waits for those whose duration is limited, there being nothing else to wait for.

    Raises:
        ConfigError: There are not enough hosts.
    """
    made = []
    for number, each in enumerate(flows):
        source = Background(
            each.load,
            fixed(int(each.size)) if each.sizes == "fixed" else SIZES[each.sizes],
            of=each.of,
            between=each.between,
            hosts=chosen(topology, each.hosts, f"background[{number}].hosts"),
            priority=each.priority,
            transport=transports.get(each.transport),
            start=int(each.start),
            duration=int(each.duration),
            required=required and each.duration > 0,
            name=each.name,
        )
        try:
            made.append(source.flows(topology, f"{seed}/{number}"))
        except ValueError as error:
            raise ConfigError(f"topology {topology.name}", f"background[{number}]", str(error), "other hosts") from None
    return together(made)


__all__ = ["background_of", "messages_of", "workload_of"]
