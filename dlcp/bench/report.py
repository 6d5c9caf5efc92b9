"""What was measured as one document, and the document as tables."""

from __future__ import annotations

from typing import Any, Final

from dlcp.bench.allreduce import Measured, Outcome, Settings
from dlcp.bench.candidates import stream_bytes
from dlcp.bench.numbers import ratio_interval, summarize, total

_CLASSES: Final = 8
_REFUSED: Final = (
    "truncated",
    "version",
    "foreign",
    "check",
    "misaddressed",
    "malformed",
    "inconsistent",
    "stale",
    "no_memory",
)


def packets(counters: list[dict[str, Any]]) -> dict[str, int]:
    """Sums up the data packets of all ranks by verdict.

    ``sent`` counts each packet once, however often it was sent again (``retransmitted``); every packet ends up either
    ``delivered`` or ``lost``, that is, within the loss bound and in its sender's residual.  ``duplicate`` and ``late`` ones came
    once more, or after their message was complete.  ``dropped_injected`` counts what fault injection took, of any type and
    attempt, so it exceeds ``lost``; ``dropped_kernel`` what found the receive buffer full; ``refused`` what was malformed or not
    of this job.  ``datagrams`` is everything that left, control packets included.
    """
    whole = total(counters)
    transport, faults = whole.get("transport", {}), whole.get("faults", {})
    return {
        "sent": sum(count for name, count in transport.items() if name.startswith("sent_class_")),
        "retransmitted": transport.get("retransmitted", 0),
        "delivered": transport.get("delivered", 0),
        "lost": transport.get("lost", 0),
        "duplicate": transport.get("duplicate", 0),
        "late": transport.get("late", 0),
        "trimmed": transport.get("trimmed", 0),
        "refused": sum(transport.get(name, 0) for name in _REFUSED),
        "dropped_injected": sum(faults.get("drop", [])),
        "dropped_kernel": whole.get("udp", {}).get("receive_dropped", 0),
        "probes": transport.get("probes", 0),
        "datagrams": whole.get("udp", {}).get("packets_sent", 0),
    }


def packets_by_class(counters: list[dict[str, Any]]) -> list[dict[str, int]]:
    """Returns packets ``sent``, ``lost`` and ``dropped_injected`` of each class; class 7 is control and retransmissions."""
    whole = total(counters)
    transport, drops = whole.get("transport", {}), whole.get("faults", {}).get("drop", [0] * _CLASSES)
    return [
        {
            "class": number,
            "sent": transport.get(f"sent_class_{number}", 0),
            "lost": transport.get(f"given_up_class_{number}", 0),
            "dropped_injected": drops[number],
        }
        for number in range(_CLASSES)
    ]


def document(settings: Settings, outcome: Outcome, link_gbps: float | None) -> dict[str, Any]:
    """Returns the figures: those of each candidate, and what follows from them."""
    results = outcome.candidates
    array_bytes = 4 * settings.elements
    result: dict[str, Any] = {
        "ranks": settings.ranks,
        "bytes": array_bytes,
        "iterations": settings.iterations,
        "algorithm": settings.algorithm,
        "servers": settings.servers,
        "policy": {"digest": settings.policy.digest(), "changed": type(settings.policy)().difference(settings.policy)},
        "faults": str(settings.faults) if settings.faults else None,
        "packet_payload_bytes": results["dlcp"].stride,
    }
    for name, measured in results.items():
        result[name] = _figures(measured, array_bytes, settings.iterations)
    _compare(result, results, "", "gloo")
    _compare(result, results, "_lossless", "dlcp_lossless")
    needed = stream_bytes(array_bytes, settings.ranks)
    if link_gbps is None:
        ideal_s, method = result["stream"]["p50_s"], "measured: plain TCP over loopback, all ranks at once, in the same run"
    else:
        ideal_s, method = 8 * needed / (link_gbps * 1e9), f"computed: a link of {link_gbps:g} Gbit/s for each rank"
    result["ideal_s"] = ideal_s
    result["ideal"] = {"bytes_per_rank": needed, "method": method}
    result["ratio_ideal_p50"] = result["dlcp"]["p50_s"] / ideal_s
    result["packets"] = packets(results["dlcp"].counters)
    result["packets_by_class"] = packets_by_class(results["dlcp"].counters)
    result["counters"] = total(results["dlcp"].counters).get("transport", {})
    result["memory"] = {"peak_bytes": outcome.peak, "growth_bytes": outcome.growth}
    result["mass_error"] = results["dlcp"].error
    return result


def _figures(measured: Measured, array_bytes: int, iterations: int) -> dict[str, Any]:
    summary = summarize(measured.times)
    return {
        **summary.to_dict(),
        "gbps": 8 * array_bytes / summary.p50_s / 1e9,
        "cpu_s_per_gb": measured.cpu_s / (array_bytes * iterations / 1e9),
        "peak_bytes": measured.peak,
        "held_bytes": measured.held,
        "error": measured.error,
        "times_s": measured.times,
    }


def _compare(result: dict[str, Any], results: dict[str, Measured], suffix: str, reference: str) -> None:
    """Adds DLCP's figures as multiples of a reference's; None without the reference."""
    found = reference in results
    ours, theirs = result["dlcp"], result.get(reference, {})
    for key, name in (("p50_s", "p50"), ("p99_s", "p99"), ("cpu_s_per_gb", "cpu")):
        result[f"ratio{suffix}_{name}"] = ours[key] / theirs[key] if found else None
    result[f"ratio{suffix}_p50_interval"] = (
        list(ratio_interval(results["dlcp"].times, results[reference].times)) if found else None
    )


def print_tables(report: dict[str, Any]) -> None:
    """Prints a document for humans."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"all-reduce of {report['bytes'] / 1e6:g} MB, {report['ranks']} ranks, {report['iterations']} interleaved iterations, "
        f"algorithm {report['algorithm']}, packets of {report['packet_payload_bytes']} bytes",
        soft_wrap=True,
        highlight=False,
    )
    table = Table("", box=None)
    for heading in ("p50 ms", "p99 ms", "min ms", "max ms", "CPU s/GB", "peak MB", "held MB"):
        table.add_column(heading, justify="right")
    for name, title in _titles(report).items():
        figures = report[name]
        table.add_row(
            title,
            *(f"{1e3 * figures[key]:.1f}" for key in ("p50_s", "p99_s", "min_s", "max_s")),
            f"{figures['cpu_s_per_gb']:.2f}",
            _megabytes(figures["peak_bytes"]),
            _megabytes(figures["held_bytes"]),
        )
    console.print(table)
    for line in _sentences(report):
        console.print(line, soft_wrap=True, highlight=False)
    verdicts = Table("data packets", box=None)
    verdicts.add_column("all classes", justify="right")
    for name, count in report["packets"].items():
        if count or name in ("sent", "delivered", "lost"):
            verdicts.add_row(name.replace("_", " "), str(count))
    console.print(verdicts)
    classes = Table("class", box=None)
    for heading in ("sent", "lost", "dropped injected"):
        classes.add_column(heading, justify="right")
    for row in report["packets_by_class"]:
        if any(count for key, count in row.items() if key != "class"):
            classes.add_row(str(row["class"]), str(row["sent"]), str(row["lost"]), str(row["dropped_injected"]))
    console.print(classes)


def _megabytes(count: int | None) -> str:
    return "?" if count is None else f"{count / 1e6:.1f}"


def _titles(report: dict[str, Any]) -> dict[str, str]:
    titles = {
        "dlcp": "dlcp with faults" if report["faults"] else "dlcp",
        "dlcp_lossless": "dlcp",
        "gloo": "gloo",
        "stream": "plain TCP",
    }
    return {name: title for name, title in titles.items() if name in report}


def _sentences(report: dict[str, Any]) -> list[str]:
    lines = []
    if report["faults"]:
        lines.append(f"faults: {report['faults']}; only in dlcp's packets, gloo's TCP never sees them")
    for suffix, name in (("", "gloo"), ("_lossless", "its own without faults")):
        if report[f"ratio{suffix}_p50"] is not None:
            low, high = report[f"ratio{suffix}_p50_interval"]
            lines.append(
                f"dlcp takes {report[f'ratio{suffix}_p50']:.2f} x the time of {name} (p50; 95 % in {low:.2f} to {high:.2f}), "
                f"{report[f'ratio{suffix}_p99']:.2f} x (p99), and {report[f'ratio{suffix}_cpu']:.2f} x the CPU time"
            )
    lines.append(f"ideal {1e3 * report['ideal_s']:.1f} ms ({report['ideal']['method']}): {report['ratio_ideal_p50']:.2f} x that")
    memory = report["memory"]
    lines.append(
        f"memory while measuring, all candidates together: at most {_megabytes(memory['peak_bytes'])} MB, "
        f"{_megabytes(memory['growth_bytes'])} MB more at the end than at the start"
    )
    lines.append(f"mass error {report['mass_error']:g} (largest |contributed - delivered - residual|)")
    return lines
