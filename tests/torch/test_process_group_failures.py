"""When something fails, every rank learns what, within the group's timeout."""

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dlcp.errors import DLCPError, MismatchError, OperationTimeoutError, PeerLostError, RemoteError, RendezvousError
from dlcp.policy import Policy
from dlcp.torch.options import ProcessGroupOptions
from tests.torch.groups import run_group

QUICK = ProcessGroupOptions(policy=Policy.from_dict({"timeouts": {"peer_s": 2.0}}))


def caught(function):
    """Returns the name of what a call raises, its text, and the seconds it took."""
    begin = time.monotonic()
    try:
        function()
    except DLCPError as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "nothing", "", time.monotonic() - begin


def _dying(rank, world):
    dist.barrier()
    if rank == 2:
        os._exit(3)
    first = caught(lambda: dist.all_reduce(torch.ones(1000)))
    return first, caught(dist.barrier)


def test_a_rank_that_dies_is_named_by_all_others():
    results = run_group(_dying, world=3, options=QUICK, may_die=(2,))
    for first, second in results[:2]:
        assert first[0] == PeerLostError.__name__ and "rank 2" in first[1], first
        assert second[0] == PeerLostError.__name__, "what has failed stays failed"


def _raising(rank, world):
    dist.barrier()
    if rank == 0:
        dist.group.WORLD.abort()
        return caught(dist.barrier)[0]
    return caught(lambda: dist.broadcast(torch.ones(5), 0))


def test_an_aborted_group_ends_everywhere_at_once():
    results = run_group(_raising, world=3)
    assert all(kind == RemoteError.__name__ and seconds < 10 for kind, _, seconds in results[1:]), results


def _disagreeing(rank, world):
    return caught(lambda: dist.all_reduce(torch.ones(10 + rank)))


def test_ranks_that_call_differently_are_told():
    results = run_group(_disagreeing)
    assert all(kind == MismatchError.__name__ for kind, _, _ in results), results


def _absent(rank, world):
    result = caught(lambda: dist.all_reduce(torch.ones(10))) if rank != 1 else None
    if rank == 1:
        # Alive, and elsewhere, until the others have given up.
        result = caught(lambda: dist.recv(torch.ones(1), 0))
    return result


def test_a_rank_that_does_not_call_is_named_when_time_is_up():
    results = run_group(_absent, world=3, group_timeout=4.0)
    for kind, text, seconds in (results[0], results[2]):
        assert kind == OperationTimeoutError.__name__ and seconds < 15, results
        assert "4 s" in text


def _missing(rank, world):
    return caught(lambda: dist.new_group(timeout=timedelta(seconds=2))) if rank == 0 else None


def test_a_group_that_not_all_ranks_make_ends_in_an_error():
    kind, text, seconds = run_group(_missing)[0]
    assert kind == RendezvousError.__name__ and "1" in text and seconds < 20, (kind, text)


def _ddp_dying(rank, world):
    model = DistributedDataParallel(nn.Linear(200, 200))
    for step in range(50):
        if rank == 1 and step == 3:
            os._exit(3)
        try:
            model(torch.ones(2, 200)).sum().backward()
        except (DLCPError, RuntimeError) as error:
            return str(error), caught(dist.barrier)[0]
    return "nothing", ""


def test_plain_ddp_ends_when_a_rank_dies():
    text, after = run_group(_ddp_dying, options=QUICK, may_die=(1,))[0]
    assert "rank 1" in text and after == PeerLostError.__name__, (text, after)


@pytest.mark.parametrize("host", ["192.0.2.1"])
def test_an_address_that_is_not_this_hosts_is_refused(host, tmp_path):
    with pytest.raises(DLCPError, match=host):
        dist.init_process_group(
            "dlcp",
            store=dist.FileStore(str(tmp_path / "store"), 1),
            rank=0,
            world_size=1,
            pg_options=ProcessGroupOptions(host=host),
        )
