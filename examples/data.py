"""Data that every machine with Python has: scikit-learn's digits, and the standard library's own source text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

SYMBOLS = 97
"""Line feed, the 95 printable ASCII characters, and one symbol for all others."""


class Split(NamedTuple):
    """Inputs and targets, for training and for testing; the first dimension counts samples."""

    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor


def load_digits() -> Split:
    """Returns 1,797 handwritten digits, ``float32[n, 1, 8, 8]`` in [0, 1], a fifth of them for testing.

    The split is the same on every machine and for every seed of the training, so that runs can be compared.
    """
    from sklearn.datasets import load_digits as load  # only this task needs scikit-learn

    digits = load()
    inputs = torch.from_numpy(digits.images).float().div_(16).unsqueeze(1)
    targets = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    cut = len(inputs) * 4 // 5
    train, test = order[:cut], order[cut:]
    return Split(inputs[train], targets[train], inputs[test], targets[test])


def library_text(size: int) -> bytes:
    """Returns the first ``size`` bytes of the standard library's top-level modules, in the order of their names."""
    text = bytearray()
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size:
            break
    return bytes(text[:size])


def encode(text: bytes) -> Tensor:
    """Returns ``int64[n]`` symbols: 0 for a line feed, 1 to 95 for printable ASCII, 96 for everything else."""
    table = torch.full((256,), SYMBOLS - 1)
    table[ord("\n")] = 0
    table[32:127] = torch.arange(1, 96)
    return table[torch.frombuffer(bytearray(text), dtype=torch.uint8).long()]


def load_text(size: int = 300_000, context: int = 64) -> Split:
    """Returns windows of source text, ``int64[n, context]``, and the same moved on by one character; the last tenth for testing.

    Args:
        size: Bytes of text.
        context: Characters of a window.
    """
    symbols = encode(library_text(size))
    count = (len(symbols) - 1) // context
    inputs = symbols[: count * context].view(count, context)
    targets = symbols[1 : count * context + 1].view(count, context)
    cut = count * 9 // 10
    return Split(inputs[:cut], targets[:cut], inputs[cut:], targets[cut:])
