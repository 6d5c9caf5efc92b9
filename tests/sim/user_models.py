"""Models as users have them, for the tests of the profiler."""

import torch
from torch import nn


class Shared(nn.Module):
    """An embedding and a head that share a weight, a block that runs twice, a layer that never runs, and a frozen one."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 50, bias=False)  # registered first, used last
        self.embedding = nn.Embedding(50, 8)
        self.embedding.weight = self.head.weight
        self.scale = nn.Parameter(torch.ones(8, dtype=torch.float64))
        self.never = nn.Linear(3, 3)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.twice = nn.Linear(8, 8)
        self.normed = nn.LayerNorm(8).to(torch.bfloat16)

    def forward(self, indices, keep=1.0):
        hidden = self.twice(torch.relu_(self.twice(self.embedding(indices))))
        hidden = self.frozen(hidden) * self.scale.float() * keep
        return {"logits": self.head(self.normed(hidden.bfloat16()).float())}


class Functional(nn.Module):
    """Uses the parameters of a child without calling it."""

    def __init__(self):
        super().__init__()
        self.child = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, values):
        return self.norm(nn.functional.linear(values, self.child.weight, self.child.bias))


class Needy(nn.Module):
    """Needs an argument to be made."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)


class Silent(nn.Module):
    """Gives nothing that has a gradient."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, values):
        return self.layer(values).argmax()


def made():
    return Shared()


def no_model():
    return 5


def batch():
    return {"indices": torch.zeros(6, 5, dtype=torch.int64), "keep": 0.5}


def broken():
    raise RuntimeError("no data today")


instance = Functional()
number = 5
