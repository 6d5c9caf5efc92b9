"""What leaves first: classes, protection, retransmissions, probes; and the queue that keeps them in order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport.arrivals import Arrivals, Identity
from dlcp.transport.congestion import FlowParameters, create
from dlcp.transport.finished import FinishedMessages
from dlcp.transport.outgoing import DataBurst, OutgoingMessage, bound_to_wire, packets_of
from dlcp.transport.peer import Peer
from dlcp.transport.rtt import RttEstimator
from dlcp.transport.virtual import Weather
from dlcp.wire.codec import check_ok
from dlcp.wire.header import CONTROL_CLASS, HEADER, HEADER_BYTES, PacketType
from tests.transport.rig import COOKIE, MS, STRIDE, Rig, column, kind_of, policy_of

FLAGS_BYTE = HEADER.slots["priority"].byte


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
    """Classes rank messages to all peers; but each peer has a pace of its own, and what one leaves unused another may use."""
    rig = Rig(world=3, policy=policy_of(congestion={"algorithm": "fixed", "rate_mbps": 1000.0}), greet=True)
    for _ in range(20):
        rig.send(0, 1, 100 * STRIDE, priority=6)
    key = rig.send(0, 2, 100 * STRIDE, priority=0)
    rig.run()
    done = sorted((rig.when_done(k)[0], k) for k in rig.sent)
    assert done.index((rig.when_done(key)[0], key)) < 8


def classes_sent(rig, room=1 << 30):
    return [
        (burst.peer, column(datagram, "priority"), column(datagram, "part"))
        for burst in rig.endpoints[0].transmit(rig.now, room)
        if burst.payload is not None
        for datagram in burst.datagrams()
    ]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6)), min_size=1, max_size=8), st.integers(1, 4))
def test_what_is_most_urgent_leaves_first_whoever_it_is_for(messages, packets):
    """Over all peers, in one moment, as far as windows go; and one peer's messages of a class in the order of sending."""
    rig = Rig(world=4, greet=True, policy=policy_of(congestion={"initial_window_packets": 64}))
    for peer, priority in messages:
        rig.send(0, peer, packets * STRIDE, priority=priority)
    sent = classes_sent(rig)
    assert len(sent) == packets * len(messages), "the pacer lets all go that it owes, whatever the classes"
    assert [priority for _, priority, _ in sent] == sorted((p for _, p in messages for _ in range(packets)), reverse=True)
    for peer in (1, 2, 3):
        for priority in range(7):
            mine = [part for to, kind, part in sent if (to, kind) == (peer, priority)]
            assert mine == sorted(mine)


def test_room_for_little_goes_to_the_most_urgent():
    rig = Rig(world=3, greet=True)
    rig.send(0, 1, 10 * STRIDE, priority=1)
    rig.send(0, 2, 10 * STRIDE, priority=5)
    assert {(peer, kind) for peer, kind, _ in classes_sent(rig, 4 * (STRIDE + HEADER_BYTES))} == {(2, 5)}


@given(st.permutations([3, -2, 0, 7]))
def test_order_decides_among_messages_of_a_class_and_only_there(orders):
    rig = Rig(greet=True, policy=policy_of(congestion={"initial_window_packets": 64}))
    expected = []
    for order in (*orders, 0, -5):
        message = rig.message()
        urgent = order == -5
        tags = np.full(2, 2 if urgent else 6, np.uint8)
        rig.endpoints[0].send(1, message, np.zeros(2 * STRIDE, np.uint8), tags=tags, bound=0, now=rig.now, order=order)
        expected.append((urgent, order, message & 0xFFFF))
    parts = [part for _, _, part in classes_sent(rig)]
    assert parts == [part for _, _, part in sorted(expected) for _ in range(2)]


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
            assert (tags[indices] == tags[indices[0]]).all(), "one tag, so one ToS a burst"
            assert message.flags(int(indices[0]), again) == message.headers(indices, again, 1, 77)[0, FLAGS_BYTE]
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
            burst = DataBurst(3, message, indices, again, first, 77)
            assert len(burst) == indices.size and (burst.headers == headers).all()
            assert burst.offsets.tolist() == (indices * 16).tolist() and burst.sizes.tolist() == sizes.tolist()
            assert burst.wire_bytes == headers.size + sizes.sum() <= burst.most_bytes
            handed += indices.tolist()
        assert handed == expected


@given(st.lists(st.integers(0, 13), min_size=2, max_size=30), st.integers(1, 40))
def test_a_burst_ends_where_the_tag_changes_and_not_before(tags, limit):
    message = outgoing(16 * len(tags), tags)
    order = sorted(range(len(tags)), key=lambda i: -tags[i])
    while message.remaining:
        done = len(tags) - message.remaining
        indices, _ = message.take(limit)
        stop = done + indices.size
        assert indices.tolist() == order[done:stop]
        if indices.size < limit and stop < len(tags):
            assert tags[order[stop]] != tags[order[stop - 1]]


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
    block = Arrivals(Identity(0, 2, COOKIE)).peer(1)
    return Peer(1, control, rtt, 100, FinishedMessages(10**9, 10**8), block, 0)


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
            best = min(ready, key=lambda m: (-m.precedence, m.order), default=None)
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
