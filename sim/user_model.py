"""A user's own model: finding it, making input for it, and making a loss of what it gives."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from dlcp.errors import ConfigError

HOW: Final = "--input SHAPE such as 8x3x224x224, int64:8x128 for indices, once for each argument; or --batch FUNCTION"
"""How to give a model its input, for errors."""


def find_model(name: str) -> nn.Module:
    """Imports ``MODULE:MODEL``: an instance, a class or a function without arguments.

    Modules are looked for in the current folder, too, as ``python -m`` does.

    Raises:
        ConfigError: There is no such module or attribute, it fails, or what it gives is no ``torch.nn.Module``.
    """
    found = find(name, "MODULE:MODEL")
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise ConfigError(
                name, "MODEL", f"is a {type(found).__name__}", "a torch.nn.Module, its class, or a function that returns one"
            )
        try:
            found = found()
        except Exception as error:
            problem = f"calling it without arguments failed: {type(error).__name__}: {error}"
            raise ConfigError(name, "MODEL", problem, "an instance, or what needs no arguments") from error
    if not isinstance(found, nn.Module):
        raise ConfigError(name, "MODEL", f"gives a {type(found).__name__}", "a torch.nn.Module")
    return found


def find(name: str, form: str) -> Any:
    """Imports what ``MODULE:ATTRIBUTE`` names, the attribute with points if need be; raises ConfigError."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise ConfigError(
            name, "(name)", "has no module, or nothing after the colon", f"{form}, such as examples.models:DigitsNet"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name is not None and module.startswith(error.name)
        problem = f"there is no module {module}" if missing else f"importing it failed: {type(error).__name__}: {error}"
        raise ConfigError(name, "MODULE", problem, "a module of Python, installed or in the current folder") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                name, attribute, f"{getattr(found, '__name__', found)} has no {part!r}", "a name that stands in the module"
            )
        found = getattr(found, part)
    return found


def parse_input(text: str) -> Tensor:
    """Makes a tensor of ``[DTYPE:]SHAPE``, the shape with ``x`` or commas: normal numbers, or zeros for whole ones.

    Raises:
        ConfigError: It is not that.
    """
    kind, colon, shape = text.rpartition(":")
    dtype = getattr(torch, kind, None) if colon else torch.float32
    words = shape.replace(",", "x").split("x")
    if not isinstance(dtype, torch.dtype):
        raise ConfigError("--input", text, f"torch has no type {kind!r}", "a type such as float32, bfloat16, int64")
    if not all(word.strip().isdecimal() and 0 < len(word.strip()) < 10 for word in words):
        raise ConfigError("--input", text, "is no shape", "[TYPE:]SHAPE such as 8x3x224x224, or int64:8x128")
    lengths = [int(word) for word in words]
    total = 1
    for length in lengths:
        total *= length
    if not 0 < total <= 1 << 33:
        raise ConfigError("--input", text, f"{total} elements", f"1 to {1 << 33}")
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(lengths).to(dtype)
    return torch.zeros(lengths, dtype=dtype)


def arguments_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns positional and named arguments: those of a tuple or a list, of a mapping, or what there is."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, tuple | list) else ((batch,), {})


def moved(value: Any, place: torch.device) -> Any:
    """Returns tensors on a device, in the tuples, lists and mappings that they come in."""
    if isinstance(value, Tensor):
        return value.to(place)
    if isinstance(value, Mapping):
        return {key: moved(inner, place) for key, inner in value.items()}
    return type(value)(moved(inner, place) for inner in value) if type(value) in (tuple, list) else value


def tensors(value: Any) -> Iterator[Tensor]:
    """Yields the tensors in tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from tensors(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from tensors(inner)


def loss_of(model: nn.Module, output: Any) -> Tensor:
    """Returns the sum of all that the output depends on parameters with, or its ``loss`` if it has one."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    found = [value for value in tensors(own if isinstance(own, Tensor) else output) if value.requires_grad]
    if not found:
        problem = f"gives {described(output)}, of which nothing has a gradient"
        raise ConfigError(
            type(model).__name__, "output", problem, "tensors that depend on the parameters, in lists or mappings if need be"
        )
    return torch.stack([value.float().sum() for value in found]).sum()


def samples_of(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> int:
    """Returns the first length of the first tensor."""
    first = next(tensors([*arguments, *keywords.values()]), None)
    return max(first.shape[0], 1) if first is not None and first.dim() else 1


def described(value: Any) -> str:
    """Returns type and shape of a tensor, as on the command line; of anything else its class."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}:{'x'.join(map(str, value.shape)) or 'scalar'}"
    return type(value).__name__


__all__ = [
    "HOW",
    "arguments_of",
    "described",
    "find",
    "find_model",
    "loss_of",
    "moved",
    "parse_input",
    "samples_of",
    "tensors",
]
