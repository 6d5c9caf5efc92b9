"""Averages over DLCP: tagged, paced, over UDP, and without losing any of the mean.

With the policy's ``loss.push`` at 0 everything arrives, and a group averages like over any other transport.

With a bound above 0, parts of a member's contribution may be missing at whoever sums them.  Parameters are not gradients: a
missing one is not about nothing.  So sums are divided by the contributions that arrived (compensation ``rescale``), and a rank
that learns that a part of its own contribution has reached nobody keeps its own values there.  On each element, then, those
averaged whose values arrived, and the others stand aside as if they had been in groups of their own: the sum over all members
is what it was, to the last bit but for rounding.  The mean of all models never changes, whatever is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from dlcp.collectives.communicator import Communicator
from dlcp.collectives.operation import Operation
from dlcp.errors import ConfigError
from dlcp.policy import Policy
from dssync.groups.link import GroupLink, Missing, Pending

_CARRIED: Final = (torch.float32, torch.float64)


class _DLCPPending(Pending):
    def __init__(self, operation: Operation, output: Tensor, flat: Tensor) -> None:
        self._operation, self._output, self._flat = operation, output, flat

    def watch(self) -> None:
        self._operation.add_done_callback(self._note)

    def wait(self) -> Sequence[Missing]:
        lost = self._operation.wait().lost
        if self._output is not self._flat:
            self._flat.copy_(self._output)
        return [Missing(int(start), int(stop)) for start, stop in lost.tolist()]


class DLCPLink(GroupLink):
    """Over a communicator of the group's ranks.

    Args:
        ranks: Members.
        communicator: Of exactly these ranks in this order.  It is closed with the link.
    """

    def __init__(self, ranks: tuple[int, ...], communicator: Communicator) -> None:
        check_policy(communicator.policy)
        self.ranks = ranks
        self.communicator = communicator
        self.loses = communicator.policy.loss.push > 0

    def start(self, flat: Tensor) -> Pending:
        """Starts an all-reduce; a mean of what arrives where parts may be missing, else a sum."""
        array = flat.numpy()
        output = torch.empty_like(flat) if self.loses else flat
        operation = self.communicator.allreduce_async(array, op="mean" if self.loses else "sum", out=output.numpy())
        return _DLCPPending(operation, output, flat)

    def scale(self, weight: float, total: float) -> float:
        """Likewise."""
        if not self.loses:
            return weight / total
        if abs(weight * len(self.ranks) - total) > 1e-9 * total:
            problem = "has to be 0 where ranks have different weights"
            raise ConfigError("policy", "loss.push", problem, "0, or equal weights")
        return 1.0

    def carried_as(self, dtype: torch.dtype) -> torch.dtype:
        """16-bit types travel as float32: their means need more digits than they have."""
        return dtype if dtype in _CARRIED else torch.float32

    def carried_from(self, device: torch.device) -> torch.device:
        """The transport reads host memory."""
        return torch.device("cpu")

    def close(self) -> None:
        """Leaves in good order."""
        self.communicator.close()

    def abort(self, reason: str) -> None:
        """Tells the other members."""
        self.communicator.abort(reason)
        self.communicator.close()


def check_policy(policy: Policy) -> None:
    """Refuses what would change the mean of the models without anybody noticing.

    Raises:
        ConfigError: Results may go missing, contributions go missing without being accounted for, or values are rounded.
    """
    if policy.loss.pull > 0:
        problem = f"{policy.loss.pull:g} would leave members with different averages, and the mean of all models changed"
        raise ConfigError("policy", "loss.pull", problem, "0")
    if policy.loss.push > 0 and policy.loss.compensation != "rescale":
        problem = f"{policy.loss.compensation} takes a missing parameter for 0"
        raise ConfigError("policy", "loss.compensation", problem, "rescale, or loss.push = 0")
    if policy.wire.dtype != "float32":
        problem = f"{policy.wire.dtype} would round every parameter in every round"
        raise ConfigError("policy", "wire.dtype", problem, "float32")


def parameter_policy(policy: Policy | None, timeout: float) -> Policy:
    """Returns the policy for parameters: the one given, or the defaults without loss, and with ``timeout`` seconds of
    patience.
    """
    if policy is not None:
        return policy
    default = Policy().timeouts
    patience = {"peer_s": min(default.peer_s, timeout), "operation_s": max(timeout, min(default.peer_s, timeout))}
    return Policy.from_dict({"loss": {"push": 0.0}, "timeouts": patience})


__all__ = ["DLCPLink", "check_policy", "parameter_policy"]
