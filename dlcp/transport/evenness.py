"""No sender's data is silently ignored: what each sender's messages go without is watched, and kept even.

A loss bound holds for each message by itself.  So a sender behind a bad link could lose all that the bound allows in every single
message while the others lose nothing, and the model would slowly forget that rank's data.  Each receiver therefore keeps a moving
average of the missing share of every sender, and of what its own messages go without elsewhere.  A sender's average may be
``factor`` times the mean of the others' and a little more (:data:`SLACK` of the bound); a message that would take it further is
not complete, and the receiver asks for the rest as for any other packet.  Nothing of this is on the wire: a receiver that wants
more than the bound demands is within the protocol, and receivers need not agree.

Averages are over about :data:`MEMORY` messages of the largest size seen; smaller ones count for less.  A sender starts as if it
had lost nothing for that long, so that a single burst may still cost all that the bound allows.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from dlcp.transport.events import phase_of
from dlcp.transport.outgoing import BOUND_SCALE
from dlcp.wire.header import Phase

MEMORY: Final = 16
SLACK: Final = 1 / 8
"""Share of a message's bound that is not worth speaking of, even where the others lose nothing at all."""
_CONTRIBUTIONS: Final = (Phase.PUSH, Phase.RING_REDUCE)
"""What is lost of results concerns replicas, not whose data counts."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Account:
    """Moving sums of one sender's packets and of those that are missing.

    Attributes:
        packets: Sum of packets, old ones fading.
        missing: Sum of missing ones, fading alike.
        scale: Packets of the largest message so far.
        held: The sender has been asked for more than the bound demands, not long ago.
        quiet: Messages since then, small ones counting for less.
    """

    packets: float = 0.0
    missing: float = 0.0
    scale: int = 0
    held: bool = False
    quiet: float = 0.0

    @property
    def share(self) -> float:
        """The missing share, 0 to 1."""
        return self.missing / self.packets if self.packets else 0.0

    def after(self, packets: int) -> tuple[float, float]:
        """Returns the sums with ``packets`` more, none of which is missing: packets, missing."""
        if packets > self.scale:
            # As if everything before had been whole, and of this size.
            return float(packets * MEMORY), self.missing
        keep = (1 - 1 / MEMORY) ** (packets / self.scale)
        return keep * self.packets + packets, keep * self.missing

    def add(self, packets: int, missing: int) -> None:
        """Takes a message into account."""
        self.packets, self.missing = self.after(packets)
        self.missing += missing
        self.scale = max(self.scale, packets)
        self.quiet += packets / self.scale


class Evenness:
    """One endpoint's books.

    Args:
        factor: The policy's ``loss.evenness``; 0 only watches.

    Attributes:
        accounts: By sender; None is this rank's own messages to all others.
        notices: The latest corrections, as plain dictionaries, for whoever takes them.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self.accounts: dict[int | None, Account] = {}
        self.notices: deque[dict[str, Any]] = deque(maxlen=1024)

    def received(self, peer: int, message: int, packets: int, missing: int, bound: int) -> None:
        """A message of ``peer`` is complete."""
        if bound and phase_of(message) in _CONTRIBUTIONS:
            account = self.accounts.setdefault(peer, Account())
            account.add(packets, missing)
            if account.held and account.quiet > MEMORY:
                account.held = False
                self._tell(peer, account)

    def sent(self, message: int, packets: int, missing: int, bound: int) -> None:
        """A message of this rank has been acknowledged."""
        if bound and phase_of(message) in _CONTRIBUTIONS:
            self.accounts.setdefault(None, Account()).add(packets, missing)

    def allowed(self, peer: int, message: int, packets: int, bound: int) -> int:
        """Returns how many packets of a message of ``peer`` may be missing for now: at most what its bound allows."""
        most = packets * bound // BOUND_SCALE
        if not (most and self._factor) or phase_of(message) not in _CONTRIBUTIONS:
            return most
        others = self.others(peer)
        if others is None:
            return most
        all_packets, missing = self.accounts.get(peer, Account()).after(packets)
        limit = self._factor * others + SLACK * bound / BOUND_SCALE
        return max(0, min(most, int(limit * all_packets - missing)))

    def asked(self, peer: int, packets: int, bound: int, missing: int, allowed: int) -> bool:
        """The rest of a message is asked for; returns whether the reason is not its bound but what ``peer`` has lost before."""
        if not allowed < missing <= packets * bound // BOUND_SCALE:
            return False
        account = self.accounts.setdefault(peer, Account())
        account.quiet = 0.0
        if not account.held:
            account.held = True
            self._tell(peer, account)
        return True

    def others(self, peer: int) -> float | None:
        """Returns the mean missing share of the other senders, this rank among them; None if there are none."""
        shares = [account.share for other, account in self.accounts.items() if other != peer]
        return sum(shares) / len(shares) if shares else None

    def metrics(self) -> dict[int | str, dict[str, Any]]:
        """Returns ``missing_share`` and ``held`` of each sender; of this rank under ``own``."""
        found = list(self.accounts.items())
        return {
            "own" if peer is None else peer: {"missing_share": account.share, "held": account.held} for peer, account in found
        }

    def _tell(self, peer: int, account: Account) -> None:
        others = self.others(peer) or 0.0
        self.notices.append(
            {"event": "evenness", "sender": peer, "held": account.held, "missing_share": account.share, "others_share": others}
        )
        what = "is asked for more of its data" if account.held else "loses no more than others now"
        _log.info("rank %d %s: %.3g of it was missing on average, of others %.3g", peer, what, account.share, others)
