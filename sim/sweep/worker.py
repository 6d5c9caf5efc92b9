"""A worker of a sweep: reads tasks from standard input and writes outcomes to standard output, one line of JSON each."""

from __future__ import annotations

import json
import os
import sys

from sim.sweep.cells import run_cell


def main() -> int:
    """Works until standard input ends."""
    # What a library prints must not end up between the outcomes.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = sys.stderr
    for line in sys.stdin:
        answers.write(json.dumps(run_cell(json.loads(line))) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
