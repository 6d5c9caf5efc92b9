"""What is deployed to P4 switches, by the same code as ``dlcp switch deploy``."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from dlcp.policy import Policy
from dlcp.topology import Topology
from testbed.lab.errors import LabError
from testbed.lab.signals import uninterrupted

T = TypeVar("T")
ELECTION: Final = 1 << 64 | 1


def warm_up() -> None:
    """Begins to load what deployments need, in a thread: that takes half a second, in which others can build a network."""

    def load() -> None:
        # What is missing is said by whoever needs it.
        with contextlib.suppress(ImportError):
            importlib.import_module("dlcp.fabric.deploy")

    threading.Thread(target=load, name="warm-up", daemon=True).start()


def deploy(
    topology: Topology,
    policy: Policy,
    sockets: Mapping[str, Path],
    notify: Callable[[str, str], object] = lambda switch, stage: None,
) -> int:
    """Sets program and entries on switches, and returns the number of entries written.

    Args:
        topology: The network.
        policy: The policy.
        sockets: Where the P4Runtime server of each listens.
        notify: Is told a switch and what is being done to it.

    Raises:
        DeploymentError: A switch refused, or does not answer.
    """
    # Only now: gRPC takes a while to import, and not every network has P4 switches.
    from dlcp.fabric import program
    from dlcp.fabric.deploy import Fabric
    from dlcp.fabric.errors import DeploymentError

    def tell(switch: str, stage: str) -> None:
        notify(switch, stage)

    async def do() -> int:
        async with Fabric(topology, policy, _targets(topology, sockets), program.load(), tell) as fabric:
            await fabric.look()
            if fabric.failures:
                raise DeploymentError(fabric.failures, "no switch was changed")
            outcomes = await fabric.apply(fabric.plans(fabric.intent()), ELECTION)
            return sum(outcome.written for outcome in outcomes.values())

    return _run(do())


def counters(topology: Topology, policy: Policy, sockets: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Reads what the program has counted, by switch.

    Raises:
        LabError: A switch does not answer.
    """
    from dlcp.fabric import program
    from dlcp.fabric.deploy import Fabric
    from dlcp.fabric.errors import DeploymentError

    async def do() -> dict[str, dict[str, Any]]:
        async with Fabric(topology, policy, _targets(topology, sockets), program.load()) as fabric:
            await fabric.look()
            if fabric.failures:
                raise DeploymentError(fabric.failures, "nothing was read")
            return {name: counts.to_dict() for name, counts in (await fabric.counters()).items()}

    try:
        return _run(do())
    except DeploymentError as error:
        raise LabError(str(error)) from error


def _targets(topology: Topology, sockets: Mapping[str, Path]) -> Sequence[Any]:
    from dlcp.fabric.endpoints import Target

    return [Target(name, f"unix:{path}", topology.device_ids[name]) for name, path in sockets.items()]


_SLICE_S: Final = 0.2
_lock: Final = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end, from any thread, in a loop that lasts as long as this process.

    gRPC's poller (1.85) tells every loop that it has ever seen, and complains on standard error about those that are closed.
    """
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="deployments", daemon=True).start()
    future: concurrent.futures.Future[T] | None = None
    try:
        with uninterrupted():
            future = asyncio.run_coroutine_threadsafe(work, _loop)
        # In slices: a signal that the kernel gave to another thread interrupts no wait of this one.
        while not concurrent.futures.wait([future], _SLICE_S).done:
            pass
        return future.result()
    except BaseExceptionGroup as group:
        raise _first(group) from None
    except BaseException:
        if future is not None:
            future.cancel()  # this thread was interrupted, and takes the switches down
        raise


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


__all__ = ["counters", "deploy", "warm_up"]
