"""Distributions of flow sizes that are in common use, as points of the cumulative distribution; straight lines join them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final


@dataclass(frozen=True)
class Sizes:
    """A distribution of sizes.

    Attributes:
        name: What it is called.
        points: Bytes, and share of the flows that are no larger; both ascending, the last share 1.
    """

    name: str
    points: tuple[tuple[int, float], ...]

    @cached_property
    def mean(self) -> float:
        """Mean size in bytes, before rounding to whole bytes."""
        pairs = zip(self.points, self.points[1:], strict=False)
        return sum((high - low) * (a + b) / 2 for (a, low), (b, high) in pairs)

    @cached_property
    def _shares(self) -> list[float]:
        return [share for _, share in self.points]

    def at(self, share: float) -> int:
        """Returns the size that a ``share`` (0 to 1) of the flows do not exceed; at least 1 byte."""
        index = min(bisect_right(self._shares, share), len(self.points) - 1)
        (a, low), (b, high) = self.points[index - 1], self.points[index]
        return max(round(a + (b - a) * (share - low) / (high - low)), 1)


def fixed(size: int) -> Sizes:
    """Returns the distribution of flows of one size."""
    return Sizes("fixed", ((size, 0.0), (size, 1.0)))


SIZES: Final[Mapping[str, Sizes]] = {
    sizes.name: sizes
    for sizes in (
        # Alizadeh et al., "Data Center TCP (DCTCP)", SIGCOMM 2010, figure 4; points as HPCC's traffic generator has them.
        Sizes(
            "web-search",
            (
                (0, 0.0),
                (10_000, 0.15),
                (20_000, 0.20),
                (30_000, 0.30),
                (50_000, 0.40),
                (80_000, 0.53),
                (200_000, 0.60),
                (1_000_000, 0.70),
                (2_000_000, 0.80),
                (5_000_000, 0.90),
                (10_000_000, 0.97),
                (30_000_000, 1.0),
            ),
        ),
        # Greenberg et al., "VL2", SIGCOMM 2009, figure 2; points as HKUST's TrafficGenerator has them.
        Sizes(
            "data-mining",
            (
                (0, 0.0),
                (180, 0.1),
                (216, 0.2),
                (560, 0.3),
                (900, 0.4),
                (1_100, 0.5),
                (1_870, 0.6),
                (3_160, 0.7),
                (10_000, 0.8),
                (400_000, 0.9),
                (3_160_000, 0.95),
                (100_000_000, 0.98),
                (1_000_000_000, 1.0),
            ),
        ),
        # Li et al., "HPCC", SIGCOMM 2019; points of AliStorage2019 in its traffic generator.
        Sizes(
            "storage",
            (
                (0, 0.0),
                (4_000, 0.2293),
                (8_000, 0.6921),
                (16_000, 0.8061),
                (32_000, 0.9047),
                (64_000, 0.9353),
                (128_000, 0.9677),
                (256_000, 0.9753),
                (2_000_000, 1.0),
            ),
        ),
    )
}
"""Distributions by name."""

__all__ = ["SIZES", "Sizes", "fixed"]
