"""Figures of the network: queues and links over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dlcp.report.axes import time_axis
from dlcp.report.figure import Drawing, Figure, Key, Table, spread, value
from dlcp.report.grids import LEVELS, Matrix, Strip, Strips
from dlcp.report.numbers import Spread, count, number, quantile, rate, share
from testbed.report.records import PortTrace, is_number
from testbed.report.view import Contender, View
from testbed.results import RunResult

CELLS: Final = 240
"""Cells of a strip: each has the largest (or mean) of what was sampled in its time."""


_BUSY: Final = 0.01
"""A link that never is as busy as this is not shown over time."""


def queues(view: View) -> Figure:
    """Queue depth over time at each port."""
    title = "Queues over time, at each port of each switch"
    if not view.ports:
        return Figure("queues", title, "", empty=_no_traces(view))
    largest = max((depth for ports in view.ports.values() for port in ports for depth in _within(port, port.depth)), default=0)
    drawings, cells, idle = {}, [], {}
    for contender in view.contenders:
        run, ports = contender.representative, view.ports.get(contender.name)
        if run is None or ports is None:
            continue
        queued = [port for port in ports if any(_within(port, port.depth))]
        idle[contender.name] = len(ports) - len(queued)
        if queued:
            edges = _edges(run, ports)
            strips = [Strip(port.name, _binned(port.times, port.depth, edges, max)) for port in queued]
            drawings[contender.name] = Strips(
                f"{contender.name}, seed {run['seed']}", strips, edges, largest, time_axis("time of the run", edges[-1]),
                _moments(run),
            ).draw()  # fmt: skip
        for port in ports:
            cells.append(_queue_row(contender.name, port))
    shown, more = _split(view, drawings)
    quiet = ", ".join(f"{name}: {ports}" for name, ports in idle.items() if ports)
    caption = (
        f"Packets waiting at each port in the run nearest the median; a cell has the largest of its samples, and the darkest is "
        f"{largest:,} packets. Time 0 is the first step. Vertical lines: events."
        + (f" Ports whose queue was empty at every sample are left out ({quiet})." if quiet else "")
    )
    columns = ["Candidate", "Port", "Samples", "Mean depth", "p99 depth", "Largest depth", "Busiest queue", "Time with a queue"]
    table = Table("Depth of queues in packets, in the run nearest the median, from the first step on.", columns, cells)
    empty = "" if drawings else "No queue held a packet at any sample."
    legend = _shades(largest, lambda n: f"{int(n or 0)}") if drawings else ()
    return Figure("queues", title, caption, shown, more, legend, [table], empty, what="Other candidates")


def _within(port: PortTrace, values: Sequence[Any]) -> list[Any]:
    """Returns the values from the first step on."""
    return [item for time, item in zip(port.times, values, strict=True) if time >= 0]


def _queue_row(candidate: str, port: PortTrace) -> list[object]:
    depths = sorted(_within(port, port.depth))
    if not depths:
        return [candidate, port.name, value(0, count), *(value(None, count) for _ in range(5))]
    queues = _within(port, port.queues)
    totals = [sum(column) for column in zip(*queues, strict=False)]
    busiest = max(range(len(totals)), key=totals.__getitem__) if any(totals) else None
    return [
        candidate,
        port.name,
        value(len(depths), count),
        value(sum(depths) / len(depths), number),
        value(quantile(depths, 0.99), count),
        value(depths[-1], count),
        value(busiest, lambda n: "none" if n is None else f"{n:g}"),
        value(sum(depth > 0 for depth in depths) / len(depths), share),
    ]


def utilisation(view: View) -> Figure:
    """How busy each link was, candidate by candidate, and over time."""
    title = "How busy links were"
    contenders = [contender for contender in view.contenders if contender.shown]
    means = {contender.name: _means(contender, view.peers) for contender in contenders}
    ports = sorted({port for of_candidate in means.values() for port in of_candidate}, key=lambda port: (port[0], port[1]))
    if not ports:
        why = "No switch told how much its ports have sent and at what rate (BMv2 does not count that by itself)."
        return Figure("utilisation", title, "", empty=why)
    rows = []
    for port in ports:
        values = [means[contender.name].get(port) for contender in contenders]
        rows.append((port[0], [None if found is None else found[0].median for found in values]))
    busiest = sorted(rows, key=lambda row: -max(v or 0.0 for v in row[1]))[:24]
    kept = [row for row in rows if row in busiest]
    matrix = Matrix("Mean utilisation", [c.name for c in contenders], kept, 1.0, lambda v: share(v, 0)).draw()
    strips = _utilisation_strips(view)
    caption = (
        "What a switch's port has sent from the first step until the last rank ended, over what its link could have carried: "
        "median over runs."
        + ("" if len(kept) == len(rows) else f" The {len(kept)} busiest ports of {len(rows)}; the table has all.")
        + (" Over time: in the run nearest the median." if strips else "")
    )
    cells = []
    for port in ports:
        for contender in contenders:
            found = means[contender.name].get(port)
            if found is not None:
                busy, sent, bits = found
                cells.append([port[0], contender.name, spread(busy, share), value(sent, rate), value(bits, rate)])
    columns = ["Port", "Candidate", "Mean utilisation", "Sent", "Rate of the link"]
    table = Table("Utilisation of links: median over runs, and the range.", columns, cells)
    legend = _shades(1.0, lambda v: share(v, 0))
    return Figure("utilisation", title, caption, [matrix], strips, legend, [table], what="Over time, candidate by candidate")


def _utilisation_strips(view: View) -> list[Drawing]:
    drawings = {}
    for contender in view.contenders:
        run, ports = contender.representative, view.ports.get(contender.name)
        if run is None or ports is None:
            continue
        edges = _edges(run, ports)
        strips = [
            Strip(port.name, _binned(port.times, port.utilisation, edges, lambda values: sum(values) / len(values)))
            for port in ports
            if any(busy is not None and busy >= _BUSY for busy in _within(port, port.utilisation))
        ]
        if strips:
            axis = time_axis("time of the run", edges[-1])
            title = f"{contender.name}, seed {run['seed']}"
            drawings[contender.name] = Strips(title, strips, edges, 1.0, axis, _moments(run)).draw()
    shown, more = _split(view, drawings)
    return shown + more


def _means(contender: Contender, known: Mapping[str, Mapping[str, str]]) -> dict[tuple[str, str], tuple[Spread, float, float]]:
    """Returns for each port (name, number): the spread of its utilisation, and medians of bit/s sent and of its rate."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for run in contender.shown:
        lasted = run["training_s"]
        for switch, name, port in ports_of(run):
            sent, bits = port.get("out_bytes"), port.get("rate_bps")
            if lasted and is_number(sent) and is_number(bits) and bits:
                peer = known.get(switch, {}).get(name, f"port {name}")
                found.setdefault((f"{switch} → {peer}", name), []).append((8 * float(sent) / lasted, float(bits)))
    means = {}
    for key, pairs in found.items():
        busy = Spread.of(min(1.0, sent / bits) for sent, bits in pairs)
        sent, bits = Spread.of(sent for sent, _ in pairs), Spread.of(bits for _, bits in pairs)
        if busy is not None and sent is not None and bits is not None:
            means[key] = (busy, sent.median, bits.median)
    return means


def ports_of(run: RunResult) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Returns what a run's switches counted: switch, number of the port, and its counters."""
    return [(name, number, port) for name, switch in switches_of(run) for number, port in _tables(switch.get("ports"))]


def switches_of(run: RunResult) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the counters of a run's switches."""
    return _tables(run["network"].get("switches"))


def _tables(found: object) -> list[tuple[str, Mapping[str, Any]]]:
    if not isinstance(found, Mapping):
        return []
    return [(str(name), item) for name, item in found.items() if isinstance(item, Mapping)]


def _edges(run: RunResult, ports: Sequence[PortTrace]) -> list[float]:
    last = run["training_s"] or max((port.times[-1] for port in ports if port.times), default=1.0)
    return [last * index / CELLS for index in range(CELLS + 1)] if last > 0 else [0.0, 1.0]


def _binned(
    times: Sequence[float], values: Sequence[float | None], edges: Sequence[float], how: Callable[[list[float]], float]
) -> list[float | None]:
    """Puts samples into cells of equal width; a cell without a sample has what the one before had, as queues stay."""
    cells: list[list[float]] = [[] for _ in range(len(edges) - 1)]
    width = edges[1] - edges[0]
    for time, item in zip(times, values, strict=True):
        place = int((time - edges[0]) // width)
        if item is not None and 0 <= place < len(cells):
            cells[place].append(item)
    found: list[float | None] = []
    for place, samples in enumerate(cells):
        if samples:
            found.append(how(samples))
        else:
            # Between two samples: of a coarse trace each stands for some cells; before the first and after the last is nothing.
            known = bool(found) and found[-1] is not None and any(cells[place + 1 :])
            found.append(found[-1] if known else None)
    return found


def _moments(run: RunResult) -> list[tuple[float, str]]:
    return [(event["at_s"], event["what"] or event["kind"]) for event in run["events"] if not event["error"]]


def _split(view: View, drawings: Mapping[str, Drawing]) -> tuple[list[Drawing], list[Drawing]]:
    names = [contender.name for contender in view.featured if contender.name in drawings]
    # The last ones of a file have most mechanisms.
    others = [contender for contender in reversed(view.contenders) if contender.name in drawings and contender.name not in names]
    others.sort(key=lambda contender: contender.baseline)
    names += [contender.name for contender in others[: 2 - len(names)]]
    return [drawings[name] for name in names], [drawing for name, drawing in drawings.items() if name not in names]


def _shades(largest: float, text: Callable[[float | None], str]) -> list[Key]:
    return [Key(f"≤ {text(largest * level / LEVELS)}", f"h{level}", "area") for level in range(1, LEVELS + 1)]


def _no_traces(view: View) -> str:
    targets = sorted({contender.result["target"] for contender in view.contenders})
    return f"No switch wrote its queues over time; only the softswitch does, and the switches here were: {', '.join(targets)}."


__all__ = ["ports_of", "queues", "switches_of", "utilisation"]
