"""The ledger in which an architecture is written down: layers with their parameters and operations, in the order of execution."""

from __future__ import annotations

from typing import Final

from dlcp.units import Delay
from dlcp.workload.description import Layer, Workload

BACKWARD_TO_FORWARD: Final = 2
"""The backward pass computes the gradients of inputs and of parameters, each with as many operations as the forward pass."""


class Ledger:
    """Layers as they run.

    Attributes:
        macs: Multiplications with an addition for one sample, by layer.
    """

    def __init__(self) -> None:
        self._layers: list[tuple[str, str, int, bool]] = []
        self.macs: list[int] = []

    def add(self, name: str, kind: str, elements: int, macs: int, *, frozen: bool = False) -> None:
        """Writes a layer down.

        Args:
            name: What it is called.
            kind: What it is.
            elements: Its parameters.
            macs: Multiplications with an addition for one sample.
            frozen: It is not trained: no gradients, and nothing to compute in the backward pass.
        """
        self._layers.append((name, kind, elements, frozen))
        self.macs.append(macs)

    @property
    def elements(self) -> int:
        """Parameters of all layers, frozen ones included."""
        return sum(elements for _, _, elements, _ in self._layers)

    def extend(self, other: Ledger, times: int = 1) -> None:
        """Writes the layers of another ledger down, each of which runs ``times`` times for a sample."""
        self._layers += other._layers
        self.macs += [times * macs for macs in other.macs]

    def freeze(self, last: str) -> None:
        """Freezes all layers up to and with the one called ``last``; ValueError if there is none."""
        names = [name for name, _, _, _ in self._layers]
        until = names.index(last) + 1
        self._layers = [(name, kind, elements, index < until) for index, (name, kind, elements, _) in enumerate(self._layers)]

    # Sequences: ``positions`` is how often a layer is applied for one sample.

    def dense(self, name: str, inputs: int, outputs: int, positions: int = 1, *, bias: bool = True, shards: int = 1) -> None:
        """Writes a fully connected layer down, of which a rank holds one of ``shards`` equal parts."""
        weights = inputs * outputs // shards
        self.add(name, "Linear", weights + (outputs // shards if bias else 0), weights * positions)

    def norm(self, name: str, width: int, positions: int = 1, *, bias: bool = True) -> None:
        """Writes a layer normalization down, or without ``bias`` one that only scales."""
        self.add(name, "LayerNorm" if bias else "RMSNorm", (1 + bias) * width, width * positions)

    def embedding(self, name: str, rows: int, width: int, shards: int = 1) -> None:
        """Writes a table of vectors down; looking up takes no operations."""
        self.add(name, "Embedding", rows * width // shards, 0)

    def products(self, name: str, queries: int, keys: int, width: int, shards: int = 1) -> None:
        """Writes the products of attention down, which have no parameters: scores, and their weighted sum."""
        self.add(name, "Attention", 0, 2 * queries * keys * width // shards)

    def workload(self, name: str, batch: int, flops: float, dtype: str = "float32", note: str = "") -> Workload:
        """Returns what was written down.

        Args:
            name: What the model is called.
            batch: Samples of a rank in a step.
            flops: Operations that the device sustains in a second.
            dtype: Type of parameters and gradients.
            note: Added to the note about where the numbers come from.
        """
        layers = []
        for (layer, kind, elements, frozen), macs in zip(self._layers, self.macs, strict=True):
            forward = 10**3 * round(2 * macs * batch / flops * 10**9)
            times = {"forward": Delay(forward), "backward": Delay(0 if frozen else BACKWARD_TO_FORWARD * forward)}
            layers.append(Layer(name=layer, kind=kind, elements=0 if frozen else elements, dtype=dtype, **times))
        text = f"layers from the architecture, times estimated at {flops:.3g} operations a second"
        return Workload(name=name, batch=batch, note=f"{text}; {note}" if note else text, layers=tuple(layers))


__all__ = ["BACKWARD_TO_FORWARD", "Ledger"]
