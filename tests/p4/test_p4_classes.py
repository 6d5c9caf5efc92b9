"""Which packets count as DLCP, whose jobs are let in, which queue a packet gets, and what is counted for it."""

import pytest
from scapy.layers.l2 import ARP, Ether

from dlcp.wire.header import PacketType
from tests.p4 import frames
from tests.p4.bench import DISCARDS, DROPPABLE, NEVER, ORDINARY, PROTECTED

POLICY = frames.POLICY


def queue_of(bench, frame):
    """The queue that a frame (ECT, so that it can be marked) is put in: each is marked in turn."""
    for queue in range(8):
        for protected in (0, 1):
            match = {"port": None, "queue": queue, "protected": protected}
            bench.entry("limits", match, "drop_from", priority=1, drop_at=NEVER, mark_at=0)
        ((_, got),) = bench.send(1, frame)
        for protected in (0, 1):
            bench.delete("limits", {"port": None, "queue": queue, "protected": protected}, priority=1)
        if got != frame:
            assert frames.ip_layer(frames.parse(got)) is not None
            return queue
    raise AssertionError("in no queue")


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
def test_the_class_in_the_header_decides_the_queue(bridged, ipv6):
    bridged.treat()
    for number in range(8):
        assert queue_of(bridged, frames.dlcp(priority=number, protected=True, dscp=0, ipv6=ipv6)) == number


def test_the_table_of_classes_may_say_otherwise(bridged):
    bridged.entry("dlcp_classes", {"class": 3}, "treat", queue=1, spray=0, stamp=0)
    assert queue_of(bridged, frames.dlcp(priority=3, protected=True)) == 1


def test_without_an_entry_for_the_class_dscp_decides(bridged):
    for number, dscp in enumerate(POLICY.classes.dscp):
        bridged.entry("dscp_classes", {"dscp": dscp}, "assign", queue=number)
    for number in range(8):
        assert queue_of(bridged, frames.dlcp(priority=number, protected=True)) == number
        assert queue_of(bridged, frames.udp(tos=POLICY.classes.dscp[number] << 2 | 2)) == number


def test_ordinary_traffic_is_served_last_unless_a_table_knows_its_dscp(bridged):
    assert queue_of(bridged, frames.udp(tos=46 << 2 | 2)) == 0
    bridged.entry("dscp_classes", {"dscp": 46}, "assign", queue=4)
    assert queue_of(bridged, frames.udp(tos=46 << 2 | 2)) == 4
    assert queue_of(bridged, frames.udp(tos=46 << 2 | 2, ipv6=True)) == 4
    assert queue_of(bridged, frames.udp(tos=2)) == 0


def test_address_resolution_is_served_first(bridged):
    bridged.send(1, bytes(frames.link(1, 2) / ARP()))
    assert bridged.counter("forwarded", ORDINARY + 7)[0] == 1


def test_any_udp_port_will_do_and_the_vlan_does_not_matter(bridged):
    bridged.treat()
    assert queue_of(bridged, frames.dlcp(protected=True, sport=1, dport=2, priority=5, vlans=(9,))) == 5


@pytest.mark.parametrize(
    ("name", "frame"),
    [
        ("another version", frames.dlcp(version=2, protected=True)),
        ("reserved bits", frames.dlcp(reserved=1, protected=True)),
        ("short", frames.udp(size=47, tos=2)),
        ("random", frames.udp(size=200, tos=2)),
    ],
)
def test_what_does_not_look_like_dlcp_is_ordinary(bridged, name, frame):
    bridged.treat()
    assert bridged.send(1, frame) == [(2, frame)]
    assert bridged.counter("forwarded", ORDINARY)[0] == 1


def test_counters_tell_classes_and_protection_apart(bridged):
    bridged.treat()
    for number in range(7):
        for copies, protected in ((1, False), (2, True)):
            for _ in range(copies):
                bridged.send(1, frames.dlcp(priority=number, protected=protected))
    for number in range(7):
        size = len(frames.dlcp())
        assert bridged.counter("forwarded", DROPPABLE + number) == (1, size)
        assert bridged.counter("forwarded", PROTECTED + number) == (2, 2 * size)


@pytest.mark.parametrize("kind", [kind for kind in PacketType if kind != PacketType.DATA])
def test_only_data_is_droppable(bridged, kind):
    bridged.treat()
    bridged.send(1, frames.dlcp(priority=6, protected=False, kind=kind))
    assert bridged.counter("forwarded", PROTECTED + 6)[0] == 1


def test_a_trimmed_header_is_not_droppable(bridged):
    bridged.treat()
    bridged.send(1, frames.dlcp(priority=7, trimmed=1, size=0))
    assert bridged.counter("forwarded", PROTECTED + 7)[0] == 1


# Jobs


def test_an_open_switch_takes_every_job_and_a_closed_one_those_it_knows(bridged):
    bridged.treat()
    frame = frames.dlcp(priority=5, protected=True)
    assert queue_of(bridged, frame) == 5
    bridged.default("jobs", "refuse")
    assert bridged.send(1, frame) == []
    assert bridged.counter("discarded", DISCARDS["refused"])[0] == 1
    assert len(bridged.send(1, frames.udp())) == 1
    bridged.entry("jobs", {"cookie": frames.COOKIE, "port": None, "udp_port": None}, "permit", priority=1)
    assert queue_of(bridged, frame) == 5
    assert bridged.send(1, frames.dlcp(priority=5, cookie=frames.COOKIE + 1)) == []


@pytest.mark.parametrize(
    ("match", "other"),
    [
        ({"cookie": frames.COOKIE}, {"cookie": 5}),
        ({"udp_port": (40_000, 40_010)}, {"dport": 40_011}),
        ({"port": 1}, {"src": 3}),
    ],
    ids=["cookie", "udp-port", "ingress-port"],
)
def test_jobs_are_known_by_cookie_port_or_udp_port(bridged, match, other):
    bridged.default("jobs", "refuse")
    bridged.entry("jobs", {"cookie": None, "port": None, "udp_port": None} | match, "permit", priority=1)
    assert len(bridged.send(1, frames.dlcp())) == 1
    assert bridged.send(other.get("src", 1), frames.dlcp(**other)) == []


def test_a_demoted_job_is_ordinary_and_served_last(bridged):
    bridged.treat()
    bridged.entry("dscp_classes", {"dscp": POLICY.classes.dscp[5]}, "assign", queue=5)
    bridged.default("jobs", "demote")
    frame = frames.dlcp(priority=5, protected=True)
    assert queue_of(bridged, frame) == 0
    assert bridged.counter("forwarded", ORDINARY)[0] >= 1 and bridged.counter("forwarded", PROTECTED + 5)[0] == 0


def test_what_each_job_sends_is_counted(bridged):
    match = {"cookie": frames.COOKIE, "port": None, "udp_port": None}
    bridged.entry("jobs", match, "permit", priority=1)
    frame = frames.dlcp()
    for _ in range(3):
        bridged.send(1, frame)
    bridged.send(1, frames.dlcp(cookie=4))
    assert bridged.direct_counter("jobs", match, priority=1) == (3, 3 * len(frame))


def police(bench, hard):
    """A job that may send two packets at once and then, for the length of a test, next to nothing; the third is yellow."""
    size = len(frames.dlcp())
    match = {"cookie": frames.COOKIE, "port": None, "udp_port": None}
    bench.entry("jobs", match, "police", priority=1, hard=hard)
    bench.direct_meter("jobs", match, priority=1, rates=(1, 2 * size, 1, 3 * size))


@pytest.mark.parametrize("hard", [0, 1])
def test_a_policed_job_is_slowed_first_and_then_dropped(bridged, hard):
    bridged.treat()
    police(bridged, hard)
    marks = {"port": None, "queue": 0, "protected": 1}
    bridged.entry("limits", marks, "drop_from", priority=1, drop_at=NEVER, mark_at=0)
    frame = frames.dlcp(priority=5, protected=True)
    green = [bridged.send(1, frame) for _ in range(2)]
    assert green == [[(2, frame)]] * 2
    ((_, yellow),) = bridged.send(1, frame)
    assert yellow != frame, "it went into queue 0, where packets are marked"
    red = bridged.send(1, frame)
    if hard:
        assert red == [] and bridged.counter("discarded", DISCARDS["policed"])[0] == 1
    else:
        assert [data for _, data in red] == [yellow], "what is protected is not dropped"
    assert bridged.send(1, frames.dlcp(priority=5, protected=False)) == []
    assert bridged.counter("discarded", DISCARDS["policed"])[0] == 1 + hard
    other = frames.dlcp(priority=5, protected=True, cookie=1)
    assert bridged.send(1, other) == [(2, other)], "other jobs do not notice"


def test_the_cookie_of_a_frame_that_is_not_dlcp_does_not_matter(bridged):
    bridged.default("jobs", "refuse")
    frame = bytes(Ether(src=frames.MACS[1], dst=frames.MACS[2]) / ARP())
    assert bridged.send(1, frame) == [(2, frame)]
