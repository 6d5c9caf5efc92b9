"""Runs p4c's STF tests on the switch.

An STF file lists table entries, packets and what must come out, in the language of p4c's tools/stf, with the commands and the
conventions of backends/bmv2/bmv2stf.py: tables, actions and keys may be named by the end of their names, of two priorities the
larger number wins, and the packets of a port are compared in order.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from softswitch.errors import SwitchError
from softswitch.pipeline import Pipeline
from softswitch.runtime import Call, CloneSession, MeterConfig, MulticastGroup, Replica
from softswitch.switch import Switch

MILLISECOND = 1_000_000
PASS_THROUGH = ("mirroring_get", "counter_read", "register_read", "meter_get_rates", "wait", "check_counter", "remove")


class StfError(Exception):
    """The file asks for something that is not there."""


@dataclass
class Statement:
    """A command and its arguments; ``add`` and ``setdefault`` keep their text."""

    command: str
    text: str


def parse(text: str) -> list[Statement]:
    """Statements of an STF file."""
    statements = []
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if line:
            command, _, rest = line.partition(" ")
            statements.append(Statement(command.lower(), rest.strip()))
    return statements


CALL = re.compile(r'\s*(?P<name>"[^"]+"|[\w.$\[\]]+)\s*\((?P<arguments>[^)]*)\)\s*(?:=\s*\w+)?\s*$')
MATCH = re.compile(r'\s*(?P<key>"[^"]+"|[\w.$\[\]]+)\s*:\s*(?P<value>[\w*]+(?:\s*/\s*\w+)?)')


def integer(text: str) -> int:
    return int(text, 0) if text[:1] == "0" and len(text) > 1 and text[1] in "xXbBoO" else int(text)


@dataclass
class Runner:
    """One run: a switch, the program's JSON by whose names the file speaks, and what is expected."""

    program: dict
    switch: Switch
    pipeline: Pipeline
    watched: set[int]
    now: int = 0
    nodes: list[tuple[int, list[int]]] = field(default_factory=list)
    groups: dict[int, list[int]] = field(default_factory=dict)
    mirrors: dict[int, int] = field(default_factory=dict)
    expected: dict[int, list[str | None]] = field(default_factory=lambda: defaultdict(list))
    received: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def run(self, statements: list[Statement]) -> None:
        """Runs all statements.

        Raises:
            StfError: A name that the program does not have.
        """
        for statement in statements:
            self.now += MILLISECOND
            command = statement.command
            words = statement.text.split()
            if command == "packet":
                self.switch.receive(int(words[0]), bytes.fromhex("".join(words[1:])), self.now)
                self._collect()
            elif command == "expect":
                self.expected[int(words[0])].append("".join(words[1:]) or None)
            elif command == "add":
                self._add(statement.text)
            elif command == "setdefault":
                self._set_default(statement.text)
            elif hasattr(self, f"_{command}"):
                getattr(self, f"_{command}")(*words)
            elif command not in PASS_THROUGH:
                raise StfError(f"unknown command {command}")
        for _ in range(100):
            self.now += MILLISECOND
            self._collect()

    def _collect(self) -> None:
        for port, data in self.switch.transmit(self.now):
            self.received[port].append(data)

    def problems(self) -> list[str]:
        """Differences between what came out and what was expected."""
        problems = []
        for port in sorted(self.watched):
            got, wanted = self.received[port], self.expected[port]
            if len(got) != len(wanted):
                shown = " ".join(data.hex() for data in got)
                problems.append(f"port {port}: {len(got)} packets instead of {len(wanted)}: {shown}")
                continue
            for data, pattern in zip(got, wanted, strict=True):
                if pattern is not None and not same(pattern, data):
                    problems.append(f"port {port}: {data.hex()} is not {pattern}")
        return problems

    # --- tables

    def _table(self, name: str) -> dict:
        tables = [table for pipeline in self.program["pipelines"] for table in pipeline["tables"]]
        return _by_name(name, tables, "table")

    def _call(self, text: str, table: dict) -> Call:
        found = CALL.match(text)
        if found is None:
            raise StfError(f"no action in: {text}")
        identities = table["action_ids"]
        actions = [next(item for item in self.program["actions"] if item["id"] == identity) for identity in identities]
        action = _by_name(found["name"].strip('"'), actions, "action")
        given = {}
        for argument in filter(None, (item.strip() for item in found["arguments"].split(","))):
            name, _, value = argument.partition(":")
            given[name.strip()] = integer(value.strip())
        names = [item["name"] for item in action["runtime_data"]]
        if set(given) != set(names):
            raise StfError(f"action {action['name']} has the arguments {names}")
        widths = [item["bitwidth"] for item in action["runtime_data"]]
        data = tuple(given[name] & ((1 << width) - 1) for name, width in zip(names, widths, strict=True))
        return Call(identities.index(action["id"]), data)

    def _set_default(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        table = self._table(name.strip('"'))
        self.pipeline.runtime.tables[table["name"]].set_default(self._call(rest, table))

    def _add(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        table = self._table(name.strip('"'))
        priority = 0
        found = re.match(r"\s*(\d+)\s+", rest)
        if found:
            priority = int(found[1])
            rest = rest[found.end() :]
        values: dict[str, str] = {}
        keys = {}
        for key in table["key"]:
            label = key["name"] if "name" in key else key["target"]
            keys[label if isinstance(label, str) else ".".join(label)] = key
        while (match := MATCH.match(rest)) is not None:
            values[_key_name(match["key"].strip('"'), keys)] = match["value"].replace(" ", "")
            rest = rest[match.end() :]
        call = self._call(rest, table)
        model = self.pipeline.runtime.tables[table["name"]].model
        items = []
        for (label, key), described in zip(keys.items(), model.keys, strict=True):
            items.append(_match_item(values.get(label), key["match_type"], described.width))
        ranked = model.match in ("ternary", "range")
        self.pipeline.runtime.tables[table["name"]].insert(tuple(items), priority + 1 if ranked else 0, call)

    # --- commands of simple_switch_CLI

    def _mc_mgrp_create(self, group: str) -> None:
        self.groups[integer(group)] = []
        self._put_group(integer(group))

    def _mc_node_create(self, instance: str, *ports: str) -> None:
        self.nodes.append((integer(instance), [integer(port) for port in ports]))

    def _mc_node_associate(self, group: str, node: str) -> None:
        self.groups[integer(group)].append(integer(node))
        self._put_group(integer(group))

    def _replicas(self, group: int) -> tuple[Replica, ...]:
        nodes = [self.nodes[node] for node in self.groups.get(group, [])]
        return tuple(Replica(port, instance) for instance, ports in nodes for port in ports)

    def _put_group(self, group: int) -> None:
        runtime = self.pipeline.runtime
        item = MulticastGroup(group, self._replicas(group))
        if group in {item.id for item in runtime.groups}:
            runtime.groups.modify(item)
        else:
            runtime.groups.insert(item)
        for session, mirrored in self.mirrors.items():
            if mirrored == group:
                runtime.sessions.modify(CloneSession(session, self._replicas(group)))

    def _mirroring_add(self, session: str, port: str) -> None:
        self.pipeline.runtime.sessions.insert(CloneSession(integer(session), (Replica(integer(port)),)))

    def _mirroring_add_mc(self, session: str, group: str) -> None:
        self.mirrors[integer(session)] = integer(group)
        self.pipeline.runtime.sessions.insert(CloneSession(integer(session), self._replicas(integer(group))))

    def _register_write(self, name: str, index: str, value: str) -> None:
        array = self.pipeline.runtime.registers[_full_name(name, self.pipeline.runtime.registers)]
        array.write(integer(index), integer(value))

    def _register_reset(self, name: str) -> None:
        self.pipeline.runtime.registers[_full_name(name, self.pipeline.runtime.registers)].write(None, 0)

    def _counter_write(self, name: str, index: str, packets: str, octets: str) -> None:
        array = self.pipeline.runtime.counters[_full_name(name, self.pipeline.runtime.counters)]
        array.write(integer(index), integer(packets), integer(octets))

    def _meter_set_rates(self, name: str, index: str, *rates: str) -> None:
        array = self.pipeline.runtime.meters[_full_name(name, self.pipeline.runtime.meters)]
        array.write(integer(index), _rates(rates))

    def _meter_array_set_rates(self, name: str, *rates: str) -> None:
        self.pipeline.runtime.meters[_full_name(name, self.pipeline.runtime.meters)].write(None, _rates(rates))


def _rates(rates: tuple[str, ...]) -> MeterConfig:
    """Rates come as units a microsecond and burst, the committed one first."""
    text = " ".join(rates).replace(" : ", ":").replace(": ", ":").replace(" :", ":")
    (cir, cburst), (pir, pburst) = ((float(item.split(":")[0]), int(item.split(":")[1])) for item in text.split())
    return MeterConfig(round(cir * 1e6), cburst, round(pir * 1e6), pburst)


def _full_name(name: str, known: dict) -> str:
    if name in known:
        return name
    found = [item for item in known if item.endswith(name)]
    if len(found) != 1:
        raise StfError(f"{len(found)} objects are named {name}")
    return found[0]


def _by_name(name: str, items: list[dict], what: str) -> dict:
    exact = [item for item in items if item["name"] == name]
    if exact:
        return exact[0]
    found = [item for item in items if item["name"].endswith(name)]
    if len(found) != 1:
        raise StfError(f"{len(found)} {what}s are named {name}")
    return found[0]


def _key_name(name: str, keys: dict[str, dict]) -> str:
    """The key that a name means, as bmv2stf.py finds it."""
    name = re.sub(r"^(.*)\$([0-9]+)(.*)$", r"\1[\2]\3", name)
    for candidate in (name, f"{name}$", f"{name}.$valid$"):
        if candidate in keys:
            return candidate
    if name.endswith(".valid") and f"{name[:-5]}$valid$" in keys:
        return f"{name[:-5]}$valid$"
    found = None
    for key in keys:
        if key.endswith((f".{name}", f".{name}$")) or (name in ("valid", "$valid") and key.endswith(".$valid$")):
            found = key
    if found is None and name == "valid" and "$valid$" in keys:
        return "$valid$"
    if found is None:
        raise StfError(f"there is no key {name} among {list(keys)}")
    return found


def _match_item(text: str | None, kind: str, width: int) -> object:
    full = (1 << width) - 1
    if kind in ("exact", "valid"):
        return integer(text or "0") & full
    if kind == "ternary":
        value, mask = _masked(text) if text is not None else (0, 0)
        return (value & mask & full, mask & full)
    if kind == "lpm":
        if text is None:
            return (0, 0)
        value_text, _, length_text = text.partition("/")
        if length_text:
            value, length = integer(value_text), integer(length_text)
        elif value_text[1:2] in "xXbBoO" and value_text[0] == "0":
            bits = {"x": 4, "b": 1, "o": 3}[value_text[1].lower()]
            value = integer(value_text.replace("*", "0"))
            length = bits * (len(value_text) - 2 - value_text.count("*"))
        else:
            value, length = integer(value_text), width
        return (value >> (width - length) << (width - length) & full, length)
    raise StfError(f"keys of match type {kind} cannot be given in STF")


def _masked(text: str) -> tuple[int, int]:
    """Value and mask of a number in which ``*`` stands for any digit; other digits count whole."""
    base = {"x": 16, "b": 2, "o": 8}.get(text[1:2].lower()) if text[:1] == "0" else None
    if base is None:
        raise StfError(f"decimal value {text} for a ternary key")
    digits = text[2:]
    most = {16: "f", 2: "1", 8: "7"}[base]
    mask = "".join("0" if digit == "*" else most for digit in digits)
    value = int(digits.replace("*", "0"), base)
    return value, int(mask, base)


def same(pattern: str, data: bytes) -> bool:
    """Whether bytes fit a pattern of hexadecimal digits and ``*``; more may follow unless it ends with ``$``."""
    text = data.hex().upper()
    exact = pattern.endswith("$")
    pattern = pattern.rstrip("$").upper()
    if len(text) < len(pattern) or (exact and len(text) > len(pattern)):
        return False
    return all(want in ("*", have) for want, have in zip(pattern, text, strict=False))


def compile_p4(compiler: str, source: Path, output: Path, include: Path | None = None, *options: str) -> str | None:
    """Compiles a program; the compiler's complaint if it refuses."""
    command = [compiler, *options, "--std", "p4-16", "-o", str(output), str(source)]
    if include is not None:
        command[1:1] = ["-I", str(include)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return None if done.returncode == 0 else done.stderr.strip()


def expected_failures(checkout: Path) -> set[str]:
    """Programs that p4c's own build lists as failing on BMv2."""
    text = (checkout / "backends/bmv2/CMakeLists.txt").read_text()
    return set(re.findall(r"testdata/\S+\.p4", text[text.index("XFAIL_TESTS") : text.index("HAVE_SIMPLE_SWITCH)")]))


def run_test(text: str, stf: str) -> list[str]:
    """Runs one test on a compiled program; the list of differences is empty if all is well.

    Raises:
        SwitchError: The program cannot be loaded, or an entry cannot be added.
    """
    statements = parse(stf)
    pipeline = Pipeline.load(text)
    switch = Switch()
    for port in range(511):
        # All of them: egress runs also for ports that have no interface in the test.
        switch.add_port(port)
    switch.set_pipeline(pipeline)
    watched = {int(item.text.split()[0]) for item in statements if item.command in ("packet", "expect")}
    runner = Runner(json.loads(text), switch, pipeline, watched)
    runner.run(statements)
    if switch.last_fault is not None:
        raise switch.last_fault
    return runner.problems()


__all__ = ["StfError", "SwitchError", "compile_p4", "expected_failures", "parse", "run_test"]
