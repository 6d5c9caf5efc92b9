"""Workload texts of astra-sim 1 and SimAI: a header, a number of layers, and twelve columns for each.

The first word of the header says how the model is parallel.  What follows differs: astra-sim has at most a number or
``DLRM_LAST_BOTTOM_LAYER: 3``, SimAI and later versions of astra-sim names with colons (``model_parallel_NPU_group: 8 ep: 2
pp: 1``), on the same line or on lines of their own.  The columns are a name, a dependency (unused), and time, collective and
bytes of the forward pass, of the gradients of inputs, and of the gradients of weights; last the time of the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dlcp.units import Delay
from dlcp.workload import Layer, Workload
from sim.messages import Message
from sim.readers.found import Found
from sim.readers.text import LIMIT, MAX_MESSAGES, MAX_TIME, InputError, Line, lines, rows, shown
from sim.readers.timeline import Timeline, TooMany, cost

POLICIES: Final = (
    "MICRO",
    "DATA",
    "MODEL",
    "HYBRID_DATA_MODEL",
    "HYBRID_MODEL_DATA",
    "HYBRID_DLRM",
    "HYBRID_DLRM_ENHANCED",
    "HYBRID_TRANSFORMER",
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD",
    "HYBRID_CUSTOMIZED",
    "DISTRIBUTED_INFERENCE",
)
KINDS: Final = {"ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "REDUCESCATTER": "reduce_scatter", "ALLTOALL": "all_to_all"}
SUFFIXES: Final = ("", "_EP", "_DP_EP")
MAX_LAYERS: Final = 100_000
MAX_RANKS: Final = 65_000
_COLUMNS: Final = (
    "name, dependency, and time, collective, bytes of forward pass, input gradients and weight gradients, and time of the update"
)
_NUMBERS: Final = {
    *("model_parallel_NPU_group:", "ep:", "pp:", "vpp:", "ga:", "all_gpus:", "pp_comm", "pp_comm:", "DLRM_LAST_BOTTOM_LAYER:")
}
_LISTS: Final = {"checkpoints:", "checkpoint_initiates:"}


@dataclass(frozen=True, slots=True)
class Phase:
    """Computing, and the collective after it.

    Attributes:
        time: As in the file.
        kind: Collective; empty if there is none.
        suffix: Whose: plain, ``_EP`` or ``_DP_EP``.
        size: Its bytes.
    """

    time: int
    kind: str
    suffix: str
    size: int


@dataclass(frozen=True, slots=True)
class TextLayer:
    """A line: its name, and the three phases."""

    name: str
    forward: Phase
    inputs: Phase
    weights: Phase


@dataclass(frozen=True)
class Text:
    """A workload text.

    Attributes:
        source: The file.
        policy: First word of the header.
        header: The numbers of the header by name, without the colon.
        layers: In the order of the forward pass.
    """

    source: str
    policy: str
    header: dict[str, int]
    layers: tuple[TextLayer, ...]

    @property
    def data_parallel(self) -> bool:
        """Whether all that ranks exchange are sums of gradients."""
        weights = [layer.weights for layer in self.layers]
        return (
            not any(layer.forward.kind or layer.inputs.kind for layer in self.layers)
            and all(phase.kind in ("", "all_reduce") and not phase.suffix for phase in weights)
            and any(phase.kind and phase.size for phase in weights)
        )


def read_text_workload(path: str | Path, *, limit: int = LIMIT) -> Text:
    """Reads a workload text; raises InputError with file and line."""
    found = lines(path, limit)
    policy = found[0].words[0]
    if policy not in POLICIES:
        raise found[0].error(f"begins with {shown(policy)}", ", ".join(POLICIES))
    at = next((index for index, line in enumerate(found) if index and len(line.words) == 1 and line.words[0].isdecimal()), None)
    if at is None:
        raise found[-1].error("the file ends without a number of layers", "a line with a whole number after the header")
    header = _header(found[:at])
    count = found[at].integer(0, "number of layers", 1, MAX_LAYERS)
    chosen = rows(found, count, at + 1, "layers", _COLUMNS)
    if len(found) > at + 1 + count:
        raise found[at + 1 + count].error("a line after the last layer", f"{count} layers, as line {found[at].number} says")
    extra = policy == "HYBRID_CUSTOMIZED"
    layers = tuple(_layer(line, extra) for line in chosen)
    return Text(str(path), policy, header, layers)


def _header(found: Sequence[Line]) -> dict[str, int]:
    header: dict[str, int] = {}
    for line in found:
        index = 1 if line is found[0] else 0
        while index < len(line.words):
            word = line.words[index]
            name = word.rstrip(":")
            if name in header:
                raise line.error(f"{word} for the second time", "each name once")
            if word in _NUMBERS:
                header[name] = line.integer(index + 1, word, 0, 2**40)
                index += 2
            elif word in _LISTS:
                header[name] = line.integer(index + 1, word, 0, MAX_LAYERS)
                for place in range(header[name]):
                    line.integer(index + 2 + place, f"layer {place} of {word}", 0, MAX_LAYERS)
                index += 2 + header[name]
            elif line is found[0] and index == 1 and word.isdecimal():
                header["DLRM_LAST_BOTTOM_LAYER"] = line.integer(index, "last bottom layer", 0, MAX_LAYERS)
                index += 1
            else:
                raise line.error(f"the unknown word {shown(word)}", ", ".join(sorted(_NUMBERS | _LISTS)))
    return header


def _layer(line: Line, extra: bool) -> TextLayer:
    line.expect(13 if extra else 12, _COLUMNS + (", and a kind of parallelism" if extra else ""))
    if len(line.words[0]) > 150 or not line.words[0].isprintable():
        raise line.error(f"name {shown(line.words[0])}", "up to 150 printable characters")
    line.integer(1, "dependency", -(2**31), 2**31 - 1)
    line.integer(11, "time of the update", 0, 2**53)
    if extra and line.words[12] not in POLICIES:
        raise line.error(f"parallelism {shown(line.words[12])}", ", ".join(POLICIES))
    phases = [
        _phase(line, 2 + 3 * index, name) for index, name in enumerate(("forward pass", "input gradients", "weight gradients"))
    ]
    return TextLayer(line.words[0], *phases)


def _phase(line: Line, at: int, name: str) -> Phase:
    time = line.integer(at, f"time of the {name}", 0, MAX_TIME)
    size = line.integer(at + 2, f"bytes of the {name}", 0, 1 << 44)
    word = line.words[at + 1]
    if word == "NONE":
        return Phase(time, "", "", 0)
    for kind, called in KINDS.items():
        if word.startswith(kind) and word[len(kind) :] in SUFFIXES:
            return Phase(time, called, word[len(kind) :], size)
    accepted = f"NONE, {', '.join(KINDS)}; or with {' or '.join(SUFFIXES[1:])}"
    raise line.error(f"collective of the {name} is {shown(word)}", accepted)


def workload(text: Text, unit: int) -> Workload:
    """Returns the model of a text that is data parallel; times are in ``unit`` picoseconds.

    Raises:
        InputError: A time is out of range.
    """
    seen: dict[str, int] = {}
    layers = []
    for layer in text.layers:
        name = layer.name
        seen[name] = seen.get(name, 0) + 1
        while f"{name}#{seen[name]}" in seen:
            seen[name] += 1
        unique = name if seen[name] == 1 else f"{name}#{seen[name]}"
        seen.setdefault(unique, 1)
        times = (layer.forward.time * unit, (layer.inputs.time + layer.weights.time) * unit)
        size = layer.weights.size if layer.weights.kind else 0
        if max(times) > MAX_TIME:
            raise InputError(text.source, f"layer {layer.name}", f"computes for {max(times) / 10**12:.6g} s", "up to 10000 s")
        layers.append(Layer(name=unique, elements=-(-size // 4), forward=Delay(times[0]), backward=Delay(times[1])))
    return Workload(name="astra", layers=tuple(layers), note=f"from a workload text, {text.policy}")


class _Groups:
    """Which ranks exchange what: tensor parallel ones are neighbours, data parallel ones as far apart as those are many."""

    def __init__(self, world: int, model: int, experts: int) -> None:
        self.world, self.model, self.experts = world, model, experts

    def cost(self, text: Text) -> int:
        """Returns how many messages a step takes."""
        total = 0
        for layer in text.layers:
            for phase, weights in ((layer.forward, False), (layer.inputs, False), (layer.weights, True)):
                total += self.world * (phase.time > 0)
                if phase.kind and phase.size:
                    blocks = self.world // self.model // self.experts
                    plain = self.world // self.model if weights else self.model
                    size = {"": plain, "_EP": self.experts, "_DP_EP": blocks}[phase.suffix]
                    total += self.world // size * cost(phase.kind, size) if size > 1 else 0
        return total

    def of(self, phase: Phase, weights: bool) -> list[list[int]]:
        model, experts = self.model, self.experts
        if phase.suffix == "":
            if not weights:
                return [list(range(first, first + model)) for first in range(0, self.world, model)]
            return [list(range(first, self.world, model)) for first in range(model)]
        blocks = self.world // model // experts
        if phase.suffix == "_EP":
            return [
                [(block * experts + index) * model + place for index in range(experts)]
                for block in range(blocks)
                for place in range(model)
            ]
        return [
            [(block * experts + index) * model + place for block in range(blocks)]
            for index in range(experts)
            for place in range(model)
        ]


def training(text: Text, *, unit: int, iterations: int, ranks: int | None = None, model: int | None = None) -> Found:
    """Returns the messages of training steps.

    Forward passes wait for their collectives; the gradients of weights are exchanged while the backward pass goes on, and the
    next forward pass of a layer waits for its own.

    Args:
        text: The workload.
        unit: Picoseconds of a unit of time of the text.
        iterations: Steps.
        ranks: How many; without it what the header says.
        model: Ranks that share a layer; without it what the header says.

    Raises:
        InputError: The ranks do not fit the groups, or there would be too many messages.
    """
    header = text.header
    stages = max(header.get("pp", 1), 1)
    world = ranks or header.get("all_gpus", 0) // stages
    found = Found(hosts=world)
    if not world:
        raise InputError(text.source, "header", "does not say how many ranks there are", "all_gpus:, or --ranks")
    if world > MAX_RANKS:
        raise InputError(text.source, "header", f"{world} ranks", f"up to {MAX_RANKS}; --ranks takes fewer")
    model = model or header.get("model_parallel_NPU_group", 0) or (world if text.policy == "MODEL" else 1)
    if "HYBRID" in text.policy and "model_parallel_NPU_group" not in header and model == 1:
        found.notes.append("the header says nothing of model parallel groups; every rank was taken to be data parallel")
    experts = max(header.get("ep", 1), 1)
    if world % model or world // model % experts:
        problem = f"{world} ranks, {model} of them model parallel, {experts} expert parallel"
        raise InputError(text.source, "header", problem, "ranks that groups divide")
    if stages > 1:
        found.notes.append(f"{world} ranks of one pipeline stage; what {stages} stages send to each other is left out")
    groups = _Groups(world, model, experts)
    try:
        if iterations * groups.cost(text) > MAX_MESSAGES:  # said at once, not after two million
            raise TooMany(f"more than {MAX_MESSAGES} messages")
        found.messages = _Steps(text, unit, groups).run(iterations)
    except TooMany as error:
        accepted = f"up to {MAX_MESSAGES}: fewer --ranks or --iterations"
        raise InputError(text.source, "(file)", f"{iterations} steps of {world} ranks make {error}", accepted) from None
    return found


class _Steps:
    def __init__(self, text: Text, unit: int, groups: _Groups) -> None:
        self.text, self.unit, self.groups = text, unit, groups
        self.line = Timeline()
        world = groups.world
        self.at: list[list[int]] = [[] for _ in range(world)]
        self.pending: list[list[int | None]] = [[None] * len(text.layers) for _ in range(world)]

    def run(self, iterations: int) -> list[Message]:
        layers = self.text.layers
        for iteration in range(iterations):
            for number, layer in enumerate(layers):
                for rank, waiting in enumerate(self.pending):
                    mine = waiting[number]
                    if mine is not None:
                        self.at[rank] = [*self.at[rank], mine]
                        waiting[number] = None
                self._compute(layer.forward.time, "forward", iteration)
                self._exchange(layer.forward, f"{layer.name}.forward", iteration)
            for number, layer in reversed(list(enumerate(layers))):
                self._compute(layer.inputs.time, "backward", iteration)
                self._exchange(layer.inputs, f"{layer.name}.inputs", iteration)
                self._compute(layer.weights.time, "backward", iteration)
                done = self._exchange(layer.weights, f"{layer.name}.weights", iteration, weights=True)
                for rank, message in done.items():
                    self.pending[rank][number] = message
        return self.line.messages

    def _compute(self, time: int, group: str, iteration: int) -> None:
        if not time:
            return
        for rank, after in enumerate(self.at):
            self.at[rank] = [self.line.compute(rank, self._picoseconds(time), after, group=group, iteration=iteration)]

    def _picoseconds(self, time: int) -> int:
        if time * self.unit > MAX_TIME:
            raise InputError(self.text.source, "(file)", f"a time of {time * self.unit / 10**12:.6g} s", "up to 10000 s")
        return time * self.unit

    def _exchange(self, phase: Phase, name: str, iteration: int, *, weights: bool = False) -> dict[int, int]:
        """Adds a collective in every group; those of weights hold nobody up."""
        done: dict[int, int] = {}
        if not phase.kind or not phase.size:
            return done
        for members in self.groups.of(phase, weights):
            if len(members) > 1:
                ready = [self.at[rank] for rank in members]
                ends = self.line.collective(phase.kind, members, phase.size, ready, group=name, iteration=iteration)
                done |= dict(zip(members, ends, strict=True))
        if not weights:
            for rank, message in done.items():
                self.at[rank] = [message]
        return done


__all__ = ["POLICIES", "Phase", "Text", "TextLayer", "read_text_workload", "training", "workload"]
