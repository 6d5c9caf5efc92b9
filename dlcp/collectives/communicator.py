"""The communicator: collectives on numpy arrays over DLCP, without torch.

Example:
    >>> import numpy as np, dlcp
    >>> alone = dlcp.Communicator(0, 1, dlcp.MemoryStore())
    >>> alone.allreduce(np.ones(3, np.float32), op="sum")
    array([1., 1., 1.], dtype=float32)
    >>> alone.close()
"""

from __future__ import annotations

import itertools
import operator
import os
import threading
from multiprocessing.util import Finalize
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dlcp.collectives.bounds import PushBounds
from dlcp.collectives.collective import Collective
from dlcp.collectives.elements import item_bytes, wire_type
from dlcp.collectives.link import Link
from dlcp.collectives.observer import Observer
from dlcp.collectives.operation import Operation
from dlcp.collectives.plain import Barrier, Broadcast
from dlcp.collectives.plan import Plan
from dlcp.collectives.reliable import ReliableCalls, flat_array
from dlcp.collectives.ring import RingAllReduce
from dlcp.collectives.sharded import ShardedAllReduce
from dlcp.errors import ClosedError, ConfigError
from dlcp.policy import Policy
from dlcp.store import Store
from dlcp.transport.serial import MASK
from dlcp.udp.faults import FaultPlan
from dlcp.wire.header import LAYER_CLASSES, WireType

Algorithm = Literal["sharded", "ring", "ps"]
ReduceOp = Literal["mean", "sum"]

ALGORITHMS: Final = ("sharded", "ring", "ps")
DEFAULT_TAG: Final = 3 * 2
"""Arrays that come without tags: the middle class, droppable."""


class Communicator(ReliableCalls):
    """One rank's end of a job.

    All ranks construct it, with equal ``world``, ``policy`` and ``algorithm``, and then call the same collectives in the same
    order.  Calls may overlap.  Methods may be called from any thread, but their order is the order of the calls.

    Args:
        rank: Own rank, 0 to world - 1.
        world: Number of ranks, dedicated servers not counted.
        store: Where ranks meet; any of :mod:`dlcp.store`, or a store of ``torch.distributed``.
        policy: What may be lost, and how packets are tagged and sent.
        host: Local address to bind, and under which peers reach this rank.  Loopback unless said otherwise.
        port: UDP port; 0 lets the kernel choose.
        algorithm: ``sharded`` (every rank serves a shard), ``ring``, or ``ps`` (dedicated servers, see :func:`serve`).
        servers: Number of dedicated servers, for ``ps``.
        faults: Packets to drop, delay or reorder on their way out, for tests and demonstrations; a plan, or what
            :meth:`FaultPlan.parse` takes.
        name: Keeps communicators apart that share a store and exist at the same time; one after another may have the same name.

    Raises:
        ConfigError: Arguments or policy do not fit each other or this host.
        RendezvousError, MismatchError: The ranks did not meet or do not fit.
        AddressError: ``host`` and ``port`` cannot be bound.
        UnreachableError, MtuError: A peer does not answer, or not to datagrams of full size.
        RemoteError: Another rank could not start, and said why.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        store: Store,
        *,
        policy: Policy | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        algorithm: Algorithm = "sharded",
        servers: int = 0,
        faults: FaultPlan | str | None = None,
        name: str = "default",
    ) -> None:
        rank, world, servers = operator.index(rank), operator.index(world), operator.index(servers)
        _check_arguments(rank, world, algorithm, servers, policy or Policy())
        self.rank = rank
        self.world = world
        self.policy = policy or Policy()
        self.algorithm = algorithm
        self._members = tuple(range(world))
        self._owners = tuple(range(world, world + servers)) if algorithm == "ps" else self._members
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._closed = False
        self._pid = os.getpid()
        self._link = Link(
            rank,
            world,
            store,
            policy=self.policy,
            host=host,
            port=port,
            algorithm=algorithm,
            servers=servers,
            faults=faults,
            name=name,
        )
        # Unlike atexit, this also runs in processes that multiprocessing has started.
        self._finalizer = Finalize(None, self._at_exit, exitpriority=0)

    @property
    def stride(self) -> int:
        """Payload bytes of a packet, agreed by all ranks."""
        return self._link.engine.stride

    @property
    def address(self) -> tuple[str, int]:
        """Host and UDP port of this rank."""
        return self._link.address

    def elements_per_packet(self, dtype: DTypeLike) -> int:
        """Returns how many elements of an array of ``dtype`` travel in one packet.

        Packet ``k`` of an array covers the elements ``[k * E, (k + 1) * E)``.
        """
        return self.stride // item_bytes(wire_type(np.dtype(dtype), self.policy.wire.dtype))

    def packets(self, elements: int, dtype: DTypeLike) -> int:
        """Returns how many packets, and so how many tags, an array of ``elements`` takes."""
        return max(1, -(-elements // self.elements_per_packet(dtype)))

    def allreduce_async(
        self,
        array: NDArray[Any],
        *,
        op: ReduceOp = "mean",
        tags: NDArray[np.uint8] | None = None,
        out: NDArray[Any] | None = None,
        bound: float | None = None,
        order: int = 0,
    ) -> Operation:
        """Starts reducing ``array`` over all ranks.

        Args:
            array: float32 or float64, any shape, C-contiguous; must not change until the operation ends.
            op: ``mean`` or ``sum``.
            tags: ``uint8[packets]``, class * 2 + protected for each packet (see :meth:`packets`); None: class 3, droppable.
            out: Where the result goes: same size and dtype, C-contiguous, writeable.  It may be ``array`` itself if the policy
                allows no push to be lost, since the residual is read from ``array``; it must not overlap it otherwise.  After a
                failure its contents are unspecified.
            bound: Largest share of this rank's contribution that may be missing, at most the policy's ``loss.push``, which is
                the default.  It travels with the messages, so that ranks need not agree.
            order: Among packets of one class those of the call with the lowest order go first, and then those of the first call.

        Returns:
            The operation; its result is a :class:`~dlcp.collectives.operation.Reduction`.

        Raises:
            TypeError, ValueError: The arguments do not fit.
            ClosedError: The communicator is closed.
        """
        flat = flat_array(array, "array")
        kind = wire_type(array.dtype, self.policy.wire.dtype)
        ring = self.algorithm == "ring" and self.world > 1
        plan = Plan(flat.size, kind, self.stride, self.policy.wire.message_bytes, len(self._owners), through=ring)
        if tags is None:
            tags = np.full(plan.packets, DEFAULT_TAG, np.uint8)
        elif not isinstance(tags, np.ndarray) or tags.dtype != np.uint8 or tags.shape != (plan.packets,):
            found = f"{tags.dtype}{list(tags.shape)}" if isinstance(tags, np.ndarray) else type(tags).__name__
            raise ValueError(f"tags are {found}, uint8[{plan.packets}] is needed")
        elif int(tags.max()) >= 2 * LAYER_CLASSES:
            raise ValueError(f"tag {int(tags.max())} names a class above {LAYER_CLASSES - 1}")
        else:
            tags = tags.copy()
        if op not in ("mean", "sum"):
            raise ValueError(f"op is {op!r}; mean and sum are known")
        output = np.empty_like(flat) if out is None else flat_array(out, "out")
        _check_output(flat, output, may_be_input=self.policy.loss.push == 0)
        push = PushBounds(self.policy.loss, bound)
        handle = Operation(f"all-reduce of {flat.size} elements", flat.nbytes)
        common: dict[str, Any] = {
            "array": flat,
            "output": output,
            "plan": plan,
            "tags": tags,
            "mean": op == "mean",
            "shape": array.shape,
            "push": push,
        }
        with self._lock:
            wires, number = self._link.engine, self._next_number(handle)
            collective: Collective
            if ring:
                collective = RingAllReduce(wires, number, handle, world=self.world, **common)
            else:
                collective = ShardedAllReduce(wires, number, handle, contributors=self._members, owners=self._owners, **common)
            collective.order = order
            self._start(collective)
        return handle

    def allreduce(
        self,
        array: NDArray[Any],
        *,
        op: ReduceOp = "mean",
        tags: NDArray[np.uint8] | None = None,
        out: NDArray[Any] | None = None,
        timeout: float | None = None,
    ) -> NDArray[Any]:
        """Reduces ``array`` over all ranks and returns the result; see :meth:`allreduce_async`.

        What was lost of this rank's contribution is dropped; use :meth:`allreduce_async` and a
        :class:`~dlcp.collectives.residual.ResidualStore` to conserve it.
        """
        return self.allreduce_async(array, op=op, tags=tags, out=out).wait(timeout).output

    def broadcast(self, array: NDArray[Any], root: int = 0, *, timeout: float | None = None) -> NDArray[Any]:
        """Makes ``array`` equal to the one of rank ``root``, in place, reliably; any dtype and shape, C-contiguous.

        Unless it succeeds ``array`` is not touched.
        """
        return self.broadcast_async(array, root).wait(timeout).output

    def broadcast_async(self, array: NDArray[Any], root: int = 0) -> Operation:
        """Starts :meth:`broadcast`."""
        if not 0 <= root < self.world:
            raise ValueError(f"root {root} is not a rank of {self.world}")
        flat = flat_array(array, "array")
        if root != self.rank and not flat.flags.writeable:
            raise ValueError("array is read-only")
        data = flat.view(np.uint8)
        plan = Plan(data.size, WireType.UINT8, self.stride, self.policy.wire.message_bytes, 1)
        handle = Operation(f"broadcast of {data.size} bytes from rank {root}", data.nbytes)
        with self._lock:
            number = self._next_number(handle)
            self._start(
                Broadcast(self._link.engine, number, handle, array=array, data=data, plan=plan, root=root, ranks=self._members)
            )
        return handle

    def barrier(self, *, timeout: float | None = None) -> None:
        """Returns when every rank has called it."""
        self.barrier_async().wait(timeout)

    def barrier_async(self) -> Operation:
        """Starts :meth:`barrier`."""
        handle = Operation("barrier")
        with self._lock:
            number = self._next_number(handle)
            self._start(Barrier(self._link.engine, number, handle, ranks=self._members))
        return handle

    def abort(self, reason: str) -> None:
        """Gives up in this rank's name: every operation, here and at every peer, ends with a RemoteError that says why.

        Without effect if something else has ended the job before.
        """
        self._link.abort(reason)

    def metrics(self) -> dict[str, Any]:
        """Returns counters: ``transport`` (packets by verdict, messages by fate), ``udp``, ``faults``, ``peers``, ``senders``.

        The last says what each rank's contributions go without on average, as far as this rank sees.
        """
        return self._link.metrics()

    def take_notices(self) -> list[dict[str, Any]]:
        """Returns the corrections of uneven loss since the last time (:mod:`dlcp.transport.evenness`), and forgets them."""
        waiting, taken = self._link.engine.endpoint.evenness.notices, []
        while waiting:
            taken.append(waiting.popleft())
        return taken

    def observe(self, observer: Observer | None) -> None:
        """Shows an observer what happens from now on, in place of the one before; None ends that."""

        def replace(now: int) -> None:
            self._link.engine.observer = observer

        self._link.thread.call(replace)

    def close(self) -> None:
        """Leaves in good order.  May be repeated.

        Waits until peers have what this rank owes them, as long as ``timeouts.peer_s`` allows, and then a few seconds at most for
        them to close too.  Operations that have not ended by then raise :class:`~dlcp.errors.ClosedError` here, and at peers
        that need this rank :class:`~dlcp.errors.PeerLostError`.

        Raises:
            RuntimeError: Called from a callback of an operation.
        """
        if self._link.inside:
            raise RuntimeError("a callback cannot close the communicator: closing waits for the thread that callbacks run in")
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._finalizer.cancel()
        # A forked child has the object but not the thread, and must not speak in its parent's name.
        if os.getpid() == self._pid:
            self._link.close()

    def _at_exit(self) -> None:
        """The process ends without having closed: if it does so in the middle of an operation, peers need not wait."""
        if os.getpid() == self._pid and self._link.engine.busy:
            self.abort("its process ends in the middle of an operation")
        self.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    def _next_number(self, handle: Operation) -> int:
        """Numbers a call, whose arguments have been found good: ranks whose numbers differ would not understand each other."""
        self._check_open()
        number = next(self._numbers) & MASK
        handle.description = f"operation {number} ({handle.description})"
        return number

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the communicator is closed")

    def _start(self, collective: Collective) -> None:
        try:
            self._link.thread.call(lambda now: self._link.engine.start(collective, now))
        except ClosedError:
            collective.handle.finish(None, self._link.engine.error or ClosedError("the I/O thread has ended"))


def _check_output(flat: NDArray[Any], output: NDArray[Any], *, may_be_input: bool) -> None:
    if output.size != flat.size or output.dtype != flat.dtype:
        raise ValueError(f"out is {output.dtype}[{output.size}], {flat.dtype}[{flat.size}] is needed")
    if not output.flags.writeable:
        raise ValueError("out is read-only")
    if not np.may_share_memory(flat, output):
        return
    if not may_be_input:
        raise ValueError("out shares memory with array, but the policy allows contributions to be lost: pass another array")
    if flat.__array_interface__["data"][0] != output.__array_interface__["data"][0]:
        raise ValueError("out overlaps array, but is not the same memory")


def _check_arguments(rank: int, world: int, algorithm: str, servers: int, policy: Policy) -> None:
    def refuse(key: str, problem: str, accepted: str) -> ConfigError:
        return ConfigError("Communicator", key, problem, accepted)

    if world < 1 or servers < 0 or world + servers > 65535:
        raise refuse("world", f"{world} ranks and {servers} servers", "1 to 65535 ranks, servers included")
    if not 0 <= rank < world:
        raise refuse("rank", f"{rank} is not a rank of {world}", f"0 to {world - 1}")
    if algorithm not in ALGORITHMS:
        raise refuse("algorithm", f"{algorithm!r} is unknown", ", ".join(ALGORITHMS))
    if (algorithm == "ps") != (servers > 0):
        raise refuse("servers", f"{servers} with algorithm {algorithm!r}", "1 or more with ps, 0 otherwise")
    if algorithm == "ring" and policy.loss.compensation == "rescale":
        accepted = "error-feedback or zero; or algorithm sharded or ps"
        raise refuse("policy.loss.compensation", "a ring cannot tell how many contributions a lost partial sum held", accepted)
