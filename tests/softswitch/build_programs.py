"""Compiles the programs of ``tests/softswitch/programs``: ``python -m tests.softswitch.build_programs`` (needs p4c-bm2-ss on
PATH).

What was compiled is committed, with a digest of the sources that it came from, so that nobody needs the compiler to run the
tests.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent / "programs"
DIGESTS = PROGRAMS / "digests.txt"
SHARED = "common.p4"


def names() -> list[str]:
    """The programs that share ``common.p4``."""
    return sorted(path.stem for path in PROGRAMS.glob("*.p4") if f'#include "{SHARED}"' in path.read_text())


def digest(name: str) -> str:
    """Of a program and what it includes."""
    return hashlib.sha256((PROGRAMS / f"{name}.p4").read_bytes() + (PROGRAMS / SHARED).read_bytes()).hexdigest()


def committed() -> dict[str, str]:
    return {name: value for value, name in (line.split() for line in DIGESTS.read_text().splitlines())}


def build(name: str, into: Path) -> tuple[Path, Path]:
    """Compiles a program; returns its JSON and P4Info.  Paths inside them are relative, so that they are the same everywhere."""
    results = into / f"{name}.json", into / f"{name}.p4info.txtpb"
    command = ["p4c-bm2-ss", "--std", "p4-16", f"{name}.p4", "-o", str(results[0]), "--p4runtime-files", str(results[1])]
    subprocess.run(command, cwd=PROGRAMS, check=True, timeout=120)
    return results


if __name__ == "__main__":
    for program in names():
        build(program, PROGRAMS)
    DIGESTS.write_text("".join(f"{digest(program)}  {program}\n" for program in names()))
