"""Recommendation: DeepFM, whose tables outweigh everything else."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from dlcp.workload.ledger import Ledger

CRITEO_FIELDS: Final = 39
"""Of the Criteo data set: 13 numbers and 26 categories."""


def deepfm(features: int = 1_000_000, width: int = 10) -> Ledger:
    """Returns DeepFM (arXiv 1703.04247, section 3.1: three hidden layers of 400) on the fields of Criteo.

    Gradients of the tables are exchanged densely, as data-parallel training without sparse reductions does.

    Args:
        features: Rows of the tables; preprocessing of Criteo leaves one million, to an order of magnitude.
        width: Of their vectors.
    """
    ledger = Ledger()
    ledger.embedding("linear", features, 1)
    ledger.embedding("vectors", features, width)
    ledger.add("pairs", "FactorizationMachine", 1, 2 * CRITEO_FIELDS * width)
    for index, (inputs, outputs) in enumerate(pairwise((CRITEO_FIELDS * width, 400, 400, 400, 1))):
        ledger.dense(f"deep.{index}", inputs, outputs)
    return ledger


__all__ = ["CRITEO_FIELDS", "deepfm"]
