"""Meters against RFC 2698 with exact fractions, and against the arithmetic of BMv2's ``meters.cpp``."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softswitch.errors import BadValue, OutOfBounds
from softswitch.program.model import MeterModel
from softswitch.runtime import GREEN, RED, YELLOW, Meter, MeterConfig
from tests.softswitch.models import key, runtime, table

CONFIGS = st.tuples(st.integers(0, 10**9), st.integers(0, 20_000), st.integers(0, 10**9), st.integers(0, 20_000)).map(
    lambda c: MeterConfig(min(c[0], c[2]), c[1], max(c[0], c[2]), c[3])
)
PACKETS = st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 9000)), max_size=60)
UNITS: list[Literal["bytes", "packets"]] = ["bytes", "packets"]


class Bmv2:
    """Peak first, then committed; doubles; what trickles in is counted from the origin of time and cut to whole tokens."""

    def __init__(self, config: MeterConfig) -> None:
        self.rates = [
            {"rate": config.pir / 1e6, "burst": config.pburst, "tokens": config.pburst, "last": 0, "color": RED},
            {"rate": config.cir / 1e6, "burst": config.cburst, "tokens": config.cburst, "last": 0, "color": YELLOW},
        ]

    def color(self, cost: int, now_us: int) -> int:
        for rate in self.rates:
            total = int(now_us * rate["rate"])
            rate["tokens"] = min(rate["tokens"] + total - rate["last"], rate["burst"])
            rate["last"] = total
            if rate["tokens"] < cost:
                return int(rate["color"])
            rate["tokens"] -= cost
        return GREEN


@pytest.mark.parametrize("unit", UNITS)
@given(config=CONFIGS, packets=PACKETS)
def test_colours_are_those_of_bmv2(
    unit: Literal["bytes", "packets"], config: MeterConfig, packets: list[tuple[int, int]]
) -> None:
    # Rates whose tokens a microsecond are whole: then doubles are exact, and no colour may differ.
    exact = MeterConfig(config.cir // 10**6 * 10**6, config.cburst, config.pir // 10**6 * 10**6, config.pburst)
    meter = Meter(unit)
    meter.configure(exact)
    model = Bmv2(exact)
    now = 0
    for gap, length in packets:
        now += gap
        assert meter.color(length, now) == model.color(1 if unit == "packets" else length, now)


@given(CONFIGS, PACKETS)
def test_rounding_never_adds_up(config: MeterConfig, packets: list[tuple[int, int]]) -> None:
    """The buckets of RFC 2698 in exact fractions differ from ours by less than one token, after any number of packets."""
    meter = Meter("bytes")
    meter.configure(config)
    peak, committed = Fraction(config.pburst), Fraction(config.cburst)
    now = last = 0
    for gap, length in packets:
        now += gap
        peak = min(peak + Fraction((now - last) * config.pir, 10**6), Fraction(config.pburst))
        committed = min(committed + Fraction((now - last) * config.cir, 10**6), Fraction(config.cburst))
        last = now
        color = meter.color(length, now)
        if color == RED:
            assert peak < length + 1
        else:
            assert peak > length - 1
            peak -= length
            if color == YELLOW:
                assert committed < length + 1
            else:
                assert committed > length - 1
                committed -= length


def test_the_long_run_keeps_to_the_rates() -> None:
    """1 Mbit/s committed, 2 Mbit/s peak, offered 4 Mbit/s in packets of 500 bytes: a quarter is green, a quarter yellow."""
    meter = Meter("bytes")
    meter.configure(MeterConfig(125_000, 1500, 250_000, 1500))
    colors = [meter.color(500, now) for now in range(0, 10_000_000, 1000)]
    assert [colors.count(color) for color in (GREEN, YELLOW, RED)] == pytest.approx([2500, 2500, 5000], abs=4)


def test_without_configuration_all_is_green() -> None:
    meter = Meter("bytes")
    assert [meter.color(10**9, now) for now in range(5)] == [GREEN] * 5
    meter.configure(MeterConfig(0, 0, 0, 0))
    assert meter.color(1, 10) == RED
    assert meter.color(0, 10) == GREEN
    meter.configure(None)
    assert meter.color(1, 20) == GREEN


def test_time_that_goes_back_adds_nothing() -> None:
    meter = Meter("packets")
    meter.configure(MeterConfig(1_000_000, 1, 1_000_000, 1))
    assert [meter.color(1, now) for now in (10, 10, 5, 10, 11)] == [GREEN, RED, RED, RED, GREEN]


def test_configuring_fills_the_buckets_and_checks_its_figures() -> None:
    run = runtime(
        table(key("exact", 8), direct_meter="d"),
        meters={"m": MeterModel("m", 1, 3, "packets"), "d": MeterModel("d", 2, 8, "packets", "t", ("m", "c"))},
    )
    array = run.meters["m"]
    assert list(run.meters) == ["m"]
    one = MeterConfig(0, 1, 0, 1)
    array.write(None, one)
    assert [array.read(index) for index in range(3)] == [one] * 3
    assert [array.cells[1].color(1, 0) for _ in range(2)] == [GREEN, RED]
    array.write(1, one)
    assert array.cells[1].color(1, 0) == GREEN
    array.write(1, None)
    assert array.read(1) is None
    entry = run.tables["t"].insert((1,), 0, run.tables["t"].default)  # type: ignore[arg-type]
    run.tables["t"].write_meter(entry, one)
    assert entry.meter is not None
    assert [entry.meter.color(100, 0) for _ in range(2)] == [GREEN, RED]
    for bad in (MeterConfig(-1, 0, 0, 0), MeterConfig(2, 0, 1, 0), MeterConfig(0, 0, 0, -1)):
        with pytest.raises(BadValue):
            array.write(0, bad)
        with pytest.raises(BadValue):
            run.tables["t"].write_meter(entry, bad)
    with pytest.raises(OutOfBounds):
        array.write(3, one)
    with pytest.raises(OutOfBounds):
        array.read(3)
    with pytest.raises(BadValue):
        array.read(-1)
