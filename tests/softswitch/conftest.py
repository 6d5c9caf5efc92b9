"""Lets the tests of the switch share modules."""

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture(params=["softswitch", "bmv2"])
def targets(request):
    """Makes switches of either kind with one of the programs beside the tests: ``targets("tunnel")``; see ``targets.Target``."""
    from tests.softswitch.targets import opened

    with opened(request.param) as make:
        yield lambda program, **options: make(Path(__file__).parent / "programs" / f"{program}.json", **options)
