"""Nodes of Chakra execution traces (``.et``), as MLCommons' ``et_def.proto`` defines them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sim.readers.protobuf import BYTES, Field, Span, delimited, fields, packed, signed, zigzag
from sim.readers.text import LIMIT, InputError, parse_json, read_bytes, shown

COMPUTE: Final = 4
SEND: Final = 5
RECEIVE: Final = 6
COLLECTIVE: Final = 7
NODE_TYPES: Final = ("invalid", "metadata", "memory load", "memory store", "compute", "send", "receive", "collective")
COLLECTIVES: Final = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",  # REDUCE_SCATTER_BLOCK
    "barrier",
)
"""By number of CollectiveCommType."""
MAX_NODES: Final = 1_000_000
MAX_EDGES: Final = 4_000_000
"""Most dependencies in a file."""

_SIGNED: Final = (7, 9)
_UNSIGNED: Final = (11, 13)
_ZIGZAG: Final = (15, 17)
_BOOL: Final = 27
_BOOL_LIST: Final = 28
_STRING: Final = 29
_DOUBLE: Final = 3
_FIXED: Final = {19: 32, 21: 64, 23: 32, 25: 64}


@dataclass(slots=True)
class Node:
    """A node of a rank's trace.

    Attributes:
        where: Position in the file, for errors.
        id, name, kind: Its number, its name, and its NodeType.
        after: Numbers of the nodes that it waits for.
        dangling: How many more it waits for that the file does not hold.
        duration: Microseconds.
        values: Attributes that are numbers or texts, by name.
        dimensions: Of a collective: whether it spans each dimension of the network.
        inputs: What the trace says of its inputs.
    """

    where: Span
    id: int = 0
    name: str = ""
    kind: int = 0
    after: list[int] = field(default_factory=list)
    dangling: int = 0
    duration: int = 0
    values: dict[str, int | float | str] = field(default_factory=dict)
    dimensions: list[int] = field(default_factory=list)
    inputs: str = ""

    def error(self, problem: str, accepted: str) -> InputError:
        """Makes an error that names this node."""
        return InputError(self.where.source, f"byte {self.where.begin}, node {self.id}", problem, accepted)

    def number(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Returns an attribute; raises InputError if it is missing without a default, no whole number, or out of range."""
        value = self.values.get(name, default)
        if isinstance(value, int) and low <= value <= high:
            return value
        problem = f"no attribute {name}" if value is None else f"{name} is {shown(value)}"
        raise self.error(problem, f"{name}: a whole number from {low} to {high}")

    @property
    def collective(self) -> bool:
        """Whether it is a collective; what converters of PyTorch traces mark as one on the CPU is only the call."""
        return self.kind == COLLECTIVE and not self.values.get("is_cpu_op")

    @property
    def group(self) -> str:
        """Name of the process group; empty if all ranks take part."""
        value = self.values.get("pg_name", "")
        return str(value)


def read_nodes(path: str | Path, limit: int = LIMIT, room: int = MAX_NODES) -> list[Node]:
    """Reads the trace of a rank.

    Args:
        path: The file: messages of protocol buffers, before each its length; the first one has metadata. It may be compressed.
        limit: Most bytes.
        room: Most nodes.

    Raises:
        InputError: With file, position, and node.
    """
    data = read_bytes(path, limit)
    if not data:
        raise InputError(path, "byte 0", "the file is empty", "a Chakra execution trace")
    nodes: list[Node] = []
    seen: dict[int, int] = {}
    edges = 0
    for index, span in enumerate(delimited(str(path), data, "trace")):
        if index == 0:
            for entry in fields(span):  # versions and tool names; only their form is checked
                entry.expect(BYTES, "metadata")
            continue
        if len(nodes) >= room:
            raise span.error(span.begin, f"more than {MAX_NODES} nodes in all files", f"up to {MAX_NODES}")
        node = _node(span)
        if node.id in seen:
            raise node.error(f"the id is also that of the node at byte {seen[node.id]}", "an id of its own")
        seen[node.id] = span.begin
        edges += len(node.after)
        if edges > MAX_EDGES:
            raise node.error(f"more than {MAX_EDGES} dependencies in the file", f"up to {MAX_EDGES}")
        nodes.append(node)
    for node in nodes:
        known = [other for other in dict.fromkeys(node.after) if other in seen]
        node.dangling = len(set(node.after)) - len(known)
        node.after = known
    return nodes


def _node(span: Span) -> Node:
    node = Node(span)
    for entry in fields(span):
        if entry.number == 1:
            node.id = entry.integer("id")
        elif entry.number == 2:
            node.name = entry.text("name")
        elif entry.number == 3:
            node.kind = entry.integer("type")
        elif entry.number in (4, 5):
            node.after += packed(entry, "dependencies")
        elif entry.number == 7:
            node.duration = entry.integer("duration_micros")
        elif entry.number == 8:
            entry.expect(BYTES, "inputs")
            for part in fields(entry.span):
                if part.number == 1:
                    node.inputs = part.text("values")
        elif entry.number == 10:
            entry.expect(BYTES, "attr")
            _attribute(node, entry.span)
    if node.kind >= len(NODE_TYPES):
        raise node.error(f"type {node.kind}", f"0 to {len(NODE_TYPES) - 1}")
    if node.duration > 10**10:
        raise node.error(f"a duration of {node.duration} us", "up to 10000 s")
    return node


def _attribute(node: Node, span: Span) -> None:
    name, value = "", None
    for entry in fields(span):
        if entry.number == 1:
            name = entry.text("name of an attribute")
        elif entry.number == _BOOL_LIST:
            entry.expect(BYTES, "bool_list")
            found = [bit for part in fields(entry.span) if part.number == 1 for bit in packed(part, "values")]
            if name == "involved_dim":
                node.dimensions = found
        elif entry.number != 2:  # a remark
            value = _value(entry)
    if value is not None:
        node.values[name] = value


def _value(entry: Field) -> int | float | str | None:
    """Returns the value of an attribute; None for kinds that no reader needs."""
    number = entry.number
    if number in (*_SIGNED, *_UNSIGNED, *_ZIGZAG, _BOOL):
        value = entry.integer("value")
        return zigzag(value) if number in _ZIGZAG else signed(value) if number in _SIGNED else value
    if number in _FIXED:
        entry.expect(1 if _FIXED[number] == 64 else 5, "value")
        return signed(entry.value, _FIXED[number]) if number in (23, 25) else entry.value
    if number == _DOUBLE:
        entry.expect(1, "value")
        return float(struct.unpack("<d", struct.pack("<Q", entry.value))[0])
    return entry.text("value") if number == _STRING else None


def groups_of(node: Node) -> dict[str, list[int]]:
    """Returns the process groups that a node named "process_group:init" lists; an empty list of ranks stands for all.

    Raises:
        InputError: They are not JSON, or not lists of ranks.
    """
    begin, end = node.inputs.find("[{"), node.inputs.rfind("}]")
    if "process_group:init" not in node.name or begin < 0 or end < begin:
        return {}
    text = node.inputs[begin : end + 2].replace('\\"', '"')
    found = parse_json(node.where.source, f"byte {node.where.begin}, node {node.id}", text)
    groups = {}
    for entry in found:
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks) or "pg_name" not in entry:
            raise node.error(f"process group {shown(entry)}", "pg_name and a list of ranks")
        groups[str(entry["pg_name"])] = ranks
    return groups


__all__ = ["COLLECTIVE", "COLLECTIVES", "COMPUTE", "MAX_NODES", "RECEIVE", "SEND", "Node", "groups_of", "read_nodes"]
