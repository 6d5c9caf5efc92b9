"""What the network dropped: by class and by cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dlcp.report.axes import Axis
from dlcp.report.figure import Figure, Key, Table, value
from dlcp.report.grids import Bars, Part
from dlcp.report.numbers import count
from testbed.report.network import ports_of, switches_of
from testbed.report.records import is_number
from testbed.report.view import Contender, View
from testbed.results import RunResult

CLASSES: Final = 8
ANY: Final = -1
"""Where a class is not known."""

SELECTIVE: Final = {"droppable": "given up by the program: droppable", "ordinary": "given up by the program: cross traffic",
                    "protected": "given up by the program: protected"}  # fmt: skip
FULL: Final = "queue full"
TRIMMED: Final = "trimmed: only the payload is lost, and the receiver is told"
HOST: Final = "host's own queue full"
EMULATION: Final = "lost by the emulation, which could not keep up"
SLOW: Final = ("receive-buffer-full", "interface-full")
"""Losses at interfaces of a switch that has too little of the processor."""

_HIDDEN: Final = frozenset(("queue-full",))
"""Causes of ports that their queues count by class."""

Drops = Counter[tuple[str, int]]


def dropped(run: RunResult) -> Drops:
    """Returns the packets that a run's network dropped, by cause and class; the class of a full queue is its priority."""
    found: Drops = Counter()
    for _, switch in switches_of(run):
        program = switch.get("program")
        if isinstance(program, Mapping):
            _add_program(found, program)
        counted = switch.get("drops")
        if isinstance(counted, Mapping):
            # What the program gave up stands here as "ingress" too, and what ports dropped under their causes.
            for cause, packets in counted.items():
                if cause not in ("ingress", "egress") or not isinstance(program, Mapping):
                    if cause not in _HIDDEN and is_number(packets):
                        found[_words(cause), ANY] += int(packets)
    for name, _, port in ports_of(run):
        by_queue = _by_queue(port)
        for priority, packets in by_queue.items():
            found[FULL, priority] += packets
        counted = port.get("drops")
        if isinstance(counted, Mapping):
            rest = counted.get("queue-full", 0)
            if is_number(rest) and rest > sum(by_queue.values()):
                found[FULL, ANY] += int(rest) - sum(by_queue.values())
            if not any("drops" in switch for other, switch in switches_of(run) if other == name):
                for cause, packets in counted.items():
                    if cause not in _HIDDEN and is_number(packets):
                        found[_words(cause), ANY] += int(packets)
    _add_hosts(found, run["network"].get("hosts"))
    _add_emulation(found, run)
    return Counter({key: packets for key, packets in found.items() if packets > 0})


def _words(cause: object) -> str:
    """Writes a switch's name of a cause for people."""
    return str(cause).replace("-", " ")


def _add_program(found: Drops, program: Mapping[str, Any]) -> None:
    for verdict in ("dropped", "trimmed"):
        kinds = program.get(verdict)
        for kind, counts in kinds.items() if isinstance(kinds, Mapping) else ():
            packets = counts.get("packets") if isinstance(counts, Mapping) else None
            for priority, number in enumerate(packets if isinstance(packets, list) else ()):
                if is_number(number):
                    cause = TRIMMED if verdict == "trimmed" else SELECTIVE.get(kind, f"given up by the program: {kind}")
                    found[cause, priority] += int(number)
    discarded = program.get("discarded")
    for cause, number in discarded.items() if isinstance(discarded, Mapping) else ():
        if is_number(number):
            found[f"refused by the program: {cause}", ANY] += int(number)


def _by_queue(port: Mapping[str, Any]) -> Counter[int]:
    found: Counter[int] = Counter()
    queues = port.get("queues")
    for place, queue in enumerate(queues if isinstance(queues, list) else ()):
        if isinstance(queue, Mapping) and is_number(queue.get("dropped")):
            priority = queue.get("priority", place)
            found[priority if isinstance(priority, int) and 0 <= priority < CLASSES else ANY] += int(queue["dropped"])
    if not sum(found.values()):
        # The kernel's classifier counts by class what its queues dropped.
        classes = port.get("classes")
        for place, counts in enumerate(classes[:CLASSES] if isinstance(classes, list) else ()):
            if isinstance(counts, Mapping) and is_number(counts.get("dropped")):
                found[place] += int(counts["dropped"])
    return found


def _add_hosts(found: Drops, hosts: object) -> None:
    for interfaces in hosts.values() if isinstance(hosts, Mapping) else ():
        for counts in interfaces.values() if isinstance(interfaces, Mapping) else ():
            if isinstance(counts, Mapping) and is_number(counts.get("drops")):
                found[HOST, ANY] += int(counts["drops"])


def _add_emulation(found: Drops, run: RunResult) -> None:
    """Adds what no network would have lost, and what relays lost that stand in for links."""
    wires = run["network"].get("wires")
    counted = wires.get("drops") if isinstance(wires, Mapping) else None
    for cause, packets in counted.items() if isinstance(counted, Mapping) else ():
        if is_number(packets):
            found[_words(cause), ANY] += int(packets)
    for cause, packets in _outside(run).items():
        if cause not in SLOW:
            found[_words(cause), ANY] += packets
    found[EMULATION, ANY] += not_kept_up(run)


def _outside(run: RunResult) -> Counter[str]:
    """Returns what interfaces of switches and wires lost, by cause."""
    found: Counter[str] = Counter()
    wires = run["network"].get("wires")
    for switch in (*(switch for _, switch in switches_of(run)), *([wires] if isinstance(wires, Mapping) else [])):
        ports = switch.get("outside_drops")
        for causes in ports.values() if isinstance(ports, Mapping) else ():
            for cause, packets in causes.items() if isinstance(causes, Mapping) else ():
                if is_number(packets) and packets > 0:
                    found[str(cause)] += int(packets)
    return found


def not_kept_up(run: RunResult) -> int:
    """Returns how many frames were lost because this machine was too slow; above 0 the run means little."""
    lost = run["network"].get("backlog_drops")
    outside = _outside(run)
    return (int(lost) if is_number(lost) and lost > 0 else 0) + sum(outside[cause] for cause in SLOW)


def per_run(contender: Contender) -> dict[tuple[str, int], float]:
    """Returns the mean over runs of what was dropped."""
    total: Drops = Counter()
    for run in contender.shown:
        total.update(dropped(run))
    return {key: packets / len(contender.shown) for key, packets in total.items()}


def drops(view: View) -> Figure:
    """Packets that the network dropped, by cause, and in the table by class too."""
    contenders = [contender for contender in view.contenders if any(run["network"] for run in contender.shown)]
    title = "Packets that the network dropped, by class and cause"
    if not contenders:
        return Figure("drops", title, "", empty="No run came to the point where switches tell what they have counted.")
    found = {contender.name: per_run(contender) for contender in contenders}
    causes = _causes(found.values())
    style = {cause: f"d{index}" for index, cause in enumerate(causes)}
    rows = []
    for contender in contenders:
        sums = {cause: sum(n for (each, _), n in found[contender.name].items() if each == cause) for cause in causes}
        parts = [Part(style[cause], n, f"{contender.name}: {cause}: {count(n)}") for cause, n in sums.items() if n > 0]
        whole = sum(sums.values())
        rows.append((contender.name, parts, count(whole) if whole else "none"))
    drawing = Bars("Dropped packets", rows, Axis("packets in a run, mean over runs")).draw()
    cells = []
    for contender in contenders:
        for cause in causes:
            of_class = {place: n for (each, place), n in found[contender.name].items() if each == cause}
            if of_class:
                by_class = [value(of_class.get(place, 0.0), count) for place in (*range(CLASSES), ANY)]
                cells.append([contender.name, cause, *by_class, value(sum(of_class.values()), count)])
    columns = ["Candidate", "Cause", *(f"Class {place}" for place in range(CLASSES)), "Class not known", "All"]
    caption = (
        "All switches and hosts together, cross traffic included; mean over runs. TCP sends again what was dropped. Of DLCP, "
        "droppable packets are given up by the switch's program before queues are full. The table has the classes: 7 is control; "
        "what has no class is in queue 0."
    )
    table = Table("Dropped packets in a run, mean over runs, by cause and class.", columns, cells)
    legend = [Key(cause, style[cause], "area") for cause in causes]
    none = "" if causes else "Nothing was dropped anywhere."
    return Figure("drops", title, caption, [drawing] if causes else [], legend=legend, tables=[table], empty=none)


def _causes(found: Any) -> Sequence[str]:
    totals: Counter[str] = Counter()
    for each in found:
        for (cause, _), packets in each.items():
            totals[cause] += packets
    return [cause for cause, _ in totals.most_common()]


__all__ = ["ANY", "EMULATION", "dropped", "drops", "not_kept_up", "per_run"]
