"""p4runtime-shell, in a virtual environment of its own: it needs an old protobuf that nothing else here can live with."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dlcp.errors import DLCPError
from dlcp.fabric.endpoints import Target

REQUIREMENTS: Final = ("p4runtime-shell==0.0.6", "protobuf<3.21", "setuptools<81")
_VERSION: Final = 1
"""Raised when the requirements change, so that an older environment is not used."""


class ShellError(DLCPError):
    """p4runtime-shell could not be installed."""


def environment(variables: Mapping[str, str]) -> Path:
    """Returns where the virtual environment is kept."""
    cache = variables.get("XDG_CACHE_HOME") or str(Path(variables.get("HOME", "/root")) / ".cache")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Path(cache) / "dlcp" / f"p4runtime-shell-{_VERSION}-python{version}"


def prepare(place: Path) -> Path:
    """Makes the virtual environment, unless it is there, and returns its interpreter.

    Raises:
        ShellError: pip could not install what is needed.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another terminal may be making it
            return _made(place)
    except OSError as error:
        raise ShellError(f"{place} cannot be written: {error.strerror}; set XDG_CACHE_HOME to a place that can") from None


def _made(place: Path) -> Path:
    python = place / "bin" / "python"
    done = place / ".complete"
    if done.is_file() and python.exists():
        return python
    shutil.rmtree(place, ignore_errors=True)
    commands = (
        [sys.executable, "-m", "venv", str(place)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS],
    )
    for command in commands:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            shutil.rmtree(place, ignore_errors=True)
            lines = (made.stderr or made.stdout).strip().splitlines()
            reason = next((line for line in reversed(lines) if "ERROR" in line or "Error" in line), lines[-1] if lines else "")
            raise ShellError(f"p4runtime-shell could not be installed into {place}: {reason}; is the package index within reach?")
    done.touch()
    return python


def arguments(target: Target, files: Sequence[Path] | None, election: int) -> list[str]:
    """Returns the command line of p4runtime-shell.

    Args:
        target: The switch.
        files: P4Info and configuration to set, which empties the switch; None takes the program that it runs.
        election: Election id.
    """
    words = ["-m", "p4runtime_sh", "--grpc-addr", target.address, "--device-id", str(target.device_id)]
    words += ["--election-id", f"{election >> 64},{election & (1 << 64) - 1}"]
    if target.tls is not None:
        words.append("--ssl")
        for option, file in (("--cacert", target.tls.ca), ("--cert", target.tls.certificate), ("--private-key", target.tls.key)):
            if file is not None:
                words += [option, str(file)]
    if files is not None:
        words += ["--config", ",".join(map(str, files))]
    return words


def run(python: Path, words: Sequence[str]) -> int:
    """Runs it in this terminal and returns its exit code."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run([str(python), *words], check=False, env=variables).returncode


__all__ = ["REQUIREMENTS", "ShellError", "arguments", "environment", "prepare", "run"]
