"""Draws small topologies with plain characters.

Switches stand in rows by their distance from the hosts.  A switch of the row above is a horizontal line with an ``o`` over each
switch that it is linked to (a digit instead, if by several links); a line without a name joins two switches of the same row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dlcp.topology.description import Host, Topology

_GAP = 2


def draw(topology: Topology, width: int = 100) -> str:
    """Returns the drawing, lines ended by newlines; nothing if it would be wider than ``width``, or there is no switch."""
    graph = topology.graph
    tier = graph.tiers()
    rows = [
        [switch for switch in graph.switches if tier[switch] == level]
        for level in range(max(tier[switch] for switch in graph.switches) if graph.switches else 0, 0, -1)
    ]
    if not rows:
        return ""
    margin = max(len(name) for row in rows for name in row) + _GAP
    below = {switch: _hosts_below(topology, switch) for switch in graph.switches}
    number = Counter(frozenset((arc.source, arc.target)) for arc in graph.arcs[::2])
    drawn: set[frozenset[str]] = set()
    lines: list[str] = []
    above: list[str] = []
    for row in rows:
        cell = max(max(len(name), *(len(host) for host in below[name]), 3) for name in row) + _GAP
        if margin + cell * len(row) > width:
            return ""
        lanes = [(upper, [(name, number[frozenset((upper, name))]) for name in row]) for upper in above]
        lanes += [("", [(name, number[pair] if name in pair else 0) for name in row]) for pair in _peers(row, number)]
        drawn |= {frozenset((upper, name)) for upper, joints in lanes for name, count in joints if upper and count}
        drawn |= set(_peers(row, number))
        lines += _rails(lanes, margin, cell, len(row))
        if lanes or row is rows[-1]:  # the names of the topmost row stand at its lines
            lines.append(" " * margin + "".join(name.center(cell) for name in row))
        above = row
    deepest = max((len(below[name]) for name in row), default=0)
    for depth in range(deepest):
        lines.append(" " * margin + "".join((below[name][depth : depth + 1] or [""])[0].center(cell) for name in row))
    rest = [pair for pair in number if pair not in drawn and not _hangs(topology, pair, set(row))]
    lines += [f"and {' - '.join(sorted(pair))}" for pair in rest]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _rails(lanes: Sequence[tuple[str, list[tuple[str, int]]]], margin: int, cell: int, columns: int) -> list[str]:
    """Draws one line for each lane, and the verticals that lead down from their joints."""
    lines = []
    begun = [False] * columns
    for label, joints in lanes:
        counts = [count for _, count in joints]
        if not any(counts):
            continue
        centres = [margin + cell * index + (cell - 1) // 2 for index in range(columns)]
        linked = [index for index, count in enumerate(counts) if count]
        text = list(label.rjust(margin - 1).ljust(margin + cell * columns))
        for place in range(centres[linked[0]], centres[linked[-1]]):
            text[place] = "-"
        for index, (centre, count) in enumerate(zip(centres, counts, strict=True)):
            inside = linked[0] <= index <= linked[-1]
            if count:
                text[centre] = "o" if count == 1 else str(min(count, 9))
                begun[index] = True
            elif begun[index]:
                text[centre] = "+" if inside else "|"
        lines.append("".join(text))
    if lines:
        text = [" "] * (margin + cell * columns)
        for index, down in enumerate(begun):
            if down:
                text[margin + cell * index + (cell - 1) // 2] = "|"
        lines.append("".join(text))
    return lines


def _peers(row: Sequence[str], number: Counter[frozenset[str]]) -> list[frozenset[str]]:
    names = set(row)
    return [pair for pair in number if pair <= names]


def _hosts_below(topology: Topology, switch: str) -> list[str]:
    graph = topology.graph
    return [_label(topology.host(node)) for node in graph.neighbours(switch) if graph.is_host(node)]


def _label(host: Host) -> str:
    return f"{host.name} r{spans(host.ranks)}" if host.ranks else f"{host.name} -"


def _hangs(topology: Topology, pair: frozenset[str], row: set[str]) -> bool:
    """Whether a link is that of a host listed under a switch of the last row."""
    return any(topology.graph.is_host(node) for node in pair) and bool(pair & row)


def spans(numbers: Sequence[int]) -> str:
    """Writes ascending numbers in short: ``0-3,7``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


__all__ = ["draw", "spans"]
