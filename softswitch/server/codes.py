"""Canonical error codes: what a refused request tells the client (P4Runtime specification, "Error Reporting Messages").

A request that fails as a whole carries one code.  A batch (``Write``, ``Read``) in which single items fail carries UNKNOWN and,
in the trailing metadata ``grpc-status-details-bin``, a ``google.rpc.Status`` with one ``p4.v1.Error`` for each item of the batch,
in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from finsy.proto import p4r, rpc_status

from softswitch import errors

SPACE = "softswitch"
BATCH_FAILED = "Batch failure: see the details for each item."

# gRPC receivers take 8 KiB of metadata unless told otherwise, and lose the whole status beyond that.  So the messages of a long
# list of errors are left out once they would use up that room; the codes are always there.
MESSAGE_ROOM = 4096
MESSAGE_LENGTH = 400


class Code(IntEnum):
    """google.rpc.Code."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Refusal(errors.SwitchError):
    """A request, or one item of a batch, is refused.

    Args:
        code: Canonical code.
        message: For the developer of the client.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class BatchRefusal(Refusal):
    """Items of a batch failed.

    Args:
        items: One for each item of the batch; None where it went well.
    """

    def __init__(self, items: Sequence[Refusal | None]) -> None:
        super().__init__(Code.UNKNOWN, BATCH_FAILED)
        self.items = items


def invalid(message: str) -> Refusal:
    """An INVALID_ARGUMENT error, by far the most frequent one."""
    return Refusal(Code.INVALID_ARGUMENT, message)


# Order matters: derived classes stand before their bases.
_CODES: tuple[tuple[type[Exception], Code], ...] = (
    (errors.ProgramError, Code.INVALID_ARGUMENT),
    (errors.UnknownObject, Code.NOT_FOUND),
    (errors.NoSuchEntry, Code.NOT_FOUND),
    (errors.DuplicateEntry, Code.ALREADY_EXISTS),
    (errors.OutOfRoom, Code.RESOURCE_EXHAUSTED),
    (errors.OutOfBounds, Code.OUT_OF_RANGE),
    (errors.BadValue, Code.INVALID_ARGUMENT),
    (errors.Immutable, Code.PERMISSION_DENIED),
    (errors.InUse, Code.FAILED_PRECONDITION),
)


def refusal(error: errors.SwitchError) -> Refusal:
    """Returns the refusal that tells a client of an error of this package."""
    if isinstance(error, Refusal):
        return error
    for kind, code in _CODES:
        if isinstance(error, kind):
            return Refusal(code, str(error))
    return Refusal(Code.INTERNAL, str(error))


def status_details(message: str, items: Sequence[Refusal | None]) -> bytes:
    """Returns the serialized ``google.rpc.Status`` of a failed batch, one ``p4.v1.Error`` an item."""
    status = rpc_status.Status(code=Code.UNKNOWN, message=message)
    room = MESSAGE_ROOM
    for item in items:
        error = p4r.Error()
        if item is not None:
            error.canonical_code = item.code
            error.space = SPACE
            text = item.message[:MESSAGE_LENGTH]
            room -= len(text)
            if room > 0:
                error.message = text
        status.details.add().Pack(error)
    data: bytes = status.SerializeToString()
    return data


__all__ = ["BATCH_FAILED", "SPACE", "BatchRefusal", "Code", "Refusal", "invalid", "refusal", "status_details"]
