"""What the receive path makes of endpoints: compiled or not the same, and nothing is written to what is over."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport import arrivals as arrivals_module
from dlcp.transport.events import MessageReceived
from dlcp.transport.intake_layout import (
    REST_ROOM,
)
from dlcp.transport.virtual import as_frames
from dlcp.wire.header import HEADER_BYTES, HELLO_BODY, PacketType
from tests.transport.intake_bench import GUARD, guarded, row_of
from tests.transport.rig import LOSSY, SECOND, Rig, column, digest, kind_of
from tests.transport.rig import STRIDE as RIG_STRIDE


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    if arrivals_module.compiled() is None:
        pytest.skip("no LLVM")


# -- endpoints ---------------------------------------------------------------------------------------------------------------


def feed(endpoint, datagrams, now):
    endpoint.receive([as_frames([(0, datagram) for datagram in datagrams])], now)


def half_there(**options):
    """A rig in which rank 1 has the first half of a message, and the datagrams of the other half."""
    held = []

    def meddle(flight):
        kind = kind_of(flight.datagram)
        late = kind == PacketType.DATA and column(flight.datagram, "offset") >= 10 * RIG_STRIDE
        if late and not column(flight.datagram, "retransmission"):
            held.append(flight.datagram)
        return [flight.datagram] if kind in (PacketType.DATA, PacketType.FEEDBACK) and not late else []

    rig = Rig(meddle=meddle, greet=True)
    key = rig.send(0, 1, 20 * RIG_STRIDE, **options)
    rig.settle(3_000_000)
    assert len(held) == rig.endpoints[1].flow(0).incoming[key[2]].missing == 10
    return rig, key, held


@pytest.mark.parametrize("how", ["retire", "drop_all"])
def test_what_is_over_is_not_written_to(how):
    rig, key, held = half_there()
    endpoint = rig.endpoints[1]
    incoming = endpoint.flow(0).incoming[key[2]]
    buffer, before, have = incoming.buffer, incoming.buffer.copy(), incoming.have.copy()
    endpoint.retire(1) if how == "retire" else endpoint.drop_all()
    feed(endpoint, held, rig.now)
    assert np.array_equal(buffer, before) and np.array_equal(incoming.have, have)
    assert not any(endpoint._core.arrivals._open), "nor kept"
    if how == "retire":
        assert endpoint.counters()["stale"] == len(held)


def test_an_early_message_moves_to_the_buffer_that_it_is_given():
    """What came before is copied, what comes then goes there, and the buffer that it had is not touched again."""
    rig, key, held = half_there(expect=False)
    early = rig.endpoints[1].flow(0).incoming[key[2]].buffer
    whole, mine = guarded(20 * RIG_STRIDE, 0xEE)
    rig.expect(key, buffer=mine)
    before = early.copy()
    feed(rig.endpoints[1], held, rig.now)
    (event,) = rig.endpoints[1].events()
    assert isinstance(event, MessageReceived) and event.data is mine
    assert np.array_equal(mine, rig.sent[key].payload) and np.array_equal(early, before)
    assert (whole[:GUARD] == 0xA5).all() and (whole[-GUARD:] == 0xA5).all()


def test_more_hellos_in_a_batch_than_the_list_holds_are_all_answered():
    rig = Rig()
    body = HELLO_BODY.encode(1, datagram=HEADER_BYTES + HELLO_BODY.size, nonce=7)[0].tobytes()
    number = REST_ROOM + 100
    feed(rig.endpoints[1], [row_of(0, 0, body, type=PacketType.HELLO)[0]] * number, rig.now)
    answers = [burst for burst in rig.endpoints[1].transmit(rig.now) if kind_of(bytes(burst.headers[0])) == PacketType.HELLO_ACK]
    assert len(answers) == number


def story(use_compiled, weather, seed, lengths, bound):
    """Plays the same traffic, compiled or not; returns everything there is to see."""
    with pytest.MonkeyPatch.context() as patch:
        if not use_compiled:
            patch.setattr(arrivals_module, "compiled", lambda: None)
        rig = Rig(world=3, seed=seed, weather=weather)
        assert all((e._core.arrivals._functions is not None) == use_compiled for e in rig.endpoints.values())
        for (source, peer), length in zip(itertools.permutations(range(3), 2), itertools.cycle(lengths)):
            rig.send(source, peer, length, bound=bound)
        rig.net.run(rig.finished, limit_ns=20 * SECOND)
        rig.verify(complete=False)
        return (
            rig.now,
            rig.net.steps,
            rig.net.fate,
            [endpoint.counters() for endpoint in rig.endpoints.values()],
            [digest(endpoint) for endpoint in rig.endpoints.values()],
        )


@settings(max_examples=30)
@given(
    weather=LOSSY,
    seed=st.integers(0, 1000),
    lengths=st.lists(st.integers(0, 6000), min_size=1, max_size=6),
    bound=st.sampled_from([0.0, 0.1]),
)
def test_endpoints_do_the_same_compiled_or_not(weather, seed, lengths, bound):
    """Whatever the weather: every verdict, timer, counter and byte of state."""
    assert story(True, weather, seed, lengths, bound) == story(False, weather, seed, lengths, bound)
