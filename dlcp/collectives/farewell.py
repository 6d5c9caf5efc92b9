"""Errors across ranks: what an ABORT says of the error here, and which error it becomes there."""

from __future__ import annotations

from dlcp.errors import DLCPError, MismatchError, OperationTimeoutError, PeerLostError, RemoteError
from dlcp.transport.events import PeerAborted
from dlcp.wire.header import AbortKind

Farewell = tuple[AbortKind, int, float, str]
"""What an ABORT says: kind, culprit, its silence in seconds, reason."""


def typed(error: BaseException) -> DLCPError:
    """Returns an error that callers can catch as DLCPError: itself, or one that it is the cause of."""
    if isinstance(error, DLCPError):
        return error
    wrapped = DLCPError(f"the transport failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def farewell(error: DLCPError, rank: int) -> Farewell:
    """Puts an error of ``rank`` into what its ABORT says."""
    if isinstance(error, PeerLostError):
        return AbortKind.PEER_LOST, error.rank, error.seconds, error.message
    if isinstance(error, RemoteError) and error.rank == rank:
        return AbortKind.FAILURE, rank, 0.0, error.reason
    if isinstance(error, MismatchError):
        return AbortKind.MISMATCH, rank, 0.0, str(error)
    if isinstance(error, OperationTimeoutError):
        return AbortKind.TIMEOUT, rank, 0.0, str(error)
    cause = error.__cause__ if type(error) is DLCPError and error.__cause__ is not None else error
    return AbortKind.FAILURE, rank, 0.0, f"{type(cause).__name__}: {cause}"


def reported(event: PeerAborted, rank: int) -> DLCPError:
    """Returns the error that a peer's ABORT stands for at ``rank``."""
    text = f"rank {event.peer} reports: {event.reason}"
    if event.kind is AbortKind.PEER_LOST and event.culprit != rank:
        return PeerLostError(event.culprit, text, event.silence_s)
    if event.kind is AbortKind.PEER_LOST:
        return RemoteError(event.peer, f"it has given this rank up after {event.silence_s:.1f} s of silence; {event.reason}")
    if event.kind is AbortKind.TIMEOUT:
        return OperationTimeoutError(text)
    if event.kind is AbortKind.MISMATCH:
        return MismatchError(text)
    return RemoteError(event.peer, event.reason)
