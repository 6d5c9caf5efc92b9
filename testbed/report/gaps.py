"""What a reader must know before believing a report: what failed, was not measured, fell back, or could not be read."""

from __future__ import annotations

from collections import Counter

from dlcp.report.markup import Content, Markup, element
from dlcp.report.numbers import confidence, share
from testbed.report.drops import not_kept_up
from testbed.report.network import switches_of
from testbed.report.view import View

_MANY = 12
_BUSY = 0.85
"""Share of the processors beyond which everything waits for them now and then."""


def gaps(view: View) -> list[Content]:
    """Returns sentences, the gravest first; call it when all files have been read."""
    results = view.results
    return [
        *_unfinished(view),
        *_failed(view),
        *_compared(view),
        *_emulated(view),
        *(f"This host lacks {lack.get('what') or lack.get('key', '?')}: {lack.get('lost', '')}" for lack in results["missing"]),
        *results.get("notes", []),
        *_unmeasured(view),
        *_unread(view),
    ]


def _unfinished(view: View) -> list[Content]:
    results, runs = view.results, len(view.results["runs"])
    if results["interrupted"]:
        return [f"The experiment was interrupted ({results['interrupted']}) after {runs} of {results['planned']} runs."]
    if not results["complete"]:
        words = f"The experiment did not come to its end: {runs} of {results['planned']} runs are here."
        return [words + " Its driver may have been killed, or is still at it."]
    return []


def _failed(view: View) -> list[Content]:
    found: list[Content] = []
    for contender in view.contenders:
        bad = [run for run in contender.runs if run["outcome"] != "ok"]
        if not contender.runs:
            found.append(f"{contender.name}: no run was made.")
        for run in bad[:3]:
            said = run["error"] or next((rank["said"] for rank in run["ranks"] if rank["exit_code"] and rank["said"]), "")
            found.append(f"{contender.name}, seed {run['seed']}: {run['outcome']} after {run['steps']} steps. {said}")
        if len(bad) > 3:
            found.append(f"{contender.name}: {len(bad) - 3} more of its {len(contender.runs)} runs were not ok.")
        if bad and contender.shown:
            counted = f"{len(contender.shown)} of its {len(contender.runs)} runs"
            found.append(f"{contender.name}: its figures are of {counted}, with what they did until then.")
    return found


def _compared(view: View) -> list[Content]:
    found: list[Content] = []
    repeats = Counter(len(contender.shown) for contender in view.contenders if contender.shown)
    if repeats and min(repeats) < 5:
        fewest = min(repeats)
        runs = "one run" if fewest == 1 else f"{fewest} runs"
        spread = f", whose range holds the true median with {share(confidence(fewest), 0)} probability" if fewest > 1 else ""
        found.append(f"Some medians are of {runs} only{spread}: differences may be chance.")
    if not any(contender.baseline for contender in view.contenders):
        found.append("No candidate is a baseline: there is nothing to be faster than.")
    elif view.best_baseline is None and any(contender.shown for contender in view.contenders):
        found.append("No baseline reached the goal: there is no factor to give.")
    for contender in view.contenders:
        reached = sum(run["time_to_accuracy_s"] is not None for run in contender.shown)
        if 0 < reached < len(contender.shown):
            found.append(
                f"{contender.name}: {reached} of {len(contender.shown)} runs reached the goal; its median is of those, "
                "so it is too good."
            )
    return found


def _emulated(view: View) -> list[Content]:
    """Says where the emulation was not what it was to be."""
    found: list[Content] = []
    for contender in view.contenders:
        lost = [not_kept_up(run) for run in contender.shown]
        if any(lost):
            runs = f"{sum(each > 0 for each in lost)} of {len(lost)} runs"
            found.append(
                f"{contender.name}: this machine could not keep up in {runs}: {sum(lost):,} frames were lost where no network "
                "would have lost them."
            )
        busy = contender.spread(lambda run: run.get("processors_busy"))
        if busy is not None and busy.median > _BUSY:
            found.append(
                f"{contender.name}: this machine's processors were {share(busy.median, 0)} busy while it trained: its steps may "
                "have waited for them, and not for the network."
            )
        faults = {
            f"{name}: {switch['fault']}" for run in contender.shown for name, switch in switches_of(run) if switch.get("fault")
        }
        found += [f"{contender.name}: an error inside of a switch, {fault}" for fault in sorted(faults)]
        failed = [f"{event['what']}: {event['error']}" for run in contender.shown for event in run["events"] if event["error"]]
        found += [f"{contender.name}: an event could not be carried out ({len(failed)} times): {failed[0]}"] if failed else []
    return found


def _unmeasured(view: View) -> list[Content]:
    found: list[Content] = []
    ran = [contender for contender in view.contenders if contender.shown]
    silent = [contender.name for contender in ran if contender.result["target"] == "bmv2"]
    if silent:
        found.append(f"Drops at full queues were not counted for {', '.join(silent)}: BMv2 does not tell them.")
    without = [contender for contender in ran if contender.name not in view.ports]
    if without and len(without) < len(ran):
        names = ", ".join(f"{contender.name} ({contender.result['target']})" for contender in without)
        found.append(f"Queues over time were not measured for {names}: only the softswitch writes them down.")
    return found


def _unread(view: View) -> list[Content]:
    problems: list[Content] = [f"Left out: {problem}" for problem in view.problems[:_MANY]]
    if len(view.problems) > _MANY:
        rest = [element("li", problem) for problem in view.problems[_MANY:]]
        words = element("summary", f"{len(rest)} more things could not be read")
        problems.append(element("details", words, element("ul", *rest)))
    return problems


def box(view: View) -> Markup | None:
    """Returns the box that stands on top; None if there is nothing to say."""
    found = gaps(view)
    if not found:
        return None
    items = element("ul", *(element("li", item) for item in found))
    return element("aside", element("h2", "Before you believe this"), items, class_="gaps", aria_label="Limits of this report")


__all__ = ["box", "gaps"]
