"""The control plane's part: deploys what ``dlcp switch deploy`` would, and times writes of table entries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dlcp.fabric.codec import Codec
from dlcp.fabric.diff import Change, Operation
from dlcp.fabric.endpoints import Target
from dlcp.fabric.entities import Action, Entity, Entry
from dlcp.fabric.intent import Intent
from dlcp.fabric.program import Program
from dlcp.fabric.session import Session
from dlcp.fabric.transaction import commit, look, plan
from dlcp.policy import Policy
from dlcp.topology import Topology
from dlcp.topology.builders import LeafSpine, Star

_BATCH: Final = 100
"""Entries in one request."""
_FIRST_MAC: Final = 0x0A00_0000_0000


@dataclass(frozen=True)
class Scene:
    """What one switch is asked to do.

    Attributes:
        entities: All that it should hold.
        port_in: Where the traffic comes in.
        ports_out: Where it goes out.
        source, destination: MAC and IPv4 address of the hosts.
    """

    entities: list[Entity]
    port_in: int
    ports_out: tuple[int, ...]
    source: tuple[str, str]
    destination: tuple[str, str]


def scene(hosts: int, paths: int) -> Scene:
    """Deploys the default policy on a star of hosts; with several paths, on a leaf switch below so many spine switches."""
    topology: Topology
    if paths == 1:
        topology, switch = Star(hosts=max(hosts, 2)).build(), "s0"
    else:
        topology, switch = LeafSpine(leaves=2, spines=paths, hosts_per_leaf=max(1, hosts // 2)).build(), "leaf0"
    intent = Intent(topology, Policy())
    source, destination = topology.hosts[0].name, topology.hosts[-1].name
    ways = {name: (topology.macs[name], topology.addresses[name]) for name in (source, destination)}
    return Scene(
        intent.entities(switch),
        intent.routes.next_ports(switch, source)[0],
        tuple(intent.routes.next_ports(switch, destination)),
        ways[source],
        ways[destination],
    )


def deploy(address: str, program: Program, entities: Sequence[Entity]) -> None:
    """Sets the program and writes the entities.

    Raises:
        FabricError: The switch refused.
    """

    async def do() -> None:
        async with Session(Target("switch", address, 1)) as session:
            held = await look(session, program)
            await session.become_primary(1)
            await commit(session, program, plan(held, entities, program))

    asyncio.run(do())


def measure_writes(address: str, program: Program, entries: int, port: int) -> float:
    """Inserts entries into the table ``bridge``, in requests of 100, takes them out again, and returns insertions per second."""
    codec = Codec(program.schema)
    action = Action.of("to_port", port=port)
    made = [Entry("bridge", (("dst_addr", _FIRST_MAC + index),), action) for index in range(entries)]
    requests = {
        operation: [
            [codec.update(Change(operation, entry)) for entry in made[start : start + _BATCH]]
            for start in range(0, entries, _BATCH)
        ]
        for operation in (Operation.INSERT, Operation.DELETE)
    }

    async def do() -> float:
        async with Session(Target("switch", address, 1)) as session:
            await session.become_primary(1)
            begin = time.monotonic()
            for updates in requests[Operation.INSERT]:
                await session.write(updates)
            spent = time.monotonic() - begin
            for updates in requests[Operation.DELETE]:
                await session.write(updates)
            return entries / spent

    return asyncio.run(do())


__all__ = ["Scene", "deploy", "measure_writes", "scene"]
