"""Events at set times: each does what it says, in order, and one that cannot be carried out does not stop the others."""

import threading
import time

import pytest

from dlcp.units import Delay, Rate
from testbed.events import Events, describe, lossy_links
from testbed.experiment import Event
from testbed.lab.errors import LabError


class FakeLab:
    """Notes what it is told."""

    def __init__(self):
        self.done = []
        self.changed = threading.Event()

    def __getattr__(self, name):
        def note(*arguments):
            self.done.append((name, *arguments))
            self.changed.set()
            if "broken" in arguments:
                raise LabError("it is broken")

        return note


def event(kind, at="0 ms", **how):
    return Event(at=Delay.parse(at), kind=kind, **how)


ALL = [
    event("rank-kill", "50 ms", rank=3),
    event("link-down", "10 ms", link=("a", "s")),
    event("link-loss", "20 ms", link=("b", "s"), loss=0.25),
    event("link-rate", "30 ms", link=("a", "s"), rate=Rate(5_000_000)),
    event("link-rate", "35 ms", link=("a", "s")),
    event("switch-restart", "40 ms", switch="s"),
    event("link-up", "15 ms", link=("a", "s")),
]


def finish(events, count):
    deadline = time.monotonic() + 20
    while len(events.happened) < count and time.monotonic() < deadline:
        time.sleep(0.005)
    return events.stop()


def test_events_happen_in_the_order_of_their_times():
    lab, killed = FakeLab(), []
    with Events(lab, ALL, killed.append) as events:
        begin = time.monotonic_ns()
        events.begin(begin)
        happened = finish(events, len(ALL))
    assert lab.done == [
        ("link_down", "a", "s"),
        ("link_up", "a", "s"),
        ("link_loss", "b", "s", 0.25),
        ("link_rate", "a", "s", 5_000_000),
        ("link_rate", "a", "s", None),
        ("restart_switch", "s"),
    ]
    assert killed == [3]
    assert [each.kind for each in happened] == [e.kind for e in sorted(ALL, key=lambda each: int(each.at))]
    for each, wanted in zip(happened, (0.010, 0.015, 0.020, 0.030, 0.035, 0.040, 0.050), strict=True):
        assert each.at_s >= wanted and each.took_s >= 0 and each.error == ""
    assert happened[2].to_dict()["what"] == "b - s loses 0.25"


def test_an_event_that_fails_is_noted_and_the_next_ones_happen():
    lab = FakeLab()

    def nobody(rank):
        raise LookupError(f"there is no rank {rank}")

    wanted = [
        event("switch-restart", switch="broken"),
        event("rank-kill", "1 ms", rank=9),
        event("switch-restart", "2 ms", switch="s"),
    ]
    with Events(lab, wanted, nobody) as events:
        events.begin()
        happened = finish(events, 3)
    assert [each.error for each in happened] == ["it is broken", "there is no rank 9", ""]


def test_nothing_happens_after_it_was_stopped_or_before_it_began():
    lab = FakeLab()
    with Events(lab, [event("switch-restart", switch="s")], print) as events:
        assert events.stop() == []
    later = [event("switch-restart", "0 ms", switch="s"), event("switch-restart", "3000 s", switch="s")]
    with Events(lab, later, print) as events:
        events.begin()
        lab.changed.wait(20)
        begin = time.monotonic()
        happened = finish(events, 1)
        assert time.monotonic() - begin < 20
    assert len(happened) == 1 and lab.done == [("restart_switch", "s")]
    with Events(lab, [], print) as events:
        events.begin()
        assert events.stop() == []


@pytest.mark.parametrize("kind", ["link-down", "link-up", "link-loss", "link-rate", "switch-restart", "rank-kill"])
def test_every_kind_has_words(kind):
    how = {"link": ("a", "s")} if kind.startswith("link") else {"switch": "s"} if kind == "switch-restart" else {"rank": 1}
    assert describe(event(kind, **how))


def test_links_that_will_change_are_known_beforehand():
    assert lossy_links(ALL) == (("a", "s"), ("b", "s"))
    assert lossy_links([event("link-rate", link=("a", "s"))]) == ()
