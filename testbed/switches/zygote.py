"""A process that has the switch's code loaded and forks a process for each switch: that takes milliseconds, not half a second.

It is a fork server (:mod:`testbed.lab.forks`) whose requests have, besides what all have, ``run`` (``softswitch`` or ``wires``)
and ``arguments``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Final

from testbed.lab.forks import Request, serve

NICENESS: Final = -10


def main() -> int:
    """Serves requests until the other side is gone."""
    return serve(_load, _switch, lambda request: str(request["name"]))


def _load() -> None:
    """Imports what every switch needs, and compiles nothing yet."""
    for name in ("softswitch.cli", "softswitch.pipeline", "softswitch.process", "testbed.switches.wires"):
        importlib.import_module(name)
    with contextlib.suppress(ModuleNotFoundError):  # wires need no P4Runtime
        importlib.import_module("softswitch.server")


def _switch(request: Request) -> int:
    # A switch does not compute with its hosts' processors: what it does should not wait for what they do.
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    if request["run"] == "wires":
        from testbed.switches import wires

        return wires.main(request["arguments"])
    from softswitch import cli

    return cli.main(request["arguments"])


if __name__ == "__main__":
    sys.exit(main())
