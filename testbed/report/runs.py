"""Tables of what was run: every run, cross traffic, events, and where it all comes from."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlcp.report.figure import Table, Value, value
from dlcp.report.markup import Content, Markup, element
from dlcp.report.numbers import NOTHING, count, duration, rate, seconds, share, size
from testbed.report.records import is_number
from testbed.report.view import TCP_COMMS, View


def all_runs(view: View) -> Table:
    """Every run, in the order in which they were made."""
    rows = []
    bad = []
    for index, run in enumerate(sorted(view.results["runs"], key=lambda run: run["started_s"])):
        outcome: Content = run["outcome"]
        if run["outcome"] != "ok":
            bad.append(index)
            outcome = element("span", run["outcome"], class_="failed")
        rows.append(
            [
                run["candidate"],
                value(run["seed"], lambda n: f"{n:g}"),
                outcome,
                value(run["started_s"], seconds),
                value(run["bring_up_s"], seconds),
                value(run["meeting_s"], seconds),
                value(run["training_s"], seconds),
                value(run["tear_down_s"], seconds),
                value(run["steps"], count),
                value(run["time_to_accuracy_s"], seconds),
                value(run["final_accuracy"], share),
                _link(view, f"{run['folder']}/trace.json", "trace") or NOTHING,
                run["error"],
            ]
        )
    columns = [
        "Candidate", "Seed", "Outcome", "Began after", "Bring-up", "Ranks met", "Training", "Tear-down", "Steps",
        "Time to accuracy", "Final accuracy", "Timeline", "What went wrong",
    ]  # fmt: skip
    return Table("All runs, in the order in which they were made; candidates take turns.", columns, rows)


def _link(view: View, name: str, text: str) -> Markup | None:
    return element("a", text, href=_address(name)) if view.has(name) else None


def _address(name: str) -> str:
    from urllib.parse import quote

    return "./" + quote(name)


def traffic(view: View) -> Table | None:
    """What cross traffic got: all flows of an item together, in the run nearest the median."""
    rows = []
    for contender in view.contenders:
        run = contender.representative
        items: dict[str, list[Mapping[str, Any]]] = {}
        for flow in run["traffic"] if run is not None else ():
            items.setdefault(str(flow.get("name", "")), []).append(flow)
        for name, flows in items.items():
            lasted = None if run is None else run["training_s"]
            rows.append([contender.name, name, *_flows(flows, lasted)])
    columns = [
        "Candidate", "Traffic", "Kind", "From", "To", "Flows", "Sent", "Arrived", "Mean rate", "Packets lost", "Sent again",
        "Mean delay", "Longest delay", "Trouble",
    ]  # fmt: skip
    words = "Cross traffic in the run nearest the median of each candidate; its mean rate is from the first step on."
    return Table(words, columns, rows) if rows else None


def _flows(flows: Sequence[Mapping[str, Any]], lasted: float | None) -> list[object]:
    sent, arrived = _sum(flows, "sent", "bytes"), _sum(flows, "received", "bytes")
    packets, lost = _sum(flows, "received", "packets"), _sum(flows, "received", "lost")
    delay, longest = _sum(flows, "received", "delay_ns"), [_of(flow, "received", "longest_delay_ns") for flow in flows]
    known = [each for each in longest if each is not None]
    starts = [flow.get("start_ns") for flow in flows]
    start = min((float(each) for each in starts if is_number(each)), default=0.0) / 1e9
    active = lasted - start if lasted is not None and lasted > start else None
    errors = [str(error) for flow in flows for error in _list(flow.get("errors"))]
    return [
        ", ".join(dict.fromkeys(str(flow.get("kind", "")) for flow in flows)),
        *(", ".join(dict.fromkeys(str(flow.get(end, "")) for flow in flows)) for end in ("source", "sink")),
        value(len(flows), count),
        value(sent, size),
        value(arrived, size),
        value(8 * arrived / active if arrived is not None and active else None, rate),
        # What only TCP or only datagrams have leaves no column where there is none of it.
        _known(lost / (packets + lost) if packets is not None and lost is not None and packets + lost else None, share),
        _known(_sum(flows, "sent", "retransmits"), count),
        _known(delay / packets / 1e9 if delay is not None and packets else None, seconds),
        _known(max(known) / 1e9 if known else None, seconds),
        element("span", "; ".join(errors[:3]), class_="failed") if errors else "",
    ]


def _known(number: float | None, text: Callable[[float | None], str]) -> Value | str:
    return "" if number is None else value(number, text)


def _sum(flows: Sequence[Mapping[str, Any]], end: str, key: str) -> float | None:
    found = [each for flow in flows if (each := _of(flow, end, key)) is not None]
    return sum(found) if found else None


def _of(flow: Mapping[str, Any], end: str, key: str) -> float | None:
    counts = flow.get(end)
    found = counts.get(key) if isinstance(counts, Mapping) else None
    return float(found) if is_number(found) else None


def _list(found: object) -> list[object]:
    return found if isinstance(found, list) else []


def _short(item: Any) -> str:
    text = item if isinstance(item, str) else json.dumps(item, default=str)
    return text if len(text) <= 120 else text[:119] + "…"


def events(view: View) -> Table | None:
    """What happened to the network or the job."""
    rows: list[list[Any]] = []
    for contender in view.contenders:
        run = contender.representative
        for event in run["events"] if run is not None else ():
            problem = element("span", event["error"], class_="failed") if event["error"] else ""
            rows.append([contender.name, value(event["at_s"], seconds), event["kind"], event["what"], problem])
    columns = ["Candidate", "At", "Event", "What", "Why it could not be done"]
    caption = "Events in the run nearest the median of each candidate; time 0 is the first step."
    return Table(caption, columns, rows) if rows else None


def provenance(view: View) -> list[Content]:
    """Where it comes from: command, machine, network, and the experiment with all its defaults."""
    results = view.results
    facts: list[list[Content]] = [
        ["Command", element("code", shlex.join(str(word) for word in results["command"]))],
        ["Began", results["started"]],
        ["Took", duration(results["seconds"])],
        ["Ranks were started by", results["launcher"]],
    ]
    facts += [[str(key), _short(item)] for key, item in results["machine"].items()]
    parts: list[Content] = [Table("Where this comes from.", ["What", "Value"], facts).render()]
    network = _network(results["topology"], results["hosts"])
    if network is not None:
        parts.append(network.render())
    documents: list[tuple[str, Any]] = [("The experiment, with its defaults", results["experiment"])]
    for contender in view.contenders:
        if contender.result["policy"] and contender.result["comm"] not in TCP_COMMS:
            documents.append((f"Policy of {contender.name}", contender.result["policy"]))
    for words, document in documents:
        text = json.dumps(document, indent=1, ensure_ascii=False, default=str)
        parts.append(element("details", element("summary", words), element("pre", text)))
    return parts


def _network(topology: Mapping[str, Any], ranks: Mapping[str, list[int]]) -> Table | None:
    links = topology.get("links")
    rows = []
    for link in links if isinstance(links, list) else ():
        if isinstance(link, Mapping):
            ends = [str(link.get("a", "?")), str(link.get("b", "?"))]
            shown = [f"{end} (rank {', '.join(map(str, ranks[end]))})" if ranks.get(end) else end for end in ends]
            rows.append([*shown, *(str(link.get(key, NOTHING)) for key in ("rate", "delay", "loss", "buffer"))])
    return Table("Links of the network.", ["From", "To", "Rate", "Delay", "Loss", "Buffer"], rows) if rows else None


__all__ = ["all_runs", "events", "provenance", "traffic"]
