"""The tutorial exercises' behaviours that forward packets, as programs of our own: packet in, packets out, on each target."""

from collections import Counter
from zlib import crc32

import pytest
from scapy.layers.inet import IP, TCP, UDP, IPOption
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import checksum

from softswitch.errors import SwitchError
from tests.softswitch.targets import eventually

A, B, ROUTER = 0x020000000001, 0x020000000002, 0x0200000000FE


def mac(number):
    return number.to_bytes(6, "big").hex(":")


def ether(src=A, dst=ROUTER, **more):
    return Ether(src=mac(src), dst=mac(dst), **more)


def address(text):
    return int.from_bytes(map(int, text.split(".")))


def ipv4(dst="10.0.1.5", src="10.0.0.1", ttl=64, link=None, payload=b"payload", **more):
    return bytes((link or ether()) / IP(src=src, dst=dst, ttl=ttl, **more) / UDP(sport=1000, dport=2000) / Raw(payload))


class TestForwarding:
    def routed(self, targets):
        target = targets("forwarding")
        target.entry("routes", {"dst_addr": (address("10.0.0.0"), 8)}, "forward", dst_addr=B, port=2)
        target.entry("routes", {"dst_addr": (address("10.0.1.0"), 24)}, "forward", dst_addr=B, port=3)
        target.entry("routes", {"dst_addr": (address("10.0.1.9"), 32)}, "drop")
        return target

    @pytest.mark.parametrize(("dst", "port"), [("10.9.9.9", 2), ("10.0.1.5", 3), ("10.0.1.8", 3)])
    def test_the_longest_prefix_wins_and_the_header_is_right(self, targets, dst, port):
        want = ipv4(dst, ttl=63, link=ether(ROUTER, B))
        assert self.routed(targets).send(1, ipv4(dst)) == [(port, want)]

    @pytest.mark.parametrize(
        "packet",
        [
            ipv4("10.0.1.9"),
            ipv4("11.0.0.1"),
            ipv4(ttl=1),
            ipv4(ttl=0),
            bytes(ether(type=0x88B5) / Raw(b"x" * 40)),
            ipv4()[:20],
            ipv4()[:33],
        ],
        ids=["dropped by entry", "no route", "ttl 1", "ttl 0", "not IPv4", "cut in the header", "one byte short"],
    )
    def test_what_has_no_way_is_dropped(self, targets, packet):
        assert self.routed(targets).send(1, packet) == []

    def test_a_damaged_header_is_dropped(self, targets):
        target = self.routed(targets)
        packet = bytearray(ipv4())
        packet[20] ^= 1
        assert target.send(1, bytes(packet)) == []

    @pytest.mark.parametrize("length", [4, 12, 40])
    def test_options_pass_and_count_for_the_checksum(self, targets, length):
        options = [IPOption(b"\x01" * (length - 1) + b"\0")]
        packet, want = ipv4(options=options), ipv4(ttl=63, link=ether(ROUTER, B), options=options)
        assert len(packet) == len(ipv4()) + length
        target = self.routed(targets)
        assert target.send(1, packet) == [(3, want)]
        damaged = bytearray(packet)
        damaged[14 + 20] ^= 1
        assert target.send(1, bytes(damaged)) == []

    def test_a_header_too_short_for_itself_is_a_parser_error(self, targets):
        packet = bytes(ether() / IP(ihl=4, src="10.0.0.1", dst="10.0.1.5") / Raw(b"x" * 30))
        assert self.routed(targets).send(1, packet) == []

    def test_direct_counters(self, targets):
        target = self.routed(targets)
        for _ in range(3):
            target.send(1, ipv4(payload=b"x" * 100))
        assert target.direct_counter("routes", {"dst_addr": (address("10.0.1.0"), 24)}) == (3, 3 * (14 + 28 + 100))
        assert target.direct_counter("routes", {"dst_addr": (address("10.0.0.0"), 8)}) == (0, 0)

    def test_entries_change_and_go(self, targets):
        target = self.routed(targets)
        match = {"dst_addr": (address("10.0.1.0"), 24)}
        target.send(1, ipv4())
        target.modify("routes", match, "forward", dst_addr=A, port=4)
        assert target.send(1, ipv4()) == [(4, ipv4(ttl=63, link=ether(ROUTER, A)))]
        target.delete("routes", match)
        assert target.send(1, ipv4()) == [(2, ipv4(ttl=63, link=ether(ROUTER, B)))]
        target.default("routes", "forward", dst_addr=A, port=5)
        assert [port for port, _ in target.send(1, ipv4("11.1.1.1"))] == [5]

    def test_writes_that_cannot_be_are_refused(self, targets):
        target = self.routed(targets)
        for dst, length in (("10.0.1.0", 24), ("10.0.1.1", 24)):
            with pytest.raises(SwitchError):
                target.entry("routes", {"dst_addr": (address(dst), length)}, "drop")
        with pytest.raises(SwitchError):
            target.delete("routes", {"dst_addr": (address("12.0.0.0"), 8)})
        with pytest.raises(SwitchError):
            target.modify("routes", {"dst_addr": (address("12.0.0.0"), 8)}, "drop")


class TestTunnel:
    def tunnelled(self, targets):
        target = targets("tunnel")
        target.entry("routes", {"dst_addr": (address("10.0.1.0"), 24)}, "enter", id=7)
        target.entry("routes", {"dst_addr": (address("10.0.2.0"), 24)}, "forward", port=4)
        target.entry("tunnels", {"id": 7}, "forward", port=2)
        target.entry("tunnels", {"id": 8}, "leave", port=3)
        return target

    @staticmethod
    def inside(packet, number):
        return packet[:12] + b"\x12\x12" + packet[12:14] + number.to_bytes(2, "big") + packet[14:]

    def test_in_through_and_out(self, targets):
        target = self.tunnelled(targets)
        packet = ipv4("10.0.1.5")
        assert target.send(1, packet) == [(2, self.inside(packet, 7))]
        assert target.send(1, self.inside(packet, 7)) == [(2, self.inside(packet, 7))]
        assert target.send(2, self.inside(packet, 8)) == [(3, packet)]
        assert target.send(2, self.inside(packet, 9)) == []
        assert target.send(1, ipv4("10.0.2.5")) == [(4, ipv4("10.0.2.5"))]
        assert target.counter("entered", 7) == (1, len(packet))
        assert target.counter("left", 8) == (1, len(packet) + 4)
        assert target.counter("left", 7) == (0, 0)

    def test_what_is_no_ip_passes_the_tunnel_too(self, targets):
        frame = bytes(ether(type=0x88B5) / Raw(b"y" * 50))
        target = self.tunnelled(targets)
        assert target.send(1, frame) == []
        assert target.send(1, self.inside(frame, 8)) == [(3, frame)]


class TestEcn:
    @pytest.mark.parametrize(
        ("ecn", "threshold", "out"), [(0, 0, 0), (1, 0, 3), (2, 0, 3), (3, 0, 3), (1, 5, 1), (2, 5, 2), (3, 5, 3)]
    )
    def test_only_capable_packets_above_the_threshold_are_marked(self, targets, ecn, threshold, out):
        target = targets("ecn")
        target.entry("stations", {"dst_addr": B}, "forward", port=2)
        target.entry("thresholds", {"egress_port": 2}, "set_threshold", packets=threshold)
        link = ether(A, B)
        assert target.send(1, ipv4(link=link, tos=0x40 | ecn)) == [(2, ipv4(link=link, tos=0x40 | out))]
        assert target.counter("marked", 2)[0] == (ecn != out)

    def test_a_queue_marks_from_its_threshold_on(self, targets):
        target = targets("ecn")
        if target.name != "softswitch":
            pytest.skip("BMv2's queue rate is not settable by P4Runtime")
        target.switch.set_rate(2, 1_000_000)
        target.entry("stations", {"dst_addr": B}, "forward", port=2)
        target.entry("thresholds", {"egress_port": 2}, "set_threshold", packets=4)
        packets = [ipv4(link=ether(A, B), tos=1, payload=bytes([number]) * 900) for number in range(12)]
        target.switch.receive_batch(1, packets, target.now)
        left = target.send_all([])
        # The first leaves at once; packet n finds n - 1 before it.
        assert [data[15] & 3 for _, data in left] == [1] * 5 + [3] * 7


class TestTelemetry:
    @staticmethod
    def packet(hops, ttl=64):
        data = b"".join(switch.to_bytes(4, "big") + depth.to_bytes(4, "big") for switch, depth in hops)
        option = bytes([31, 4 + len(data)]) + len(hops).to_bytes(2, "big") + data
        packet = ipv4(ttl=ttl, options=[IPOption(option)])
        # As in the exercise, the checksum is over the fixed part of the header.
        return packet[:24] + checksum(packet[14:24] + b"\0\0" + packet[26:34]).to_bytes(2, "big") + packet[26:]

    @pytest.mark.parametrize("before", range(5))
    def test_each_switch_pushes_its_number(self, targets, before):
        target = targets("telemetry")
        target.entry("routes", {"dst_addr": (address("10.0.1.5"), 32)}, "forward", port=2)
        target.default("identity", "push", switch_id=77)
        hops = [(number, 0) for number in range(before)]
        ((port, data),) = target.send(1, self.packet(hops))
        want = self.packet([(77, 0), *hops], ttl=63) if before < 4 else None
        if want is None:  # the header has no room for a fifth
            want = self.packet(hops, ttl=63)
        assert (port, data) == (2, want)

    def test_without_the_option_nothing_is_added(self, targets):
        target = targets("telemetry")
        target.entry("routes", {"dst_addr": (address("10.0.1.5"), 32)}, "forward", port=2)
        target.default("identity", "push", switch_id=77)
        assert target.send(1, ipv4()) == [(2, ipv4(ttl=63))]

    @pytest.mark.parametrize("claimed", [3, 10, 0xFFFF])
    def test_more_hops_than_there_are_is_a_parser_error(self, targets, claimed):
        target = targets("telemetry")
        target.entry("routes", {"dst_addr": (address("10.0.1.5"), 32)}, "forward", port=2)
        packet = bytearray(self.packet([(1, 0)]))
        packet[14 + 22 : 14 + 24] = claimed.to_bytes(2, "big")
        assert target.send(1, bytes(packet[: 14 + 24 + 8 + 10])) == []


class TestBalance:
    PORTS = (2, 3, 4)

    @staticmethod
    def flows(count=64):
        for number in range(count):
            yield bytes(ether() / IP(src=f"10.0.0.{number}", dst="10.0.1.5") / TCP(sport=1000 + 7 * number, dport=80) / Raw(b"z"))

    def chosen(self, target, flows):
        result = []
        for flow in flows:
            ((port, data),) = target.send(1, flow)
            assert data[:12] == port.to_bytes(6, "big") + flow[:6]
            result.append(port)
        return result

    def selected(self, targets):
        target = targets("balance")
        for number, port in enumerate(self.PORTS, 1):
            target.member("paths", number, "forward", dst_addr=port, port=port)
        target.group("paths", 1, [(number, 1, None) for number in range(1, len(self.PORTS) + 1)])
        target.to_group("selected", {"hdr.ipv4.dst_addr": (address("10.0.1.0"), 24)}, 1)
        return target

    def test_a_selector_spreads_flows_and_keeps_each_on_its_path(self, targets):
        target = self.selected(targets)
        flows = list(self.flows())
        first = self.chosen(target, flows)
        assert self.chosen(target, flows) == first
        assert set(first) == set(self.PORTS)
        assert max(Counter(first).values()) < 40
        # crc16 (ARC) over source, destination, protocol and ports, modulo the number of members
        assert first == [self.PORTS[crc16(flow[26:34] + flow[23:24] + flow[34:38]) % 3] for flow in flows]

    def test_a_member_without_group(self, targets):
        target = targets("balance")
        target.member("paths", 5, "forward", dst_addr=6, port=6)
        target.to_member("selected", {"hdr.ipv4.dst_addr": (address("10.0.1.0"), 24)}, 5)
        assert set(self.chosen(target, self.flows(5))) == {6}

    def test_a_one_shot_group_is_the_same(self, targets):
        target = targets("balance")
        actions = [("forward", {"dst_addr": port, "port": port}, 1, None) for port in self.PORTS]
        target.one_shot("selected", {"hdr.ipv4.dst_addr": (address("10.0.1.0"), 24)}, actions)
        flows = list(self.flows())
        assert self.chosen(target, flows) == [self.PORTS[crc16(flow[26:34] + flow[23:24] + flow[34:38]) % 3] for flow in flows]

    def test_a_port_that_is_down_gets_nothing(self, targets):
        target = targets("balance")
        for number, port in enumerate(self.PORTS, 1):
            target.member("paths", number, "forward", dst_addr=port, port=port)
        target.group("paths", 1, [(number, 1, port) for number, port in enumerate(self.PORTS, 1)])
        target.to_group("selected", {"hdr.ipv4.dst_addr": (address("10.0.1.0"), 24)}, 1)
        flows = list(self.flows())
        before = self.chosen(target, flows)
        target.link(3, False)
        eventually(lambda: set(self.chosen(target, flows)) == {2, 4})
        target.link(3, True)
        eventually(lambda: self.chosen(target, flows) == before)

    def test_a_hash_chooses_the_next_hop(self, targets):
        target = targets("balance")
        target.entry("hashed", {"dst_addr": (address("10.0.1.0"), 24)}, "spread", base=10, count=3)
        for number, port in enumerate(self.PORTS):
            target.entry("hops", {"hop": 10 + number}, "forward", dst_addr=port, port=port)
        flows = list(self.flows())
        assert self.chosen(target, flows) == [self.PORTS[crc32(flow[26:34] + flow[23:24] + flow[34:38]) % 3] for flow in flows]


def crc16(data):
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0xA001 if value & 1 else 0)
    return value


class TestCalc:
    MASK = 0xFFFFFFFF

    @staticmethod
    def signed(value):
        return value - (1 << 32) if value >> 31 else value

    @pytest.mark.parametrize("a", [0, 1, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xDEADBEEF])
    def test_results(self, targets, a):
        target = targets("calc")
        packets, wants = [], []
        for b in (0, 1, 3, 31, 32, 40, 0x7FFFFFFF, 0x80000001, 0xFFFFFFFF):
            shift = b & 0xFF
            results = {
                "+": a + b,
                "-": a - b,
                "*": a * b,
                "&": a & b,
                "|": a | b,
                "^": a ^ b,
                "P": min(a + b, self.MASK),
                "M": max(a - b, 0),
                "L": a << shift,
                "R": a >> shift,
                "A": self.signed(a) >> shift,
                "<": int(self.signed(a) < self.signed(b)),
            }
            for operation, result in results.items():
                body = b"P4\x01" + operation.encode() + a.to_bytes(4, "big") + b.to_bytes(4, "big")
                packets.append((3, bytes(ether(A, B, type=0x1234)) + body + b"\0\0\0\0"))
                wants.append((3, bytes(ether(B, A, type=0x1234)) + body + (result & self.MASK).to_bytes(4, "big")))
        assert target.send_all(packets) == wants

    @pytest.mark.parametrize(
        "body", [b"P4\x01?" + bytes(12), b"P4\x02+" + bytes(12), b"Q4\x01+" + bytes(12), b"P4", b"P4\x01+" + bytes(11)]
    )
    def test_nonsense_gets_no_answer(self, targets, body):
        assert targets("calc").send(3, bytes(ether(type=0x1234)) + body) == []


class TestSourceRoute:
    @staticmethod
    def packet(ports, ttl=64):
        frame = ipv4(ttl=ttl)
        hops = b"".join(
            (port | (0x8000 if index == len(ports) - 1 else 0)).to_bytes(2, "big") for index, port in enumerate(ports)
        )
        # The program leaves the checksum alone.
        return frame[:12] + (b"\x12\x34" + hops if ports else frame[12:14]) + ipv4()[14:22] + frame[22:23] + ipv4()[23:]

    @pytest.mark.parametrize("ports", [[2], [3, 2], [2, 3, 2, 2, 1], [4] * 9])
    def test_the_first_hop_is_taken_off(self, targets, ports):
        assert targets("source_route").send(1, self.packet(ports)) == [(ports[0], self.packet(ports[1:], ttl=63))]

    def test_too_many_hops_or_none_are_dropped(self, targets):
        target = targets("source_route")
        for packet in (self.packet([2] * 10), self.packet([]), self.packet([2, 3])[:15], self.packet([2, 3])[:16]):
            assert target.send(1, packet) == []
