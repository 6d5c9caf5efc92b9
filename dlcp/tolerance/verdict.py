"""When two ways of training are equally good: a one-sided, paired test of non-inferiority.

Runs are paired by seed: both members of a pair begin with the same weights and see the same samples in the same order.  With d
the drops of accuracy of n pairs, the mean drop lies, with the stated confidence, below

    mean(d) + t(confidence, n - 1) * sd(d) / sqrt(n)

with Student's t.  A loss is tolerated if that is at most the margin.  So too few seeds never make a loss look harmless: they make
the limit wide.  Each loss is tested by itself; over many tests a few of those that are called tolerated will be wrong.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

Judgement = Literal["tolerated", "refused", "unclear"]
_STEPS: Final = 500


class Verdict(NamedTuple):
    """The outcome of a test.

    Attributes:
        judgement: ``tolerated``: the drop is below the margin, with confidence.  ``refused``: it is above it, with confidence.
            ``unclear``: these seeds cannot tell.
        mean: Mean drop of accuracy.
        lower: The drop is at least this, with confidence.
        upper: The drop is at most this, with confidence.
    """

    judgement: Judgement
    mean: float
    lower: float
    upper: float


def judge(drops: Sequence[float], margin: float, confidence: float) -> Verdict:
    """Tests drops of accuracy, one a pair.

    Args:
        drops: At least two; finite.
        margin: Largest drop that counts as equal; above 0.
        confidence: Of each of the two one-sided limits, 0.5 to 1, neither included.
    """
    count = len(drops)
    if count < 2:
        raise ValueError("one pair says nothing about how much pairs differ; at least 2 are needed")
    mean = math.fsum(drops) / count
    spread = math.sqrt(math.fsum((drop - mean) ** 2 for drop in drops) / (count - 1))
    reach = t_quantile(confidence, count - 1) * spread / math.sqrt(count)
    lower, upper = mean - reach, mean + reach
    judgement: Judgement = "tolerated" if upper <= margin else "refused" if lower > margin else "unclear"
    return Verdict(judgement, mean, lower, upper)


@functools.lru_cache(64)
def t_quantile(probability: float, freedom: int) -> float:
    """Returns the value that Student's t with ``freedom`` degrees stays below with ``probability`` (0.5 to 1, exclusive)."""
    if not 0.5 < probability < 1 or freedom < 1:
        raise ValueError(f"probability {probability} and {freedom} degrees of freedom; above 0.5, below 1, and at least 1")
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _half(middle, freedom) < probability - 0.5:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _half(angle: float, freedom: int) -> float:
    """Returns the probability between 0 and t = sqrt(freedom) tan(angle): the density becomes a power of the cosine."""
    width = angle / _STEPS
    inner = math.fsum((4 if i % 2 else 2) * math.cos(i * width) ** (freedom - 1) for i in range(1, _STEPS))
    integral = width / 3 * (1 + inner + math.cos(angle) ** (freedom - 1))  # Simpson's rule
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return scale * integral
