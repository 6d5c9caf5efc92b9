"""Fault plans: what their text means, and what they do to bursts."""

import math
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.errors import ConfigError
from dlcp.transport.packets import Burst, control_burst
from dlcp.udp import FaultPlan, FaultRule, FaultyPort
from dlcp.udp.inject import FaultInjector
from dlcp.wire.codec import check_ok, encode_headers
from dlcp.wire.header import HEADER_BYTES, PacketType

PROBABILITY = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0, 1))
MILLISECONDS = st.floats(0, 1000)


@st.composite
def rules(draw) -> FaultRule:
    effect = draw(st.sampled_from(["drop", "duplicate", "corrupt", "reorder", "delay"]))
    delay = draw(MILLISECONDS) if effect in ("delay", "reorder") else 0.0
    jitter = draw(st.floats(0, delay)) if effect == "delay" else 0.0
    subset = st.one_of(st.none(), st.frozensets(st.integers(0, 7), min_size=1))
    kinds = st.one_of(st.none(), st.frozensets(st.sampled_from(list(map(int, PacketType))), min_size=1))
    flag = st.sampled_from([None, True, False])
    return FaultRule(effect, draw(PROBABILITY), delay, jitter, draw(subset), draw(kinds), draw(flag))


PLANS = st.builds(FaultPlan, st.lists(rules(), max_size=4).map(tuple), st.integers(0, 2**63 - 1))


@given(PLANS)
def test_the_text_form_reads_back(plan):
    assert FaultPlan.parse(str(plan)) == plan


def test_examples_of_the_text_form():
    assert FaultPlan.parse("drop=0.01") == FaultPlan((FaultRule("drop", 0.01),))
    assert FaultPlan.parse(" drop = 0.05 , class=0-3 ; delay_ms=2,probability=0.1;") == FaultPlan(
        (FaultRule("drop", 0.05, classes=frozenset(range(4))), FaultRule("delay", 0.1, 2.0))
    )
    assert FaultPlan.parse("seed=7; reorder=.5,gap_ms=3,class=0-1+7,type=data+probe,protected=no") == FaultPlan(
        (FaultRule("reorder", 0.5, 3.0, 0.0, frozenset({0, 1, 7}), frozenset({0, 1}), False),), 7
    )
    assert FaultPlan.parse("") == FaultPlan() and not FaultPlan.parse(" ; ")


@pytest.mark.parametrize(
    "text, key, words",
    [
        ("drp=0.1", "drp", "did you mean 'drop'"),
        ("class=0-3", "class", "without an effect"),
        ("drop=0.1,delay_ms=3", "drop", "in one rule"),
        ("drop=1.5", "drop", "out of range"),
        ("drop=-0.1", "drop", "out of range"),
        ("drop=nan", "drop", "out of range"),
        ("drop=inf", "drop", "out of range"),
        ("drop=much", "drop", "not a number"),
        ("drop", "drop", "no value"),
        ("drop=", "drop", "no value"),
        ("drop=0.1,drop=0.2", "drop", "given twice"),
        ("drop=0.1,probability=0.1", "probability", "does not go with drop"),
        ("drop=0.1,gap_ms=1", "gap_ms", "does not go with drop"),
        ("delay_ms=1,jitter_ms=2", "jitter_ms", "out of range"),
        ("delay_ms=1e9", "delay_ms", "out of range"),
        ("drop=0.1,class=8", "class", "no class"),
        ("drop=0.1,class=3-1", "class", "no class"),
        ("drop=0.1,class=²", "class", "no class"),
        ("drop=0.1,class=1-", "class", "no class"),
        ("drop=0.1,type=dat", "type", "no packet type"),
        ("drop=0.1,protected=1", "protected", "neither"),
        ("seed=-1", "seed", "not a seed"),
        ("seed=1;seed=2", "seed", "twice"),
        ("drop=0.1,,class=1", "<empty>", "unknown key"),
    ],
)
def test_wrong_text_is_refused_with_the_key_and_what_is_accepted(text, key, words):
    with pytest.raises(ConfigError, match=words) as caught:
        FaultPlan.parse(text, "job.toml")
    assert caught.value.key == key and caught.value.source == "job.toml" and caught.value.accepted


@given(st.text(alphabet="dropclaseyt=0123456789.,;-+_ ", max_size=40))
def test_any_text_gives_a_plan_or_a_config_error(text):
    try:
        plan = FaultPlan.parse(text)
    except ConfigError:
        return
    assert FaultPlan.parse(str(plan)) == plan


@pytest.mark.parametrize(
    "settings",
    [
        {"effect": "lose"},
        {"effect": "drop", "probability": 2.0},
        {"effect": "drop", "probability": True},
        {"effect": "delay", "delay_ms": 1.0, "jitter_ms": 2.0},
        {"effect": "drop", "classes": frozenset({9})},
        {"effect": "drop", "types": frozenset({15})},
    ],
)
def test_rules_built_by_hand_are_checked_too(settings):
    with pytest.raises(ConfigError):
        FaultRule(**settings)


def data_burst(rng: np.random.Generator, count: int, size: int = 64, **columns) -> Burst:
    """Real data packets; ``offset`` tells them apart."""
    columns.setdefault("type", PacketType.DATA)
    headers = encode_headers(count, offset=np.arange(count) * size, stride=size, **columns)
    payload = rng.integers(0, 256, count * size, np.uint8)
    sizes = np.full(count, size, np.int64)
    if count > 1:
        sizes[-1] = size // 2
    return Burst(0, 8, headers, payload, np.arange(count, dtype=np.int64) * size, sizes)


@given(PLANS, st.integers(1, 60), st.integers(0, 2**32 - 1), st.lists(st.integers(0, 2_000_000_000), max_size=5))
def test_packets_are_lost_only_where_it_is_counted(plan, count, seed, moments):
    """In = out + dropped - duplicated, for every plan, once all delays are over; and the burst given is never changed."""
    rng = np.random.default_rng(seed)
    injector = FaultInjector(plan)
    before, out = [], []
    now = 0
    for step in [0, *moments]:
        now += step
        burst = data_burst(rng, count, priority=rng.integers(0, 8, count), protected=rng.integers(0, 2, count))
        copy = burst.datagrams()
        before += copy
        out += injector.apply(burst, now)
        assert burst.datagrams() == copy
        out += injector.due(now)
        release = injector.next_release()
        assert release is None or release > now
    out += injector.due(now + 2_000_000_000)
    assert injector.next_release() is None and injector._held_bytes == 0
    after = [datagram for burst in out for datagram in burst.datagrams()]
    counts = {name: int(values.sum()) for name, values in injector.counts.items()}
    assert len(after) == len(before) - counts["drop"] + counts["duplicate"] - counts["overflow"]
    if not counts["corrupt"]:
        assert set(after) <= set(before)
    if not counts["drop"]:
        assert counts["corrupt"] or set(after) == set(before)
    for burst in out:
        # What segmentation offload asks for: equal sizes but a shorter last one.
        assert (burst.sizes[:-1] == burst.sizes[0]).all() and burst.sizes[-1] <= burst.sizes[0]


@pytest.mark.parametrize("probability", [0.01, 0.05, 0.5])
@pytest.mark.parametrize("effect", ["drop", "duplicate", "corrupt", "delay"])
def test_the_share_is_what_the_plan_says(effect, probability):
    """Within six standard deviations of the binomial; the seed is fixed, so this never flickers."""
    rule = FaultRule(effect, probability, 1.0 if effect == "delay" else 0.0)
    injector = FaultInjector(FaultPlan((rule,), seed=3))
    rng = np.random.default_rng(0)
    packets = 0
    for count in (1, 7, 46, 1000) * 20:
        injector.apply(data_burst(rng, count), 0)
        packets += count
    hits = int(injector.counts[effect].sum())
    assert abs(hits - packets * probability) < 6 * math.sqrt(packets * probability * (1 - probability))


@given(rules(), st.integers(0, 2**32 - 1))
def test_only_the_packets_a_rule_names_are_hit(rule, seed):
    rule = FaultRule(rule.effect, 1.0, rule.delay_ms, rule.jitter_ms, rule.classes, rule.types, rule.protected)
    rng = np.random.default_rng(seed)
    count = 200
    priority, protected = rng.integers(0, 8, count), rng.integers(0, 2, count)
    kinds = rng.integers(0, len(PacketType), count)
    expected = np.ones(count, bool)
    if rule.classes is not None:
        expected &= np.isin(priority, list(rule.classes))
    if rule.types is not None:
        expected &= np.isin(kinds, list(rule.types))
    if rule.protected is not None:
        expected &= protected == rule.protected
    injector = FaultInjector(FaultPlan((rule,)))
    out = injector.apply(data_burst(rng, count, priority=priority, protected=protected, type=kinds), 0)
    assert injector.counts[rule.effect].tolist() == np.bincount(priority[expected], minlength=8).tolist()
    left = sum(len(burst) for burst in out)
    if rule.effect in ("drop", "delay", "reorder"):
        assert left == count - expected.sum()
    else:
        assert left == count + (expected.sum() if rule.effect == "duplicate" else 0)


def test_a_corrupted_packet_never_passes_the_check():
    injector = FaultInjector(FaultPlan((FaultRule("corrupt", 0.5),), seed=1))
    rng = np.random.default_rng(0)
    for _ in range(50):
        burst = data_burst(rng, 100, cookie=rng.integers(0, 2**63), priority=3)
        (out,) = injector.apply(burst, 0)
        changed = (out.headers != burst.headers).any(axis=1)
        assert np.array_equal(check_ok(out.headers), ~changed)
        flipped = np.unpackbits(out.headers ^ burst.headers, axis=1).sum(axis=1)
        assert set(flipped.tolist()) == {0, 1}
        assert np.array_equal(out.sizes, burst.sizes) and out.payload is burst.payload
    assert injector.counts["corrupt"][3] == injector.counts["corrupt"].sum() > 2000


def test_delays_are_kept_in_order_and_do_not_depend_on_the_senders_memory():
    injector = FaultInjector(FaultPlan((FaultRule("delay", 1.0, 5.0),)))
    rng = np.random.default_rng(0)
    bursts = [data_burst(rng, 10) for _ in range(3)]
    expected = [datagram for burst in bursts for datagram in burst.datagrams()]
    for moment, burst in enumerate(bursts):
        assert injector.apply(burst, moment * 1_000_000) == []
        burst.payload[:] = 0
        burst.headers[:] = 0
    assert injector.next_release() == 5_000_000
    assert injector.due(4_999_999) == []
    out = injector.due(5_000_000)
    assert injector.next_release() == 6_000_000
    out += injector.due(7_000_000)
    assert [datagram for burst in out for datagram in burst.datagrams()] == expected


def test_jitter_spreads_delays_and_reordering_lets_packets_overtake():
    rng = np.random.default_rng(0)
    jittery = FaultInjector(FaultPlan((FaultRule("delay", 1.0, 5.0, 2.0),)))
    jittery.apply(data_burst(rng, 500), 0)
    times = []
    while (release := jittery.next_release()) is not None:
        times.append(release)
        assert jittery.due(release)
    assert len(times) == 500 and 3_000_000 <= min(times) < 3_200_000 and 6_800_000 < max(times) <= 7_000_000
    reorder = FaultInjector(FaultPlan((FaultRule("reorder", 0.3, 1.0),), seed=2))
    burst = data_burst(rng, 100)
    order = [*reorder.apply(burst, 0), *reorder.due(1_000_000)]
    datagrams = [datagram for piece in order for datagram in piece.datagrams()]
    assert sorted(datagrams) == sorted(burst.datagrams()) and datagrams != burst.datagrams()


def test_held_packets_are_bounded(monkeypatch):
    monkeypatch.setattr("dlcp.udp.inject._HELD_BYTES", 10_000)
    injector = FaultInjector(FaultPlan((FaultRule("delay", 1.0, 5.0),)))
    rng = np.random.default_rng(0)
    for _ in range(10):
        assert injector.apply(data_burst(rng, 20, priority=2), 0) == []
    held = sum(len(burst) for burst in injector.due(10_000_000))
    assert held > 0 and injector.counts["overflow"][2] == 200 - held
    assert injector.apply(data_burst(rng, 20), 0) == [] and injector.next_release() is not None


def test_same_seed_same_faults_and_ranks_differ():
    plan = FaultPlan.parse("drop=0.5;seed=11")
    rng = np.random.default_rng(0)
    burst = data_burst(rng, 400)

    def outcome(stream: int) -> bytes:
        return FaultInjector(plan, stream=stream).apply(burst, 0)[0].headers.tobytes()

    assert outcome(0) == outcome(0) != outcome(1)


def test_a_burst_that_nothing_happens_to_is_passed_on_as_it_is():
    injector = FaultInjector(FaultPlan.parse("drop=0; corrupt=1,class=6; delay_ms=1,type=ping"))
    burst = data_burst(np.random.default_rng(0), 5)
    (out,) = injector.apply(burst, 0)
    assert out is burst
    foreign = Burst(0, 0, np.zeros((2, 8), np.uint8), None, np.zeros(2, np.int64), np.zeros(2, np.int64))
    assert FaultInjector(FaultPlan.parse("drop=1")).apply(foreign, 0) == [foreign]


@pytest.fixture
def faulty(open_port):
    def make(text: str, **settings) -> FaultyPort:
        return FaultyPort(open_port(), FaultPlan.parse(text), **settings)

    return make


def test_the_port_keeps_its_interface(faulty, open_port, tools):
    port = faulty("drop=0.5,class=0; seed=1", stream=3)
    receiver = open_port()
    port.connect_peer(0, receiver.address)
    assert port.address[1] > 0 and port.mtu > 0 and port.receive_buffer > 0 and port.send_buffer > 0
    assert port.fileno() > 0 and port.path_mtu(0) and port.capabilities == receiver.capabilities
    rng = np.random.default_rng(0)
    bursts = [
        data_burst(rng, 100, priority=0),
        data_burst(rng, 100, priority=1),
        control_burst(0, 0, encode_headers(priority=7)[0]),
    ]
    assert port.send(bursts) == 3
    metrics = port.metrics()
    lost = sum(metrics["faults"]["drop"])
    assert metrics["faults"]["drop"] == [lost, 0, 0, 0, 0, 0, 0, 0] and 20 < lost < 80
    assert len(tools.receive_all(receiver, 201 - lost)) == 201 - lost == metrics["packets_sent"]
    receiver.connect_peer(0, port.address)
    receiver.send([bursts[2]])
    assert len(tools.receive_all(port, 1)) == 1
    port.close()
    with pytest.raises(OSError):
        port.send(bursts)


class StingyPort:
    """Takes a few bursts at a time and then says that its buffer is full."""

    def __init__(self) -> None:
        self.sent: list[Burst] = []
        self.allowed = 0

    def send(self, bursts) -> int:
        count = min(len(bursts), self.allowed)
        self.allowed -= count
        self.sent += bursts[:count]
        return count


@given(st.lists(st.integers(0, 6), max_size=30), st.integers(0, 1000))
def test_a_full_buffer_behind_the_faults_loses_nothing(allowances, seed):
    inner = StingyPort()
    moment = [0]
    port = FaultyPort(inner, FaultPlan.parse(f"delay_ms=2,probability=0.3;duplicate=0.2;seed={seed}"), clock=lambda: moment[0])
    rng = np.random.default_rng(seed)
    bursts = [data_burst(rng, 5, source=number) for number in range(12)]
    left = list(bursts)
    for allowance in [*allowances, *[10**6] * 3]:
        inner.allowed = allowance
        moment[0] += 1_000_000
        blocked = port.blocked()
        sent = port.send(left)
        assert sent in (0, len(left)) and (blocked or sent == len(left) or port.blocked())
        del left[:sent]
        if (release := port.next_release()) is not None and release <= moment[0]:
            port.release(moment[0])
    moment[0] += 10_000_000
    port.release(moment[0])
    assert not port.blocked() and port.next_release() is None and not left
    counts = port.injector.counts
    assert sum(len(burst) for burst in inner.sent) == 60 + counts["duplicate"].sum()
    assert {row for burst in inner.sent for row in burst.datagrams()} == {row for burst in bursts for row in burst.datagrams()}


def test_the_thread_releases_what_is_held(faulty, open_port, tools):
    """Through real sockets: the I/O thread wakes for the release time although the machine has no timer."""
    from dlcp.udp import IOThread

    port = faulty("delay_ms=3")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as witness:
        witness.bind(("127.0.0.1", 0))
        witness.settimeout(20)
        port.connect_peer(0, witness.getsockname())
        outbox = []

        class Machine:
            def receive(self, frames, now) -> None: ...

            def transmit(self, now, room):
                out, outbox[:] = outbox[:], []
                return out

            def receive_interval(self):
                return 0

            def next_timer(self):
                return None

            def handle_timer(self, now) -> None: ...

            def fail(self, error) -> None: ...

        thread = IOThread(port, Machine())
        thread.start()
        burst = data_burst(np.random.default_rng(0), 30)
        thread.call(lambda now: outbox.append(burst))
        got = [witness.recv(2000) for _ in range(30)]
        assert thread.stop(20)
        assert sorted(got) == sorted(burst.datagrams())
        assert sum(port.metrics()["faults"]["delay"]) == 30


def test_headers_have_the_size_the_filters_expect():
    assert encode_headers().shape == (1, HEADER_BYTES)
