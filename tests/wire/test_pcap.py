"""Reading captures: every format and link type, and files that are none."""

import gzip
import io
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.errors import ConfigError
from dlcp.wire.pcap import MAX_FRAME_BYTES, Capture, Frame, datagram_of

scapy_utils = pytest.importorskip("scapy.utils", reason="scapy is not installed (pip install 'dlcp[dev]')")

from scapy.layers.inet import IP, TCP, UDP, IPOption  # noqa: E402
from scapy.layers.inet6 import IPv6, IPv6ExtHdrHopByHop  # noqa: E402
from scapy.layers.l2 import CookedLinux, CookedLinuxV2, Dot1Q, Ether  # noqa: E402
from scapy.packet import Raw  # noqa: E402

MAC = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}


def frames_of(raw):
    return list(Capture(io.BytesIO(raw), "x"))


def pcap(frames, order="<", magic=0xA1B2C3D4, link=1):
    out = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, link)
    return out + b"".join(struct.pack(order + "IIII", 5, 250_000, len(f), len(f)) + f for f in frames)


def block(kind, body, order="<"):
    body += bytes(-len(body) % 4)
    return struct.pack(order + "II", kind, len(body) + 12) + body + struct.pack(order + "I", len(body) + 12)


def section(order="<"):
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(link=1, order="<", options=b""):
    return block(1, struct.pack(order + "HHI", link, 0, 0) + options, order)


def enhanced(data, wire=None, index=0, ticks=0, order="<"):
    fixed = struct.pack(order + "IIIII", index, ticks >> 32, ticks & 0xFFFFFFFF, len(data), wire or len(data))
    return block(6, fixed + data, order)


class TestFiles:
    @pytest.mark.parametrize("order", "<>")
    @pytest.mark.parametrize(("magic", "time"), [(0xA1B2C3D4, 5.25), (0xA1B23C4D, 5.00025)])
    def test_pcap(self, order, magic, time):
        assert frames_of(pcap([b"abc", b""], order, magic)) == [Frame(1, b"abc", 3, time), Frame(1, b"", 0, time)]

    @pytest.mark.parametrize("order", "<>")
    def test_pcapng(self, order):
        nanoseconds = struct.pack(order + "HHBxxx", 9, 1, 9) + struct.pack(order + "HH", 0, 0)
        halves = struct.pack(order + "HH", 2, 2) + b"lo\0\0" + struct.pack(order + "HHBxxx", 9, 1, 0x81)
        raw = section(order) + interface(1, order) + interface(101, order, nanoseconds) + interface(113, order, halves)
        raw += block(5, bytes(12), order)  # interface statistics, skipped
        raw += enhanced(b"abcde", 9, 0, 1_500_000, order) + enhanced(b"x", 1, 1, 1_500_000_000, order)
        raw += enhanced(b"", 1, 2, 3, order)
        raw += block(3, struct.pack(order + "I", 3) + b"sim", order)
        raw += block(2, struct.pack(order + "HHIIII", 1, 0, 0, 500, 2, 2) + b"ob", order)
        assert frames_of(raw) == [
            Frame(1, b"abcde", 9, 1.5),
            Frame(101, b"x", 1, pytest.approx(1.5)),
            Frame(113, b"", 1, 1.5),
            Frame(1, b"sim", 3, 0.0),
            Frame(101, b"ob", 2, pytest.approx(5e-7)),
        ]
        assert frames_of(raw + raw) == 2 * frames_of(raw)

    @given(st.lists(st.binary(max_size=100), min_size=1, max_size=5), st.booleans(), st.booleans())
    @settings(max_examples=30)
    def test_what_scapy_writes(self, tmp_path_factory, payloads, ng, zipped):
        path = tmp_path_factory.mktemp("pcap") / "a.pcap"
        packets = [Ether(**MAC) / IP(src="1.2.3.4", dst="5.6.7.8", tos=0xA2) / UDP(sport=7, dport=9) / Raw(p) for p in payloads]
        (scapy_utils.wrpcapng if ng else scapy_utils.wrpcap)(str(path), packets)
        raw = gzip.compress(path.read_bytes()) if zipped else path.read_bytes()
        found = [datagram_of(frame) for frame in frames_of(raw)]
        assert [(d.payload, d.size, d.tos, d.ports) for d in found] == [(p, len(p), 0xA2, (7, 9)) for p in payloads]

    @pytest.mark.parametrize("raw", [pcap([b"abcd", b"efgh"]), section() + interface() + enhanced(b"abcd") + enhanced(b"efgh")])
    def test_a_file_cut_anywhere_gives_its_whole_frames(self, raw):
        for cut in range(len(raw)):
            capture = Capture(io.BytesIO(raw[:cut]), "x")
            try:
                frames = list(capture)
            except ConfigError as error:
                assert "at byte" in str(error)
                frames = []
            assert frames == frames_of(raw)[: len(frames)]
        assert capture.cut_off and len(frames) == 1

    def test_a_zipped_file_that_is_cut(self):
        whole = gzip.compress(pcap([bytes(range(256)) * 40] * 5))
        capture = Capture(io.BytesIO(whole[:-20]), "x")
        assert len(list(capture)) <= 5 and capture.cut_off

    @pytest.mark.parametrize(
        ("raw", "problem"),
        [
            (b"", "no capture file"),
            (b"#!/bin/sh\n", "no capture file"),
            (pcap([])[:20], "header is cut off"),
            (pcap([]) + struct.pack("<IIII", 0, 0, MAX_FRAME_BYTES + 1, 1), "a frame of 262145 bytes"),
            (b"\x0a\x0d\x0d\x0a" + bytes(8), "without byte order"),
            (section()[:4] + struct.pack("<I", 8) + section()[8:], "a block of 8 bytes"),
            (section() + struct.pack("<II", 1, 13), "a block of 13 bytes"),
            (section() + struct.pack("<II", 1, 1 << 31), "a block of 2147483648 bytes"),
            (section() + block(1, b"ab"), "interface description that is too short"),
            (section() + interface() + block(6, b"abcd"), "packet block that is too short"),
            (section() + enhanced(b"abcd"), "contradicts itself"),
            (section() + interface() + block(6, struct.pack("<IIIII", 0, 0, 0, 5, 5) + b"abcd"), "contradicts itself"),
        ],
    )
    def test_what_is_no_capture_is_refused(self, raw, problem):
        with pytest.raises(ConfigError, match=problem) as caught:
            frames_of(raw)
        assert caught.value.source == "x" and "pcapng" in caught.value.accepted

    @given(st.binary(max_size=200), st.sampled_from([b"", pcap([b"abc"]), section() + interface(), b"\x1f\x8b\x08"]))
    def test_no_bytes_do_worse_than_an_error(self, raw, start):
        try:
            for frame in Capture(io.BytesIO(start + raw), "x"):
                datagram_of(frame)
        except ConfigError:
            pass

    def test_a_stream_that_cannot_seek(self):
        class Pipe(io.RawIOBase):
            def __init__(self, raw):
                self.inner = io.BytesIO(raw)

            def readable(self):
                return True

            def readinto(self, into):
                return self.inner.readinto(into[:7])

        assert len(list(Capture(Pipe(pcap([b"abc"] * 50)), "x"))) == 50


class TestLinks:
    def frame(self, packet, link=1):
        raw = bytes(packet)
        return Frame(link, raw, len(raw), 0.0)

    INNER = IP(src="1.2.3.4", dst="5.6.7.8", tos=0xB9) / UDP(sport=7, dport=9) / Raw(b"hello")
    INNER6 = IPv6(src="::1", dst="::2", tc=0xB9) / UDP(sport=7, dport=9) / Raw(b"hello")

    @pytest.mark.parametrize("inner", [INNER, INNER6], ids=["IPv4", "IPv6"])
    def test_every_link_type(self, inner):
        name = 0x0800 if inner is self.INNER else 0x86DD
        cases = [
            (1, Ether(**MAC) / inner),
            (1, Ether(**MAC) / Dot1Q(vlan=5) / inner),
            (1, Ether(**MAC, type=0x88A8) / Dot1Q(vlan=5) / Dot1Q(vlan=6) / inner),
            (113, CookedLinux(proto=name) / inner),
            (276, CookedLinuxV2(proto=name) / inner),
            (0, Raw(b"\x02\0\0\0") / inner),
            (108, Raw(b"\0\0\0\x02") / inner),
            (101, inner),
            (12, inner),
            (228 if inner is self.INNER else 229, inner),
        ]
        for link, packet in cases:
            found = datagram_of(self.frame(packet, link))
            assert found is not None, link
            assert (found.payload, found.size, found.tos, found.ports) == (b"hello", 5, 0xB9, (7, 9))
            assert found.source != found.destination and found.source[-2:] == b"\0\x07"

    def test_headers_with_options(self):
        with_options = IP(src="1.2.3.4", dst="5.6.7.8", options=[IPOption(b"\x83\x03\x10")]) / UDP(sport=7, dport=9) / Raw(b"hi")
        assert datagram_of(self.frame(Ether(**MAC) / with_options)).payload == b"hi"
        extended = IPv6(src="::1", dst="::2") / IPv6ExtHdrHopByHop() / UDP(sport=7, dport=9) / Raw(b"hi")
        assert datagram_of(self.frame(Ether(**MAC) / extended)).payload == b"hi"

    def test_what_is_no_datagram(self):
        for packet in (
            Ether(**MAC) / IP() / TCP(),
            Ether(**MAC) / IPv6() / TCP(),
            Ether(**MAC) / IP(frag=10, proto=17) / Raw(bytes(50)),
            Ether(**MAC, type=0x0806) / Raw(bytes(50)),
            Ether(**MAC) / IP(ihl=3, proto=17) / Raw(bytes(50)),
            Ether(**MAC) / IP() / UDP(len=7),
        ):
            assert datagram_of(self.frame(packet)) is None
        assert datagram_of(self.frame(self.INNER, 999)) is None

    def test_a_frame_cut_anywhere(self):
        for packet, head in ((Ether(**MAC) / self.INNER, 42), (Ether(**MAC) / self.INNER6, 62)):
            raw = bytes(packet)
            for cut in range(len(raw)):
                found = datagram_of(Frame(1, raw[:cut], len(raw), 0.0))
                assert (found is not None) == (cut >= head)
                assert found is None or (found.payload, found.size) == (b"hello"[: cut - head], 5)

    def test_ethernet_padding_is_no_payload(self):
        assert datagram_of(self.frame(Raw(bytes(Ether(**MAC) / self.INNER) + bytes(20)))).payload == b"hello"

    def test_a_super_packet_without_length(self):
        packet = Ether(**MAC) / IP() / UDP(len=0) / Raw(bytes(3000))
        assert datagram_of(self.frame(packet)).size == 3000
