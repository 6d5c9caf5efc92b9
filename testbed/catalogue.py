"""Experiments by name or file, and what a command line changes about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dlcp.errors import ConfigError
from dlcp.schema_kinds import suggestion
from testbed.experiment import Experiment
from testbed.lab.capabilities import require
from testbed.lab.errors import HostLacks
from testbed.results import FILE, Results, read_results

FOLDER: Final = Path(__file__).resolve().parent / "experiments"


def shipped() -> dict[str, Path]:
    """Returns the files of the experiments that come with the testbed, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def load(what: str) -> Experiment:
    """Reads an experiment.

    Args:
        what: A file, or the name of one that comes with the testbed.

    Raises:
        ConfigError: There is none, or something in it is wrong.
    """
    known = shipped()
    path = Path(what)
    if what in known and not path.is_file():
        return Experiment.from_toml(known[what])
    if path.suffix != ".toml" and not path.is_file() and path.name == what:
        hint = suggestion(what, dict(zip(known, known, strict=True)))
        raise ConfigError("experiment", what, f"no file, and no experiment has this name{hint}", ", ".join(known) or "a file")
    return Experiment.from_toml(path)


def changed(
    experiment: Experiment,
    *,
    repeats: int | None = None,
    seed: int | None = None,
    epochs: int | None = None,
    target: str | None = None,
    timeout_s: float | None = None,
    candidates: Sequence[str] = (),
) -> Experiment:
    """Returns an experiment with some of its values changed.

    Args:
        experiment: The experiment; it stays as it is.
        repeats: Runs of every candidate.
        seed: Of the first repeat.
        epochs: Passes over the data.
        target: What the switches are, for candidates that do not say.
        timeout_s: Longest run.
        candidates: Those to keep, in this order; empty: all.

    Raises:
        ConfigError: A value or name is not accepted.
    """
    plain: dict[str, Any] = experiment.alone().to_dict()
    for key, value in (("repeats", repeats), ("seed", seed), ("target", target)):
        if value is not None:
            plain[key] = value
    if timeout_s is not None:
        plain["timeout"] = f"{timeout_s!r} s"
    if epochs is not None:
        plain["training"]["epochs"] = epochs
    if candidates:
        known = {candidate["name"]: candidate for candidate in plain["candidates"]}
        for name in candidates:
            if name not in known:
                problem = f"there is no candidate {name!r}{suggestion(name, dict(zip(known, known, strict=True)))}"
                raise ConfigError(experiment.source, "--candidates", problem, ", ".join(known))
        plain["candidates"] = [known[name] for name in dict.fromkeys(candidates)]
    return Experiment.from_dict(plain, experiment.source)


def resumed(folder: Path, repeats: int | None = None) -> tuple[Experiment, Results]:
    """Reads an experiment that was begun, and what there is of it.

    Args:
        folder: Where its files are.
        repeats: Runs of every candidate, to have more of them.

    Raises:
        ConfigError: It cannot be read, or more repeats have been made than are asked for.
    """
    # Only here: a report is more than others want who look for an experiment.
    from testbed.report.document import checked

    results, problems = checked(read_results(folder))
    if problems:
        raise ConfigError(folder / FILE, "", problems[0], "results.json as 'dlcp testbed run' has left it")
    experiment = Experiment.from_toml(folder / "experiment.toml")
    if [candidate["name"] for candidate in results["candidates"]] != [candidate.name for candidate in experiment.candidates]:
        raise ConfigError(
            folder / "experiment.toml", "candidates", "are not those of results.json", "the files of one experiment"
        )
    made = max((run["repeat"] + 1 for run in results["runs"]), default=0)
    if repeats is not None and repeats < made:
        raise ConfigError("--repeats", str(repeats), f"{made} have been begun", f"{made} or more")
    return changed(experiment, repeats=repeats), results


def possible(experiment: Experiment) -> tuple[Experiment, list[str]]:
    """Leaves out candidates that want switches of their own that this machine cannot do; returns notes on them, too."""
    notes = []
    names = []
    for candidate in experiment.candidates:
        try:
            if candidate.target != "auto":
                require(candidate.target)
        except HostLacks as error:
            notes.append(f"{candidate.name} is left out: {error}")
        else:
            names.append(candidate.name)
    return (changed(experiment, candidates=names) if notes and names else experiment), notes


__all__ = ["FOLDER", "changed", "load", "possible", "resumed", "shipped"]
