"""Spraying: DLCP packets take all paths, in turn or at random, as the table of classes says; paths that are down are skipped."""

from collections import Counter

import pytest

from dlcp.wire.header import PacketType
from tests.p4 import frames
from tests.softswitch.targets import eventually

FLOW, ROUND_ROBIN, RANDOM = range(3)


def load(bench, count, **fields):
    """Ports that ``count`` DLCP packets of one flow left through."""
    frame = frames.dlcp(dst_mac=frames.GROUP_MAC, **fields)
    left = bench.send_all([(1, frame)] * count)
    assert len(left) == count and {got for _, got in left} == {frame}
    return Counter(port for port, _ in left)


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
def test_in_turn_every_path_carries_the_same(spread, ipv6):
    spread.treat(ROUND_ROBIN)
    ports = load(spread, 400, ipv6=ipv6)
    assert ports == {2: 100, 3: 100, 4: 100, 5: 100}
    assert max(ports.values()) / ports.total() <= 0.26


def test_at_random_every_path_carries_about_the_same(spread):
    spread.treat(RANDOM)
    ports = load(spread, 800)
    # 200 of 800 each; 6 standard deviations are 73.
    assert set(ports) == {2, 3, 4, 5} and all(127 < count < 273 for count in ports.values())


def test_without_spraying_a_flow_keeps_to_one_path(spread):
    spread.treat(FLOW)
    assert len(load(spread, 16)) == 1


def test_a_class_that_the_table_does_not_list_keeps_to_one_path(spread):
    spread.treat(ROUND_ROBIN, classes=(6,))
    assert len(load(spread, 16, priority=3)) == 1
    assert len(load(spread, 16, priority=6)) == 4


def test_each_class_is_sprayed_as_its_entry_says(spread):
    spread.treat(ROUND_ROBIN, classes=range(7))
    spread.treat(FLOW, classes=(7,))
    assert len(load(spread, 16, priority=0)) == 4
    assert len(load(spread, 16, priority=7, protected=True, kind=PacketType.FEEDBACK)) == 1


def test_ordinary_traffic_is_not_sprayed(spread):
    spread.treat(ROUND_ROBIN)
    left = spread.send_all([(1, frames.udp(dst_mac=frames.GROUP_MAC))] * 16)
    assert len({port for port, _ in left}) == 1


def test_groups_take_turns_by_themselves(spread):
    """Packets that alternate between two groups would meet the same path of each again and again with one turn for all."""
    spread.treat(ROUND_ROBIN)
    spread.group(2, [6, 7])
    spread.entry("bridge", {"dst_addr": frames.MACS[8]}, "to_group", group=2, salt=0)
    pair = [(1, frames.dlcp(dst_mac=frames.GROUP_MAC)), (1, frames.dlcp(1, 8))]
    ports = Counter(port for port, _ in spread.send_all(pair * 40))
    assert ports == {2: 10, 3: 10, 4: 10, 5: 10, 6: 20, 7: 20}


@pytest.mark.parametrize("spray", [FLOW, ROUND_ROBIN, RANDOM])
def test_a_path_that_is_down_carries_none_and_is_used_again_when_up(spread, spray):
    spread.treat(spray)

    def used():
        flows = [(1, frames.dlcp(dst_mac=frames.GROUP_MAC, sport=10_000 + flow)) for flow in range(120)]
        return Counter(port for port, _ in spread.send_all(flows))

    assert set(used()) == {2, 3, 4, 5}
    spread.link(3, up=False)
    eventually(lambda: 3 not in used())
    ports = used()
    assert set(ports) == {2, 4, 5}
    if spray == ROUND_ROBIN:
        assert set(ports.values()) == {40}
    spread.link(3, up=True)
    eventually(lambda: 3 in used())
    assert set(used()) == {2, 3, 4, 5}


def test_weights_share_unequal_paths(spread):
    spread.treat(ROUND_ROBIN)
    spread.group(3, [2, 2, 2, 3])
    spread.entry("bridge", {"dst_addr": frames.MACS[8]}, "to_group", group=3, salt=0)
    ports = Counter(port for port, _ in spread.send_all([(1, frames.dlcp(1, 8))] * 40))
    assert ports == {2: 30, 3: 10}
