"""Ranks for tests are forked from a process that has imported torch but never used it: see tests/torch/ranks.py."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])
# Ranks find the functions they are to run by the name of the test module.
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
