"""Traffic: messages of usual patterns, and of a training job on the ranks of a topology."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dlcp.policy import Policy
from dlcp.topology import Topology
from dlcp.workload import Workload
from sim.messages import Message


def permutation(hosts: int, size: int, seed: int = 0) -> list[Message]:
    """Every host sends to one other, and receives from one: a cycle through all hosts in random order.

    Raises:
        ValueError: There are fewer than two hosts.
    """
    if hosts < 2:
        raise ValueError(f"{hosts} hosts have nobody to send to")
    order = list(range(hosts))
    random.Random(seed).shuffle(order)
    following = {host: order[(place + 1) % hosts] for place, host in enumerate(order)}
    return [Message(host, following[host], size, group="permutation") for host in range(hosts)]


def incast(hosts: int, fan_in: int, size: int, receiver: int = 0) -> list[Message]:
    """``fan_in`` hosts send to one at once.

    Raises:
        ValueError: There are not as many other hosts.
    """
    if not 1 <= fan_in < hosts:
        raise ValueError(f"a fan-in of {fan_in} with {hosts} hosts; from 1 to {hosts - 1}")
    senders = [host for host in range(hosts) if host != receiver][:fan_in]
    return [Message(sender, receiver, size, group="incast") for sender in senders]


@dataclass
class Job:
    """A training job under construction.

    Attributes:
        places: Host of every rank, by position.
        policy: Its loss bounds and protected shares.
        messages: What it sends.
    """

    places: Sequence[int]
    policy: Policy = field(default_factory=Policy)
    messages: list[Message] = field(default_factory=list)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.places)

    def send(self, source: int, destination: int, size: int, after: Sequence[int] = (), **fields: object) -> int:
        """Adds a message between two ranks; returns its number."""
        message = Message(self.places[source], self.places[destination], max(size, 1), after=list(after))
        for name, value in fields.items():
            setattr(message, name, value)
        self.messages.append(message)
        return len(self.messages) - 1

    def push(self, source: int, destination: int, size: int, after: Sequence[int] = (), **fields: object) -> int:
        """Adds a message that the policy allows to lose a part of."""
        return self.send(
            source, destination, size, after, protected=self.policy.protection.share, bound=self.policy.loss.push, **fields
        )

    def pull(self, source: int, destination: int, size: int, after: Sequence[int] = (), **fields: object) -> int:
        """Adds a message of the way back."""
        bound = self.policy.loss.pull
        share = self.policy.protection.share if bound else 1.0
        return self.send(source, destination, size, after, protected=share, bound=bound, **fields)

    def compute(self, rank: int, duration: int, after: Sequence[int] = (), **fields: object) -> int:
        """Adds a time, in picoseconds, for which a rank computes: a message to itself, which takes no time but this."""
        return self.send(rank, rank, 1, after, delay=duration, **fields)


Ready = Sequence[Sequence[int]]
"""For every rank the messages that it waits for."""


def ring(job: Job, size: int, ready: Ready, **fields: object) -> list[list[int]]:
    """Ring all-reduce: every rank passes chunks on for 2 (N - 1) steps, reducing in the first half.

    Returns:
        For every rank the messages with which it has the result.
    """
    world = job.world
    before = [list(mine) for mine in ready]
    for step in range(2 * (world - 1)):
        send = job.push if step < world - 1 else job.pull
        sent = []
        for rank in range(world):
            part = (rank - step) % world
            length = size * (part + 1) // world - size * part // world
            sent.append(send(rank, (rank + 1) % world, length, before[rank], **fields))
        # What a rank sends next is what it has just received, in the first half reduced with its own.
        before = [[sent[(rank - 1) % world], *(ready[rank] if step < world - 1 else ())] for rank in range(world)]
    return before


def sharded(job: Job, size: int, ready: Ready, **fields: object) -> list[list[int]]:
    """Sharded all-reduce: every rank reduces a shard of all ranks' data, and sends it back to all.

    Returns:
        For every rank the messages with which it has the result.
    """
    world = job.world
    lengths = [size * (shard + 1) // world - size * shard // world for shard in range(world)]
    arriving: list[list[int]] = [[] for _ in range(world)]
    for offset in range(1, world):
        for rank in range(world):
            shard = (rank + offset) % world
            arriving[shard].append(job.push(rank, shard, lengths[shard], ready[rank], **fields))
    done: list[list[int]] = [[] for _ in range(world)]
    for offset in range(1, world):
        for shard in range(world):
            rank = (shard + offset) % world
            done[rank].append(job.pull(shard, rank, lengths[shard], [*arriving[shard], *ready[shard]], **fields))
    return done


COLLECTIVES: Final[dict[str, Callable[..., list[list[int]]]]] = {"ring": ring, "sharded": sharded}


def training(
    job: Job,
    workload: Workload,
    algorithm: str,
    iterations: int,
    bucket_bytes: int,
    *,
    pipelined: bool = False,
    slowness: Sequence[float] = (),
) -> None:
    """Adds the steps of a training job: forward pass, backward pass, and an all-reduce for every bucket of layers.

    A bucket leaves when the backward pass is through its last layer.  The next forward pass begins when all buckets are reduced,
    as under plain DDP, or, pipelined, when the layers that it comes to are, as with ``dlcp.torch.PipelinedOptimizer``.  After
    the last step there is one more forward pass, so that every step is counted alike.

    Args:
        job: Where.
        workload: The model.
        algorithm: ``ring`` or ``sharded``.
        iterations: Steps.
        bucket_bytes: A bucket is full from this size on.
        pipelined: Whether forward passes begin before everything is reduced.
        slowness: Factor on the computing times of each rank; those left out are 1.
    """
    from dlcp.tagging.layers import assign_classes

    collective = COLLECTIVES[algorithm]
    classes = assign_classes(workload.sizes(), job.policy.classes.count)
    parts = buckets(workload, bucket_bytes)
    factors = [slowness[rank] if rank < len(slowness) else 1.0 for rank in range(job.world)]
    reduced: list[list[list[int]]] = [[[] for _ in parts] for _ in range(job.world)]
    for iteration in range(iterations + 1):
        forward = [
            _forward(job, rank, workload, parts, reduced[rank], iteration, factors[rank], pipelined) for rank in range(job.world)
        ]
        if iteration == iterations:
            break
        before, begun = forward, 0
        for number, (size, layers, when) in enumerate(parts):
            priority = max(classes[layer] for layer in layers)
            before = [
                job.compute(rank, round((when - begun) * factors[rank]), [before[rank]], group="backward", iteration=iteration)
                for rank in range(job.world)
            ]
            begun = when
            ready = [[node] for node in before]
            results = collective(job, size, ready, priority=priority, group=f"bucket{number}", iteration=iteration)
            for rank in range(job.world):
                reduced[rank][number] = results[rank] or ready[rank]


def _forward(
    job: Job,
    rank: int,
    workload: Workload,
    parts: Sequence[tuple[int, list[int], int]],
    reduced: Sequence[list[int]],
    iteration: int,
    factor: float,
    pipelined: bool,
) -> int:
    """Adds the forward pass of a rank, bucket by bucket from the front layers on; returns its end."""
    everything = [message for bucket in reduced for message in bucket]
    optimizer = int(workload.optimizer) if iteration else 0
    previous: list[int] = []
    at = 0
    for number in reversed(range(len(parts))):
        # Layers without parameters run with those before them; what precedes the first bucket's layers runs first.
        last = max(parts[number][1]) if number else len(workload.layers) - 1
        duration = sum(int(layer.forward) for layer in workload.layers[at : last + 1])
        at = last + 1
        wait = reduced[number] if pipelined else everything if not previous else []
        begin = 0 if previous else optimizer
        node = job.compute(rank, round((duration + begin) * factor), [*previous, *wait], group="forward", iteration=iteration)
        previous = [node]
    return previous[0]


def buckets(workload: Workload, bucket_bytes: int) -> list[tuple[int, list[int], int]]:
    """Returns bytes, layers, and when the gradients are ready (picoseconds since the backward pass began) of every bucket."""
    found: list[tuple[int, list[int], int]] = []
    size, layers, when = 0, [], 0
    for index, layer, ready in workload.gradients():
        size += layer.bytes
        layers.append(index)
        when = int(ready)
        if size >= bucket_bytes:
            found.append((size, layers, when))
            size, layers = 0, []
    if layers:
        found.append((size, layers, when))
    return found


def ranks_of(topology: Topology) -> list[int]:
    """Returns the host of every rank, by position; every host runs one rank if the topology names none."""
    positions = {host.name: index for index, host in enumerate(topology.hosts)}
    return [positions[name] for name in topology.places] or list(range(len(topology.hosts)))


__all__ = ["COLLECTIVES", "Job", "buckets", "incast", "permutation", "ranks_of", "ring", "sharded", "training"]
