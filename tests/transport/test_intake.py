"""What is done with every packet that comes: compiled and as Python, against a plain model, whatever comes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.compiler.raw import address_of
from dlcp.transport import arrivals as arrivals_module
from dlcp.transport import intake
from dlcp.transport.intake_layout import (
    ENTRIES,
    P_HIGHEST,
    P_WAITED,
    REACH,
    REST_ROOM,
)
from dlcp.transport.packets import Frames
from dlcp.wire.codec import check_ok, encode_headers, seal
from dlcp.wire.header import FEEDBACK_BODY, HEADER_BYTES, PacketType
from tests.transport.intake_bench import (
    GUARD,
    IDS,
    ME,
    NOW,
    STRIDE,
    Bench,
    Model,
    batches_of,
    frames_of,
    messages_of,
    raw_of,
    row_of,
)
from tests.transport.rig import COOKIE, Rig


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    if arrivals_module.compiled() is None:
        pytest.skip("no LLVM")


def play(messages, batches, closed=False):
    """Takes batches both ways; returns both benches and the model."""
    benches, model = (Bench(messages, True), Bench(messages, False)), Model(messages)
    now = NOW
    for number, (packets, cuts, layout, seed) in enumerate(batches):
        drawn = [(raw_of(p, messages), p["ecn"], 0 if p["ago"] is None else now - p["ago"]) for p in packets]
        for bench in benches:
            frames, rows = frames_of(drawn, cuts, layout, seed)
            bench.rest_before = len(bench.rest)
            bench.take(frames, now, closed)
            # Rows of later batches come after those of earlier ones.
            bench.rest[bench.rest_before :] = [(f + 10 * number, r, w) for f, r, w in bench.rest[bench.rest_before :]]
        for frame, row, raw, ecn, arrival in rows:
            model.take(frame + 10 * number, row, raw, ecn, arrival, now, closed)
        now += 1_234_567
    return benches, model


@settings(max_examples=150)
@given(messages_of, batches_of)
def test_the_machine_does_what_python_does_and_both_what_is_meant(messages, batches):
    (compiled, python), model = play(messages, batches)
    assert compiled.state() == python.state()
    model.check(compiled)
    model.check(python)


@settings(max_examples=30)
@given(messages_of, batches_of)
def test_after_the_end_all_that_is_ours_is_left_to_others(messages, batches):
    (compiled, python), model = play(messages, batches, closed=True)
    assert compiled.state() == python.state()
    model.check(compiled)
    assert not any(compiled.came.values())


@pytest.mark.parametrize("use_compiled", [True, False], ids=["compiled", "Python"])
def test_of_the_tags_of_a_packet_that_came_twice_the_lower_counts(use_compiled):
    """A retransmission comes with class 7, whatever class it had."""
    bench = Bench([(2, 5, 3 * STRIDE, 0, 0, True)], use_compiled)
    for index, tags in enumerate([[15, 4], [4, 15], [9, 8]]):
        for tag in tags:
            fields = {
                "length": 3 * STRIDE,
                "stride": STRIDE,
                "offset": index * STRIDE,
                "priority": tag >> 1,
                "protected": tag & 1,
            }
            bench.take(frames_of([row_of(2, 5, bytes(STRIDE), **fields)], 1, "plain", 0)[0])
    assert bench.known[2, 5].tags.tolist() == [4, 4, 8]


@pytest.mark.parametrize("use_compiled", [True, False], ids=["compiled", "Python"])
@pytest.mark.parametrize(
    ("change", "size"),
    [
        ({"trimmed": 1}, 0),
        ({"trimmed": 1}, STRIDE),
        ({"stride": 0}, 0),
        ({"stride": 0}, STRIDE),
        ({"offset": 8}, STRIDE),
        ({"offset": 2 * STRIDE}, 0),
        ({"offset": 2 * STRIDE}, STRIDE),
        ({"offset": 2**32 - STRIDE}, STRIDE),
        ({"length": STRIDE - 1}, STRIDE),
        ({"length": 0}, STRIDE),
        ({}, 0),
        ({}, STRIDE - 1),
        ({}, STRIDE + 1),
    ],
)
def test_trimmed_and_malformed_data_is_counted_and_left_to_others(use_compiled, change, size):
    bench = Bench([(2, 5, 2 * STRIDE, 0, 0, True)], use_compiled)
    fields = {"length": 2 * STRIDE, "stride": STRIDE, "sequence": 3}
    bench.take(frames_of([row_of(2, 5, bytes(STRIDE), **fields)], 1, "plain", 0)[0])
    bench.take(frames_of([row_of(2, 5, b"x" * size, **fields | {"offset": STRIDE} | change)], 1, "plain", 0)[0])
    assert bench.rest == [(0, 0, 0)] and not bench.refused and bench.totals()[2][0] == 2
    assert bench.known[2, 5].have.tolist() == [True, False]
    assert bench.known[2, 5].buffer.tolist() == [0] * STRIDE + [0xEE] * STRIDE
    assert all((whole[:GUARD] == 0xA5).all() and (whole[-GUARD:] == 0xA5).all() for whole in bench.wholes)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES), st.booleans())
def test_the_check_of_one_header_is_that_of_many(raw, sealed):
    header = np.frombuffer(raw, np.uint8).copy()
    if sealed:
        header = seal(header[None])[0]
    whole = bool(intake.whole(address_of(header)))
    assert whole == bool(check_ok(header[None])[0]) and (whole or not sealed)


near = st.sampled_from([-1, 0, 0, 0, 1, STRIDE])


@settings(max_examples=150)
@given(messages_of, st.data())
def test_no_header_makes_anything_be_written_outside_of_its_place(messages, data):
    """Any fields, with a right check and the right cookie, most of them near those of a message that is open."""
    packets = []
    for _ in range(data.draw(st.integers(1, 12))):
        source, message, length, bound, protected, _ = data.draw(st.sampled_from(messages))
        any32 = st.integers(0, 2**32 - 1)
        fields = {
            "length": data.draw(st.one_of(st.just(length), near.map(lambda d, n=length: max(n + d, 0)), any32)),
            "offset": data.draw(
                st.one_of(
                    st.integers(0, 10).map(lambda i: i * STRIDE),
                    near.map(lambda d, n=length: max(n + d, 0)),
                    st.sampled_from([2**32 - STRIDE, 2**32 - 2**32 % STRIDE, 2**31]),
                    any32,
                )
            ),
            "stride": data.draw(st.one_of(st.just(STRIDE), near.map(lambda d: STRIDE + d), st.integers(0, 65535))),
            "bound": data.draw(st.sampled_from([bound, 0, 65535])),
            "protected_packets": data.draw(st.sampled_from([protected, 0, 65535])),
            "sequence": data.draw(any32),
            "retransmission": data.draw(st.integers(0, 1)),
            "trimmed": data.draw(st.sampled_from([0, 0, 0, 1])),
            "operation": message >> 32,
            "phase": message >> 24 & 255,
            "dtype": message >> 16 & 255,
            "part": message & 0xFFFF,
        }
        header = encode_headers(1, type=PacketType.DATA, source=source, destination=ME, cookie=np.uint64(COOKIE), **fields)[
            0
        ].tobytes()
        wanted = min(fields["stride"], max(fields["length"] - fields["offset"], 0))
        size = data.draw(st.sampled_from([min(wanted, 3000), STRIDE, 0, max(length, 1), 2000]))
        packets.append((header + bytes([data.draw(st.integers(0, 255))]) * size, 0, 0))
    for use_compiled in (True, False):
        bench, model = Bench(messages, use_compiled), Model(messages)
        frames, rows = frames_of(packets, 1, "plain", 0)
        bench.take(frames)
        for frame, row, raw, ecn, arrival in rows:
            model.take(frame, row, raw, ecn, arrival, NOW)
        model.check(bench)


# -- more than fits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_compiled", [True, False], ids=["compiled", "Python"])
@pytest.mark.parametrize("closed", [False, True])
def test_more_control_packets_than_the_list_holds(use_compiled, closed):
    """The pass stops, what is on the list is dealt with, and it goes on: nothing is lost, or counted twice."""
    number = 2 * REST_ROOM + 3
    bench = Bench([], use_compiled)
    pings = [row_of(2 + i % 2, type=PacketType.PING, sequence=i + 1) for i in range(number)]
    frames, _ = frames_of(pings, 3, "plain", 0)
    bench.take(frames, NOW, closed)
    assert [(f, r) for f, r, _ in bench.rest] == [(f, r) for f, frame in enumerate(frames) for r in range(len(frame.lengths))]
    assert bench.passes == 3
    counted = {source: totals[0] for source, totals in bench.totals().items()}
    assert counted == ({2: 0, 3: 0} if closed else {2: REST_ROOM + 2, 3: REST_ROOM + 1})


def crowd(how):
    """So many messages that the table cannot hold them: more than it has places, or than one of its places has."""
    if how == "everywhere":
        return [(2, part << 20 | part, 3 * STRIDE, 0, 0, False) for part in range(1, ENTRIES + 400)]
    first = intake.place_of(2, 1)
    near = [(2, m, 3 * STRIDE, 0, 0, False) for m in range(1, 200_000) if intake.place_of(2, m) == first]
    assert len(near) > 4 * REACH
    return near[: 4 * REACH]


@pytest.mark.parametrize("use_compiled", [True, False], ids=["compiled", "Python"])
@pytest.mark.parametrize("how", ["everywhere", "one place"])
def test_more_messages_than_the_table_holds(use_compiled, how):
    """They take turns within one batch: each gives its place up, gets one again, and loses neither a count nor a byte."""
    messages = crowd(how)
    bench = Bench(messages, use_compiled)
    packets = [
        row_of(2, message, bytes([(index * 7 + message) % 251]) * STRIDE, length=3 * STRIDE, stride=STRIDE, offset=index * STRIDE)
        for index in (0, 2, 0, 1)
        for _, message, *_ in messages
    ]
    frames, _ = frames_of(packets, 2, "plain", 0)
    bench.take(frames)
    assert bench.passes > 1, "places were taken from others that had something to settle"
    for _, message, *_ in messages:
        known = bench.known[2, message]
        assert known.buffer.reshape(3, STRIDE).tolist() == [[(i * 7 + message) % 251] * STRIDE for i in range(3)]
        assert known.have.all() and +bench.came[2, message] == {"packets": 4, "new": 3}
    assert bench.totals()[2][0] == len(packets)
    assert all((whole[:GUARD] == 0xA5).all() and (whole[-GUARD:] == 0xA5).all() for whole in bench.wholes)


@pytest.mark.parametrize("use_compiled", [True, False], ids=["compiled", "Python"])
def test_nothing_is_written_after_close(use_compiled):
    bench = Bench([(2, m, 3 * STRIDE, 0, 0, True) for m in (5, 6)], use_compiled)

    def send(index):
        rows = [
            row_of(2, m, bytes([index + 1]) * STRIDE, length=3 * STRIDE, stride=STRIDE, offset=index * STRIDE) for m in (5, 6)
        ]
        bench.take(frames_of(rows, 1, "plain", 0)[0])

    send(0)
    gone = bench.known.pop((2, 5))
    bench.arrivals.close(gone)
    bench.arrivals.close(gone)
    send(1)
    assert gone.buffer.tolist() == [1] * STRIDE + [0xEE] * 2 * STRIDE and gone.have.tolist() == [True, False, False]
    assert bench.known[2, 6].have.tolist() == [True, True, False], "the other one goes on"
    bench.arrivals.clear()
    other = bench.known.pop((2, 6))
    send(2)
    assert other.have.tolist() == [True, True, False] and bench.totals()[2][0] == 6
    assert all(message is None for message in bench.arrivals._open)


# -- how long it waited ------------------------------------------------------------------------------------------------------

WAITS = [(0, 0), (1, 0), (999, 0), (1_000, 1), (57_900, 57), (-1, 0), (-5_000_000, 0), (999_999_999, 999_999), (10**9, 0)]


@pytest.mark.parametrize("use_compiled", [True, False], ids=["compiled", "Python"])
@pytest.mark.parametrize(("ago", "waited"), [*WAITS, (NOW, 0)])
@pytest.mark.parametrize("layout", ["plain", "one", "apart", "unknown"])
def test_what_a_packet_waited_on_this_host(use_compiled, ago, waited, layout):
    """In whole microseconds; nothing where nobody knows, where clocks disagree, or beyond a second: they were set meanwhile."""
    bench = Bench([], use_compiled)
    rows = [(raw, ecn, NOW - ago) for raw, ecn, _ in [row_of(type=PacketType.PING, sequence=n) for n in (1, 2)]]
    bench.take(frames_of(rows, 1, layout, 0)[0])
    expected = 0 if layout == "unknown" else waited
    assert [w for _, _, w in bench.rest] == [expected] * 2
    assert bench.arrivals.peer(2)[P_WAITED] == expected


def test_the_highest_numbers_wait_is_what_is_reported():
    """In the tens of microseconds that feedback has room for, and without the wait in it when order is judged."""
    rig = Rig()
    endpoint = rig.endpoints[1]
    headers = encode_headers(2, type=PacketType.PING, source=0, destination=1, cookie=np.uint64(COOKIE), sequence=[2, 1])
    data = np.array(headers)
    for ago, wait in ((1_239_000, 123), (655_360_000, 65535), (999_000_000, 65535)):
        data[0] = encode_headers(1, type=PacketType.PING, source=0, destination=1, cookie=np.uint64(COOKIE), sequence=ago)[0]
        came = np.array([NOW - ago, NOW - 5_000])
        endpoint.receive([Frames(data, np.full(2, HEADER_BYTES), np.zeros(2, np.uint8), came)], NOW)
        (burst,) = endpoint.transmit(NOW)
        body = FEEDBACK_BODY.decode_one(burst.headers[0, HEADER_BYTES:])
        assert (body["wait"], body["highest_sequence"], body["delay"]) == (wait, ago, 0)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2**32), min_size=2, max_size=12), st.randoms(use_true_random=False), st.integers(1, 4))
def test_a_batch_is_taken_like_its_packets_one_by_one(seeds, random, frames):
    """Of the messages, that is: the same bytes and packets in, the same losses, the same numbers reported."""
    messages = [(2, m, 6 * STRIDE, 0, 0, True) for m in IDS]
    packets = []
    for seed in seeds:
        message, index = IDS[seed % 4], seed // 4 % 6
        payload = bytes([seed // 24 % 256]) * STRIDE
        fields = {"length": 6 * STRIDE, "stride": STRIDE, "offset": index * STRIDE, "sequence": seed % 50, "priority": seed % 7}
        packets.append(row_of(2, message, payload, **fields))
    random.shuffle(packets)
    together, apart = Bench(messages, True), Bench(messages, True)
    together.take(frames_of(packets, frames, "plain", 0)[0])
    for packet in packets:
        apart.take(frames_of([packet], 1, "plain", 0)[0])
    assert [whole.tobytes() for whole in together.wholes] == [whole.tobytes() for whole in apart.wholes]
    assert together.came == apart.came and together.totals() == apart.totals()
    assert together.arrivals.peer(2)[P_HIGHEST:].tolist() == apart.arrivals.peer(2)[P_HIGHEST:].tolist()


@pytest.mark.parametrize(
    "arrivals", [np.zeros(3, np.int64), np.zeros(2, np.int32), np.zeros(0, np.int64)], ids=["3", "int32", "none"]
)
def test_arrival_times_that_do_not_fit_the_rows_are_refused(arrivals):
    frame = Frames(np.zeros((2, 100), np.uint8), np.full(2, 100), np.zeros(2, np.uint8), arrivals)
    with pytest.raises(ValueError, match="2 rows"):
        _ = frame.place
