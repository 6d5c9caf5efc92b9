"""A compiled program in the switch: nothing goes missing, and what the program sees of the switch is true."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch.pipeline import Pipeline
from softswitch.runtime.replication import CloneSession, MulticastGroup, Replica
from softswitch.statistics import statistics
from softswitch.switch import MAX_PASSES, Switch
from tests.softswitch import steer


def make_switch(**ports):
    pipeline = Pipeline.load(steer.JSON.read_bytes())
    pipeline.runtime.groups.insert(MulticastGroup(1, (Replica(1, 5), Replica(2, 6), Replica(2, 7))))
    pipeline.runtime.sessions.insert(CloneSession(1, (Replica(3, 9),), class_of_service=6))
    pipeline.runtime.sessions.insert(CloneSession(2, (Replica(1, 1), Replica(3, 2)), packet_length=34))
    switch = Switch()
    for number in (1, 2, 3):
        switch.add_port(number, **ports.get(f"p{number}", {}))
    switch.set_pipeline(pipeline)
    return switch


def drained(switch, now=0):
    sent = switch.transmit(now)
    while (due := switch.next_timer()) is not None:
        sent += switch.transmit(due)
    return sent


frames = st.builds(
    steer.frame,
    st.integers(0, 4),
    st.integers(0, 7),
    kind=st.integers(0, 5),
    after=st.integers(0, 5),
    number=st.integers(0, 3),
    tag=st.integers(0, 99),
    length=st.integers(34, 200),
)


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 3), frames | st.binary(max_size=60)), max_size=30))
@settings(max_examples=60)
def test_every_packet_of_a_real_program_is_accounted_for(script):
    switch = make_switch(p2={"rate_bps": 8_000_000, "queue_depth": 3}, p3={"delay_ns": 70_000, "loss": 0.2})
    now = taken = 0
    for gap, port, data in script:
        now += gap
        switch.receive(port, data, now)
        taken += len(switch.transmit(now))
        data = statistics(switch, now)
        assert switch.received + switch.copies == taken + data["waiting"] + sum(data["drops"].values())
    taken += len(drained(switch, now))
    data = statistics(switch, now)
    assert data["waiting"] == 0
    assert switch.received + switch.copies == taken + sum(data["drops"].values())
    assert switch.last_fault is None


def test_the_program_sees_the_queue_as_it_is():
    switch = make_switch(p2={"rate_bps": 8_000_000})
    for index in range(4):
        switch.receive(1, steer.frame(2, 3, tag=index, length=1000), index * 1000)
    seen = [steer.fields(data) for _, data in drained(switch)]
    assert [(each["tag"], each["before"], each["behind"], each["waited"]) for each in seen] == [
        (0, 0, 0, 0),
        (1, 0, 2, 999),
        (2, 1, 1, 1998),
        (3, 2, 0, 2997),
    ]


def test_copies_carry_their_kind_and_number():
    switch = make_switch()
    switch.receive(3, steer.frame(0, 2, kind=steer.REPLICATE, number=1), 0)
    seen = [(port, steer.fields(data)) for port, data in drained(switch)]
    assert sorted((port, each["rid"], each["instance"]) for port, each in seen) == [(1, 5, 5), (2, 6, 5), (2, 7, 5)]


def test_a_clone_in_ingress_goes_its_own_way():
    switch = make_switch()
    switch.receive(3, steer.frame(2, 2, kind=steer.COPY, number=2, length=100), 0)
    seen = {(port, len(data), steer.fields(data)["instance"]) for port, data in drained(switch) if len(data) >= 34}
    assert seen == {(1, 34, 1), (3, 34, 1), (2, 100, 0)}


def test_a_clone_in_egress_carries_what_egress_wrote_and_takes_its_class():
    switch = make_switch(p3={"rate_bps": 8_000_000})
    switch.receive(1, steer.frame(2, 2, after=steer.COPY_AFTER, number=1, tag=8), 0)
    assert [(port, steer.fields(data)["instance"], steer.fields(data)["tag"]) for port, data in drained(switch)] == [
        (2, 0, 8),
        (3, 2, 8),
    ]
    assert switch.ports[3].queues.enqueued[6] == 1


@pytest.mark.parametrize("way", [{"kind": steer.RESUBMIT}, {"after": steer.RECIRCULATE}])
def test_a_packet_comes_again_as_often_as_it_asks_with_what_it_preserves(way):
    switch = make_switch()
    for number in (3, MAX_PASSES):
        switch.receive(1, steer.frame(2, 2, number=number, **way), 0)
        assert [port for port, _ in drained(switch)] == [2]
    switch.receive(1, steer.frame(2, 2, number=MAX_PASSES + 1, **way), 0)
    assert drained(switch) == []
    assert statistics(switch, 1)["drops"] == {"too-many-passes": 1}


def test_the_length_that_egress_emits_is_what_occupies_the_link():
    switch = make_switch(p2={"rate_bps": 8_000_000})
    for _ in range(3):
        switch.receive(1, steer.frame(2, after=steer.CUT, length=1000), 0)
    assert switch.next_timer() == 40_000
    assert [len(data) for _, data in drained(switch)] == [40, 40, 40]
    assert switch.ports[2].link.busy_ns == 120_000
