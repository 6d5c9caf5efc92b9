"""Figures of the network: queues over time, utilisation, drops by cause, classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dlcp.report.axes import Axis, time_axis
from dlcp.report.charts import Curve, Curves, Mark, Row, Rows
from dlcp.report.figure import Figure, Key, Table, value
from dlcp.report.grids import Bars, Part
from dlcp.report.numbers import count, number, share, size
from sim.report.reading import Run

SHOWN: Final = 6
"""Ports in a figure of curves."""
LISTED: Final = 24
"""Ports in a figure of rows."""
TABLED: Final = 400
"""Rows of a table."""
_POINTS: Final = 600

CAUSES: Final = {
    "dropped_selectively": ("droppable, above the threshold", "s1"),
    "dropped_full": ("no room", "s2"),
    "dropped_down": ("link down", "s3"),
    "lost_on_link": ("error on the link", "s4"),
    "trimmed_packets": ("trimmed", "s5"),
}
"""What can happen to a packet, what it is called, and its colour."""


def name_of(row: dict[str, Any]) -> str:
    """Returns what a port is called."""
    return f"{row['node']} → {row['peer']}"


def thinned(points: Sequence[tuple[float, float]], most: int = _POINTS) -> list[tuple[float, float]]:
    """Returns at most ``most`` points: of neighbours the highest, which is what one looks for in a queue."""
    stride = -(-len(points) // most)
    if stride <= 1:
        return list(points)
    return [max(points[at : at + stride], key=lambda point: point[1]) for at in range(0, len(points), stride)]


def queues(run: Run) -> Figure:
    """Depth over time of the ports whose queues grew deepest."""
    title = "Queues over time, where they grew deepest"
    columns = run.table("series")
    if not columns.get("time_s"):
        return Figure("queues", title, "", empty='Ports were not sampled: series = "10 us" in the scenario does that.')
    interval = max(columns["interval_s"])
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in run.rows("series"):
        found.setdefault((row["node"], row["port"]), []).append(row)
    ports = {key: rows for key, rows in found.items() if any(row["queue_bytes"] for row in rows)}
    deepest = sorted(ports, key=lambda key: (-max(row["queue_bytes"] for row in ports[key]), key))[:SHOWN]
    if not deepest:
        return Figure("queues", title, "", empty="Nothing waited at any sample.")
    samples = max(round(run.summary.get("now_s", 0.0) / interval), 1)
    curves, cells = [], []
    for place, key in enumerate(deepest):
        rows = ports[key]
        points = thinned(filled([(row["time_s"], row["queue_bytes"]) for row in rows], interval))
        curves.append(Curve(name_of(rows[0]), f"s{place}", points))
        ordered = sorted((row["queue_packets"] for row in rows), reverse=True)
        above = int(0.01 * samples)
        p99 = ordered[above] if above < len(ordered) else 0
        cells.append(
            [
                name_of(rows[0]),
                value(sum(ordered) / samples, number),
                value(p99, count),
                value(ordered[0], count),
                value(max(row["queue_bytes"] for row in rows), size),
            ]
        )
    time = time_axis("simulated time", max(columns["time_s"]))
    drawing = Curves(title, curves, time, Axis("waiting (kB)", 1e-3), zero=True).draw()
    heads = ["Port", "Mean packets", "p99", "Most", "Most bytes"]
    table = Table(f"Over {samples} samples.", heads, cells)
    caption = f"Bytes that waited at samples {interval * 1e6:g} µs apart; of several samples in one place the highest."
    legend = [Key(curve.name, curve.style) for curve in curves]
    return Figure("queues", title, caption, [drawing], legend=legend, tables=[table])


def filled(points: Sequence[tuple[float, float]], interval: float) -> list[tuple[float, float]]:
    """Returns points with zeros beside gaps: idle ports have no rows."""
    whole: list[tuple[float, float]] = []
    for time, depth in points:
        before = whole[-1][0] if whole else 0.0
        if time - before > 1.5 * interval:
            whole += [(before + interval, 0.0), (time - interval, 0.0)]
        whole.append((time, depth))
    if whole:
        whole.append((whole[-1][0] + interval, 0.0))
    return whole


def utilisation(run: Run) -> Figure:
    """Share of the time in which links were busy, of those that were most."""
    title = "Utilisation"
    rows = sorted(run.rows("ports"), key=lambda row: (-row["utilisation"], row["node"], row["port"]))
    if not rows:
        return Figure("utilisation", title, "", empty="There is no table of ports.")
    marks = [
        Row(name_of(row), "s0", [Mark(row["utilisation"], 0, row["utilisation"], name_of(row))], note=share(row["utilisation"]))
        for row in rows[:LISTED]
    ]
    drawing = Rows(title, marks, Axis("share of the run", percent=True), bars=True).draw()
    heads = ["Port", "Packets", "Bytes", "Utilisation", "Mean queue, packets", "Deepest queue", "Marked"]
    cells = [
        [
            name_of(row),
            value(row["packets"], count),
            value(row["bytes"], size),
            value(row["utilisation"], share),
            value(row["mean_queue_packets"], number),
            value(row["deepest_queue_bytes"], size),
            value(row["marked_packets"], count),
        ]
        for row in rows[:TABLED]
    ]
    caption = f"The {min(LISTED, len(rows))} busiest of {len(rows)} ports, over the whole run."
    table = Table("Ports, the busiest first" + (f" ({TABLED} of {len(rows)})." if len(rows) > TABLED else "."), heads, cells)
    return Figure("utilisation", title, caption, [drawing], tables=[table])


def drops(run: Run) -> Figure:
    """What was dropped or trimmed, by cause and port."""
    title = "Drops by cause"
    rows = [row for row in run.rows("ports") if any(row[cause] for cause in CAUSES)]
    if not rows:
        return Figure("drops", title, "", empty="Nothing was dropped or trimmed.")
    rows.sort(key=lambda row: (-sum(row[cause] for cause in CAUSES), row["node"], row["port"]))
    bars, cells = [], []
    for row in rows:
        parts = [Part(style, row[cause], f"{says}: {count(row[cause])}") for cause, (says, style) in CAUSES.items() if row[cause]]
        bars.append((name_of(row), parts, count(sum(row[cause] for cause in CAUSES))))
        cells.append([name_of(row), *(value(row[cause], count) for cause in CAUSES)])
    drawing = Bars(title, bars[:LISTED], Axis("packets")).draw()
    legend = [Key(says, style, "area") for cause, (says, style) in CAUSES.items() if any(row[cause] for row in rows)]
    table = Table("Ports that dropped or trimmed.", ["Port", *(says for says, _ in CAUSES.values())], cells[:TABLED])
    caption = f"{len(rows)} ports, those with most first. A trimmed packet arrives, but only its header."
    return Figure("drops", title, caption, [drawing], legend=legend, tables=[table])


def classes(run: Run) -> Table | None:
    """Every class of every switch port that something waited at, the fullest first."""
    rows = [row for row in run.rows("classes") if row["mean_queue_packets"] or row["marked_packets"] or row["dropped_full"]]
    if not rows:
        return None
    rows.sort(key=lambda row: (-row["mean_queue_packets"], row["node"], row["port"], row["class"]))
    heads = [
        "Port and class", "Packets", "Utilisation", "Mean queue", "Found p50", "Found p99", "Found p99.9", "Deepest", "Marked",
        *(says for says, _ in CAUSES.values()),
    ]  # fmt: skip
    cells = [
        [
            f"{name_of(row)}, class {row['class']}",
            value(row["packets"], count),
            value(row["utilisation"], share),
            value(row["mean_queue_packets"], number),
            *(value(row[key], count) for key in ("p50_found_packets", "p99_found_packets", "p999_found_packets")),
            value(row["deepest_queue_bytes"], size),
            value(row["marked_packets"], count),
            *(value(row[cause], count) for cause in CAUSES),
        ]
        for row in rows[:TABLED]
    ]
    return Table("Queues by class. Found: how many packets of its class a packet found waiting.", heads, cells)


__all__ = ["CAUSES", "classes", "drops", "filled", "name_of", "queues", "thinned", "utilisation"]
