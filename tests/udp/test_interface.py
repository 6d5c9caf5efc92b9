"""Addresses, interfaces and MTUs."""

import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.udp.interface import interface_mtu, interface_of, mtu_of, path_mtu
from dlcp.udp.peers import pack_address, resolve
from dlcp.udp.syscalls import MMSGHDR, Poller, Waker, sendmmsg


def test_the_loopback():
    assert interface_of("127.0.0.1") == interface_of("127.9.8.7") == "lo"
    assert mtu_of("127.0.0.1") == interface_mtu("lo") > 1280
    assert interface_of("0.0.0.0") is None and interface_of("localhost") is None and interface_of("192.0.2.254") is None
    assert interface_mtu("no-such-if") is None


def test_the_ipv6_loopback():
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    assert interface_of("::1") in ("lo", None)
    assert interface_of("2001:db8::1") is None


def test_a_wildcard_has_an_mtu():
    smallest = [interface_mtu(name) for _, name in socket.if_nameindex()]
    assert mtu_of("0.0.0.0") in smallest and mtu_of("::") in smallest


def test_the_path_to_oneself():
    assert path_mtu(socket.AF_INET, ("127.0.0.1", 0), ("127.0.0.1", 9)) >= mtu_of("127.0.0.1") - 1
    assert path_mtu(socket.AF_INET, ("127.0.0.1", 0), ("203.0.113.1", 9)) is None


@given(st.ip_addresses(v=4), st.integers(0, 65535))
def test_ipv4_addresses_are_laid_out_as_the_kernel_does(address, port):
    packed = pack_address(socket.AF_INET, (str(address), port))
    assert packed == socket.AF_INET.to_bytes(2, "little") + port.to_bytes(2, "big") + address.packed + bytes(8)


@given(st.ip_addresses(v=6), st.integers(0, 65535), st.integers(0, 100))
def test_ipv6_addresses_are_laid_out_as_the_kernel_does(address, port, scope):
    packed = pack_address(socket.AF_INET6, (str(address), port, 5, scope))
    assert packed[2:8] == port.to_bytes(2, "big") + (5).to_bytes(4, "big")
    assert packed[8:24] == address.packed and int.from_bytes(packed[24:], "little") == scope
    assert len(packed) == 28


def test_names_resolve_in_the_family_asked_for():
    assert resolve("localhost", 7, socket.AF_INET) == (socket.AF_INET, ("127.0.0.1", 7))
    with pytest.raises(OverflowError):
        resolve("localhost", 65536)


def test_a_wake_up_is_seen_once_drained():
    waker = Waker()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
        port.bind(("127.0.0.1", 0))
        poller = Poller(port.fileno(), waker.fileno())
        assert poller.wait(0, for_write=False) == (False, False, False)
        for _ in range(3):
            waker.wake()
        assert poller.wait(None, for_write=False) == (False, False, True)
        waker.drain()
        waker.drain()
        assert poller.wait(1000, for_write=False) == (False, False, False)
        assert poller.wait(None, for_write=True) == (False, True, False)
        port.sendto(b"x", port.getsockname())
        assert poller.wait(None, for_write=False) == (True, False, False)
    waker.close()


def test_without_ppoll(monkeypatch):
    monkeypatch.setattr("dlcp.udp.syscalls._PPOLL", None)
    test_a_wake_up_is_seen_once_drained()


def test_without_eventfd(monkeypatch):
    monkeypatch.delattr("os.eventfd", raising=False)
    test_a_wake_up_is_seen_once_drained()


def test_waiting_for_a_closed_socket_is_an_error():
    waker = Waker()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
        poller = Poller(port.fileno(), waker.fileno())
    with pytest.raises(OSError, match="closed"):
        poller.wait(0, for_write=False)
    waker.close()


def test_errors_of_system_calls_are_negative_errnos():
    messages = np.zeros(1, MMSGHDR)
    assert sendmmsg(-1, messages.__array_interface__["data"][0], 1) == -9  # EBADF
