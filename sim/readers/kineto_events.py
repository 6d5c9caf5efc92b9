"""Collectives in traces of PyTorch's profiler (Kineto, JSON of the Chrome trace format).

Backends leave different marks.  NCCL's kernels, and without a GPU the events ``record_param_comms``, have arguments
``Collective name``, ``In msg nelems``, ``Out msg nelems``, ``dtype``, ``Group size`` and ``Process Group Ranks``.
Gloo has events such as ``gloo:all_reduce`` with ``Input Dims`` and ``Input type`` if shapes were recorded, and none of those
names; roots and peers stand in the calls (``c10d::broadcast_``) that the events belong to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from sim.readers.text import InputError, parse_json, read_text, shown

LIMIT: Final = 128 << 20
MAX_COLLECTIVES: Final = 200_000
_MAX_BYTES: Final = 1 << 40
_MAX_RANKS: Final = 65_000

GLOO: Final = {
    "gloo:all_reduce": "all_reduce",
    "gloo:all_gather": "all_gather",
    "gloo:all_to_all": "all_to_all",
    "gloo:barrier": "barrier",
    "gloo:broadcast": "broadcast",
    "gloo:gather": "gather",
    "gloo:reduce": "reduce",
    "gloo:reduce_scatter": "reduce_scatter",
    "gloo:scatter": "scatter",
    "gloo:send": "send",
    "gloo:recv": "receive",
}
_CALLS: Final = {
    "broadcast": ("c10d::broadcast_", 2),
    "reduce": ("c10d::reduce_", 3),
    "gather": ("c10d::gather_", 3),
    "scatter": ("c10d::scatter_", 3),
    "send": ("c10d::send", 2),
    "receive": ("c10d::recv_", 2),
}
"""The call whose argument is the root or the peer, and which one."""
NCCL: Final = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_allv": "all_to_all",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "reduce": "reduce",
    "_reduce_oop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "receive",
}
"""By ``Collective name``; others, such as ``wait`` and ``init``, move nothing."""
_IDLE: Final = ("wait", "init", "monitoredbarrier", "startcoalescing", "endcoalescing", "coalesced")
_GLOO_TYPES: Final = {
    "double": 8,
    "float": 4,
    "c10::half": 2,
    "c10::bfloat16": 2,
    "long": 8,
    "long int": 8,
    "int": 4,
    "short": 2,
    "short int": 2,
    "signed char": 1,
    "unsigned char": 1,
    "char": 1,
    "bool": 1,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
}
_NCCL_TYPES: Final = {
    "double": 8,
    "float64": 8,
    "long": 8,
    "int64": 8,
    "float": 4,
    "float32": 4,
    "int": 4,
    "int32": 4,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "short": 2,
    "byte": 1,
    "uint8": 1,
    "char": 1,
    "int8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
_RANKS: Final = re.compile(r"\[\s*(?:[0-9]{1,5}\s*(?:,\s*[0-9]{1,5}\s*)*)?\]")


@dataclass(frozen=True, slots=True)
class Collective:
    """What a rank does with others.

    Attributes:
        where: Its event, for errors.
        kind: One of the timeline's kinds, or ``send`` or ``receive``.
        start, end: Picoseconds, on the clock of the trace.
        size: Bytes that the rank puts in, or takes out of a receive; None if the trace does not say.
        group: Name of the process group.
        members: Its ranks, sorted; empty if the trace does not say, or for all.
        count: How many they are; 0 if the trace does not say.
        peer: Root, or other side, a rank; None if the trace does not say.
    """

    where: str
    kind: str
    start: int
    end: int
    size: int | None
    group: str
    members: tuple[int, ...]
    count: int
    peer: int | None


@dataclass(frozen=True)
class Trace:
    """The trace of a rank.

    Attributes:
        source: The file.
        rank, world: Its rank, and how many there are; None if the trace does not say.
        dialect: ``gloo`` or ``nccl``.
        collectives: By start.
    """

    source: str
    rank: int | None
    world: int | None
    dialect: str
    collectives: list[Collective]


def read_trace(path: str | Path, *, limit: int = LIMIT) -> Trace:
    """Reads the trace of a rank; it may be compressed.

    Raises:
        InputError: With file and event.
    """
    document = parse_json(path, "(file)", read_text(path, limit))
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise InputError(path, "traceEvents", "missing, or no list", "a trace that torch.profiler wrote (export_chrome_trace)")
    base = document.get("baseTimeNanoseconds", 0)
    if type(base) is not int or not 0 <= base < 1 << 63:
        raise InputError(path, "baseTimeNanoseconds", shown(base), "a whole number of nanoseconds")
    rank, world = _place(path, document.get("distributedInfo", {}))
    kernels: list[_Event] = []
    calls: list[_Event] = []
    gloo: list[_Event] = []
    roots: dict[str, list[_Event]] = {}
    for index, raw in enumerate(events):
        if not isinstance(raw, dict):
            raise InputError(path, f"traceEvents[{index}]", shown(raw), "an object")
        if raw.get("ph") != "X":
            continue
        event = _Event(path, index, raw)
        if event.name in GLOO:
            gloo.append(event)
        elif "Collective name" in event.args:
            (kernels if raw.get("cat") in ("kernel", "gpu_memcpy") else calls).append(event)
        elif event.name.startswith("c10d::"):
            roots.setdefault(event.name, []).append(event)
    chosen = kernels or calls
    if len(chosen) + len(gloo) > MAX_COLLECTIVES:
        raise InputError(path, "traceEvents", f"{len(chosen) + len(gloo)} collectives", f"up to {MAX_COLLECTIVES}")
    if chosen:
        found = [made for event in chosen if (made := _nccl(event, base)) is not None]
    else:
        found = _gloo(gloo, roots, base)
    if not found:
        problem = "no collective (gloo:... or Collective name)"
        raise InputError(path, "traceEvents", problem, "the trace of a rank that communicates, with record_shapes=True for gloo")
    found.sort(key=lambda collective: (collective.start, collective.end))
    return Trace(str(path), rank, world, "nccl" if chosen else "gloo", found)


def _place(path: str | Path, info: object) -> tuple[int | None, int | None]:
    if not isinstance(info, dict):
        raise InputError(path, "distributedInfo", shown(info), "an object")
    values = []
    for name, low in (("rank", 0), ("world_size", 1)):
        value = info.get(name)
        if value is not None and (type(value) is not int or not low <= value <= _MAX_RANKS):
            raise InputError(path, f"distributedInfo.{name}", shown(value), f"a whole number from {low} to {_MAX_RANKS}")
        values.append(value)
    return values[0], values[1]


class _Event:
    """An event of the trace."""

    def __init__(self, path: str | Path, index: int, raw: dict[str, Any]) -> None:
        self.path, self.index, self.raw = path, index, raw
        name, args = raw.get("name", ""), raw.get("args", {})
        self.name = name if isinstance(name, str) else ""
        self.args: dict[str, Any] = args if isinstance(args, dict) else {}

    def error(self, key: str, accepted: str) -> InputError:
        value = self.args.get(key, self.raw.get(key))
        where = f"traceEvents[{self.index}] ({ascii(self.name[:40])[1:-1]}).{key}"
        return InputError(self.path, where, "missing" if value is None else shown(value), accepted)

    def time(self, key: str, base: int) -> int:
        """Returns microseconds of the event as picoseconds, after ``base`` nanoseconds."""
        value: Any = self.raw.get(key)
        if type(value) not in (int, float) or not 0 <= value < 1e16:
            raise self.error(key, "microseconds")
        return 1000 * (round(float(value) * 1000) + base)  # floats of this size are good to a nanosecond

    def span(self, base: int) -> tuple[int, int]:
        start = self.time("ts", base)
        return start, start + self.time("dur", 0)

    def count(self, key: str, high: int, default: int | None = None) -> int:
        value = self.args.get(key, default)
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
            value = int(value)
        if type(value) is not int or not 0 <= value <= high:
            raise self.error(key, f"a whole number from 0 to {high}")
        return value


def _nccl(event: _Event, base: int) -> Collective | None:
    name = event.args["Collective name"]
    kind = NCCL.get(name.lower()) if isinstance(name, str) else None
    if kind is None:
        if isinstance(name, str) and name.lower() in _IDLE:
            return None
        raise event.error("Collective name", ", ".join((*NCCL, *_IDLE)))
    dtype = event.args.get("dtype", "")
    width = _NCCL_TYPES.get(dtype.lower()) if isinstance(dtype, str) else None
    if width is None and kind != "barrier":
        raise event.error("dtype", ", ".join(_NCCL_TYPES))
    elements = event.count("Out msg nelems" if kind == "receive" else "In msg nelems", _MAX_BYTES // 16, 0)
    members: tuple[int, ...] = ()
    text = event.args.get("Process Group Ranks", "")
    if isinstance(text, str) and text and "..." not in text:  # long lists are cut off
        if not _RANKS.fullmatch(text):
            raise event.error("Process Group Ranks", "a list of ranks")
        members = _ranks(text)
        if len(set(members)) != len(members):
            raise event.error("Process Group Ranks", "different ranks")
    peer = None
    for key in ("Dst Rank", "Src Rank") if kind == "send" else ("Src Rank", "Dst Rank"):
        if key in event.args and kind in ("send", "receive", "broadcast", "reduce", "gather", "scatter"):
            peer = event.count(key, _MAX_RANKS)
            break
    group = event.args.get("Process Group Name", event.args.get("Process Group Description", ""))
    where = f"traceEvents[{event.index}]"
    start, end = event.span(base)
    size = elements * (width or 1)
    return Collective(where, kind, start, end, size, str(group)[:100], members, event.count("Group size", _MAX_RANKS, 0), peer)


@lru_cache(maxsize=1024)
def _ranks(text: str) -> tuple[int, ...]:
    """Returns the ranks of a list; the same object for the same text, since a trace repeats few lists very often."""
    return tuple(sorted(int(word) for word in text.strip("[] ").split(",") if word.strip()))


def _gloo(events: list[_Event], calls: dict[str, list[_Event]], base: int) -> list[Collective]:
    """Returns collectives; the n-th of a kind belongs to the n-th call of that kind, which has root or peer."""
    order = sorted(events, key=lambda event: event.time("ts", base))
    peers: dict[str, list[int]] = {}
    for kind, (name, argument) in _CALLS.items():
        found = sorted(calls.get(name, ()), key=lambda event: event.time("ts", base))
        peers[kind] = [_argument(event, argument) for event in found]
    counts: dict[str, int] = {}
    made = []
    for event in order:
        kind = GLOO[event.name]
        turn = counts[kind] = counts.get(kind, -1) + 1
        peer = peers[kind][turn] if turn < len(peers.get(kind, ())) else None
        start, end = event.span(base)
        size = None if kind == "barrier" else _gloo_bytes(event)
        made.append(Collective(f"traceEvents[{event.index}]", kind, start, end, size, "", (), 0, peer))
    return made


def _argument(event: _Event, index: int) -> int:
    values = event.args.get("Concrete Inputs")
    text = values[index] if isinstance(values, list) and len(values) > index else None
    if not isinstance(text, str) or not text.isascii() or not text.isdecimal() or len(text) > 5:
        raise event.error("Concrete Inputs", f"a list whose item {index} is a rank")
    return int(text)


def _gloo_bytes(event: _Event) -> int | None:
    """Returns the bytes of all inputs; None if there are none, as where a scatter only receives."""
    shapes, types = event.args.get("Input Dims"), event.args.get("Input type")
    if shapes is None and types is None:
        return None
    if not isinstance(shapes, list) or not isinstance(types, list) or len(shapes) != len(types):
        raise event.error("Input Dims", "a list of shapes, as many as Input type has")
    total = 0
    for shape, kind in zip(shapes, types, strict=True):
        width = _GLOO_TYPES.get(kind.lower()) if isinstance(kind, str) else None
        if width is None:
            raise event.error("Input type", ", ".join(_GLOO_TYPES))
        elements = 1
        for length in shape if isinstance(shape, list) else [None]:
            if type(length) is not int or not 0 <= length <= _MAX_BYTES:
                raise event.error("Input Dims", "shapes: lists of whole numbers")
            elements *= length
            if elements > _MAX_BYTES // 16:
                raise event.error("Input Dims", f"up to {_MAX_BYTES // 16} elements")
        total += elements * width
    return total


__all__ = ["GLOO", "LIMIT", "NCCL", "Collective", "Trace", "read_trace"]
