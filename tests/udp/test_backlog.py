"""The queue between socket and wire: as long as the link needs, and no longer."""

import socket

from hypothesis import given
from hypothesis import strategies as st

from dlcp.udp.backlog import SMALLEST_BYTES, TARGET_NS, Backlog, adjusted

MOST = 4 << 20


@given(
    limit=st.integers(SMALLEST_BYTES, MOST), left=st.integers(0, MOST), elapsed=st.integers(1, 10**10), most=st.integers(1, MOST)
)
def test_a_step_is_a_factor_of_two_at_most_and_stays_within_bounds(limit, left, elapsed, most):
    after = adjusted(limit, left, elapsed, most)
    assert min(SMALLEST_BYTES, most) <= after <= most
    if limit <= most:
        assert min(limit // 2, most) <= after <= max(2 * limit, SMALLEST_BYTES)


@given(limit=st.integers(SMALLEST_BYTES, MOST // 2), elapsed=st.integers(1, 10**10))
def test_a_queue_that_ran_dry_was_too_short(limit, elapsed):
    assert adjusted(limit, 0, elapsed, MOST) == 2 * limit


@given(rate=st.floats(1e6, 1e11), limit=st.integers(SMALLEST_BYTES, MOST))
def test_it_settles_at_what_the_link_drains_in_the_target(rate, limit):
    """``rate`` in bits a second; the queue is looked at when a quarter of it has drained."""
    for _ in range(20):
        elapsed = max(int(limit / 4 * 8e9 / rate), 1)
        limit = adjusted(limit, limit - limit // 4, elapsed, MOST)
    wanted = min(max(rate / 8 * TARGET_NS / 1e9, SMALLEST_BYTES), MOST)
    assert wanted * 0.8 <= limit <= wanted * 1.25


def test_the_kernel_is_told():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
        backlog = Backlog(sock, 100_000)
        assert backlog.limit == 200_000
        backlog.refused(1_000)
        backlog.refused(500_000)
        backlog.taken(10_001_000)
        # Nothing is queued in fact, so it could not become longer.
        assert backlog.limit == sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 200_000
        backlog.limit = 70_000
        backlog.refused(0)
        backlog.taken(1_000_000)
        assert backlog.limit == sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 140_000
