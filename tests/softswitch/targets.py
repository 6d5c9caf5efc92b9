"""Switches that tests run a program on, behind one interface: the softswitch in memory, and BMv2 where it is installed.

Tests say what they mean by the names of P4Info (the last part of a name is enough) and by numbers::

    def test_routes(targets):
        target = targets("forwarding")
        target.entry("routes", {"dst_addr": (0x0A000000, 8)}, "forward", dst_addr=0x02_00_00_00_00_02, port=2)
        assert target.send(1, packet) == [(2, routed)]

A key's value is an int for an exact field, ``(value, prefix length)``, ``(value, mask)``, ``(low, high)``, an int for an optional
one; None, or nothing at all, is "don't care".  A field's name is its own (``dst_addr``), or the whole (``hdr.ipv4.dst_addr``)
where two fields of a key share it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from softswitch.errors import SwitchError
from softswitch.pipeline import Pipeline
from softswitch.runtime import (
    Action,
    Call,
    CloneSession,
    GroupMember,
    GroupRef,
    MemberRef,
    MeterConfig,
    MulticastGroup,
    OneShot,
    OneShotAction,
    Replica,
    Table,
)
from softswitch.switch import Switch

PORTS = range(1, 9)
CPU_PORT = 510
DROP_PORT = 511

MatchDict = Mapping[str, Any]
Packets = list[tuple[int, bytes]]
Places = Sequence[tuple[int, int]]
"""(port, instance) of each copy."""


class Target(Protocol):
    """A switch with ports 1 to 8 and one program.  Everything written is in force when a method returns."""

    name: str

    # entries
    def entry(self, table: str, match: MatchDict, action: str, priority: int = 0, **parameters: int) -> None: ...
    def modify(self, table: str, match: MatchDict, action: str, priority: int = 0, **parameters: int) -> None: ...
    def delete(self, table: str, match: MatchDict, priority: int = 0) -> None: ...
    def default(self, table: str, action: str, **parameters: int) -> None: ...

    # action profiles: (action, parameters) of each member; (member, weight, watch port or None) of each place in a group
    def member(self, profile: str, number: int, action: str, **parameters: int) -> None: ...
    def group(self, profile: str, number: int, members: Sequence[tuple[int, int, int | None]]) -> None: ...
    def to_member(self, table: str, match: MatchDict, member: int, priority: int = 0) -> None: ...
    def to_group(self, table: str, match: MatchDict, group: int, priority: int = 0) -> None: ...
    def one_shot(
        self, table: str, match: MatchDict, actions: Sequence[tuple[str, dict[str, int], int, int | None]], priority: int = 0
    ) -> None: ...

    # replication
    def multicast(self, group: int, copies: Places) -> None: ...
    def clone_session(self, session: int, copies: Places) -> None: ...

    # state; rates a second
    def counter(self, name: str, cell: int) -> tuple[int, int]: ...
    def direct_counter(self, table: str, match: MatchDict, priority: int = 0) -> tuple[int, int]: ...
    def meter(self, name: str, cell: int, cir: int, cburst: int, pir: int, pburst: int) -> None: ...
    def direct_meter(self, table: str, match: MatchDict, priority: int = 0, *, rates: tuple[int, int, int, int]) -> None: ...
    def register(self, name: str, cell: int) -> int: ...
    def registers(self, name: str) -> list[int]: ...
    def write_register(self, name: str, cell: int, value: int) -> None: ...
    def value_set(self, name: str, values: Iterable[int]) -> None: ...
    def digests(self, name: str, count: int) -> list[tuple[int, ...]]: ...

    # packets
    def link(self, port: int, up: bool) -> None: ...
    def send(self, port: int, data: bytes) -> Packets: ...
    def send_all(self, packets: Iterable[tuple[int, bytes]]) -> Packets: ...


class Refused(SwitchError):
    """Another switch than ours did not accept what the control plane asked for."""


def find(objects: Mapping[str, Any], alias: str) -> Any:
    """The object with this name, or whose name ends in it."""
    found = [value for name, value in objects.items() if name == alias or name.endswith(f".{alias}")]
    assert len(found) == 1, f"{alias} names {len(found)} of {sorted(objects)}"
    return found[0]


def short(name: str, names: Sequence[str], match: MatchDict) -> Any:
    """What ``match`` says of the field ``name`` among ``names``; None for "don't care"."""
    last = name.rsplit(".", 1)[-1]
    shared = sum(other.rsplit(".", 1)[-1] == last for other in names) > 1
    return match.get(name) if shared else match.get(name, match.get(last))


def check_known(table: str, names: Sequence[str], match: MatchDict) -> None:
    known = {part for name in names for part in (name, name.rsplit(".", 1)[-1])}
    assert set(match) <= known, f"{table} has no key {set(match) - known}"


def eventually(check: Callable[[], bool], seconds: float = 10) -> None:
    """Waits for what a target does on its own, such as noticing a port; the softswitch does it at once."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class SoftswitchTarget:
    """The softswitch without I/O.  Time stands still between calls and moves by a millisecond with each packet, unless told."""

    name = "softswitch"

    def __init__(self, program: str, **port_options: Any) -> None:
        self.now = 0
        self.pipeline = Pipeline.load(program, drop_port=DROP_PORT, cpu_port=CPU_PORT)
        self.runtime = self.pipeline.runtime
        self.runtime.clock = lambda: self.now
        self.switch = Switch(drop_port=DROP_PORT, cpu_port=CPU_PORT, clock=lambda: self.now)
        self.to_controller: list[bytes] = []
        self.switch.on_packet_in = self.to_controller.append
        for port in PORTS:
            self.switch.add_port(port, **port_options)
        self.switch.set_pipeline(self.pipeline)

    # entries

    def entry(self, table: str, match: MatchDict, action: str, priority: int = 0, **parameters: int) -> None:
        found = self._table(table)
        found.insert(self._match(found, match), priority, self._call(found, action, parameters))

    def modify(self, table: str, match: MatchDict, action: str, priority: int = 0, **parameters: int) -> None:
        found = self._table(table)
        found.modify(self._match(found, match), priority, self._call(found, action, parameters))

    def delete(self, table: str, match: MatchDict, priority: int = 0) -> None:
        found = self._table(table)
        found.delete(self._match(found, match), priority)

    def default(self, table: str, action: str, **parameters: int) -> None:
        found = self._table(table)
        found.set_default(self._call(found, action, parameters))

    # action profiles

    def member(self, profile: str, number: int, action: str, **parameters: int) -> None:
        found = find(self.runtime.profiles, profile)
        table = next(table for table in self.runtime.tables.values() if table.profile is found)
        found.insert_member(number, self._call(table, action, parameters))

    def group(self, profile: str, number: int, members: Sequence[tuple[int, int, int | None]]) -> None:
        find(self.runtime.profiles, profile).insert_group(number, [GroupMember(*member) for member in members])

    def to_member(self, table: str, match: MatchDict, member: int, priority: int = 0) -> None:
        self._refer(table, match, MemberRef(member), priority)

    def to_group(self, table: str, match: MatchDict, group: int, priority: int = 0) -> None:
        self._refer(table, match, GroupRef(group), priority)

    def one_shot(
        self, table: str, match: MatchDict, actions: Sequence[tuple[str, dict[str, int], int, int | None]], priority: int = 0
    ) -> None:
        found = self._table(table)
        places = [OneShotAction(self._call(found, name, values), weight, port) for name, values, weight, port in actions]
        self._refer(table, match, OneShot(tuple(places)), priority)

    # replication

    def multicast(self, group: int, copies: Places) -> None:
        self.runtime.groups.insert(MulticastGroup(group, tuple(Replica(*copy) for copy in copies)))

    def clone_session(self, session: int, copies: Places) -> None:
        self.runtime.sessions.insert(CloneSession(session, tuple(Replica(*copy) for copy in copies)))

    # state

    def counter(self, name: str, cell: int) -> tuple[int, int]:
        packets, octets = find(self.runtime.counters, name).read(cell)
        return packets, octets

    def direct_counter(self, table: str, match: MatchDict, priority: int = 0) -> tuple[int, int]:
        found = self._table(table)
        entry = found.get(self._match(found, match), priority)
        return entry.packets, entry.bytes

    def meter(self, name: str, cell: int, cir: int, cburst: int, pir: int, pburst: int) -> None:
        find(self.runtime.meters, name).write(cell, MeterConfig(cir, cburst, pir, pburst))

    def direct_meter(self, table: str, match: MatchDict, priority: int = 0, *, rates: tuple[int, int, int, int]) -> None:
        found = self._table(table)
        found.write_meter(found.get(self._match(found, match), priority), MeterConfig(*rates))

    def register(self, name: str, cell: int) -> int:
        return int(find(self.runtime.registers, name).read(cell))

    def registers(self, name: str) -> list[int]:
        """All cells."""
        return list(find(self.runtime.registers, name).cells)

    def write_register(self, name: str, cell: int, value: int) -> None:
        find(self.runtime.registers, name).write(cell, value)

    def value_set(self, name: str, values: Iterable[int]) -> None:
        find(self.runtime.value_sets, name).set(list(values))

    def digests(self, name: str, count: int) -> list[tuple[int, ...]]:
        """All digests so far, which must be ``count``."""
        taken = self.runtime.digests.drain()
        assert len(taken) == count
        return [values for _name, values in taken]

    # packets

    def link(self, port: int, up: bool) -> None:
        self.switch.set_port_state(port, up, self.now)

    def send(self, port: int, data: bytes) -> Packets:
        return self.send_all([(port, data)])

    def send_all(self, packets: Iterable[tuple[int, bytes]]) -> Packets:
        """What leaves, sorted by port, in order at each port."""
        left: Packets = []
        for port, data in packets:
            self.now += 1_000_000
            self.switch.receive(port, data, self.now)
            left += self.switch.transmit(self.now)
        while (timer := self.switch.next_timer()) is not None:
            self.now = max(self.now, timer)
            left += self.switch.transmit(self.now)
        left += [(CPU_PORT, data) for data in self.to_controller]
        self.to_controller.clear()
        assert self.switch.last_fault is None
        return sorted(left, key=lambda packet: packet[0])

    # inside

    def _table(self, alias: str) -> Table:
        table: Table = find(self.runtime.tables, alias)
        return table

    def _refer(self, table: str, match: MatchDict, action: Action, priority: int) -> None:
        found = self._table(table)
        found.insert(self._match(found, match), priority, action)

    def _match(self, table: Table, match: MatchDict) -> tuple[Any, ...]:
        names = [key.name for key in table.model.keys]
        check_known(table.name, names, match)
        items: list[Any] = []
        for key in table.model.keys:
            value = short(key.name, names, match)
            full = (1 << key.width) - 1
            if value is None:
                assert key.kind != "exact", f"{table.name}: {key.name} is exact"
                value = {"range": (0, full), "optional": None}.get(key.kind, (0, 0))
            elif key.kind == "ternary" and isinstance(value, int):
                value = (value, full)  # an optional field, which BMv2's JSON calls ternary
            items.append(value)
        return tuple(items)

    def _call(self, table: Table, action: str, parameters: Mapping[str, int]) -> Call:
        models = table.model.actions
        index = models.index(find({model.name: model for model in models}, action))
        assert set(parameters) == {parameter.name for parameter in models[index].parameters}
        return Call(index, tuple(parameters[parameter.name] for parameter in models[index].parameters))


Factory = Callable[..., SoftswitchTarget]


@contextmanager
def opened(kind: str) -> Iterator[Callable[[Path], Any]]:
    """A function that makes targets of a kind (``softswitch`` or ``bmv2``) from the path of a JSON; P4Info lies beside it."""
    with ExitStack() as stack:
        if kind == "softswitch":
            yield lambda path, **options: SoftswitchTarget(path.read_text(), **options)
        else:
            from tests.softswitch.bmv2 import Bmv2Target, missing

            if reason := missing():
                pytest.skip(reason)
            yield lambda path: stack.enter_context(Bmv2Target(path))


__all__ = [
    "CPU_PORT",
    "DROP_PORT",
    "PORTS",
    "Packets",
    "SoftswitchTarget",
    "Target",
    "check_known",
    "eventually",
    "find",
    "opened",
    "short",
]
