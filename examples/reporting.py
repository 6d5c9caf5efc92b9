"""What a run leaves behind: a JSON line for each step, TensorBoard scalars, and a progress bar for whoever watches."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


def percentile(values: list[float], share: float) -> float:
    """Returns the smallest value that at least ``share`` of the values do not exceed; NaN for none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def log_path(path: Path, rank: int) -> Path:
    """Returns a rank's own file: ``run.jsonl`` becomes ``run.0.jsonl``."""
    return path.with_name(f"{path.stem}.{rank}{path.suffix}")


class Report:
    """Reports of one rank.

    Args:
        rank: Rank 0 also shows progress, on standard error.
        json_log: Where JSON lines go; see :func:`log_path`.
        tensorboard: Directory for TensorBoard, written by rank 0.
        append: Go on with existing files, after a resume.
        quiet: Show nothing.
    """

    def __init__(
        self,
        rank: int,
        *,
        json_log: Path | None = None,
        tensorboard: Path | None = None,
        append: bool = False,
        quiet: bool = False,
    ) -> None:
        self._rank = rank
        self._file: IO[str] | None = None
        self._writer: Any = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._steps = 0
        if json_log is not None:
            json_log.parent.mkdir(parents=True, exist_ok=True)
            self._file = log_path(json_log, rank).open("a" if append else "w")
        if tensorboard is not None and rank == 0:
            from torch.utils.tensorboard import SummaryWriter  # an optional package

            self._writer = SummaryWriter(str(tensorboard))
        self._console = Console(stderr=True, quiet=quiet or rank != 0)
        if self._console.is_terminal and not self._console.quiet:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]:.4f}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._progress.start()

    def write(self, event: str, **values: Any) -> None:
        """Writes one JSON line, with the monotonic clock as ``t``; what JSON has no number for becomes null."""
        if self._file is not None:
            line = {"event": event, "rank": self._rank, "t": time.monotonic(), **values}
            json.dump(_clean(line), self._file, allow_nan=False)
            self._file.write("\n")
            self._file.flush()

    def begin_epoch(self, epoch: int, steps: int) -> None:
        """Starts a progress bar."""
        if self._progress is not None:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(f"epoch {epoch}", total=steps, loss=math.nan)

    def step(self, epoch: int, step: int, loss: float, seconds: float, **more: Any) -> None:
        """Reports a step of training; ``more`` goes into the JSON line."""
        self._steps += 1
        self.write("step", epoch=epoch, step=step, loss=loss, step_s=seconds, **more)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=1, loss=loss)
        if self._writer is not None:
            self._writer.add_scalar("loss/step", loss, step)
            self._writer.add_scalar("time/step_s", seconds, step)

    def epoch(self, epoch: int, step: int, **values: Any) -> None:
        """Reports an epoch; numbers among the values become scalars."""
        self.write("epoch", epoch=epoch, step=step, **values)
        shown = ", ".join(f"{key} {value:.4g}" for key, value in values.items() if isinstance(value, float))
        self.say(f"epoch {epoch}: {shown}")
        if self._writer is not None:
            for key, value in _flatten(values):
                self._writer.add_scalar(f"epoch/{key}", value, epoch)

    def say(self, text: str) -> None:
        """Tells whoever watches."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()
        sys.stderr.flush()


def _clean(value: Any) -> Any:
    """Turns arrays and numbers of numpy into those of Python, and what is not finite into None."""
    if isinstance(value, Mapping):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    if hasattr(value, "tolist"):
        return _clean(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int | str | None) else str(value)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    scalars: list[tuple[str, float]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            scalars += _flatten(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            scalars.append((f"{prefix}{key}", float(value)))
    return scalars
