"""Settings shared by all tests."""

import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# A shell that runs the tests in the background lets them, and their children, ignore Ctrl-C, which then cannot be tested.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Deadlines measure the machine, not the code.  On CI examples are the same in every run, so that a red run can be repeated.
settings.register_profile("dlcp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("dlcp"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dlcp")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root"))


@pytest.fixture(scope="session")
def project() -> Path:
    """Root of the source tree."""
    return ROOT
