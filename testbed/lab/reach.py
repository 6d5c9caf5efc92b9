"""Whether every host reaches the next one: a network that does not carry packets is not worth an experiment."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from testbed.lab import namespaces
from testbed.lab.errors import LabError

if TYPE_CHECKING:
    from testbed.lab.network import Lab

_PATIENCE_S: Final = 10.0
_FIRST_WAIT_S: Final = 0.2
"""How long the first answer is waited for; it doubles, for networks with long delays or losses."""


def wait_until_reachable(lab: Lab) -> None:
    """Lets every host ping the next one, all at once, until all have been answered.

    Raises:
        LabError: One is not, for ten seconds.
    """
    names = list(lab.hosts)
    waiting = {(name, names[(index + 1) % len(names)]) for index, name in enumerate(names)} if len(names) > 1 else set()
    deadline = time.monotonic() + _PATIENCE_S
    wait_s = _FIRST_WAIT_S
    while waiting:
        question = ["ping", "-q", "-n", "-c", "1", "-W", f"{wait_s:g}"]
        wait_s = min(2 * wait_s, _PATIENCE_S)
        started = {
            pair: namespaces.start(namespaces.inside(lab.hosts[pair[0]].pid, [*question, lab.hosts[pair[1]].address]))
            for pair in sorted(waiting)
        }
        for pair, process in started.items():
            process.communicate()
            if process.returncode == 0:
                waiting.discard(pair)
        if waiting and time.monotonic() > deadline:
            lab.check()
            file = lab.run_dir / "unreachable.json"
            file.write_text(json.dumps(lab.statistics(), indent=1))
            source, target = min(waiting)
            others = f", nor do {len(waiting) - 1} other hosts reach the next one" if len(waiting) > 1 else ""
            raise LabError(f"{source} does not reach {target}{others}; what was counted meanwhile is in {file}")


__all__ = ["wait_until_reachable"]
