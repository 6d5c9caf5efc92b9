"""The examples' tasks for ``dlcp tolerance``: ``examples.train:digits`` and ``examples.train:charlm``."""

from __future__ import annotations

from torch.optim import SGD, AdamW

from dlcp.tolerance import Task
from examples.data import SYMBOLS, load_digits, load_text
from examples.evaluation import evaluate_alone, loss_of
from examples.models import CharModel, DigitsNet

DIGITS_WIDTH, CHARLM_WIDTH = 8, 8


def to_zero(done: float) -> float:
    """A learning rate that falls in a straight line."""
    return 1 - done


def digits() -> Task:
    """A CNN on handwritten digits, a quarter as wide as the training script's."""
    data, model = load_digits(), DigitsNet(DIGITS_WIDTH)
    return Task(
        model=model,
        optimizer=SGD(model.parameters(), lr=0.05, momentum=0.9),
        inputs=data.train_inputs,
        targets=data.train_targets,
        loss=loss_of,
        accuracy=lambda trained: evaluate_alone(trained, data)[1],
        batch_size=8,
        epochs=6,
        schedule=to_zero,
    )


def charlm() -> Task:
    """A small transformer on source text; its accuracy is the share of characters foretold."""
    data, model = load_text(100_000), CharModel(SYMBOLS, CHARLM_WIDTH)
    return Task(
        model=model,
        optimizer=AdamW(model.parameters(), lr=0.003),
        inputs=data.train_inputs,
        targets=data.train_targets,
        loss=loss_of,
        accuracy=lambda trained: evaluate_alone(trained, data)[1],
        batch_size=8,
        epochs=3,
        schedule=to_zero,
    )
