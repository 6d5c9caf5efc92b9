"""Numbers as products of small factors."""

from __future__ import annotations

from functools import cache


@cache
def fewest_factors(number: int, largest: int) -> tuple[int, ...] | None:
    """Returns the fewest factors from 2 to ``largest`` whose product is ``number``, the largest first; None if there are none.

    One factor needs one round, so fewest factors are fewest rounds.
    """
    if number == 1:
        return ()
    best: tuple[int, ...] | None = None
    for factor in range(min(largest, number), 1, -1):
        if number % factor == 0:
            rest = fewest_factors(number // factor, factor)
            if rest is not None and (best is None or len(rest) + 1 < len(best)):
                best = (factor, *rest)
    return best


def divisors(number: int) -> list[int]:
    """Returns all divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


__all__ = ["divisors", "fewest_factors"]
