"""The findings as a table for humans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table


def print_findings(found: dict[str, Any], policy: Path | None, console: Console | None = None) -> None:
    """Prints what :func:`dlcp.tolerance.conclusion.document` returned.

    Args:
        found: The document.
        policy: Where the policy was written, or None.
        console: None for standard output.
    """
    console = console or Console()
    title = f"{found['task']}: largest loss that is tolerated"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for name in ("lost", "compensation", "tolerated", "change", "not", "change "):
        table.add_column(name, justify="left" if name in ("lost", "compensation") else "right", no_wrap=True)
    for way in found["ways"]:
        cells = {cell["loss"]: cell for cell in way["cells"]}
        name = f"class {way['class']}" if way["kind"] == "class" else way["kind"]
        good, bad = cells.get(way["tolerated"]), cells.get(way["refused"])
        table.add_row(
            name,
            way["compensation"],
            _percent(way["tolerated"]) if good else "none",
            _change(good),
            "-" if way["refused"] is None else _percent(way["refused"]),
            _change(bad),
        )
    console.print(table)
    console.print("change of accuracy in points: mean, and how bad it may be with confidence; ?: these seeds cannot tell\n")
    for line in found["statement"]:
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"{found['runs']} runs in {found['seconds']:.0f} s", highlight=False)
    if policy is not None:
        console.print(f"wrote {policy}", highlight=False, soft_wrap=True)


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _change(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    if cell["diverged"]:
        return "diverged"
    words = f"{-100 * cell['mean_drop']:+.2f} ({-100 * cell['upper']:+.2f})"
    return f"{words} ?" if cell["judgement"] == "unclear" else words


__all__ = ["print_findings"]
