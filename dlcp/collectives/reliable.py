"""Calls of a communicator that lose nothing, of arrays of any type: reductions, exchanges, point-to-point messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.arithmetic import Arithmetic
from dlcp.collectives.collective import Collective
from dlcp.collectives.direct import Receive, Send, check_parts
from dlcp.collectives.exact import BULK_CLASS, ExactReduction, cut
from dlcp.collectives.exchange import Exchange
from dlcp.collectives.link import Link
from dlcp.collectives.operation import Operation
from dlcp.collectives.plan import Plan
from dlcp.policy import Policy
from dlcp.wire.header import LAYER_CLASSES, WireType

Bytes = NDArray[np.uint8]


class ReliableCalls:
    """The part of a :class:`~dlcp.collectives.communicator.Communicator` that makes these calls.

    Arrays are C-contiguous and must not change until the operation ends.  After a failure outputs hold anything.
    """

    rank: int
    world: int
    policy: Policy
    _link: Link
    _lock: threading.Lock
    _members: tuple[int, ...]

    def _next_number(self, handle: Operation) -> int:
        raise NotImplementedError

    def _check_open(self) -> None:
        raise NotImplementedError

    def _start(self, collective: Collective) -> None:
        raise NotImplementedError

    # -- reductions ----------------------------------------------------------------------------------------------------------

    def exact_allreduce_async(
        self,
        array: NDArray[Any],
        *,
        op: str = "sum",
        element: str | None = None,
        out: NDArray[Any] | None = None,
        priority: int = BULK_CLASS,
    ) -> Operation:
        """Starts reducing ``array`` over all ranks; unlike ``allreduce`` reliably, whatever the policy, and of any type.

        Args:
            array: What this rank contributes, any shape.
            op: ``sum``, ``mean``, ``min``, ``max``, ``product``, ``and``, ``or`` or ``xor``.
            element: Type of the elements, if numpy does not know it: ``bfloat16`` for an array of ``uint16``.
            out: Where the result goes; it may be ``array`` itself.
            priority: Class of the packets, 0 to 6.

        Returns:
            The operation; the result's ``output`` is the reduced array.

        Raises:
            TypeError, ValueError: The arguments do not fit.
            ClosedError: The communicator is closed.
        """
        data, arithmetic = _operand(array, "array", op, element)
        result = np.empty_like(array) if out is None else out
        output = _target(result, data.size, "out")
        if np.may_share_memory(data, output) and _address(data) != _address(output):
            raise ValueError("out overlaps array, but is not the same memory")
        plan = Plan(data.size, WireType.UINT8, self._link.engine.stride, self.policy.wire.message_bytes, self.world)
        shards: dict[int, slice] = {}
        for owner in self._members:
            parts = plan.shard(owner)
            if parts and parts[-1].elements.stop > parts[0].elements.start:
                shards[owner] = slice(parts[0].elements.start, parts[-1].elements.stop)
        return self._reduce(
            f"all-reduce ({op}) of {data.size // arithmetic.item} {arithmetic.element}",
            {owner: data[shard] for owner, shard in shards.items()},
            {owner: output[shard] for owner, shard in shards.items()},
            arithmetic,
            spread=True,
            result=result,
            priority=priority,
        )

    def reduce_scatter_async(
        self,
        arrays: Sequence[NDArray[Any]],
        *,
        op: str = "sum",
        element: str | None = None,
        out: NDArray[Any],
        priority: int = BULK_CLASS,
    ) -> Operation:
        """Starts reducing one array for each rank; this rank gets the one that is for it.

        Args:
            arrays: ``arrays[r]``: this rank's contribution to what rank r gets; sizes may differ from rank to rank.
            op: See :meth:`exact_allreduce_async`.
            element: See there.
            out: Where the result goes; it may be ``arrays[rank]`` itself.
            priority: Class of the packets, 0 to 6.
        """
        if len(arrays) != self.world:
            raise ValueError(f"{len(arrays)} arrays, one for each of {self.world} ranks is needed")
        operands = [_operand(array, f"arrays[{rank}]", op, element) for rank, array in enumerate(arrays)]
        arithmetic = operands[0][1]
        if any(other.element != arithmetic.element for _, other in operands):
            raise TypeError("arrays of different types cannot be reduced in one call")
        output = _target(out, operands[self.rank][0].size, "out")
        inputs = {owner: _apart(data, {self.rank: output}, owner) for owner, (data, _) in enumerate(operands)}
        sizes = [data.size for data in inputs.values()]
        return self._reduce(
            f"reduce-scatter ({op}) of {sizes} bytes of {arithmetic.element}",
            inputs,
            {self.rank: output},
            arithmetic,
            spread=False,
            result=out,
            priority=priority,
        )

    def reduce_async(
        self,
        array: NDArray[Any],
        root: int = 0,
        *,
        op: str = "sum",
        element: str | None = None,
        out: NDArray[Any] | None = None,
        priority: int = BULK_CLASS,
    ) -> Operation:
        """Starts reducing ``array`` to rank ``root``.

        Args:
            array: What this rank contributes, any shape.
            root: Who gets the result.
            op: See :meth:`exact_allreduce_async`.
            element: See there.
            out: At the root, where the result goes; it may be ``array`` itself.  Elsewhere without meaning, and untouched.
            priority: Class of the packets, 0 to 6.

        Returns:
            The operation; the result's ``output`` is the reduced array at the root, and ``array`` elsewhere.
        """
        self._check_rank(root, "root")
        data, arithmetic = _operand(array, "array", op, element)
        result = array
        outputs: dict[int, Bytes] = {}
        if root == self.rank:
            result = np.empty_like(array) if out is None else out
            outputs[root] = _target(result, data.size, "out")
        claim = f"reduce ({op}) of {data.size // arithmetic.item} {arithmetic.element} to rank {root}"
        return self._reduce(claim, {root: data}, outputs, arithmetic, spread=False, result=result, priority=priority)

    def _reduce(
        self,
        claim: str,
        inputs: Mapping[int, Bytes],
        outputs: Mapping[int, Bytes],
        arithmetic: Arithmetic,
        *,
        spread: bool,
        result: NDArray[Any],
        priority: int,
    ) -> Operation:
        _check_priority(priority)
        for data in inputs.values():
            cut(data.size, self._link.engine)

        def make(number: int, handle: Operation) -> Collective:
            return ExactReduction(
                self._link.engine,
                number,
                handle,
                claim,
                inputs=inputs,
                outputs=outputs,
                arithmetic=arithmetic,
                ranks=self._members,
                spread=spread,
                result=result,
                priority=priority,
            )

        return self._call(claim, make)

    # -- exchanges -----------------------------------------------------------------------------------------------------------

    def allgather_async(self, array: NDArray[Any], outs: Sequence[NDArray[Any]], *, priority: int = BULK_CLASS) -> Operation:
        """Starts giving every rank's ``array`` to all.

        Args:
            array: This rank's, any type and shape.
            outs: ``outs[r]``: where rank r's goes, of its size in bytes; ``outs[rank]`` may be ``array`` itself.
            priority: Class of the packets, 0 to 6.
        """
        if len(outs) != self.world:
            raise ValueError(f"{len(outs)} outputs, one for each of {self.world} ranks is needed")
        data = _bytes(array, "array")
        receives = {rank: _target(out, None, f"outs[{rank}]") for rank, out in enumerate(outs)}
        claim = f"all-gather of {[buffer.size for buffer in receives.values()]} bytes"
        return self._exchange(claim, dict.fromkeys(self._members, data), receives, array, priority)

    def exchange_async(
        self,
        sends: Mapping[int, NDArray[Any]],
        receives: Mapping[int, NDArray[Any]],
        *,
        what: str = "exchange",
        priority: int = BULK_CLASS,
    ) -> Operation:
        """Starts sending some ranks an array each, and receiving one from some; gather, scatter and all-to-all in one.

        All ranks call it, and both ends of each transfer list it, empty ones too.

        Args:
            sends: By receiver.
            receives: By sender, of the size in bytes that is sent.  This rank itself stands in both or neither.
            what: What the call is, in words; the same at all ranks.
            priority: Class of the packets, 0 to 6.

        Returns:
            The operation; its result is empty.
        """
        for peer in (*sends, *receives):
            self._check_rank(peer, "peer")
        if (self.rank in sends) != (self.rank in receives):
            raise ValueError("what a rank sends itself it must receive")
        outgoing = {peer: _bytes(array, f"sends[{peer}]") for peer, array in sends.items()}
        incoming = {peer: _target(array, None, f"receives[{peer}]") for peer, array in receives.items()}
        return self._exchange(what, outgoing, incoming, np.zeros(0, np.uint8), priority)

    def _exchange(
        self, claim: str, sends: Mapping[int, Bytes], receives: Mapping[int, Bytes], result: NDArray[Any], priority: int
    ) -> Operation:
        _check_priority(priority)
        if self.rank in sends and sends[self.rank].size != receives[self.rank].size:
            raise ValueError(f"{sends[self.rank].size} bytes for the rank itself, {receives[self.rank].size} are to be received")
        for data in (*sends.values(), *receives.values()):
            cut(data.size, self._link.engine)
        copies: dict[int, Bytes] = {}
        apart = {}
        for peer, data in sends.items():
            # The same array often goes to all: it is copied once if at all.
            if id(data) not in copies:
                copies[id(data)] = _apart(data, receives, self.rank)
            apart[peer] = copies[id(data)]

        def make(number: int, handle: Operation) -> Collective:
            return Exchange(
                self._link.engine,
                number,
                handle,
                claim,
                sends=apart,
                receives=receives,
                ranks=self._members,
                result=result,
                priority=priority,
            )

        return self._call(claim, make)

    # -- point to point ------------------------------------------------------------------------------------------------------

    def send_async(self, array: NDArray[Any], peer: int, tag: int = 0) -> Operation:
        """Starts sending ``array`` to one rank, which calls :meth:`receive_async`; no other rank need call anything.

        The operation ends when the receiver has the data, which may be before it asks for them.

        Args:
            array: Any type and shape.
            peer: Receiver; may be this rank.
            tag: Distinguishes messages between two ranks; those of one tag come in the order in which they are sent.
        """
        self._check_rank(peer, "peer")
        data = _bytes(array, "array")
        check_parts(data.size, self._link.engine)
        handle = Operation(f"send of {data.size} bytes with tag {tag} to rank {peer}")
        with self._lock:
            self._check_open()
            self._start(Send(self._link.engine.mailbox, handle, data=data, peer=peer, tag=_tag(tag), result=array))
        return handle

    def receive_async(self, out: NDArray[Any], peer: int | None = None, tag: int = 0) -> tuple[Operation, Callable[[], int]]:
        """Starts receiving a message.

        Args:
            out: Where it goes; of its size in bytes.
            peer: Sender; None takes the first message with this tag, whoever sends it.
            tag: See :meth:`send_async`.

        Returns:
            The operation, and a function that tells the sender once it has ended.
        """
        if peer is not None:
            self._check_rank(peer, "peer")
        buffer = _target(out, None, "out")
        check_parts(buffer.size, self._link.engine)
        who = "any rank" if peer is None else f"rank {peer}"
        handle = Operation(f"receive of {buffer.size} bytes with tag {tag} from {who}")
        with self._lock:
            self._check_open()
            receive = Receive(self._link.engine.mailbox, handle, buffer=buffer, peer=peer, tag=_tag(tag), result=out)
            self._start(receive)

        def source() -> int:
            handle.result()
            assert receive.source is not None
            return receive.source

        return handle, source

    # ------------------------------------------------------------------------------------------------------------------------

    def _call(self, claim: str, make: Callable[[int, Operation], Collective]) -> Operation:
        handle = Operation(claim)
        with self._lock:
            self._start(make(self._next_number(handle), handle))
        return handle

    def _check_rank(self, rank: int, what: str) -> None:
        if not 0 <= rank < self.world:
            raise ValueError(f"{what} {rank} is not a rank of {self.world}")


def flat_array(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Returns a flat view of an array.

    Raises:
        TypeError: It is not a C-contiguous array.
    """
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        raise TypeError(f"{what} must be a C-contiguous numpy array")
    return array.reshape(-1)


def _bytes(array: NDArray[Any], what: str) -> Bytes:
    return flat_array(array, what).view(np.uint8)


def _operand(array: NDArray[Any], what: str, op: str, element: str | None) -> tuple[Bytes, Arithmetic]:
    data = _bytes(array, what)
    arithmetic = Arithmetic(op, element or array.dtype.name)
    if array.dtype.itemsize != arithmetic.item:
        raise TypeError(f"{what} is of {array.dtype}, which cannot hold {arithmetic.element}")
    return data, arithmetic


def _target(array: NDArray[Any], length: int | None, what: str) -> Bytes:
    data = _bytes(array, what)
    if not data.flags.writeable:
        raise ValueError(f"{what} is read-only")
    if length is not None and data.size != length:
        raise ValueError(f"{what} has {data.size} bytes, {length} are needed")
    return data


def _apart(data: Bytes, outputs: Mapping[int, Bytes], own: int) -> Bytes:
    """Returns ``data``, or a copy if an output overlaps it, other than this rank's own in the same place."""
    for rank, output in outputs.items():
        if np.may_share_memory(data, output) and not (rank == own and _address(data) == _address(output)):
            return data.copy()
    return data


def _address(data: Bytes) -> tuple[int, int]:
    return data.__array_interface__["data"][0], data.size


def _tag(tag: int) -> int:
    if not -(2**63) <= tag < 2**63:
        raise ValueError(f"tag {tag} is not a signed number of 64 bits")
    return tag


def _check_priority(priority: int) -> None:
    if not 0 <= priority < LAYER_CLASSES:
        raise ValueError(f"priority {priority} is not a class of 0 to {LAYER_CLASSES - 1}")
