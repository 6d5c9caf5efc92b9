"""What leaves first: classes, protection, retransmissions, probes; and the queue that keeps them in order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport.congestion import FlowParameters, create
from dlcp.transport.finished import FinishedMessages
from dlcp.transport.outgoing import OutgoingMessage, bound_to_wire, packets_of
from dlcp.transport.peer import Peer
from dlcp.transport.rtt import RttEstimator
from dlcp.transport.virtual import Weather
from dlcp.wire.codec import check_ok
from dlcp.wire.header import CONTROL_CLASS, HEADER, HEADER_BYTES, PacketType
from tests.transport.rig import COOKIE, MS, STRIDE, Rig, column, kind_of, policy_of


class Wiretap:
    """Keeps what rank 0 sends, in order."""

    def __init__(self):
        self.flights = []

    def __call__(self, flight):
        if flight.source == 0:
            self.flights.append(flight)
        return [flight.datagram]

    def data(self):
        return [f for f in self.flights if kind_of(f.datagram) == PacketType.DATA]

    def probes(self):
        return [f for f in self.flights if kind_of(f.datagram) == PacketType.PROBE]


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from(["at once", "later"]))
def test_urgent_packets_leave_first_even_when_queued_later(seed, others, when):
    tap = Wiretap()
    policy = policy_of(congestion={"algorithm": "fixed", "rate_mbps": 100.0})
    rig = Rig(seed=seed, meddle=tap, policy=policy, greet=True)
    random = np.random.default_rng(seed)
    for _ in range(others):
        rig.send(0, 1, 100 * STRIDE, priority=int(random.integers(0, 5)))
    if when == "later":
        rig.settle(MS)
    before = len(tap.data())
    urgent = rig.send(0, 1, 30 * STRIDE, priority=6)
    rig.run()
    rig.verify()
    # What is with the shell already cannot be called back; then the urgent message, all of it, before anything else.
    after = [column(f.datagram, "part") for f in tap.data()[before:]]
    assert after[:30] == [urgent[2] & 0xFFFF] * 30
    classes = [column(f.datagram, "priority") for f in tap.data()[before + 30 :]]
    assert classes == sorted(classes, reverse=True), "the rest by class, messages of one class one after the other"


def test_a_message_of_many_classes_shares_the_wire_class_by_class():
    """Two messages of all classes: the urgent packets of both come before the less urgent ones of either."""
    tap = Wiretap()
    rig = Rig(meddle=tap, policy=policy_of(congestion={"algorithm": "fixed", "rate_mbps": 100.0}), greet=True)
    for _ in range(2):
        rig.send(0, 1, 140 * STRIDE, share=0.3)
    rig.run()
    tags = [(column(f.datagram, "priority"), column(f.datagram, "protected")) for f in tap.data()]
    assert [c for c, _ in tags] == sorted((c for c, _ in tags), reverse=True)
    for part in (1, 2):
        mine = [
            (column(f.datagram, "priority"), column(f.datagram, "protected"))
            for f in tap.data()
            if column(f.datagram, "part") == part
        ]
        assert mine == sorted(mine, reverse=True), "inside a class protected packets first"


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_numbers_tos_and_probes(seed):
    """Data, probes and pings are numbered without a gap; ToS follows the header; a probe follows its last packet in its class."""
    tap = Wiretap()
    rig = Rig(seed=seed, weather=Weather(drop=0.1), meddle=tap)
    for _ in range(3):
        rig.send(0, 1, 40 * STRIDE + 1, bound=0.1)
    rig.run()
    numbered = [f for f in tap.flights if kind_of(f.datagram) in (PacketType.DATA, PacketType.PROBE, PacketType.PING)]
    # A call hands out control packets first, so that pings may overtake within one moment.
    assert sorted(column(f.datagram, "sequence") for f in numbered) == list(range(1, len(numbered) + 1))
    previous = {}
    for flight in tap.flights:
        head = {
            name: column(flight.datagram, name)
            for name in ("type", "priority", "protected", "retransmission", "part", "sequence")
        }
        assert flight.tos == rig.policy.tos(head["priority"], bool(head["protected"]))
        if head["type"] == PacketType.DATA:
            assert (head["priority"] == CONTROL_CLASS) == bool(head["retransmission"])
            previous[head["part"]] = head
        elif head["type"] == PacketType.PROBE:
            assert head["priority"] == previous[head["part"]]["priority"], "it must not overtake the packets it asks about"
            assert head["protected"] == 1
        elif head["type"] == PacketType.PING:
            assert head["priority"] in {p["priority"] for p in previous.values()}, "nor must one that asks about the window"
        else:
            assert head["priority"] == CONTROL_CLASS and head["sequence"] == 0


def test_an_urgent_peer_does_not_starve_another():
    """Classes rank messages to one peer; peers take turns."""
    rig = Rig(world=3, policy=policy_of(congestion={"algorithm": "fixed", "rate_mbps": 1000.0}), greet=True)
    for _ in range(20):
        rig.send(0, 1, 100 * STRIDE, priority=6)
    key = rig.send(0, 2, 100 * STRIDE, priority=0)
    rig.run()
    done = sorted((rig.when_done(k)[0], k) for k in rig.sent)
    assert done.index((rig.when_done(key)[0], key)) < 8


# -- one message -------------------------------------------------------------------------------------------------------------


def outgoing(length, tags, *, bound=0, order=1, message=5):
    payload = np.arange(length, dtype=np.uint32).astype(np.uint8)
    return OutgoingMessage(0, 1, COOKIE, message, payload, 16, np.asarray(tags, np.uint8), bound, order)


@settings(max_examples=100)
@given(st.data())
def test_every_packet_is_handed_out_once_a_round_in_order_of_value(data):
    packets = data.draw(st.integers(1, 40))
    length = packets * 16 - data.draw(st.integers(0, 15))
    tags = np.array(data.draw(st.lists(st.integers(0, 13), min_size=packets, max_size=packets)), np.uint8)
    if data.draw(st.booleans()):
        tags[:] = tags[0]
    message = outgoing(length, tags)
    assert message.packets == packets == packets_of(length, 16)
    for round_number in range(3):
        if round_number == 0:
            expected = np.argsort(-tags.astype(int), kind="stable").tolist()
        else:
            missing = np.array(sorted(data.draw(st.sets(st.integers(0, packets - 1), min_size=1))))
            needed = data.draw(st.integers(1, missing.size))
            message.resend(missing, needed)
            value = [(-(int(tags[i]) & 1), -int(tags[i]), int(i)) for i in missing]
            expected = [i for _, _, i in sorted(value)][:needed]
        handed = []
        while message.remaining:
            assert message.remaining == len(expected) - len(handed)
            urgency = message.urgency
            indices, again = message.take(data.draw(st.integers(1, 50)))
            assert again == (round_number > 0) == (urgency == CONTROL_CLASS)
            sizes = message.sizes(indices)
            stretches = message.stretches(indices)
            assert [start for start, _, _ in stretches] == [0] + [stop for _, stop, _ in stretches[:-1]]
            assert stretches[-1][1] == indices.size
            for start, stop, tag in stretches:
                assert (sizes[start : stop - 1] == 16).all(), "only the last datagram of a burst may be shorter"
                assert (tags[indices[start:stop]] == tag).all() or again
                assert len(set((tags[indices[start:stop]] & 1).tolist())) == 1, "one ToS a burst"
            assert again or len(set((tags[indices] >> 1).tolist())) == 1
            assert sizes.tolist() == [min(16, length - 16 * i) for i in indices.tolist()]
            first = 2**32 - 3
            headers = message.headers(indices, again, first, 77)
            assert check_ok(headers).all()
            head = HEADER.decode(headers)
            assert head["offset"].tolist() == (indices * 16).tolist()
            assert head["sequence"].tolist() == [(first + k) % 2**32 for k in range(indices.size)]
            assert (head["retransmission"] == again).all() and (head["length"] == length).all()
            assert (head["priority"] == urgency).all()
            assert (head["protected"] == (tags[indices] & 1)).all()
            assert (head["protected_packets"] == (tags & 1).sum()).all()
            handed += indices.tolist()
        assert handed == expected


def test_requests_of_switches_go_on_top_of_what_is_being_sent():
    message = outgoing(10 * 16, [2] * 10)
    message.take(4)
    message.resend(np.array([1, 2]), 2)
    assert message.urgency == CONTROL_CLASS and message.remaining == 8
    assert message.take(100)[0].tolist() == [1, 2]
    assert message.urgency == 1
    assert message.take(100)[0].tolist() == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tags": [0] * 9}, "one for each of 10 packets"),
        ({"tags": [14] * 10}, "class 7 is for control"),
        ({"tags": [255] * 10}, "class 7 is for control"),
        ({"bound": 65536}, "not in"),
        ({"bound": -1}, "not in"),
    ],
)
def test_messages_that_cannot_be_described_are_refused(change, problem):
    with pytest.raises(ValueError, match=problem):
        outgoing(160, **{"tags": [0] * 10, **change})


def test_an_endpoint_refuses_what_it_cannot_carry():
    rig = Rig(policy=policy_of(wire={"message_bytes": 600_000}))
    with pytest.raises(ValueError, match="the policy allows 600000"):
        rig.send(0, 1, 600_001)
    most = rig.endpoints[0]._core.max_packets
    assert most == 8 * (STRIDE - 16)
    with pytest.raises(ValueError, match=f"one report lists {most}"):
        rig.send(0, 1, most * STRIDE + 1, expect=False)
    key = rig.send(0, 1, 100)
    with pytest.raises(ValueError, match="on its way to rank 1 already"):
        rig.endpoints[0].send(1, key[2], np.zeros(100, np.uint8), tags=np.zeros(1, np.uint8), bound=0, now=0)


def test_the_largest_message_fits_one_report():
    """Its STATUS is one datagram, however much is missing."""
    sizes = []

    def meddle(flight):
        sizes.append(len(flight.datagram))
        lost = kind_of(flight.datagram) == PacketType.DATA and not column(flight.datagram, "retransmission")
        return [] if lost else [flight.datagram]

    rig = Rig(meddle=meddle, stride=64, greet=True)
    rig.send(0, 1, rig.endpoints[0]._core.max_packets * 64)
    rig.run()
    rig.verify()
    assert max(sizes) == 64 + HEADER_BYTES
    assert rig.endpoints[1].counters()["status_sent"] >= 1


@given(st.floats(0, 0.5))
def test_the_wire_never_allows_more_than_the_policy(share):
    assert bound_to_wire(share) / 65536 <= share
    assert bound_to_wire(share) >= share * 65536 - 1


# -- the queue ---------------------------------------------------------------------------------------------------------------


def peer_of():
    control = create("dctcp", FlowParameters(packet_bytes=100, initial_window=16, max_window=1000))
    rtt = RttEstimator(initial_ns=MS, floor_ns=MS, ceiling_ns=100 * MS)
    return Peer(1, control, rtt, 100, FinishedMessages(10**9, 10**8), 0)


@settings(max_examples=100)
@given(st.data())
def test_the_queue_agrees_with_sorting(data):
    """Messages come, go, move up when asked for again, and move down as their classes are worked off."""
    peer = peer_of()
    for step in range(data.draw(st.integers(1, 60))):
        action = data.draw(st.sampled_from(["send", "take", "take", "take", "ask", "finish"]))
        alive = list(peer.outgoing.values())
        if action == "send":
            tags = data.draw(st.lists(st.integers(0, 13), min_size=1, max_size=6))
            message = outgoing(16 * len(tags), tags, order=step, message=step)
            peer.outgoing[step] = message
            peer.enqueue(message)
        elif action == "take":
            ready = [m for m in alive if m.remaining]
            best = min(ready, key=lambda m: (-m.urgency, m.order), default=None)
            assert peer.next_message() is best
            if best is not None:
                best.take(data.draw(st.integers(1, 4)))
                peer.requeue(best)
        elif action == "ask" and alive:
            message = data.draw(st.sampled_from(alive))
            message.resend(np.array([0]), 1)
            peer.enqueue(message)
        elif action == "finish" and alive:
            del peer.outgoing[data.draw(st.sampled_from(alive)).message]
    for message in list(peer.outgoing.values()):
        del peer.outgoing[message.message]
    assert peer.next_message() is None
    assert peer._ready == []


def test_packets_that_wait_behind_others_do_not_hold_up_urgent_ones():
    """A window full of the least urgent class: the most urgent one may still leave, up to a window of its own."""
    rig = Rig(world=2, greet=True)
    flow = rig.endpoints[0].flow(1)
    rig.send(0, 1, 400 * STRIDE, priority=0)
    slow = sum(len(burst) for burst in rig.endpoints[0].transmit(rig.now))
    window = int(flow.control.window)
    while flow.release_time(rig.now) is not None:
        rig.net.now = flow.release_time(rig.now)
        slow += sum(len(burst) for burst in rig.endpoints[0].transmit(rig.now))
    assert slow == window and flow.room(0) == 0
    assert flow.room(6) == window
    rig.send(0, 1, 400 * STRIDE, priority=6)
    sent = []
    for _ in range(1000):
        bursts = rig.endpoints[0].transmit(rig.now)
        sent += [burst.tos for burst in bursts for _ in range(len(burst)) if burst.payload is not None]
        release = flow.release_time(rig.now)
        if release is None:
            break
        rig.net.now = release
    assert len(sent) == window and {tos >> 5 for tos in sent} == {6}
    # Two windows in all, whatever the class.
    assert flow.room(6) == 0 >= flow.room(0)
