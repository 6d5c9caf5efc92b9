"""A dedicated parameter server's side of an all-reduce, and :func:`serve`, which runs one.

It is passive: what it must do stands in the headers of what comes, so it needs to know neither the model nor the order of calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.collective import Collective, Wires
from dlcp.collectives.elements import is_mean, item_bytes, kind_of, to_wire
from dlcp.collectives.link import Link
from dlcp.collectives.operation import Operation, Reduction
from dlcp.collectives.reduce import zero_lost
from dlcp.collectives.sharded import PartReduction
from dlcp.errors import ClosedError, ConfigError, MismatchError
from dlcp.policy import Policy
from dlcp.store import Store
from dlcp.transport.events import MessageReceived, MessageSent, describe, dtype_of, message_id, operation_of, part_of, phase_of
from dlcp.transport.incoming import UNKNOWN_TAG
from dlcp.udp.faults import FaultPlan
from dlcp.wire.header import LAYER_CLASSES, Phase

_FALLBACK_TAG = 3 * 2
_EMPTY = Reduction(np.zeros(0, np.float32), np.zeros((0, 2), np.int64), np.zeros(0, np.float32))


class ServedAllReduce(Collective):
    """The parts of one call that this server owns and that are in progress; a part that comes later makes a new one.

    Args:
        wires: Way to the transport.
        number: Number of the call.
        contributors: Ranks that contribute, ascending.
    """

    def __init__(self, wires: Wires, number: int, contributors: Sequence[int]) -> None:
        handle = Operation(f"operation {number} served to ranks {list(contributors)}")
        super().__init__(wires, number, handle, "", contributors)
        self._contributors = tuple(contributors)
        self._first: MessageReceived | None = None
        self._parts: dict[int, PartReduction] = {}
        self._sizes: dict[int, int] = {}
        self._tags: dict[int, NDArray[np.uint8]] = {}
        self._unacknowledged: set[tuple[int, int]] = set()

    def start(self, now: int) -> None:
        """Everything starts with a contribution."""

    def on_received(self, event: MessageReceived, now: int) -> bool:
        if phase_of(event.message) != Phase.PUSH or event.peer not in self._contributors:
            return False
        self._check(event)
        key = event.message
        reduction = self._parts.get(key)
        if reduction is None:
            reduction = self._parts[key] = PartReduction(self._contributors)
            for peer in self._contributors:
                # The one that is here too: until it is asked for, the transport counts it as a message that came too early.
                self.wires.expect(peer, key, event.data.size, now=now)
        if event.peer not in reduction.waiting:
            return False
        if self._sizes.setdefault(key, event.data.size) != event.data.size:
            raise MismatchError(
                f"ranks call operation {self.number} with arrays of different lengths: {describe(key)} has {self._sizes[key]} "
                f"bytes, and {event.data.size} from rank {event.peer}"
            )
        zero_lost(event.data, event.lost, event.stride)
        self._merge_tags(event)
        if reduction.add(event.peer, event.data, event.lost):
            del self._parts[key], self._sizes[key]
            self._answer(reduction, event, now)
        return True

    def _check(self, event: MessageReceived) -> None:
        """All messages of a call must speak of the same array; the ``dtype`` byte says more than the type."""
        first = self._first
        if first is None:
            self._first = event
            dtype = dtype_of(event.message)
            try:
                item = item_bytes(kind_of(dtype))
            except ValueError:
                item = 0
            if not item or event.data.size % item:
                raise MismatchError(f"rank {event.peer} sent {describe(event.message)} of an unknown element type, {dtype:#04x}")
        elif dtype_of(event.message) != dtype_of(first.message):
            raise MismatchError(
                f"ranks {first.peer} and {event.peer} call operation {self.number} with different arguments: "
                f"{_arguments(first)} / {_arguments(event)}"
            )

    def _merge_tags(self, event: MessageReceived) -> None:
        """Results travel with the classes of the contributions: a rank that had to send a packet again hid its class."""
        if event.tags is not None:
            known = self._tags.get(event.message)
            self._tags[event.message] = event.tags if known is None else np.minimum(known, event.tags)

    def _answer(self, reduction: PartReduction, event: MessageReceived, now: int) -> None:
        dtype = dtype_of(event.message)
        kind = kind_of(dtype)
        rescale = self.wires.policy.loss.compensation == "rescale"
        total = reduction.total(kind, event.stride // item_bytes(kind), mean=is_mean(dtype), rescale=rescale)
        payload = to_wire(total, kind)
        message = message_id(operation_of(event.message), Phase.PULL, dtype, part_of(event.message))
        packets = max(1, -(-payload.size // event.stride))
        tags = fill_classes(self._tags.pop(event.message, np.full(packets, UNKNOWN_TAG, np.uint8)))
        bound = self.bound(Phase.PULL)
        if not bound:
            tags |= np.uint8(1)
        for peer in self._contributors:
            self._unacknowledged.add((peer, message))
            self.wires.send(peer, message, payload, tags=tags, bound=bound, now=now)

    def on_sent(self, event: MessageSent, now: int) -> None:
        self._unacknowledged.discard((event.peer, event.message))
        if not self._parts and not self._unacknowledged:
            self.handle.finish(_EMPTY)

    def missing(self) -> str:
        ranks = sorted({rank for reduction in self._parts.values() for rank in reduction.waiting})
        unacknowledged = sorted({peer for peer, _ in self._unacknowledged})
        parts = []
        if ranks:
            parts.append(f"contributions of ranks {ranks}")
        if unacknowledged:
            parts.append(f"acknowledgements of ranks {unacknowledged}")
        return ", ".join(parts)


def _arguments(event: MessageReceived) -> str:
    dtype = dtype_of(event.message)
    try:
        name = kind_of(dtype).name.lower()
    except ValueError:
        name = f"type {dtype & 15}"
    return f"{'mean' if is_mean(dtype) else 'sum'} of {name} in {dtype >> 4 & 7} (folded) parts"


def fill_classes(tags: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Gives packets whose class is not known that of a neighbour, the one before it if there is one.

    Args:
        tags: ``uint8[n]``, class * 2 + protected; class 7 means unknown.

    Returns:
        A copy in which every class is 0 to 6.
    """
    known = tags >> 1 < LAYER_CLASSES
    if not known.any():
        return np.full_like(tags, _FALLBACK_TAG)
    places = np.flatnonzero(known)
    # For each packet the last known one at or before it; the first known one for those before all.
    nearest = places[np.maximum(np.cumsum(known) - 1, 0)]
    filled: NDArray[np.uint8] = tags[nearest]
    return filled


def serve(
    server_index: int,
    servers: int,
    world: int,
    store: Store,
    *,
    policy: Policy | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    faults: FaultPlan | str | None = None,
    name: str = "default",
    stop: threading.Event | None = None,
    on_ready: Callable[[tuple[str, int]], None] = lambda address: None,
) -> dict[str, Any]:
    """Runs a dedicated parameter server for communicators with ``algorithm="ps"``, until all workers have closed theirs.

    Server ``i`` of ``servers`` owns the i-th share of every array.  On the wire its rank is ``world + i``.

    Args:
        server_index: Own number, 0 to servers - 1.
        servers: Number of servers.
        world: Number of workers.
        store: Where ranks meet.
        policy: The job's policy.
        host: Address to bind, and under which workers reach this server.
        port: UDP port; 0 lets the kernel choose.
        faults: Packets to drop, delay or reorder on their way out.
        name: Keeps jobs that share a store apart.
        stop: Ends the server early when set: workers then raise :class:`~dlcp.errors.RemoteError`.
        on_ready: Called with host and port when all ranks have met.

    Returns:
        The counters of :meth:`Communicator.metrics` at the end.

    Raises:
        ConfigError, RendezvousError, MismatchError, AddressError, UnreachableError, MtuError: As for
            :class:`~dlcp.collectives.communicator.Communicator`.
        PeerLostError, RemoteError, OperationTimeoutError: What ended the job.
        ClosedError: ``stop`` was set.
    """
    if servers < 1:
        raise ConfigError("serve", "servers", f"{servers} servers", "1 or more")
    if not 0 <= server_index < servers:
        raise ConfigError("serve", "server_index", f"{server_index} is not one of {servers} servers", f"0 to {servers - 1}")
    if not 1 <= world <= 65535 - servers:
        raise ConfigError("serve", "world", f"{world} workers", f"1 to {65535 - servers}")
    workers = frozenset(range(world))
    link = Link(
        world + server_index,
        world,
        store,
        policy=policy or Policy(),
        host=host,
        port=port,
        algorithm="ps",
        servers=servers,
        faults=faults,
        name=name,
        serve=lambda engine, event: ServedAllReduce(engine, operation_of(event.message), sorted(workers)),
    )
    engine = link.engine
    try:
        on_ready(link.address)

        def over() -> bool:
            return engine.left >= workers or engine.error is not None or (stop is not None and stop.is_set())

        # The stop event knows nothing of the I/O thread, so it is looked at from time to time.
        while not link.wait_until(over, 0.1 if stop is not None else 3600.0):
            if stop is not None and stop.is_set():
                break
        if engine.error is not None:
            raise engine.error
        if not engine.left >= workers:
            reason = f"parameter server {server_index} was stopped"
            link.abort(reason)
            raise ClosedError(reason)
        return link.metrics()
    except BaseException as error:
        link.abort(f"parameter server {server_index}: {type(error).__name__}: {error}")
        raise
    finally:
        link.close()
