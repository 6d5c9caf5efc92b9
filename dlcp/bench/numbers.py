"""In which order candidates take their turns, and what their times say.

Candidates are compared within one run, and each iteration gives every candidate one turn, so that whatever else the machine does
hits all of them alike.  The order of the turns changes from iteration to iteration in a Williams design (Williams 1949,
"Experimental designs balanced for the estimation of residual effects of treatments"): over one cycle every candidate stands in
every place equally often, and follows every other one equally often, so that a warm cache or a busy neighbour favours nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

_RESAMPLES: Final = 2000
_INTERVAL: Final = (2.5, 97.5)


def balanced_orders(count: int) -> list[tuple[int, ...]]:
    """Returns one cycle of a Williams design: ``count`` orders of the numbers below an even ``count``, twice as many if odd.

    Raises:
        ValueError: There is nothing to order.
    """
    if count < 1:
        raise ValueError(f"{count} candidates")
    zigzag = [(step + 1) // 2 if step % 2 else (count - step // 2) % count for step in range(count)]
    orders = [tuple((place + shift) % count for place in zigzag) for shift in range(count)]
    if count % 2 and count > 1:
        orders += [tuple(reversed(order)) for order in orders]
    return orders


def turns(names: Sequence[str], iterations: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields each iteration's number and the order in which the candidates take their turns."""
    orders = balanced_orders(len(names))
    for iteration in range(iterations):
        yield iteration, tuple(names[index] for index in orders[iteration % len(orders)])


@dataclass(frozen=True, slots=True)
class Summary:
    """Times of one candidate, in seconds; percentiles interpolate linearly between neighbours, as numpy's do."""

    p50_s: float
    p99_s: float
    min_s: float
    max_s: float
    mean_s: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def summarize(times: Sequence[float]) -> Summary:
    """Sums up times.

    Raises:
        ValueError: There are none.
    """
    if not times:
        raise ValueError("no times to sum up")
    values = np.asarray(times, np.float64)
    middle, tail = np.percentile(values, (50, 99)).tolist()
    return Summary(middle, tail, float(values.min()), float(values.max()), float(values.mean()))


def ratio_interval(times: Sequence[float], reference: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Returns the 95 % bootstrap interval of the ratio of two medians.

    Iterations are drawn, not times: the two times of one iteration belong together, since the same noise hit both.

    Args:
        times: Seconds, one for each iteration.
        reference: Seconds of what it is compared with, in the same iterations.
        seed: Of the draws.

    Raises:
        ValueError: The two differ in length, or are empty.
    """
    if len(times) != len(reference) or not times:
        raise ValueError(f"{len(times)} times cannot be paired with {len(reference)}")
    draws = np.random.default_rng(seed).integers(0, len(times), (_RESAMPLES, len(times)))
    above = np.median(np.asarray(times, np.float64)[draws], axis=1)
    below = np.median(np.asarray(reference, np.float64)[draws], axis=1)
    low, high = np.percentile(above / below, _INTERVAL).tolist()
    return low, high


def difference(after: Any, before: Any) -> Any:
    """Subtracts counters from later ones: numbers, and lists and dictionaries of them.  A new key counts from zero."""
    if isinstance(after, dict):
        earlier = before if isinstance(before, dict) else {}
        return {key: difference(value, earlier.get(key)) for key, value in after.items()}
    if isinstance(after, list):
        earlier_list = before if isinstance(before, list) else [0] * len(after)
        return [difference(value, old) for value, old in zip(after, earlier_list, strict=True)]
    return after - (before or 0)


def counted(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the counters among a communicator's metrics: ``transport``, ``udp`` and, if faults are injected, ``faults``."""
    return {part: metrics[part] for part in ("transport", "udp", "faults") if part in metrics}


def total(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Adds up counters of several ranks; a key that only some have counts as zero elsewhere."""
    result: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, dict):
                result[key] = total([result.get(key, {}), value])
            elif isinstance(value, list):
                result[key] = [old + new for old, new in zip(result.get(key, [0] * len(value)), value, strict=True)]
            else:
                result[key] = result.get(key, 0) + value
    return result
