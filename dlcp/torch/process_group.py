"""The ``dlcp`` backend of torch.distributed: ``init_process_group("dlcp")``.

Every group has a communicator of its own.  All calls are reliable, whatever the policy, but for all-reduces of floating-point
tensors inside :func:`dlcp.torch.allow_loss`.  Calls raise errors of :mod:`dlcp.errors`, on every rank, when one of them fails.
"""

# Torch declares each call with several signatures, and calls a group that is written in Python with the first alone.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dlcp.collectives.communicator import Communicator
from dlcp.collectives.operation import Operation
from dlcp.store import Store
from dlcp.torch.allowance import Allowance
from dlcp.torch.arrays import Bytes, operand_of, source_bytes, target_bytes, unsupported
from dlcp.torch.c10d import reduction_name, root_of
from dlcp.torch.delivery import Delivery
from dlcp.torch.options import ProcessGroupOptions, with_timeout
from dlcp.torch.work import DLCPWork

NAME = "dlcp"

Tensors = Sequence[Tensor]
Finish = Callable[[], None]


class ProcessGroupDLCP(dist.ProcessGroup):
    """A process group over DLCP; made by torch.

    Args:
        store: Where the group's ranks meet.
        rank: Own rank in the group.
        size: Ranks of the group.
        timeout: How long ranks wait for each other, and calls for their end.
        options: In which all is decided.

    Attributes:
        communicator: What carries everything.
        allowance: Whether all-reduces may lose packets now; see :func:`dlcp.torch.allow_loss`.

    Raises:
        DLCPError: The ranks did not meet, or do not agree.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, options: ProcessGroupOptions) -> None:
        # The constructor that takes a store makes no object that calls what a subclass overrides.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store = store
        assert options.policy is not None and options.host is not None and options.port is not None
        self.options = options
        self.communicator = Communicator(
            rank,
            size,
            store,
            policy=with_timeout(options.policy, timeout),
            host=options.host,
            port=options.port,
            faults=options.faults,
        )
        self.allowance: Allowance | None = None
        self._delivery = Delivery(f"dlcp-futures-{rank}")
        self._coalesced: list[DLCPWork] | None = None
        self._name = ""
        self._description = "undefined"
        self._calls = 0

    # -- what torch asks of a group ------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return NAME

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    # Torch's own ask a backend of C++, which there is none of.
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> Store:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def _set_sequence_number_for_group(self) -> None:
        """Calls are counted from 0."""

    def _start_coalescing(self, device: object = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: object = None) -> DLCPWork:
        works, self._coalesced = self._coalesced or [], None
        return self._joined(works)

    def shutdown(self) -> None:
        """Leaves in good order; ``destroy_process_group`` calls it."""
        self.communicator.close()

    def abort(self) -> None:
        """Gives up: every call, here and at every rank of the group, ends with an error."""
        self.communicator.abort("its process group was aborted")
        self.communicator.close()

    # -- reductions ----------------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = dist.AllreduceOptions()) -> DLCPWork:  # noqa: B008
        """Reduces each of ``tensors`` over all ranks, in place."""
        op = reduction_name(opts, "allreduce")
        works = [self._allreduce(tensor, op) for tensor in _listed(tensors)]
        return works[0] if len(works) == 1 else self._joined(works)

    allreduce_coalesced = allreduce

    def _allreduce(self, tensor: Tensor, op: str) -> DLCPWork:
        if self.allowance is not None and self.allowance.covers(tensor, op):
            operation, finish = self.allowance.allreduce(self.communicator, tensor, op)
            return self._launched([operation], [tensor], [finish])
        target, put_back = target_bytes(tensor, "allreduce")
        out, element = operand_of(target, tensor, "allreduce")
        array = out if put_back is None else operand_of(source_bytes(tensor, "allreduce"), tensor, "allreduce")[0]
        operation = self.communicator.exact_allreduce_async(array, op=op, element=element, out=out)
        return self._launched([operation], [tensor], [put_back])

    def reduce(self, tensors: Tensors, opts: Any) -> DLCPWork:
        """Reduces a tensor to one rank, in place; elsewhere it is not touched."""
        (tensor,) = _listed(tensors)
        op, root = reduction_name(opts, "reduce"), root_of(opts)
        array, element = operand_of(source_bytes(tensor, "reduce"), tensor, "reduce")
        put_back = None
        out = array
        if root == self.communicator.rank:
            target, put_back = target_bytes(tensor, "reduce")
            out = operand_of(target, tensor, "reduce")[0]
        operation = self.communicator.reduce_async(array, root, op=op, element=element, out=out)
        return self._launched([operation], [tensor], [put_back])

    def reduce_scatter(
        self,
        output_tensors: Tensors,
        input_tensors: Sequence[Tensors],
        opts: Any = dist.ReduceScatterOptions(),  # noqa: B008
    ) -> DLCPWork:
        """Reduces a list of tensors, one for each rank."""
        op = reduction_name(opts, "reduce_scatter")
        pairs = zip(output_tensors, input_tensors, strict=True)
        return self._joined([self._reduce_scatter(out, inputs, op, "reduce_scatter") for out, inputs in pairs])

    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        opts: Any = dist.ReduceScatterOptions(),  # noqa: B008
    ) -> DLCPWork:
        """Reduces a tensor whose ``size`` equal pieces are for one rank each."""
        return self._reduce_scatter_single(output, input, reduction_name(opts, "reduce_scatter_single"))

    def reduce_scatter_single_coalesced(
        self,
        outputs: Tensors,
        inputs: Tensors,
        opts: Any = dist.ReduceScatterOptions(),  # noqa: B008
    ) -> DLCPWork:
        """Does :meth:`reduce_scatter_single` for several tensors."""
        op = reduction_name(opts, "reduce_scatter_single_coalesced")
        pairs = zip(outputs, inputs, strict=True)
        return self._joined([self._reduce_scatter_single(output, source, op) for output, source in pairs])

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter_single(self, output: Tensor, source: Tensor, op: str) -> DLCPWork:
        pieces = _pieces(source, self.communicator.world, output.numel(), "reduce_scatter_single")
        return self._reduce_scatter(output, pieces, op, "reduce_scatter_single")

    def _reduce_scatter(self, output: Tensor, inputs: Tensors, op: str, call: str) -> DLCPWork:
        arrays = [operand_of(source_bytes(tensor, call), output, call)[0] for tensor in _same_type(inputs, output, call)]
        target, put_back = target_bytes(output, call)
        out, element = operand_of(target, output, call)
        operation = self.communicator.reduce_scatter_async(arrays, op=op, element=element, out=out)
        return self._launched([operation], [output], [put_back])

    # -- exchanges -----------------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, opts: Any = dist.BroadcastOptions()) -> DLCPWork:  # noqa: B008
        """Makes tensors equal to those of one rank."""
        root, works = root_of(opts), []
        for tensor in _listed(tensors):
            target, put_back = target_bytes(tensor, "broadcast")
            if put_back is not None and root == self.communicator.rank:
                target, put_back = source_bytes(tensor, "broadcast"), None
            works.append(self._launched([self.communicator.broadcast_async(target, root)], [tensor], [put_back]))
        return works[0] if len(works) == 1 else self._joined(works)

    def allgather(self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: object = None) -> DLCPWork:
        """Gives every rank's tensor to all."""
        pairs = zip(output_tensors, _listed(input_tensors), strict=True)
        return self._joined([self._allgather(outputs, source, "allgather") for outputs, source in pairs])

    def allgather_coalesced(self, output_lists: Sequence[Tensors], input_list: Tensors, opts: object = None) -> DLCPWork:
        """Gives every rank's tensors to all; ``output_lists[r][k]`` is tensor k of rank r."""
        works = []
        for index, source in enumerate(input_list):
            works.append(self._allgather([outputs[index] for outputs in output_lists], source, "allgather_coalesced"))
        return self._joined(works)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: object = None) -> DLCPWork:
        """Gives every rank's tensor to all, one after another in ``output``."""
        world = self.communicator.world
        source = source_bytes(input, "all_gather_single")
        _same_type([input], output, "all_gather_single")
        if output.numel() != world * input.numel():
            raise ValueError(f"dlcp: all_gather_single of {input.numel()} elements on {world} ranks into {output.numel()}")
        target, put_back = target_bytes(output, "all_gather_single")
        outs = [target[rank * source.size : (rank + 1) * source.size] for rank in range(world)]
        return self._launched([self.communicator.allgather_async(source, outs)], [output], [put_back])

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: object = None) -> DLCPWork:
        """Does :meth:`all_gather_single` for several tensors."""
        return self._joined([self.all_gather_single(out, source) for out, source in zip(outputs, inputs, strict=True)])

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _allgather(self, outputs: Tensors, source: Tensor, call: str) -> DLCPWork:
        targets, finish = _targets(_same_type(outputs, source, call), call)
        operation = self.communicator.allgather_async(source_bytes(source, call), targets)
        return self._launched([operation], outputs, finish)

    def gather(self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any) -> DLCPWork:
        """Gives every rank's tensor to one."""
        root, me = root_of(opts), self.communicator.rank
        (source,) = _listed(input_tensors)
        outputs = list(output_tensors[0]) if me == root else []
        targets, finish = _targets(_same_type(outputs, source, "gather"), "gather")
        sends = {root: source_bytes(source, "gather")}
        operation = self.communicator.exchange_async(sends, dict(enumerate(targets)), what=f"gather to rank {root}")
        return self._launched([operation], outputs, finish)

    def scatter(self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any) -> DLCPWork:
        """Gives every rank a tensor of one."""
        root, me = root_of(opts), self.communicator.rank
        (output,) = _listed(output_tensors)
        inputs = _same_type(input_tensors[0] if me == root else [], output, "scatter")
        target, put_back = target_bytes(output, "scatter")
        sends = {rank: source_bytes(tensor, "scatter") for rank, tensor in enumerate(inputs)}
        operation = self.communicator.exchange_async(sends, {root: target}, what=f"scatter from rank {root}")
        return self._launched([operation], [output], [put_back])

    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: object = None) -> DLCPWork:
        """Sends each rank a tensor and receives one from each."""
        targets, finish = _targets(output_tensors, "alltoall")
        sends = dict(enumerate(source_bytes(tensor, "alltoall") for tensor in input_tensors))
        operation = self.communicator.exchange_async(sends, dict(enumerate(targets)), what="all-to-all")
        return self._launched([operation], output_tensors, finish)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None,
        input_split_sizes: Sequence[int] | None,
        opts: object = None,
    ) -> DLCPWork:
        """Sends each rank some rows of ``input``, as many as the split sizes say, and receives some from each."""
        _same_type([input], output, "all_to_all_single")
        target, put_back = target_bytes(output, "all_to_all_single")
        receives = _split(target, output, output_split_sizes, self.communicator.world)
        sends = _split(source_bytes(input, "all_to_all_single"), input, input_split_sizes, self.communicator.world)
        operation = self.communicator.exchange_async(
            dict(enumerate(sends)), dict(enumerate(receives)), what="all-to-all of one tensor"
        )
        return self._launched([operation], [output], [put_back])

    alltoall_base = all_to_all_single

    def barrier(self, opts: object = None) -> DLCPWork:
        """Ends when all ranks have called it."""
        return self._launched([self.communicator.barrier_async()], [], [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the ranks that do not seem to have called it, as those of all calls do."""
        self.barrier().wait(timeout or timedelta(0))

    # -- point to point ------------------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dst_rank: int, tag: int = 0) -> DLCPWork:
        """Sends a tensor; ends when the receiver has it, whether it has asked for it or not."""
        (tensor,) = _listed(tensors)
        return self._launched([self.communicator.send_async(source_bytes(tensor, "send"), dst_rank, tag)], [tensor], [])

    def recv(self, tensors: Tensors, src_rank: int, tag: int = 0) -> DLCPWork:
        """Receives a tensor."""
        return self._receive(tensors, src_rank, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> DLCPWork:
        """Receives the first tensor with this tag, whoever sends it."""
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Tensors, peer: int | None, tag: int) -> DLCPWork:
        (tensor,) = _listed(tensors)
        target, put_back = target_bytes(tensor, "recv")
        operation, source = self.communicator.receive_async(target, peer, tag)
        return self._launched([operation], [tensor], [put_back], source)

    # -- what there is not ---------------------------------------------------------------------------------------------------

    def split_group(self, *args: object, **kwargs: object) -> dist.ProcessGroup:
        raise unsupported("split_group", "use new_group")

    def merge_remote_group(self, *args: object, **kwargs: object) -> dist.ProcessGroup:
        raise unsupported("merge_remote_group", "its ranks are fixed when a group is made")

    def set_timeout(self, timeout: timedelta) -> None:
        raise unsupported("set_timeout", "its timeout is fixed when a group is made")

    def _register_on_completion_hook(self, hook: object) -> None:
        raise unsupported("_register_on_completion_hook", "use Work.get_future().then")

    def _get_backend(self, device: torch.device) -> Any:
        raise unsupported("_get_backend", "the group itself carries everything")

    # ------------------------------------------------------------------------------------------------------------------------

    def _launched(
        self,
        operations: Sequence[Operation],
        tensors: Tensors,
        finish: Sequence[Finish | None],
        source: Callable[[], int] | None = None,
    ) -> DLCPWork:
        self._calls += 1
        todo = [function for function in finish if function is not None]

        def finish_all() -> None:
            for function in todo:
                function()

        work = DLCPWork(operations, tensors, self._delivery, finish=finish_all if todo else None, source=source)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _joined(self, works: Sequence[DLCPWork]) -> DLCPWork:
        """Makes one of several calls."""
        return works[0] if len(works) == 1 else DLCPWork.joined(works, self._delivery)


def _listed(tensors: Tensor | Tensors) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _targets(tensors: Tensors, call: str) -> tuple[list[Bytes], list[Finish | None]]:
    pairs = [target_bytes(tensor, call) for tensor in tensors]
    return [target for target, _ in pairs], [put_back for _, put_back in pairs]


def _same_type(tensors: Tensors, other: Tensor, call: str) -> Tensors:
    for tensor in tensors:
        if tensor.dtype != other.dtype:
            raise TypeError(f"dlcp: {call} of tensors of {tensor.dtype} and {other.dtype}")
    return tensors


def _pieces(tensor: Tensor, world: int, elements: int, call: str) -> Tensors:
    if tensor.numel() != world * elements:
        raise ValueError(f"dlcp: {call} of {tensor.numel()} elements on {world} ranks into {elements}")
    return tensor.detach().contiguous().view(-1).split(elements) if elements else [tensor.detach().reshape(-1)] * world


def _split(data: Bytes, tensor: Tensor, sizes: Sequence[int] | None, world: int) -> list[Bytes]:
    """Cuts the bytes of a tensor along its first dimension."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not sizes:
        if rows % world:
            raise ValueError(f"dlcp: all_to_all_single of {rows} rows on {world} ranks: give split sizes")
        sizes = [rows // world] * world
    if len(sizes) != world or sum(sizes) != rows or min(sizes) < 0:
        raise ValueError(f"dlcp: all_to_all_single with split sizes {list(sizes)} of {rows} rows on {world} ranks")
    row = data.size // rows if rows else 0
    edges = np.cumsum([0, *sizes]) * row
    return [data[start:stop] for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
