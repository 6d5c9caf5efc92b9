"""Chakra execution traces of all ranks, as messages.

A trace is a graph: nodes compute, or communicate, after those that they wait for.  What is computed on a rank runs as soon as it
may.  A collective begins on a rank when what it waits for is done there; ranks meet by the order of collectives of one group in
their files.  A send is done when it has arrived.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from sim.readers.chakra_nodes import COLLECTIVES, COMPUTE, MAX_NODES, RECEIVE, SEND, Node, groups_of, read_nodes
from sim.readers.found import Found
from sim.readers.text import LIMIT, MAX_MESSAGES, InputError, parse_json, read_text, shown
from sim.readers.timeline import Timeline, TooMany

MICROSECOND: Final = 10**6
MAX_RANKS: Final = 65_000
MAX_BYTES: Final = 1 << 40
_RANK: Final = re.compile(r"(?:^|[^0-9])([0-9]{1,5})(?:\.et)?(?:\.gz)?$")


def read_traces(
    paths: Sequence[str | Path],
    *,
    flops: float | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    limit: int = LIMIT,
) -> Found:
    """Reads one trace for each rank.

    Args:
        paths: The files; if all their names end in numbers (``trace.0.et``), those are the ranks, else the order counts.
        flops: Operations that a rank computes in a second, for nodes that say how many they take, but not how long.
        groups: Name of a process group to its ranks; what the traces list is known.  Otherwise a group is those ranks whose
            traces name it.
        limit: Most bytes of a file.

    Raises:
        InputError: With file, position, and node.
    """
    order = _ranks(paths)
    traces: list[list[Node]] = []
    for path in order:
        traces.append(read_nodes(path, limit, MAX_NODES - sum(len(trace) for trace in traces)))
    try:
        return _Replay(traces, [str(path) for path in order], flops, groups or {}).run()
    except TooMany as error:
        raise InputError(order[0], "(file)", f"its graph has {error}", f"fewer ranks, or up to {MAX_MESSAGES} messages") from None


def read_groups(path: str | Path) -> dict[str, list[int]]:
    """Reads process groups as astra-sim takes them: JSON, name to list of ranks; raises InputError."""
    found = parse_json(path, "(file)", read_text(path))
    if not isinstance(found, dict):
        raise InputError(path, "(file)", shown(found), "an object: name of a group to a list of ranks")
    for name, ranks in found.items():
        if not isinstance(ranks, list) or not ranks or not all(type(rank) is int and rank >= 0 for rank in ranks):
            raise InputError(path, str(name), shown(ranks), "a list of ranks")
    return found


def _ranks(paths: Sequence[str | Path]) -> list[str | Path]:
    """Returns the files by rank."""
    if not 1 <= len(paths) <= MAX_RANKS:
        raise InputError("(files)", "(files)", f"{len(paths)} files", "one for each rank")
    numbers = [_RANK.search(Path(path).name) for path in paths]
    named = sorted((int(match[1]), index) for index, match in enumerate(numbers) if match)
    if [number for number, _ in named] == list(range(len(paths))):
        return [paths[index] for _, index in named]
    if len(named) == len(paths) and len({number for number, _ in named}) == len(paths) > 1:
        missing = next(rank for rank in range(len(paths)) if rank != named[rank][0])
        raise InputError(paths[named[missing][1]], "(file)", f"there is no file of rank {missing}", "the files of all ranks")
    return list(paths)


class _Replay:
    """Walks the graphs of all ranks together."""

    def __init__(
        self, traces: list[list[Node]], files: list[str], flops: float | None, groups: Mapping[str, Sequence[int]]
    ) -> None:
        self.traces = traces
        self.files = files
        self.flops = flops
        self.line = Timeline()
        self.done: list[dict[int, int | None]] = [{} for _ in traces]
        self.found = Found(hosts=len(traces))
        self._members = self._groups(groups)
        self._sets = {name: frozenset(ranks) for name, ranks in self._members.items()}
        self._meetings: dict[tuple[str, int], dict[int, Node]] = {}
        self._turns: list[dict[int, tuple[str, int]]] = []
        self._mail: dict[tuple[int, int, int, int], int] = {}
        self._letters: list[dict[int, tuple[int, int, int, int]]] = []
        self._expected: dict[tuple[int, int, int, int], tuple[int, Node]] = {}
        self._ready: deque[tuple[int, Node]] = deque()
        self._waits: list[dict[int, int]] = []
        self._followers: list[dict[int, list[Node]]] = []
        for rank, trace in enumerate(traces):
            self._enter(rank, trace)
            dangling = sum(node.dangling for node in trace)
            if dangling:
                self.found.notes.append(f"{files[rank]}: {dangling} dependencies on nodes that are not there were taken as met")

    def _groups(self, given: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        members: dict[str, list[int]] = {"": list(range(len(self.traces)))}
        listed: dict[str, list[int]] = {}
        for rank, trace in enumerate(self.traces):
            for node in trace:
                listed |= groups_of(node)
                if node.collective and node.group:
                    mine = members.setdefault(node.group, [])
                    if not mine or mine[-1] != rank:
                        mine.append(rank)
        for name, ranks in {**listed, **given}.items():
            if name in members and name:
                mine = members[name] = list(ranks) or members[""]
                if len(set(mine)) != len(mine) or not all(0 <= rank < len(self.traces) for rank in mine):
                    accepted = f"different ranks from 0 to {len(self.traces) - 1}"
                    raise InputError(self.files[0], f"process group {name}", shown(ranks), accepted)
        return members

    def _enter(self, rank: int, trace: list[Node]) -> None:
        waits: dict[int, int] = {}
        followers: dict[int, list[Node]] = {}
        turns: dict[int, tuple[str, int]] = {}
        letters: dict[int, tuple[int, int, int, int]] = {}
        counts: dict[object, int] = {}
        for node in trace:
            waits[node.id] = len(node.after)
            for other in node.after:
                followers.setdefault(other, []).append(node)
            if not node.after:
                self._ready.append((rank, node))
            key: object
            if node.collective:
                key = node.group
                turns[node.id] = (node.group, counts.get(key, 0))
                counts[key] = counts.get(key, 0) + 1
            elif node.kind in (SEND, RECEIVE):
                source = node.number("comm_src", 0, len(self.traces) - 1, rank if node.kind == SEND else None)
                target = node.number("comm_dst", 0, len(self.traces) - 1, rank if node.kind == RECEIVE else None)
                if rank != (source if node.kind == SEND else target) or source == target:
                    raise node.error(f"goes from {source} to {target}", f"a message of rank {rank} with another")
                ends = (source, target, node.number("comm_tag", 0, 2**63 - 1, 0))
                key = (node.kind, ends)
                letters[node.id] = (*ends, counts.get(key, 0))
                counts[key] = counts.get(key, 0) + 1
        self._waits.append(waits)
        self._followers.append(followers)
        self._turns.append(turns)
        self._letters.append(letters)

    def run(self) -> Found:
        while self._ready:
            rank, node = self._ready.popleft()
            if node.collective:
                self._meet(rank, node)
            elif node.kind == SEND:
                self._send(rank, node)
            elif node.kind == RECEIVE:
                self._receive(rank, node)
            else:
                self._compute(rank, node)
        held = [[node for node in trace if node.id not in self.done[rank]] for rank, trace in enumerate(self.traces)]
        # A rank that waits for nobody else is the cause, if there is one; the others wait for it.
        own = [all(self._waits[rank][node.id] for node in nodes) for rank, nodes in enumerate(held)]
        for rank in sorted(range(len(held)), key=lambda rank: not own[rank]):
            for node in held[rank]:
                raise node.error(self._reason(rank, node), "a graph that ends, and ranks whose traces fit each other")
        self.found.messages = self.line.messages
        return self.found

    def _reason(self, rank: int, node: Node) -> str:
        if self._waits[rank][node.id]:
            return f"waits for {sum(other not in self.done[rank] for other in node.after)} nodes that never end"
        if node.collective:
            name, turn = self._turns[rank][node.id]
            missing = [other for other in self._members[name] if other not in self._meetings[name, turn]]
            return f"collective {turn} of group {name or 'all'} never begins on ranks {shown(missing)}"
        return "no rank sends what it receives"

    def _after(self, rank: int, node: Node) -> list[int]:
        mine = self.done[rank]
        return list(dict.fromkeys(found for other in node.after if (found := mine[other]) is not None))

    def _finish(self, rank: int, node: Node, message: int | None) -> None:
        self.done[rank][node.id] = message
        waits = self._waits[rank]
        for other in self._followers[rank].get(node.id, ()):
            waits[other.id] -= 1
            if not waits[other.id]:
                self._ready.append((rank, other))

    def _compute(self, rank: int, node: Node) -> None:
        after = self._after(rank, node)
        duration = node.duration * MICROSECOND
        if not duration:
            duration = node.number("runtime", 0, 10**10, 0) * MICROSECOND
        operations = node.number("num_ops", 0, 10**24, 0) if node.kind == COMPUTE else 0
        if not duration and operations:
            if self.flops is None:
                raise node.error(
                    f"takes {operations} operations, and no time", "duration_micros, or --flops: the speed of a rank"
                )
            duration = round(operations / self.flops * 10**12)
        if not duration and len(after) < 2:
            self._finish(rank, node, after[0] if after else None)
        else:
            self._finish(rank, node, self.line.compute(rank, duration, after))

    def _meet(self, rank: int, node: Node) -> None:
        if not all(node.dimensions):
            raise node.error(f"involved_dim is {shown(node.dimensions)}", "true for all, or a process group (pg_name)")
        key = self._turns[rank][node.id]
        members = self._members[key[0]]
        if rank not in self._sets[key[0]]:
            raise node.error(f"rank {rank} is not in process group {key[0]}", f"one of {shown(members)}")
        meeting = self._meetings.setdefault(key, {})
        meeting[rank] = node
        kind = node.number("comm_type", 0, len(COLLECTIVES) - 1)
        size = node.number("comm_size", 0, MAX_BYTES, 0 if COLLECTIVES[kind] == "barrier" else None)
        first_rank, first = next(iter(meeting.items()))
        agreed = (first.values.get("comm_type"), first.values.get("comm_size", 0))
        if agreed != (kind, node.values.get("comm_size", 0)):
            raise node.error(
                f"{COLLECTIVES[kind]} of {size} bytes, where rank {first_rank} has type {agreed[0]} of {agreed[1]} bytes",
                "the same collectives in the same order on all ranks of a group",
            )
        if len(meeting) < len(members):
            return
        name = COLLECTIVES[kind]
        # The trace has the bytes that each rank puts in.
        total = size * len(members) if name in ("all_gather", "gather") else size
        root = node.number("root_rank", 0, len(members) - 1, 0)
        ready = [self._after(member, meeting[member]) for member in members]
        done = self.line.collective(name, members, total, ready, root=root, group=f"{name}{key[1]}")
        for member, message in zip(members, done, strict=True):
            self._finish(member, meeting[member], message)

    def _send(self, rank: int, node: Node) -> None:
        key = self._letters[rank][node.id]
        size = node.number("comm_size", 0, MAX_BYTES)
        message = self.line.send(rank, key[1], size, self._after(rank, node))
        self._mail[key] = message
        self._finish(rank, node, message)
        if key in self._expected:
            self._receive(*self._expected.pop(key))

    def _receive(self, rank: int, node: Node) -> None:
        key = self._letters[rank][node.id]
        if key not in self._mail:
            self._expected[key] = (rank, node)
            return
        self._finish(rank, node, self.line.compute(rank, 0, [self._mail[key], *self._after(rank, node)], group="receive"))


__all__ = ["read_groups", "read_traces"]
