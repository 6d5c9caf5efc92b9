"""Who is dead and who is only slow; and how an end is told."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport.events import MessageReceived, PeerAborted, PeerLeft, PeerSilent
from dlcp.transport.virtual import Weather
from dlcp.wire.header import AbortKind, PacketType
from tests.transport.rig import MS, SECOND, STRIDE, Rig, kind_of, policy_of


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.05, 0.3]))
def test_a_live_peer_that_never_sends_is_not_silent(seed, drop):
    """It computes, or waits for others: it answers pings, so it lives.  Even at 30 % loss, where one in two answers is lost."""
    rig = Rig(seed=seed, weather=Weather(drop=drop), policy=policy_of(timeouts={"peer_s": 10.0}))
    rig.endpoints[1].expect(0, rig.message(), 1000, now=0)
    rig.settle(60 * SECOND)
    rig.no_one_is_silent()
    pings = rig.endpoints[1].counters()["pings"]
    assert 60 / 5 <= pings <= 60 * 5, "asked often enough, and not too often"
    assert rig.endpoints[0].counters().get("pings", 0) == 0, "who waits for nothing asks nothing"


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.integers(0, 3 * SECOND), st.sampled_from(["expects", "sends"]))
def test_a_dead_peer_is_silent(seed, died, waits):
    """Both who sends and who expects learns it, within the timeout and what it takes to notice."""
    rig = Rig(seed=seed, cut=lambda source, destination, now: now >= died and 0 in (source, destination))
    if waits == "expects":
        rig.endpoints[1].expect(0, rig.message(), 1000, now=0)
    else:
        rig.settle(died)
        rig.net.now = max(rig.now, died)
        rig.send(1, 0, 100 * STRIDE, expect=False)
    assert rig.net.run(lambda: rig.events(PeerSilent), limit_ns=20 * SECOND)
    event = rig.events(PeerSilent)[0]
    assert event.peer == 0
    assert 2.0 <= event.seconds <= 2.6
    assert rig.now <= died + 2.6 * SECOND
    assert ("expecting" if waits == "expects" else "sending it") in event.waiting_for


def test_silence_counts_from_when_something_is_wanted():
    """An idle peer may be quiet for as long as it likes."""
    rig = Rig(cut=lambda source, destination, now: True)
    rig.settle(100 * SECOND)
    rig.net.now = 100 * SECOND
    rig.endpoints[1].expect(0, rig.message(), 1000, now=rig.now)
    rig.net.run(lambda: rig.events(PeerSilent))
    assert 2.0 <= rig.events(PeerSilent)[0].seconds <= 2.6
    assert rig.now >= 102 * SECOND


def test_silence_does_not_count_what_was_waited_for_before():
    rig = Rig()
    rig.send(0, 1, 1000)
    rig.run()
    rig.settle(1900 * MS)
    rig.net.cut = lambda source, destination, now: True
    rig.send(0, 1, 1000)
    began = rig.now
    rig.net.run(lambda: rig.events(PeerSilent, 0))
    assert rig.now - began >= 2 * SECOND
    assert rig.events(PeerSilent, 0)[0].seconds <= (rig.now - began) / SECOND


def test_sending_more_and_more_to_a_dead_peer_does_not_put_its_end_off():
    rig = Rig(cut=lambda source, destination, now: True)
    while not rig.events(PeerSilent) and rig.now < 10 * SECOND:
        rig.send(0, 1, 1000, expect=False)
        rig.net.run(lambda: rig.events(PeerSilent), limit_ns=300 * MS)
        rig.net.now += 100 * MS
    assert rig.events(PeerSilent) and rig.now <= 3 * SECOND


def test_a_peer_that_is_heard_again_may_fall_silent_again():
    down = [True]
    rig = Rig(cut=lambda source, destination, now: down[0])
    rig.endpoints[1].expect(0, rig.message(), 1000, now=0)
    rig.settle(5 * SECOND)
    assert len(rig.events(PeerSilent)) == 1
    down[0] = False
    rig.send(0, 1, 500)
    rig.settle(SECOND)
    down[0] = True
    rig.settle(5 * SECOND)
    assert len(rig.events(PeerSilent)) == 2


def test_a_flood_of_pings_draws_one_answer_a_batch():
    """And answers are smaller than what a flood could make of them."""
    rig = Rig()
    sender = rig.endpoints[0]
    for _ in range(500):
        sender._sender.ping(sender.flow(1), 0)
    rig.settle(10 * MS)
    assert rig.endpoints[1].counters()["feedback_sent"] <= 2
    assert rig.endpoints[1].counters().keys() == {"feedback_sent"}


# -- ends --------------------------------------------------------------------------------------------------------------------


def test_abort_reaches_everyone_with_its_reason_cut_at_a_character():
    rig = Rig(world=4)
    reason = "grüße " * 200
    rig.endpoints[2].abort(AbortKind.PEER_LOST, 7, 12.5, reason, 0)
    rig.settle(MS)
    events = {r: e for _, r, e in rig.net.log if isinstance(e, PeerAborted)}
    assert events.keys() == {0, 1, 3}
    for event in events.values():
        assert (event.peer, event.kind, event.culprit, event.silence_s) == (2, AbortKind.PEER_LOST, 7, 12.5)
        assert reason.startswith(event.reason) and 395 <= len(event.reason.encode()) <= 400


@pytest.mark.parametrize("weather", [Weather(), Weather(duplicate=1.0)])
def test_an_abort_that_is_said_again_is_one_event(weather):
    rig = Rig(weather=weather)
    for _ in range(3):
        rig.endpoints[0].abort(AbortKind.FAILURE, 0, 0.0, "boom", 0)
        rig.endpoints[0].goodbye(0)
        rig.settle(MS)
    assert len(rig.events(PeerAborted)) == 1 == len(rig.events(PeerLeft))


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.booleans())
def test_an_abort_that_was_lost_is_said_to_whoever_asks(seed, sending):
    """Every copy that was sent unasked is lost; a peer that still wants something hears it all the same, not after a timeout."""
    rig = Rig(seed=seed, world=3, weather=Weather(drop=0.1), cut=lambda source, destination, now: source == 0 and now < MS)
    if sending:
        rig.send(1, 0, 200 * STRIDE)
    else:
        rig.endpoints[1].expect(0, rig.message(), 100, now=0)
    rig.endpoints[0].abort(AbortKind.FAILURE, 0, 0.0, "boom", 0)
    rig.endpoints[0].drop_all()
    rig.net.run(lambda: rig.events(PeerAborted, 1), limit_ns=3 * SECOND)
    assert [e.reason for e in rig.events(PeerAborted, 1)] == ["boom"]
    assert rig.now < (SECOND if sending else 2 * SECOND)
    aborts = rig.net.fate["sent"]
    rig.settle(SECOND)
    # Rank 1 goes on asking here, which a real one does not; the answers stay few.
    assert rig.net.fate["sent"] - aborts < 400
    assert not rig.events(PeerAborted, 0) and not rig.events(PeerSilent, 2)


def test_two_that_have_given_up_do_not_answer_each_other_for_ever():
    rig = Rig()
    rig.send(0, 1, 10_000)
    rig.send(1, 0, 10_000)
    rig.settle(20_000)
    for rank in (0, 1):
        rig.endpoints[rank].abort(AbortKind.FAILURE, rank, 0.0, f"rank {rank}", rig.now)
        rig.endpoints[rank].drop_all()
    rig.settle(10 * SECOND)
    assert {r for _, r, e in rig.net.log if isinstance(e, PeerAborted)} == {0, 1}
    assert rig.net.fate["sent"] < 60
    assert all(e.next_timer() is None for e in rig.endpoints.values())


def test_after_dropping_everything_nothing_is_placed_or_acknowledged():
    """The layer above has failed: its buffers must not change any more, and peers must not believe that all is well."""
    rig = Rig()
    keys = [rig.send(0, 1, 100 * STRIDE) for _ in range(2)]
    rig.send(0, 1, 1000, expect=False)
    rig.settle(60_000)
    buffers = [m.buffer for m in rig.endpoints[1].flow(0).incoming.values()]
    before = [b.tobytes() for b in buffers]
    rig.endpoints[1].drop_all()
    rig.settle(5 * SECOND)
    assert [b.tobytes() for b in buffers] == before
    assert not set(keys) & rig.acknowledged().keys()
    assert [e.peer for e in rig.events(PeerSilent, 0)] == [1]
    assert rig.endpoints[1].idle and rig.endpoints[1].expected_from(0) is None


def test_an_aborting_endpoint_says_nothing_else():
    kinds = set()

    def meddle(flight):
        if flight.source == 1 and flight.at > 60_000:
            kinds.add(kind_of(flight.datagram))
        return [flight.datagram]

    rig = Rig(meddle=meddle)
    rig.send(0, 1, 100 * STRIDE)
    rig.send(1, 0, 100 * STRIDE)
    rig.settle(60_000)
    rig.net.now = 61_000
    rig.endpoints[1].abort(AbortKind.FAILURE, 1, 0.0, "boom", rig.now)
    rig.endpoints[1].drop_all()
    rig.endpoints[1].goodbye(rig.now)
    rig.settle(3 * SECOND)
    assert kinds <= {PacketType.ABORT, PacketType.GOODBYE, PacketType.FEEDBACK}
    assert not rig.events(MessageReceived)


def test_goodbye_is_told_once_to_everyone():
    rig = Rig(world=3, policy=policy_of())
    for _ in range(3):
        rig.endpoints[0].goodbye(rig.now)
    rig.settle(MS)
    assert sorted(r for _, r, e in rig.net.log if isinstance(e, PeerLeft)) == [1, 2]
    assert all(rig.endpoints[r].flow(0).left for r in (1, 2))
