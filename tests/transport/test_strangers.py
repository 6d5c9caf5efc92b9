"""What is not ours, not whole, or not new changes nothing, and is counted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport.endpoint import Endpoint
from dlcp.transport.events import MessageReceived, MessageSent, message_id
from dlcp.transport.packets import Frames
from dlcp.transport.virtual import as_frames, flip_header_bit
from dlcp.wire.codec import encode_headers, seal
from dlcp.wire.header import FEEDBACK_BODY, HEADER, HEADER_BYTES, REPORT_BODY, PacketType
from tests.transport.rig import COOKIE, MS, SECOND, STRIDE, Rig, column, digest, kind_of, policy_of


def record(**options):
    """Runs two messages each way and keeps every datagram, with its destination."""
    datagrams = []

    def meddle(flight):
        datagrams.append((flight.destination, flight.datagram))
        return [flight.datagram]

    rig = Rig(meddle=meddle, **options)
    for peer in (0, 1):
        rig.send(peer, 1 - peer, 20 * STRIDE + 7, bound=0.05)
        rig.send(peer, 1 - peer, 3 * STRIDE)
    rig.run()
    rig.settle(MS)
    return rig, datagrams


def in_the_middle():
    """An endpoint that has half of two messages, knows a third by its probe, and has one on its way out."""
    rig = Rig(cut=lambda source, destination, now: source == 1 or now > 60_000)
    rig.send(0, 1, 40 * STRIDE + 7, bound=0.05, priority=2)
    rig.send(0, 1, 2 * STRIDE, expect=False, priority=5)
    rig.send(1, 0, 10 * STRIDE)
    rig.settle(5 * MS)
    return rig


def forge(datagram, **fields):
    """A copy of ``datagram`` with other header fields and a check that holds."""
    raw = np.frombuffer(datagram, np.uint8).copy()
    head = HEADER.decode(raw[None])
    columns = {name: int(value[0]) for name, value in head.items()} | fields
    raw[:HEADER_BYTES] = HEADER.encode(1, **columns)[0]
    raw[:HEADER_BYTES] = seal(raw[None, :HEADER_BYTES].copy())[0]
    return raw.tobytes()


_, GENUINE = record()
EVERY_TYPE = sorted({kind_of(d): d for _, d in GENUINE}.values())


def feed(endpoint, datagrams, now, frames=1):
    """Delivers datagrams, as one batch in so many frames."""
    parts = [part for part in np.array_split(np.arange(len(datagrams)), frames) if part.size]
    endpoint.receive([as_frames([(0, datagrams[i]) for i in part]) for part in parts], now)


@settings(max_examples=60)
@given(st.data())
def test_what_is_not_ours_changes_nothing_and_is_counted(data):
    rig = in_the_middle()
    rank = data.draw(st.sampled_from([0, 1]))
    endpoint = rig.endpoints[rank]
    before, counted = digest(endpoint), endpoint.counters()
    to_us = [d for destination, d in GENUINE if destination == rank]
    batch, verdicts = [], []
    for _ in range(data.draw(st.integers(1, 12))):
        datagram = data.draw(st.sampled_from(to_us))
        verdict = data.draw(st.sampled_from(["foreign", "version", "check", "misaddressed", "truncated", "noise"]))
        if verdict == "foreign":
            datagram = forge(datagram, cookie=data.draw(st.integers(0, 2**64 - 1).filter(lambda c: c != COOKIE)))
        elif verdict == "version":
            fields = data.draw(st.sampled_from([{"version": v} for v in (0, 2, 15)] + [{"type": t} for t in (10, 15)]))
            datagram = forge(datagram, **fields)
        elif verdict == "check":
            wrong = column(datagram, "check") ^ data.draw(st.integers(1, 0xFFFE))
            raw = np.frombuffer(datagram, np.uint8).copy()
            raw[HEADER.slots["check"].byte : HEADER.slots["check"].byte + 2] = (wrong >> 8, wrong & 255)
            datagram = raw.tobytes()
        elif verdict == "misaddressed":
            fields = [{"destination": 1 - rank}, {"destination": 77}, {"source": rank}, {"source": 2}, {"source": 65535}]
            datagram = forge(datagram, **data.draw(st.sampled_from(fields)))
        elif verdict == "truncated":
            datagram = datagram[: data.draw(st.integers(0, HEADER_BYTES - 1))]
        else:
            datagram = data.draw(st.binary(min_size=HEADER_BYTES, max_size=2000))
        batch.append(datagram)
        verdicts.append(verdict)
    feed(endpoint, batch, rig.now, data.draw(st.integers(1, 3)))
    assert digest(endpoint) == before
    assert not list(endpoint.events())
    after = endpoint.counters()
    for verdict in ("foreign", "check", "misaddressed", "truncated"):
        assert after.get(verdict, 0) - counted.get(verdict, 0) >= verdicts.count(verdict)
    refused = ("foreign", "version", "check", "misaddressed", "truncated")
    assert sum(after.get(v, 0) - counted.get(v, 0) for v in refused) == len(batch), "each counts once"


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(0, 11))
def test_one_flipped_bit_of_a_header_is_always_noticed(seed, which):
    datagram = EVERY_TYPE[which % len(EVERY_TYPE)]
    rank = column(datagram, "destination")
    rig = in_the_middle()
    before = digest(rig.endpoints[rank])
    feed(rig.endpoints[rank], [flip_header_bit(datagram, np.random.default_rng(seed))], rig.now)
    assert digest(rig.endpoints[rank]) == before


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.floats(0.1, 1.0))
def test_noise_among_the_packets_changes_nothing(seed, share):
    """The same weather with and without an attacker who does not know the cookie: the same events at the same times."""

    def story(attack):
        random = np.random.default_rng(seed)

        def meddle(flight):
            yield flight.datagram
            if attack and random.random() < share:
                yield forge(flight.datagram, cookie=int(random.integers(1, 2**62)))
                yield flip_header_bit(flight.datagram, random)
                yield random.integers(0, 256, int(random.integers(0, 600)), dtype=np.uint8).tobytes()

        rig = Rig(seed=seed, meddle=meddle)
        rig.net.random = FixedFate(seed)
        for _ in range(3):
            rig.send(0, 1, 50 * STRIDE, bound=0.05)
            rig.send(1, 0, 50 * STRIDE)
        rig.run()
        rig.verify()
        return [(t, r, type(e), getattr(e, "message", 0)) for t, r, e in rig.net.log]

    assert story(False) == story(True)


class FixedFate:
    """A generator with which nothing ever happens to a datagram, however many there are."""

    def __init__(self, seed):
        pass

    def random(self):
        return 1.0

    def integers(self, *_):
        return 0


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_replayed_datagrams_change_nothing_once_messages_are_complete(seed, frames):
    rig, datagrams = record(seed=seed)
    random = np.random.default_rng(seed)
    events = len(rig.net.log)
    books = [(e.admission.early_bytes, e._core.peers) for e in (r._receiver for r in rig.endpoints.values())]
    for rank in (0, 1):
        replay = [d for destination, d in datagrams if destination == rank]
        random.shuffle(replay)
        feed(rig.endpoints[rank], replay, rig.now, frames)
    rig.settle(3 * SECOND)
    assert len(rig.net.log) == events
    for rank, (_, peers) in enumerate(books):
        flow = peers[1 - rank]
        assert not flow.incoming and not flow.outgoing and not flow.unclaimed
        assert rig.endpoints[rank]._receiver.admission.early_bytes == 0
        assert rig.endpoints[rank].counters()["late"] >= 1
    # And the flows work as before.
    for peer in (0, 1):
        rig.send(peer, 1 - peer, 30 * STRIDE, bound=0.05)
    rig.run()
    rig.verify()


def test_packets_of_operations_that_are_over_are_stale():
    _, datagrams = record()
    endpoint = Endpoint(rank=1, world=2, cookie=COOKIE, policy=policy_of(), stride=STRIDE, receive_window=1 << 20, now=0)
    endpoint.retire(1)
    data = [d for destination, d in datagrams if destination == 1 and kind_of(d) == PacketType.DATA]
    feed(endpoint, data, 0)
    assert endpoint.counters()["stale"] == len(data)
    assert endpoint.flow(0).incoming == {}
    assert not list(endpoint.events())
    endpoint.retire(0)
    assert endpoint._receiver.admission.over(1, message_id(1, 0, 1, 1)), "what is over stays over"
    assert not endpoint._receiver.admission.over(1, message_id(2, 0, 1, 1))


def test_retiring_forgets_what_is_half_here_and_frees_its_memory():
    rig = in_the_middle()
    receiver = rig.endpoints[1]._receiver
    assert rig.endpoints[1].flow(0).incoming and receiver.admission.early_bytes > 0
    rig.endpoints[1].retire(1)
    flow = rig.endpoints[1].flow(0)
    assert not flow.incoming and not flow.expected and not flow.unclaimed and receiver.admission.early_bytes == 0
    before = len(rig.events(MessageReceived))
    rig.settle(SECOND)
    assert len(rig.events(MessageReceived)) == before


def test_payload_of_another_length_than_the_header_says_is_malformed():
    rig = in_the_middle()
    endpoint = rig.endpoints[1]
    data = [d for destination, d in GENUINE if destination == 1 and kind_of(d) == PacketType.DATA]
    fresh = [forge(d, operation=9) for d in data]
    shapes = [d[:-1] for d in fresh] + [d + b"x" for d in fresh] + [d[:HEADER_BYTES] for d in fresh if len(d) > HEADER_BYTES]
    feed(endpoint, shapes, rig.now)
    assert endpoint.counters()["malformed"] == len(shapes)
    assert not [m for m, i in endpoint.flow(0).incoming.items() if m >> 32 == 9 and i.missing < i.packets]


HOSTILE = {
    "no stride": {"stride": 0},
    "stride of one byte": {"stride": 1},
    "stride beyond ours": {"stride": STRIDE + 8},
    "giant": {"length": 0xFFFFFFFF},
    "longer than the policy allows": {"length": (1 << 20) + 1},
    "more packets than a report lists": {"length": (8 * (STRIDE - REPORT_BODY.size) + 1) * STRIDE},
}


@pytest.mark.parametrize("fields", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("kind", [PacketType.DATA, PacketType.PROBE])
def test_hostile_descriptions_allocate_nothing(fields, kind):
    endpoint = Endpoint(rank=1, world=2, cookie=COOKIE, policy=policy_of(), stride=STRIDE, receive_window=1 << 20, now=0)
    columns = {"length": 10 * STRIDE, "stride": STRIDE} | fields
    header = encode_headers(1, type=kind, source=0, destination=1, cookie=np.uint64(COOKIE), sequence=5, **columns)
    feed(endpoint, [header[0].tobytes() + bytes(STRIDE if kind is PacketType.DATA else 0)], 0)
    assert not endpoint.flow(0).incoming
    assert endpoint._receiver.admission.early_bytes == 0
    assert endpoint.counters()["malformed"] == 1


@settings(max_examples=60)
@given(st.data())
def test_hostile_fields_with_the_right_cookie_do_not_break_an_endpoint(data):
    """A peer that has gone mad: any type, any field, any body.  It may spoil its own messages, but nobody crashes or fills up."""
    rig = in_the_middle()
    rank = data.draw(st.sampled_from([0, 1]))
    endpoint = rig.endpoints[rank]
    batch = []
    for _ in range(data.draw(st.integers(1, 20))):
        fields = {
            name: data.draw(st.one_of(st.sampled_from([0, 1, 2, STRIDE, (1 << bits) - 1]), st.integers(0, (1 << bits) - 1)))
            for name, bits in (("operation", 32), ("length", 32), ("offset", 32), ("sequence", 32), ("stride", 16), ("bound", 16))
        }
        header = encode_headers(
            1,
            type=data.draw(st.sampled_from(list(PacketType))),
            source=1 - rank,
            destination=rank,
            cookie=np.uint64(COOKIE),
            phase=data.draw(st.integers(0, 255)),
            dtype=data.draw(st.integers(0, 255)),
            part=data.draw(st.integers(0, 3)),
            protected_packets=data.draw(st.integers(0, 65535)),
            timestamp=data.draw(st.integers(0, 2**32 - 1)),
            trimmed=data.draw(st.integers(0, 1)),
            protected=data.draw(st.integers(0, 1)),
            **fields,
        )
        batch.append(header[0].tobytes() + data.draw(st.binary(max_size=STRIDE + 16)))
    feed(endpoint, batch, rig.now, data.draw(st.integers(1, 3)))
    for burst in endpoint.transmit(rig.now):
        assert all(len(d) <= STRIDE + HEADER_BYTES or kind_of(d) == PacketType.ABORT for d in burst.datagrams())
    endpoint.handle_timer(rig.now + SECOND // 10)
    list(endpoint.events())
    assert endpoint._receiver.admission.early_bytes <= policy_of().memory.early_bytes
    assert sum(m.buffer.nbytes for m in endpoint.flow(1 - rank).incoming.values()) < 64 << 20


def report(kind, message, body):
    header = encode_headers(
        1,
        type=kind,
        source=1,
        destination=0,
        cookie=np.uint64(COOKIE),
        operation=message >> 32,
        phase=message >> 24 & 255,
        dtype=message >> 16 & 255,
        part=message & 0xFFFF,
    )
    return header[0].tobytes() + body


@settings(max_examples=150)
@given(st.data())
def test_hostile_reports_neither_crash_nor_wedge_a_sender(data):
    """Whatever a STATUS or STOP claims, the message still ends well once the network behaves, unless the STOP kept the rules."""
    rig = Rig(seed=1, cut=lambda source, destination, now: now < 20 * MS and source == 1)
    key = rig.send(0, 1, 20 * STRIDE, bound=0.1, share=0.5)
    rig.settle(data.draw(st.sampled_from([10_000, 5 * MS])))
    sender = rig.endpoints[0]
    probe = max(sender.flow(1).outgoing[key[2]].probe_round or 0, 0)
    tags = rig.sent[key].tags
    stopped = False
    for _ in range(data.draw(st.integers(1, 6))):
        kind = data.draw(st.sampled_from([PacketType.STATUS, PacketType.STOP]))
        bits = data.draw(st.one_of(st.binary(max_size=8), st.just(bytes(3)), st.just(b"\xff\xff\xf0"), st.just(b"\0\x01\0")))
        missing = int(np.unpackbits(np.frombuffer(bits, np.uint8)[:3]).sum())
        fields = {
            "missing": data.draw(st.one_of(st.just(missing), st.integers(0, 2**32 - 1))),
            "needed": data.draw(st.one_of(st.just(missing), st.integers(0, 2**32 - 1))),
            "packets": data.draw(st.sampled_from([0, 1, 19, 20, 20, 20, 21, 65535])),
            "busy": data.draw(st.sampled_from([0, 0, 1, 255])),
            "echo": data.draw(st.one_of(st.just(probe), st.integers(0, 2**32 - 1), st.just(0))),
        }
        body = REPORT_BODY.encode(1, **fields)[0].tobytes() + bits
        if data.draw(st.booleans()):
            body = body[: data.draw(st.integers(0, len(body)))]
        feed(sender, [report(kind, key[2], body)], rig.now)
        list(sender.transmit(rig.now))
        for event in sender.events():
            assert isinstance(event, MessageSent) and kind is PacketType.STOP
            # Believable: the right count, within the bound, nothing protected.
            assert event.lost.size <= 2 and not (tags[event.lost] & 1).any() and fields["packets"] == 20
            stopped = True
    if not stopped:
        rig.run()
        rig.verify()


@settings(max_examples=60)
@given(st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 7), min_size=1, max_size=8))
def test_hostile_feedback_does_not_open_the_window_or_stop_the_flow(claims):
    rig = Rig(seed=2, window=8 * (STRIDE + HEADER_BYTES))
    rig.send(0, 1, 200 * STRIDE)
    rig.settle(150_000)
    sender = rig.endpoints[0]
    window = rig.policy.congestion.max_window_bytes // (STRIDE + HEADER_BYTES)
    for highest, received, marked, trimmed, echo, delay, advertised in claims:
        body = FEEDBACK_BODY.encode(
            1,
            highest_sequence=highest,
            received=received,
            marked=marked,
            trimmed=trimmed,
            timestamp_echo=echo,
            delay=delay,
            window=advertised,
        )
        header = encode_headers(1, type=PacketType.FEEDBACK, source=1, destination=0, cookie=np.uint64(COOKIE))
        feed(sender, [header[0].tobytes() + body[0].tobytes()], rig.now)
    flow = sender.flow(1)
    assert flow.control.window <= window
    assert 0 <= flow.in_flight < 2**31
    assert 0 < flow.rtt.smoothed < 60 * SECOND
    rig.run()
    rig.verify()


def test_frames_of_any_pitch_and_none_at_all():
    endpoint = Endpoint(rank=0, world=2, cookie=COOKIE, policy=policy_of(), stride=STRIDE, receive_window=1 << 20, now=0)
    before = digest(endpoint)
    empty = Frames(np.zeros((0, 1500), np.uint8), np.zeros(0, np.int64), np.zeros(0, np.uint8))
    narrow = Frames(np.zeros((3, 20), np.uint8), np.full(3, 20), np.zeros(3, np.uint8))
    wide = Frames(np.zeros((2, 9000), np.uint8), np.array([0, 9000]), np.zeros(2, np.uint8))
    endpoint.receive([], 1)
    endpoint.receive([empty], 1)
    endpoint.receive([narrow, empty, wide], 1)
    assert digest(endpoint) == before
    assert endpoint.counters() == {"truncated": 4, "version": 1}


def test_a_stop_is_believed_only_within_bound_and_protection():
    rig = Rig(seed=1, cut=lambda source, destination, now: source == 1)
    key = rig.send(0, 1, 20 * STRIDE, bound=0.1, share=0.5)
    tags = rig.sent[key].tags
    sender = rig.endpoints[0]
    droppable, protected = np.flatnonzero(tags & 1 == 0), np.flatnonzero(tags & 1)

    def stop(missing, packets=20):
        lost = np.zeros(20, bool)
        lost[missing] = True
        body = REPORT_BODY.encode(1, missing=len(missing), packets=packets)[0].tobytes() + np.packbits(lost).tobytes()
        feed(sender, [report(PacketType.STOP, key[2], body)], 0)
        return list(sender.events())

    assert stop(protected[:1]) == [], "a protected packet"
    assert stop(droppable[:3]) == [], "three of twenty are more than a tenth"
    assert stop([], packets=19) == [], "another message"
    assert stop([], packets=0) == [], "about nothing"
    assert sender.counters()["malformed"] == 4
    (event,) = stop(droppable[:1])
    assert event.lost.tolist() == droppable[:1].tolist()
