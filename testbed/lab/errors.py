"""What can go wrong with an emulated network."""

from __future__ import annotations

from collections.abc import Sequence

from dlcp.errors import DLCPError


class LabError(DLCPError):
    """The network could not be built, or a part of it has failed."""


class HostLacks(LabError):
    """This host, or this process, cannot do what the network needs.

    Attributes:
        missing: What is missing, each in words.
    """

    def __init__(self, missing: Sequence[str]) -> None:
        super().__init__("; ".join(missing))
        self.missing = tuple(missing)


__all__ = ["HostLacks", "LabError"]
