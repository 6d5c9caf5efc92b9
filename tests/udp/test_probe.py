"""The probe tells the truth, and never raises."""

import errno
import socket
from dataclasses import fields

import pytest

import dlcp.udp.probe as module
from dlcp.udp import Capabilities
from dlcp.udp.probe import WITHOUT, probe
from dlcp.udp.syscalls import SOL_UDP, UDP_GRO, UDP_SEGMENT


@pytest.fixture
def fresh():
    """The probe without its memory."""
    return probe.__wrapped__


def test_it_is_asked_once():
    assert probe() is probe()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_it_finds_the_same_again(fresh, family):
    found = fresh(family)
    assert found == fresh(family) == probe(family)
    assert found.max_segments >= 2 if found.segmentation else found.max_segments == 1


def test_what_it_grants_really_works():
    """By hand, with nothing of the package: segments arrive one by one with their ToS, and come aggregated to who asks for it."""
    found = probe()
    if not (found.segmentation and found.receive_offload and found.tos_cmsg and found.recv_tos):
        pytest.skip("this kernel lacks something")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tx, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as rx:
        rx.bind(("127.0.0.1", 0))
        rx.settimeout(5)
        rx.setsockopt(socket.IPPROTO_IP, 13, 1)
        segments = [bytes([n]) * 100 for n in range(found.max_segments)]
        control = [
            (SOL_UDP, UDP_SEGMENT, (100).to_bytes(2, "little")),
            (socket.IPPROTO_IP, socket.IP_TOS, bytes([0xA1, 0, 0, 0])),
        ]
        tx.sendmsg(segments, control, 0, rx.getsockname())
        for segment in segments:
            data, got, _, _ = rx.recvmsg(65536, 100)
            assert data == segment and got == [(socket.IPPROTO_IP, socket.IP_TOS, b"\xa1")]
        rx.setsockopt(SOL_UDP, UDP_GRO, 1)
        tx.sendmsg(segments, control, 0, rx.getsockname())
        data, got, _, _ = rx.recvmsg(65536, 100)
        assert data == b"".join(segments)
        assert (SOL_UDP, UDP_GRO, (100).to_bytes(4, "little")) in got


@pytest.mark.parametrize(
    "option, lost",
    [
        ((SOL_UDP, UDP_GRO), {"receive_offload"}),
        ((socket.IPPROTO_IP, 13), {"recv_tos", "tos_cmsg", "segmentation", "receive_offload"}),
    ],
)
def test_a_refused_option_costs_what_depends_on_it(fresh, monkeypatch, option, lost):
    class Odd(socket.socket):
        def setsockopt(self, level, name, *value):
            if (level, name) == option:
                raise OSError(errno.ENOPROTOOPT, "Protocol not available")
            super().setsockopt(level, name, *value)

    before = probe()
    monkeypatch.setattr(module.socket, "socket", Odd)
    after = fresh()
    # Without a way to read the ToS it cannot be shown to arrive, but segmentation can.
    gone = {field.name for field in fields(before) if getattr(before, field.name) != getattr(after, field.name)}
    assert bool(gone) == any(getattr(before, name) for name in lost)
    assert gone <= lost and not any(getattr(after, name) for name in gone)


def test_segmentation_that_is_accepted_but_not_done_is_not_granted(fresh, monkeypatch):
    """An old kernel ignores unknown control messages of a level it knows: everything goes out as one datagram."""

    class Old(socket.socket):
        def sendmsg(self, buffers, control=(), *rest):
            return super().sendmsg(buffers, [entry for entry in control if entry[1] != UDP_SEGMENT], *rest)

    monkeypatch.setattr(module.socket, "socket", Old)
    found = fresh()
    assert not found.segmentation and not found.receive_offload and found.max_segments == 1
    assert found.sendmmsg == probe().sendmmsg


def test_tos_that_is_accepted_but_not_set_is_not_granted(fresh, monkeypatch):
    class Odd(socket.socket):
        def sendmsg(self, buffers, control=(), *rest):
            return super().sendmsg(buffers, [entry for entry in control if entry[1] != socket.IP_TOS], *rest)

    monkeypatch.setattr(module.socket, "socket", Odd)
    found = fresh()
    assert not found.tos_cmsg
    assert found.recv_tos == probe().recv_tos


def test_segments_that_lose_their_tos_are_not_granted(fresh, monkeypatch):
    """ToS on the first segment alone would let a switch drop what is protected."""

    class Odd(socket.socket):
        received = 0

        def recvmsg(self, *arguments):
            data, control, *rest = super().recvmsg(*arguments)
            self.received += 1
            return (data, control if self.received == 1 else [], *rest)

    monkeypatch.setattr(module.socket, "socket", Odd)
    found = fresh()
    assert not found.segmentation and found.tos_cmsg == probe().tos_cmsg


@pytest.mark.parametrize(
    "problem", [OSError(errno.EPERM, "no"), AttributeError("recvmsg"), NotImplementedError(), TimeoutError()]
)
def test_an_odd_kernel_gives_nothing_and_raises_nothing(fresh, monkeypatch, problem):
    def refuse(*_):
        raise problem

    monkeypatch.setattr(module.socket, "socket", refuse)
    assert fresh() == Capabilities()
    assert fresh(socket.AF_INET6) == Capabilities()


def test_missing_functions_of_the_c_library(fresh, monkeypatch):
    monkeypatch.setattr(module.syscalls, "HAVE_SENDMMSG", False)
    monkeypatch.setattr(module.syscalls, "HAVE_RECVMMSG", False)
    found = fresh()
    assert not found.sendmmsg and not found.recvmmsg
    assert found.segmentation == probe().segmentation


def test_every_capability_says_what_is_lost_without_it():
    assert set(WITHOUT) == {field.name for field in fields(Capabilities)} - {"max_segments"}
