"""What the verbs of ``dlcp switch`` print: tables, and documents of plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dlcp.fabric.counters import CAUSES, CLASSES, KINDS, VERDICTS, Counts, total
from dlcp.fabric.deploy import Fabric, Outcome
from dlcp.fabric.diff import Change, Operation
from dlcp.fabric.entities import Default, describe
from dlcp.fabric.jobs import permitted
from dlcp.fabric.transaction import ABSENT, CHANGED, SAME, Held, Plan

if TYPE_CHECKING:
    from rich.table import Table

_PROGRAM: Final = {SAME: "dlcp", CHANGED: "another", ABSENT: "none"}
_STYLE: Final = {Operation.INSERT: "green", Operation.MODIFY: "yellow", Operation.DELETE: "red"}


def counts_of(changes: list[Change]) -> dict[str, int]:
    """Counts changes by what they do."""
    return {operation.name.lower(): sum(change.operation is operation for change in changes) for operation in Operation}


def plan_document(fabric: Fabric, plans: Mapping[str, Plan]) -> dict[str, Any]:
    """Returns a plan as plain data."""
    switches: dict[str, dict[str, Any]] = {}
    for name, seen in fabric.seen.items():
        if seen.error is not None:
            switches[name] = {"address": seen.target.address, "error": str(seen.error)}
            continue
        plan = plans[name]
        switches[name] = {
            "address": seen.target.address,
            "program": _PROGRAM[plan.held.program],
            "set_program": plan.sets_program,
            **counts_of(plan.changes),
            "changes": [
                {
                    "operation": change.operation.name.lower(),
                    "entity": str(change.entity),
                    "before": None if change.before is None else describe(change.before),
                    "after": describe(change.entity),
                }
                for change in plan.changes
            ],
        }
    empty = not fabric.failures and all(plan.empty for plan in plans.values())
    drained = [{"switch": name, "port": port} for name, port in sorted(fabric.drained())]
    return {"empty": empty, "drained": drained, "switches": switches}


def print_plan(fabric: Fabric, plans: Mapping[str, Plan], most: int | None) -> None:
    """Prints what would change."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for name, plan in plans.items():
        if plan.empty:
            continue
        console.print(f"{name} ({fabric.seen[name].target.address})", style="bold", markup=False)
        if plan.sets_program:
            what = "set the program" if plan.held.program == ABSENT else "replace the program, which is another"
            console.print(f"  {'+' if plan.held.program == ABSENT else '~'} {what}", style="yellow", markup=False)
        for change in plan.changes[:most]:
            console.print(f"  {change}", style=_STYLE[change.operation], markup=False)
        if most is not None and len(plan.changes) > most:
            console.print(f"    {len(plan.changes) - most} more; --all shows them", markup=False)
    numbers = counts_of([change for plan in plans.values() for change in plan.changes])
    programs = sum(plan.sets_program for plan in plans.values())
    if all(plan.empty for plan in plans.values()):
        console.print(f"nothing to change on {_switches(len(plans))}")
        return
    busy = _switches(sum(not plan.empty for plan in plans.values()))
    console.print(
        f"{busy} of {len(plans)}: {programs} programs to set, "
        f"{numbers['insert']} entries to add, {numbers['modify']} to change, {numbers['delete']} to delete"
    )


def outcome_document(fabric: Fabric, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """Returns what was done as plain data."""
    return {
        "written": sum(outcome.written for outcome in outcomes.values()),
        "programs": sum(outcome.plan.sets_program for outcome in outcomes.values()),
        "switches": {
            name: {
                "address": fabric.seen[name].target.address,
                "set_program": outcome.plan.sets_program,
                "written": outcome.written,
                **counts_of(outcome.plan.changes),
            }
            for name, outcome in outcomes.items()
        },
    }


def print_outcome(outcomes: Mapping[str, Outcome]) -> None:
    """Prints what was done."""
    written = sum(outcome.written for outcome in outcomes.values())
    programs = sum(outcome.plan.sets_program for outcome in outcomes.values())
    if not written and not programs:
        print(f"nothing to change on {_switches(len(outcomes))}")
        return
    changed = sum(not outcome.plan.empty for outcome in outcomes.values())
    print(f"{_switches(changed)} of {len(outcomes)} changed: {programs} programs set, {written} entries written")


def status_rows(fabric: Fabric, plans: Mapping[str, Plan]) -> list[dict[str, Any]]:
    """Returns how every switch is, as plain data."""
    rows: list[dict[str, Any]] = []
    for name, seen in fabric.seen.items():
        row: dict[str, Any] = {"switch": name, "address": seen.target.address, "device_id": seen.target.device_id}
        if seen.held is None:
            rows.append({**row, "reachable": False, "error": seen.error.problem if seen.error else ""})
            continue
        held: Held = seen.held
        rows.append(
            {
                **row,
                "reachable": True,
                "p4runtime": seen.version,
                "program": _PROGRAM[held.program],
                "entries": sum(not isinstance(entity, Default) or entity.action is not None for entity in held.entities),
                "as_planned": plans[name].empty,
                "to_change": len(plans[name].changes),
                "drained": sorted(port for switch, port in fabric.drained() if switch == name),
                "jobs": len(permitted(held.entities)),
            }
        )
    return rows


def print_status(rows: list[dict[str, Any]]) -> None:
    """Prints a table."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for column in ("switch", "address", "program", "entries", "as planned", "drained", "jobs"):
        table.add_column(column, overflow="fold")
    for row in rows:
        place = (row["switch"], row["address"])
        if not row["reachable"]:
            table.add_row(*map(escape, place), "", "", f"[red]{escape(row['error'])}[/red]", "", "")
            continue
        planned = "[green]yes[/green]" if row["as_planned"] else f"[yellow]{row['to_change']} to change[/yellow]"
        drained = ", ".join(map(str, row["drained"]))
        cells = (row["program"], str(row["entries"]))
        table.add_row(*map(escape, (*place, *cells)), planned, drained, str(row["jobs"]))
    Console().print(table)


def counters_document(counts: Mapping[str, Counts]) -> dict[str, Any]:
    """Returns counters as plain data."""
    return {"total": total(counts).to_dict(), "switches": {name: each.to_dict() for name, each in counts.items()}}


def counters_table(
    counts: Mapping[str, Counts], each: bool, rates: Mapping[str, Counts] | None = None, seconds: float = 1.0
) -> Table:
    """Makes a table: a row a class, the most urgent first; with ``rates`` packets per second stand beside the totals."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = "packets (per second)" if rates else "packets"
    table = Table(title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in ("switch", "class", "protected", "droppable", "ordinary", *VERDICTS[1:]):
        table.add_column(column, justify="left" if column == "switch" else "right")
    shown = dict(counts) if each else {"all": total(counts)}
    changes = {} if rates is None else (dict(rates) if each else {"all": total(rates)})
    for name, count in shown.items():
        change = changes.get(name)
        for priority in reversed(range(CLASSES)):
            wanted: list[tuple[str, Sequence[str]]] = [("forwarded", [kind]) for kind in ("protected", "droppable", "ordinary")]
            wanted += [(verdict, KINDS) for verdict in VERDICTS[1:]]
            cells = []
            for verdict, kinds in wanted:
                packets = sum(count.of(verdict, kind, priority) for kind in kinds)
                text = f"{packets:,}"
                if change is not None:
                    text += f" ({sum(change.of(verdict, kind, priority) for kind in kinds) / seconds:,.0f})"
                cells.append(text)
            table.add_row(name if priority == CLASSES - 1 else "", str(priority), *cells)
        table.add_section()
    table.caption = _discarded(shown)
    return table


def _discarded(counts: Mapping[str, Counts]) -> str:
    """Says what was dropped for other reasons, and where."""
    parts = []
    for name, count in counts.items():
        causes = ", ".join(f"{cause} {count.discarded[cause]}" for cause in CAUSES if count.discarded[cause])
        if causes:
            parts.append(causes if name == "all" else f"{name}: {causes}")
    return f"discarded: {'; '.join(parts) or 'none'}"


def print_counters(counts: Mapping[str, Counts], each: bool) -> None:
    """Prints a table."""
    from rich.console import Console

    Console().print(counters_table(counts, each))


@contextmanager
def live(quiet: bool) -> Iterator[Callable[[Any], None]]:
    """Shows tables, one in place of the other."""
    if quiet:
        yield lambda table: None
        return
    from rich.live import Live

    with Live(auto_refresh=False) as shown:
        yield lambda table: shown.update(table, refresh=True)


def _switches(count: int) -> str:
    return f"{count} switch{'es' if count != 1 else ''}"


__all__ = [
    "counters_document",
    "counters_table",
    "live",
    "outcome_document",
    "plan_document",
    "print_counters",
    "print_outcome",
    "print_plan",
    "print_status",
    "status_rows",
]
