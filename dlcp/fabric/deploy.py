"""All switches at once: look at them, work out what to change, change it.

First every switch is looked at and has verified what it will get; only if all agree is anything changed.  Then all are changed
concurrently, each as a transaction of its own (:mod:`dlcp.fabric.transaction`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

from dlcp.fabric import counters, transaction
from dlcp.fabric.counters import Counts
from dlcp.fabric.diff import owned
from dlcp.fabric.endpoints import Target
from dlcp.fabric.entities import Entity
from dlcp.fabric.errors import DeploymentError, FabricError
from dlcp.fabric.intent import Intent, drained_ports
from dlcp.fabric.program import Program
from dlcp.fabric.session import Session
from dlcp.fabric.transaction import SAME, Held, Plan
from dlcp.policy import Policy
from dlcp.topology import Topology

AT_ONCE: Final = 32
"""Switches that are talked to at the same time."""

T = TypeVar("T")
Notify = Callable[[str, str], None]
"""Is told a switch and what is being done to it."""


@dataclass
class Outcome:
    """What became of one switch.

    Attributes:
        plan: What was to be done.
        written: Entries that were written.
        error: What went wrong.
    """

    plan: Plan
    written: int = 0
    error: FabricError | None = None


@dataclass
class Seen:
    """What was found at one switch: how it is, or why that is not known."""

    target: Target
    version: str = ""
    held: Held | None = None
    error: FabricError | None = None


@dataclass
class Fabric:
    """The switches, while they are talked to; an asynchronous context manager.

    Attributes:
        topology: The network.
        policy: The policy.
        targets: The switches that are meant.
        program: The program for them.
        notify: Is told what goes on.
    """

    topology: Topology
    policy: Policy
    targets: Sequence[Target]
    program: Program
    notify: Notify = lambda switch, stage: None
    seen: dict[str, Seen] = field(default_factory=dict)
    _sessions: dict[str, Session] = field(default_factory=dict)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    async def look(self) -> None:
        """Finds out what every switch runs and holds; :attr:`seen` has it, or the error."""

        async def one(target: Target) -> Seen:
            seen = Seen(target)
            try:
                self.notify(target.name, "looking")
                session = await self._stack.enter_async_context(Session(target))
                seen.version = await session.version()
                seen.held = await transaction.look(session, self.program)
                self._sessions[target.name] = session
            except FabricError as error:
                seen.error = error
            return seen

        found = await _all(self.targets, one)
        self.seen = {seen.target.name: seen for seen in found}

    @property
    def failures(self) -> list[FabricError]:
        """Errors of :meth:`look`."""
        return [seen.error for seen in self.seen.values() if seen.error is not None]

    def held(self) -> dict[str, Held]:
        """Returns what the switches hold that answered."""
        return {name: seen.held for name, seen in self.seen.items() if seen.held is not None}

    def drained(self) -> set[tuple[str, int]]:
        """Returns the ports that the switches say are drained, of those that the topology still has."""
        known = {(arc.source, arc.port) for arc in self.topology.graph.arcs}
        said = {port for name, held in self.held().items() for port in drained_ports(name, held.entities)}
        return said & known

    def intent(self, drained: Collection[tuple[str, int]] | None = None) -> Intent:
        """Returns what all should hold, with the ports drained that are, or that are given."""
        return Intent(self.topology, self.policy, self.drained() if drained is None else drained)

    def session(self, name: str) -> Session:
        """Returns the conversation with a switch that answered."""
        return self._sessions[name]

    async def counters(self) -> dict[str, Counts]:
        """Reads the counters of all switches that answered.

        Raises:
            DeploymentError: One does not answer any more.
        """

        async def one(name: str) -> Counts | FabricError:
            try:
                return await counters.read(self._sessions[name], self.program)
            except FabricError as error:
                return error

        names = list(self._sessions)
        found = dict(zip(names, await _all(names, one), strict=True))
        failed = [each for each in found.values() if isinstance(each, FabricError)]
        if failed:
            raise DeploymentError(failed, "nothing was read")
        return {name: each for name, each in found.items() if isinstance(each, Counts)}

    def plans(self, intent: Intent) -> dict[str, Plan]:
        """Returns what has to be done to every switch that answered; ConfigError if the intent does not fit into one."""
        return {name: transaction.plan(held, intent.entities(name), self.program) for name, held in self.held().items()}

    def removals(self) -> dict[str, Plan]:
        """Returns what takes everything off again; switches that run something else are left out."""

        def everything(entity: Entity) -> bool:
            return True

        return {
            name: transaction.plan(held, (), self.program, everything)
            for name, held in self.held().items()
            if held.program == SAME
        }

    def edits(self, edit: Callable[[str, list[Entity]], list[Entity]]) -> dict[str, Plan]:
        """Returns what makes out of a switch's entities that are others' (permitted jobs) what ``edit`` makes of them."""

        def others(entity: Entity) -> bool:
            return not owned(entity)

        return {
            name: transaction.plan(held, edit(name, list(filter(others, held.entities))), self.program, others)
            for name, held in self.held().items()
            if held.program == SAME
        }

    async def apply(
        self, plans: Mapping[str, Plan], election: int, order: Callable[[str], int] = lambda switch: 0
    ) -> dict[str, Outcome]:
        """Carries plans out.

        Args:
            plans: What to do, by switch; empty ones cost nothing.
            election: Election id to become the primary controller with.
            order: Switches with a lower number are changed before others.

        Raises:
            DeploymentError: A switch did not agree, and nothing was changed; or one failed and is as it was before, the others
            are
                changed.
        """
        busy = [name for name, plan in plans.items() if not plan.empty]
        outcomes = {name: Outcome(plan) for name, plan in plans.items()}

        async def verify(name: str) -> FabricError | None:
            session = self._sessions[name]
            try:
                self.notify(name, "verifying")
                await session.become_primary(election)
                await transaction.verify(session, self.program, plans[name])
            except FabricError as error:
                return error
            return None

        async def commit(name: str) -> None:
            try:
                self.notify(name, "writing")
                outcomes[name].written = await transaction.commit(self._sessions[name], self.program, plans[name])
                self.notify(name, "done")
            except FabricError as error:
                outcomes[name].error = error
                self.notify(name, "failed")

        refused = [error for error in await _all(busy, verify) if error is not None]
        if refused:
            raise DeploymentError(refused, "no switch was changed")
        for rank in sorted({order(name) for name in busy}):
            await _all([name for name in busy if order(name) == rank], commit)
            if any(outcome.error for outcome in outcomes.values()):
                break
        failed = [outcome.error for outcome in outcomes.values() if outcome.error is not None]
        if failed:
            changed = [name for name in busy if outcomes[name].written and outcomes[name].error is None]
            raise DeploymentError(failed, f"changed: {', '.join(changed) or 'no other switch'}")
        return outcomes


Argument = TypeVar("Argument")


async def _all(items: Sequence[Argument], act: Callable[[Argument], Awaitable[T]]) -> list[T]:
    """Does something for all, a limited number at a time, and returns the results in order."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: Argument) -> T:
        async with gate:
            return await act(item)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in items]
    return [task.result() for task in tasks]


__all__ = ["Fabric", "Outcome", "Seen"]
