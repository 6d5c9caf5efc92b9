"""Benches with the program and some entries: on the softswitch, and on BMv2 where it is installed."""

import pytest

from tests.p4 import bench as benches
from tests.p4 import frames
from tests.softswitch.targets import opened


@pytest.fixture(params=benches.KINDS)
def bench(request):
    with opened(request.param) as make:
        yield benches.Bench(make(benches.PROGRAM))


@pytest.fixture
def bridged(bench):
    return benches.bridge(bench)


@pytest.fixture
def routed(bench):
    return benches.route(bench)


@pytest.fixture
def spread(bench):
    return benches.spread(bench)


# For properties, whose many examples share a softswitch.


@pytest.fixture(scope="module")
def bridged_once():
    return benches.bridge(benches.softswitch_bench())


@pytest.fixture(scope="module")
def routed_once():
    return benches.route(benches.softswitch_bench())


@pytest.fixture(scope="module")
def marking_once():
    bench = benches.bridge(benches.softswitch_bench())
    match = {"port": None, "queue": 0, "protected": 1}
    bench.entry("limits", match, "drop_from", priority=1, drop_at=benches.NEVER, mark_at=0)
    return bench


@pytest.fixture(scope="module")
def trimming_once():
    bench = benches.bridge(benches.softswitch_bench())
    bench.treat()
    match = {"port": None, "queue": 3, "protected": 0}
    bench.entry("limits", match, "trim_from", priority=1, trim_at=0, mark_at=benches.NEVER, dscp=frames.POLICY.classes.dscp[7])
    return bench
