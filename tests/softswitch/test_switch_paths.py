"""The ways of a packet through the switch, as simple_switch has them, and the bounds that it lacks."""

import pytest

from softswitch.errors import BadValue, UnknownObject
from softswitch.statistics import drops_by_cause
from softswitch.switch import MAX_PASSES, Switch
from tests.softswitch import scripted
from tests.softswitch.scripted import ScriptedPipeline, send, session, step

US = 1000
MS = 1000 * US


@pytest.fixture
def pipeline():
    return ScriptedPipeline()


@pytest.fixture
def switch(pipeline):
    switch = Switch(cpu_port=200, start=5 * MS)
    for number in (1, 2, 3, 4):
        switch.add_port(number)
    switch.set_pipeline(pipeline)
    return switch


def out(switch, now):
    return sorted(switch.transmit(now))


def test_a_packet_for_a_free_port_leaves_at_once_with_empty_queues(switch, pipeline):
    switch.receive(1, send(2, 3, length=100), 7 * MS)
    assert [(port, len(data)) for port, data in switch.transmit(7 * MS)] == [(2, 100)]
    assert pipeline.entered == [(1, 2000, 0, None)]
    assert pipeline.seen == [(2, 2000, 0, 0, 3, 2000, 0, 0, 0)]
    assert switch.next_timer() is None


def test_egress_sees_the_queue_that_it_left_and_how_long_the_wait_was(switch, pipeline):
    # 1000 bytes take 8 ms.
    switch.set_rate(2, 1_000_000, now=5 * MS)
    for index in range(3):
        switch.receive(1, send(2, 6, length=1000), 5 * MS + index * US)
    switch.receive(1, send(2, 7, length=1000), 5 * MS + 3 * US)
    assert switch.next_timer() == 13 * MS
    switch.transmit(12 * MS)
    assert len(pipeline.seen) == 1
    switch.transmit(45 * MS)
    assert pipeline.seen == [
        (2, 0, 0, 0, 6, 0, 0, 0, 0),
        (2, 8000, 0, 0, 7, 3, 0, 7997, 0),
        (2, 16000, 0, 0, 6, 1, 0, 15999, 1),
        (2, 24000, 0, 0, 6, 2, 1, 23998, 0),
    ]


def test_a_multicast_copy_carries_its_replication_id_and_the_kind_of_a_replica(switch, pipeline):
    pipeline.runtime.replicas[7] = ((1, 10), (3, 30), (3, 31))
    switch.receive(2, step(scripted.GROUP, 7, 5) + step(scripted.KEEP) + b"data", 5 * MS)
    assert out(switch, 5 * MS) == [(1, b"data"), (3, b"data"), (3, b"data")]
    assert [(entry[0], entry[2], entry[3], entry[4]) for entry in pipeline.seen] == [(1, 10, 5, 5), (3, 30, 5, 5), (3, 31, 5, 5)]
    assert switch.copies == 2
    switch.receive(2, step(scripted.GROUP, 8) + step(scripted.KEEP), 5 * MS)
    assert drops_by_cause(switch) == {"no-replica": 1}


def test_a_clone_goes_to_its_session_with_class_and_cut_and_the_packet_goes_on(switch, pipeline):
    pipeline.runtime.sessions.items[5] = session((3, 9), (4, 8), cos=6, length=10)
    packet = step(scripted.CLONE, 2, 1, 5) + step(scripted.KEEP) + bytes(range(40))
    switch.receive(1, packet, 5 * MS)
    assert out(switch, 5 * MS) == [(2, bytes(range(40))), (3, bytes(range(10))), (4, bytes(range(10)))]
    assert [(entry[0], entry[2], entry[3], entry[4]) for entry in pipeline.seen] == [(3, 9, 1, 6), (4, 8, 1, 6), (2, 0, 0, 1)]


def test_a_clone_in_egress_has_its_kind_and_goes_through_the_queue_of_its_port(switch, pipeline):
    pipeline.runtime.sessions.items[5] = session((3, 0))
    pipeline.runtime.sessions.items[0] = session()
    switch.set_rate(3, 1_000_000, now=5 * MS)
    for _ in range(2):
        switch.receive(1, step(scripted.SEND, 2) + step(scripted.CLONE, 0, 0, 5) + b"rest", 5 * MS)
    # The scripted copy clones itself again, and so on at its own egress, until it has been through too often.
    for _ in range(10 * MAX_PASSES):
        if (due := switch.next_timer()) is None:
            break
        switch.transmit(due)
    assert {entry[:1] + entry[3:4] for entry in pipeline.seen} == {(2, 0), (3, 2)}
    assert switch.next_timer() is None
    assert drops_by_cause(switch)["too-many-passes"] == 2


def test_a_clone_for_a_session_that_is_not_there_is_none(switch):
    switch.receive(1, step(scripted.CLONE, 2, 1, 77) + step(scripted.KEEP) + b"x", 5 * MS)
    assert out(switch, 5 * MS) == [(2, b"x")]
    assert switch.copies == 0 and not drops_by_cause(switch)


def test_resubmission_keeps_port_and_fields_and_its_kind_is_told(switch, pipeline):
    switch.receive(3, step(scripted.RESUBMIT, 2, 0, 3) + step(scripted.KEEP) + b"x", 6 * MS)
    assert out(switch, 6 * MS) == [(2, b"x")]
    assert pipeline.entered == [(3, 1000, 0, None), (3, 1000, 6, 2), (3, 1000, 6, 1), (3, 1000, 6, 0)]
    # simple_switch makes it a normal packet again before egress.
    assert pipeline.seen[0][3] == 0


def test_recirculation_takes_what_egress_emitted_through_ingress_again(switch, pipeline):
    inner = send(3, 4, length=20)
    switch.receive(1, step(scripted.SEND, 2) + step(scripted.AGAIN) + inner, 6 * MS)
    assert [(port, len(data)) for port, data in switch.transmit(6 * MS)] == [(3, 20)]
    assert pipeline.entered == [(1, 1000, 0, None), (1, 1000, 4, "kept")]


def test_no_program_can_hang_the_switch(switch, pipeline):
    for data in (step(scripted.RESUBMIT, 2, 0, 255) + step(scripted.KEEP), (step(scripted.SEND, 2) + step(scripted.AGAIN)) * 200):
        switch.receive(1, data, 5 * MS)
    assert drops_by_cause(switch) == {"too-many-passes": 2}
    assert len(pipeline.entered) == 2 * (MAX_PASSES + 1)


def test_copies_of_copies_stay_few(switch, pipeline):
    """Each copy asks for two more: without a bound there would be 2**64."""
    pipeline.runtime.sessions.items[1] = session((3, 0), (4, 0))
    switch.receive(1, step(scripted.SEND, 3) + step(scripted.CLONE, 0, 0, 1), 5 * MS)
    assert len(pipeline.seen) <= MAX_PASSES + 1
    assert drops_by_cause(switch)["too-many-passes"] > 0


def test_where_a_packet_cannot_go_it_is_counted_by_cause(switch):
    switch.receive(1, send(77), 5 * MS)
    switch.receive(1, send(2, 8), 5 * MS)
    switch.set_port_state(2, False, now=5 * MS)
    switch.receive(1, send(2), 5 * MS)
    switch.receive(2, send(1), 5 * MS)
    switch.receive(1, send(200), 5 * MS)
    switch.set_pipeline(None)
    switch.receive(1, send(3), 5 * MS)
    assert drops_by_cause(switch) == {"no-port": 1, "no-queue": 1, "port-down": 2, "no-controller": 1, "no-program": 1}
    assert switch.transmit(5 * MS) == []


def test_a_full_queue_takes_no_room_from_another(switch):
    switch.set_rate(2, 1_000_000, now=5 * MS)
    for index in range(100):
        switch.receive(1, send(2, 1, tag=index), 5 * MS)
        switch.receive(1, send(2, 6, tag=index), 5 * MS)
    port = switch.ports[2]
    assert port.queues.depths() == [0, 64, 0, 0, 0, 0, 64, 0]
    assert port.queues.dropped == [0, 35, 0, 0, 0, 0, 36, 0]
    assert drops_by_cause(switch) == {"queue-full": 71}


def test_the_controller_sends_and_gets_packets(switch):
    got = []
    switch.on_packet_in = got.append
    switch.receive(1, send(200, length=30, tag=9), 5 * MS)
    assert got == [(9).to_bytes(4, "big") + bytes(26)]
    switch.packet_out(send(4, length=10, tag=3), 5 * MS)
    assert switch.transmit(5 * MS) == [(4, (3).to_bytes(4, "big") + bytes(6))]
    assert switch.pipeline.entered[-1][0] == 200
    with pytest.raises(BadValue, match="--cpu-port"):
        Switch().packet_out(b"x")


def test_a_new_program_gets_no_packet_of_the_old_one_and_learns_which_ports_are_down(switch, pipeline):
    switch.set_rate(2, 1_000_000, now=5 * MS)
    for _ in range(5):
        switch.receive(1, send(2, length=1000), 5 * MS)
    switch.receive(1, step(scripted.DROP), 5 * MS)
    switch.set_port_state(3, False, now=5 * MS)
    fresh = ScriptedPipeline()
    switch.set_pipeline(fresh)
    assert fresh.runtime.ports == {1: True, 2: True, 3: False, 4: True, 200: True}
    # What is on the wire already arrives; what waited is gone; what the old program dropped stays counted.
    assert [port for port, _ in switch.transmit(100 * MS)] == [2]
    assert fresh.seen == []
    assert drops_by_cause(switch) == {"program-replaced": 4, "ingress": 1}


def test_a_port_that_goes_down_loses_what_waits_and_tells_once(switch):
    told = []
    switch.on_port_state = lambda number, up: told.append((number, up))
    switch.set_rate(2, 1_000_000, now=5 * MS)
    for _ in range(5):
        switch.receive(1, send(2, length=1000), 5 * MS)
    for up in (False, False, True, True):
        switch.set_port_state(2, up, now=6 * MS)
    assert told == [(2, False), (2, True)]
    assert switch.pipeline.runtime.ports[2]
    assert drops_by_cause(switch) == {"port-down": 5}
    switch.receive(1, send(2, length=1000), 7 * MS)
    assert switch.next_timer() == 15 * MS


def test_packets_wait_by_priority_while_the_outside_is_blocked(switch):
    switch.traffic.set_blocked(2, True, 5 * MS)
    for priority in (1, 7, 3):
        switch.receive(1, send(2, priority, length=8, tag=priority), 5 * MS)
    assert switch.transmit(6 * MS) == []
    assert switch.next_timer() is None
    switch.traffic.set_blocked(2, False, 7 * MS)
    assert [data[3] for _, data in switch.transmit(7 * MS)] == [7, 3, 1]


def test_what_came_during_a_pause_does_not_leave_before_its_end(switch, pipeline):
    switch.set_rate(2, 1_000_000, now=5 * MS)
    switch.traffic.set_blocked(2, True, 5 * MS)
    switch.receive(1, send(2, length=1000), 6 * MS)
    switch.traffic.set_blocked(2, False, 20 * MS)
    assert pipeline.seen == [(2, 15_000, 0, 0, 0, 1000, 0, 14_000, 0)]
    assert switch.next_timer() == 28 * MS


def test_a_link_that_becomes_faster_does_not_reorder(switch):
    switch.set_rate(2, 1_000_000, now=5 * MS)
    switch.receive(1, send(2, length=1000, tag=1), 5 * MS)
    switch.set_rate(2, None, now=6 * MS)
    switch.receive(1, send(2, length=1000, tag=2), 6 * MS)
    assert switch.transmit(12 * MS) == []
    assert [data[3] for _, data in switch.transmit(13 * MS)] == [1, 2]
    switch.receive(1, send(2, tag=3), 13 * MS)
    assert len(switch.transmit(13 * MS)) == 1


def test_what_egress_sends_back_during_a_change_is_not_forgotten(switch, pipeline):
    """A port that is unblocked runs egress, which may recirculate and clone: the next call of any kind goes on with that."""
    pipeline.runtime.sessions.items[1] = session((4, 0))
    again = step(scripted.SEND, 2) + step(scripted.AGAIN) + send(3, length=20)
    for replaced in (False, True):
        switch.traffic.set_blocked(2, True, 5 * MS)
        switch.receive(1, again, 5 * MS)
        switch.receive(1, step(scripted.SEND, 2) + step(scripted.CLONE, 0, 0, 1) + b"x", 5 * MS)
        switch.traffic.set_blocked(2, False, 5 * MS)
        assert switch.next_timer() == 5 * MS
        if replaced:
            fresh = ScriptedPipeline()
            fresh.runtime.sessions.items[1] = session((4, 0))
            switch.set_pipeline(fresh)
        sent = {port for port, _ in switch.transmit(5 * MS)}
        assert sent == ({2} if replaced else {2, 3, 4})
    assert drops_by_cause(switch)["program-replaced"] == 1


@pytest.mark.parametrize("bad", [511, 1, -1])
def test_a_port_number_is_free_and_not_the_drop_port(switch, bad):
    with pytest.raises(BadValue):
        switch.add_port(bad)


def test_unknown_ports_are_refused(switch):
    for act in (lambda: switch.receive(9, b"", 0), lambda: switch.set_port_state(9, True), lambda: switch.set_rate(9, 1)):
        with pytest.raises(UnknownObject, match="no port 9"):
            act()


def test_a_switch_has_queues_and_two_different_special_ports():
    with pytest.raises(BadValue):
        Switch(queues=0)
    with pytest.raises(BadValue):
        Switch(cpu_port=511)
