"""Exact consensus in finitely many rounds for any number of ranks.

After the Base-(k+1) graph (Takezawa et al., "Beyond Exponential Graph: Communication-Efficient Topologies for Decentralized
Learning via Finite-time Convergence", NeurIPS 2023, arXiv 2305.11420), derived anew for averaging in groups of at most g = k +
1 ranks, where a group has one parameter, its relaxation (see :mod:`dssync.schedule.base`).  Three constructions, combined
recursively to the fewest rounds:

*Factors.*  If n is a product of l factors up to g, then l rounds of averaging over its digits.  No other n can do with
relaxations of 1: products of such rounds only have entries whose denominators are products of group sizes.

*Product.*  n = q p where q has factors up to g: average blocks of q over their digits, then treat the blocks as p ranks, once for
each position in a block.

*Split.*  n = a s + r with a < g, 0 < r <= s and s, a of factors up to g.  Call the first a s ranks A = A_1 + ... + A_a, each of s
ranks, and the others R.

1. Average A over its digits: l(a s) rounds.  All of A hold its mean m.
2. Crossing: the i-th rank of R, with value y_i, and the i-th of each A_j form a group of a + 1 with relaxation s (a + 1) / n.
   The members from A become m + (s / n)(y_i - m), and that from R becomes (r y_i + a s m) / n.
   Of the s ranks of A_j r have crossed, so that the mean of A_j is now m + (s / n)(r / s)(y - m) = (a s m + r y) / n with y the
   mean of R: the mean of all.  The mean of R is the same.
3. Average each A_j over its digits: l(s) rounds, all at once.  A holds the mean of all.

Meanwhile R takes its own schedule, of T(r) rounds, in whichever rounds it has: its averaging commutes with the crossing, which
maps every y_i by the same affine function, and leaves y as it is.  In all max(l(a s) + 1 + l(s), T(r) + 1) rounds.  As n > a s,
the relaxation s (a + 1) / n is less than (a + 1) / a, as it has to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

from dssync.schedule.base import ONE, Group, Schedule, check_group, check_world
from dssync.schedule.factors import divisors, fewest_factors
from dssync.schedule.simple import digit_groups

Blocks = list[list[Group]]


class _Plan(NamedTuple):
    """The cheapest construction for n ranks: ``factors``; or ``block`` q and p = n / q; or a ``split`` (a, s)."""

    rounds: int
    factors: tuple[int, ...] | None = None
    block: int = 0
    split: tuple[int, int] = (0, 0)


class BaseK(Schedule):
    """Exact consensus in a known number of rounds for any number of ranks.

    After :attr:`exact_rounds` rounds from the beginning of a period all ranks hold the mean.  From another round it takes until
    the end of the next period at most.

    Args:
        world: Number of ranks.
        group: Ranks of the largest group, at least 2.
    """

    kind = "base-k"

    def __init__(self, world: int, group: int = 2) -> None:
        check_world(self.kind, world)
        check_group(self.kind, group)
        self.world, self.group = world, min(group, max(world, 2))
        self._blocks = _build(world, self.group)
        self.exact_rounds: int = len(self._blocks)
        self.period = max(1, self.exact_rounds)

    def build(self, number: int) -> Iterable[Group]:
        """One round of the construction."""
        return self._blocks[number] if self._blocks else []

    def settings(self) -> dict[str, Any]:
        """The largest group."""
        return {"group": self.group}


@cache
def _plan(n: int, g: int) -> _Plan:
    factors = fewest_factors(n, g)
    if factors is not None:
        return _Plan(len(factors), factors)
    best = _Plan(n * n)
    candidates = []
    for s in range(n // g + 1, n):
        inner = fewest_factors(s, g)
        a = n // s
        outer = fewest_factors(a * s, g) if inner is not None and a < g else None
        if inner is not None and outer is not None:
            candidates.append((len(outer) + 1 + len(inner), s, a))
    for rounds, s, a in sorted(candidates, key=lambda c: (c[0], -c[1])):
        if rounds >= best.rounds:
            break
        rounds = max(rounds, _plan(n - a * s, g).rounds + 1)
        if rounds < best.rounds:
            best = _Plan(rounds, split=(a, s))
    for q in divisors(n)[1:-1]:
        small = fewest_factors(q, g)
        if small is not None and len(small) < best.rounds:
            rounds = len(small) + _plan(n // q, g).rounds
            if rounds < best.rounds:
                best = _Plan(rounds, block=q)
    return best


def _build(n: int, g: int) -> Blocks:
    plan = _plan(n, g)
    if plan.factors is not None:
        return _digits(range(n), plan.factors)
    if plan.block:
        return _product(n, plan.block, g)
    return _split(n, *plan.split, g)


def _digits(ranks: Sequence[int], factors: Sequence[int]) -> Blocks:
    """One round for each factor; the smallest strides first, so that neighbours meet first."""
    return [
        [Group(tuple(ranks[i] for i in members), ONE) for members in digit_groups(len(ranks), factors, digit)]
        for digit in range(len(factors))
    ]


def _product(n: int, q: int, g: int) -> Blocks:
    rounds: Blocks = []
    small = fewest_factors(q, g)
    assert small is not None
    for parts in zip(*(_digits(range(start, start + q), small) for start in range(0, n, q)), strict=True):
        rounds.append([group for part in parts for group in part])
    for groups in _build(n // q, g):
        rounds.append([Group(tuple(q * i + j for i in group.ranks), group.relaxation) for group in groups for j in range(q)])
    return rounds


def _split(n: int, a: int, s: int, g: int) -> Blocks:
    whole, part = fewest_factors(a * s, g), fewest_factors(s, g)
    assert whole is not None
    assert part is not None
    first = a * s
    rounds = _digits(range(first), whole)
    crossing = len(rounds)
    relaxation = Fraction(s * (a + 1), n)
    rounds.append([Group((*(j * s + i for j in range(a)), first + i), relaxation) for i in range(n - first)])
    for parts in zip(*(_digits(range(j * s, j * s + s), part) for j in range(a)), strict=True):
        rounds.append([group for one in parts for group in one])
    rest = _build(n - first, g)
    while len(rounds) < len(rest) + 1:
        rounds.append([])
    free = [number for number in range(len(rounds)) if number != crossing]
    for number, groups in zip(free, rest, strict=False):
        rounds[number] += [Group(tuple(first + i for i in group.ranks), group.relaxation) for group in groups]
    return rounds


__all__ = ["BaseK"]
