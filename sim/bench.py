"""Measures the engine itself: packet-hops for a second of CPU time, on traffic that uses every feature.

A packet-hop is one packet crossing one link, acknowledgements and control included.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any, Final

from dlcp.topology import FatTree, LeafSpine, Topology
from dlcp.units import Buffer, Rate
from sim.compiled import ENGINE
from sim.engine.layout import H_EVENTS, H_HOPS
from sim.flows import Transport
from sim.network import Buffers
from sim.simulation import Simulation
from sim.traffic import permutation

NETWORKS: Final = (128, 1024)
TRANSPORTS: Final = ("dctcp", "dlcp", "dcqcn")
SIZE: Final = {128: 4_000_000, 1024: 500_000}
_HOST_TIMES: Final = 0.01


def network(hosts: int) -> Topology:
    """Returns a leaf-spine of 128 hosts, or a fat tree of 1024, at 100 Gbit/s."""
    rate, buffer = Rate.parse("100 Gbit/s"), Buffer(256 * 1024, "bytes")
    if hosts == 128:
        return LeafSpine(leaves=8, spines=8, hosts_per_leaf=16, oversubscription=1.0, rate=rate, buffer=buffer).build()
    return FatTree(k=16, rate=rate, buffer=buffer).build()


def measure(hosts: int, runs: int, transports: tuple[str, ...] = TRANSPORTS, size: int | None = None) -> dict[str, Any]:
    """Runs a permutation over every path with every transport, ``runs`` times each, and returns medians.

    DCQCN runs over priority flow control, on paths by hash, as it wants order.  What it takes to compile the engine, and to load
    its machine code with the first call, is timed apart, in user CPU time.
    """
    topology = network(hosts)
    started = os.times().user
    ENGINE.machine_code(ENGINE.load_llvm())
    compiling = os.times().user - started
    started = os.times().user
    warm = Simulation(LeafSpine(leaves=2, spines=1, hosts_per_leaf=1).build(), permutation(2, 1000), Transport("dctcp"))
    warm.run()
    result: dict[str, Any] = {
        "hosts": hosts,
        "compile_cpu_s": round(compiling, 2),
        "first_call_cpu_s": round(os.times().user - started, 2),
        "runs": runs,
    }
    rates = []
    for name in transports:
        messages = permutation(hosts, SIZE[hosts] if size is None else size)
        for message in messages:
            message.protected, message.bound = 0.25, 0.05
        samples = []
        for _ in range(runs):
            ordered = name == "dcqcn"
            transport = Transport(name, spray="hash" if ordered else "round-robin", scale=_HOST_TIMES)
            simulation = Simulation(topology, messages, transport, buffers=Buffers(pfc=ordered))
            begun = time.process_time()
            simulation.run()
            samples.append(time.process_time() - begun)
        hops = simulation.memory[H_HOPS]
        cpu = statistics.median(samples)
        rates.append(hops / cpu)
        result[name] = {
            "packet_hops": hops,
            "events_per_hop": round(simulation.memory[H_EVENTS] / hops, 3),
            "cpu_s": round(cpu, 4),
            "packet_hops_per_cpu_s": round(hops / cpu),
        }
    result["packet_hops_per_cpu_s"] = round(min(rates))
    return result


__all__ = ["NETWORKS", "measure", "network"]
