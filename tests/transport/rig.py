"""Endpoints on a virtual network, with the books of what was sent, so that every test can check everything."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from dlcp.policy import Policy
from dlcp.transport.arrivals import Arrivals
from dlcp.transport.endpoint import Endpoint
from dlcp.transport.events import MessageReceived, MessageSent, PeerReached, PeerSilent, message_id
from dlcp.transport.intake_layout import E_BUFFER, E_MESSAGE, E_OWNER, E_WORDS, I_ENTRIES, P_HIGHEST, P_WORDS
from dlcp.transport.outgoing import bound_to_wire, packets_of
from dlcp.transport.virtual import VirtualNetwork, Weather
from dlcp.wire.header import HEADER, HEADER_BYTES, Phase, WireType

COOKIE = 0x0123456789ABCDEF
STRIDE = 256
MS = 1_000_000
SECOND = 1_000_000_000

LOSSY = st.builds(
    Weather,
    drop=st.sampled_from([0.0, 0.01, 0.05, 0.2]),
    duplicate=st.sampled_from([0.0, 0.1, 0.5]),
    corrupt=st.sampled_from([0.0, 0.05]),
    truncate=st.sampled_from([0.0, 0.05]),
    mark=st.sampled_from([0.0, 0.1, 1.0]),
    delay_ns=st.sampled_from([1_000, 50_000, 2 * MS]),
    jitter_ns=st.sampled_from([0, 10_000, 300_000]),
)


def policy_of(**sections):
    """The default policy with some keys changed, and a peer timeout that tests can afford."""
    sections.setdefault("timeouts", {}).setdefault("peer_s", 2.0)
    return Policy.from_dict(sections)


@dataclass
class Sent:
    """A message as it was handed to the sender."""

    payload: np.ndarray
    tags: np.ndarray
    bound: int


@dataclass
class Rig:
    """World, network and books.  Keyword arguments go where their names say."""

    world: int = 2
    seed: int = 0
    weather: Weather = field(default_factory=Weather)
    policy: Policy = field(default_factory=policy_of)
    stride: int = STRIDE
    window: int = 1 << 20
    cut: object = None
    meddle: object = None
    link: object = None
    greet: bool = False

    def __post_init__(self):
        self.random = np.random.default_rng(self.seed)
        self.endpoints = {
            rank: Endpoint(
                rank=rank,
                world=self.world,
                cookie=COOKIE,
                policy=self.policy,
                stride=self.stride,
                receive_window=self.window,
                now=0,
            )
            for rank in range(self.world)
        }
        extra = {} if self.cut is None else {"cut": self.cut}
        self.net = VirtualNetwork(self.endpoints, np.random.default_rng(self.seed + 1), self.weather, link=self.link, **extra)
        self.sent: dict[tuple[int, int, int], Sent] = {}
        self.parts = 0
        if self.greet:
            for endpoint in self.endpoints.values():
                for peer in endpoint.peers:
                    endpoint.greet(peer, 0)
            assert self.net.run(lambda: len(self.events(PeerReached)) == 2 * self.world * (self.world - 1))
        self.net.meddle = self.meddle

    @property
    def now(self):
        return self.net.now

    def message(self, operation=1):
        self.parts += 1
        return message_id(operation, Phase.PUSH, WireType.FLOAT32, self.parts)

    def send(self, source, peer, length, *, bound=0.0, share=0.25, priority=None, operation=1, expect=True, buffer=None):
        """Sends random bytes with random tags; returns the key in the books.  ``expect``: before sending, or never."""
        message = self.message(operation)
        payload = self.random.integers(0, 256, length, dtype=np.uint8)
        count = packets_of(length, self.stride)
        classes = self.random.integers(0, 7, count) if priority is None else np.full(count, priority)
        tags = (classes * 2 + (self.random.random(count) < share)).astype(np.uint8)
        wire_bound = bound_to_wire(bound)
        if expect:
            self.endpoints[peer].expect(source, message, length, buffer=buffer, now=self.now)
        self.endpoints[source].send(peer, message, payload, tags=tags, bound=wire_bound, now=self.now)
        self.sent[source, peer, message] = Sent(payload, tags, wire_bound)
        return source, peer, message

    def expect(self, key, *, length=None, buffer=None):
        """The receiver of a message asks for it."""
        source, peer, message = key
        length = self.sent[key].payload.size if length is None else length
        self.endpoints[peer].expect(source, message, length, buffer=buffer, now=self.now)

    def events(self, kind, rank=None):
        return [e for _, r, e in self.net.log if isinstance(e, kind) and rank in (None, r)]

    def received(self):
        return {(e.peer, rank, e.message): e for _, rank, e in self.net.log if isinstance(e, MessageReceived)}

    def acknowledged(self):
        return {(rank, e.peer, e.message): e for _, rank, e in self.net.log if isinstance(e, MessageSent)}

    def finished(self):
        """Every message is complete at both ends."""
        need = len(self.sent)
        return len(self.events(MessageReceived)) >= need and len(self.events(MessageSent)) >= need

    def run(self, limit_s=60.0):
        """Runs until every message has ended at both ends; returns the time it took in nanoseconds."""
        start = self.now
        ended = self.net.run(self.finished, limit_ns=int(limit_s * SECOND))
        assert ended, f"still going after {limit_s} s: {[e.counters() for e in self.endpoints.values()]}"
        return self.now - start

    def settle(self, ns):
        """Lets time pass."""
        self.net.run(lambda: False, limit_ns=ns)
        self.net.now = max(self.net.now, 0)

    def when_done(self, key):
        """When each end was done with a message."""
        source, peer, message = key
        there = next(
            t
            for t, r, e in self.net.log
            if r == peer and isinstance(e, MessageReceived) and (e.peer, e.message) == (source, message)
        )
        here = next(
            t for t, r, e in self.net.log if r == source and isinstance(e, MessageSent) and (e.peer, e.message) == (peer, message)
        )
        return there, here

    def verify(self, *, complete=True):
        """What must hold after any weather, for every message that is complete at both ends (all of them if ``complete``)."""
        received, acknowledged = self.received(), self.acknowledged()
        assert len(self.events(MessageReceived)) == len(received), "a message was handed over twice"
        assert len(self.events(MessageSent)) == len(acknowledged), "a message was acknowledged twice"
        if complete:
            assert received.keys() == acknowledged.keys() == self.sent.keys()
        for key, event in received.items():
            sent = self.sent[key]
            assert event.stride == self.stride
            assert event.data.size == sent.payload.size
            mask = np.ones(sent.payload.size, bool)
            for packet in event.lost.tolist():
                mask[packet * self.stride : (packet + 1) * self.stride] = False
            assert (event.data[mask] == sent.payload[mask]).all(), "bytes changed on the way"
            if sent.bound == 0:
                assert event.lost.size == 0, "a reliable message lost something"
            assert event.lost.size <= sent.tags.size * sent.bound // 65536, "more lost than the bound allows"
            assert not (sent.tags[event.lost] & 1).any(), "a protected packet was lost"
            assert (np.diff(event.lost) > 0).all()
            if key in acknowledged:
                assert np.array_equal(event.lost, acknowledged[key].lost), "the two ends disagree about what was lost"

    def no_one_is_silent(self):
        assert not self.events(PeerSilent)


def digest(thing, ignore=frozenset({"counters"})):
    """A hash over the whole state of ``thing``, object by object; attributes named in ``ignore`` are left out.

    Of what is counted of packets the last batch is left out, and addresses are: what is remembered stays.
    """
    out = hashlib.sha256()
    _feed(thing, out.update, set(), ignore)
    return out.hexdigest()


def _feed(thing, eat, seen, ignore):
    if isinstance(thing, np.ndarray):
        eat(f"{thing.dtype}{thing.shape}".encode() + thing.tobytes())
    elif thing is None or isinstance(thing, int | float | str | bytes | np.generic):
        eat(f"{type(thing).__name__}={thing!r};".encode())
    elif id(thing) in seen:
        eat(b"again")
    elif isinstance(thing, dict | Counter):
        seen.add(id(thing))
        for key, value in thing.items():
            _feed(key, eat, seen, ignore)
            _feed(value, eat, seen, ignore)
    elif isinstance(thing, list | tuple | deque):
        eat(f"{len(thing)}[".encode())
        for value in thing:
            _feed(value, eat, seen, ignore)
    elif isinstance(thing, set | frozenset):
        for value in sorted(thing, key=repr):
            _feed(value, eat, seen, ignore)
    elif isinstance(thing, memoryview):
        assert len(thing) == P_WORDS, "a peer's block is the only memory that anybody holds"
        eat(thing[P_HIGHEST:].tobytes())
    elif isinstance(thing, Arrivals):
        for place, message in enumerate(thing._open):
            at = thing.words[I_ENTRIES] + place * E_WORDS
            owner, known = thing.words[at + E_OWNER], thing.words[at + E_MESSAGE]
            assert (owner == 0) == (message is None), "the table and the list of messages differ"
            if message is not None:
                assert owner == message.peer + 1 and known & (1 << 64) - 1 == message.message
                _feed((place, *thing.words[at : at + E_BUFFER].tolist()), eat, seen, ignore)
                _feed(message, eat, seen, ignore)
    elif callable(thing):
        eat(b"callable")
    else:
        seen.add(id(thing))
        names = list(getattr(thing, "__dict__", ()))
        for kind in type(thing).__mro__:
            names += getattr(kind, "__slots__", ())
        for name in sorted(set(names) - ignore):
            eat(name.encode())
            _feed(getattr(thing, name), eat, seen, ignore)


def column(datagram, name):
    """One header field of a datagram."""
    return int(HEADER.get(HEADER.records(np.frombuffer(datagram, np.uint8)[None]), name)[0])


def kind_of(datagram):
    """Packet type of a datagram."""
    return datagram[0] & 0x0F


def payload_of(datagram):
    return datagram[HEADER_BYTES:]
