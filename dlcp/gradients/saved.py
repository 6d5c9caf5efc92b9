"""An averager's part of a checkpoint: plain types and numpy arrays, and a file of them that nothing is unpickled from."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dlcp.collectives.residual import ResidualStore
from dlcp.errors import ConfigError

_VERSION = 1
_META = "state"


class Saved(NamedTuple):
    """What a checkpoint holds.

    Attributes:
        residuals: What is owed.
        passes: Steps so far.
    """

    residuals: ResidualStore
    passes: int


def pack(residuals: ResidualStore, passes: int) -> dict[str, Any]:
    """Returns the contents as nested dictionaries of numbers, strings and arrays."""
    return {"version": _VERSION, "residuals": residuals.state_dict(), "passes": passes}


def unpack(state: Mapping[str, Any], source: str, sizes: Mapping[str, int]) -> Saved:
    """Reads what :func:`pack` has made.

    Args:
        state: Not trusted.
        source: Where it came from, for errors.
        sizes: Elements of each leaf.

    Raises:
        ConfigError: It is malformed, or holds residuals of leaves that there are not.
    """
    if not isinstance(state, Mapping) or state.get("version") != _VERSION:
        raise ConfigError(source, "version", "not a state of this version", f"version {_VERSION}")
    passes, stored = state.get("passes"), state.get("residuals")
    if not isinstance(passes, int) or isinstance(passes, bool) or passes < 0:
        raise ConfigError(source, "passes", f"{passes!r}", "a count")
    if not isinstance(stored, Mapping):
        raise ConfigError(source, "residuals", f"a {type(stored).__name__}", "a mapping")
    residuals = ResidualStore()
    residuals.load_state_dict(stored, f"{source}: residuals")
    for key in residuals.keys():
        entry, size = residuals.get(key), sizes.get(str(key))
        if entry is not None and entry.size != size:
            problem = "the model has no such parameter" if size is None else f"{entry.size} elements, the model has {size}"
            raise ConfigError(source, f"residuals.{key}", problem, "a checkpoint of the same model")
    return Saved(residuals, passes)


def write_file(path: Path, state: dict[str, Any]) -> None:
    """Writes a state as npz, under its name only when it is whole."""
    entries = state["residuals"]["entries"]
    names = list(entries)
    meta = {
        "version": state["version"],
        "passes": state["passes"],
        "residuals": {
            "version": state["residuals"]["version"],
            "nonfinite": state["residuals"]["nonfinite"],
            "names": names,
            "sizes": [entries[name]["size"] for name in names],
        },
    }
    arrays = {_META: np.array(json.dumps(meta))}
    for i, name in enumerate(names):
        arrays[f"ranges.{i}"] = entries[name]["ranges"]
        arrays[f"values.{i}"] = entries[name]["values"]
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    temporary.replace(path)


def read_file(path: Path) -> dict[str, Any]:
    """Reads what :func:`write_file` has written; what it says is still to be checked by :func:`unpack`.

    Raises:
        ConfigError: There is no such file, or it is something else.
    """
    try:
        with path.open("rb") as file:
            archive: Any = np.load(file, allow_pickle=False)
            if not hasattr(archive, "files"):
                raise ValueError("a single array")
            meta = json.loads(str(archive[_META]))
            residuals = meta["residuals"]
            entries = {
                str(name): {"size": size, "ranges": archive[f"ranges.{i}"], "values": archive[f"values.{i}"]}
                for i, (name, size) in enumerate(zip(residuals["names"], residuals["sizes"], strict=True))
            }
            stored = {"version": residuals["version"], "nonfinite": residuals["nonfinite"], "entries": entries}
            return {"version": meta["version"], "passes": meta["passes"], "residuals": stored}
    except OSError as error:
        raise ConfigError(path, "file", error.strerror or str(error), "what save() has written") from error
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(path, "file", f"not a saved state: {error}", "what save() has written") from error
