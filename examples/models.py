"""Small models whose gradients fill many packets."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DigitsNet(nn.Module):
    """Three convolutions and two linear layers for 8 x 8 images of digits.

    Args:
        width: Channels of the first convolution; 32 gives 1.2 MB of gradients, which grow with the square of it.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 4 * width, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(nn.Linear(64 * width, 3 * width), nn.ReLU(), nn.Linear(3 * width, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Returns logits, ``float32[batch, 10]``, of ``float32[batch, 1, 8, 8]``."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


class CharModel(nn.Module):
    """A transformer of two layers that predicts the next character.

    Args:
        symbols: Size of the vocabulary.
        width: Dimensions of a head, of which there are four; 32 gives 1.7 MB of gradients.
        context: Longest input.
    """

    def __init__(self, symbols: int, width: int = 32, context: int = 64) -> None:
        super().__init__()
        dimensions = 4 * width
        self.symbols = nn.Embedding(symbols, dimensions)
        self.positions = nn.Parameter(0.02 * torch.randn(context, dimensions))
        layer = nn.TransformerEncoderLayer(dimensions, 4, 4 * dimensions, dropout=0.0, batch_first=True, norm_first=True)
        # Nested tensors are for padded inference, and these are neither padded nor in inference.
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dimensions)
        self.head = nn.Linear(dimensions, symbols)

    def forward(self, text: Tensor) -> Tensor:
        """Returns logits, ``float32[batch, length, symbols]``, of ``int64[batch, length]``."""
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.layers(self.symbols(text) + self.positions[:length], mask=mask, is_causal=True)
        logits: Tensor = self.head(self.norm(hidden))
        return logits
