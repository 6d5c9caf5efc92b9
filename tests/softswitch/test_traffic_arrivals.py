"""Frames enter in the order in which they arrived, however late and in whatever portions they are read."""

from hypothesis import given
from hypothesis import strategies as st

from softswitch.arrivals import Arrivals

gaps = st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 2)), max_size=60)


@given(gaps, st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 5)), min_size=1, max_size=40))
def test_a_late_reader_sees_what_a_punctual_one_would(packets, reads):
    """Ports hold what has arrived by the time of a read; each read takes at most some frames from each port."""
    now, arrived = 0, []
    for serial, (gap, port) in enumerate(packets):
        now += gap
        arrived.append((now, port, serial.to_bytes(2, "big")))
    unread = {port: [entry for entry in arrived if entry[1] == port] for port in range(3)}
    arrivals, got = Arrivals(), []
    clock = known = 0
    schedule = [*reads, *[(10**6, 5)] * len(packets)]
    for pause, limit in schedule:
        clock += pause
        for port, entries in unread.items():
            there = [entry for entry in entries if entry[0] <= clock][:limit]
            if there:
                del entries[: len(there)]
                arrivals.add(port, [entry[2] for entry in there], [entry[0] for entry in there], len(there) == limit)
        ready, horizon = arrivals.take(clock)
        assert known <= horizon <= clock
        known = horizon
        got += [(time, port, data) for time, _, port, data in ready]
        assert not got or got[-1][0] <= horizon
    assert not arrivals.waiting
    assert got == arrived


def test_a_time_stamp_from_before_what_is_known_becomes_that_time():
    arrivals = Arrivals()
    assert arrivals.take(1000) == ([], 1000)
    arrivals.add(1, [b"a", b"b", b"c"], [900, 1005, 2000], False)
    ready, horizon = arrivals.take(1500)
    assert [(time, data) for time, _, _, data in ready] == [(1000, b"a"), (1005, b"b")]
    assert horizon == 1500 and arrivals.waiting
    ready, horizon = arrivals.take(1400)
    assert (ready, horizon) == ([], 1500)
    ready, _ = arrivals.take(2000)
    assert [data for _, _, _, data in ready] == [b"c"]


def test_one_busy_port_does_not_hold_up_another_for_ever():
    arrivals = Arrivals()
    arrivals.add(2, [b"x"] * 5000, list(range(5000)), False)
    arrivals.add(1, [b"y"], [10], True)
    ready, horizon = arrivals.take(6000)
    assert len(ready) == 5001 and horizon == 6000
