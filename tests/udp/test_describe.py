"""What bursts look like to the kernel: compiled and as Python alike, every datagram once, messages as segmentation wants them."""

import ctypes
import itertools
import socket
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.transport.outgoing import DataBurst, OutgoingMessage
from dlcp.transport.packets import Burst, control_burst
from dlcp.udp import batch, describe
from dlcp.udp.describe_layout import CELL_BYTES, D_COUNT, D_ROWS, D_STOPS, MESSAGE_BYTES, PACKETS
from dlcp.udp.metrics import PortCounters
from dlcp.udp.peers import PeerTable
from dlcp.udp.probe import Capabilities, probe
from dlcp.wire.codec import encode_header
from dlcp.wire.header import HEADER

pytestmark = pytest.mark.skipif(not batch.FITS, reason="this machine's words do not have 64 bits")

COOKIE = 0x1122334455667788
STRIDE = 56


@pytest.fixture(scope="module")
def opened():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        yield sock


def sender(sock, segments=64, with_tos=True):
    peers = PeerTable(socket.AF_INET)
    for rank in range(3):
        peers.connect(rank, ("127.0.0.1", 1000 + rank))
    capabilities = Capabilities(segments > 1, False, True, True, with_tos, True, segments)
    return batch.BatchSender(sock, socket.AF_INET, capabilities, peers, PortCounters())


def read(address, count):
    return ctypes.string_at(address, count) if count else b""


def described(one):
    """Returns, for each message: its address' rank, ToS or None, segment size or None, and datagrams."""
    words = one._words
    ranks = {location: rank for rank, location in one._peers.locations.items()}
    found, begin = [], 0
    for number, stop in enumerate(words[D_STOPS : D_STOPS + words[D_COUNT]].tolist()):
        header = one._messages[number]
        assert header["iov_length"] == 2 * (stop - begin)
        assert header["iov"] == one._vectors.ctypes.data + begin * 32
        assert header["control"] == one._control.ctypes.data + number * 2 * CELL_BYTES
        cells = one._control[number].copy()
        length = int(header["control_length"])
        kinds = [(int(c["level"]), int(c["type"])) for c in cells[: length // CELL_BYTES]]
        tos = int(cells[0]["int"]) if one._with_tos else None
        cut = int(cells[len(kinds) - 1]["short"]) if kinds and kinds[-1] == (17, 103) else None
        assert len(kinds) == one._with_tos + (stop - begin > 1) == one._with_tos + (cut is not None)
        datagrams = [
            read(int(base), int(size)) + read(int(payload), int(rest))
            for base, size, payload, rest in one._vectors[begin:stop].tolist()
        ]
        found.append((ranks[int(header["name"])], tos, cut, datagrams))
        begin = stop
    assert begin == words[D_ROWS]
    return found


def message(draw):
    packets = draw(st.integers(1, 12))
    length = packets * STRIDE - draw(st.sampled_from([0, 0, 1, STRIDE - 1]))
    tags = np.array(draw(st.lists(st.integers(0, 13), min_size=packets, max_size=packets)), np.uint8)
    payload = np.random.default_rng(length).integers(0, 256, length).astype(np.uint8)
    peer, number = draw(st.integers(0, 2)), draw(st.integers(0, 2**64 - 1))
    return OutgoingMessage(9, peer, COOKIE, number, payload, STRIDE, tags, draw(st.integers(0, 65535)), 0)


def data_burst(draw):
    out = message(draw)
    indices = np.array(draw(st.lists(st.integers(0, out.packets - 1), min_size=1, max_size=15)), np.int64)
    if len(indices):
        indices = indices[out.tags[indices] == out.tags[indices[0]]]
    sequence = draw(st.sampled_from([1, 2**31, 2**32 - 3]))
    return DataBurst(
        draw(st.sampled_from([0, 2, 0xE2])), out, indices, draw(st.booleans()), sequence, draw(st.integers(0, 2**32 - 1))
    )


def ready_burst(draw):
    count, size = draw(st.integers(0, 12)), draw(st.integers(0, 60))
    payload = np.random.default_rng(count).integers(0, 256, 100).astype(np.uint8)
    sizes = np.array([size] * count, np.int64)
    if count and size:
        sizes[-1] -= draw(st.integers(0, size))
    headers = np.random.default_rng(size).integers(0, 256, (count, draw(st.sampled_from([48, 80])))).astype(np.uint8)
    return Burst(draw(st.integers(0, 2)), draw(st.sampled_from([0, 2, 0xE2])), headers, payload, np.arange(count) % 40, sizes)


def control(draw):
    packet = np.frombuffer(
        encode_header(type=4, source=1, destination=2, cookie=COOKIE) + b"\5" * draw(st.integers(0, 40)), np.uint8
    )
    return control_burst(draw(st.integers(0, 2)), 0xE2, packet)


@st.composite
def batches(draw):
    kinds = draw(st.lists(st.sampled_from([data_burst, data_burst, ready_burst, control]), min_size=1, max_size=8))
    return [kind(draw) for kind in kinds]


@settings(max_examples=150, deadline=None)
@given(bursts=batches(), segments=st.sampled_from([1, 2, 64]), most=st.sampled_from([150, 700, 65507]), skip=st.integers(0, 30))
def test_each_datagram_once_in_order_and_messages_by_the_rules(opened, bursts, segments, most, skip):
    one = sender(opened, segments)
    one.message_bytes = most
    wanted = [(burst.peer, burst.tos, datagram) for burst in bursts for datagram in burst.datagrams()]
    index = row = 0
    for burst in bursts:
        if len(burst) > skip:
            row = skip
            break
        skip -= len(burst)
        index += 1
    else:
        index, row = 0, 0
    wanted = wanted[sum(len(burst) for burst in bursts[:index]) + row :]
    assert one._plan(bursts, index, row) == (len(bursts), 0)
    found = described(one)
    assert [(rank, tos, datagram) for rank, tos, _, datagrams in found for datagram in datagrams] == wanted
    for _, _, cut, datagrams in found:
        sizes = [len(datagram) for datagram in datagrams]
        assert len(sizes) <= segments and (len(sizes) == 1 or sum(sizes[:1]) * len(sizes) <= most)
        assert all(size == sizes[0] for size in sizes[:-1]) and sizes[-1] <= sizes[0]
        assert cut is None or cut == sizes[0]


@st.composite
def long_batches(draw):
    """Sometimes more than one turn holds, in one burst or in many, in whatever order packets are sent again."""
    bursts = draw(batches())
    if draw(st.booleans()):
        count = draw(st.integers(PACKETS - 20, PACKETS + 20))
        payload = np.random.default_rng(count).integers(0, 256, count * STRIDE - 5).astype(np.uint8)
        out = OutgoingMessage(9, 1, COOKIE, 77, payload, STRIDE, np.full(count, 5, np.uint8), 0, 0)
        indices = np.arange(count, dtype=np.int64)
        if draw(st.booleans()):
            # The short last packet comes in the middle.
            indices = np.roll(indices, draw(st.integers(0, count - 1)))
        bursts.insert(draw(st.integers(0, len(bursts))), DataBurst(2, out, indices, draw(st.booleans()), 2**32 - 7, 5))
    return bursts


def turns(one, bursts, position):
    """Describes everything, turn by turn; returns what each looked like, with where it ended."""
    found = []
    while position[0] < len(bursts):
        position = one._plan(bursts, *position)
        found.append((position, described(one), one._copies[: one._words[D_ROWS]].copy()))
    return found


@settings(max_examples=100, deadline=None)
@given(
    bursts=long_batches(),
    segments=st.sampled_from([1, 2, 64]),
    most=st.sampled_from([1, 150, 700, 65507]),
    with_tos=st.booleans(),
    skip=st.integers(0, 14),
)
def test_compiled_and_as_python_alike(opened, bursts, segments, most, with_tos, skip):
    compiled, interpreted = sender(opened, segments, with_tos), sender(opened, segments, with_tos)
    compiled.message_bytes = interpreted.message_bytes = most
    start = (0, skip if skip < len(bursts[0]) else 0)
    assert batch.compiled() is not None
    quick = turns(compiled, bursts, start)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "compiled", lambda: None)
        slow = turns(interpreted, bursts, start)
    assert [turn[:2] for turn in quick] == [turn[:2] for turn in slow]
    assert all(np.array_equal(one[2], other[2]) for one, other in zip(quick, slow, strict=True))
    wanted = [datagram for burst in bursts for datagram in burst.datagrams()][start[1] :]
    assert [datagram for _, messages, _ in quick for *_, datagrams in messages for datagram in datagrams] == wanted
    if not with_tos:
        # The socket's ToS stands for a whole turn.
        toses = [burst.tos for burst in bursts for _ in range(len(burst))][start[1] :]
        for _, messages, _ in quick:
            count = sum(len(datagrams) for *_, datagrams in messages)
            assert len(set(toses[:count])) <= 1
            toses = toses[count:]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_headers_made_in_place_are_those_of_the_message(opened, data):
    out = message(data.draw)
    indices = np.array(data.draw(st.lists(st.integers(0, out.packets - 1), min_size=1, max_size=20)), np.int64)
    indices = indices[out.tags[indices] == out.tags[indices[0]]]
    again = data.draw(st.booleans())
    sequence = data.draw(st.one_of(st.integers(2**32 - 20, 2**32 - 1), st.integers(0, 2**32 - 1)))
    timestamp = data.draw(st.sampled_from([0, 1, 2**31, 2**32 - 1]))
    one = sender(opened)
    one._plan([DataBurst(2, out, indices, again, sequence, timestamp)], 0, 0)
    assert one._words[D_ROWS] == len(indices)
    assert np.array_equal(one._copies[: len(indices)], out.headers(indices, again, sequence, timestamp))
    assert [HEADER.decode_one(row.tobytes())["sequence"] for row in one._copies[: len(indices)]] == [
        (sequence + number) % 2**32 for number in range(len(indices))
    ]


@pytest.mark.parametrize("with_tos", [True, False])
def test_more_than_fit_are_described_in_turns(opened, with_tos):
    one = sender(opened, 64, with_tos)
    payload = np.arange(256, dtype=np.uint8)

    def many(count, tos):
        headers = np.arange(count * 48, dtype=np.uint8).reshape(count, 48)
        return Burst(1, tos, headers, payload, np.zeros(count, np.int64), np.full(count, 8, np.int64))

    bursts = [many(PACKETS - 5, 0), many(10, 0), many(3, 2), many(PACKETS + 7, 2)]
    position, turns, got = (0, 0), [], []
    while position != (4, 0):
        position = one._plan(bursts, *position)
        turns.append(one._words[D_ROWS])
        got += [datagram for *_, datagrams in described(one) for datagram in datagrams]
    assert got == list(itertools.chain.from_iterable(burst.datagrams() for burst in bursts))
    # Without a ToS in each message, one turn has one ToS.
    assert turns == ([PACKETS, PACKETS, 15] if with_tos else [PACKETS, 5, PACKETS, 10])


HUGE = 2**62


BEYOND = [(-1, 8), (0, -1), (0, 101), (100, 1), (101, 0), (HUGE, HUGE), (2**63 - 1, 1), (1, 2**63 - 1)]


@pytest.mark.parametrize(("offset", "size"), BEYOND)
@pytest.mark.parametrize("interpreted", [True, False])
def test_what_reaches_beyond_its_payload_is_refused(opened, offset, size, interpreted, monkeypatch):
    if interpreted:
        monkeypatch.setattr(batch, "compiled", lambda: None)
    bad = Burst(0, 0, np.zeros((1, 48), np.uint8), np.zeros(100, np.uint8), np.array([offset]), np.array([size]))
    with pytest.raises(ValueError, match="beyond its payload"):
        sender(opened)._plan([bad], 0, 0)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("interpreted", [True, False])
def test_nothing_is_sent_of_what_reaches_beyond_its_payload(open_port, tools, batched, interpreted, monkeypatch):
    """Not the datagrams before it, either; then the port goes on."""
    if interpreted:
        monkeypatch.setattr(batch, "compiled", lambda: None)
    port, receiver = open_port(capabilities=replace(probe(), sendmmsg=batched and probe().sendmmsg)), open_port()
    port.connect_peer(0, receiver.address)
    headers, payload = np.zeros((3, 48), np.uint8), np.zeros(100, np.uint8)
    bad = Burst(0, 2, headers, payload, np.array([0, 0, 93]), np.array([8, 8, 8]))
    good = Burst(0, 2, headers, payload, np.array([0, 0, 92]), np.array([8, 8, 8]))
    # Without sendmmsg() bursts are sent one by one.
    with pytest.raises(ValueError, match="beyond its payload"):
        port.send([good, bad] if batched else [bad])
    assert port.metrics()["packets_sent"] == port.metrics()["send_calls"] == 0
    assert port.send([good]) == 1
    assert [data for data, _ in tools.receive_all(receiver, 3)] == good.datagrams()


def test_a_packet_number_beyond_its_message_is_refused(opened):
    out = OutgoingMessage(9, 0, COOKIE, 1, np.zeros(100, np.uint8), STRIDE, np.zeros(2, np.uint8), 0, 0)
    for index in (2, -1, HUGE):
        burst = DataBurst(0, out, np.array([0, index]), False, 1, 0)
        burst.indices = np.array([index])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OutgoingMessage, "flags", lambda *_: 0)
            with pytest.raises(ValueError, match="beyond its payload"):
                sender(opened)._plan([burst], 0, 0)


def test_the_layouts_are_the_kernels():
    assert batch.MMSGHDR.itemsize == MESSAGE_BYTES and describe.CELL_BYTES == CELL_BYTES
