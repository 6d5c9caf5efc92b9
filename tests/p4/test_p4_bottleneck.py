"""A shared bottleneck in virtual time: 100 Mbit/s, twice as much offered; the softswitch queues, the program keeps depths."""

import heapq
from collections import Counter, defaultdict
from functools import cache

import pytest

from dlcp.wire.header import HEADER, HEADER_BYTES
from tests.p4 import frames
from tests.p4.bench import DROPPABLE, NEVER, PROTECTED, softswitch_bench

RATE = 100_000_000
OUT = 2
SIZE = 1024
FRAME = len(frames.dlcp(size=SIZE))
SLOT_NS = FRAME * 8 * 1_000_000_000 // RATE
"""Time in which the bottleneck passes one frame, less what frames have around them."""


@cache
def _envelope(tos):
    return frames.dlcp(1, OUT, dscp=tos >> 2, ecn=tos & 3, checksum=False, size=SIZE)[:42]


def quick_frame(priority, protected, sequence):
    """What ``frames.dlcp`` makes, less the UDP checksum, at a tenth of the time."""
    envelope = _envelope(frames.POLICY.tos(priority, protected))
    return envelope + frames.header(priority, protected, sequence=sequence) + bytes(SIZE)


class Bottleneck:
    """A switch whose port 2 is slow, fed from ports 1 and 3; remembers what entered and left, and when."""

    def __init__(self, trim=False, drop_at=16, mark_at=8, depth=64, stamp=0):
        self.bench = softswitch_bench(queue_depth=depth)
        self.switch = self.bench.target.switch
        self.switch.set_rate(OUT, RATE, 0)
        self.bench.entry("bridge", {"dst_addr": frames.MACS[OUT]}, "to_port", port=OUT)
        self.bench.treat(spray=1, stamp=stamp)
        for queue in range(7):
            match = {"port": None, "queue": queue}
            if trim:
                self.bench.entry(
                    "limits", match | {"protected": 0}, "trim_from", priority=1, trim_at=drop_at, mark_at=NEVER, dscp=56
                )
            else:
                self.bench.entry("limits", match | {"protected": 0}, "drop_from", priority=1, drop_at=drop_at, mark_at=NEVER)
            self.bench.entry("limits", match | {"protected": 1}, "drop_from", priority=1, drop_at=NEVER, mark_at=mark_at)
        self.now = 0
        self.sent = {}
        self.left = []

    def offer(self, streams, count):
        """Offers ``count`` packets in all of streams ``(class, protected share in quarters, load)``, each evenly spaced."""
        waiting = [(SLOT_NS / load, index, 0) for index, (_, _, load) in enumerate(streams)]
        heapq.heapify(waiting)
        for _ in range(count):
            when, index, number = heapq.heappop(waiting)
            priority, quarters, load = streams[index]
            self.arrive(int(when), priority, number % 4 < quarters, port=1 if index % 2 else 3)
            heapq.heappush(waiting, (when + SLOT_NS / load, index, number + 1))
        self.drain()

    def arrive(self, when, priority, protected, port=1):
        self.run_until(when)
        sequence = len(self.sent) + 1
        self.sent[sequence] = (when, priority, protected)
        self.switch.receive(port, quick_frame(priority, protected, sequence), when)

    def run_until(self, when):
        while (timer := self.switch.next_timer()) is not None and timer <= when:
            self._collect(timer)
        self._collect(when)

    def drain(self):
        while (timer := self.switch.next_timer()) is not None:
            self._collect(timer)

    def _collect(self, now):
        self.now = max(self.now, now)
        for port, data in self.switch.transmit(self.now):
            assert port == OUT
            if len(self.left) % 20 == 0:  # scapy is slow
                frames.assert_sound(data)
            self.left.append((self.now, HEADER.decode_one(data[42:90]), data))

    def lost(self):
        """Packets lost by (class, protected)."""
        arrived = {fields["sequence"] for _, fields, _ in self.left}
        return Counter(self.sent[sequence][1:] for sequence in self.sent if sequence not in arrived)


MIX = ((6, 1, 0.2), (3, 1, 0.4), (0, 1, 1.4))
"""Twice what the link carries; class 6, class 3 and what is protected of class 0 are less than that."""


@pytest.fixture(scope="module")
def dropping():
    bottleneck = Bottleneck()
    bottleneck.offer(MIX, 4000)
    return bottleneck


def test_the_first_class_and_protected_packets_lose_nothing_while_droppable_ones_do(dropping):
    lost = dropping.lost()
    assert len(dropping.sent) == 4000
    assert sum(count for (priority, _), count in lost.items() if priority == 6) == 0
    assert sum(count for (_, protected), count in lost.items() if protected) == 0
    assert lost[0, False] > 1500


def test_loss_goes_up_class_by_class_from_the_last():
    """With more of every class than the link carries in all, the last ones lose first and most."""
    bottleneck = Bottleneck()
    bottleneck.offer([(priority, 0, 2 / 7) for priority in range(7)], 4000)
    offered = Counter(priority for _, priority, _ in bottleneck.sent.values())
    lost = bottleneck.lost()
    shares = [lost[priority, False] / offered[priority] for priority in range(7)]
    assert shares[4:] == [0, 0, 0] and min(shares[:3]) > 0.9 and 0.2 < shares[3] < 0.8


def test_no_packet_leaves_before_one_of_a_higher_class_that_waits(dropping):
    start = {fields["sequence"]: when - SLOT_NS for when, fields, _ in dropping.left}
    order = [fields["sequence"] for _, fields, _ in dropping.left]
    by_class = defaultdict(list)
    for sequence in order:
        by_class[dropping.sent[sequence][1]].append(sequence)
    for low in (0, 3):
        for high in (3, 6):
            if high <= low:
                continue
            urgent = iter(by_class[high])
            pending = next(urgent, None)
            for sequence in by_class[low]:
                while pending is not None and order_of(order, pending) < order_of(order, sequence):
                    pending = next(urgent, None)
                if pending is not None:
                    arrived, _, _ = dropping.sent[pending]
                    assert arrived > start[sequence] - SLOT_NS // 4, "it waited, and the other went"


def order_of(order, sequence, cache={}):  # noqa: B006
    if id(order) not in cache:
        cache.clear()
        cache[id(order)] = {value: index for index, value in enumerate(order)}
    return cache[id(order)][sequence]


def test_the_counters_say_the_same(dropping):
    bench, lost = dropping.bench, dropping.lost()
    left = Counter((fields["priority"], bool(fields["protected"])) for _, fields, _ in dropping.left)
    for priority in range(7):
        assert bench.counter("dropped", DROPPABLE + priority)[0] == lost[priority, False]
        assert bench.counter("dropped", PROTECTED + priority)[0] == 0
        for protected, base in ((False, DROPPABLE), (True, PROTECTED)):
            assert bench.counter("forwarded", base + priority)[0] == left[priority, protected]


def test_protected_packets_are_marked_where_the_queue_is_long_and_no_others(dropping):
    marked = Counter()
    for _, fields, data in dropping.left:
        marked[fields["priority"], fields["protected"]] += data[15] & 3 == 3
    assert marked[0, 1] > 300 and marked[6, 1] == marked[3, 1] == 0
    assert all(count == 0 for (_, protected), count in marked.items() if not protected)
    assert dropping.bench.counter("marked", PROTECTED)[0] == marked[0, 1]


def test_the_queue_stays_as_long_as_the_threshold_says():
    """Ingress counts what it lets in between two departures, so a burst does not slip past the threshold."""
    bottleneck = Bottleneck(drop_at=10)
    for _ in range(40):
        bottleneck.arrive(1000, 2, False)
    bottleneck.drain()
    # One is on the link, ten wait.
    assert len(bottleneck.left) == 11 and bottleneck.lost() == {(2, False): 29}


def test_depths_are_stamped_as_the_packets_found_them():
    bottleneck = Bottleneck(drop_at=NEVER, stamp=1)
    for _ in range(20):
        bottleneck.arrive(1000, 2, True)
    bottleneck.drain()
    assert [fields["queue_depth"] for _, fields, _ in bottleneck.left] == [0, *range(19)]


def test_trimming_loses_no_packet_and_tells_of_the_payload_first():
    bottleneck = Bottleneck(trim=True, stamp=1)
    bottleneck.offer([(6, 1, 0.2), (3, 1, 0.2), (0, 1, 1.6)], 3000)  # headers need room too
    assert not bottleneck.lost()
    trimmed = [(when, fields) for when, fields, _ in bottleneck.left if fields["trimmed"]]
    assert len(trimmed) > 1000
    for when, fields in trimmed:
        arrived, priority, protected = bottleneck.sent[fields["sequence"]]
        assert (priority, protected) == (0, False)
        assert when - arrived < 3 * SLOT_NS, "behind what was on the link, before all that waited"
    for _, fields, data in bottleneck.left:
        assert len(data) == 14 + 20 + 8 + HEADER_BYTES + (0 if fields["trimmed"] else SIZE)


def test_a_link_that_was_down_with_a_full_queue_carries_droppable_packets_again():
    """What the queue held is gone without egress having seen it; the depth that ingress knows is that from before."""
    bottleneck = Bottleneck(drop_at=8)
    for _ in range(30):
        bottleneck.arrive(1000, 2, False)
    bottleneck.switch.set_port_state(OUT, False, 2000)
    bottleneck.switch.set_port_state(OUT, True, 3000)
    before = len(bottleneck.left)
    for number in range(600):
        bottleneck.arrive(1_000_000 + number * 2 * SLOT_NS, 2, False)
    bottleneck.drain()
    assert len(bottleneck.left) - before > 600 - 257
