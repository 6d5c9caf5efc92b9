"""Programs with state, copies and packets that come again: packet in, packets out, on each target."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from softswitch.switch import Switch
from tests.softswitch.build_programs import PROGRAMS, names
from tests.softswitch.targets import CPU_PORT, SoftswitchTarget

A, B, C = 0x020000000001, 0x020000000002, 0x020000000003
INSIDE, OUTSIDE = 1, 5


def mac(number):
    return number.to_bytes(6, "big").hex(":")


def frame(src=A, dst=B, kind=0x88B5, payload=b"payload"):
    return bytes(Ether(src=mac(src), dst=mac(dst), type=kind)) + payload


def address(text):
    return int.from_bytes(map(int, text.split(".")))


def ipv4(src="10.0.0.1", dst="10.0.1.1", length=100, tos=0):
    return bytes(
        Ether(src=mac(A), dst=mac(B)) / IP(src=src, dst=dst, tos=tos) / UDP(sport=1, dport=2) / Raw(b"x" * (length - 42))
    )


class TestMulticast:
    GROUP = 0x01005E000001

    def switch(self, targets, copies):
        target = targets("multicast")
        target.multicast(5, copies)
        target.entry("stations", {"dst_addr": (0x010000000000, 0x010000000000)}, "replicate", priority=10, group=5)
        target.entry("stations", {"dst_addr": (B, (1 << 48) - 1)}, "forward", priority=20, port=2)
        return target

    @staticmethod
    def copy(packet, rid):
        return packet[:10] + rid.to_bytes(2, "big") + packet[12:]

    def test_copies_have_their_ids_and_none_goes_back(self, targets):
        target = self.switch(targets, [(1, 100), (2, 200), (3, 300), (2, 201)])
        packet = frame(dst=self.GROUP)
        want = [(2, self.copy(packet, 200)), (2, self.copy(packet, 201)), (3, self.copy(packet, 300))]
        # In which order a group's copies leave is the target's choice.
        assert sorted(target.send(1, packet)) == want
        assert sorted(target.send(4, packet)) == [(1, self.copy(packet, 100)), *want]
        assert target.send(1, frame()) == [(2, frame())]
        assert target.send(1, frame(dst=C)) == []

    def test_a_group_that_is_not_there_loses_the_packet(self, targets):
        target = targets("multicast")
        target.default("stations", "replicate", group=9)
        assert target.send(1, frame()) == []


class TestLearning:
    def test_unknown_sources_are_told_and_known_ones_are_not(self, targets):
        target = targets("learning")
        target.multicast(1, [(port, 0) for port in (1, 2, 3)])
        asked, answered = frame(A, B), frame(B, A)
        assert target.send(1, asked) == [(2, asked), (3, asked)]
        assert target.digests("station_t", 1) == [(A, 1)]
        target.entry("sources", {"src_addr": A}, "NoAction")
        target.entry("destinations", {"dst_addr": A}, "forward", port=1)
        assert target.send(2, answered) == [(1, answered)]
        assert target.digests("station_t", 1) == [(B, 2)]
        target.entry("sources", {"src_addr": B}, "NoAction")
        target.entry("destinations", {"dst_addr": B}, "forward", port=2)
        assert target.send(1, asked) == [(2, asked)]
        assert target.send(3, frame(C, A)) == [(1, frame(C, A))]
        assert target.digests("station_t", 1) == [(C, 3)]

    def test_entries_age(self, targets):
        target = targets("learning")
        if target.name != "softswitch":
            pytest.skip("BMv2's clock is not ours to set")
        table = target.runtime.tables["ingress.sources"]
        entry = table.insert((A,), 0, table.default, idle_timeout_ns=5_000_000_000)
        target.now += 4_000_000_000
        target.send(1, frame())
        assert entry.last_hit == target.now // 1000
        assert table.idle(target.now // 1000 + 4_999_999) == []
        assert table.idle(target.now // 1000 + 5_000_000) == [entry]

    def test_a_server_gives_programs_the_clock_of_their_switch(self):
        pytest.importorskip("finsy", reason="needs the extra p4")
        from softswitch.server import InMemoryDevice
        from softswitch.server.server import default_loader

        switch = Switch(start=7_000_000_000, clock=lambda: 7_005_000_000)
        switch.add_port(1)
        pipeline = default_loader(InMemoryDevice(switch=switch))((PROGRAMS / "learning.json").read_bytes())
        switch.set_pipeline(pipeline)
        table = pipeline.runtime.tables["ingress.sources"]
        entry = table.insert((A,), 0, table.default, idle_timeout_ns=1_000_000)
        assert entry.last_hit == 5000
        switch.receive(1, frame(), 7_006_000_000)
        assert entry.last_hit == 6000


class TestPolicer:
    """Rates of one token a second: within a test only the bursts count."""

    @staticmethod
    def switch(targets):
        target = targets("policer")
        target.entry("stations", {"dst_addr": B}, "forward", port=2)
        return target

    @staticmethod
    def colors(packets):
        return [data[15] >> 2 for _, data in packets]

    def test_unconfigured_meters_are_green(self, targets):
        target = self.switch(targets)
        target.entry("sources", {"src_addr": address("10.0.0.1")}, "meter_source")
        assert self.colors(target.send_all([(1, ipv4())] * 5)) == [0] * 5

    def test_a_meter_in_bytes_by_port(self, targets):
        target = self.switch(targets)
        target.meter("port_meter", 1, 1, 250, 1, 600)
        assert self.colors(target.send_all([(1, ipv4(length=100))] * 8)) == [0, 0, 1, 1, 1, 1, 2, 2]
        assert self.colors(target.send_all([(3, ipv4(length=100))] * 8)) == [0] * 8

    def test_a_direct_meter_in_packets_by_source(self, targets):
        target = self.switch(targets)
        for source in ("10.0.0.1", "10.0.0.2"):
            target.entry("sources", {"src_addr": address(source)}, "meter_source")
        target.direct_meter("sources", {"src_addr": address("10.0.0.1")}, rates=(1, 2, 1, 3))
        assert self.colors(target.send_all([(1, ipv4())] * 5)) == [0, 0, 1, 2, 2]
        assert self.colors(target.send_all([(1, ipv4("10.0.0.2"))] * 5)) == [0] * 5

    def test_red_is_dropped_where_a_table_says_so(self, targets):
        target = self.switch(targets)
        target.meter("port_meter", 1, 1, 100, 1, 300)
        target.entry("colors", {"color": 2}, "drop")
        assert self.colors(target.send_all([(1, ipv4(length=100))] * 9)) == [0, 1, 1]

    def test_tokens_come_back_with_time(self, targets):
        target = self.switch(targets)
        if target.name != "softswitch":
            pytest.skip("BMv2's clock is not ours to set")
        target.meter("port_meter", 1, 1000, 100, 2000, 100)
        assert self.colors(target.send_all([(1, ipv4(length=100))] * 2)) == [0, 2]
        target.now += 50_000_000  # 50 bytes of committed tokens, 100 of peak tokens, but for the millisecond a packet takes
        assert self.colors(target.send_all([(1, ipv4(length=100))] * 2)) == [1, 2]
        target.now += 50_000_000
        assert self.colors(target.send_all([(1, ipv4(length=100))] * 2)) == [0, 2]


class TestMirror:
    MARK = 0x9999

    @classmethod
    def clone(cls, packet, kind, reason, port):
        return packet[:12] + cls.MARK.to_bytes(2, "big") + bytes([kind, reason]) + port.to_bytes(2, "big") + packet[12:]

    @staticmethod
    def changed(packet):
        return packet[:6] + A.to_bytes(6, "big") + packet[12:]

    def switch(self, targets):
        target = targets("mirror")
        target.entry("stations", {"dst_addr": B}, "forward", port=2)
        return target

    def test_a_clone_at_ingress_is_the_packet_as_it_came(self, targets):
        target = self.switch(targets)
        target.clone_session(7, [(CPU_PORT, 1)])
        target.clone_session(8, [(4, 0)])
        target.entry("watched", {"ether_type": 0x88B5}, "mirror", session=8, reason=9)
        packet = frame(src=C)
        # The port is in the other field list, and so are the marks of the ingress pipeline: they are not kept.
        assert target.send(1, packet) == [(2, self.changed(packet)), (4, self.clone(packet, 1, 9, 0))]

    def test_dropped_packets_are_mirrored_too(self, targets):
        target = self.switch(targets)
        target.clone_session(8, [(4, 0)])
        target.entry("watched", {"ether_type": 0x88B5}, "mirror", session=8, reason=3)
        packet = frame(dst=C)
        assert target.send(1, packet) == [(4, self.clone(packet, 1, 3, 0))]

    def test_a_clone_at_egress_is_the_packet_as_it_leaves(self, targets):
        target = self.switch(targets)
        target.clone_session(8, [(4, 0)])
        target.entry("watched_leaving", {"egress_port": 2}, "mirror", session=8, reason=5)
        packet = frame(src=C)
        assert target.send(1, packet) == [
            (2, self.changed(packet)),
            (4, self.clone(self.changed(packet), 2, 5, 2)),
        ]

    def test_both_and_to_several_ports(self, targets):
        target = self.switch(targets)
        target.clone_session(8, [(4, 1), (5, 1)])
        target.clone_session(9, [(6, 0)])
        target.entry("watched", {"ether_type": 0x88B5}, "mirror", session=8, reason=1)
        target.entry("watched_leaving", {"egress_port": 2}, "mirror", session=9, reason=2)
        packet = frame(src=C)
        first = self.clone(packet, 1, 1, 0)
        assert target.send(1, packet) == [
            (2, self.changed(packet)),
            (4, first),
            (5, first),
            (6, self.clone(self.changed(packet), 2, 2, 2)),
        ]

    def test_a_session_that_is_not_there_makes_no_clone(self, targets):
        target = self.switch(targets)
        target.entry("watched", {"ether_type": 0x88B5}, "mirror", session=8, reason=1)
        assert target.send(1, frame(src=C)) == [(2, self.changed(frame(src=C)))]


class TestAgain:
    @staticmethod
    def packet(resubmit, recirculate, resubmitted=0, recirculated=0, length=0):
        head = frame(kind=0x8765, payload=b"")
        return (
            head + bytes([resubmit, recirculate, resubmitted, recirculated]) + length.to_bytes(2, "big") + b"rest of the packet"
        )

    @pytest.mark.parametrize("resubmit", [0, 1, 5])
    @pytest.mark.parametrize("recirculate", [0, 1, 4])
    def test_it_goes_around_as_often_as_it_asks(self, targets, resubmit, recirculate):
        target = targets("again")
        size = len(self.packet(0, 0))
        want = self.packet(0, recirculate, resubmit, recirculate, size)
        assert target.send(3, self.packet(resubmit, recirculate)) == [(3, want)]
        assert target.registers("passes") == [1, 0, 0, 0, recirculate, 0, resubmit, 0]

    def test_other_packets_do_not(self, targets):
        target = targets("again")
        assert target.send(3, frame()) == []
        assert target.registers("passes") == [1] + [0] * 7


class TestFirewall:
    def switch(self, targets):
        target = targets("firewall")
        target.entry("routes", {"dst_addr": (address("10.0.0.0"), 16)}, "forward", port=1)
        target.entry("routes", {"dst_addr": (address("10.5.0.0"), 16)}, "forward", port=OUTSIDE)
        target.entry("sides", {"ingress_port": (1, 4)}, "set_inside", priority=1, inside=1)
        return target

    @staticmethod
    def out(flags, sport=1000):
        return bytes(Ether(src=mac(A), dst=mac(B)) / IP(src="10.0.0.1", dst="10.5.0.1") / TCP(sport=sport, dport=80, flags=flags))

    @staticmethod
    def back(flags, dport=1000):
        return bytes(Ether(src=mac(B), dst=mac(A)) / IP(src="10.5.0.1", dst="10.0.0.1") / TCP(sport=80, dport=dport, flags=flags))

    def test_only_who_was_called_may_answer(self, targets):
        target = self.switch(targets)
        assert target.send(OUTSIDE, self.back("SA")) == []
        assert target.send(INSIDE, self.out("A")) == [(OUTSIDE, self.out("A"))]
        assert target.send(OUTSIDE, self.back("SA")) == []
        assert target.send(INSIDE, self.out("S")) == [(OUTSIDE, self.out("S"))]
        assert target.send(OUTSIDE, self.back("SA")) == [(1, self.back("SA"))]
        assert target.send(OUTSIDE, self.back("SA", dport=1001)) == []

    def test_others_pass_by_their_routes(self, targets):
        target = self.switch(targets)
        packet = ipv4("10.5.0.1", "10.0.0.9")
        assert target.send(OUTSIDE, packet) == [(1, packet)]
        assert target.send(OUTSIDE, ipv4(dst="10.9.0.1")) == []
        assert target.send(OUTSIDE, frame()) == []

    def test_the_filter_has_two_bits_a_connection(self, targets):
        target = self.switch(targets)
        for sport in range(1000, 1010):
            target.send(INSIDE, self.out("S", sport))
        for name in ("first_filter", "second_filter"):
            assert 8 <= sum(target.registers(name)) <= 10


class TestMonitor:
    @staticmethod
    def probe(ports, readings=()):
        """``readings`` are (switch, port, bytes), the latest first; times are zero."""
        data = b""
        for index, (number, port, octets) in enumerate(readings):
            last = 0x80 if index == len(readings) - 1 else 0
            data += bytes([last | number, port]) + octets.to_bytes(4, "big") + bytes(12)
        return frame(kind=0x0812, payload=bytes([len(readings)]) + data + bytes(ports))

    @staticmethod
    def timeless(packet):
        """The packet without the times in its readings, and those times."""
        data, times = packet[:15], []
        for start in range(15, 15 + 18 * packet[14], 18):
            data += packet[start : start + 6] + bytes(12)
            times.append((packet[start + 6 : start + 12], packet[start + 12 : start + 18]))
        return data + packet[15 + 18 * packet[14] :], times

    def switch(self, targets):
        target = targets("monitor")
        target.default("identity", "set_switch_id", switch_id=5)
        target.entry("routes", {"dst_addr": (address("10.0.0.0"), 8)}, "forward", port=2)
        return target

    def test_a_probe_reads_what_left_since_the_last(self, targets):
        target = self.switch(targets)
        assert target.send_all([(1, ipv4(length=100))] * 3) == [(2, ipv4(length=100))] * 3
        first = self.probe([2])
        ((port, answer),) = target.send(1, first)
        data, ((before, now),) = self.timeless(answer)
        assert (port, data) == (2, self.probe([2], [(5, 2, 300 + len(first))]))
        assert before == bytes(6)
        target.send(1, ipv4(length=200))
        ((_, answer),) = target.send(1, first)
        data, ((second_before, second_now),) = self.timeless(answer)
        assert data == self.probe([2], [(5, 2, 200 + len(first))])
        assert second_before == now < second_now

    def test_a_probe_follows_its_route_and_keeps_earlier_readings(self, targets):
        target = self.switch(targets)
        ports, readings = [3, 4, 2], [(9, 4, 77), (8, 3, 66)]
        probe = self.probe(ports, readings)
        ((port, answer),) = target.send(1, probe)
        assert (port, self.timeless(answer)[0]) == (2, self.probe(ports, [(5, 2, len(probe)), *readings]))

    @pytest.mark.parametrize("cut", [15, 16, 20])
    def test_a_probe_that_is_cut_is_dropped(self, targets, cut):
        assert self.switch(targets).send(1, self.probe([2], [(1, 1, 1)])[:cut]) == []


class TestMatching:
    @staticmethod
    def packet(a, b=0, c=0, d=0, kind=0x1000):
        return frame(kind=kind, payload=bytes([a, b, c >> 8, c & 255, d << 4]) + bytes(7))

    @classmethod
    def results(cls, target, *fields, port=1, **more):
        ((_, data),) = target.send(port, cls.packet(*fields, **more))
        return dict(zip(("known", "exact", "prefix", "ternary", "range", "mixed", "fixed"), data[19:26], strict=True))

    def test_priorities_prefixes_and_ranges(self, targets):
        target = targets("matching")
        target.entry("exact_table", {"a": 7, "d": 3}, "exact_hit", entry=1)
        target.entry("prefix_table", {"d": 3}, "prefix_hit", entry=1)
        for entry, (prefix, length) in enumerate([(0xA000, 4), (0xAB00, 9), (0xABCD, 16)], 2):
            target.entry("prefix_table", {"d": 3, "c": (prefix, length)}, "prefix_hit", entry=entry)
        target.entry("ternary_table", {"a": (1, 1)}, "ternary_hit", priority=1, entry=1)
        target.entry("ternary_table", {"a": (3, 3)}, "ternary_hit", priority=2, entry=2)
        target.entry("ternary_table", {"a": (7, 0xFF), "c": (0xABCD, 0xFFFF), "d": (1, 1)}, "ternary_hit", priority=3, entry=3)
        target.entry("range_table", {"a": (5, 10)}, "range_hit", priority=5, entry=1)
        target.entry("range_table", {"a": (7, 7), "c": (0x100, 0xAFFF), "d": (3, 4)}, "range_hit", priority=6, entry=2)
        target.entry("mixed_table", {"d": 3, "b": 4}, "mixed_hit", priority=1, entry=1)
        target.entry("mixed_table", {"d": 3, "a": (6, 6), "ingress_port": (2, 3)}, "mixed_hit", priority=2, entry=2)
        target.entry("mixed_table", {"d": 3, "c": (0xA000, 4), "b": 4}, "mixed_hit", priority=3, entry=3)
        fixed = {"fixed": 255}
        assert self.results(target, 7, 4, 0xABCD, 3) == {
            "known": 0, "exact": 1, "prefix": 4, "ternary": 3, "range": 2, "mixed": 3, **fixed
        }  # fmt: skip
        assert self.results(target, 7, 4, 0x2BCD, 3, port=2) == {
            "known": 0, "exact": 1, "prefix": 1, "ternary": 2, "range": 2, "mixed": 2, **fixed
        }  # fmt: skip
        assert self.results(target, 5, 4, 0xAFFF, 3) == {
            "known": 0, "exact": 0, "prefix": 2, "ternary": 1, "range": 1, "mixed": 3, **fixed
        }  # fmt: skip
        assert self.results(target, 4, 5, 0xABCD, 4) == {
            "known": 0, "exact": 0, "prefix": 0, "ternary": 0xEE, "range": 0, "mixed": 0, "fixed": 4
        }  # fmt: skip
        assert target.direct_counter("ternary_table", {"a": (3, 3)}, 2)[0] == 1
        assert target.direct_counter("prefix_table", {"d": 3, "c": (0xABCD, 16)}) == (1, len(self.packet(0)))

    @pytest.mark.parametrize(
        ("a", "c", "fixed"),
        [(0x80, 0x0FFF, 1), (0x81, 0x0FFF, 1), (0x81, 0x1000, 2), (0x80, 0x6400, 3), (0x02, 0, 4), (1, 0, 255)],
    )
    def test_const_entries_in_their_order(self, targets, a, c, fixed):
        assert self.results(targets("matching"), a, 0, c)["fixed"] == fixed

    def test_value_sets(self, targets):
        target = targets("matching")
        if target.name != "softswitch":
            pytest.skip("BMv2's P4Runtime server does not implement value sets")
        assert self.results(target, 1, kind=0x1234)["known"] == 0
        assert self.results(target, 1, kind=0x7234)["known"] == 2
        target.value_set("known_types", [0x1234, 0x7234])
        assert [self.results(target, 1, kind=kind)["known"] for kind in (0x1234, 0x7234, 0x7235, 0x1235)] == [1, 1, 2, 0]
        target.value_set("known_types", [])
        assert self.results(target, 1, kind=0x1234)["known"] == 0


@pytest.fixture(scope="module")
def switches():
    """Each program on the softswitch."""
    return [SoftswitchTarget((PROGRAMS / f"{name}.json").read_text()) for name in names()]


@given(
    st.integers(1, 8),
    st.binary(max_size=120),
    st.sampled_from([b"", b"\x08\x00", b"\x12\x12", b"\x12\x34", b"\x08\x12", b"\x87\x65"]),
)
def test_no_program_minds_what_a_packet_is(switches, port, data, kind):
    packet = data[:12] + kind + data[12:]
    for target in switches:
        target.send(port, packet)  # which fails if the pipeline raised
