"""Starts a script as several ranks on this machine, where there is no torchrun.

python -m examples.launch --ranks 2 examples/train_numpy.py --epochs 3

Each process gets RANK, WORLD_SIZE and DLCP_STORE, a folder in which the ranks meet.  On several machines set these three by other
means (mpirun, srun, a shell), with a folder that all of them see.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GRACE_S = 30.0
"""How long the others have to end by themselves when one has failed: they are told by the transport, within its timeouts."""


def main(arguments: list[str] | None = None) -> int:
    """Runs all ranks; returns 0, or the exit code of the first that failed."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.launch",
        description="Start a script as several ranks on this machine.",
        epilog="example: python -m examples.launch --ranks 2 examples/train_jax.py --epochs 3",
    )
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("script", type=Path, help="a Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(arguments)
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: at least 1")
    if not options.script.is_file():
        parser.error(f"{options.script}: no such file")
    with tempfile.TemporaryDirectory(prefix="dlcp-ranks-") as folder:
        return _run(options.ranks, [sys.executable, str(options.script), *options.arguments], folder)


def _run(ranks: int, command: list[str], folder: str) -> int:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    common = {**os.environ, "PYTHONPATH": path, "WORLD_SIZE": str(ranks), "DLCP_STORE": folder}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            processes.append(subprocess.Popen(command, env={**common, "RANK": str(rank)}))
        first, end = 0, float("inf")
        while any(process.poll() is None for process in processes):
            failed = [process.returncode for process in processes if process.returncode]
            if failed and not first:
                first, end = failed[0], time.monotonic() + GRACE_S
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        return first or next((process.returncode for process in processes if process.returncode), 0)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


if __name__ == "__main__":
    sys.exit(main())
