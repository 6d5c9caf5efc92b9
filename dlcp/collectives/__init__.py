"""Collectives on numpy arrays over DLCP: sharded, ring and parameter-server all-reduce, broadcast, barrier; residuals."""

from __future__ import annotations

from dlcp.collectives.communicator import Communicator
from dlcp.collectives.operation import Operation, Reduction
from dlcp.collectives.residual import ResidualStore
from dlcp.collectives.server import serve

__all__ = ["Communicator", "Operation", "Reduction", "ResidualStore", "serve"]
