"""A virtual environment with p4runtime-shell: it needs a protobuf older than 3.21, which nothing else here can live with.

Made once under the user's cache directory, in some 20 seconds; where it cannot be made, a test that needs it is skipped with the
reason.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

REQUIREMENT = "p4runtime-shell==0.0.6"


def cache_directory():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dlcp-tests"


def shell_python():
    """Returns the environment's interpreter, or skips the test."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_directory() / f"p4runtime-shell-{version}"
    python = folder / "bin" / "python"
    done = folder / "complete"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            # Other test processes wait for the one that makes it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                _run(sys.executable, "-m", "venv", str(folder))
                _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", REQUIREMENT)
                done.write_text(REQUIREMENT)
    except (OSError, RuntimeError) as error:
        pytest.skip(f"no environment with {REQUIREMENT}: {error}")
    return python


def _run(*command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    if result.returncode:
        last = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()[-1]
        raise RuntimeError(f"{' '.join(command[1:5])}: {last}")
