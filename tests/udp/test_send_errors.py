"""Full send buffers and failing system calls: nothing is sent twice, nothing is lost but what is counted."""

import errno
import os
import select
import socket
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlcp.errors import MtuError
from dlcp.transport.packets import Burst
from dlcp.udp import Capabilities, DatagramPort, batch
from dlcp.udp.probe import probe

WAYS = [
    pytest.param(True, True, id="sendmmsg+segmentation"),
    pytest.param(True, False, id="sendmmsg"),
    pytest.param(False, True, id="sendmsg+segmentation"),
    pytest.param(False, False, id="sendmsg"),
]


def way(batched: bool, segmented: bool) -> Capabilities:
    found = probe()
    if batched > found.sendmmsg or segmented > found.segmentation:
        pytest.skip("this kernel cannot")
    return Capabilities(segmented, False, batched, found.recvmmsg, found.tos_cmsg, found.recv_tos, 16 if segmented else 1)


class Kernel:
    """Stands between a port and the kernel, and answers some calls itself.

    ``script`` holds, for each coming call, either an errno, or the number of messages to pass on at most.
    """

    def __init__(self, port: DatagramPort) -> None:
        self.script: list[tuple[str, int]] = []
        self.only_segmented = False
        self._socket = port._socket
        sender: Any = port._sender
        if isinstance(sender, batch.BatchSender):
            self._real: Any = vars(batch)["sendmmsg"]
            vars(batch)["sendmmsg"] = self.sendmmsg
        else:
            self._real = None
        # A handful of datagrams is sent without sendmmsg() anyway.
        sender._socket = self
        self._sender = sender

    def restore(self) -> None:
        if self._real is not None:
            vars(batch)["sendmmsg"] = self._real

    def _next(self, segmented: bool) -> tuple[str, int]:
        if not self.script or (self.only_segmented and not segmented):
            return "take", 1 << 30
        return self.script.pop(0)

    def sendmmsg(self, descriptor: int, messages: int, count: int) -> int:
        first = (messages - self._sender._address) // 64
        verdict, number = self._next(bool(self._sender._messages["iov_length"][first] > 2))
        return -number if verdict == "fail" else self._real(descriptor, messages, min(count, number))

    def sendmsg(self, pieces, control, flags, address) -> int:
        verdict, number = self._next(len(control) == 2)
        if verdict == "fail":
            raise OSError(number, os.strerror(number))
        return self._socket.sendmsg(pieces, control, flags, address)

    def __getattr__(self, name: str):
        return getattr(self._socket, name)


@pytest.fixture
def kernel():
    opened = []

    def between(port: DatagramPort) -> Kernel:
        opened.append(Kernel(port))
        return opened[-1]

    yield between
    for one in opened:
        one.restore()


STEPS = st.lists(
    st.one_of(st.just(("fail", errno.EAGAIN)), st.just(("fail", errno.EINTR)), st.tuples(st.just("take"), st.integers(1, 5))),
    max_size=40,
)


@pytest.mark.parametrize("batched, segmented", WAYS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 1)), min_size=1, max_size=6), script=STEPS)
def test_a_full_send_buffer_neither_loses_nor_repeats(tools, batched, segmented, sizes, script):
    capabilities = way(batched, segmented)
    sender, receiver = DatagramPort(capabilities=capabilities), DatagramPort()
    sender.connect_peer(0, receiver.address)
    kernel = Kernel(sender)
    try:
        rng = np.random.default_rng(0)
        bursts = [tools.burst(rng, [100] * count, tos=4 * tos) for count, tos in sizes]
        kernel.script = list(script)
        left = list(bursts)
        for _ in range(len(script) + 2):
            sent = sender.send(left)
            assert 0 <= sent <= len(left)
            del left[:sent]
        assert not left
        expected = [datagram for burst in bursts for datagram in burst.datagrams()]
        assert sorted(data for data, _ in tools.receive_all(receiver, len(expected))) == sorted(expected)
        metrics = sender.metrics()
        assert metrics["packets_sent"] == len(expected) and metrics["bytes_sent"] == sum(map(len, expected))
        taken = len(script) - len(kernel.script)
        assert metrics["send_blocked"] == sum(step == ("fail", errno.EAGAIN) for step in script[:taken])
    finally:
        kernel.restore()
        sender.close()
        receiver.close()


def test_a_queue_that_was_thrown_away_leaves_no_cursor(open_port, tools, kernel):
    """The caller may give the partly sent burst up; the next one is then sent from its beginning."""
    sender, receiver = open_port(capabilities=way(True, False)), open_port()
    sender.connect_peer(0, receiver.address)
    between = kernel(sender)
    between.script = [("take", 3), ("fail", errno.EAGAIN)]
    rng = np.random.default_rng(0)
    first, second = tools.burst(rng, [50] * 8), tools.burst(rng, [60] * 8)
    assert sender.send([first]) == 0
    assert sender.send([second]) == 1
    assert sender.send([first]) == 1
    assert len(tools.receive_all(receiver, 19)) == 3 + 8 + 8


@pytest.mark.parametrize("batched, segmented", WAYS)
@pytest.mark.parametrize("code", [errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.ENOBUFS, errno.EPERM])
def test_an_unreachable_peer_costs_its_message_alone(open_port, tools, kernel, batched, segmented, code):
    capabilities = way(batched, segmented)
    sender, receiver = open_port(capabilities=capabilities), open_port()
    sender.connect_peer(0, receiver.address)
    between = kernel(sender)
    between.script = [("take", 1), ("fail", code)]
    rng = np.random.default_rng(0)
    bursts = [tools.burst(rng, [50] * 4, tos=tos) for tos in (0, 4, 8)]
    assert sender.send(bursts) == 3
    lost = 4 if segmented else 1
    assert len(tools.receive_all(receiver, 12 - lost)) == 12 - lost
    metrics = sender.metrics()
    assert metrics["send_refused"] == lost and metrics["packets_sent"] == 12 - lost


@pytest.mark.parametrize("batched", [True, False])
def test_segmentation_is_given_up_where_the_device_cannot(open_port, tools, kernel, batched):
    """EIO: the route's device cannot checksum segments (or IPsec is in the way) although the loopback could."""
    sender, receiver = open_port(capabilities=way(batched, True)), open_port()
    sender.connect_peer(0, receiver.address)
    between = kernel(sender)
    between.only_segmented = True
    between.script = [("take", 1), ("fail", errno.EIO), ("fail", errno.EIO)]
    rng = np.random.default_rng(0)
    bursts = [tools.burst(rng, [50] * 40 + [3], tos=tos) for tos in (0, 4, 8)]
    tools.send_all(sender, bursts)
    tools.send_all(sender, bursts)
    expected = sorted(2 * [datagram for burst in bursts for datagram in burst.datagrams()])
    assert sorted(data for data, _ in tools.receive_all(receiver, len(expected))) == expected
    metrics = sender.metrics()
    assert metrics["packets_sent"] == len(expected) and metrics["send_refused"] == 0
    assert metrics["batches_sent"] == 1


@pytest.mark.parametrize("batched, segmented", WAYS)
def test_any_other_error_is_raised(open_port, tools, kernel, batched, segmented):
    sender = open_port(capabilities=way(batched, segmented))
    sender.connect_peer(0, sender.address)
    kernel(sender).script = [("fail", errno.EFAULT)]
    with pytest.raises(OSError, match=r"48 bytes to rank 0 at 127\.0\.0\.1:\d+: Bad address") as caught:
        sender.send([tools.burst(np.random.default_rng(0), [0])])
    assert caught.value.errno == errno.EFAULT


@pytest.mark.parametrize("batched, segmented", WAYS)
def test_a_datagram_that_no_packet_holds_is_an_mtu_error(open_port, tools, batched, segmented):
    port = open_port(capabilities=way(batched, segmented))
    port.connect_peer(0, port.address)
    with pytest.raises(MtuError, match=r"65536 bytes .* rank 0 at 127\.0\.0\.1:\d+.*lower wire\.mtu"):
        port.send([tools.burst(np.random.default_rng(0), [65460])])


@pytest.mark.parametrize("batched, segmented", WAYS)
def test_einval_for_a_large_segment_is_an_mtu_error(open_port, tools, kernel, monkeypatch, batched, segmented):
    """What kernels before 6.14 say of a segment that is larger than the path's MTU."""
    port = open_port(capabilities=way(batched, segmented))
    port.connect_peer(0, port.address)
    monkeypatch.setattr("dlcp.udp.send.path_mtu", lambda *_: 1400)
    kernel(port).script = [("fail", errno.EINVAL)]
    with pytest.raises(MtuError, match=r"1476 bytes .* path carries 1400 bytes"):
        port.send([tools.burst(np.random.default_rng(0), [1400] * 5)])


@pytest.mark.root
class TestBehindALink:
    """A veth pair with an MTU of 1500 between two namespaces."""

    @pytest.mark.parametrize("batched, segmented", WAYS)
    def test_the_mtu_is_the_limit(self, namespaces, tools, batched, segmented):
        capabilities = way(batched, segmented)

        def left():
            port = DatagramPort("10.117.0.1", capabilities=capabilities)
            try:
                assert port.mtu == 1500
                port.connect_peer(1, receiver.address)
                assert port.path_mtu(1) == 1500
                rng = np.random.default_rng(0)
                fits = tools.burst(rng, [1472 - 48] * 50, peer=1, tos=0x22)
                tools.send_all(port, [fits])
                with pytest.raises(
                    MtuError, match=r"packets of 1501 bytes .* rank 1 at 10\.117\.0\.2:\d+: the path carries 1500"
                ):
                    tools.send_all(port, [tools.burst(rng, [1473 - 48] * 50, peer=1)])
                return fits
            finally:
                port.close()

        receiver = namespaces.run(namespaces.right, lambda: DatagramPort("10.117.0.2", capabilities=way(True, False)))
        try:
            fits = namespaces.run(namespaces.left, left)
            assert sorted(data for data, _ in tools.receive_all(receiver, 50)) == sorted(fits.datagrams())
        finally:
            receiver.close()

    def test_a_wildcard_address_takes_the_smallest_interface(self, namespaces):
        def left():
            port = DatagramPort("0.0.0.0")
            port.close()
            return port.mtu

        assert namespaces.run(namespaces.left, left) == 1500

    @pytest.mark.parametrize("batched, segmented", WAYS)
    def test_no_route_is_counted(self, namespaces, tools, batched, segmented):
        capabilities = way(batched, segmented)

        def left():
            port = DatagramPort("10.117.0.1", capabilities=capabilities)
            port.connect_peer(0, ("203.0.113.1", 9))
            tools.send_all(port, [tools.burst(np.random.default_rng(0), [100] * 20)])
            port.close()
            return port.metrics()

        metrics = namespaces.run(namespaces.left, left)
        assert metrics["send_refused"] == 20 and metrics["packets_sent"] == 0

    @pytest.mark.parametrize("batched, segmented", WAYS)
    def test_a_slow_link_blocks_and_nothing_is_lost(self, namespaces, tools, batched, segmented):
        """A token bucket holds packets back, so they stay in a tiny send buffer: the real EAGAIN."""
        capabilities = way(batched, segmented)
        try:
            # Slow enough that a busy machine is faster still.
            bucket = ("tbf", "rate", "20mbit", "burst", "20k", "limit", "4m")
            namespaces.inside(namespaces.left, "tc", "qdisc", "replace", "dev", "v0", "root", *bucket)
        except OSError as problem:
            pytest.skip(f"no token bucket here: {problem}")
        receiver = namespaces.run(namespaces.right, lambda: DatagramPort("10.117.0.2"))
        sender = namespaces.run(
            namespaces.left, lambda: DatagramPort("10.117.0.1", send_buffer_bytes=8192, capabilities=capabilities)
        )
        try:
            sender.connect_peer(0, receiver.address)
            rng = np.random.default_rng(0)
            bursts = [tools.burst(rng, [1000] * 40 + [7], tos=2) for _ in range(10)]
            tools.send_all(sender, bursts)
            expected = [datagram for burst in bursts for datagram in burst.datagrams()]
            assert sorted(data for data, _ in tools.receive_all(receiver, len(expected))) == sorted(expected)
            metrics = sender.metrics()
            assert metrics["send_blocked"] > 0
            assert metrics["packets_sent"] == len(expected)
        finally:
            sender.close()
            receiver.close()
            namespaces.inside(namespaces.left, "tc", "qdisc", "delete", "dev", "v0", "root")

    def test_the_queue_before_a_slow_link_gets_short(self, namespaces, tools):
        """What waits on its own host cannot be overtaken any more: a send buffer for fast links holds a second of this one."""
        try:
            bucket = ("tbf", "rate", "20mbit", "burst", "20k", "limit", "16m")
            namespaces.inside(namespaces.left, "tc", "qdisc", "replace", "dev", "v0", "root", *bucket)
        except OSError as problem:
            pytest.skip(f"no token bucket here: {problem}")
        receiver = namespaces.run(namespaces.right, lambda: DatagramPort("10.117.0.2"))
        sender = namespaces.run(namespaces.left, lambda: DatagramPort("10.117.0.1", send_buffer_bytes=1 << 20))
        try:
            before = sender.room
            sender.connect_peer(0, receiver.address)
            bursts = [tools.burst(np.random.default_rng(0), [1000] * 40, tos=2) for _ in range(80)]
            tools.send_all(sender, bursts)
            expected = [datagram for burst in bursts for datagram in burst.datagrams()]
            assert sorted(data for data, _ in tools.receive_all(receiver, len(expected))) == sorted(expected)
            # The link drains 10 kB in the time that is aimed at; a machine that is busy meanwhile lets the queue run dry.
            assert sender.room <= before // 4
        finally:
            sender.close()
            receiver.close()
            namespaces.inside(namespaces.left, "tc", "qdisc", "delete", "dev", "v0", "root")

    @pytest.mark.parametrize("batched", [True, False])
    def test_a_device_without_offloads_still_delivers(self, namespaces, tools, batched):
        """No checksums and no segmentation in the device: the kernel does them, or the port gives segmentation up."""
        try:
            namespaces.inside(namespaces.left, "ethtool", "-K", "v0", "tx", "off", "rx", "off")
        except OSError as problem:
            pytest.skip(f"cannot change offloads: {problem}")
        receiver = namespaces.run(namespaces.right, lambda: DatagramPort("10.117.0.2"))
        sender = namespaces.run(namespaces.left, lambda: DatagramPort("10.117.0.1", capabilities=way(batched, True)))
        try:
            sender.connect_peer(0, receiver.address)
            rng = np.random.default_rng(0)
            for _ in range(5):
                burst = tools.burst(rng, [1000] * 90 + [7], tos=2)
                tools.send_all(sender, [burst])
                expected = [(datagram, 2 if probe().recv_tos else 0) for datagram in burst.datagrams()]
                assert sorted(tools.receive_all(receiver, len(expected))) == sorted(expected)
        finally:
            sender.close()
            receiver.close()
            namespaces.inside(namespaces.left, "ethtool", "-K", "v0", "tx", "on", "rx", "on")

    def test_a_smaller_link_further_on_is_an_mtu_error(self, namespaces, tools):
        """Behind the right namespace, which routes, lies a link with an MTU of 1300: its ICMP answer reaches the sender."""
        right, left = namespaces.right, namespaces.left
        namespaces.ip("-n", right, "link", "add", "d0", "mtu", "1300", "type", "veth", "peer", "name", "d1")
        try:
            namespaces.ip("-n", right, "address", "add", "10.118.0.1/24", "dev", "d0")
            namespaces.ip("-n", right, "link", "set", "d0", "up")
            namespaces.ip("-n", left, "route", "add", "10.118.0.0/24", "via", "10.117.0.2")
            namespaces.inside(right, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
            port = namespaces.run(left, lambda: DatagramPort("10.117.0.1"))
            try:
                port.connect_peer(4, ("10.118.0.9", 9))
                burst = tools.burst(np.random.default_rng(0), [1400] * 3, peer=4)

                def until_told() -> None:
                    for _ in range(200):
                        tools.send_all(port, [burst])
                        select.select([], [], [], 0.01)

                with pytest.raises(MtuError, match=r"rank 4 at 10\.118\.0\.9:9: the path carries 1300 bytes"):
                    namespaces.run(left, until_told)
            finally:
                port.close()
        finally:
            namespaces.ip("-n", right, "link", "delete", "d0")


def test_sockets_are_not_inherited(open_port):
    """Children of a training script must not keep the port taken."""
    assert not os.get_inheritable(open_port().fileno())


def test_fragmentation_is_off(open_port):
    port = open_port()
    assert port._socket.getsockopt(socket.IPPROTO_IP, 10) == 2  # IP_MTU_DISCOVER, IP_PMTUDISC_DO


def test_a_burst_may_be_sent_twice(open_port, tools):
    """Retransmission from the same object: the cursor belongs to an interrupted call only."""
    sender, receiver = open_port(), open_port()
    sender.connect_peer(0, receiver.address)
    burst: Burst = tools.burst(np.random.default_rng(0), [100] * 5)
    assert sender.send([burst, burst]) == 2
    assert len(tools.receive_all(receiver, 10)) == 10
