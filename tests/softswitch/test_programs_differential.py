"""The softswitch against BMv2: the same random entries and packets into both; packets out, counters, registers, digests compared.

A step that one of them refuses the other must refuse as well.  Nothing here depends on time: meters have bursts but no rates.  No
index is beyond its array: a release build of BMv2 then writes where it should not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from softswitch.errors import SwitchError
from tests.softswitch.bmv2 import Bmv2Target, missing
from tests.softswitch.build_programs import PROGRAMS
from tests.softswitch.targets import SoftswitchTarget

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no BMv2 to compare with: {missing()}")

EXAMPLES = int(os.environ.get("DIFFERENTIAL_EXAMPLES", "6"))
"""Each starts a BMv2 of its own."""

PHASES = [Phase.generate, Phase.shrink] if "DIFFERENTIAL_EXAMPLES" in os.environ else [Phase.generate]
"""Making a failing example small takes minutes."""

Step = tuple[str, tuple[Any, ...], dict[str, Any]]
MACS = [0x020000000001, 0x020000000002, 0x0200000000FE]
PORTS = st.integers(1, 5)
ADDRESSES = st.sampled_from([0x0A000001, 0x0A000101, 0x0A000102, 0x0A010203, 0xC0A80001, 0xFFFFFFFF])


def step(method: str, *arguments: Any, **parameters: Any) -> st.SearchStrategy[Step]:
    """A call of a target; strategies among the arguments are drawn."""

    def strategy(value: Any) -> Any:
        if isinstance(value, dict):
            return st.fixed_dictionaries({name: strategy(item) for name, item in value.items()})
        return value if isinstance(value, st.SearchStrategy) else st.just(value)

    return st.tuples(st.just(method), st.tuples(*map(strategy, arguments)), strategy(parameters))


def steps(*choices: st.SearchStrategy[Step], most: int = 8) -> st.SearchStrategy[list[Step]]:
    return st.lists(st.one_of(*choices), max_size=most)


def bits(width: int) -> st.SearchStrategy[int]:
    full = (1 << width) - 1
    return st.sampled_from([0, 1, full, full >> 1, 1 << (width - 1)]) | st.integers(0, full)


def prefix(width: int, values: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[int, int] | None]:
    """A canonical prefix; None for the one of length 0."""
    return st.tuples(values, st.integers(0, width)).map(
        lambda p: (p[0] >> (width - p[1]) << (width - p[1]), p[1]) if p[1] else None
    )


def ternary(width: int) -> st.SearchStrategy[tuple[int, int] | None]:
    return st.tuples(bits(width), bits(width)).map(lambda p: (p[0] & p[1], p[1]) if p[1] else None)


def interval(width: int) -> st.SearchStrategy[tuple[int, int] | None]:
    """None for the whole range.  BMv2 takes 0..255 for the whole whatever the width, and refuses it."""
    full = (1 << width) - 1

    def ordered(pair: tuple[int, int]) -> tuple[int, int] | None:
        low, high = min(pair), max(pair)
        if (low, high) == (0, full):
            return None
        return (low, 254) if (low, high) == (0, 255) else (low, high)

    return st.tuples(bits(width), bits(width)).map(ordered)


# Packets


def joined(*parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(*parts).map(b"".join)


def number(size: int, values: st.SearchStrategy[int]) -> st.SearchStrategy[bytes]:
    return values.map(lambda value: value.to_bytes(size))


def ether(kind: st.SearchStrategy[int] | int) -> st.SearchStrategy[bytes]:
    kinds = kind if isinstance(kind, st.SearchStrategy) else st.sampled_from([kind] * 9 + [0x88B5])
    return joined(number(6, st.sampled_from(MACS)), number(6, st.sampled_from(MACS)), number(2, kinds))


def raw(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


PAYLOAD = st.binary(max_size=40)


def checked(header: bytes, right: bool) -> bytes:
    """An IPv4 header with its checksum."""
    if not right:
        return header
    header = header[:10] + b"\0\0" + header[12:]
    total = sum(int.from_bytes(header[i : i + 2]) for i in range(0, len(header), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return header[:10] + (~total & 0xFFFF).to_bytes(2) + header[12:]


def ipv4(protocol: st.SearchStrategy[int], options: st.SearchStrategy[bytes] | None = None) -> st.SearchStrategy[bytes]:
    def build(
        tos: int, lengths: bytes, ttl: int, kind: int, source: int, destination: int, extra: bytes, ihl: int | None, right: bool
    ) -> bytes:
        words = 5 + len(extra) // 4 if ihl is None else ihl
        head = bytes([0x40 | words, tos]) + lengths + bytes([ttl, kind]) + bytes(2)
        return checked(head + source.to_bytes(4) + destination.to_bytes(4) + extra, right)

    return st.builds(
        build,
        st.integers(0, 255),
        raw(6),
        st.sampled_from([0, 1, 2, 64, 255]),
        protocol,
        ADDRESSES,
        ADDRESSES,
        st.just(b"") if options is None else options,
        st.sampled_from([None] * 8 + [0, 4, 5, 6, 15]),
        st.sampled_from([True] * 5 + [False]),
    )


def damaged(packets: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Most as they are, some cut short."""
    return packets | packets | packets | st.tuples(packets, st.integers(1, 70)).map(lambda p: p[0][: p[1]])


PROTOCOLS = st.sampled_from([6, 17, 1])
IP_PACKET = joined(ether(0x0800), ipv4(PROTOCOLS), raw(20), PAYLOAD)


def options() -> st.SearchStrategy[bytes]:
    return st.integers(0, 10).flatmap(lambda words: raw(4 * words))


def hops() -> st.SearchStrategy[bytes]:
    return st.tuples(st.lists(raw(8), max_size=4), st.sampled_from([0] * 6 + [1, -1, 9]), st.sampled_from([31] * 5 + [7])).map(
        lambda p: bytes([p[2], 4 + 8 * len(p[0])]) + ((len(p[0]) + p[1]) & 0xFFFF).to_bytes(2) + b"".join(p[0])
    )


# Programs


@dataclass
class Case:
    """One program: how to set it up, what to send, and what to compare besides the packets.

    Attributes:
        ordered: Packets leave a port in one order only.
        apart: One packet at a time, because a queue's depth shows in the packet.
        masked: Hides times.
    """

    setup: st.SearchStrategy[list[Step]]
    packets: st.SearchStrategy[bytes]
    counters: dict[str, int] = field(default_factory=dict)
    registers: tuple[str, ...] = ()
    direct: tuple[str, ...] = ()
    digest: str | None = None
    ordered: bool = True
    apart: bool = False
    masked: Callable[[bytes], bytes] = bytes


def case(setup: st.SearchStrategy[list[Step]], packets: st.SearchStrategy[bytes], **more: Any) -> Case:
    return Case(setup, packets, **more)


ROUTE = {"dst_addr": prefix(32, ADDRESSES)}
TO_PORT = step("entry", "routes", ROUTE, "forward", port=PORTS)


def priority(table: str, match: dict[str, Any], action: str) -> st.SearchStrategy[Step]:
    return step("entry", table, match, action, st.integers(1, 6), entry=st.integers(1, 250))


def without_times(packet: bytes) -> bytes:
    if packet[12:14] != b"\x08\x12":
        return packet
    for start in range(15, 15 + 18 * packet[14], 18):
        packet = packet[: start + 6] + bytes(12) + packet[start + 18 :]
    return packet


def paths(count: int) -> st.SearchStrategy[list[Step]]:
    members: list[Step] = [("member", ("paths", n, "forward"), {"dst_addr": n, "port": n}) for n in range(1, count + 1)]
    chosen = st.lists(st.integers(1, count), min_size=1, unique=True).map(lambda numbers: [(n, 1, None) for n in numbers])
    match = {"hdr.ipv4.dst_addr": prefix(32, ADDRESSES)}
    hop: list[Step] = [("entry", ("hops", {"hop": n}, "forward"), {"dst_addr": n, "port": n}) for n in range(1, 6)]
    return st.tuples(
        step("group", "paths", 1, chosen),
        steps(
            step("to_group", "selected", match, st.integers(1, 2)),
            step("to_member", "selected", match, st.integers(1, count + 1)),
            step("entry", "hashed", ROUTE, "spread", base=st.integers(0, 3), count=st.integers(0, 4)),
            most=4,
        ),
    ).map(lambda p: [*members, p[0], *p[1], *hop])


METERS = st.tuples(st.integers(0, 400), st.integers(0, 600))
SOURCE = {"src_addr": ADDRESSES}
COPIES = st.lists(st.tuples(PORTS, st.integers(0, 3)), min_size=1, max_size=4)
SESSIONS = st.integers(1, 3)

CASES = {
    "arithmetic": case(st.just([]), damaged(joined(ether(1), raw(1), raw(1), raw(2), raw(4), raw(8)))),
    "matching": case(
        steps(
            step("entry", "exact_table", {"a": bits(8), "d": bits(4)}, "exact_hit", entry=st.integers(1, 250)),
            step("entry", "prefix_table", {"d": bits(4), "c": prefix(16, bits(16))}, "prefix_hit", entry=st.integers(1, 250)),
            priority("ternary_table", {"a": ternary(8), "c": ternary(16), "d": ternary(4)}, "ternary_hit"),
            priority("range_table", {"a": interval(8), "c": interval(16), "d": interval(4)}, "range_hit"),
            priority(
                "mixed_table",
                {"d": bits(4), "a": ternary(8), "b": st.none() | bits(8), "c": prefix(16, bits(16)), "ingress_port": interval(9)},
                "mixed_hit",
            ),
            most=24,
        ),
        damaged(
            joined(ether(bits(16)), *[number(1, bits(8)) for _ in range(4)], number(1, bits(4).map(lambda d: d << 4)), raw(7))
        ),
        direct=("prefix_table", "ternary_table"),
    ),
    "forwarding": case(
        steps(
            step("entry", "routes", ROUTE, "forward", dst_addr=st.sampled_from(MACS), port=PORTS),
            step("entry", "routes", ROUTE, "drop"),
        ),
        damaged(joined(ether(0x0800), ipv4(PROTOCOLS, options()), PAYLOAD)),
        direct=("routes",),
    ),
    "tunnel": case(
        steps(
            TO_PORT,
            step("entry", "routes", ROUTE, "enter", id=st.integers(0, 70)),
            step("entry", "tunnels", {"id": st.integers(0, 70)}, "forward", port=PORTS),
            step("entry", "tunnels", {"id": st.integers(0, 70)}, "leave", port=PORTS),
            step("default", "tunnels", "leave", port=PORTS),
        ),
        damaged(
            IP_PACKET | joined(ether(0x1212), number(2, st.sampled_from([0x0800, 1])), number(2, st.integers(0, 70)), raw(40))
        ),
        counters={"entered": 128, "left": 128},
    ),
    "ecn": case(
        steps(
            step("entry", "stations", {"dst_addr": st.sampled_from(MACS)}, "forward", port=PORTS),
            step("entry", "thresholds", {"egress_port": PORTS}, "set_threshold", packets=st.sampled_from([0, 500])),
        ),
        damaged(IP_PACKET),
        counters={"marked": 6},
    ),
    "telemetry": case(
        steps(TO_PORT, step("default", "identity", "push", switch_id=bits(32))),
        damaged(joined(ether(0x0800), ipv4(PROTOCOLS, hops()), PAYLOAD)),
        apart=True,
    ),
    "balance": case(paths(4), damaged(IP_PACKET)),
    "calc": case(
        st.just([]),
        damaged(
            joined(
                ether(0x1234),
                st.just(b"P4\x01"),
                st.sampled_from(list(b"+-*&|^PMLRA<?")).map(lambda b: bytes([b])),
                raw(12),
                PAYLOAD,
            )
        ),
    ),
    "source_route": case(
        st.just([]),
        damaged(
            joined(
                ether(0x1234),
                st.lists(PORTS, max_size=10).map(lambda p: b"".join(n.to_bytes(2) for n in p)),
                PORTS.map(lambda n: (0x8000 | n).to_bytes(2)),
                ipv4(PROTOCOLS),
                PAYLOAD,
            )
        ),
    ),
    "multicast": case(
        steps(
            step("multicast", st.integers(1, 3), COPIES),
            step("entry", "stations", {"dst_addr": ternary(48)}, "replicate", st.integers(1, 5), group=st.integers(0, 3)),
            step("entry", "stations", {"dst_addr": ternary(48)}, "forward", st.integers(1, 5), port=PORTS),
            step("default", "stations", "replicate", group=st.integers(0, 3)),
        ),
        damaged(joined(ether(1), PAYLOAD)),
        ordered=False,
    ),
    "learning": case(
        steps(
            step("multicast", 1, COPIES),
            step("entry", "sources", {"src_addr": st.sampled_from(MACS)}, "NoAction"),
            step("entry", "destinations", {"dst_addr": st.sampled_from(MACS)}, "forward", port=PORTS),
        ),
        joined(ether(1), PAYLOAD),  # a header that is cut has fields of an earlier packet in BMv2,
        digest="station_t",
        ordered=False,
    ),
    "policer": case(
        steps(
            step("entry", "stations", {"dst_addr": st.sampled_from(MACS)}, "forward", port=PORTS),
            step("entry", "sources", SOURCE, "meter_source"),
            step("meter", "port_meter", PORTS, st.just(0), st.integers(0, 400), st.just(0), st.integers(0, 800)),
            step(
                "direct_meter", "sources", SOURCE, rates=st.tuples(st.just(0), st.integers(0, 4), st.just(0), st.integers(0, 6))
            ),
            step("entry", "colors", {"color": st.integers(0, 3)}, "drop"),
            most=14,
        ),
        damaged(IP_PACKET),
    ),
    "mirror": case(
        steps(
            step("clone_session", SESSIONS, COPIES),
            step("clone_session", SESSIONS, COPIES),
            step("entry", "stations", {"dst_addr": st.sampled_from(MACS)}, "forward", port=PORTS),
            step("entry", "watched", {"ether_type": st.sampled_from([1, 0x88B5])}, "mirror", session=SESSIONS, reason=bits(8)),
            step("entry", "watched_leaving", {"egress_port": PORTS}, "mirror", session=SESSIONS, reason=bits(8)),
            most=12,
        ),
        damaged(joined(ether(1), PAYLOAD)),
        ordered=False,
    ),
    "again": case(
        st.just([]),
        damaged(joined(ether(0x8765), number(1, st.integers(0, 3)), number(1, st.integers(0, 3)), raw(4), PAYLOAD)),
        registers=("passes",),
        ordered=False,
    ),
    "firewall": case(
        steps(
            TO_PORT,
            step("entry", "sides", {"ingress_port": interval(9)}, "set_inside", st.integers(1, 5), inside=bits(1)),
            step("write_register", "first_filter", st.integers(0, 4095), bits(1)),
        ),
        damaged(IP_PACKET),
        registers=("first_filter", "second_filter"),
    ),
    "monitor": case(
        steps(TO_PORT, step("default", "identity", "set_switch_id", switch_id=bits(7))),
        damaged(
            IP_PACKET
            | joined(
                ether(0x0812),
                number(1, st.integers(0, 3)),
                st.lists(raw(17), max_size=3).map(
                    lambda r: b"".join(bytes([0x80 * (i == len(r) - 1)]) + item for i, item in enumerate(r))
                ),
                st.lists(PORTS, max_size=7).map(bytes),
            )
        ),
        registers=("bytes_sent",),
        masked=without_times,
    ),
}


def apply(target: Any, taken: Step) -> bool:
    """Whether the target takes it."""
    method, arguments, parameters = taken
    try:
        getattr(target, method)(*arguments, **parameters)
    except SwitchError:
        return False
    return True


@pytest.mark.parametrize("program", CASES)
def test_both_do_the_same(program: str) -> None:
    tested = CASES[program]
    size = 16 if not tested.ordered or tested.apart else 40

    @settings(max_examples=EXAMPLES, phases=PHASES, suppress_health_check=list(HealthCheck))
    @given(tested.setup, st.lists(st.tuples(PORTS, tested.packets), min_size=1, max_size=size))
    def compare(setup: list[Step], packets: list[tuple[int, bytes]]) -> None:
        path = PROGRAMS / f"{program}.json"
        ours = SoftswitchTarget(path.read_text())
        with Bmv2Target(path) as theirs:
            entries = []
            for one in setup:
                taken = apply(ours, one)
                assert (one, taken) == (one, apply(theirs, one))
                if taken and one[0] == "entry" and one[1][0] in tested.direct:
                    entries.append(one[1][:2] + one[1][3:4])
            batches = [[packet] for packet in packets] if tested.apart else [packets]
            for batch in batches:
                left = [[(port, tested.masked(data)) for port, data in target.send_all(batch)] for target in (ours, theirs)]
                if not tested.ordered:
                    left = [sorted(packets) for packets in left]
                assert left[0] == left[1]
            for name, cells in tested.counters.items():
                assert [ours.counter(name, cell) for cell in range(cells)] == theirs.counters(name)[:cells]
            for name in tested.registers:
                assert ours.registers(name) == theirs.registers(name)
            for entry in entries:
                assert ours.direct_counter(*entry) == theirs.direct_counter(*entry)
            if tested.digest is not None:
                sent = {values for _, values in ours.runtime.digests.drain()}
                assert sent == set(theirs.digests(tested.digest, len(sent)))

    compare()
