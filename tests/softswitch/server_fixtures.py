"""Fixtures of the server's tests: a switch that runs ``control.p4``, and its primary."""

import pytest

from softswitch.server.testing import running_switches
from tests.softswitch.server_lab import Controller


@pytest.fixture
def switch():
    with running_switches() as (switch,):
        yield switch


@pytest.fixture
def primary(switch):
    with Controller(switch.address) as controller:
        controller.bid(1)
        controller.set_pipeline()
        yield controller


@pytest.fixture(scope="module")
def shared_primary():
    """For tests that leave no trace, or do not care about one."""
    with running_switches() as (switch,), Controller(switch.address) as controller:
        controller.bid(1)
        controller.set_pipeline()
        yield controller


@pytest.fixture(scope="module")
def names(shared_primary):
    return shared_primary.names
