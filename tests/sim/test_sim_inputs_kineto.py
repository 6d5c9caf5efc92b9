"""Traces of PyTorch's profiler: real ones of gloo, made here; those of NCCL as its documentation has them; and damage."""

import contextlib
import gzip
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.readers.found import POLICY, stuck
from sim.readers.kineto import read_traces
from sim.readers.kineto_events import read_trace
from sim.readers.text import InputError
from tests.conftest import ROOT
from tests.sim.mutations import mutations


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """Traces of two ranks of a job over gloo on the loopback interface."""
    folder = tmp_path_factory.mktemp("gloo")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    program = str(ROOT / "tests" / "sim" / "profiled_rank.py")
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(2):
            command = [sys.executable, program, str(rank), str(folder)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
            ranks.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in ranks:
            output, _ = process.communicate(timeout=100)
            assert process.returncode == 0, output
    return [folder / f"rank{rank}.json" for rank in range(2)]


def kinds(collectives):
    return sorted((each.kind, each.size, each.peer) for each in collectives if each.kind != "barrier")


def test_a_real_trace_of_gloo_has_what_the_job_did(profiled):
    first, second = map(read_trace, profiled)
    assert (first.dialect, first.rank, first.world) == ("gloo", 0, 2) and second.rank == 1
    gradients = 4 * (300 * 100 + 100)
    common = [
        ("all_gather", 40, None),
        ("all_reduce", gradients, None),
        ("all_reduce", gradients, None),
        ("broadcast", 400, 1),
        ("reduce", 40, 1),
    ]
    assert [each for each in kinds(first.collectives) if each in common] == common
    assert set(kinds(first.collectives)) - set(common) == {("send", 308, 1), ("scatter", 48, 0)} | internal(first)
    assert set(kinds(second.collectives)) - set(common) == {("receive", 308, 0), ("scatter", None, 0)} | internal(second)
    assert all(each.end >= each.start for each in (*first.collectives, *second.collectives))


def internal(trace):
    """What DDP sends for itself: an order of parameters, after the first step."""
    return {each for each in kinds(trace.collectives) if each[0] == "broadcast" and each[1] < 100}


def test_a_real_trace_of_gloo_becomes_messages(profiled):
    found = read_traces(profiled)
    assert found.hosts == 2 and not found.notes and stuck(found.messages) is None
    sent = [(m.source, m.destination, m.size) for m in found.messages if m.group == "all_reduce" and m.source != m.destination]
    assert sorted(sent) == sorted([(rank, 1 - rank, 60_200) for rank in range(2)] * 4)
    (message,) = (m for m in found.messages if m.size == 308)
    assert (message.source, message.destination, message.bound) == (0, 1, 0)
    assert {(m.source, m.destination) for m in found.messages if m.size == 400} == {(1, 0)}  # the root of the broadcast
    assert {(m.source, m.destination, m.size) for m in found.messages if m.group == "scatter" and m.size > 1} == {(0, 1, 24)}


def test_one_trace_stands_for_all(profiled):
    found = read_traces(profiled[:1])
    assert found.hosts == 2 and "all 2 were taken to do the same" in found.notes[0] and "1 messages" in found.notes[1]
    assert sum(m.size for m in found.messages if m.group == "all_reduce" and m.source != m.destination) == 2 * 2 * 120_400
    assert read_traces(profiled[:1], ranks=5).hosts == 5


def nccl(rank=0, world=4):
    """The trace of a rank: reduces twice in all, gathers within halves of the ranks, in between computes."""
    half = f"[{rank // 2 * 2}, {rank // 2 * 2 + 1}]"

    def kernel(name, start, duration, elements, ranks, size, group, **more):
        args = {
            "Collective name": name,
            "dtype": "BFloat16",
            "In msg nelems": elements,
            "Out msg nelems": elements * (size if "gather" in name else 1),
            "Group size": size,
            "Process Group Name": group,
            "Process Group Ranks": ranks,
            **more,
        }
        return {"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "ts": start, "dur": duration, "args": args}

    everyone = str(list(range(world)))
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 1, "dur": 1, "args": {"Collective name": "wait"}},
        kernel("allreduce", 1000.5 + 10 * rank, 100, 1000, everyone, world, "0"),
        kernel("_allgather_base", 1200, 50, 64, half, 2, f"{1 + rank // 2}"),
        kernel("allreduce", 1220, 100, 3000, everyone[:5] + "...", world, "0"),
    ]
    info = {"rank": rank, "world_size": world, "backend": "nccl"}
    return {"schemaVersion": 1, "distributedInfo": info, "baseTimeNanoseconds": 10**18, "traceEvents": events}


def write(folder, documents):
    files = []
    for index, document in enumerate(documents):
        path = folder / f"{index}.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        files.append(path)
    return files


def test_kernels_of_nccl(tmp_path):
    files = write(tmp_path, [nccl(rank) for rank in reversed(range(4))])
    trace = read_trace(files[-1])
    assert (trace.dialect, trace.rank, trace.world) == ("nccl", 0, 4)
    assert [(each.kind, each.size, each.members) for each in trace.collectives] == [
        ("all_reduce", 2000, (0, 1, 2, 3)),
        ("all_gather", 128, (0, 1)),
        ("all_reduce", 6000, ()),
    ]
    found = read_traces(files)
    assert found.hosts == 4 and stuck(found.messages) is None

    def sent(group, rank):
        return [m for m in found.messages if m.group == group and m.source == rank and m.destination != rank]

    for rank in range(4):
        assert sum(m.size for m in sent("all_reduce", rank)) == 6 * (2000 + 6000) // 4
        assert all(m.bound == POLICY and m.destination == (rank + 1) % 4 for m in sent("all_reduce", rank))
        assert [(m.destination, m.size) for m in sent("all_gather", rank)] == [(rank ^ 1, 128)]
    # Rank 2 begins 20 us after rank 0, and gathers 1200 - 1120.5 us after its first reduction; the second one overlaps that.
    waits = [m.delay for m in found.messages if m.group == "compute" and m.source == 2]
    assert waits == [20_000_000, 79_500_000, 99_500_000]


def test_ranks_outside_a_group_skip_what_one_trace_says_of_it(tmp_path):
    found = read_traces(write(tmp_path, [nccl(0)]))
    assert found.hosts == 4 and stuck(found.messages) is None
    assert {m.source for m in found.messages if m.group == "all_gather" and m.source != m.destination} == {0, 1}
    path = tmp_path / "0.json.gz"
    path.write_bytes(gzip.compress(json.dumps(nccl(0)).encode()))
    assert read_traces([path]).messages == found.messages


KERNEL = "traceEvents[2] (ncclDevKernel)"


def argument(index, name, value):
    """Changes an argument of an event, or takes it out."""

    def change(document):
        document["traceEvents"][index]["args"][name] = value

    return change


def changed(change, rank=1):
    document = nccl(rank)
    change(document)
    return document


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        (lambda d: d.pop("traceEvents"), "traceEvents", "missing, or no list"),
        (lambda d: d["traceEvents"].clear(), "traceEvents", "no collective"),
        (lambda d: d["traceEvents"].append(5), "traceEvents[5]", "5; accepted: an object"),
        (lambda d: d.update(baseTimeNanoseconds=1.5), "baseTimeNanoseconds", "1.5"),
        (lambda d: d["distributedInfo"].update(rank=-1), "distributedInfo.rank", "-1; accepted: a whole number from 0"),
        (lambda d: d["distributedInfo"].update(rank=0), "distributedInfo.rank", "every rank once"),
        (lambda d: d["traceEvents"][2].update(ts="now"), f"{KERNEL}.ts", "'now'; accepted: microseconds"),
        (argument(2, "dtype", "Quad"), f"{KERNEL}.dtype", "'Quad'; accepted"),
        (argument(2, "dtype", None), f"{KERNEL}.dtype", "missing; accepted: double"),
        (argument(2, "In msg nelems", -4), f"{KERNEL}.In msg nelems", "-4"),
        (argument(2, "Collective name", "sum"), f"{KERNEL}.Collective name", "'sum'"),
        (argument(2, "Process Group Ranks", "0-1"), f"{KERNEL}.Process Group Ranks", "'0-1'"),
        (argument(3, "Process Group Ranks", "[2, 3]"), "traceEvents[3]", "ranks (2, 3); accepted: rank 1"),
        (argument(4, "In msg nelems", 1), "traceEvents[4]", "all_reduce of [2, 6000] bytes"),
        (lambda d: d["traceEvents"].pop(), "traceEvents[4]", "all_reduce of rank 0 has no counterpart"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, change, where, message):
    files = write(tmp_path, [nccl(0), changed(change), nccl(2), nccl(3)])
    with pytest.raises(InputError) as caught:
        read_traces(files)
    assert caught.value.key == where and message in str(caught.value) and caught.value.source in map(str, files)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: Expecting property name"),
        ("[" * 200_000, "(file): "),
        ('{"traceEvents": [NaN]}', "NaN is no number"),
        ("[]", "traceEvents: missing"),
        ("", "line 1: Expecting value"),
    ],
)
def test_what_is_no_trace_is_said(tmp_path, text, message):
    with pytest.raises(InputError) as caught:
        read_traces(write(tmp_path, [text]))
    assert message in str(caught.value)


def test_traces_of_some_ranks_are_not_enough(tmp_path):
    with pytest.raises(InputError, match="there is no trace of rank 2; accepted: those of all 4 ranks, or of one"):
        read_traces(write(tmp_path, [nccl(0), nccl(1)]))


def test_one_small_trace_cannot_stand_for_too_many(tmp_path):
    document = nccl(0, 60_000)
    document["traceEvents"] *= 20
    with pytest.raises(InputError, match="collectives on 60000 ranks; accepted: up to 2000000"):
        read_traces(write(tmp_path, [document]))


GLOO = json.dumps(
    {
        "distributedInfo": {"rank": 0, "world_size": 2},
        "baseTimeNanoseconds": 7,
        "traceEvents": [
            {
                "ph": "X",
                "name": "c10d::broadcast_",
                "ts": 1,
                "dur": 5,
                "args": {"Concrete Inputs": ["", "", "1", "0", "True", "-1"]},
            },
            {"ph": "X", "name": "gloo:broadcast", "ts": 2, "dur": 9, "args": {"Input Dims": [[3, 4]], "Input type": ["float"]}},
            {"ph": "X", "name": "gloo:all_reduce", "ts": 20, "dur": 0, "args": {"Input Dims": [[8]], "Input type": ["double"]}},
            {"ph": "X", "name": "gloo:all_reduce", "ts": 20, "dur": 0, "args": {"Input Dims": [[8]], "Input type": ["double"]}},
            {"ph": "X", "name": "gloo:barrier", "ts": 30, "dur": 1, "args": {}},
        ],
    }
)


@pytest.mark.parametrize("text", [GLOO, json.dumps(nccl(0, 2))], ids=["gloo", "nccl"])
@given(data=st.data())
def test_a_damaged_trace_reads_or_the_error_says_where(tmp_path_factory, text, data):
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(data.draw(mutations(text.encode())))
    try:
        found = read_traces([path], ranks=2)
    except InputError as error:
        assert error.source == str(path) and error.key and error.accepted
    else:
        assert stuck(found.messages) is None
