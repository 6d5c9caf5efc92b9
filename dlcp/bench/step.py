"""Time of a training step: DDP over gloo, with the hook, and pipelined.

The model is a row of equal layers.  Its arithmetic is small; instead every layer *sleeps* in its forward and backward pass, as
a training script's processor does while an accelerator computes.  So compute and communication overlap as they would there, and
the ranks, which share this machine's cores, do not get into each other's way.

A candidate's turn is a few steps from a barrier to a drained optimizer, for with pipelining a step ends in the next one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dlcp.bench.crew import Crew
from dlcp.bench.numbers import summarize, turns
from dlcp.bench.shaped import ShapedStar, ended_by_sigterm

if TYPE_CHECKING:
    from dlcp.policy import Policy

CANDIDATES: Final = ("pipelined", "pipelined_flat", "hook", "gloo")
"""``pipelined_flat`` has one class for all layers: what of the gain is priority, and what is pipelining."""
_START_S: Final = 120.0
_PORT: Final = 29_500


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What is measured.

    Attributes:
        ranks: Processes.
        layers: Layers of the model.
        elements: Elements of the model, over all layers.
        compute_s: Forward and backward pass of the model together; a third is forward.
        rate_bps: Of each rank's link; None measures over loopback, unshaped.
        queue_packets: Packets that find room before a link.
        plain_switch: The switch has one FIFO a port; else it enforces the policy.
        steps: Steps of a turn.
        turns: Turns of each candidate.
        warmup: Turns before them.
        bucket_mb: DDP's buckets, for all candidates.
        policy: The policy.
        timeout_s: Longest turn.
    """

    ranks: int
    layers: int
    elements: int
    compute_s: float
    rate_bps: int | None
    queue_packets: int
    plain_switch: bool
    steps: int
    turns: int
    warmup: int
    bucket_mb: float
    policy: Policy
    timeout_s: float


class StepWorker:
    """One rank: all candidates side by side, each with a model of its own."""

    def __init__(self, settings: StepSettings, rank: int, star: ShapedStar | None, port: int) -> None:
        if star is not None:
            star.enter(rank)
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        host = "127.0.0.1" if star is None else star.addresses[rank]
        master = "127.0.0.1" if star is None else star.addresses[0]
        os.environ["GLOO_SOCKET_IFNAME"] = "lo" if star is None else "eth0"
        store = dist.TCPStore(master, port, settings.ranks, rank == 0)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=rank, world_size=settings.ranks)
        self._settings = settings
        self._lanes = {name: Lane(name, settings, host) for name in CANDIDATES}

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Runs one candidate's turn."""
        import torch.distributed as dist

        lane = self._lanes[question["candidate"]]
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(self._settings.steps):
            lane.step()
        lane.drain()
        return {"seconds": (time.perf_counter() - begin) / self._settings.steps, "digest": lane.digest()}


class Lane:
    """One candidate's model and optimizer."""

    def __init__(self, name: str, settings: StepSettings, host: str) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        from dlcp.bench.sleeper import Sleeper
        from dlcp.policy import Policy
        from dlcp.torch import DLCPState, PipelinedOptimizer

        torch.manual_seed(0)
        self._net = Sleeper(settings.layers, settings.elements, settings.compute_s)
        model = DistributedDataParallel(self._net, bucket_cap_mb=settings.bucket_mb)
        self._model = model
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        self._optimizer: torch.optim.Optimizer = optimizer
        self.drain: Callable[[], None] = lambda: None
        self._input = torch.ones(1, self._net.width)
        if name == "gloo":
            return
        policy = settings.policy
        if name == "pipelined_flat":
            contents = policy.to_dict()
            contents["classes"]["count"] = 1
            policy = Policy.from_dict(contents)
        state = DLCPState.from_process_group(policy=policy, host=host)
        if name == "hook":
            state.attach(model)
            return
        pipelined = PipelinedOptimizer(optimizer, model, state)
        self._optimizer, self.drain = pipelined, pipelined.drain

    def step(self) -> None:
        """One step of an ordinary training loop."""
        self._optimizer.zero_grad()
        self._model(self._input).square().mean().backward()
        self._optimizer.step()

    def digest(self) -> float:
        """Returns a number that differs if replicas do, nearly surely."""
        return float(sum(p.detach().double().sum() for p in self._net.parameters()))


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Seconds a step of every turn, of the slowest rank."""

    times: dict[str, list[float]]


def measure_steps(settings: StepSettings, progress: Callable[[str, int, int], None]) -> StepOutcome:
    """Measures.

    Raises:
        NoNamespacesError: Links are to be shaped, and cannot be.
        DLCPError: A rank or the transport failed.
    """
    with ended_by_sigterm(), ExitStack() as stack:
        star = None
        if settings.rate_bps is not None:
            enforced = None if settings.plain_switch else settings.policy
            star = stack.enter_context(ShapedStar(settings.ranks, settings.rate_bps, settings.queue_packets, enforced))
        port = _PORT if star is not None else _free_port()
        crew = stack.enter_context(Crew(settings.ranks, lambda rank: _worker(settings, rank, star, port)))
        return _take_turns(crew, settings, progress)


def _worker(settings: StepSettings, rank: int, star: ShapedStar | None, port: int) -> StepWorker:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what to take down is the parent's
    return StepWorker(settings, rank, star, port)


def _take_turns(crew: Crew, settings: StepSettings, progress: Callable[[str, int, int], None]) -> StepOutcome:
    times: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    total = settings.warmup + settings.turns
    for turn, order in turns(CANDIDATES, total):
        for candidate in order:
            limit = settings.timeout_s + (_START_S if turn == 0 else 0)
            answers = crew.ask(limit, do="turn", candidate=candidate)
            if len({answer["digest"] for answer in answers}) != 1:
                raise RuntimeError(f"replicas differ after {candidate}")
            if turn >= settings.warmup:
                times[candidate].append(max(answer["seconds"] for answer in answers))
        progress("turns", turn + 1, total)
    return StepOutcome(times)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def step_document(settings: StepSettings, outcome: StepOutcome) -> dict[str, Any]:
    """Returns the report: medians, ratios of medians, and what an ideal step would take."""
    found = {name: summarize(times) for name, times in outcome.times.items()}
    report: dict[str, Any] = {f"{name}_s": summary.p50_s for name, summary in found.items()}
    report["ratio_hook"] = found["pipelined"].p50_s / found["hook"].p50_s
    report["ratio_gloo"] = found["pipelined"].p50_s / found["gloo"].p50_s
    report["ratio_flat"] = found["pipelined"].p50_s / found["pipelined_flat"].p50_s
    report["compute_s"] = settings.compute_s
    report["switch"] = None if settings.rate_bps is None else "fifo" if settings.plain_switch else "dlcp"
    payload = 4 * settings.elements * 2 * (settings.ranks - 1) / settings.ranks
    report["communication_ideal_s"] = None if settings.rate_bps is None else 8 * payload / settings.rate_bps
    report["candidates"] = {name: {**summary.to_dict(), "times_s": outcome.times[name]} for name, summary in found.items()}
    return report


__all__ = ["CANDIDATES", "StepOutcome", "StepSettings", "measure_steps", "step_document"]
