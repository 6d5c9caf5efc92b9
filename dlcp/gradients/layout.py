"""What a model's gradients are, and how they travel together: leaves, and buckets of leaves."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dlcp.errors import ConfigError
from dlcp.policy import Policy
from dlcp.tagging.classes import assign_classes
from dlcp.tagging.flat import FlatTags

BUCKET_BYTES: Final = 4 << 20
"""Leaves are gathered until they fill this many bytes: as long as a message is by default."""

WORK_DTYPES: Final = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
"""In which type gradients of a type are added up.  ``bfloat16`` is ml_dtypes', which numpy knows by that name only."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a model.

    Attributes:
        name: Stable over steps and restarts.
        shape: Its shape.
        dtype: float16, bfloat16, float32 or float64.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def work(self) -> np.dtype[Any]:
        """The type in which it is added up."""
        return np.dtype(WORK_DTYPES[self.dtype.name])

    def check(self, array: NDArray[Any], source: str) -> None:
        """Refuses an array that is not this leaf's gradient.

        Raises:
            ConfigError: Shape or type is another.
        """
        if array.shape != self.shape or array.dtype.name != self.dtype.name:
            problem = f"a gradient of {array.dtype}{list(array.shape)}"
            raise ConfigError(source, self.name, problem, f"{self.dtype}{list(self.shape)}, like the parameter")


def leaf_of(name: str, shape: Sequence[int], dtype: Any, source: str) -> Leaf:
    """Returns the leaf for a parameter.

    Raises:
        ConfigError: Gradients of this type cannot be averaged.
    """
    kind = np.dtype(dtype)
    if kind.name not in WORK_DTYPES:
        accepted = f"{', '.join(WORK_DTYPES)}; leave out what is not trained"
        raise ConfigError(source, name, f"elements of {kind.name}", accepted)
    return Leaf(name, tuple(int(n) for n in shape), kind)


class Bucket:
    """Leaves that travel as one array.

    Args:
        members: Positions of the leaves, in their order in the array.
        leaves: All leaves.

    Attributes:
        members: The same.
        names: Their names.
        edges: ``int64[members + 1]``, element offsets.
        dtype: float32 or float64.
    """

    def __init__(self, members: Sequence[int], leaves: Sequence[Leaf]) -> None:
        self.members = tuple(members)
        self.names = tuple(leaves[i].name for i in members)
        self.edges: NDArray[np.int64] = np.cumsum([0, *(leaves[i].size for i in members)], dtype=np.int64)
        self.dtype = leaves[members[0]].work
        self._tags: tuple[int, FlatTags] | None = None

    @property
    def elements(self) -> int:
        """Elements of the array."""
        return int(self.edges[-1])

    def tags(self, work: NDArray[Any], width: int, classes: Sequence[int], policy: Policy) -> NDArray[np.uint8]:
        """Returns the tags of the bucket's packets.

        Args:
            work: What is about to be contributed.
            width: Elements a packet.
            classes: Class of each leaf of the model.
            policy: Gives the protected share and the sampling.
        """
        if self._tags is None or self._tags[0] != width:
            protection = policy.protection
            own = [classes[i] for i in self.members]
            self._tags = (width, FlatTags(self.edges, own, width, protection.share, protection.sample))
        return self._tags[1].tags(work)


class GradientLayout:
    """All leaves of a model, their classes and buckets.

    Args:
        leaves: In the order of the model.
        order: Names in the order in which a forward pass uses them; None for the order of the model.
        classes: Number of classes.
        bucket_bytes: See :data:`BUCKET_BYTES`.
        source: What it is, for errors.

    Attributes:
        leaves: The same.
        classes: Class of each.
        buckets: What travels together; the most urgent first.

    Raises:
        ConfigError: Names are not unique, or ``order`` does not hold each once.
    """

    def __init__(self, leaves: Sequence[Leaf], order: Sequence[str] | None, classes: int, bucket_bytes: int, source: str) -> None:
        self.leaves = tuple(leaves)
        self.source = source
        places = {leaf.name: i for i, leaf in enumerate(self.leaves)}
        if len(places) != len(self.leaves):
            raise ConfigError(source, "names", "two parameters have one name", "a name for each")
        if not any(leaf.size for leaf in self.leaves):
            raise ConfigError(source, "parameters", "there is nothing to average", "at least one array with elements")
        if bucket_bytes < 1:
            raise ConfigError(source, "bucket_bytes", f"{bucket_bytes}", "a number of bytes above 0")
        if order is not None and sorted(order) != sorted(places):
            odd = sorted(set(order) ^ set(places)) or ["a name twice"]
            raise ConfigError(source, "order", f"does not fit the parameters: {', '.join(odd[:3])}", "the name of each, once")
        self.order = [places[name] for name in order] if order is not None else list(range(len(self.leaves)))
        dealt = assign_classes([self.leaves[i].size * self.leaves[i].dtype.itemsize for i in self.order], classes)
        by_place = dict(zip(self.order, dealt, strict=True))
        self.classes = [by_place[i] for i in range(len(self.leaves))]
        self.buckets = self._gather(bucket_bytes)

    def _gather(self, bucket_bytes: int) -> list[Bucket]:
        groups: list[list[int]] = []
        open_groups: dict[np.dtype[Any], list[int]] = {}
        for i in self.order:
            leaf = self.leaves[i]
            if leaf.size == 0:
                continue
            group = open_groups.get(leaf.work)
            if group is None or sum(self.leaves[k].size for k in group) * leaf.work.itemsize >= bucket_bytes:
                group = open_groups[leaf.work] = []
                groups.append(group)
            group.append(i)
        return [Bucket(group, self.leaves) for group in groups]

    def digest(self) -> bytes:
        """Returns 32 bytes that are the same on two ranks exactly if their models, orders and buckets are."""
        leaves = [[leaf.name, list(leaf.shape), leaf.dtype.name] for leaf in self.leaves]
        text = json.dumps([leaves, self.order, [bucket.members for bucket in self.buckets]])
        return hashlib.sha256(text.encode()).digest()
