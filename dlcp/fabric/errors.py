"""What can go wrong with a switch; each names the switch, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from dlcp.errors import DLCPError


class FabricError(DLCPError):
    """A switch could not be reached, or refused what it was told.

    Attributes:
        switch: Its name.
        address: Where its P4Runtime server listens.
        problem: What is wrong.
        hint: What to do; may be empty.
    """

    def __init__(self, switch: str, address: str, problem: str, hint: str = "") -> None:
        super().__init__(f"switch {switch} at {address}: {problem}{'; ' + hint if hint else ''}")
        self.switch = switch
        self.address = address
        self.problem = problem
        self.hint = hint


class DeploymentError(DLCPError):
    """Some switches failed.

    Attributes:
        failures: What happened to each.
    """

    def __init__(self, failures: Sequence[FabricError], consequence: str) -> None:
        first = failures[0]
        others = ", ".join(error.switch for error in failures[1:9])
        more = f" (and {len(failures) - 1} more: {others})" if others else ""
        super().__init__(f"{first}{more}; {consequence}")
        self.failures = tuple(failures)


class ProgramMissing(DLCPError):
    """The compiled program is not where it should be, or is none."""


__all__ = ["DeploymentError", "FabricError", "ProgramMissing"]
