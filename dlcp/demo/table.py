"""The demonstration's table, and how to read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table


def print_report(report: dict[str, Any], console: Console) -> None:
    """Prints the table, one column for each run, and a paragraph that reads it."""
    runs = report["runs"]
    first = runs[0]
    console.print(
        f"digits, {report['arguments']['ranks']} ranks, {first['steps']} steps, {first['gradient_bytes'] / 1e6:.2f} MB of "
        f"gradients a step, packets of {report['packet_bytes']} bytes",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("")
    for run in runs:
        table.add_column(run["title"], justify="right")

    def row(name: str, cell: Callable[[dict[str, Any]], str]) -> None:
        table.add_row(name, *(cell(run) for run in runs))

    for epoch in range(len(first["accuracy"])):
        row(f"accuracy after epoch {epoch + 1}", partial(_accuracy, epoch))
    table.add_section()
    row("step time p50", lambda run: f"{1e3 * run['step_p50_s']:.1f} ms")
    row("step time p99", lambda run: f"{1e3 * run['step_p99_s']:.1f} ms")
    table.add_section()
    row("data packets sent", _packets(lambda packets: f"{packets['sent']:,}"))
    row("sent again", _packets(lambda packets: f"{packets['retransmitted']:,}"))
    row("packets dropped on purpose", _packets(lambda packets: f"{packets['dropped_injected']:,}"))
    row("lost for their step", _packets(lambda packets: f"{packets['lost']:,}"))
    last = len(next(run["packets"]["sent_by_class"] for run in runs if run["packets"])) - 1
    for number in range(last + 1):
        note = " (back layers)" if number == 0 else " (front layers)" if number == last else ""
        row(f"  of class {number}{note}", _packets(partial(_of_class, number)))
    table.add_section()
    row("mass lost for its step, sum |g|", lambda run: _mass(run["lost_l1"]))
    row("mass in residuals at the end", lambda run: _mass(run["residual_l1"]))
    console.print(table)
    console.print(" ".join(reading(runs, report["policy"]["loss"]["push"])), highlight=False)


def _accuracy(epoch: int, run: dict[str, Any]) -> str:
    return f"{100 * run['accuracy'][epoch]:.1f} %"


def _of_class(number: int, packets: dict[str, Any]) -> str:
    return f"{packets['lost_by_class'][number]:,} of {packets['sent_by_class'][number]:,}"


def _packets(cell: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], str]:
    return lambda run: cell(run["packets"]) if run["packets"] else "-"


def _mass(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def reading(runs: Sequence[dict[str, Any]], bound: float) -> list[str]:
    """Returns sentences that say what to look at, with this table's own numbers.

    Args:
        runs: From :func:`dlcp.demo.summary.summarize`: gloo, dlcp, dlcp with loss.
        bound: ``loss.push`` of the policy.
    """
    gloo, clean, lossy = runs
    packets = lossy["packets"]
    share = lossy["lost_elements"] / max(lossy["elements"], 1)
    again = packets["retransmitted"] / max(packets["sent"], 1)
    return [
        "What to look at:",
        f"the last accuracies, {100 * gloo['accuracy'][-1]:.1f} % over gloo, {100 * clean['accuracy'][-1]:.1f} % over dlcp and "
        f"{100 * lossy['accuracy'][-1]:.1f} % over dlcp with {100 * lossy['loss']:g} % of all packets dropped; without loss "
        "dlcp computes what gloo does, up to rounding.",
        f"With loss, {100 * share:.2f} % of all gradients were not waited for (the policy allows {100 * bound:g} % of a message) "
        f"and {100 * again:.2f} % of the packets were sent again.",
        "Nothing of that gradient is gone: what one step loses is added to the next, and the last line is what is still owed "
        "when training ends.",
        "Step times are those of three runs one after another; 'dlcp bench allreduce' compares side by side. gloo has no column "
        "with loss because fault injection happens in dlcp's sockets and cannot reach its TCP connections.",
    ]
