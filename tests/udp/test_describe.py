"""What bursts look like to the kernel: compiled and as Python alike, every datagram once, messages as segmentation wants them."""

import ctypes
import itertools
import socket

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
from dlcp.udp.probe import Capabilities
from dlcp.wire.codec import encode_header

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


@settings(max_examples=100, deadline=None)
@given(bursts=batches(), segments=st.sampled_from([1, 2, 64]))
def test_compiled_and_as_python_alike(opened, bursts, segments):
    compiled, interpreted = sender(opened, segments), sender(opened, segments)
    ends = [compiled._plan(bursts, 0, 0)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "_compiled", lambda: None)
        ends.append(interpreted._plan(bursts, 0, 0))
    assert ends[0] == ends[1]
    assert described(compiled) == described(interpreted)
    assert np.array_equal(compiled._copies, interpreted._copies)


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
        monkeypatch.setattr(batch, "_compiled", lambda: None)
    bad = Burst(0, 0, np.zeros((1, 48), np.uint8), np.zeros(100, np.uint8), np.array([offset]), np.array([size]))
    with pytest.raises(ValueError, match="beyond its payload"):
        sender(opened)._plan([bad], 0, 0)


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
