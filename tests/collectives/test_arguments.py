"""Arguments of collectives: what does not fit is refused where it was passed, and does not count as a call."""

import pickle

import numpy as np
import pytest

from dlcp import errors
from dlcp.policy import Policy
from tests.collectives.virtual_job import STRIDE, Job

F32 = np.float32
READ_ONLY = np.ones(6, F32)
READ_ONLY.flags.writeable = False


@pytest.fixture
def job():
    return Job(2)


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        ({"array": [1.0, 2.0]}, TypeError, "array must be a C-contiguous numpy array"),
        ({"array": np.ones((4, 4), F32)[:, 1]}, TypeError, "array must be a C-contiguous"),
        ({"array": np.ones((4, 4), F32).T}, TypeError, "array must be a C-contiguous"),
        ({"array": np.ones(4, np.int64)}, TypeError, "arrays of int64 cannot be reduced"),
        ({"array": np.ones(4, ">f4")}, TypeError, "cannot be reduced"),
        ({"op": "max"}, ValueError, "op is 'max'; mean and sum are known"),
        ({"tags": np.zeros(2, np.uint8)}, ValueError, r"tags are uint8\[2\], uint8\[1\] is needed"),
        ({"tags": np.zeros(1, np.int64)}, ValueError, r"tags are int64\[1\], uint8\[1\] is needed"),
        ({"tags": [0]}, ValueError, "tags are list"),
        ({"tags": np.full(1, 14, np.uint8)}, ValueError, "tag 14 names a class above 6"),
        ({"out": np.ones(5, F32)}, ValueError, r"out is float32\[5\], float32\[6\] is needed"),
        ({"out": np.ones(6)}, ValueError, r"out is float64\[6\], float32\[6\] is needed"),
        ({"out": np.ones(12, F32)[::2]}, TypeError, "out must be a C-contiguous"),
        ({"out": READ_ONLY}, ValueError, "out is read-only"),
    ],
)
def test_all_reduce(job, kwargs, error, text):
    arguments = {"array": np.ones(6, F32), **kwargs}
    array = arguments.pop("array")
    with pytest.raises(error, match=text):
        job.communicators[0].allreduce_async(array, **arguments)
    # Numbers still agree.
    assert [r.output.tolist() for r in job.allreduce([np.ones(3, F32)] * 2)] == [[1.0] * 3] * 2


def test_out_and_array():
    """The same memory only where the policy promises that nothing is lost; overlaps never."""
    memory = np.ones(20, F32)
    with pytest.raises(ValueError, match="out shares memory with array, but the policy allows contributions to be lost"):
        Job(1).communicators[0].allreduce_async(memory, out=memory)
    reliable = Job(1, policies=Policy.from_dict({"loss": {"push": 0.0}})).communicators[0]
    with pytest.raises(ValueError, match="out overlaps array, but is not the same memory"):
        reliable.allreduce_async(memory[:10], out=memory[1:11])
    reliable.allreduce_async(memory[:10], out=memory[10:]).wait(1)
    reliable.allreduce_async(memory, out=memory.reshape(4, 5)).wait(1)


@pytest.mark.parametrize(
    ("array", "root", "error", "text"),
    [
        (np.ones(3), 2, ValueError, "root 2 is not a rank of 2"),
        (np.ones(3), -1, ValueError, "root -1 is not a rank of 2"),
        ([1], 0, TypeError, "C-contiguous"),
        (READ_ONLY, 1, ValueError, "array is read-only"),
        (np.array([object()]), 0, TypeError, "object|data-type"),
    ],
)
def test_broadcast(job, array, root, error, text):
    with pytest.raises(error, match=text):
        job.communicators[0].broadcast_async(array, root)
    assert job.run([c.barrier_async() for c in job.communicators])


@pytest.mark.parametrize("dtype", ["int8", "bool", "complex128", "float16", "U5", "datetime64[s]", "i4,f8"])
def test_broadcast_takes_any_plain_type(job, dtype):
    source, target = np.ones((3, 2), dtype), np.zeros((3, 2), dtype)
    operations = [job.communicators[0].broadcast_async(source), job.communicators[1].broadcast_async(target)]
    assert job.run(operations)
    assert (target == source).all()


def test_read_only_input_is_fine(job):
    assert job.allreduce([READ_ONLY, READ_ONLY])[0].output.tolist() == [1.0] * 6
    operations = [job.communicators[0].broadcast_async(READ_ONLY), job.communicators[1].broadcast_async(np.zeros(6, F32))]
    assert job.run(operations)


def test_tags_may_be_changed_after_the_call():
    job = Job(2, policies=Policy.from_dict({"loss": {"push": 0.0}}))
    tags = np.full(8, 1, np.uint8)
    operations = [c.allreduce_async(np.ones(8 * STRIDE // 4, F32), tags=tags) for c in job.communicators]
    tags[:] = 255
    assert job.run(operations)
    assert all(op.result().output[0] == 1 for op in operations)


def test_packets(job):
    communicator = job.communicators[0]
    assert communicator.elements_per_packet(F32) == 64 and communicator.elements_per_packet("float64") == 32
    assert [communicator.packets(n, F32) for n in (0, 1, 64, 65)] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigError("file.toml", "loss.push", "7", "0 to 0.5"),
        errors.MismatchError("x"),
        errors.RendezvousError("x"),
        errors.UnreachableError(3, "10.0.0.1:5", 1.5, "a hint"),
        errors.MtuError("x"),
        errors.PeerLostError(3, "operation 1", 1.5),
        errors.RemoteError(3, "ValueError: x"),
        errors.OperationTimeoutError("x"),
        errors.AddressError(98, "taken"),
        errors.ClosedError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_out_of_other_processes_as_they_are(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.__dict__ == error.__dict__
