"""A state's part of a checkpoint, in plain types and tensors: nothing in it needs pickle to be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from dlcp.collectives.residual import ResidualStore
from dlcp.errors import ConfigError
from dlcp.torch.adaptive import AdaptiveBound

_VERSION = 1


class Checkpoint(NamedTuple):
    """What a checkpoint holds.

    Attributes:
        residuals: What is owed.
        passes: Backward passes so far.
        order: The recorded order of execution, which decides the classes, or None.
        adapted: State of the adaptive bound, not yet checked, or None.
    """

    residuals: ResidualStore
    passes: int
    order: list[str] | None
    adapted: dict[str, Any] | None


def pack_state(
    residuals: ResidualStore, passes: int, order: list[str] | None, adapted: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the contents as nested dictionaries of numbers, strings and tensors."""
    stored = residuals.state_dict()
    for entry in stored["entries"].values():
        entry["ranges"] = torch.from_numpy(entry["ranges"])
        entry["values"] = torch.from_numpy(entry["values"])
    packed = {"version": _VERSION, "residuals": stored, "passes": passes, "order": order}
    return packed if adapted is None else {**packed, "adapted": adapted}


def unpack_state(state: Mapping[str, Any], source: str, sizes: Mapping[str, int] | None) -> Checkpoint:
    """Reads what :func:`pack_state` has made.

    Args:
        state: Not trusted.
        source: Where it came from, for errors.
        sizes: Elements of each parameter of the model, if the model is known.

    Raises:
        ConfigError: It is malformed, or holds residuals of parameters that the model does not have.
    """
    if not isinstance(state, Mapping) or state.get("version") != _VERSION:
        raise ConfigError(source, "version", "not a DLCPState of this version", f"version {_VERSION}")
    passes, order = state.get("passes"), state.get("order")
    if not isinstance(passes, int) or isinstance(passes, bool) or passes < 0:
        raise ConfigError(source, "passes", f"{passes!r}", "a count")
    if order is not None and not (isinstance(order, list) and all(isinstance(name, str) for name in order)):
        raise ConfigError(source, "order", f"a {type(order).__name__}", "a list of parameter names, or none")
    adapted = state.get("adapted")  # checkpoints of before have none
    if adapted is not None:
        AdaptiveBound(1.0, 1, 1).load_state_dict(adapted, f"{source}: adapted")
    residuals = ResidualStore()
    residuals.load_state_dict(_arrays(state.get("residuals")), f"{source}: residuals")
    for key in residuals.keys():
        entry = residuals.get(key)
        size = None if sizes is None else sizes.get(str(key))
        if sizes is not None and entry is not None and size != entry.size:
            problem = "the model has no such parameter" if size is None else f"{entry.size} elements, the model has {size}"
            raise ConfigError(source, f"residuals.{key}", problem, "a checkpoint of the same model")
    return Checkpoint(residuals, passes, order, adapted)


def _arrays(state: Any) -> Any:
    """Turns tensors into arrays where they are expected; anything else is left for the store to refuse."""
    if not isinstance(state, Mapping) or not isinstance(state.get("entries"), Mapping):
        return state
    entries = {
        key: {part: _array(value) for part, value in entry.items()} if isinstance(entry, Mapping) else entry
        for key, entry in state["entries"].items()
    }
    return {**state, "entries": entries}


def _array(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.dtype != torch.bfloat16:
        array: np.ndarray[Any, Any] = value.detach().cpu().numpy()
        return array
    return value
