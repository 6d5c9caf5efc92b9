"""What reports are put together from: escaping, numbers, axes, and the check of the document."""

import copy
import json
import math
import statistics
from fractions import Fraction
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlcp.report.axes import Axis, Scale, time_axis
from dlcp.report.grids import shade
from dlcp.report.markup import coordinate, element, render
from dlcp.report.numbers import NOTHING, Spread, at, between, confidence, duration, number, quantile, ratio, seconds, smoothed
from testbed.report.document import checked
from testbed.report.learning import over_runs
from tests.testbed.html_tree import parse

SAMPLE = Path(__file__).parent / "data" / "sample"
finite = st.floats(-1e12, 1e12, allow_nan=False)
positive = st.floats(1e-6, 1e6)


@given(st.one_of(st.text(), st.text("<>&\"'=/ ax-!")))
@example("\"' onload=x><script>&amp;</p>")
def test_text_stays_text(text):
    page = parse(element("p", element("b", text), title=text))
    (bold,) = page.all("b")
    assert [node.tag for node in page.children] == ["p"]
    assert all(isinstance(child, str) for child in bold.children)
    assert bold.text == page.children[0]["title"] == unescape(render(text))
    assert all(c.isprintable() or c in "\n\t\xa0\ufffd" for c in bold.text)


def test_harmless_text_is_kept_as_it_is():
    assert unescape(render("größe <1 & \"2\" 'x' 漢字 \xa0")) == "größe <1 & \"2\" 'x' 漢字 \xa0"


@pytest.mark.parametrize("text", ["\0", "\x1b[31m", "\u202eevil", "\ud800"])
def test_characters_that_no_page_may_hold_are_replaced(text):
    assert "\ufffd" in render(text)
    render(text).encode()


@given(st.floats(-1e7, 1e7))
def test_coordinates_are_plain_numbers(value):
    assert abs(float(coordinate(value)) - value) <= 0.00501
    assert "e" not in coordinate(value) and coordinate(value) != "-0"


@given(st.lists(st.one_of(st.none(), finite), max_size=20))
def test_spread_is_that_of_the_values_that_are_there(values):
    known = [value for value in values if value is not None]
    spread = Spread.of(values)
    if not known:
        assert spread is None
        return
    assert spread == Spread(statistics.median(known), min(known), max(known), len(known))


@given(st.lists(finite, min_size=1, max_size=50), st.floats(0, 1))
def test_quantile_is_that_of_numpy(values, share):
    assert quantile(sorted(values), share) == pytest.approx(np.quantile(values, share), rel=1e-9, abs=1e-3)


@given(st.integers(1, 12))
def test_confidence_is_the_share_of_ranges_that_hold_the_median(runs):
    # Every run is above or below the median with equal probability: count the outcomes with both.
    outcomes = [bin(outcome).count("1") for outcome in range(2**runs)]
    assert confidence(runs) == sum(0 < above < runs for above in outcomes) / 2**runs


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=20, unique_by=lambda pair: pair[0]), finite)
@example([(2.2250738585072014e-308, 5.0), (-2.225073858507e-311, 0.0)], 0.0)
def test_lines_are_followed(points, x):
    points.sort()
    found = at(points, x)
    if not points[0][0] <= x <= points[-1][0]:
        assert found is None
    else:
        # In fractions: numpy's slope between two points overflows where they are all but above each other.
        after = next(place for place, (a, _) in enumerate(points) if a >= x)
        (a, b), (c, d) = points[max(after - 1, 0)], points[after]
        share = (Fraction(x) - Fraction(a)) / (Fraction(c) - Fraction(a)) if a != c else 0
        expected = float(Fraction(b) + share * (Fraction(d) - Fraction(b)))
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-3 * max(1, max(abs(b) for _, b in points)))


@given(st.lists(finite, min_size=1, max_size=30), st.integers(0, 5))
def test_smoothing_takes_medians_of_neighbours(values, half):
    points = list(enumerate(values))
    for index, (x, y) in enumerate(smoothed(points, 2 * half + 1)):
        assert x == index and y == statistics.median(values[max(0, index - half) : index + half + 1])


@given(positive, st.integers(2, 4))
def test_numbers_keep_their_digits(value, digits):
    assert float(number(value, digits).replace(",", "")) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))


def test_units_suit():
    words = [seconds(value).replace("\xa0", " ") for value in (0, 12.345, 0.0123, 0.0000042, None, math.nan)]
    assert words == ["0 s", "12.3 s", "12.3 ms", "4.20 µs", NOTHING, NOTHING]
    assert ratio(1.8449).replace("\xa0", " ") == "1.84 \N{MULTIPLICATION SIGN}"
    assert [duration(value).replace("\xa0", " ") for value in (119, 754.6, 7384)] == ["119 s", "12 min 35 s", "2 h 3 min"]


def test_ranges_say_a_common_unit_once():
    assert between(seconds(1.0), seconds(2.5)) == "1.00 … 2.50\xa0s"
    assert between(seconds(0.9), seconds(2.5)) == "900\xa0ms … 2.50\xa0s"
    assert between("1", "2") == "1 … 2"


@given(st.lists(positive, min_size=1, max_size=30), st.booleans(), st.booleans(), st.integers(3, 12))
def test_scales_show_all_values_and_ticks_stand_on_them(values, log, zero, wanted):
    scale = Scale.over(values, 50.0, 450.0, log=log, zero=zero)
    places = [scale(value) for value in sorted(values)]
    assert places == sorted(places) and 50 <= places[0] and places[-1] <= 450
    ticks = scale.ticks(wanted)
    assert ticks == sorted(set(ticks))
    assert all(scale.low * (1 - 1e-9) - 1e-9 <= tick <= scale.high * (1 + 1e-9) + 1e-9 for tick in ticks)
    assert len(ticks) <= 2 * wanted + 2
    if not log:
        assert ticks
    if zero and not log:
        assert scale.low == 0


@pytest.mark.parametrize("values", [[], [3.0], [0.0, 0.0], [5.0, 5.0]])
def test_scales_of_little_are_scales(values):
    for log in (False, True):
        scale = Scale.over(values, 0, 100, log=log)
        assert scale.low < scale.high and scale.ticks()


def test_ticks_of_one_axis_have_labels_of_their_own():
    for values in ([0, 1], [0, 0.003], [12.5, 13], [0, 123456], [0.88, 0.91]):
        scale = Scale.over(values, 0, 500)
        for axis in (time_axis("t", values[1]), Axis("a", percent=True)):
            labels = [axis.text(tick) for tick in scale.ticks()]
            assert len(set(labels)) == len(labels)


def test_shades_climb():
    shades = [shade(value / 100, 1.0) for value in range(101)]
    assert shades[0] == "" and shades[-1] == "h7"
    assert shades[1:] == sorted(shades[1:]) and len(set(shades)) == 8
    assert shade(None, 1.0) == shade(1.0, 0.0) == "" and shade(5.0, 1.0) == "h7"


@given(st.lists(st.lists(st.floats(0.1, 5), min_size=1, max_size=8), min_size=1, max_size=5))
def test_bands_hold_their_median_and_ascend(steps):
    lines = [[(sum(run[: index + 1]), step) for index, step in enumerate(run)] for run in steps]
    median, band = over_runs(lines)
    xs = [x for x, _ in median]
    assert xs == sorted(xs)
    if len(lines) > 1:
        assert [x for x, _, _ in band] == xs
        assert all(low <= y <= high for (_, y), (_, low, high) in zip(median, band, strict=True))
    else:
        assert median == lines[0] and band == []


# The document


@pytest.fixture(scope="module")
def document():
    return json.loads((SAMPLE / "results.json").read_text())


def test_a_sound_document_is_kept_as_it_is(document):
    before = copy.deepcopy(document)
    results, problems = checked(document)
    assert problems == [] and results == document == before


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda d: d.pop("goal"), "goal: missing"),
        (lambda d: d.update(goal="x"), "goal: text in place of a number"),
        (lambda d: d.update(goal=math.nan), "goal: nan is not finite"),
        (lambda d: d.update(complete=1), "complete: a number in place of true or false"),
        (lambda d: d.update(planned=True), "planned: a flag in place of a whole number"),
        (lambda d: d.update(runs={}), "runs: a table in place of a list"),
        (lambda d: d.update(hosts={"h0": [0, "1"]}), "hosts.h0[1]: text in place of a whole number"),
        (lambda d: d["runs"][1].pop("steps"), "runs[1].steps: missing"),
        (lambda d: d["runs"].append(None), "runs[4]: null in place of a table"),
        (lambda d: d["runs"][0].update(outcome="great"), "runs[0].outcome: 'great' is none of ok, failed"),
        (lambda d: d["runs"][0]["losses"].append([1.0, "x"]), "runs[0].losses["),
        (lambda d: d["runs"][0].update(candidate="nobody"), "runs: 'nobody' is no candidate"),
        (lambda d: d["candidates"][0].update(summary=None), "candidates[0].summary: null in place of a table"),
    ],
)
def test_what_does_not_fit_is_named_and_left_out(document, spoil, expected):
    spoiled = copy.deepcopy(document)
    spoil(spoiled)
    results, problems = checked(spoiled)
    assert any(problem.startswith(expected) for problem in problems), problems
    again, rest = checked(results)
    assert rest == [] and again == results


def test_an_empty_document_becomes_one_that_says_nothing():
    results, problems = checked({})
    assert results["runs"] == [] and results["goal"] == 0.0 and results["best_baseline"] is None
    assert len(problems) == len(results)
