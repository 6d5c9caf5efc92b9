"""Training runs under torchrun: starting one, watching it, and ending it whatever happens."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dlcp.errors import DLCPError, OperationTimeoutError

SCRIPT: Final = "examples.train"
_POLL_S: Final = 0.2
_TERMINATE_S: Final = 5.0
_TRANSPORT_EXIT: Final = 4


@dataclass(frozen=True, slots=True)
class Training:
    """What is the same in all runs of a demonstration.

    Attributes:
        ranks: Processes.
        epochs: Passes over the data.
        width: Of the model.
        batch_size: Samples for each rank and step.
        seed: Of weights, order and faults.
    """

    ranks: int
    epochs: int
    width: int
    batch_size: int
    seed: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run.

    Attributes:
        name: Short, also the name of its files.
        title: For tables.
        comm: ``gloo`` or ``dlcp``.
        loss: Share of packets to drop.
    """

    name: str
    title: str
    comm: str
    loss: float = 0.0

    def log(self, folder: Path, rank: int) -> Path:
        """Returns the JSON lines of a rank."""
        return folder / f"{self.name}.{rank}.jsonl"

    def output(self, folder: Path) -> Path:
        """Returns what the processes printed."""
        return folder / f"{self.name}.log"


class TrainingError(DLCPError):
    """A run ended because a rank could not reach another."""


def root_of_script() -> Path | None:
    """Returns the folder from which the training script can be imported, or None if it is not installed."""
    try:
        spec = find_spec(SCRIPT)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin).resolve().parents[1] if spec is not None and spec.origin else None


def command(scenario: Scenario, training: Training, folder: Path, policy: Path) -> list[str]:
    """Returns the command line of a run."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(training.ranks)]
    words += ["-m", SCRIPT, "--task", "digits", "--comm", scenario.comm, "--quiet"]
    words += ["--epochs", str(training.epochs), "--width", str(training.width), "--batch-size", str(training.batch_size)]
    words += ["--seed", str(training.seed), "--json-log", str(folder / f"{scenario.name}.jsonl")]
    if scenario.comm == "dlcp":
        words += ["--policy", str(policy)]
    if scenario.loss:
        words += ["--faults", f"drop={scenario.loss!r};seed={training.seed}"]
    return words


def environment(root: Path) -> dict[str, str]:
    """Returns the environment of a run: one thread a rank, and gloo on the loopback interface."""
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


Watcher = Callable[[dict[str, Any]], None]
"""Called with each line that rank 0 writes."""


def run(words: list[str], scenario: Scenario, folder: Path, root: Path, timeout_s: float, watch: Watcher) -> float:
    """Runs a training to its end.

    Args:
        words: From :func:`command`.
        scenario: The run.
        folder: Where its files go.
        root: From :func:`root_of_script`.
        timeout_s: Longest run.
        watch: Sees its progress.

    Returns:
        Seconds that it took, start of the processes included.

    Raises:
        TrainingError: A rank failed in the transport.
        RuntimeError: It failed otherwise; the message holds the end of what it printed.
        OperationTimeoutError: It took too long.
    """
    output = scenario.output(folder)
    begin = time.monotonic()
    with output.open("w") as sink:
        # In a session of its own: Ctrl-C in the terminal reaches us alone, and we end the others in order.
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=environment(root), start_new_session=True
        )
    try:
        lines = _follow(scenario.log(folder, 0))
        while process.poll() is None:
            for line in next(lines):
                watch(line)
            if time.monotonic() - begin > timeout_s:
                raise OperationTimeoutError(f"{scenario.title} has not finished within {timeout_s:g} s; see {output}")
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
        for line in next(lines):
            watch(line)
    finally:
        _end(process)
    if process.returncode != 0:
        raise _failure(scenario, output, process.returncode)
    return time.monotonic() - begin


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a launcher that still runs; on SIGTERM it ends its ranks."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATE_S)
    # The session is ours alone, and its id is the launcher's.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _follow(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yields, each time it is asked, the whole lines that have been appended to a file since."""
    position, rest = 0, b""
    while True:
        found: list[dict[str, Any]] = []
        if path.exists():
            with path.open("rb") as file:
                file.seek(position)
                data = file.read()
            position += len(data)
            *whole, rest = (rest + data).split(b"\n")
            found = [json.loads(line) for line in whole if line]
        yield found


def _failure(scenario: Scenario, output: Path, code: int) -> Exception:
    text = output.read_text(errors="replace")
    exits = {int(number) for number in re.findall(r"exitcode\s*:\s*(-?\d+)", text)}
    # The script's own words, or else the end of the first traceback, which comes before the launcher's.
    said = _first(r"^rank \d+: .+", text) or _first(r"^[\w.]*(Error|Exception|Interrupt)\b.*", text)
    reason = said or "; ".join(line.strip() for line in text.splitlines()[-3:])
    message = f"{scenario.title}: exit code {code}: {reason}; all of it is in {output}"
    return TrainingError(message) if _TRANSPORT_EXIT in exits else RuntimeError(message)


def _first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text, re.MULTILINE)
    return found[0] if found else None
