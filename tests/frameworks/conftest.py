"""Ranks for tests of adapters: processes that import their framework by themselves."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])
# Ranks find the functions they are to run by the name of the test module.
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
