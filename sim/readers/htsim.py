"""Connection matrices of htsim (``.cm``): who sends how much to whom, when, and after what.

The grammar is that which csg-htsim's ``connection_matrix.cpp`` reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sim.messages import Message
from sim.readers.found import POLICY, stuck
from sim.readers.text import LIMIT, MAX_MESSAGES, Line, lines, shown

_ARROW: Final = re.compile(r"([0-9]{1,6})->([0-9]{1,6})", re.ASCII)
_COUNTS: Final = ("Nodes", "Connections", "Triggers", "Failures")
_KINDS: Final = ("oneshot", "multishot", "barrier")
_WORDS: Final = "start, size, id, trigger, send_done_trigger, recv_done_trigger, prio"


@dataclass
class _Trigger:
    """Starts connections when others end."""

    line: Line
    kind: str = ""
    count: int = 0
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Matrix:
    """A connection matrix.

    Attributes:
        nodes: Number of hosts.
        messages: One for every connection.
        notes: What is taken otherwise than in htsim.
    """

    nodes: int
    messages: list[Message]
    notes: list[str]


def read_matrix(path: str | Path, *, limit: int = LIMIT) -> Matrix:
    """Reads a connection matrix.

    Triggers become messages that wait for others: a oneshot's for the connection that fires it, a barrier's for all of them, the
    n-th of a multishot's for the n-th.  ``prio`` is not used.

    Raises:
        InputError: With file and line.
    """
    found = lines(path, limit)
    counts: dict[str, int] = {}
    at = 0
    while at < len(found) and found[at].words[0] in _COUNTS:
        line = found[at]
        name = line.words[0]
        line.expect(2, f"{name} and how many")
        if name in counts:
            raise line.error(f"{name} for the second time", "each count once")
        counts[name] = line.integer(1, name, 1 if name == "Nodes" else 0, 65_535 if name == "Nodes" else MAX_MESSAGES)
        at += 1
    if "Nodes" not in counts:
        raise found[0].error(f"{shown(found[0].words[0])} before the number of nodes", "Nodes and how many")
    messages: list[Message] = []
    starts: list[tuple[Line, int | None]] = []
    stated: dict[int, _Trigger] = {}
    fired: list[tuple[Line, int, int]] = []
    identities: dict[int, int] = {}
    for line in found[at:]:
        first = line.words[0]
        if first == "trigger":
            _read_trigger(line, stated)
        elif first == "failure":
            raise line.error("failures are not read", "no failure; events of the scenario take links down")
        else:
            message, start = _read_connection(line, counts["Nodes"], len(messages), identities, fired)
            messages.append(message)
            starts.append((line, start))
    for name, actual in (("Connections", len(messages)), ("Triggers", len(stated))):
        if counts.get(name, 0) != actual:
            raise found[-1].error(f"{actual} {name.lower()} in all", f"{counts.get(name, 0)}, as {name} in the header says")
    if counts.get("Failures"):
        raise found[-1].error(f"{counts['Failures']} failures announced", "no failures; events of the scenario take links down")
    notes = _wire(messages, starts, stated, fired)
    return Matrix(counts["Nodes"], messages, notes)


def _read_connection(
    line: Line, nodes: int, position: int, identities: dict[int, int], fired: list[tuple[Line, int, int]]
) -> tuple[Message, int | None]:
    match = _ARROW.fullmatch(line.words[0])
    if match is None:
        raise line.error(f"begins with {shown(line.words[0])}", "SOURCE->DESTINATION, trigger, or a count before the connections")
    ends = [int(match[1]), int(match[2])]
    for end in ends:
        if end >= nodes:
            raise line.error(f"node {end}", f"a node from 0 to {nodes - 1}")
    if ends[0] == ends[1]:
        raise line.error(f"goes from {ends[0]} to itself", "two nodes")
    message = Message(ends[0], ends[1], 0, protected=POLICY, bound=POLICY, group="connection")
    seen: dict[str, int] = {}
    index = 1
    while index < len(line.words):
        word = line.words[index]
        if word in seen:
            raise line.error(f"{word} for the second time", "each word once")
        if word == "start":
            seen[word] = line.time(index + 1, word, 1)
        elif word == "size":
            seen[word] = line.integer(index + 1, word, 0, 1 << 40)
        elif word in ("id", "trigger", "send_done_trigger", "recv_done_trigger"):
            seen[word] = line.integer(index + 1, word, 1, 2**32 - 1)
        elif word == "prio":
            seen[word] = line.integer(index + 1, word, 0, 2**32 - 1)
        else:
            raise line.error(f"the unknown word {shown(word)}", _WORDS)
        index += 2
    if not seen.get("size"):
        raise line.error("no size, or size 0, which is a flow without end", "size and a number of bytes")
    if ("start" in seen) == ("trigger" in seen):
        raise line.error("both start and trigger" if "start" in seen else "neither start nor trigger", "one of them")
    if "id" in seen:
        if seen["id"] in identities:
            raise line.error(f"id {seen['id']} is also that of line {identities[seen['id']]}", "an id of its own")
        identities[seen["id"]] = line.number
    fired += [(line, position, seen[word]) for word in ("send_done_trigger", "recv_done_trigger") if word in seen]
    message.size, message.start = seen["size"], seen.get("start", 0)
    return message, seen.get("trigger")


def _read_trigger(line: Line, stated: dict[int, _Trigger]) -> None:
    trigger, number = _Trigger(line), 0
    index = 1
    while index < len(line.words):
        word = line.words[index]
        if word in _KINDS:
            if trigger.kind:
                raise line.error(f"{word} besides {trigger.kind}", "one of them")
            trigger.kind = word
            index += 1
        elif word == "id":
            number = line.integer(index + 1, word, 1, 2**32 - 1)
            index += 2
        elif word == "count":
            trigger.count = line.integer(index + 1, word, 0, MAX_MESSAGES)
            index += 2
        else:
            raise line.error(f"the unknown word {shown(word)}", f"id, count, {', '.join(_KINDS)}")
    if not number or not trigger.kind:
        raise line.error("no id" if not number else "no kind", f"id, and one of {', '.join(_KINDS)}")
    if number in stated:
        raise line.error(f"trigger {number} is also that of line {stated[number].line.number}", "an id of its own")
    stated[number] = trigger


def _wire(
    messages: list[Message],
    starts: Sequence[tuple[Line, int | None]],
    stated: dict[int, _Trigger],
    fired: Sequence[tuple[Line, int, int]],
) -> list[str]:
    """Lets messages wait for those that fire their triggers; returns notes."""
    for line, position, number in fired:
        if number not in stated:
            raise line.error(f"fires trigger {number}, which no line describes", "a trigger that stands in the file")
        stated[number].sources.append(position)
    for position, (line, aim) in enumerate(starts):
        if aim is not None:
            if aim not in stated:
                raise line.error(f"waits for trigger {aim}, which no line describes", "a trigger that stands in the file")
            stated[aim].targets.append(position)
    notes = []
    for number, trigger in stated.items():
        sources, targets = len(trigger.sources), len(trigger.targets)
        fires = f"{trigger.kind} trigger {number} is fired {sources} times"
        if trigger.kind == "oneshot" and sources != 1:
            raise trigger.line.error(fires, "once")
        if trigger.kind == "barrier" and trigger.count != sources:
            raise trigger.line.error(f"{fires}, but counts {trigger.count}", "as many as fire it")
        if trigger.kind == "multishot" and targets > sources:
            raise trigger.line.error(f"{fires}, but starts {targets}", "as many, or fewer")
        waits = list(dict.fromkeys(trigger.sources))
        if trigger.kind == "barrier" and len(waits) > 1 and targets > 1:
            # One message that takes no time stands between, so that there are as many edges as ends, not their product.
            place = messages[trigger.targets[0]].source
            messages.append(Message(place, place, 1, after=waits, group="barrier"))
            waits = [len(messages) - 1]
        for order, target in enumerate(trigger.targets):
            messages[target].after = [trigger.sources[order]] if trigger.kind == "multishot" else list(waits)
        if trigger.kind == "multishot":
            notes.append(f"trigger {number}: its connections follow those that fire it in the order of the file, not of time")
    held = stuck(messages)
    if held is not None:
        raise starts[min(held, len(starts) - 1)][0].error("waits, over triggers, for itself", "triggers without a circle")
    return notes


__all__ = ["Matrix", "read_matrix"]
