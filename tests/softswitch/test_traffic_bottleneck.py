"""A shared bottleneck of 100 Mbit/s under twice its load, in virtual time."""

import json
from collections import Counter

import pytest

from softswitch.statistics import Trace, statistics
from softswitch.switch import Switch
from tests.softswitch.scripted import ScriptedPipeline, send

RATE = 100_000_000
LENGTH = 1450
SLOT = LENGTH * 8 * 10**9 // RATE


def overloaded(shares, seconds=0.5, load=2.0):
    """Offers ``load`` times the rate, ``shares`` of it by class, interleaved evenly; returns what arrived by class, in order."""
    switch = Switch()
    switch.add_port(1)
    switch.add_port(2, rate_bps=RATE)
    switch.set_pipeline(ScriptedPipeline())
    lines = []
    trace = Trace(switch, lines.append)
    credit = dict.fromkeys(shares, 0.0)
    offered, arrived = Counter(), []
    gap = int(SLOT / load)
    end = int(seconds * 10**9)
    for index, now in enumerate(range(0, end, gap)):
        for priority, share in shares.items():
            credit[priority] += share
        priority = max(credit, key=credit.get)
        credit[priority] -= 1.0
        offered[priority] += 1
        arrived += [data[3] for _, data in switch.transmit(now)]
        switch.receive(1, send(2, priority, length=LENGTH, tag=priority), now)
        if not index % 100:
            trace.sample(now)
    during = len(arrived)
    while (due := switch.next_timer()) is not None:
        arrived += [data[3] for _, data in switch.transmit(due)]
    return switch, offered, Counter(arrived), during, [json.loads(line) for line in lines]


def test_class_6_loses_nothing_and_the_order_of_classes_is_strict():
    switch, offered, arrived, during, lines = overloaded({6: 0.2, 4: 0.15, 2: 0.3, 0: 0.35})
    lost = {priority: offered[priority] - arrived[priority] for priority in offered}
    # Classes 6 and 4 need 70 % of the link, class 2 gets the rest, class 0 next to nothing.
    assert lost[6] == lost[4] == 0
    assert 0 < lost[2] < 0.6 * offered[2]
    # All that class 0 gets is what it finds before the queues fill, and what is left in its queue at the end.
    assert arrived[0] <= 2 * 64 + 8
    assert statistics(switch, 1)["drops"] == {"queue-full": sum(lost.values())}
    queues = statistics(switch, 1)["ports"]["2"]["queues"]
    assert [queue["dropped"] for queue in queues] == [lost.get(priority, 0) for priority in range(8)]
    # The link never rests: within half a second 0.5 s / slot packets have left.
    assert abs(during - 0.5e9 // SLOT) <= 2
    # The trace shows it: the link is full, queue 0 stands, queue 6 is as good as empty.
    full = [line["ports"]["2"] for line in lines[10:]]
    assert all(0.97 <= port["utilisation"] <= 1.03 for port in full)
    assert all(port["depth"][0] >= 60 and port["depth"][6] <= 2 for port in full)


@pytest.mark.parametrize("load", [0.5, 0.99])
def test_below_the_rate_nobody_loses(load):
    switch, offered, arrived, _, _ = overloaded({7: 0.3, 1: 0.7}, load=load)
    assert arrived == offered
    assert not statistics(switch, 1)["drops"]
    assert max(queue["high_water"] for queue in statistics(switch, 1)["ports"]["2"]["queues"]) <= 1
