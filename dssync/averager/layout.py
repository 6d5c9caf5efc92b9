"""What is averaged, in which order, and how it is packed: flat buckets instead of one collective for each tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dlcp.errors import ConfigError
from dssync.groups.link import GroupLink, Missing, Pending

_TAG_ROUNDS: Final = 64
_TAG_STRIDE: Final = 37
"""Numbers of successive rounds are far apart, so that one member of many that is a round ahead shows in the mean."""


class Slot(NamedTuple):
    """A tensor that is averaged.

    Attributes:
        name: What ranks compare.
        tensor: Where values come from and go to.
    """

    name: str
    tensor: Tensor


class Bucket:
    """Tensors of one type that travel as one.

    Args:
        slots: Tensors of one type and device; none for a bucket that only holds the tag.
        dtype: In which they travel.
        device: From where.
        tagged: Whether there is room for the number of the round.
        keep: Whether what was sent is kept: for delayed averages, and where contributions may be missing.
    """

    def __init__(self, slots: Sequence[Slot], dtype: torch.dtype, device: torch.device, tagged: bool, keep: bool) -> None:
        self.tensors = [slot.tensor for slot in slots]
        self.elements = sum(tensor.numel() for tensor in self.tensors)
        self.flat = torch.zeros(self.elements + int(tagged), dtype=dtype, device=device)
        self.sent = torch.empty_like(self.flat) if keep else None
        self._tagged = tagged
        self._plain = all(tensor.dtype == dtype and tensor.device == device for tensor in self.tensors)
        self._views = self._split(self.flat)
        self._sent_views = self._split(self.sent) if self.sent is not None else []

    def fill(self, scale: float, tag: int) -> None:
        """Copies the tensors, times ``scale``, and the tag; a scale of 0 leaves no trace of what is not finite."""
        if scale == 0:
            self.flat.zero_()
            return
        if self.sent is not None:
            _copy(self._sent_views, self.tensors)
            if self._tagged:
                self.sent[-1] = tag
            torch.mul(self.sent, scale, out=self.flat)
            return
        if self._plain and scale != 1:
            # One pass over memory instead of two.
            for view, tensor in zip(self._views, self.tensors, strict=True):
                torch.mul(tensor, scale, out=view)
        else:
            _copy(self._views, self.tensors)
            if scale != 1:
                self.flat.mul_(scale)
        if self._tagged:
            self.flat[-1] = tag * scale

    def restore(self, missing: Sequence[Missing]) -> None:
        """Puts back own values where they have reached nobody."""
        for start, stop in missing:
            assert self.sent is not None
            self.flat[start:stop] = self.sent[start:stop]

    def tag(self) -> float | None:
        """Returns the members' mean tag."""
        return float(self.flat[-1]) if self._tagged else None

    def settle(self, relaxation: float, delayed: bool) -> None:
        """Moves the tensors towards the mean.

        Args:
            relaxation: 1 for all the way.
            delayed: The tensors have changed since; apply what the average would have changed at the time.
        """
        if delayed:
            assert self.sent is not None
            self.flat.sub_(self.sent)
            self._add(relaxation)
        elif relaxation == 1:
            _copy(self.tensors, self._views)
        elif self._plain and self.tensors:
            torch._foreach_lerp_(self.tensors, self._views, relaxation)
        else:
            for tensor, view in zip(self.tensors, self._views, strict=True):
                tensor.copy_(torch.lerp(tensor.to(view), view, relaxation))

    def _add(self, factor: float) -> None:
        if self._plain and self.tensors:
            torch._foreach_add_(self.tensors, self._views, alpha=factor)
            return
        for tensor, view in zip(self.tensors, self._views, strict=True):
            tensor.copy_(tensor.to(view).add_(view, alpha=factor))

    def _split(self, flat: Tensor) -> list[Tensor]:
        views, at = [], 0
        for tensor in self.tensors:
            views.append(flat[at : at + tensor.numel()].view(tensor.shape))
            at += tensor.numel()
        return views


class Transfer:
    """All buckets of one layout; the same memory serves the links of all groups.

    Args:
        slots: What is averaged.
        link: Any of the links it will be used with; they are alike but for their ranks.
        bucket_bytes: Size of a bucket.
        keep: See :class:`Bucket`.
    """

    def __init__(self, slots: Sequence[Slot], link: GroupLink, bucket_bytes: int, keep: bool) -> None:
        self.slots = tuple(slots)
        self.buckets: list[Bucket] = []
        self._tagged: int | None = None
        for part in partition(slots, bucket_bytes):
            first = part[0].tensor
            dtype, device = link.carried_as(first.dtype), link.carried_from(first.device)
            # 16 bits are too few for the tag.
            tagged = self._tagged is None and dtype in (torch.float32, torch.float64)
            if tagged:
                self._tagged = len(self.buckets)
            self.buckets.append(Bucket(part, dtype, device, tagged, keep))
        if self._tagged is None:
            self._tagged = len(self.buckets)
            self.buckets.append(Bucket((), torch.float32, self.buckets[0].flat.device, True, keep))

    def start(self, link: GroupLink, scale: float, number: int) -> list[Pending]:
        """Copies and starts bucket after bucket, so that copying the next one overlaps with sending the last.

        Args:
            link: To the members.
            scale: See :meth:`GroupLink.scale`.
            number: Of the round.
        """
        pending = []
        for bucket in self.buckets:
            bucket.fill(scale, _tag(number))
            pending.append(link.start(bucket.flat))
        return pending

    def wait(self, pending: Sequence[Pending], number: int, members: int) -> bool:
        """Waits for all buckets; nothing has changed in the model yet.

        Returns:
            Whether all members were in round ``number``.
        """
        missing = [one.wait() for one in pending]
        for bucket, lost in zip(self.buckets, missing, strict=True):
            bucket.restore(lost)
        assert self._tagged is not None
        found = self.buckets[self._tagged].tag()
        return found is None or abs(found - _tag(number)) < min(0.25, 0.25 * _TAG_STRIDE / members)

    def settle(self, relaxation: float, delayed: bool) -> None:
        """Changes the model."""
        for bucket in self.buckets:
            bucket.settle(relaxation, delayed)

    @property
    def bytes(self) -> int:
        """Bytes of all buckets."""
        return sum(bucket.flat.numel() * bucket.flat.element_size() for bucket in self.buckets)


def _tag(number: int) -> int:
    return number * _TAG_STRIDE % _TAG_ROUNDS


def _copy(into: list[Tensor], values: list[Tensor]) -> None:
    if into:
        torch._foreach_copy_(into, values)


def partition(slots: Iterable[Slot], bucket_bytes: int) -> list[list[Slot]]:
    """Deals slots to buckets of one type and device each, in their order, of about ``bucket_bytes``."""
    open_buckets: dict[tuple[torch.dtype, torch.device], list[Slot]] = {}
    sizes: dict[tuple[torch.dtype, torch.device], int] = {}
    done: list[list[Slot]] = []
    for slot in slots:
        key = slot.tensor.dtype, slot.tensor.device
        size = slot.tensor.numel() * slot.tensor.element_size()
        if key in open_buckets and sizes[key] + size > bucket_bytes:
            done.append(open_buckets.pop(key))
        if key not in open_buckets:
            open_buckets[key], sizes[key] = [], 0
        open_buckets[key].append(slot)
        sizes[key] += size
    return done + list(open_buckets.values())


def local(tensor: Tensor) -> Tensor:
    """Returns a tensor's memory on this rank: that of a sharded tensor is its shard."""
    shard = getattr(tensor, "to_local", None)
    return shard().detach() if shard is not None else tensor.detach()


def parameter_slots(parameters: Iterable[nn.Parameter], names: dict[int, str]) -> list[Slot]:
    """Returns each parameter that is trained once, whether or not it has a gradient at the moment; names by ``id``."""
    seen: set[int] = set()
    slots = []
    for number, parameter in enumerate(parameters):
        if id(parameter) in seen or not parameter.requires_grad:
            continue
        seen.add(id(parameter))
        if not (parameter.is_floating_point() or parameter.is_complex()):
            raise ConfigError("dssync", "parameters", f"parameter {number} is {parameter.dtype}", "floating point")
        tensor = local(parameter)
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        slots.append(Slot(f"parameter {names.get(id(parameter), number)}", tensor))
    return slots


def buffer_slots(model: nn.Module) -> tuple[list[Slot], list[Slot]]:
    """Returns the buffers of a model that are floating point, and those that count."""
    floating, counts = [], []
    seen: set[int] = set()
    for name, buffer in model.named_buffers():
        if id(buffer) in seen:
            continue
        seen.add(id(buffer))
        slot = Slot(f"buffer {name}", local(buffer))
        if buffer.is_floating_point():
            floating.append(slot)
        elif buffer.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
            counts.append(slot)
    return floating, counts


def state_slots(optimizer: Optimizer, parameters: Iterable[nn.Parameter], names: dict[int, str]) -> list[Slot]:
    """Returns the optimizer's moments: its state that has a parameter's shape."""
    slots = []
    for number, parameter in enumerate(parameters):
        state: dict[str, Any] = optimizer.state.get(parameter, {})
        for key in sorted(state):
            value = state[key]
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point():
                slots.append(Slot(f"state {key} of {names.get(id(parameter), number)}", local(value)))
    return slots


def signature(slots: Iterable[Slot], *more: object) -> bytes:
    """Returns 32 bytes that stand for names, shapes, types and whatever else has to be equal on all ranks."""
    text = hashlib.sha256(repr(more).encode())
    for slot in slots:
        text.update(f"{slot.name}|{tuple(slot.tensor.shape)}|{slot.tensor.dtype}\n".encode())
    return text.digest()


__all__ = [
    "Bucket",
    "Slot",
    "Transfer",
    "buffer_slots",
    "local",
    "parameter_slots",
    "partition",
    "signature",
    "state_slots",
]
