"""Residuals on their way into a bucket.

On the host a debt is taken out of the store when it is known to be wanted.  On a device that knowledge is behind everything that
is queued there, and whoever asks waits for the whole backward pass.  So there all debts are taken; the device adds those that are
wanted, and says later, with the contribution itself, which were not.  Those go back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dlcp.collectives.ranges import add_ranges, indices
from dlcp.collectives.residual import Residual, ResidualStore
from dlcp.torch.layout import BucketLayout


@dataclass(frozen=True, slots=True)
class Taken:
    """Debts that the device decides about.

    Attributes:
        names: Parameters.
        debts: What each owes.
        wanted: ``uint8[names]`` on the device: whether the debt was added.
    """

    names: tuple[str, ...]
    debts: tuple[Residual, ...]
    wanted: Tensor

    def give_back(self, wanted: NDArray[np.uint8], residuals: ResidualStore) -> None:
        """Puts what was not added back into the store.

        Args:
            wanted: ``uint8[names]``, what :attr:`wanted` held.
            residuals: Where it was taken from.
        """
        for name, debt, added in zip(self.names, self.debts, wanted.tolist(), strict=True):
            if not added:
                residuals.record_values(name, debt.size, debt.ranges, debt.values)


def owing(layout: BucketLayout, residuals: ResidualStore) -> list[int]:
    """Returns which parameters of a bucket owe something."""
    return [i for i, name in enumerate(layout.names) if name in residuals] if len(residuals) else []


def add_now(work: NDArray[Any], layout: BucketLayout, residuals: ResidualStore, skip_zero: bool) -> None:
    """Adds what a bucket owes, on the host.

    Args:
        work: The bucket's gradients, ``float32[n]`` or ``float64[n]``.
        layout: What it holds.
        residuals: Debts, which are taken out.
        skip_zero: Leave the debts of parameters whose gradients are zero everywhere.
    """
    which = owing(layout, residuals)
    if skip_zero:
        which = [i for i in which if not _all_zero(work[layout.edges[i] : layout.edges[i + 1]])]
    add_ranges(work, *residuals.take_parts(layout.names, layout.edges, which))


def add_later(
    work: Tensor, layout: BucketLayout, residuals: ResidualStore, skip_zero: bool, upload: Callable[[NDArray[Any]], Tensor]
) -> Taken | None:
    """Queues the same on a device, and waits for nothing.

    Args:
        work: The bucket's gradients, on the device.
        layout: What it holds.
        residuals: Debts, which are all taken out.
        skip_zero: Add no debt of a parameter whose gradient is zero everywhere.
        upload: Brings arrays to the device.

    Returns:
        What may have to go back; None if all of it was added.
    """
    found = [(i, residuals.get(layout.names[i])) for i in owing(layout, residuals)]
    debts = [(i, debt) for i, debt in found if debt is not None]
    ranges, values = residuals.take_parts(layout.names, layout.edges, [i for i, _ in debts])
    if values.size == 0:
        return None
    index, added = upload(indices(ranges)), upload(values).to(work.dtype)
    taken = None
    if skip_zero:
        # NaN counts as something, here as on the host.
        wanted = torch.stack([work[int(layout.edges[i]) : int(layout.edges[i + 1])].any() for i, _ in debts])
        owner = np.repeat(np.arange(len(debts)), [debt.values.size for _, debt in debts])
        added = added * wanted[upload(owner)]
        names = tuple(layout.names[i] for i, _ in debts)
        taken = Taken(names, tuple(debt for _, debt in debts), wanted.to(torch.uint8))
    # No element is listed twice, so that this does add.
    work[index] += added
    return taken


def _all_zero(part: NDArray[Any]) -> bool:
    # A look at the front answers for nearly every gradient that is in use.
    return not part[:64].any() and not part.any()
