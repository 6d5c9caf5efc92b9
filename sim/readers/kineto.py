"""Traces of PyTorch's profiler, as messages: the collectives of a job, played again on another network.

A collective begins on a rank when those that had ended before it began there, in the trace, have ended, and the time that had
passed in between is over: that is taken to be computing.  What overlaps in the trace does not wait for each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

from sim.messages import Message
from sim.readers.found import Found
from sim.readers.kineto_events import LIMIT, Collective, Trace, read_trace
from sim.readers.text import MAX_MESSAGES, MAX_TIME, InputError, shown
from sim.readers.timeline import Timeline, TooMany

MAX_RANKS: Final = 65_000
_WAITS: Final = 64
"""Most collectives that one waits for; more of them at once would be a trace of something else."""
_SIZED: Final = ("all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter")
"""What has the same bytes on all ranks, so that threads that overtake each other (gloo has several) do no harm."""

_Key = tuple[object, ...]


def read_traces(paths: Sequence[str | Path], *, ranks: int | None = None, limit: int = LIMIT) -> Found:
    """Reads the trace of every rank, or of one, whose peers are then taken to do the same.

    Args:
        paths: The files.
        ranks: How many there are, if the trace of one does not say.
        limit: Most bytes of a file.

    Raises:
        InputError: With file and event.
    """
    traces = [read_trace(path, limit=limit) for path in paths]
    return replay(traces, ranks)


def replay(traces: Sequence[Trace], ranks: int | None = None) -> Found:
    """Returns the messages of traces; raises InputError if they do not fit each other."""
    if not traces:
        raise InputError("(files)", "(files)", "none", "the trace of one rank or of all")
    notes = []
    first = traces[0]
    world = ranks or max((trace.world or 0 for trace in traces), default=0)
    world = world or max((collective.count for trace in traces for collective in trace.collectives), default=0) or len(traces)
    if not len(traces) <= world <= MAX_RANKS:
        problem = f"{len(traces)} traces of {world} ranks"
        raise InputError(first.source, "(file)", problem, f"up to {MAX_RANKS} ranks, one trace each")
    if len(traces) == 1 < world:
        notes.append(f"{first.source}: the trace of one rank; all {world} were taken to do the same")
        left = sum(collective.kind in ("send", "receive") for collective in first.collectives)
        if left:
            notes.append(f"{first.source}: {left} messages between two ranks were left out")
        kept = [collective for collective in first.collectives if collective.kind not in ("send", "receive")]
        by_rank = {rank: Trace(first.source, rank, world, first.dialect, kept) for rank in range(world)}
    else:
        by_rank = _by_rank(traces, world)
    total = sum(len(trace.collectives) for trace in by_rank.values())
    if total > MAX_MESSAGES:
        raise InputError(first.source, "(file)", f"{total} collectives on {world} ranks", f"up to {MAX_MESSAGES}")
    try:
        messages = _Replay([by_rank[rank] for rank in range(world)]).run(everybody=len(traces) > 1 or world == 1)
    except TooMany as error:
        accepted = f"up to {MAX_MESSAGES}; fewer ranks or steps"
        raise InputError(first.source, "(file)", f"the traces make {error}", accepted) from None
    return Found(hosts=world, messages=messages, notes=notes)


def _by_rank(traces: Sequence[Trace], world: int) -> dict[int, Trace]:
    known = all(trace.rank is not None for trace in traces)
    found: dict[int, Trace] = {}
    for order, trace in enumerate(traces):
        rank = trace.rank if known and trace.rank is not None else order
        if rank in found or rank >= world:
            raise InputError(trace.source, "distributedInfo.rank", f"rank {rank} of {world}", "every rank once")
        found[rank] = trace
    if len(found) < world:
        missing = next(rank for rank in range(world) if rank not in found)
        problem = f"there is no trace of rank {missing}"
        raise InputError(traces[-1].source, "(file)", problem, f"those of all {world} ranks, or of one")
    return found


class _Replay:
    def __init__(self, traces: Sequence[Trace]) -> None:
        self.traces = traces
        self.line = Timeline()
        self.origin = min((trace.collectives[0].start for trace in traces if trace.collectives), default=0)
        world = len(traces)
        self.everyone = tuple(range(world))
        self.ready: list[list[int | None]] = [[None] * len(trace.collectives) for trace in traces]
        self.done: list[list[int | None]] = [[None] * len(trace.collectives) for trace in traces]
        self._groups: dict[tuple[int, ...], tuple[int, frozenset[int]]] = {}
        self._seen: dict[int, tuple[int, frozenset[int]]] = {}
        self.keys: list[list[_Key]] = [self._keys(rank) for rank in range(world)]
        self.meetings: dict[_Key, dict[int, int]] = {}
        self.waits: list[list[int]] = []
        self.followers: list[dict[int, list[int]]] = []
        self.before: list[list[tuple[int, ...]]] = []
        self.queue: deque[tuple[int, int]] = deque()
        for rank in range(world):
            self._order(rank)

    def _members(self, rank: int, collective: Collective) -> tuple[int, ...]:
        members = collective.members
        if not members:
            return self.everyone
        known = self._group(members)[1]
        if rank not in known or members[-1] >= len(self.everyone):
            trace = self.traces[rank]
            accepted = f"rank {rank} and others of {len(self.everyone)}"
            raise InputError(trace.source, collective.where, f"ranks {shown(members)}", accepted)
        return members

    def _keys(self, rank: int) -> list[_Key]:
        """Returns under which key each collective of a rank meets those of others."""
        # Ranks outside the group of a collective have it only if one trace stands for all; they skip it.
        counts: dict[_Key, int] = {}
        keys: list[_Key] = []
        trace = self.traces[rank]
        for collective in trace.collectives:
            key: _Key
            if collective.kind in ("send", "receive"):
                peer = collective.peer
                if peer is None or peer >= len(self.everyone) or peer == rank:
                    problem = f"{collective.kind} with rank {peer}"
                    raise InputError(trace.source, collective.where, problem, f"another rank below {len(self.everyone)}")
                key = ("send", rank, peer) if collective.kind == "send" else ("send", peer, rank)
            else:
                size = collective.size if trace.dialect == "gloo" and collective.kind in _SIZED else None
                group: object = self._group(collective.members)[0] if collective.members else collective.group
                key = (collective.kind, group, size)
            counts[key] = counts.get(key, 0) + 1
            keys.append((*key, counts[key]))
        return keys

    def _group(self, members: tuple[int, ...]) -> tuple[int, frozenset[int]]:
        """Returns the number of a group, and its ranks as a set; looked up by identity first, since groups can be large."""
        found = self._seen.get(id(members))
        if found is None:
            found = self._groups.setdefault(members, (len(self._groups), frozenset(members)))
            self._seen[id(members)] = found
        return found

    def _order(self, rank: int) -> None:
        """Enters which collectives of a rank wait for which: the last of those that had ended before they began."""
        found = self.traces[rank].collectives
        by_end = sorted(range(len(found)), key=lambda index: found[index].end)
        ends = [found[index].end for index in by_end]
        latest = list(accumulate((found[index].start for index in by_end), max))
        waits: list[int] = []
        before: list[tuple[int, ...]] = []
        followers: dict[int, list[int]] = {}
        for index, collective in enumerate(found):
            over = bisect_right(ends, collective.start)
            begun = latest[over - 1] if over else 0
            mine: list[int] = []
            # What had ended when another one began that is over by now, is waited for by that one.
            while over and len(mine) < _WAITS and (ends[over - 1] > begun or not mine):
                over -= 1
                if by_end[over] < index:  # those of no duration might wait for each other
                    mine.append(by_end[over])
            waits.append(len(mine))
            before.append(tuple(mine))
            for other in mine:
                followers.setdefault(other, []).append(index)
            if not mine:
                self.queue.append((rank, index))
        self.waits.append(waits)
        self.before.append(before)
        self.followers.append(followers)

    def run(self, *, everybody: bool) -> list[Message]:
        """Adds all messages.

        Args:
            everybody: Whether each rank has its own trace; else what a group does is no matter of ranks outside.
        """
        while self.queue:
            rank, index = self.queue.popleft()
            trace = self.traces[rank]
            collective = trace.collectives[index]
            over = [trace.collectives[other].end for other in self.before[rank][index]]
            gap = collective.start - max(over, default=self.origin)
            after = [done for other in self.before[rank][index] if (done := self.done[rank][other]) is not None]
            if gap > MAX_TIME:
                problem = f"begins {gap / 10**12:.6g} s after the one before"
                raise InputError(trace.source, collective.where, problem, "up to 10000 s")
            self.ready[rank][index] = self.line.compute(rank, gap, after)
            if not everybody and collective.members and rank not in self._group(collective.members)[1]:
                self._finish(rank, index, self.ready[rank][index])
            else:
                self._meet(rank, index)
        for rank, trace in enumerate(self.traces):
            for index, collective in enumerate(trace.collectives):
                if self.done[rank][index] is None:
                    problem = f"{collective.kind} of rank {rank} has no counterpart on all its ranks"
                    raise InputError(trace.source, collective.where, problem, "traces of the same steps of one job")
        return self.line.messages

    def _finish(self, rank: int, index: int, message: int | None) -> None:
        self.done[rank][index] = message
        for other in self.followers[rank].get(index, ()):
            self.waits[rank][other] -= 1
            if not self.waits[rank][other]:
                self.queue.append((rank, other))

    def _meet(self, rank: int, index: int) -> None:
        collective = self.traces[rank].collectives[index]
        meeting = self.meetings.setdefault(self.keys[rank][index], {})
        meeting[rank] = index
        point_to_point = collective.kind in ("send", "receive")
        if point_to_point:
            assert collective.peer is not None
            members: tuple[int, ...] = (rank, collective.peer) if collective.kind == "send" else (collective.peer, rank)
        else:
            members = self._members(rank, collective)
        if len(meeting) < len(members):
            return
        ready = [[found] if (found := self.ready[member][meeting[member]]) is not None else [] for member in members]
        sizes = [self.traces[member].collectives[meeting[member]].size for member in members]
        known = [size for size in sizes if size is not None]
        if point_to_point:
            message = self.line.send(members[0], members[1], max(known, default=1), ready[0])
            ends = [message, self.line.compute(members[1], 0, [message, *ready[1]], group="receive")]
        else:
            size = max(known, default=0)
            if collective.kind in _SIZED and collective.kind != "broadcast" and len(set(known)) > 1:
                problem = f"{collective.kind} of {shown(sorted(set(known)))} bytes"
                raise InputError(self.traces[rank].source, collective.where, problem, "the same on all ranks")
            total = size * len(members) if collective.kind in ("all_gather", "gather") else size
            root = members.index(collective.peer) if collective.peer in members else 0
            ends = self.line.collective(collective.kind, members, total, ready, root=root, group=collective.kind)
        for member, end in zip(members, ends, strict=True):
            self._finish(member, meeting[member], end)


__all__ = ["read_traces", "replay"]
