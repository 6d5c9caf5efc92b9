"""The receive path's memory and some messages, a plain model of what shall come of packets, and packets of every kind."""

import struct
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from dlcp.transport.arrivals import DONE, UNKNOWN, Arrivals, Identity
from dlcp.transport.datagram import datagram
from dlcp.transport.incoming import UNKNOWN_TAG, IncomingMessage
from dlcp.transport.intake_layout import (
    E_BUFFER,
    E_TAGS,
    E_WORDS,
    ENTRIES,
    P_COUNT,
    P_HIGHEST,
    P_NEWEST,
    P_WAITED,
)
from dlcp.transport.packets import Frames
from dlcp.transport.serial import ahead
from dlcp.wire.codec import check_ok, encode_headers
from dlcp.wire.header import HEADER, HEADER_BYTES, VERSION, PacketType
from tests.transport.rig import COOKIE

ME, WORLD, STRIDE, GUARD = 1, 4, 24, 64
NOW = 7_000_000_000
NUMBERED = (PacketType.DATA, PacketType.PROBE, PacketType.PING)


def guarded(count, fill):
    """An array in the middle of others that nobody may touch; returns the whole and the middle."""
    whole = np.full(count + 2 * GUARD, 0xA5, np.uint8)
    whole[GUARD : GUARD + count] = fill
    return whole, whole[GUARD : GUARD + count]


def described(packet):
    return packet.length, packet.stride, packet.bound, packet.protected_packets


class Bench:
    """The memory and some messages, and what an endpoint does with them; and books of all that it was told."""

    def __init__(self, messages, use_compiled):
        self.arrivals = Arrivals(Identity(ME, WORLD, COOKIE), use_compiled=use_compiled)
        assert (self.arrivals._functions is not None) == use_compiled
        self.known, self.wholes, self.refused = {}, [], Counter()
        self.sources, self.rest, self.came = [], [], {}
        self.passes = 0
        for source, message, length, bound, protected, with_tags in messages:
            whole, buffer = guarded(length, 0xEE)
            made = IncomingMessage(source, message, length, STRIDE, bound, protected, buffer, 0)
            whole_have, have = guarded(made.packets, 0)
            made.have = have.view(bool)
            self.wholes += [whole, whole_have]
            if with_tags:
                whole_tags, made.tags = guarded(made.packets, UNKNOWN_TAG)
                self.wholes.append(whole_tags)
            self.known[source, message] = made
            self.came[source, message] = Counter()

    def take(self, frames, now=NOW, closed=False):
        arrivals = self.arrivals
        arrivals.begin(frames, now, closed)
        verdict = UNKNOWN
        while verdict != DONE:
            verdict = arrivals.take()
            if verdict == UNKNOWN:
                frame, row = arrivals.position
                packet = datagram(frames[frame], row)
                message = self.known.get((packet.source, packet.message))
                if message is None or packet.described != described(message):
                    arrivals.orphan()
                    continue
                if arrivals.open(message):
                    continue
            self.settle()

    def settle(self):
        arrivals = self.arrivals
        self.passes += 1
        self.refused.update(arrivals.refused())
        for source in arrivals.sources():
            block = arrivals.peer(source)
            self.sources.append((source, *block[P_COUNT : P_NEWEST + 1].tolist()))
        for message, *numbers in arrivals.messages():
            self.came[message.peer, message.message].update(
                dict(zip(("packets", "again", "new", "protected"), numbers, strict=True))
            )
        self.rest += arrivals.rest()
        arrivals.renew()

    def state(self):
        """All that there is, but for addresses."""
        words = self.arrivals._array.copy()
        table = words[self.arrivals._entries :][: ENTRIES * E_WORDS].reshape(ENTRIES, E_WORDS)
        table[:, E_BUFFER : E_TAGS + 1] = 0
        place = {id(m): key for key, m in self.known.items()}
        opened = [place.get(id(m)) for m in self.arrivals._open]
        books = (self.refused, self.sources, self.rest, self.came, self.passes, opened)
        return words.tobytes(), [whole.tobytes() for whole in self.wholes], books

    def totals(self):
        """By source: packets, marked, deepest queue, whether it asked, whether there was a newer one."""
        totals = {}
        for source, count, marked, depth, asking, newest in self.sources:
            old = totals.get(source, (0, 0, 0, 0, 0))
            totals[source] = (old[0] + count, old[1] + marked, max(old[2], depth), old[3] | asking, old[4] | newest)
        return totals


@dataclass
class Model:
    """What the functions are for, in plain Python over decoded headers."""

    messages: list
    refused: Counter = field(default_factory=Counter)
    rest: list = field(default_factory=list)
    totals: dict = field(default_factory=dict)
    highest: dict = field(default_factory=dict)

    def __post_init__(self):
        self.books = {
            (source, message): {
                "described": (length, STRIDE, bound, protected),
                "buffer": bytearray(b"\xee" * length),
                "have": set(),
                "tags": dict.fromkeys(range(max(1, -(-length // STRIDE))), UNKNOWN_TAG) if with_tags else None,
                "came": Counter(),
            }
            for source, message, length, bound, protected, with_tags in self.messages
        }

    def why_not(self, raw):
        if len(raw) < HEADER_BYTES:
            return "truncated"
        if raw[0] >> 4 != VERSION or raw[0] & 15 >= len(PacketType):
            return "version"
        if raw[8:16] != COOKIE.to_bytes(8, "big"):
            return "foreign"
        if not check_ok(np.frombuffer(raw[:HEADER_BYTES], np.uint8)[None].copy())[0]:
            return "check"
        source, destination = struct.unpack(">HH", raw[4:8])
        return "misaddressed" if destination != ME or source >= WORLD or source == ME else None

    def take(self, frame, row, raw, ecn, arrival, now, closed=False):
        why = self.why_not(raw)
        if why:
            self.refused[why] += 1
            return
        head = HEADER.decode_one(raw[:HEADER_BYTES])
        source, message = head["source"], int.from_bytes(raw[16:24], "big")
        waited = 0 if not arrival else (now - arrival) // 1000
        waited = waited if 0 < waited < 1_000_000 else 0
        totals = self.totals.setdefault(source, [0, 0, 0, 0, 0])
        if closed:
            self.rest.append((frame, row, waited))
            return
        if head["type"] in NUMBERED:
            totals[0] += 1
            totals[1] += ecn & 3 == 3
            totals[2] = max(totals[2], head["queue_depth"])
            totals[3] |= head["type"] != PacketType.DATA
            if ahead(head["sequence"], self.highest.get(source, (0, 0))[0]) > 0:
                self.highest[source] = head["sequence"], waited
                totals[4] = 1
        if head["type"] != PacketType.DATA:
            self.rest.append((frame, row, waited))
            return
        length, offset, stride, size = head["length"], head["offset"], head["stride"], len(raw) - HEADER_BYTES
        fits = not head["trimmed"] and stride and offset % stride == 0 and (offset < length or offset == length == 0)
        if not fits or size != min(stride, length - offset):
            self.rest.append((frame, row, waited))
            return
        book = self.books.get((source, message))
        if book is None or book["described"] != (length, stride, head["bound"], head["protected_packets"]):
            # What contradicts an open message is left to others; what belongs to none that is open was asked about on the spot.
            if book is not None and book["came"]["packets"]:
                self.rest.append((frame, row, waited))
            return
        index = offset // stride
        book["came"].update(packets=1, again=head["retransmission"])
        if book["tags"] is not None:
            book["tags"][index] = min(book["tags"][index], head["priority"] * 2 + head["protected"])
        if index not in book["have"]:
            book["have"].add(index)
            book["came"].update(new=1, protected=head["protected"])
            book["buffer"][offset : offset + size] = raw[HEADER_BYTES:]

    def check(self, bench):
        assert bench.refused == self.refused
        assert bench.totals().keys() == self.totals.keys()
        assert bench.totals() == {source: tuple(map(int, totals)) for source, totals in self.totals.items()}
        for source, (sequence, waited) in self.highest.items():
            block = bench.arrivals.peer(source)
            assert (block[P_HIGHEST], block[P_WAITED]) == (sequence, waited)
        assert bench.rest == self.rest
        for key, book in self.books.items():
            message = bench.known[key]
            assert message.buffer.tobytes() == book["buffer"]
            assert set(np.flatnonzero(message.have).tolist()) == book["have"]
            assert book["tags"] is None or message.tags.tolist() == list(book["tags"].values())
            assert +bench.came[key] == +book["came"]
        for whole in bench.wholes:
            assert (whole[:GUARD] == 0xA5).all() and (whole[-GUARD:] == 0xA5).all(), "written outside of its place"


# -- what comes --------------------------------------------------------------------------------------------------------------

IDS = [5, 2**63 + 9, 2**64 - 1, 1 << 32 | 7]
FAULTS = [""] * 12 + ["again", "trimmed", "version", "type", "cookie", "check", "self", "source", "destination", "short"]
FAULTS += ["long", "offset", "outside", "no stride", "stride", "length", "bound", "protected", "unknown"]

messages_of = st.lists(
    st.tuples(
        st.sampled_from([0, 2, 3]),
        st.sampled_from(IDS),
        st.integers(0, 9 * STRIDE),
        st.sampled_from([0, 3000, 65535]),
        st.sampled_from([0, 1, 65535]),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda m: m[:2],
)
packets_of_messages = st.lists(
    st.fixed_dictionaries(
        {
            "which": st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
            "index": st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
            "fault": st.sampled_from(FAULTS),
            "type": st.sampled_from([PacketType.DATA] * 5 + list(PacketType)),
            "sequence": st.one_of(st.integers(0, 40), st.integers(2**32 - 5, 2**32 - 1), st.integers(0, 2**32 - 1)),
            "timestamp": st.integers(0, 2**32 - 1),
            "priority": st.integers(0, 7),
            "protected": st.integers(0, 1),
            "queue_depth": st.integers(0, 65535),
            "ecn": st.integers(0, 255),
            "fill": st.integers(0, 255),
            "ago": st.sampled_from([None, 0, 1, 999, 1_000, 55_000, -5_000_000, 999_999_999, 10**9, 3 * 10**9]),
        }
    ),
    max_size=40,
)


def raw_of(packet, messages):
    """The datagram that a drawn packet stands for."""
    source, message, length, bound, protected, _ = messages[packet["which"] % len(messages)]
    count = max(1, -(-length // STRIDE))
    offset = packet["index"] % count * STRIDE
    size = min(STRIDE, length - offset)
    fields = {name: packet[name] for name in ("type", "sequence", "timestamp", "priority", "protected", "queue_depth")}
    fields |= {"source": source, "destination": ME, "cookie": np.uint64(COOKIE), "operation": message >> 32}
    fields |= {"phase": message >> 24 & 255, "dtype": message >> 16 & 255, "part": message & 0xFFFF}
    fields |= {"length": length, "offset": offset, "stride": STRIDE, "bound": bound, "protected_packets": protected}
    fields |= {
        "again": {"retransmission": 1},
        "trimmed": {"trimmed": 1},
        "version": {"version": VERSION ^ 3},
        "type": {"type": 15},
        "cookie": {"cookie": np.uint64(COOKIE ^ 1 << 63)},
        "self": {"source": ME},
        "source": {"source": WORLD},
        "destination": {"destination": 2},
        "offset": {"offset": offset + 8},
        "outside": {"offset": count * STRIDE},
        "no stride": {"stride": 0},
        "stride": {"stride": STRIDE + 8},
        "length": {"length": length + count * STRIDE},
        "bound": {"bound": bound ^ 1},
        "protected": {"protected_packets": protected ^ 1},
        "unknown": {"part": 4242},
    }.get(packet["fault"], {})
    raw = bytearray(encode_headers(1, **fields)[0].tobytes() + bytes([packet["fill"]]) * size)
    if packet["fault"] == "check":
        raw[2 + packet["fill"] % 2] ^= 1 + packet["index"]
    if packet["fault"] == "short":
        del raw[packet["index"] * 6 :]
    return bytes(raw + (b"x" if packet["fault"] == "long" else b""))


def frames_of(datagrams, cuts, layout, seed):
    """Frames of datagrams, each (raw, ecn, arrival), of any shape; returns them and what a row of them is in the end."""
    random = np.random.default_rng(seed)
    frames, rows = [], []
    for number, part in enumerate(np.array_split(np.arange(len(datagrams)), cuts)):
        mine = [datagrams[i] for i in part.tolist()]
        width = max([len(raw) for raw, _, _ in mine], default=0) + int(random.integers(0, 30))
        if layout == "narrow" and width > 50:
            width = 50
        memory = random.integers(0, 256, (len(mine), width + int(random.integers(0, 40))), np.uint8)
        data = memory[:, memory.shape[1] - width :]
        if layout == "backwards":
            data = data[::-1]
        elif layout == "columns":
            data = np.zeros((len(mine), 2 * width), np.uint8)[:, ::2]
        for row, (raw, _, _) in enumerate(mine):
            data[row, : len(raw)] = np.frombuffer(raw[:width], np.uint8)
        ecn = np.array([e for _, e, _ in mine], np.uint8)
        came = np.array([a for _, _, a in mine], np.int64)
        arrivals = came
        if layout == "unknown":
            arrivals, came = None, np.zeros_like(came)
        elif layout == "one" and len(mine):
            arrivals = came[:1].copy()
            came = np.full(len(mine), came[0])
        elif layout == "apart":
            arrivals = np.repeat(came, 3)[::3]
        frames.append(Frames(data, np.array([len(raw) for raw, _, _ in mine], np.int64), ecn, arrivals))
        rows += [(number, row, raw[:width], e, int(came[row])) for row, (raw, e, _) in enumerate(mine)]
    return frames, rows


layouts = st.sampled_from(["plain", "plain", "narrow", "backwards", "columns", "unknown", "one", "apart"])
batches_of = st.lists(st.tuples(packets_of_messages, st.integers(1, 4), layouts, st.integers(0, 99)), min_size=1, max_size=3)


def row_of(source=2, message=5, payload=b"", **fields):
    columns = {"type": PacketType.DATA, "source": source, "destination": ME, "cookie": np.uint64(COOKIE)}
    columns |= {"operation": message >> 32, "phase": message >> 24 & 255, "dtype": message >> 16 & 255, "part": message & 0xFFFF}
    return encode_headers(1, **columns | fields)[0].tobytes() + payload, 0, 0
