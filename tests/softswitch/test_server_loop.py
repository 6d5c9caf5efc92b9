"""The server with a switch that has a thread of its own and forwards meanwhile."""

import threading

import pytest

pytest.importorskip("finsy", reason="needs the extra p4")

from finsy.proto import p4r

from softswitch.loop import SwitchLoop
from softswitch.ports import MemoryIO
from softswitch.server import P4RuntimeServer
from softswitch.switch import Switch
from tests.softswitch.server_lab import DELETE, INSERT, MODIFY, Controller
from tests.softswitch.test_server_streams import ethernet, packet_out, wait_for


class Rig:
    """A running switch with ports 1 to 4 in memory, and its primary."""

    def __init__(self):
        self.switch = Switch(cpu_port=510)
        self.loop = SwitchLoop(self.switch, device_id=1)
        self.ios = {number: MemoryIO(f"m{number}") for number in range(1, 5)}
        for number, io in self.ios.items():
            self.switch.add_port(number)
            self.loop.attach(number, io)
        self.server = P4RuntimeServer([self.loop], "127.0.0.1:0")
        self.controller = Controller(f"127.0.0.1:{self.server.start()}")


@pytest.fixture
def rig():
    rig = Rig()
    try:
        with rig.loop.running():
            rig.controller.bid(1)
            rig.controller.set_pipeline()
            yield rig
            rig.controller.__exit__()
            rig.server.stop()
    finally:
        rig.loop.close()


def test_no_packet_sees_half_of_an_atomic_batch(rig):
    """A packet goes to port 1 and its clone to port 2, or to 3 and 4; each batch turns both, with 600 updates between the two."""
    primary, names = rig.controller, rig.controller.names
    ballast = [names.entry("smac", "learn", match={"f1": number}) for number in range(10, 610)]

    def session(port):
        clone = p4r.CloneSessionEntry(session_id=1, replicas=[p4r.Replica(port=bytes([port]))])
        return p4r.PacketReplicationEngineEntry(clone_session_entry=clone)

    def way(port):
        return names.entry("dmac", "forward", port, is_default_action=True)

    primary.insert(session(2))
    primary.modify(way(1), names.entry("acl", "mirror", 1, is_default_action=True))
    done = threading.Event()
    injected = []

    def traffic():
        while not done.is_set():
            # No more than the switch takes, so that nothing piles up.
            wait_for(lambda: rig.switch.received == len(injected) or done.is_set())
            packets = [ethernet(source=len(injected) + number) for number in range(20)]
            injected.extend(packets)
            rig.ios[1].inject(packets)

    thread = threading.Thread(target=traffic)
    thread.start()
    try:
        for number in range(30):
            kind = INSERT if number % 2 == 0 else DELETE
            port = 3 if number % 2 == 0 else 1
            updates = [(MODIFY, way(port)), *((kind, entry) for entry in ballast), (MODIFY, session(port + 1))]
            primary.write(*updates, atomicity=p4r.WriteRequest.DATAPLANE_ATOMIC)
    finally:
        done.set()
        thread.join()
    wait_for(lambda: rig.switch.received == len(injected) and not rig.switch.traffic.waiting())
    wait_for(lambda: sum(len(io.sent) for io in rig.ios.values()) == 2 * len(injected))
    sent = {number: io.sent for number, io in rig.ios.items()}
    assert sorted(sent[1]) == sorted(sent[2])
    assert sorted(sent[3]) == sorted(sent[4])
    assert sent[1]
    assert sent[3]


def test_packets_digests_and_reads(rig):
    primary, names = rig.controller, rig.controller.names
    primary.modify(
        names.entry("dmac", "to_controller", 1, is_default_action=True), names.entry("smac", "learn", is_default_action=True)
    )
    primary.insert(p4r.DigestEntry(digest_id=names["learn_t"], config={"max_list_size": 50, "max_timeout_ns": 10**12}))
    rig.ios[2].inject([ethernet(source=number) for number in range(50)])
    messages = [primary.receive() for _ in range(51)]
    assert sum(message.HasField("packet") for message in messages) == 50
    (digest,) = [message.digest for message in messages if message.HasField("digest")]
    assert len(digest.data) == 50
    primary.send(packet=packet_out(ethernet(), port=3))
    wait_for(lambda: rig.ios[3].sent)
    assert rig.ios[3].sent == [ethernet()]
    (counter,) = primary.read(p4r.CounterEntry(counter_id=names["port_counter"], index={"index": 2}))
    assert counter.data.packet_count == 50


def test_a_hit_starts_the_idle_time_again(rig):
    primary, names = rig.controller, rig.controller.names
    primary.insert(names.entry("smac", "count_direct", match={"f1": 5}), names.entry("smac", "count_direct", match={"f1": 6}))
    query = p4r.TableEntry(table_id=names["smac"], time_since_last_hit={}, counter_data={})

    def idle():
        hit, other = primary.read(query)
        return hit.time_since_last_hit.elapsed_ns, other.time_since_last_hit.elapsed_ns, hit.counter_data.packet_count

    wait_for(lambda: min(idle()[:2]) > 20_000_000)
    rig.ios[2].inject([ethernet(source=5)])
    wait_for(lambda: idle()[2] == 1)
    hit, other, _ = idle()
    assert hit < other - 20_000_000
