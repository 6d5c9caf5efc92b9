"""Records a torch model as a workload: layers in the order in which they run, the bytes of their gradients, their times.

What runs is what the model's own code does.  A layer is a module that holds parameters; its forward pass lasts from when it
begins to when the next one does, so that activations in between count for the layer before them.  Its backward pass lasts from
when the gradients of the layers after it are there to when its own are, which is what a network waits for.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from dlcp.errors import ConfigError
from dlcp.units import Delay
from dlcp.workload import Layer, Workload
from sim.user_model import HOW, arguments_of, described, loss_of, moved, samples_of

DTYPES: Final = {torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_NANOSECOND: Final = 1000


@dataclass
class Profile:
    """What was measured.

    Attributes:
        workload: The model.
        unused: Names of parameters that got no gradient.
        shared: Names of parameters that several modules hold.
        forward, backward, optimizer: Seconds of a whole step, medians.
    """

    workload: Workload
    unused: list[str]
    shared: list[str]
    forward: float
    backward: float
    optimizer: float


@dataclass
class _Step:
    """Times of one step, nanoseconds, by number of the layer."""

    forward: list[int]
    backward: list[int]
    whole: tuple[int, int, int]


@dataclass
class _Layers:
    """The layers found: names, modules, and the parameters of each."""

    names: list[str] = field(default_factory=list)
    modules: list[nn.Module] = field(default_factory=list)
    parameters: list[list[nn.Parameter]] = field(default_factory=list)


def profile(
    model: nn.Module,
    batch: Any,
    *,
    name: str = "model",
    device: str = "cpu",
    steps: int = 5,
    warm_up: int = 2,
    optimizer: str = "",
    report: Callable[[int, int], None] | None = None,
) -> Profile:
    """Runs a model and returns what it is to a network.

    Args:
        model: It is put into training mode, and onto the device.
        batch: Its argument; a tuple for several, a mapping for named ones.
        name: What the workload is called.
        device: Of torch.
        steps: Measured steps; times are medians.
        warm_up: Steps before.
        optimizer: Name of a class of ``torch.optim`` whose step is measured, too; with its defaults.
        report: Called with steps done and in all.

    Raises:
        ConfigError: The device, the optimizer, or the batch does not suit the model.
    """
    place = _device(device)
    model.to(place).train()
    arguments, keywords = arguments_of(moved(batch, place))
    run = _Runner(model, arguments, keywords, place)
    layers, unused, shared = run.layers()
    stepper = _optimizer(optimizer, model) if optimizer else None
    measured: list[_Step] = []
    for number in range(warm_up + steps):
        step = run.step(layers, stepper)
        if number >= warm_up:
            measured.append(step)
        if report is not None:
            report(number + 1, warm_up + steps)
    return _summed(name, layers, measured, unused, shared, samples_of(arguments, keywords), place, stepper is not None)


def _summed(
    name: str,
    layers: _Layers,
    steps: Sequence[_Step],
    unused: list[str],
    shared: list[str],
    samples: int,
    place: torch.device,
    optimized: bool,
) -> Profile:
    def median(values: Iterator[int]) -> int:
        return round(statistics.median(values))

    made = []
    for index, (module, parameters) in enumerate(zip(layers.modules, layers.parameters, strict=True)):
        dtype, elements = _weight(layers.names[index], parameters)
        made.append(
            Layer(
                name=layers.names[index],
                kind=type(module).__name__,
                elements=elements,
                dtype=dtype,
                forward=Delay(_NANOSECOND * median(step.forward[index] for step in steps)),
                backward=Delay(_NANOSECOND * median(step.backward[index] for step in steps)),
            )
        )
    whole = [median(step.whole[part] for step in steps) for part in range(3)]
    threads = torch.get_num_threads()
    processor = f"{threads} thread{'s' if threads > 1 else ''} of the CPU" if place.type == "cpu" else str(place)
    note = f"measured on {processor} with torch {torch.__version__}, median of {len(steps)} steps"
    optimizer = Delay(_NANOSECOND * whole[2] if optimized else 0)
    workload = Workload(name=name, batch=samples, optimizer=optimizer, note=note, layers=tuple(made))
    return Profile(workload, unused, shared, whole[0] / 1e9, whole[1] / 1e9, whole[2] / 1e9)


def _weight(layer: str, parameters: Sequence[nn.Parameter]) -> tuple[str, int]:
    """Returns the type that most bytes of a layer have, and how many elements of it weigh as much as all."""
    sizes: dict[torch.dtype, int] = {}
    for parameter in parameters:
        if parameter.dtype not in DTYPES:
            raise ConfigError(layer, "dtype", f"{parameter.dtype}", ", ".join(DTYPES.values()))
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel() * parameter.element_size()
    most = max(sizes, key=lambda dtype: sizes[dtype])
    return DTYPES[most], -(-sum(sizes.values()) // most.itemsize)


class _Runner:
    """Runs steps of a model."""

    def __init__(self, model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], place: torch.device) -> None:
        self._model, self._arguments, self._keywords, self._place = model, arguments, keywords, place

    def layers(self) -> tuple[_Layers, list[str], list[str]]:
        """Runs one step to see which modules run, in which order, and which parameters get gradients."""
        order: dict[nn.Module, None] = {}
        names = {module: name for name, module in self._model.named_modules()}
        hooks = [module.register_forward_pre_hook(lambda module, _: order.setdefault(module, None)) for module in names]
        try:
            self._backward(self._forward())
        finally:
            for hook in hooks:
                hook.remove()
        order.setdefault(self._model, None)
        parents = {child: module for module in names for child in module.children()}
        turn = {module: number for number, module in enumerate(order)}
        holders: dict[nn.Parameter, list[nn.Module]] = {}
        called: dict[nn.Parameter, str] = {}
        for module, prefix in names.items():
            for own, parameter in module.named_parameters(recurse=False):
                holders.setdefault(parameter, []).append(module)
                called.setdefault(parameter, f"{prefix}.{own}" if prefix else own)
        owned: dict[nn.Module, list[nn.Parameter]] = {}
        unused = []
        for parameter, modules in holders.items():
            if parameter.grad is None:
                unused.append(called[parameter])
                continue
            # Some modules use parameters of others without calling them; these count for whoever did run.
            ran = [_running(module, turn, parents) for module in modules]
            owned.setdefault(min(ran, key=lambda module: turn[module]), []).append(parameter)
        if not owned:
            raise ConfigError("the model", "parameters", "none of them gets a gradient", "a model with parameters to train")
        layers = _Layers()
        for module in sorted(owned, key=lambda module: turn[module]):
            layers.names.append("".join(names[module].split()) or type(self._model).__name__)
            layers.modules.append(module)
            layers.parameters.append(owned[module])
        return layers, unused, [called[parameter] for parameter, modules in holders.items() if len(modules) > 1]

    def step(self, layers: _Layers, optimizer: torch.optim.Optimizer | None) -> _Step:
        """Runs and measures one step."""
        clock = _Clock(self._place)
        begun: list[tuple[int, int]] = []
        ready: dict[int, int] = {}
        with _hooks(layers, clock, begun, ready):
            start = clock.mark()
            output = self._forward()
            middle = clock.mark()
            self._backward(output)
            end = clock.mark()
        stepped = end
        if optimizer is not None:
            optimizer.step()
            stepped = clock.mark()
        times = clock.read()
        return _Step(
            _forward_times(len(layers.names), [(layer, times[mark]) for layer, mark in begun], times[start], times[middle]),
            _backward_times(len(layers.names), {layer: times[mark] for layer, mark in ready.items()}, times[middle], times[end]),
            (times[middle] - times[start], times[end] - times[middle], times[stepped] - times[end]),
        )

    def _forward(self) -> Tensor:
        self._model.zero_grad(set_to_none=True)
        try:
            output = self._model(*self._arguments, **self._keywords)
        except Exception as error:
            shapes = ", ".join(described(value) for value in (*self._arguments, *self._keywords.values())) or "no arguments"
            problem = f"the forward pass failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise ConfigError(type(self._model).__name__, f"input {shapes}", problem, HOW) from error
        return loss_of(self._model, output)

    def _backward(self, loss: Tensor) -> None:
        try:
            loss.backward()
        except Exception as error:
            problem = f"the backward pass failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise ConfigError(type(self._model).__name__, "model", problem, "a model that can be trained") from error


@contextmanager
def _hooks(layers: _Layers, clock: _Clock, begun: list[tuple[int, int]], ready: dict[int, int]) -> Iterator[None]:
    """Notes when layers begin, and when the last gradient of each is there, while the block runs."""
    hooks: list[Any] = []

    def watch(number: int, module: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        hooks.append(module.register_forward_pre_hook(lambda *_: begun.append((number, clock.mark()))))
        for parameter in parameters:
            hooks.append(parameter.register_post_accumulate_grad_hook(lambda _: ready.__setitem__(number, clock.mark())))

    for number, (module, parameters) in enumerate(zip(layers.modules, layers.parameters, strict=True)):
        watch(number, module, parameters)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _forward_times(count: int, begun: Sequence[tuple[int, int]], start: int, end: int) -> list[int]:
    """Shares the forward pass among the layers: each has it from when it begins to when the next one does."""
    times = [0] * count
    current, since = (begun[0][0] if begun else 0), start
    for layer, at in begun:
        times[current] += at - since
        current, since = layer, at
    times[current] += end - since
    return times


def _backward_times(count: int, ready: Mapping[int, int], start: int, end: int) -> list[int]:
    """Shares the backward pass: going back through the layers, each has it until its gradients are there.

    What comes after the last gradient counts for the first layer.
    """
    times = [0] * count
    latest = start
    for layer in reversed(range(count)):
        at = max(ready.get(layer, latest), latest)
        times[layer] = at - latest
        latest = at
    times[0] += max(end - latest, 0)
    return times


class _Clock:
    """Marks moments on a device, to be read when all is done."""

    def __init__(self, place: torch.device) -> None:
        self._accelerated = place.type == "cuda"
        self._marks: list[Any] = []
        if self._accelerated:
            torch.cuda.synchronize(place)
        self._place = place

    def mark(self) -> int:
        """Notes now, on the device's stream if it has one; returns the number of the mark."""
        if self._accelerated:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter_ns())
        return len(self._marks) - 1

    def read(self) -> list[int]:
        """Returns nanoseconds of all marks."""
        if not self._accelerated:
            return list(self._marks)
        torch.cuda.synchronize(self._place)
        return [round(1e6 * self._marks[0].elapsed_time(event)) for event in self._marks]


def _running(module: nn.Module, turn: Mapping[nn.Module, int], parents: Mapping[nn.Module, nn.Module]) -> nn.Module:
    while module not in turn:
        module = parents[module]
    return module


def _device(name: str) -> torch.device:
    try:
        place = torch.device(name)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError("--device", name, f"cannot be used: {str(error).splitlines()[0]}", "cpu, cuda, cuda:1, ...") from None
    return place


def _optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    kind = getattr(torch.optim, name, None)
    if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer) or kind is torch.optim.Optimizer:
        raise ConfigError("--optimizer", name, "is no class of torch.optim", "SGD, Adam, AdamW, ...")
    try:
        return kind(model.parameters())  # type: ignore[call-arg]
    except TypeError as error:
        raise ConfigError("--optimizer", name, f"needs more than parameters: {error}", "SGD, Adam, AdamW, ...") from None


__all__ = ["Profile", "profile"]
