"""The figure of an experiment: bars of medians with the range over seeds, as one SVG that needs nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape
from typing import Final

from dlcp.report.numbers import number
from sim.experiments.declaration import Column, Declaration
from sim.experiments.tables import Result, groups, values

COLORS: Final = ("#2a78d6", "#d8541f", "#168a60", "#b07c00", "#c9447f", "#6a4fc4", "#00808f", "#7a5230", "#59626e")
WIDTH: Final = 900
LEFT: Final = 270
BAR: Final = 15
GAP: Final = 9
END: Final = 150
"""Room for numbers behind the bars."""


def draw(declaration: Declaration, found: Sequence[Result]) -> str:
    """Returns the figure: a panel for each column that is to have one; the last axis has the colours, the others are groups."""
    parts, top = [], 34
    for column in declaration.columns:
        if column.figure:
            panel, top = _panel(declaration, found, column, top)
            parts += panel
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" role="img" '
        f'font-family="system-ui, DejaVu Sans, sans-serif" font-size="12" fill="#1b1f24">'
    )
    name = escape(declaration.name)
    title = f'<title>{name}</title>\n<rect width="{WIDTH}" height="{top}" fill="#ffffff"/>'
    return "\n".join([head, title, f'<text x="12" y="20" font-size="15" font-weight="600">{name}</text>', *parts, "</svg>", ""])


def _panel(declaration: Declaration, found: Sequence[Result], column: Column, top: int) -> tuple[list[str], int]:
    made = groups(declaration, found)
    most = max((each for rows in made.values() for each in values(rows, column)), default=0.0) or 1.0
    room = WIDTH - LEFT - END
    scale = room / most
    parts = [f'<text x="12" y="{top + 18}" font-weight="600">{escape(column.heading)}</text>']
    y, before = top + 28, None
    last = declaration.axes[-1].names
    for names, rows in made.items():
        if names[:-1] != before:
            before = names[:-1]
            own = max((each for name, rows in made.items() if name[:-1] == before for each in values(rows, column)), default=0.0)
            # Bars that nobody could tell apart get a scale of their own.
            small = 0 < own < most / 20
            scale = room / (own if small else most)
            if before:
                y += GAP
                named = [f"{axis.heading}: {name}" for axis, name in zip(declaration.axes, before, strict=False)]
                says = ", ".join(named) + (" (scale of its own)" if small else "")
                parts.append(f'<text x="12" y="{y + 12}" fill="#59626e">{escape(says)}</text>')
                y += BAR + 2
        these, middle = values(made[names], column), y + BAR / 2
        parts.append(f'<text x="{LEFT - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(names[-1])}</text>')
        if these:
            median = statistics.median(these)
            color = COLORS[last.index(names[-1]) % len(COLORS)]
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{max(median * scale, 0.5):.1f}" height="{BAR - 3}" fill="{color}"/>')
            if these[-1] > these[0]:
                low, high, line = LEFT + these[0] * scale, LEFT + these[-1] * scale, middle - 1.5
                parts.append(f'<path d="M{low:.1f} {line:.1f}H{high:.1f}" stroke="#1b1f24" stroke-width="1.5"/>')
            says, end = number(median, column.digits), LEFT + these[-1] * scale
            parts.append(f'<text x="{end + 6:.1f}" y="{middle + 3:.1f}">{says}</text>')
        else:
            says = ", ".join(sorted({row["state"] for row in rows}))
            parts.append(f'<text x="{LEFT}" y="{middle + 3:.1f}" fill="#b42318">{escape(says)}</text>')
        y += BAR
    return parts, y + 16


__all__ = ["draw"]
