"""Every error that DLCP raises on purpose: each names what went wrong and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class DLCPError(Exception):
    """Base class; ``except DLCPError`` catches everything raised on purpose.

    Errors survive pickling, which is how they come out of worker processes, whatever their constructors take.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[DLCPError], args: tuple[Any, ...], attributes: dict[str, Any]) -> DLCPError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class MissingPackage(DLCPError):
    """An optional package is not installed."""


class ConfigError(DLCPError, ValueError):
    """A description (policy, topology, workload, experiment) is malformed.

    Attributes:
        source: File, or another name for where the text came from.
        key: Dotted key, for example ``loss.push``.
        accepted: What would have been accepted, in words.
    """

    def __init__(self, source: str | Path, key: str, problem: str, accepted: str) -> None:
        super().__init__(f"{source}: {key}: {problem}; accepted: {accepted}")
        self.source = str(source)
        self.key = key
        self.problem = problem
        self.accepted = accepted


class MismatchError(DLCPError):
    """Ranks disagree about the job: world size, policy, protocol version, algorithm or the arguments of a collective."""


class RendezvousError(DLCPError):
    """A rank did not show up, or the store failed, within the connect timeout."""


class UnreachableError(DLCPError):
    """A peer published its address but does not answer there."""

    def __init__(self, rank: int, address: str, seconds: float, hint: str = "") -> None:
        super().__init__(f"rank {rank} at {address} did not answer for {seconds:.1f} s{'; ' + hint if hint else ''}")
        self.rank = rank
        self.address = address
        self.seconds = seconds


class MtuError(DLCPError):
    """Datagrams of the policy's size do not pass."""


class PeerLostError(DLCPError):
    """A peer fell silent in the middle of an operation.

    Attributes:
        rank: The silent peer.
        message: The message that waits for it, in words.
        seconds: Length of the silence; 0 if the peer has left.
    """

    def __init__(self, rank: int, message: str, seconds: float) -> None:
        super().__init__(f"rank {rank} has been silent for {seconds:.1f} s; {message}" if seconds else f"rank {rank}: {message}")
        self.rank = rank
        self.message = message
        self.seconds = seconds


class RemoteError(DLCPError):
    """Another rank failed and said so.

    Attributes:
        rank: The rank that failed.
        reason: Its error, in words.
    """

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} failed: {reason}")
        self.rank = rank
        self.reason = reason


class OperationTimeoutError(DLCPError, TimeoutError):
    """Every peer is alive, but the collective did not finish within the operation timeout."""


class AddressError(DLCPError, OSError):
    """A local address or port cannot be used: taken, or not on this host."""


class ClosedError(DLCPError):
    """The communicator is closed, or an earlier failure has ended it."""
