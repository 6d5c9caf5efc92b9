"""Damaged, cut and random frames through a switch with everything switched on: each is accounted for, and none stops it."""

import random

import pytest

from tests.p4 import bench as benches
from tests.p4 import frames
from tests.p4.bench import DISCARDS, NEVER

FRAMES = 6000


@pytest.fixture(scope="module")
def everything():
    bench = benches.spread(benches.route(benches.bridge(benches.softswitch_bench())))
    bench.treat(spray=1, stamp=1)
    bench.default("bridge", "discard")
    bench.group(2, [2, 3], routed=True)
    bench.entry("ipv4_routes", {"dst_addr": ("0.0.0.0", 0)}, "to_group", group=2, salt=1)
    bench.entry("jobs", {"udp_port": (0, 30_000)}, "police", priority=1, hard=1)
    bench.entry("jobs", {"cookie": 0}, "demote", priority=2)
    for queue in range(8):
        bench.entry("dscp_classes", {"dscp": 8 * queue}, "assign", queue=queue)
        action = {"trim_at": 0, "dscp": 56} if queue % 2 else {"drop_at": 0}
        name = "trim_from" if queue % 2 else "drop_from"
        bench.entry("limits", {"queue": queue, "protected": 0}, name, priority=1, mark_at=0, **action)
        bench.entry("limits", {"queue": queue, "protected": 1}, "drop_from", priority=1, drop_at=NEVER, mark_at=0)
    return bench


def whole(rng):
    """A frame of some kind."""
    address = rng.choice([None, None, frames.ROUTER, frames.GROUP_MAC])
    tags = rng.choice([(), (), (1,), (1, 2)])
    common = dict(ipv6=rng.random() < 0.5, vlans=tags, size=rng.randint(0, 200), dst_mac=address, ttl=rng.choice([0, 1, 2, 64]))
    if rng.random() < 0.7:
        return frames.dlcp(1, rng.randint(2, 4), priority=rng.randrange(8), protected=rng.random() < 0.3, **common)
    return frames.udp(1, rng.randint(2, 4), tos=rng.randrange(256), **common)


def damaged(rng, frame):
    """The frame, more or less broken."""
    frame = bytearray(frame)
    kind = rng.randrange(4)
    if kind >= 1:
        for _ in range(rng.randint(1, 8)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
    if kind >= 2:
        del frame[rng.randrange(len(frame) + 1) :]
    if kind == 3:
        frame += rng.randbytes(rng.randint(0, 100))
    return bytes(frame)


def test_every_frame_is_accounted_for(everything):
    rng = random.Random(5)
    some = [whole(rng) for _ in range(500)]
    sent = everything.send_all((rng.choice([1, 1, 2, 3]), damaged(rng, rng.choice(some))) for _ in range(FRAMES))
    count = everything.counter
    left = sum(count(name, cell)[0] for name in ("forwarded", "trimmed") for cell in range(24))
    gone = sum(count("dropped", cell)[0] for cell in range(24))
    discarded = {name: count("discarded", cell)[0] for name, cell in DISCARDS.items()}
    assert left == len(sent)
    assert left + gone + sum(discarded.values()) == FRAMES
    assert left > FRAMES / 10 and gone > FRAMES / 100
    assert all(discarded[name] for name in ("malformed", "unknown", "expired", "hairpin"))
    assert count("discarded", 6) == count("discarded", 7) == (0, 0)
    assert all(len(data) >= 14 for _, data in sent)
