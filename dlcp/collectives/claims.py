"""Claims: what ranks think a call is, compared where no message would show that they differ.

Ranks that call different collectives mostly notice by messages that do not fit.  But two ranks may each wait for the other, so
that no message goes round at all.  Therefore a rank whose call takes long tells the others, once, what it thinks the call is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dlcp.collectives.collective import Collective
from dlcp.errors import MismatchError, OperationTimeoutError
from dlcp.transport.core import SECOND
from dlcp.transport.serial import MASK

NUMBERS: Final = MASK + 1
"""Numbers below are those of collectives, the same at all ranks; others are local ones of calls that only some ranks make."""
CLAIM_AFTER: Final = 1 * SECOND
"""When a call counts as long."""
HISTORY: Final = 64
"""How many ended calls are remembered, to tell those who are still at them and are mistaken."""


def overdue(collective: Collective, rank: int, timeout_s: float) -> OperationTimeoutError:
    """Returns what ends a call of ``rank`` that has not finished in time, and says who seems not to have called it."""
    text = (
        f"{collective.handle.description} has not finished within the operation timeout of {timeout_s:g} s, still waiting for "
        f"{collective.missing()}"
    )
    absent = sorted(set(collective.callers) - collective.present - {rank})
    if absent and timeout_s * SECOND > 2 * CLAIM_AFTER:
        # Whoever has called it has said so by now.
        text += f"; ranks {absent} do not seem to have called it"
    return OperationTimeoutError(text)


class Claims:
    """One rank's book of calls.

    Args:
        rank: Own rank.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._due: dict[int, int] = {}
        self._heard: dict[int, dict[int, str]] = {}
        self._ended: dict[int, str] = {}
        self._retired = 0

    @property
    def deadlines(self) -> Iterable[int]:
        """When calls that run become long."""
        return self._due.values()

    def due(self, now: int) -> list[int]:
        """Returns calls that have become long; each is named once."""
        numbers = [number for number, at in self._due.items() if at <= now]
        for number in numbers:
            del self._due[number]
        return numbers

    def started(self, collective: Collective, now: int) -> None:
        """Notes a call.

        Raises:
            MismatchError: A peer has said that it is another one.
        """
        self._due[collective.number] = now + CLAIM_AFTER
        for peer, claim in self._heard.pop(collective.number, {}).items():
            self._compare(collective.number, collective.claim, peer, claim)
            collective.present.add(peer)

    def heard(self, number: int, peer: int, claim: str, collective: Collective | None) -> None:
        """Takes a peer's claim.

        Args:
            number: Number of the call.
            peer: Who says so.
            claim: What; empty from a parameter server, which only asks whether the call goes on here: had it ended long ago, the
                transport would have told it.
            collective: The call, if it runs here.

        Raises:
            MismatchError: It is, or was, something else here.
        """
        if not claim:
            return
        if collective is not None:
            self._compare(number, collective.claim, peer, claim)
            collective.present.add(peer)
        elif number in self._ended:
            self._compare(number, self._ended[number], peer, claim)
        else:
            self._heard.setdefault(number, {})[peer] = claim

    def _compare(self, number: int, mine: str, peer: int, claim: str) -> None:
        if claim != mine:
            both = f"rank {self._rank} as {mine}, rank {peer} as {claim}"
            raise MismatchError(f"ranks call operation {number} differently: {both}")

    def past(self, number: int) -> str | None:
        """Returns what a call was that ended here not long ago, or None."""
        return self._ended.get(number)

    def ended(self, collective: Collective) -> int | None:
        """Notes the end of a call.

        Returns:
            The last of the calls that are over, with all before it, and forgotten from now on; None if there are no new ones.
        """
        self.drop(collective.number)
        self._ended[collective.number] = collective.claim
        before = self._retired
        while len(self._ended) > HISTORY and (self._retired + 1) & MASK in self._ended:
            self._retired = (self._retired + 1) & MASK
            del self._ended[self._retired]
        return self._retired if self._retired != before else None

    def drop(self, number: int) -> None:
        """Forgets that a call may become long."""
        self._due.pop(number, None)

    def clear(self) -> None:
        """Forgets everything that could still happen."""
        self._due.clear()
        self._heard.clear()

    def __len__(self) -> int:
        """Calls of which something may still be said."""
        return len(self._due) + len(self._heard)
