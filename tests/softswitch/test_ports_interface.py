"""Interfaces as ports, on real veth pairs."""

import select
import socket
import struct
import subprocess
import time

import pytest

from softswitch.ports.base import PortError
from softswitch.ports.checksum import complete, internet_checksum
from softswitch.ports.netlink import LinkWatch
from softswitch.ports.packet_socket import BATCH, InterfaceIO, is_up
from tests.softswitch.lab import hear, make_lab

pytestmark = pytest.mark.root


@pytest.fixture
def lab():
    with make_lab(1) as lab:
        yield lab


def opened(lab, name="s1"):
    with lab.inside():
        return InterfaceIO(name)


def frame(length, tag=0):
    return bytes.fromhex("0200000000020200000000018888") + tag.to_bytes(4, "big") + bytes(length - 18)


def take(io, count, seconds=10):
    """Reads until ``count`` frames are there; test protocols of the kernel's own do not count."""
    packets = []
    while len(packets) < count:
        assert select.select([io], [], [], seconds)[0], f"{len(packets)} of {count} frames came"
        packets += [packet for packet in io.receive() if packet[12:14] in (b"\x88\x88", b"\x81\x00", b"\x88\xa8", b"\x08\x00")]
    return packets


def test_frames_pass_in_both_directions_unchanged_and_in_order(lab):
    io, host = opened(lab), lab.host(1)
    lengths = [60, 1514, 61, 800, *range(100, 200)]
    frames = [frame(length, index) for index, length in enumerate(lengths)]
    for packet in frames:
        host.send(packet)
    assert take(io, len(frames)) == frames
    assert io.send(frames) == len(frames)
    assert [host.recv(2048) for _ in frames] == frames
    # Neither its own frames nor those that others on this host send through the interface come back to it.
    with lab.inside():
        other = hear("s1")
    other.send(frame(77, 1))
    other.close()
    assert host.recv(2048) == frame(77, 1)
    assert io.receive() == []
    assert not io.drops
    io.close()
    host.close()


def test_a_batch_is_bounded(lab):
    io, host = opened(lab), lab.host(1)
    for index in range(BATCH + 10):
        host.send(frame(60, index))
    select.select([io], [], [], 10)
    first = io.receive()
    assert len(first) <= BATCH
    assert first + take(io, BATCH + 10 - len(first)) == [frame(60, index) for index in range(BATCH + 10)]
    io.close()
    host.close()


def test_arrivals_are_stamped_by_the_kernel_not_by_the_reader(lab):
    io, host = opened(lab), lab.host(1)

    def spread():
        """Sends five frames, reads them all at once afterwards, and tells whether each has the time at which it was sent."""
        edges = [time.time_ns()]
        for index in range(5):
            host.send(frame(60, index))
            time.sleep(0.002)
            edges.append(time.time_ns())
        select.select([io], [], [], 10)
        assert io.receive() == [frame(60, index) for index in range(5)]
        assert not io.more
        return all(before <= stamp <= after for before, stamp, after in zip(edges, io.times(5), edges[1:], strict=False))

    # The kernel begins to stamp a moment after it was asked to.
    assert any(spread() for _ in range(20))
    assert spread()
    io.close()
    host.close()


@pytest.mark.parametrize("tag", ["81000064", "8100e123", "88a80005"])
def test_a_vlan_tag_that_the_kernel_takes_out_is_put_back(lab, tag):
    io, host = opened(lab), lab.host(1)
    plain = frame(200, 7)
    tagged = plain[:12] + bytes.fromhex(tag) + plain[12:]
    for packet in (plain, tagged, plain):
        host.send(packet)
    assert take(io, 3) == [plain, tagged, plain]
    assert io.send([tagged]) == 1
    io.close()
    host.close()


def test_what_cannot_be_sent_is_counted_and_the_rest_is_sent(lab):
    io, host = opened(lab), lab.host(1)
    good = [frame(100, index) for index in range(4)]
    assert io.send([good[0], frame(1600), good[1], b"short", good[2], frame(9000), good[3]]) == 7
    assert [host.recv(2048) for _ in good] == good
    assert io.drops == {"longer-than-mtu": 2, "too-short": 1}
    lab.ip("link", "set", "s1", "down")
    assert io.send(good) == 4
    assert io.drops["interface-down"] == 4
    assert io.receive() == []
    io.close()
    host.close()


def test_a_frame_longer_than_the_interface_takes_is_dropped_and_counted(lab):
    lab.ip("link", "set", "h1", "mtu", "9000")
    io, host = opened(lab), lab.host(1)
    # The receiving end of a veth pair takes a little more than its MTU; a device that cannot is told by its driver.
    lab.ip("link", "set", "s1", "mtu", "9000")
    host.send(frame(4000))
    host.send(frame(100, 1))
    assert take(io, 1) == [frame(100, 1)]
    assert io.drops == {"too-long": 1}
    io.close()
    host.close()


def test_frames_that_overflow_the_receive_buffer_are_counted(lab):
    io, host = opened(lab), lab.host(1)
    io._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20000)
    for index in range(100):
        host.send(frame(1500, index))
    got = len(take(io, 1))
    while packets := io.receive():
        got += len(packets)
    assert io.read_drops() == io.drops["receive-buffer-full"] == 100 - got > 0
    assert io.read_drops() == 0
    io.close()
    host.close()


@pytest.mark.parametrize("family", ["ip", "vlan"])
def test_a_checksum_that_a_host_left_to_its_card_is_completed(family):
    """With offload on, ping works over a naive switch and UDP does not."""
    with make_lab(1, offload=True) as lab:
        name = "h1"
        if family == "vlan":
            name = "v5"
            try:
                lab.ip("link", "add", "link", "h1", "name", name, "type", "vlan", "id", "5")
            except subprocess.CalledProcessError:
                pytest.skip("this kernel has no VLAN devices")
            lab.ip("link", "set", name, "up")
        lab.ip("addr", "add", "10.9.0.1/24", "dev", name)
        lab.ip("neigh", "add", "10.9.0.2", "lladdr", "02:00:00:00:00:02", "dev", name)
        io = opened(lab)
        with lab.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"hello, world" * 3, ("10.9.0.2", 5000))
        at = 18 if family == "vlan" else 14
        while True:
            (packet,) = take(io, 1)
            if packet[at + 9] == 17:
                break
        assert family == "ip" or packet[12:16] == bytes.fromhex("81000005")
        segment = packet[at + 20 :]
        pseudo = packet[at + 12 : at + 20] + struct.pack("!HH", 17, len(segment))
        # A sum that includes a right checksum is all ones, so what is left is zero.
        assert internet_checksum(pseudo + segment) == 0
        assert segment[6:8] != b"\0\0"
        assert complete(packet) == packet
        io.close()


def test_an_interface_that_is_not_there_is_an_error_of_its_own(lab):
    with lab.inside(), pytest.raises(PortError, match="no network interface 'nosuch'"):
        InterfaceIO("nosuch")


def test_link_changes_are_told(lab):
    with lab.inside():
        watch = LinkWatch()
        assert is_up("s1")
        assert not is_up("nosuch")

    def last(name, want):
        while True:
            assert select.select([watch], [], [], 10)[0]
            events, lost = watch.read()
            assert not lost
            states = [(event.up, event.gone) for event in events if event.name == name]
            if want in states:
                return

    # A carrier that the far end takes away, as a cable that is pulled.
    lab.ip("link", "set", "h1", "down")
    last("s1", (False, False))
    with lab.inside():
        assert not is_up("s1")
    lab.ip("link", "set", "h1", "up")
    last("s1", (True, False))
    lab.ip("link", "del", "s1")
    last("s1", (False, True))
    watch.close()
