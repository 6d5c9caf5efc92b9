"""The simulator's switch, and the softswitch running the compiled P4 program, give the same verdicts on the same packets."""

import random

import pytest
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether

from dlcp.fabric.treatment import treatment
from dlcp.policy import Policy
from dlcp.topology import Star, Topology
from dlcp.units import Buffer, Delay, Rate
from dlcp.wire.header import HEADER, HEADER_BYTES
from sim.engine.layout import (
    A_BUSY,
    A_HEAD,
    A_PENDING,
    CE,
    CLASS_MASK,
    CUT,
    ECT,
    H_NOW,
    KEPT,
    P_FLAGS,
    P_NEXT,
    P_SEQ,
    SIZE_SHIFT,
)
from sim.engine.ports import offer, serve, take_packet
from sim.flows import Transport
from sim.messages import Message
from sim.network import thresholds
from sim.simulation import Simulation
from tests.conftest import ROOT
from tests.p4 import frames
from tests.p4.bench import bridge, softswitch_bench

RATE = 100_000_000
OUT = 2
SIZES = (256, 512, 1024, 1400)


def star(buffer):
    return Star(hosts=4, rate=Rate(RATE), delay=Delay(0), buffer=buffer).build()


def traffic(seed, count, load):
    """Packets: time (ns), class, protected, ordinary, payload bytes."""
    rng = random.Random(seed)
    now = 1000.0
    for _ in range(count):
        size = rng.choice(SIZES)
        now += rng.expovariate(1.0) * (size + 90) * 80 / load
        kind = rng.random()
        yield int(now), rng.choice((0, 3, 3, 6)), rng.random() < 0.3, kind < 0.1, size


def through_softswitch(topology, policy, packets):
    bench = bridge(softswitch_bench(queue_depth=topology.links[0].buffer.amount))
    for entity in treatment(topology, policy, "s0"):
        if entity.__class__.__name__ == "Entry":
            match = dict(entity.match)
            if entity.table == "limits":
                match.setdefault("port", None)
            bench.entry(entity.table, match, entity.action.name, entity.priority, **dict(entity.action.arguments))
    switch = bench.target.switch
    switch.set_rate(OUT, RATE, 0)
    sizes, out = [], []
    for number, (at, klass, protected, ordinary, size) in enumerate(packets):
        if ordinary:
            frame = frames.udp(1, OUT, tos=2, size=size, sport=number)
        else:
            frame = frames.dlcp(1, OUT, priority=klass, protected=protected, size=size, sequence=number)
        sizes.append(len(frame))
        # As the loop does: what is due by now leaves before anything is taken in.
        out += [data for port, data in switch.transmit(at) if port == OUT]
        switch.receive(1, frame, at)
    now = packets[-1][0]
    while True:
        out += [data for port, data in switch.transmit(now) if port == OUT]
        following = switch.next_timer()
        if following is None:
            break
        now = following
    return sizes, [described(data) for data in out]


def described(data):
    packet = Ether(data)
    ecn = packet[IP].tos & 3
    if len(data) >= 42 + HEADER_BYTES and packet[IP].dport == 40_002:
        header = HEADER.decode_one(data[42 : 42 + HEADER_BYTES])
        return header["sequence"], header["priority"], header["trimmed"], ecn == 3, len(data)
    return packet[IP].sport, 0, 0, ecn == 3, len(data)


def through_simulator(topology, policy, packets, sizes):
    run = Simulation(topology, [Message(0, 1, 1)], Transport("raw"), policy=policy, engine="python")
    memory, words = run.memory, run.memory.words
    arc = next(a for a in topology.graph.leaving("s0") if a.port == OUT)
    port = run.network.arcs[arc.number]
    for number, ((at, klass, protected, ordinary, _), size) in enumerate(zip(packets, sizes, strict=True)):
        catch_up(memory, port, at * 1000)
        packet = take_packet(words)
        kept = KEPT if protected or ordinary else 0
        ect = ECT if protected or ordinary else 0
        memory[packet + P_SEQ] = number
        memory[packet + 2] = run.flows[0]
        memory[packet + P_FLAGS] = (0 if ordinary else klass) | kept | ect | size << SIZE_SHIFT
        offer(words, port, packet, at * 1000)
    catch_up(memory, port, 1 << 60)
    out = []
    packet = memory[port + A_HEAD]
    while packet:
        flags = memory[packet + P_FLAGS]
        out.append((memory[packet + P_SEQ], flags & CLASS_MASK, int(bool(flags & CUT)), bool(flags & CE), flags >> SIZE_SHIFT))
        packet = memory[packet + P_NEXT]
    return out


def catch_up(memory, port, now):
    while memory[port + A_PENDING] and memory[port + A_BUSY] <= now:
        memory[H_NOW] = memory[port + A_BUSY]
        serve(memory.words, port, memory[H_NOW])


@pytest.mark.parametrize("overload", ["trim", "drop"])
@pytest.mark.parametrize(("load", "buffer", "shares"), [(1.5, 24, (0.2, 0.4)), (4.0, 10, (0.5, 0.3)), (0.7, 16, (1.0, 0.1))])
def test_the_simulator_and_the_program_agree(overload, load, buffer, shares):
    topology = star(Buffer(buffer, "packets"))
    policy = Policy.from_dict(
        {"switch": {"overload": overload, "mark_share": shares[0], "drop_share": shares[1], "stamp_depth": False}}
    )
    packets = list(traffic(buffer, 160, load))
    sizes, real = through_softswitch(topology, policy, packets)
    simulated = through_simulator(topology, policy, packets, sizes)
    assert simulated == real
    assert len(real) > 40
    if load > 1:
        assert len(real) < len(packets) or any(trimmed for _, _, trimmed, _, _ in real)


@pytest.mark.parametrize("path", sorted((ROOT / "topologies").glob("*.toml")), ids=lambda path: path.stem)
def test_thresholds_are_those_that_are_deployed(path):
    topology, policy = Topology.from_toml(path), Policy()
    if len(topology.switches) > 40:
        pytest.skip("a large one says nothing that a small one does not")
    for switch in topology.switches:
        limits = [entity for entity in treatment(topology, policy, switch.name) if getattr(entity, "table", "") == "limits"]
        for arc in topology.graph.leaving(switch.name):
            mine = [e for e in limits if dict(e.match)["queue"] == 3 and dict(e.match)["protected"] == 0]
            chosen = max((e for e in mine if dict(e.match).get("port", (arc.port, 0))[0] == arc.port), key=lambda e: e.priority)
            wanted = dict(chosen.action.arguments)
            assert thresholds(policy, topology.link(arc)) == (wanted["trim_at"], wanted["mark_at"])
