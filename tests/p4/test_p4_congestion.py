"""Selective dropping, ECN marking, trimming and stamping, with thresholds that every packet meets (0) or none (never)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6

from dlcp.wire.header import HEADER, HEADER_BYTES, PacketType
from tests.p4 import frames
from tests.p4.bench import DISCARDS, DROPPABLE, NEVER, ORDINARY, PROTECTED

DSCP_7 = frames.POLICY.classes.dscp[7]
ANY = {"port": None, "queue": 3, "protected": 0}
KEPT = {"port": None, "queue": 3, "protected": 1}
NOT_ECT, ECT1, ECT0, CE = range(4)
ipv4_or_6 = pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])


def congest(bench, action="drop_from", mark_at=NEVER, **parameters):
    """Queue 3 counts as too long for droppable packets, and as long enough to mark from ``mark_at``."""
    key = "trim_at" if action == "trim_from" else "drop_at"
    bench.entry("limits", ANY, action, priority=1, mark_at=mark_at, **{key: 0}, **parameters)
    bench.entry("limits", KEPT, action, priority=1, mark_at=mark_at, **{key: 0}, **parameters)


# Dropping


@ipv4_or_6
def test_droppable_packets_are_dropped_and_all_others_are_not(bridged, ipv6):
    bridged.treat()
    congest(bridged)
    assert bridged.send(1, frames.dlcp(ipv6=ipv6)) == []
    assert bridged.counter("dropped", DROPPABLE + 3) == (1, len(frames.dlcp(ipv6=ipv6)))
    assert bridged.counter("forwarded", DROPPABLE + 3) == (0, 0)
    for frame in (
        frames.dlcp(protected=True, ipv6=ipv6),
        frames.dlcp(priority=3, kind=PacketType.PROBE, ipv6=ipv6),
        frames.dlcp(priority=3, trimmed=1, size=0, ipv6=ipv6),
        frames.dlcp(priority=2, ipv6=ipv6),
    ):
        assert bridged.send(1, frame) == [(2, frame)]
    assert bridged.counter("forwarded", PROTECTED + 3)[0] == 3
    assert bridged.counter("dropped", PROTECTED + 3)[0] == 0


def test_ordinary_traffic_is_never_dropped_selectively(bridged):
    bridged.entry("dscp_classes", {"dscp": 24}, "assign", queue=3)
    congest(bridged)
    frame = frames.udp(tos=24 << 2)
    assert bridged.send(1, frame) == [(2, frame)]


def test_thresholds_can_differ_from_port_to_port(bridged):
    bridged.treat()
    bridged.entry("limits", ANY, "drop_from", priority=1, drop_at=NEVER, mark_at=NEVER)
    bridged.entry("limits", {**ANY, "port": 3}, "drop_from", priority=2, drop_at=0, mark_at=NEVER)
    assert len(bridged.send(1, frames.dlcp(1, 2))) == 1
    assert bridged.send(1, frames.dlcp(1, 3)) == []


def test_a_depth_that_may_be_stale_does_not_shut_a_queue_for_ever(bridged):
    """Every 256th packet goes in even so: if nothing left the queue meanwhile, the depth may be that of a port that was down."""
    bridged.treat()
    congest(bridged)
    frame = frames.dlcp()
    for _ in range(2):
        assert bridged.send_all([(1, frame)] * 255) == []
        assert bridged.send(1, frame) == [(2, frame)]


# Marking


@ipv4_or_6
@pytest.mark.parametrize(("ecn", "after"), [(NOT_ECT, NOT_ECT), (ECT0, CE), (ECT1, CE), (CE, CE)])
def test_packets_that_can_be_marked_are(bridged, ecn, after, ipv6):
    bridged.treat()
    congest(bridged, mark_at=0)
    frame = frames.dlcp(protected=True, ecn=ecn, ipv6=ipv6)
    ((port, got),) = bridged.send(1, frame)
    frames.assert_sound(got)
    layer = frames.ip_layer(frames.parse(got))
    assert port == 2 and (layer.tc if ipv6 else layer.tos) & 3 == after
    assert len(got) == len(frame) and sum(a != b for a, b in zip(got, frame, strict=True)) <= (3 if ecn != after else 0)
    assert bridged.counter("marked", PROTECTED + 3)[0] == (ecn != after)
    assert bridged.counter("forwarded", PROTECTED + 3)[0] == 1


def test_nothing_is_marked_below_the_threshold(bridged):
    bridged.treat()
    congest(bridged)
    frame = frames.dlcp(protected=True)
    assert bridged.send(1, frame) == [(2, frame)]


def test_ordinary_traffic_is_marked_too(bridged):
    bridged.entry("limits", {**KEPT, "queue": 0}, "drop_from", priority=1, drop_at=NEVER, mark_at=0)
    ((_, got),) = bridged.send(1, frames.tcp(tos=ECT0))
    frames.assert_sound(got)
    assert frames.parse(got)[IP].tos & 3 == CE
    assert bridged.counter("marked", ORDINARY)[0] == 1


@given(st.integers(0, 255), st.integers(0, 0xFFFF), st.booleans())
def test_the_checksum_is_right_after_marking_for_every_header(marking_once, tos, identification, ipv6):
    layer = IPv6(src="fd00::1", dst="fd00::2", tc=tos) if ipv6 else IP(src="10.0.0.1", dst="10.0.0.2", tos=tos, id=identification)
    frame = bytes(frames.link() / layer / UDP(sport=1, dport=2) / b"x")
    ((_, got),) = marking_once.send(1, frame)
    frames.assert_sound(got)
    layer = frames.ip_layer(frames.parse(got))
    assert (layer.tc if ipv6 else layer.tos) == (tos | CE if tos & 3 else tos)


# Trimming


def check_trimmed(frame, got):
    """``got`` is ``frame`` without its payload, told so in every header."""
    frames.assert_sound(got)
    before, after = frames.parse(frame), frames.parse(got)
    ipv6 = IPv6 in after
    links = len(frame) - len(bytes(frames.ip_layer(before)))
    assert len(got) == links + (40 if ipv6 else 20) + 8 + HEADER_BYTES
    assert got[:links] == frame[:links], "Ethernet header and tags"
    assert after[UDP].len == 8 + HEADER_BYTES and not frames.dlcp_payload(got)
    layer = frames.ip_layer(after)
    assert (layer.tc if ipv6 else layer.tos) == DSCP_7 << 2 | (before[IPv6].tc if ipv6 else before[IP].tos) & 3
    fields = frames.dlcp_fields(got)
    assert fields == frames.dlcp_fields(frame) | {"trimmed": 1, "priority": 7, "queue_depth": fields["queue_depth"]}
    assert (after[UDP].chksum == 0) == (before[UDP].chksum == 0)


@ipv4_or_6
@pytest.mark.parametrize("vlans", [(), (7,), (7, 8)], ids=["untagged", "tagged", "double-tagged"])
@pytest.mark.parametrize("stamp", [0, 1])
def test_droppable_packets_lose_their_payload_and_are_served_first(bridged, ipv6, vlans, stamp):
    bridged.treat(stamp=stamp)
    congest(bridged, "trim_from", dscp=DSCP_7)
    frame = frames.dlcp(ipv6=ipv6, vlans=vlans)
    ((port, got),) = bridged.send(1, frame)
    assert port == 2
    check_trimmed(frame, got)
    assert frames.dlcp_fields(got)["queue_depth"] == 0
    assert bridged.counter("trimmed", DROPPABLE + 3) == (1, len(frame))
    assert bridged.counter("forwarded", DROPPABLE + 3)[0] == bridged.counter("dropped", DROPPABLE + 3)[0] == 0


def test_protected_packets_keep_their_payload(bridged):
    bridged.treat()
    congest(bridged, "trim_from", dscp=DSCP_7)
    frame = frames.dlcp(protected=True)
    assert bridged.send(1, frame) == [(2, frame)]


def test_a_trimmed_header_passes_the_next_switch_that_trims(bridged):
    bridged.treat()
    for queue in (3, 7):
        bridged.entry("limits", {**ANY, "queue": queue}, "trim_from", priority=1, trim_at=0, mark_at=0, dscp=DSCP_7)
    ((_, got),) = bridged.send(1, frames.dlcp())
    assert bridged.send(1, got) == [(2, got)]
    assert bridged.counter("trimmed", DROPPABLE + 3)[0] == 1


def test_no_checksum_stays_no_checksum(bridged):
    bridged.treat(stamp=1)
    congest(bridged, "trim_from", dscp=DSCP_7)
    frame = frames.dlcp(checksum=False)
    ((_, got),) = bridged.send(1, frame)
    check_trimmed(frame, got)
    assert frames.parse(got)[UDP].chksum == 0


@given(
    st.fixed_dictionaries(
        {
            f.name: st.integers(0, 2**f.bits - 1)
            for f in HEADER.fields
            if f.name not in {"version", "type", "priority", "protected", "trimmed", "reserved", "check"}
        }
    ),
    st.booleans(),
    st.integers(0, 1400),
    st.integers(0, 0xFFFF),
    st.sampled_from([(), (1,), (1, 2)]),
)
def test_every_trimmed_header_is_sound(trimming_once, fields, ipv6, size, sport, vlans):
    frame = frames.dlcp(ipv6=ipv6, size=size, sport=sport, vlans=vlans, priority=3, **fields)
    trimming_once.send(1, frames.dlcp(priority=3, protected=True))  # the queue moves on
    ((port, got),) = trimming_once.send(1, frame)
    assert port == 2
    check_trimmed(frame, got)


@ipv4_or_6
def test_a_checksum_that_comes_out_as_zero_is_sent_in_its_other_form(trimming_once, ipv6):
    """Of 65536 source ports some make the sum 0, which UDP would take for "none"."""
    base = frames.dlcp(ipv6=ipv6, sport=0)
    ((_, got),) = trimming_once.send(1, base)
    sport = frames.parse(got)[UDP].chksum
    ((_, got),) = trimming_once.send(1, frames.dlcp(ipv6=ipv6, sport=sport))
    assert frames.parse(got)[UDP].chksum == 0xFFFF
    del (packet := frames.parse(got))[UDP].chksum
    assert bytes(packet) == got


# Stamping


@ipv4_or_6
def test_a_deeper_queue_on_the_way_stays_in_the_header(bridged, ipv6):
    bridged.treat(stamp=1)
    frame = frames.dlcp(ipv6=ipv6, queue_depth=17)
    assert bridged.send(1, frame) == [(2, frame)]


def test_discarded_has_no_other_reasons():
    assert sorted(DISCARDS.values()) == list(range(6))
