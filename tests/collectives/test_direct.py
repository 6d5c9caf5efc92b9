"""Point-to-point messages in virtual time: which receive gets which send, whatever the network does."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlcp.collectives.direct import RETIRE_EVERY
from dlcp.errors import MismatchError, OperationTimeoutError, PeerLostError
from dlcp.policy import Policy
from dlcp.transport.serial import MASK
from dlcp.transport.virtual import Weather
from tests.collectives.virtual_job import STRIDE, Job

WEATHERS = (Weather(), Weather(jitter_ns=2_000_000), Weather(drop=0.1, jitter_ns=300_000, duplicate=0.1), Weather(drop=0.3))
FEW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=25)


def block(seed, size):
    return np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8)


@FEW
@given(st.integers(1, 4), st.sampled_from(WEATHERS), st.integers(0, 2**32 - 1), st.data())
def test_messages_of_one_sender_and_tag_are_received_in_the_order_they_are_sent(world, weather, seed, data):
    """Whatever order sends and receives are called in."""
    policy = Policy.from_dict({"wire": {"message_bytes": data.draw(st.sampled_from([STRIDE, 32 * STRIDE]))}})
    job = Job(world, weather=weather, seed=seed, policies=policy)
    messages = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, world - 1), st.integers(0, world - 1), st.sampled_from([0, 7, -(2**40)]), st.integers(0, 3000)
            ),
            max_size=12,
        )
    )
    # Each send and each receive is an action of one rank; those of a stream (sender, receiver, tag) stay in order.
    streams = {}
    for number, (source, destination, tag, size) in enumerate(messages):
        streams.setdefault((source, destination, tag), []).append((number, size))
    actions = []
    for key, stream in streams.items():
        actions += [("send", key)] * len(stream) + [("receive", key)] * len(stream)
    actions = data.draw(st.permutations(actions))
    sent, received = dict.fromkeys(streams, 0), dict.fromkeys(streams, 0)
    operations, outs = [], []
    for kind, key in actions:
        source, destination, tag = key
        if kind == "send":
            number, size = streams[key][sent[key]]
            sent[key] += 1
            operations.append(job.communicators[source].send_async(block(number, size), destination, tag))
        else:
            number, size = streams[key][received[key]]
            received[key] += 1
            out = np.empty(size, np.uint8)
            outs.append((number, size, out))
            operations.append(job.communicators[destination].receive_async(out, source, tag)[0])
        if data.draw(st.booleans()):
            job.network.run(lambda: False, limit_ns=data.draw(st.sampled_from([1, 100_000, 5_000_000])))
    assert job.run(operations), [op.description for op in operations if not op.done()]
    for operation in operations:
        operation.result()
    for number, size, out in outs:
        assert (out == block(number, size)).all()
    assert job.settle()
    for node in job.nodes.values():
        assert node.endpoint._receiver.admission.early_bytes == 0, "what came early has been given back"
        assert not node.busy
    job.close()


@FEW
@given(st.sampled_from(WEATHERS), st.integers(0, 2**32 - 1), st.permutations([1, 2, 3]))
def test_a_receive_from_anyone_tells_whom_it_is_from(weather, seed, senders):
    job = Job(4, weather=weather, seed=seed)
    operations, sources, outs = [], [], []
    for number, sender in enumerate(senders):
        operations.append(job.communicators[sender].send_async(block(sender, 1000), 0, 5))
        outs.append(np.empty(1000, np.uint8))
        operation, source = job.communicators[0].receive_async(outs[number], None, 5)
        operations.append(operation)
        sources.append(source)
    assert job.run(operations)
    assert sorted(source() for source in sources) == [1, 2, 3]
    for source, out in zip(sources, outs, strict=True):
        assert (out == block(source(), 1000)).all()


def test_tags_choose():
    job = Job(2)
    sender, receiver = job.communicators
    operations = [sender.send_async(np.full(3, float(tag)), 1, tag) for tag in (1, 2, 3)]
    outs = {tag: np.empty(3) for tag in (3, 1, 2)}
    operations += [receiver.receive_async(out, 0, tag)[0] for tag, out in outs.items()]
    assert job.run(operations) and all((out == tag).all() for tag, out in outs.items())


def test_a_send_ends_when_the_receiver_has_the_data_even_unasked():
    job = Job(2)
    operation = job.communicators[0].send_async(np.arange(1000), 1)
    assert job.run([operation])
    out = np.empty(1000, np.int64)
    job.communicators[0].close()
    assert job.run([job.communicators[1].receive_async(out, 0)[0]])
    assert (out == np.arange(1000)).all()


def test_what_is_wanted_comes_in_though_unwanted_data_fill_the_memory():
    policy = Policy.from_dict({"memory": {"early_bytes": 65536}, "wire": {"message_bytes": 16 * STRIDE}})
    job = Job(3, policies=policy)
    flood = [job.communicators[0].send_async(np.zeros(100_000, np.uint8), 2, tag) for tag in range(4)]
    job.network.run(lambda: False, limit_ns=200_000_000)
    out = np.empty(50_000, np.uint8)
    wanted = [job.communicators[1].send_async(block(1, 50_000), 2, 9), job.communicators[2].receive_async(out, 1, 9)[0]]
    assert job.run(wanted)
    assert (out == block(1, 50_000)).all()
    assert not all(op.done() for op in flood)
    outs = [np.empty(100_000, np.uint8) for _ in range(4)]
    assert job.run([*flood, *[job.communicators[2].receive_async(o, 0, tag)[0] for tag, o in enumerate(outs)]])


def test_the_transport_forgets_messages_and_numbers_go_on():
    job = Job(2, weather=Weather(drop=0.05))
    for _ in range(3 * RETIRE_EVERY):
        out = np.empty(4)
        pair = [job.communicators[0].send_async(np.ones(4), 1), job.communicators[1].receive_async(out, 0)[0]]
        assert job.run(pair) and (out == 1).all()
    source = job.nodes[1].mailbox._sources[0]
    assert source.over == 3 * RETIRE_EVERY and not source.done and not source.receiving and not source.early
    assert job.nodes[1].endpoint._receiver.admission._retired_direct[0] == 3 * RETIRE_EVERY


def test_lengths_that_differ_end_in_an_error_at_both():
    job = Job(2)
    operations = [
        job.communicators[0].send_async(np.ones(5), 1, 3),
        job.communicators[0].receive_async(np.ones(1), 1)[0],
        job.communicators[1].receive_async(np.ones(4), 0, 3)[0],
    ]
    errors, _ = job.errors(operations[1:])
    assert all(isinstance(error, MismatchError) and "40 bytes with tag 3" in str(error) for error in errors), errors


def test_waiting_for_a_rank_that_has_left_or_died_ends():
    job = Job(3, cut=lambda source, destination, now: 2 in (source, destination))
    gone = job.communicators[0].receive_async(np.ones(1), 2)[0]
    errors, seconds = job.errors([gone])
    assert isinstance(errors[0], PeerLostError) and errors[0].rank == 2 and seconds < 15
    job = Job(2)
    waits = job.communicators[0].receive_async(np.ones(1), 1)[0]
    job.communicators[1].close()
    errors, seconds = job.errors([waits])
    assert isinstance(errors[0], PeerLostError) and seconds < 1


@pytest.mark.parametrize("peer", [1, None])
def test_waiting_for_a_message_that_nobody_sends_ends(peer):
    job = Job(2, policies=Policy.from_dict({"timeouts": {"operation_s": 4}}))
    errors, seconds = job.errors([job.communicators[0].receive_async(np.ones(1), peer, 8)[0]])
    assert isinstance(errors[0], OperationTimeoutError) and "tag 8" in str(errors[0]) and seconds < 5


def test_numbers_wrap_around():
    job = Job(2, weather=Weather(drop=0.1, jitter_ns=1_000_000))
    first = -(RETIRE_EVERY // 2) & MASK
    job.nodes[0].mailbox._counts[1] = (first - 1) & MASK
    source = job.nodes[1].mailbox._sources[0]
    source.next, source.over = first, (first - 1) & MASK
    for number in range(2 * RETIRE_EVERY):
        out = np.empty(300)
        pair = [
            job.communicators[0].send_async(np.full(300, number), 1),
            job.communicators[1].receive_async(out.view(np.int64), 0)[0],
        ]
        assert job.run(pair) and (out.view(np.int64) == number).all()
    assert source.next == (first + 2 * RETIRE_EVERY) & MASK and not source.done
    assert not job.errors(pair)[0][0]
