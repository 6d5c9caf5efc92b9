"""How busy the machine is, from the kernel's own counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.lab.load import Ticks, share, ticks

COUNTS = st.lists(st.integers(0, 10**12), min_size=8, max_size=10)


@given(COUNTS, COUNTS)
def test_what_is_neither_idle_nor_waiting_for_disks_is_busy(before, more):
    after = [old + new for old, new in zip(before, [*more, 0, 0], strict=False)]
    first, second = (ticks(f"cpu  {' '.join(map(str, counts))}\ncpu0 1 2 3\n") for counts in (before, after))
    added = more[: min(len(more), 8)]
    idle = added[3] + added[4]
    if sum(added):
        assert share(first, second) == pytest.approx((sum(added) - idle) / sum(added))
    else:
        assert share(first, second) is None
    assert share(second, second) is None


def test_counts_that_go_backwards_stay_shares():
    assert share(Ticks(9, 10), Ticks(5, 20)) == 0.0 and share(Ticks(0, 10), Ticks(50, 20)) == 1.0


def test_this_machine():
    found = ticks()
    assert 0 < found.busy < found.total


@pytest.mark.parametrize("text", ["", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3", "cpu a b c d e f g h"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"proc|invalid"):
        ticks(text)
