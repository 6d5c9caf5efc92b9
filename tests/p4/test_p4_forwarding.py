"""Forwarding: bridging, flooding, routing, several paths; what is not DLCP passes as it is."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP
from scapy.layers.inet6 import ICMPv6ND_NS, IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from tests.p4 import frames
from tests.p4.bench import DISCARDS, ORDINARY, bridge, softswitch_bench


def same_port(frame, bench, port=2, source=1):
    """The frame leaves unchanged, through that port alone."""
    assert bench.send(source, frame) == [(port, frame)]


@pytest.mark.parametrize("vlans", [(), (7,), (7, 8)], ids=["untagged", "tagged", "double-tagged"])
@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("kind", ["dlcp", "udp"])
def test_bridged_frames_pass_unchanged(bridged, kind, ipv6, vlans):
    same_port(getattr(frames, kind)(ipv6=ipv6, vlans=vlans), bridged)


def test_tcp_and_icmp_pass_unchanged(bridged):
    same_port(frames.tcp(), bridged)
    same_port(frames.tcp(ipv6=True), bridged)
    same_port(bytes(frames.link() / frames.network() / ICMP() / Raw(b"ping")), bridged)


def test_arp_is_flooded_and_answered(bridged):
    ask = bytes(Ether(src=frames.MACS[1], dst="ff:ff:ff:ff:ff:ff") / ARP(op="who-has", psrc="10.0.0.1", pdst="10.0.0.3"))
    assert sorted(bridged.send(1, ask)) == [(port, ask) for port in (2, 3, 4)]
    answer = bytes(frames.link(3, 1) / ARP(op="is-at", psrc="10.0.0.3", pdst="10.0.0.1"))
    same_port(answer, bridged, port=1, source=3)


def test_neighbour_discovery_is_flooded(bridged):
    ask = bytes(
        Ether(src=frames.MACS[1], dst="33:33:ff:00:00:03")
        / IPv6(src="fd00::1", dst="ff02::1:ff00:3", hlim=255)
        / ICMPv6ND_NS(tgt="fd00::3")
    )
    assert sorted(bridged.send(1, ask)) == [(port, ask) for port in (2, 3, 4)]


def test_a_frame_for_nobody_is_flooded_where_the_default_says_so_and_else_dropped(bench, bridged):
    frame = bytes(Ether(src=frames.MACS[1], dst="02:99:99:99:99:99", type=0x88B5) / Raw(b"x" * 50))
    assert {port for port, _ in bridged.send(1, frame)} == {2, 3, 4}
    bench.default("bridge", "discard")
    assert bench.send(1, frame) == []
    assert bench.counter("discarded", DISCARDS["unknown"])[0] == 1


def test_a_frame_never_goes_back_where_it_came_from(bridged):
    assert bridged.send(2, frames.udp(1, 2)) == []
    assert bridged.counter("discarded", DISCARDS["hairpin"])[0] == 1


def test_flooding_spares_the_port_it_came_from_and_those_outside_the_group(bench):
    bench.multicast(3, [1, 2, 3])
    bench.default("bridge", "flood", group=3)
    frame = frames.udp()
    assert {port for port, _ in bench.send(3, frame)} == {1, 2}
    assert {port for port, _ in bench.send(4, frame)} == {1, 2, 3}


def test_frames_too_short_for_ethernet_are_dropped_and_counted():
    """Which no interface of Linux would let through, so this is for the softswitch only."""
    bridged = bridge(softswitch_bench())
    for size in (0, 1, 13):
        assert bridged.send(1, bytes(size)) == []
    assert bridged.counter("discarded", DISCARDS["malformed"])[0] == 3


@given(st.data())
def test_bridging_changes_no_frame_whatever_is_in_it(bridged_once, data):
    """Cut, extended, and damaged frames of every kind: whoever bridges has no business with what is inside."""
    makers = [frames.dlcp, frames.udp]
    frame = bytearray(
        data.draw(st.sampled_from(makers))(ipv6=data.draw(st.booleans()), vlans=data.draw(st.sampled_from([(), (1,), (1, 2)])))
    )
    for _ in range(data.draw(st.integers(0, 4))):
        frame[data.draw(st.integers(12, len(frame) - 1))] = data.draw(st.integers(0, 255))
    frame = bytes(frame[: data.draw(st.integers(14, len(frame)))]) + data.draw(st.binary(max_size=20))
    assert bridged_once.send(1, frame) == [(2, frame)]


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("kind", ["dlcp", "udp"])
def test_routing_decrements_ttl_and_rewrites_addresses(routed, kind, ipv6):
    sent = getattr(frames, kind)(1, 2, ipv6=ipv6, ttl=9, dst_mac=frames.ROUTER)
    ((port, got),) = routed.send(1, sent)
    assert port == 2
    frames.assert_sound(got)
    packet = frames.parse(got)
    assert (packet.src, packet.dst) == (frames.ROUTER, frames.MACS[2])
    layer = frames.ip_layer(packet)
    assert (layer.hlim if ipv6 else layer.ttl) == 8
    assert bytes(layer.payload) == bytes(frames.ip_layer(frames.parse(sent)).payload)


@given(st.integers(2, 255), st.integers(0, 255), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF))
def test_the_checksum_is_right_after_routing_for_every_header(routed_once, ttl, tos, identification, source):
    octets = ".".join(str(byte) for byte in source.to_bytes(4, "big"))
    frame = bytes(
        frames.link(dst_mac=frames.ROUTER) / IP(src=octets, dst="10.0.0.2", ttl=ttl, tos=tos, id=identification) / Raw(b"x")
    )
    ((port, got),) = routed_once.send(1, frame)
    assert port == 2
    frames.assert_sound(got)


def test_a_wrong_checksum_stays_wrong(routed):
    """The checksum is adjusted, not computed: damage on the way here is still seen by the receiver."""
    frame = bytearray(frames.udp(dst_mac=frames.ROUTER))
    frame[14 + 10] ^= 0x55
    ((_, got),) = routed.send(1, bytes(frame))
    packet = frames.parse(got)
    wrong = packet[IP].chksum
    del packet[IP].chksum
    assert IP(bytes(packet[IP])).chksum != wrong


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("ttl", [0, 1])
def test_what_has_travelled_too_far_is_dropped_by_a_router_and_not_by_a_bridge(routed, ttl, ipv6):
    assert routed.send(1, frames.udp(ipv6=ipv6, ttl=ttl, dst_mac=frames.ROUTER)) == []
    assert routed.counter("discarded", DISCARDS["expired"])[0] == 1
    routed.entry("bridge", {"dst_addr": frames.MACS[2]}, "to_port", port=2)
    same_port(frames.udp(ipv6=ipv6, ttl=ttl), routed)


def test_the_longest_prefix_wins(routed):
    routed.entry(
        "ipv4_routes", {"dst_addr": ("10.9.0.0", 16)}, "to_neighbor", port=3, src_addr=frames.ROUTER, dst_addr=frames.MACS[3]
    )
    routed.entry(
        "ipv4_routes", {"dst_addr": ("10.9.9.0", 24)}, "to_neighbor", port=4, src_addr=frames.ROUTER, dst_addr=frames.MACS[4]
    )
    for address, port in (("10.9.1.1", 3), ("10.9.9.1", 4), ("10.0.0.2", 2)):
        assert [out for out, _ in routed.send(1, frames.udp(dst_ip=address, dst_mac=frames.ROUTER))] == [port]
    assert routed.send(1, frames.udp(dst_ip="11.0.0.1", dst_mac=frames.ROUTER)) == []
    assert routed.counter("discarded", DISCARDS["unknown"])[0] == 1


def test_only_ip_is_routed(routed):
    frame = bytes(Ether(src=frames.MACS[1], dst=frames.ROUTER) / ARP())
    assert routed.send(1, frame) == []
    assert routed.counter("discarded", DISCARDS["unknown"])[0] == 1


def test_routing_back_out_of_the_same_port_is_no_mistake(routed):
    assert [port for port, _ in routed.send(2, frames.udp(1, 2, dst_mac=frames.ROUTER))] == [2]


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_a_flow_keeps_to_one_path_and_flows_spread(spread, kind, ipv6):
    """ECMP by hash for ordinary traffic."""
    flows = [getattr(frames, kind)(1, 2, ipv6=ipv6, sport=6000 + flow, dst_mac=frames.GROUP_MAC) for flow in range(64)]
    path_of = {}
    for port, frame in spread.send_all([(1, frame) for frame in flows * 2]):
        assert path_of.setdefault(frame, port) == port
    paths = Counter(path_of.values())
    assert path_of.keys() == set(flows) and set(paths) == {2, 3, 4, 5} and max(paths.values()) < 40


def test_what_is_not_ip_has_flows_by_address(spread):
    frame = bytes(Ether(src=frames.MACS[1], dst=frames.GROUP_MAC, type=0x88B5) / Raw(b"x" * 50))
    assert len({port for port, _ in spread.send_all([(1, frame)] * 8)}) == 1


def test_the_salt_makes_switches_choose_differently(spread):
    def paths(address):
        flows = {frames.udp(sport=port, dst_mac=address): port for port in range(7000, 7032)}
        return {flows[frame]: out for out, frame in spread.send_all([(1, frame) for frame in flows])}

    spread.entry("bridge", {"dst_addr": frames.MACS[8]}, "to_group", group=1, salt=77)
    assert paths(frames.GROUP_MAC) != paths(frames.MACS[8])


def test_fragments_of_a_datagram_take_one_path(spread):
    whole = IP(src="10.0.0.1", dst="10.0.0.2", id=5, proto=17, flags="MF")
    for flow in range(4):
        first = bytes(frames.link(dst_mac=frames.GROUP_MAC) / whole / Raw(bytes([flow]) * 64))
        later = bytes(
            frames.link(dst_mac=frames.GROUP_MAC) / IP(src="10.0.0.1", dst="10.0.0.2", id=5, proto=17, frag=8) / Raw(b"y" * 64)
        )
        assert spread.send(1, first)[0][0] == spread.send(1, later)[0][0]


def test_a_group_that_is_not_there_drops(spread):
    spread.entry("bridge", {"dst_addr": frames.MACS[7]}, "to_group", group=9, salt=0)
    assert spread.send(1, frames.udp(1, 7)) == []
    assert spread.counter("discarded", DISCARDS["unknown"])[0] == 1


def test_routed_paths_have_their_own_addresses(routed):
    routed.group(2, [2, 3], routed=True)
    routed.entry("ipv4_routes", {"dst_addr": ("10.7.0.0", 16)}, "to_group", group=2, salt=5)
    flows = [(1, frames.udp(dst_ip="10.7.0.1", sport=7000 + flow, dst_mac=frames.ROUTER)) for flow in range(32)]
    seen = set()
    for port, got in routed.send_all(flows):
        frames.assert_sound(got)
        packet = frames.parse(got)
        assert (packet.src, packet.dst) == (frames.ROUTER, frames.MACS[port]) and packet[IP].ttl == 63
        seen.add(port)
    assert seen == {2, 3}


def test_what_leaves_is_counted_by_queue(bridged):
    bridged.entry("dscp_classes", {"dscp": 10}, "assign", queue=5)
    frame = frames.udp(tos=10 << 2)
    bridged.send(1, frame)
    assert bridged.counter("forwarded", ORDINARY + 5) == (1, len(frame))
    assert bridged.counter("forwarded", ORDINARY) == (0, 0)
