"""What can go wrong beyond a wrong file."""

from __future__ import annotations

from dlcp.errors import DLCPError


class MissingPackage(DLCPError):
    """An optional package is not installed."""


__all__ = ["MissingPackage"]
