"""Captures: what is written can be read, what is damaged is refused, and a replay is the same every time."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softswitch.ports.base import PortError
from softswitch.ports.checksum import complete, internet_checksum
from softswitch.ports.netlink import parse
from softswitch.ports.pcap import PcapWriter, read_pcap
from softswitch.replay import replay
from softswitch.switch import Switch
from tests.softswitch.scripted import ScriptedPipeline, send

stamped = st.lists(st.tuples(st.integers(0, 2**32 * 10**9 - 1), st.binary(max_size=80)), max_size=10)


@given(stamped)
def test_a_capture_is_read_as_it_was_written(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("pcap") / "x.pcap"
    with PcapWriter(path) as writer:
        for time, frame in records:
            writer.write(time, [frame])
    assert list(read_pcap(path)) == records


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(("magic", "unit"), [(0xA1B2C3D4, 1000), (0xA1B23C4D, 1)])
def test_both_byte_orders_and_both_units_are_read(tmp_path, order, magic, unit):
    path = tmp_path / "x.pcap"
    path.write_bytes(
        struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, 1) + struct.pack(order + "IIII", 3, 70, 2, 2) + b"ab"
    )
    assert list(read_pcap(path)) == [(3 * 10**9 + 70 * unit, b"ab")]


def good():
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    return header + struct.pack("<IIII", 3, 70, 4, 4) + b"abcd"


@given(st.integers(1, len(good()) - 1))
def test_a_capture_that_ends_early_is_refused(tmp_path_factory, length):
    path = tmp_path_factory.mktemp("pcap") / "x.pcap"
    path.write_bytes(good()[:length])
    if length == 24:
        assert list(read_pcap(path)) == []
    else:
        with pytest.raises(PortError, match=r"x\.pcap"):
            list(read_pcap(path))


@pytest.mark.parametrize(
    ("at", "data", "message"),
    [
        (0, b"\x0a\x0d\x0d\x0a", "editcap"),
        (20, b"\x65", "link type is 101"),
        (32, b"\xff\xff\xff\x7f", "damaged"),
        (36, b"\x09", "4 bytes only"),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path, at, data, message):
    path = tmp_path / "x.pcap"
    content = good()
    path.write_bytes(content[:at] + data + content[at + len(data) :])
    with pytest.raises(PortError, match=message):
        list(read_pcap(path))


def test_a_missing_capture_or_folder_is_an_error_of_its_own(tmp_path):
    with pytest.raises(PortError, match="No such file"):
        list(read_pcap(tmp_path / "none.pcap"))
    with pytest.raises(PortError, match="No such file"):
        PcapWriter(tmp_path / "none" / "x.pcap")


def test_a_replay_keeps_the_time_of_the_capture_and_the_rate_of_the_links(tmp_path):
    second = 10**9
    ways = {name: tmp_path / f"{name}.pcap" for name in ("1in", "2in", "1out", "2out")}
    with PcapWriter(ways["1in"]) as one:
        # 1000 bytes at 8 Mbit/s take 1 ms: the first two queue, the third finds an idle link.
        one.write(1000 * second, [send(2, 1, length=1000, tag=1), send(2, 2, length=1000, tag=2)])
        one.write(1001 * second, [send(2, 1, length=500, tag=3)])
    with PcapWriter(ways["2in"]) as two:
        two.write(1000 * second + 5, [send(1, 1, length=60, tag=4)])

    def run(clock):
        switch = Switch(clock=lambda: clock)
        switch.add_port(1)
        switch.add_port(2, rate_bps=8_000_000, delay_ns=5)
        switch.set_pipeline(ScriptedPipeline())
        assert replay(switch, {1: ways["1in"], 2: ways["2in"]}, {1: ways["1out"], 2: ways["2out"]}) == 4
        return [[(time, frame[3], len(frame)) for time, frame in read_pcap(ways[name])] for name in ("1out", "2out")]

    expected = [
        [(1000 * second + 5, 4, 60)],
        [(1000 * second + 10**6 + 5, 1, 1000), (1000 * second + 2 * 10**6 + 5, 2, 1000), (1001 * second + 500_005, 3, 500)],
    ]
    assert run(0) == run(123_456_789) == expected


@given(st.binary(max_size=200))
def test_netlink_messages_that_do_not_hold_together_are_skipped(data):
    assert isinstance(list(parse(data)), list)


@given(st.binary(max_size=200))
def test_completing_a_checksum_never_fails_nor_changes_a_length(data):
    assert len(complete(data)) == len(data)


@given(st.binary(min_size=1, max_size=300))
def test_the_checksum_is_that_of_the_definition(data):
    total = 0
    padded = data + b"\0" * (len(data) & 1)
    for index in range(0, len(padded), 2):
        total += (padded[index] << 8) | padded[index + 1]
        total = (total & 0xFFFF) + (total >> 16)
    assert internet_checksum(data) == 0xFFFF - total


def test_completed_checksums_are_those_that_scapy_computes():
    scapy = pytest.importorskip("scapy.all")
    ether = scapy.Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    bodies = [scapy.UDP(sport=1, dport=2) / b"odd", scapy.TCP(sport=1, dport=2, options=[("MSS", 1400)]) / b"even"]
    for network in (scapy.IP(src="10.0.0.1", dst="10.0.0.2"), scapy.IPv6(src="fd00::1", dst="fd00::2")):
        for body in bodies:
            for tags in (ether, ether / scapy.Dot1Q(vlan=5), ether / scapy.Dot1AD(vlan=7) / scapy.Dot1Q(vlan=5)):
                whole = bytes(tags / network / body)
                packet = scapy.Ether(whole)
                packet[type(body)].chksum = 0x1234
                assert complete(bytes(packet)) == whole
