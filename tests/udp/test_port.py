"""Datagrams that go in come out, on every way through the kernel."""

import errno
import os
import socket

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlcp.errors import AddressError, UnreachableError
from dlcp.transport.packets import Burst, control_burst
from dlcp.udp import Capabilities, DatagramPort
from dlcp.udp.describe_layout import PACKETS
from dlcp.udp.probe import probe

SIZES = st.one_of(
    # What the transport sends: equal, and a shorter last one.
    st.tuples(st.integers(0, 1500), st.integers(1, 80), st.integers(0, 1500)).map(lambda t: [t[0]] * t[1] + [min(t[0], t[2])]),
    st.tuples(st.sampled_from([8, 1400, 8900]), st.integers(1, 60)).map(lambda t: [t[0]] * t[1]),
    # What it does not, but faults may leave behind: any lengths at all.
    st.lists(st.integers(0, 3000), min_size=0, max_size=12),
    st.sampled_from([[65427], [33000, 20000], [60000, 1], [0, 0, 5], [5, 0, 0, 0]]),
)
BURSTS = st.lists(
    st.tuples(SIZES, st.integers(0, 1), st.sampled_from([0, 0x22, 0xB9, 0xE3]), st.sampled_from([48, 48, 48, 80])), max_size=8
)


@pytest.fixture(scope="module")
def ports():
    """Opens ports once for all hypothesis examples of a test."""
    opened: dict[tuple[Capabilities, int], DatagramPort] = {}

    def get(capabilities: Capabilities, number: int) -> DatagramPort:
        key = (capabilities, number)
        if key not in opened:
            opened[key] = DatagramPort(capabilities=capabilities)
        return opened[key]

    yield get
    for port in opened.values():
        port.close()


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(plan=BURSTS, seed=st.integers(0, 2**32 - 1))
def test_every_way_carries_the_same_datagrams(capabilities, ports, tools, plan, seed):
    rng = np.random.default_rng(seed)
    sender = ports(capabilities, 0)
    receivers = [ports(capabilities, 1), ports(capabilities, 2)]
    for rank, receiver in enumerate(receivers):
        tools.receive_all(receiver, 0)  # what a failed example left behind
        sender.connect_peer(rank, receiver.address)
    bursts = [tools.burst(rng, sizes, peer=peer, tos=tos, width=width) for sizes, peer, tos, width in plan]
    before = sender.metrics()
    tools.send_all(sender, bursts)
    after = sender.metrics()
    expected = [[], []]
    for burst in bursts:
        expected[burst.peer] += [(datagram, burst.tos & 3 if capabilities.recv_tos else 0) for datagram in burst.datagrams()]
    for rank, receiver in enumerate(receivers):
        assert sorted(tools.receive_all(receiver, len(expected[rank]))) == sorted(expected[rank])
    count = sum(len(burst) for burst in bursts)
    assert after["packets_sent"] - before["packets_sent"] == count
    assert after["bytes_sent"] - before["bytes_sent"] == sum(burst.wire_bytes for burst in bursts)


def test_the_full_tos_byte_stands_on_every_segment(capabilities, open_port, tools):
    """A foreign socket reads the whole byte: DSCP and ECN, for each datagram."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as witness:
        witness.bind(("127.0.0.1", 0))
        witness.settimeout(5)
        witness.setsockopt(socket.IPPROTO_IP, 13, 1)  # IP_RECVTOS
        sender = open_port(capabilities=capabilities)
        sender.connect_peer(0, witness.getsockname())
        rng = np.random.default_rng(1)
        bursts = [tools.burst(rng, [500] * 5 + [3], tos=tos) for tos in (0x00, 0xE2, 0x21, 0xE2)]
        tools.send_all(sender, bursts)
        seen = []
        for burst in bursts:
            for datagram in burst.datagrams():
                data, control, _, _ = witness.recvmsg(2000, 64)
                assert data == datagram
                seen.append(control[0][2][0])
    assert seen == [tos for tos in (0x00, 0xE2, 0x21, 0xE2) for _ in range(6)]


@pytest.mark.skipif(not probe(socket.AF_INET6).sendmmsg, reason="no IPv6 loopback")
@pytest.mark.parametrize("bits", range(4))
def test_ipv6(open_port, tools, bits):
    """Traffic class, segmentation and offload over IPv6, with and without batches of calls."""
    found = probe(socket.AF_INET6)
    chosen = Capabilities(
        found.segmentation and bool(bits & 1),
        found.receive_offload and bool(bits & 1),
        found.sendmmsg and bool(bits & 2),
        found.recvmmsg and bool(bits & 2),
        found.tos_cmsg,
        found.recv_tos,
        found.max_segments if bits & 1 else 1,
    )
    sender, receiver = open_port("::1", capabilities=chosen), open_port("::1", capabilities=chosen)
    assert receiver.address[0] == "::1"
    sender.connect_peer(0, receiver.address)
    rng = np.random.default_rng(bits)
    bursts = [tools.burst(rng, [1000] * 90 + [17], tos=0x22), tools.burst(rng, [64], tos=0xE3)]
    tools.send_all(sender, bursts)
    expected = [(datagram, burst.tos & 3) for burst in bursts for datagram in burst.datagrams()]
    assert sorted(tools.receive_all(receiver, len(expected))) == sorted(expected)


def test_more_datagrams_than_one_batch_holds(capabilities, open_port, tools):
    sender, receiver = open_port(capabilities=capabilities), open_port(capabilities=capabilities)
    sender.connect_peer(0, receiver.address)
    rng = np.random.default_rng(2)
    payload = rng.integers(0, 256, 4096, np.uint8)
    bursts = [tools.burst(rng, [40] * (PACKETS + 300), payload=payload), tools.burst(rng, [40] * 900, payload=payload)]
    expected = [datagram for burst in bursts for datagram in burst.datagrams()]
    got = []
    for burst in bursts:
        tools.send_all(sender, [burst])
        got += tools.receive_all(receiver, len(burst))
    assert sorted(data for data, _ in got) == sorted(expected)


def test_one_call_carries_segments_across_bursts(open_port, tools):
    found = probe()
    if not (found.segmentation and found.sendmmsg):
        pytest.skip("the kernel has no segmentation offload")
    sender, receiver = open_port(), open_port()
    sender.connect_peer(0, receiver.address)
    rng = np.random.default_rng(3)
    bursts = [tools.burst(rng, [1000], tos=8) for _ in range(30)] + [tools.burst(rng, [999], tos=8)]
    tools.send_all(sender, bursts)
    assert len(tools.receive_all(receiver, 31)) == 31
    metrics = sender.metrics()
    assert metrics["send_calls"] == 1 and metrics["batches_sent"] == 1 and metrics["packets_sent"] == 31
    if found.receive_offload:
        assert receiver.metrics()["batches_received"] == 1


@pytest.mark.parametrize("size", [1, 8, 511, 1400, 8900, 21787, 32705])
def test_a_full_message_takes_no_short_datagram_more(open_port, tools, size):
    """Exactly as many datagrams as one message holds, and a shorter one behind them, in the same burst or in the next."""
    sender, receiver = open_port(), open_port()
    sender.connect_peer(0, receiver.address)
    rng = np.random.default_rng(4)
    full = min(sender.capabilities.max_segments, 65507 // (size + 48))
    for sizes in ([[size] * full + [size - 1]], [[size] * full, [size - 1]], [[size] * 2 * full, [size - 1], [size - 1]]):
        bursts = [tools.burst(rng, part) for part in sizes]
        expected = [datagram for burst in bursts for datagram in burst.datagrams()]
        tools.send_all(sender, bursts)
        assert sorted(data for data, _ in tools.receive_all(receiver, len(expected))) == sorted(expected)


def test_nothing_to_send_and_nothing_to_receive(open_port, tools):
    port = open_port()
    port.connect_peer(0, port.address)
    assert port.send([]) == 0
    empty = tools.burst(np.random.default_rng(0), [])
    assert port.send([empty, empty]) == 2
    assert port.receive() == []


def test_frames_are_valid_until_the_next_receive(open_port, tools):
    """The buffers are reused, so what a first batch held is overwritten by the next: nothing is allocated for it."""
    sender, receiver = open_port(), open_port()
    sender.connect_peer(0, receiver.address)
    rng = np.random.default_rng(5)
    addresses = set()
    for _ in range(5):
        tools.send_all(sender, [tools.burst(rng, [1200] * 20)])
        frames = receiver.receive()
        addresses.add(frames[0].data.__array_interface__["data"][0])
        assert not frames[0].data.flags.owndata
    assert len(addresses) == 1


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("offload", [True, False])
def test_slots_follow_the_path(open_port, tools, batched, offload):
    """Single, aggregated and unexpectedly long datagrams alternate; the receiver changes its slots and loses nothing."""
    found = probe()
    chosen = Capabilities(
        False, offload and found.receive_offload, found.sendmmsg, batched and found.recvmmsg, found.tos_cmsg, found.recv_tos
    )
    receiver = open_port(capabilities=chosen, datagram_bytes=600)
    plain, bulk = open_port(capabilities=Capabilities(sendmmsg=found.sendmmsg)), open_port()
    rng = np.random.default_rng(6)
    steps = [
        (plain, [500] * 300, 200), (plain, [550] * 9, 0), (bulk, [500] * 200, 0), (bulk, [500] * 3, 0), (plain, [100] * 200, 90),
        (plain, [9000, 100, 9000], 0), (plain, [100] * 100, 0), (bulk, [20000] * 3 + [1], 0), (plain, [60000, 1], 0),
        (plain, [300] * 200, 0),
    ]  # fmt: skip
    for sender, sizes, first in steps:
        sender.connect_peer(0, receiver.address)
        burst = tools.burst(rng, sizes, tos=2)
        half = Burst(0, 2, burst.headers[:first], burst.payload, burst.offsets[:first], burst.sizes[:first])
        rest = Burst(0, 2, burst.headers[first:], burst.payload, burst.offsets[first:], burst.sizes[first:])
        got = []
        for part in (half, rest):
            tools.send_all(sender, [part])
            got += tools.receive_all(receiver, len(part))
        assert sorted(data for data, _ in got) == sorted(burst.datagrams())
        assert {ecn for _, ecn in got} == {2 if found.recv_tos else 0}
    assert receiver.metrics()["packets_received"] == sum(len(sizes) for _, sizes, _ in steps)


def test_a_taken_port_is_an_address_error(open_port):
    port = open_port()
    with pytest.raises(AddressError, match=rf"127\.0\.0\.1:{port.address[1]}.*in use") as caught:
        DatagramPort("127.0.0.1", port.address[1])
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.EADDRINUSE


@pytest.mark.parametrize("host, port", [("192.0.2.77", 0), ("no-such-host.invalid", 0), ("127.0.0.1", 70000), ("127.0.0.1", -1)])
def test_a_foreign_or_malformed_address_is_an_address_error(host, port):
    with pytest.raises(AddressError, match="cannot use the local address"):
        DatagramPort(host, port)


def test_a_failed_open_leaves_no_descriptor(open_port):
    port = open_port()
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        with pytest.raises(AddressError):
            DatagramPort("127.0.0.1", port.address[1])
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_peers_of_the_wrong_kind_are_refused_by_name(open_port):
    port = open_port()
    for address in (("::1", 9000), ("no-such-host.invalid", 9000), ("127.0.0.1", 1 << 20)):
        with pytest.raises(UnreachableError, match="rank 3 at"):
            port.connect_peer(3, address)


@pytest.mark.parametrize("sendmmsg", [True, False])
def test_an_unknown_peer_is_named(open_port, tools, sendmmsg):
    port = open_port(capabilities=Capabilities(sendmmsg=sendmmsg and probe().sendmmsg))
    with pytest.raises(UnreachableError, match="rank 5"):
        port.send([tools.burst(np.random.default_rng(0), [8], peer=5)])


@pytest.mark.parametrize("sendmmsg", [True, False])
@pytest.mark.parametrize("offset, size", [(-8, 16), (96, 8), (0, 101), (1 << 62, 1 << 62), (50, -8), (-(1 << 63), 8)])
def test_memory_beyond_the_payload_is_never_sent(open_port, sendmmsg, offset, size):
    port = open_port(capabilities=Capabilities(sendmmsg=sendmmsg and probe().sendmmsg))
    port.connect_peer(0, port.address)
    payload = np.zeros(100, np.uint8)
    for count in (1, 3):
        offsets, sizes = np.zeros(count, np.int64), np.full(count, 8, np.int64)
        offsets[-1], sizes[-1] = offset, size
        with pytest.raises(ValueError, match="payload"):
            port.send([Burst(0, 0, np.zeros((count, 48), np.uint8), payload, offsets, sizes)])
    assert port.receive() == []


def test_control_packets_have_no_payload(capabilities, open_port, tools):
    sender, receiver = open_port(capabilities=capabilities), open_port(capabilities=capabilities)
    sender.connect_peer(0, receiver.address)
    packets = [np.arange(size, dtype=np.uint8) for size in (48, 80, 48, 200, 200, 64)]
    tools.send_all(sender, [control_burst(0, 0xE0, packet) for packet in packets])
    got = tools.receive_all(receiver, len(packets))
    assert sorted(data for data, _ in got) == sorted(packet.tobytes() for packet in packets)


def test_a_peer_that_is_not_up_yet_is_no_error(capabilities, open_port, tools):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        address = gone.getsockname()
    port = open_port(capabilities=capabilities)
    port.connect_peer(0, address)
    rng = np.random.default_rng(8)
    for _ in range(3):
        tools.send_all(port, [tools.burst(rng, [100] * 3)])
    assert port.receive() == []


def test_a_moved_peer_gets_what_is_sent_after(open_port, tools):
    sender, first, second = open_port(), open_port(), open_port()
    rng = np.random.default_rng(9)
    for receiver in (first, second, first):
        sender.connect_peer(0, receiver.address)
        burst = tools.burst(rng, [100] * 3)
        tools.send_all(sender, [burst])
        assert sorted(data for data, _ in tools.receive_all(receiver, 3)) == sorted(burst.datagrams())


def test_the_kernel_grants_and_reports_buffers(open_port):
    port = open_port(receive_buffer_bytes=1 << 20)
    assert 0 < port.receive_buffer <= 1 << 20
    if os.geteuid() == 0:
        assert port.receive_buffer == 1 << 20
        assert open_port(receive_buffer_bytes=64 << 20).receive_buffer == 64 << 20


def test_drops_of_the_full_receive_queue_are_counted(open_port, tools):
    sender = open_port(capabilities=Capabilities(sendmmsg=probe().sendmmsg))
    receiver = open_port(receive_buffer_bytes=20_000)
    sender.connect_peer(0, receiver.address)
    rng = np.random.default_rng(10)
    tools.send_all(sender, [tools.burst(rng, [1000] * 500)])
    arrived = len(tools.receive_all(receiver, 1))
    assert 0 < arrived < 500
    assert receiver.metrics()["receive_dropped"] == 500 - arrived
    receiver.close()
    assert receiver.metrics()["receive_dropped"] == 500 - arrived


def test_a_closed_port_says_so(capabilities, open_port, tools):
    port = open_port(capabilities=capabilities)
    port.connect_peer(0, port.address)
    port.close()
    port.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        port.send([tools.burst(np.random.default_rng(0), [8])])
