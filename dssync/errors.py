"""Errors of group synchronization that the end host's do not cover."""

from __future__ import annotations

from collections.abc import Sequence

from dlcp.errors import DLCPError


class GroupError(DLCPError):
    """An average within a group did not come about: a member died, fell silent, or left.

    The model is as it was before the round.

    Attributes:
        round: Number of the round.
        ranks: Members of the group.
        seconds: How long this rank waited.
        reason: What the process group said.
    """

    def __init__(self, round_number: int, ranks: Sequence[int], seconds: float, reason: str) -> None:
        members = ", ".join(map(str, ranks))
        super().__init__(f"round {round_number} with ranks {members} failed after {seconds:.1f} s: {reason}")
        self.round = round_number
        self.ranks = tuple(ranks)
        self.seconds = seconds
        self.reason = reason


__all__ = ["GroupError"]
