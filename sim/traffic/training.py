"""The steps of a training job: forward pass, backward pass, and what it sends in between."""

from __future__ import annotations

from collections.abc import Sequence

from dlcp.tagging.classes import assign_classes
from dlcp.workload import Workload
from sim.traffic.collectives import COLLECTIVES
from sim.traffic.job import Job
from sim.traffic.pace import Pace
from sim.traffic.units import Unit, units


def training(
    job: Job,
    workload: Workload,
    algorithm: str,
    iterations: int,
    bucket_bytes: int,
    *,
    schedule: str = "buckets",
    chunk_bytes: int = 4 << 20,
    pipelined: bool = False,
    pace: Pace | None = None,
) -> None:
    """Adds the steps of a training job.

    A unit (bucket, layer, or layer in chunks) leaves when the backward pass is through it.  The next forward pass begins when all
    are reduced, as under plain DDP, or, pipelined, when the layers that it comes to are, as with
    ``dlcp.torch.PipelinedOptimizer``.  After the last step there is one more forward pass, so that every step is counted alike.

    With ``ds-sync``, or with :attr:`~sim.traffic.job.Job.local_steps` above 1, parameters are averaged rather than gradients:
    everything leaves once the optimizer's step is done, in those steps that synchronize.

    Args:
        job: Where.
        workload: The model.
        algorithm: One of :data:`~sim.traffic.collectives.COLLECTIVES`.
        iterations: Steps.
        bucket_bytes: A bucket is full from this size on.
        schedule: One of :data:`~sim.traffic.units.SCHEDULES`.
        chunk_bytes: Largest chunk.
        pipelined: Whether forward passes begin before everything is reduced.
        pace: Slow ranks.
    """
    collective = COLLECTIVES[algorithm]
    classes = assign_classes(workload.sizes(), job.policy.classes.count)
    parts = units(workload, schedule, bucket_bytes, chunk_bytes)
    factors = (pace or Pace()).factors(job.world, iterations + 1)
    averages = algorithm == "ds-sync" or job.local_steps > 1
    optimizer = int(workload.optimizer)
    world = range(job.world)
    reduced: list[list[list[int]]] = [[[] for _ in parts] for _ in world]
    for iteration in range(iterations + 1):
        pause = optimizer if iteration and not averages else 0
        before = [
            _forward(job, rank, workload, parts, reduced[rank], iteration, factors[iteration][rank], pipelined, pause)
            for rank in world
        ]
        if iteration == iterations:
            break
        ready, begun = [], 0
        for _, when, _ in parts:
            spans = [round((when - begun) * factors[iteration][rank]) for rank in world]
            before = [job.compute(rank, spans[rank], [before[rank]], group="backward", iteration=iteration) for rank in world]
            ready.append([[node] for node in before])
            begun = when
        if averages:
            spans = [round(optimizer * factors[iteration][rank]) for rank in world]
            stepped = [[job.compute(rank, spans[rank], [before[rank]], group="optimizer", iteration=iteration)] for rank in world]
            ready = [stepped] * len(parts)
        synchronizes = (iteration + 1) % job.local_steps == 0
        for number, part in enumerate(parts):
            fields: dict[str, object] = {
                "group": f"{schedule.removesuffix('s')}{number}",
                "urgency": len(parts) - 1 - number,
                "whole": sum(part.sizes),
                # As in the product: where there are classes, gradients of front layers, which are ready last, go first.
                "order": len(parts) - 1 - number if job.policy.classes.count > 1 and not averages else 0,
            }
            priority = max(classes[layer] for layer in part.layers)
            sums: list[list[int]] = [[] for _ in world]
            for size in part.sizes if synchronizes else ():
                done = collective(job, size, ready[number], priority=priority, iteration=iteration, **fields)
                for mine, result in zip(sums, done, strict=True):
                    mine += result
            for rank in world:
                reduced[rank][number] = sums[rank] or ready[number][rank]


def _forward(
    job: Job,
    rank: int,
    workload: Workload,
    parts: Sequence[Unit],
    reduced: Sequence[list[int]],
    iteration: int,
    factor: float,
    pipelined: bool,
    pause: int,
) -> int:
    """Adds the forward pass of a rank, unit by unit from the front layers on; returns its end."""
    everything = [message for unit in reduced for message in unit]
    previous: list[int] = []
    at = 0
    for number in reversed(range(len(parts))):
        # Layers without parameters run with those before them; what precedes the first unit's layers runs first.
        last = max(parts[number].layers) if number else len(workload.layers) - 1
        duration = sum(int(layer.forward) for layer in workload.layers[at : last + 1])
        at = last + 1
        wait = reduced[number] if pipelined else everything if not previous else []
        begin = 0 if previous else pause
        node = job.compute(rank, round((duration + begin) * factor), [*previous, *wait], group="forward", iteration=iteration)
        previous = [node]
    return previous[0]


__all__ = ["training"]
