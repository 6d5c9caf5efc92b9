"""Whatever happens to a switch, every packet is accounted for, priorities are strict, and no rate is exceeded."""

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch.statistics import drops_by_cause, statistics
from softswitch.switch import Switch
from tests.softswitch import scripted
from tests.softswitch.scripted import ScriptedPipeline, send, session, step

PORTS = (1, 2, 3)
LAST = st.sampled_from([scripted.KEEP, scripted.DROP, scripted.FAULT])
destination = st.sampled_from([*PORTS, 9, 200])  # 9 has no port, 200 is the CPU port


@st.composite
def packets(draw):
    """A packet that goes through up to three rounds of ingress and egress."""
    data = step(scripted.SEND, draw(destination), draw(st.integers(0, 8))) + step(draw(LAST)) + bytes(draw(st.integers(0, 300)))
    for _ in range(draw(st.integers(0, 2))):
        where = (draw(destination), draw(st.integers(0, 7)), draw(st.integers(0, 3)))
        entry = draw(st.sampled_from([scripted.SEND, scripted.GROUP, scripted.CLONE, scripted.RESUBMIT]))
        leaving = draw(st.sampled_from([scripted.AGAIN, scripted.CLONE, scripted.DROP]))
        data = step(entry, *where) + step(leaving, 0, 0, draw(st.integers(0, 3))) + data
    return draw(st.sampled_from([data, step(scripted.DROP) + data, step(scripted.FAULT) + data]))


events = st.one_of(
    st.tuples(st.just("packet"), st.sampled_from(PORTS), packets()),
    st.tuples(st.just("batch"), st.sampled_from(PORTS), st.lists(packets(), max_size=6)),
    st.tuples(st.just("advance")),
    st.tuples(st.just("state"), st.sampled_from(PORTS), st.booleans()),
    st.tuples(st.just("rate"), st.sampled_from(PORTS), st.none() | st.integers(10**5, 10**9)),
    st.tuples(st.just("block"), st.sampled_from(PORTS), st.booleans()),
    st.tuples(st.just("program")),
    st.tuples(st.just("out"), packets()),
)


def balance(switch, taken):
    data = statistics(switch, 10**9)
    assert data["transmitted"] == taken + sum(len(port.out) for port in switch.ports.values())
    total = data["transmitted"] + data["packet_in"] + data["waiting"] + sum(data["drops"].values())
    assert switch.received + switch.copies == total
    at_ports = sum(sum(port.queues.depths()) + len(port.link.line) for port in switch.ports.values())
    assert data["waiting"] == at_ports + switch.pending()
    for port in switch.ports.values():
        queued = port.queues.packets > 0
        assert not (queued and port.direct)
        # The link never rests while something waits for it.
        if queued and not port.blocked:
            assert port.link.rate_bps is not None and port.due() is not None


@given(st.lists(st.tuples(st.integers(0, 10**6), events), max_size=40), st.booleans())
@settings(max_examples=150)
def test_every_packet_is_sent_or_waits_or_is_counted_as_dropped(script, controller):
    switch = Switch(cpu_port=200, seed=3)
    switch.add_port(1)
    switch.add_port(2, rate_bps=10**7, queue_depth=3)
    switch.add_port(3, rate_bps=10**6, queue_depth=None, queue_bytes=700, delay_ns=10**5, loss=0.3)
    if controller:
        switch.on_packet_in = lambda data: None

    def program():
        pipeline = ScriptedPipeline()
        pipeline.runtime.replicas = {1: ((1, 5), (2, 6), (3, 7)), 2: ((2, 1),), 9: ()}
        pipeline.runtime.sessions.items.update({1: session((2, 0), cos=7), 2: session((1, 1), (3, 1), length=20), 3: session()})
        return pipeline

    now = taken = 0
    for gap, (kind, *rest) in script:
        now += gap
        if kind == "packet":
            switch.receive(*rest, now)
        elif kind == "batch":
            switch.receive_batch(*rest, now)
        elif kind == "advance":
            taken += len(switch.transmit(now))
        elif kind == "state":
            switch.set_port_state(*rest, now=now)
        elif kind == "rate":
            switch.set_rate(*rest, now=now)
        elif kind == "block":
            switch.traffic.set_blocked(*rest, now)
        elif kind == "program":
            switch.set_pipeline(program())
            assert all(switch.pipeline.runtime.ports[number] == switch.ports[number].up for number in PORTS)
        else:
            switch.packet_out(*rest, now=now)
        balance(switch, taken)
    for number in PORTS:
        switch.traffic.set_blocked(number, False, now)
    while (due := switch.next_timer()) is not None:
        now = max(now, due)
        taken += len(switch.transmit(now))
        balance(switch, taken)
    assert statistics(switch, now)["waiting"] == 0
    assert "internal-error" not in drops_by_cause(switch) or switch.last_fault is not None


arrivals = st.lists(
    st.tuples(st.integers(0, 2_000_000), st.integers(0, 7), st.integers(60, 1500)),
    min_size=1,
    max_size=60,
)


@given(arrivals, st.integers(10**5, 10**8), st.lists(st.integers(0, 3), max_size=60))
def test_a_port_is_strict_and_first_in_first_out_and_never_faster_than_its_rate(packets, rate, late):
    """Checked against the plain definition, packet by packet, whether or not the switch is served on time."""
    switch = Switch()
    switch.add_port(1)
    switch.add_port(2, rate_bps=rate, queue_depth=None)
    switch.set_pipeline(ScriptedPipeline())
    now, sent, waiting = 0, [], []
    for serial, (gap, priority, length) in enumerate(packets):
        now += gap
        waiting.append((now, priority, serial, length))
        if serial < len(late) and late[serial]:
            sent += [data for _, data in switch.transmit(now)]
        switch.receive(1, send(2, priority, length=length, tag=serial), now)
    while (due := switch.next_timer()) is not None:
        sent += [data for _, data in switch.transmit(due)]
    order = [int.from_bytes(data[:4], "big") for data in sent]

    expected, free, bits, begin = [], 0, 0, 0
    while waiting:
        if not any(entry[0] <= free for entry in waiting):
            free = begin = min(entry[0] for entry in waiting)
            bits = 0
        # Of those that were there when the link became free, the highest class, and of that the oldest.
        chosen = max((entry for entry in waiting if entry[0] <= free), key=lambda entry: (entry[1], -entry[2]))
        # A link that idled serves what comes first, even if more comes at that same instant.
        if not bits:
            chosen = min((entry for entry in waiting if entry[0] <= free), key=lambda entry: entry[2])
        waiting.remove(chosen)
        expected.append(chosen[2])
        bits += 8 * chosen[3]
        free = begin + -(-bits * 10**9 // rate)
    assert order == expected


@given(arrivals, st.integers(10**5, 10**8))
def test_no_window_carries_more_than_the_rate(packets, rate):
    switch = Switch()
    switch.add_port(1)
    switch.add_port(2, rate_bps=rate, queue_depth=None)
    switch.set_pipeline(ScriptedPipeline())
    now, ends = 0, []
    for gap, priority, length in packets:
        now += gap
        while (due := switch.next_timer()) is not None and due <= now:
            ends += [(due, len(data)) for _, data in switch.transmit(due)]
        switch.receive(1, send(2, priority, length=length), now)
    while (due := switch.next_timer()) is not None:
        ends += [(due, len(data)) for _, data in switch.transmit(due)]
    assert len(ends) == len(packets)
    before = list(accumulate((length for _, length in ends), initial=0))
    for first in range(len(ends)):
        for last in range(first + 1, len(ends)):
            # Packets first+1 to last were serialized after the end of packet first and by the end of packet last.
            carried = 8 * (before[last + 1] - before[first + 1])
            assert carried * 10**9 <= rate * (ends[last][0] - ends[first][0] + 1)
