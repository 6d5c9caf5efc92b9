"""The simulated network of a co-simulation: steps with their times, and what of each message was lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dlcp.errors import ConfigError, DLCPError
from dlcp.policy import Policy
from dlcp.workload import DTYPE_BYTES, Workload
from sim.cosim.plan import ALGORITHMS, Collective, understood
from sim.cosim.reduce import Layout
from sim.engine.layout import F_END, F_GOT, F_MISSING, F_PACKETS
from sim.flows import path_mtu
from sim.simulation import Progress, Simulation
from sim.traffic.layout import chosen, places
from sim.traffic.units import units
from sim.training_table import iterations

if TYPE_CHECKING:
    from sim.scenario import Scenario


@dataclass(frozen=True)
class Step:
    """One simulated step.

    Attributes:
        seconds: How long it took.
        collectives: What it reduced.
        missing: Of each message that lost something which packets are missing, by number.
        packets: Of all its messages.
        exposed: Seconds of it in which the slowest rank did not compute.
    """

    seconds: float
    collectives: Sequence[Collective]
    missing: dict[int, NDArray[np.bool_]]
    packets: int
    exposed: float


def missing_packets(simulation: Simulation, number: int) -> NDArray[np.bool_]:
    """Returns which packets of a message have not arrived, ``bool[packets]``; they are numbered as its payload is.

    Raises:
        DLCPError: The message is not complete, so that this is not settled.
    """
    memory, at = simulation.memory, simulation.flows[number]
    if not memory[at + F_END]:
        raise DLCPError(f"message {number} is not complete")
    packets = memory[at + F_PACKETS]
    words = np.array([memory[memory[at + F_GOT] + word] for word in range((packets + 31) // 32)], np.int64)
    got = ((words[:, None] >> np.arange(32)) & 1).astype(bool).ravel()[:packets]
    return ~got


class Network:
    """Simulates steps of a training job, some at a time.

    Args:
        scenario: One training job; its ``iterations`` do not matter.
        folder: What its paths are relative to.
        workload: The model, whose bytes are what is trained.
        engine: Of :data:`sim.memory.ENGINES`.
        chunk: Steps of a simulation.
        warmup: Steps at the beginning of each simulation that do not count: connections are new then.
        most: Steps that are simulated; after those they begin anew.
        stop: Asked now and then; a simulation ends if it returns True.

    Raises:
        ConfigError: The scenario is not one that can be co-simulated.
    """

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        workload: Workload,
        *,
        engine: str,
        chunk: int = 20,
        warmup: int = 1,
        most: int = 200,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        traffic = scenario.traffic
        accepted = (
            ("traffic.kind", traffic.kind, ("training",)),
            ("traffic.algorithm", traffic.algorithm, ALGORITHMS),
            ("traffic.local_steps", traffic.local_steps, (1,)),
            ("jobs", len(scenario.jobs), (0,)),
        )
        for key, value, values in accepted:
            if value not in values:
                words = "one of " if len(values) > 1 else ""
                raise ConfigError("<scenario>", key, f"{value} cannot be co-simulated", words + ", ".join(map(str, values)))
        self._scenario, self._folder, self._workload = scenario, folder, workload
        self._engine, self._chunk, self._warmup, self._most, self._stop = engine, chunk, warmup, most, stop
        self.parts = units(workload, traffic.schedule, int(traffic.bucket), int(traffic.chunk))
        """What leaves a rank at once."""
        self.schedule = traffic.schedule.removesuffix("s")
        """What the groups of messages are called, before their number."""
        self.simulated = 0
        """Steps that have been simulated, without those that do not count."""
        first = self._build(0)
        topology = first.topology
        hosts = chosen(topology, (), "traffic")
        servers: list[int] = []
        if traffic.algorithm == "ps":
            servers = chosen(topology, traffic.servers, "traffic.servers") if traffic.servers else hosts[-traffic.server_count :]
        ranks = places(topology, hosts, servers)
        self.world = len(ranks)
        """Ranks that train."""
        self._hosts = [*ranks, *servers]
        self.policy: Policy = first.policy
        payloads = {
            (message.transport or first.transport).payload_bytes(path_mtu(topology, message))
            for message in first.messages
            if message.source != message.destination and not message.extra
        }
        if len(payloads) != 1:
            raise ConfigError("<topology>", "mtu", "packets of different sizes, or no messages", "one MTU, and several ranks")
        kinds = {layer.dtype for layer in workload.layers}
        if len(kinds) != 1:
            raise ConfigError("<workload>", "layers", f"gradients are {' and '.join(sorted(kinds))}", "layers of one type")
        self.layout = Layout(DTYPE_BYTES[kinds.pop()], payloads.pop())
        self.sorts = first.transport.name == "dlcp"
        """Whether packets with large gradients are those that it protects, and sends first."""

    def steps(self) -> Iterator[Step]:
        """Yields steps without end; those beyond ``most`` are those from the beginning once more.

        Raises:
            DLCPError: A simulation came to its time limit.
        """
        kept: list[Step] = []
        chunk = 0
        while len(kept) < self._most:
            for step in self._simulate(chunk):
                kept.append(step)
                self.simulated = len(kept)
                yield step
                if len(kept) >= self._most:
                    break
            chunk += 1
        while True:
            yield from kept

    def _build(self, chunk: int) -> Simulation:
        scenario = self._scenario
        traffic = dataclasses.replace(scenario.traffic, iterations=self._chunk + self._warmup)
        # Each simulation is one of its own.
        seed = (scenario.seed + 7919 * chunk) % 2**31
        return dataclasses.replace(scenario, traffic=traffic, seed=seed).build(self._folder, self._engine)

    def _simulate(self, chunk: int) -> list[Step]:
        simulation = self._build(chunk)
        stopped = False

        def look(progress: Progress) -> bool:
            nonlocal stopped
            stopped = self._stop()
            return stopped

        if not simulation.run(int(self._scenario.limit), look):
            if stopped:
                raise KeyboardInterrupt
            raise DLCPError(
                f"{self._chunk + self._warmup} steps take longer than the scenario's limit; raise it, or --chunk less"
            )
        parts = [(f"{self.schedule}{number}", part.sizes) for number, part in enumerate(self.parts)]
        algorithm = self._scenario.traffic.algorithm
        collectives = understood(simulation.messages, algorithm, self._hosts, self.world, parts)
        times = {row["iteration"]: row for row in iterations(simulation)}
        memory = simulation.memory
        found = []
        for number in range(self._warmup, len(collectives)):
            pieces = [piece for each in collectives[number] for piece in each.pieces]
            missing = {
                piece.number: missing_packets(simulation, piece.number)
                for piece in pieces
                if memory[simulation.flows[piece.number] + F_MISSING] > 0
            }
            packets = sum(memory[simulation.flows[piece.number] + F_PACKETS] for piece in pieces)
            row = times[number]
            found.append(Step(row["step_s"], collectives[number], missing, packets, row["exposed_s"]))
        return found


__all__ = ["Network", "Step", "missing_packets"]
