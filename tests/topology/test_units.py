"""Quantities with units: what is read, what is refused, and that nothing is rounded."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.errors import ConfigError
from dlcp.schema import dump, load, section, setting
from dlcp.units import Auto, Buffer, Delay, Quantity, Rate, Room, Size, Table

KINDS = [Rate, Delay, Size]


@section
class Cable:
    rate: Rate = setting(Quantity(Rate, "1 kbit/s", "1 Tbit/s"), default=Rate.parse("1 Gbit/s"), doc="Rate.")
    delay: str | Delay = setting(Auto(Quantity(Delay, "0 s", "10 s")), default="auto", doc="Delay.")
    buffer: Buffer = setting(Room("1 GiB"), default=Buffer(9, "packets"), doc="Buffer.")


@section
class Plant:
    cable: Cable = setting(Table(Cable), default=Cable(), doc="One.")


def read(**cable):
    return load(Plant, {"cable": cable}, "plant.toml").cable


@pytest.mark.parametrize("kind", KINDS)
@given(value=st.integers(0, 10**24))
def test_what_is_written_reads_back_exactly(kind, value):
    text = str(kind(value))
    assert kind.parse(text) == value
    assert kind.parse(text.replace(" ", "")) == value
    assert f"{kind(value)}" == text and repr(kind(value)) == f"{kind.__name__}.parse({text!r})"


@pytest.mark.parametrize("kind", KINDS)
@given(number=st.decimals(0, 10**6, places=4, allow_nan=False, allow_infinity=False), data=st.data())
def test_any_number_of_any_unit_is_exact_or_refused(kind, number, data):
    unit, scale = data.draw(st.sampled_from(sorted(kind.units.items())))
    exact = Fraction(str(number)) * scale
    if exact.denominator == 1:
        assert kind.parse(f"{number} {unit}") == exact
    else:
        with pytest.raises(ValueError, match="finer than the smallest unit"):
            kind.parse(f"{number} {unit}")


@pytest.mark.parametrize(
    ("kind", "text", "value", "written"),
    [
        (Rate, "100 Mbit/s", 100_000_000, "100 Mbit/s"),
        (Rate, "2.5Gbps", 2_500_000_000, "2.5 Gbit/s"),
        (Rate, "1e3 kbit/s", 1_000_000, "1 Mbit/s"),
        (Rate, "12.5 MB/s", 100_000_000, "100 Mbit/s"),
        (Rate, "266666667 bit/s", 266_666_667, "266.666667 Mbit/s"),
        (Rate, "100_000 bit/s", 100_000, "100 kbit/s"),
        (Delay, "10 us", 10_000_000, "10 us"),
        (Delay, "10 µs", 10_000_000, "10 us"),
        (Delay, "10 \u03bcs", 10_000_000, "10 us"),
        (Delay, "0.0015 ms", 1_500_000, "1.5 us"),
        (Delay, "0 s", 0, "0 s"),
        (Delay, "26241908752 ps", 26_241_908_752, "26241.908752 us"),
        (Size, "64 KiB", 65_536, "64 KiB"),
        (Size, "25 MB", 25_000_000, "25 MB"),
        (Size, "1500 bytes", 1500, "1500 B"),
    ],
)
def test_examples(kind, text, value, written):
    assert kind.parse(text) == value
    assert str(kind.parse(text)) == written


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (Rate, "100", "has no unit"),
        (Rate, "100 mbit/s", "did you mean 'Mbit/s'?"),
        (Rate, "100mbit", "did you mean 'Mbit/s'?"),
        (Rate, "100 ms", "unknown unit 'ms'"),
        (Rate, "fast", "is not a number with a unit"),
        (Rate, "-1 Mbit/s", "is not a number with a unit"),
        (Rate, "1.5 bit/s", "finer"),
        (Rate, "1e99 Tbit/s", "out of range"),
        (Rate, "1e-99 Tbit/s", "finer"),
        (Rate, "1" * 5000 + " bit/s", "is not a number with a unit"),
        (Rate, "", "is not a number with a unit"),
        (Rate, "nan bit/s", "is not a number with a unit"),
        (Rate, "\u0661 bit/s", "is not a number with a unit"),
        (Delay, "10 min", "unknown unit 'min'"),
        (Delay, "0.5 ps", "finer"),
        (Size, "64 kib", "did you mean 'KiB'?"),
        (Size, "64 KB", "unknown unit 'KB'"),
        (Buffer, "64 pakets", "did you mean 'packets'?"),
        (Buffer, "0.5 packets", "finer"),
        (Buffer, "10", "has no unit"),
    ],
)
def test_what_is_refused_says_why(kind, text, problem):
    with pytest.raises(ValueError, match=r".") as caught:
        kind.parse(text)
    assert problem in str(caught.value)


def test_buffers():
    assert Buffer.parse("100 packets") == Buffer(100, "packets") != Buffer(100, "bytes")
    assert str(Buffer(1, "packets")) == "1 packet" and Buffer.parse("1 packet") == Buffer(1, "packets")
    assert str(Buffer.parse("64 KiB")) == "64 KiB"
    assert Buffer(64, "packets").bytes(1500) == 96_000 and Buffer(64, "packets").packets(9) == 64
    assert Buffer(65_536, "bytes").packets(1500) == 43 and Buffer(10, "bytes").packets(1500) == 1
    assert Rate.parse("8 Mbit/s").seconds(10**6) == 1.0 and Delay.parse("10 us").seconds == 1e-5


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"rate_mbps": 100}, "rate", 10**8),
        ({"rate_gbps": 2.5}, "rate", 25 * 10**8),
        ({"rate_kbps": 0.1e1}, "rate", 1000),
        ({"delay_us": 0.1}, "delay", 10**5),
        ({"delay_ms": 1}, "delay", 10**9),
        ({"delay": "auto"}, "delay", "auto"),
        ({"buffer_packets": 7}, "buffer", Buffer(7, "packets")),
        ({"buffer_kib": 64}, "buffer", Buffer(65_536, "bytes")),
        ({"buffer": "1 packet"}, "buffer", Buffer(1, "packets")),
        ({"rate": Rate(5000)}, "rate", 5000),
    ],
)
def test_numbers_stand_under_keys_with_units(given, field, value):
    cable = read(**given)
    assert getattr(cable, field) == value
    assert load(Plant, dump(Plant(cable=cable)), "again").cable == cable


@pytest.mark.parametrize(
    ("given", "key", "problem"),
    [
        ({"rate": 100}, "cable.rate", "100 has no unit"),
        ({"rate": True}, "cable.rate", "true is not a string with a unit"),
        ({"rate": Delay(5000)}, "cable.rate", "is not a string with a unit"),
        ({"rate": []}, "cable.rate", "[] is not a string with a unit"),
        ({"rate": "1 bit/s"}, "cable.rate", "'1 bit/s' is out of range"),
        ({"rate": "2 Tbit/s"}, "cable.rate", "'2 Tbit/s' is out of range"),
        ({"rate_mbps": "100"}, "cable.rate_mbps", "'100' is not a number"),
        ({"rate_mbps": True}, "cable.rate_mbps", "true is not a number"),
        ({"rate_mbps": 1e300}, "cable.rate_mbps", "out of range"),
        ({"rate_mbps": float("nan")}, "cable.rate_mbps", "nan is not a finite number"),
        ({"rate_mbps": float("inf")}, "cable.rate_mbps", "inf is not a finite number"),
        ({"rate_mbps": -1}, "cable.rate_mbps", "out of range"),
        ({"rate_mbps": 10**400}, "cable.rate_mbps", "out of range"),
        ({"rate_bps": 1000.5}, "cable.rate_bps", "1000.5 is finer than the smallest unit"),
        ({"rate_mbps": 1, "rate": "1 Mbit/s"}, "cable.rate_mbps", "is given besides rate"),
        ({"rate_mbps": 1, "rate_gbps": 1}, "cable.rate_gbps", "two units"),
        ({"delay": "soon"}, "cable.delay", "'soon' is not a number with a unit"),
        ({"delay_minutes": 1}, "cable.delay_minutes", "unknown key"),
        ({"buffer": "0 packets"}, "cable.buffer", "'0 packets' is out of range"),
        ({"buffer": "2 GiB"}, "cable.buffer", "'2 GiB' is out of range"),
        ({"buffer_packets": 0}, "cable.buffer_packets", "out of range"),
    ],
)
def test_errors_name_the_key_as_it_was_written(given, key, problem):
    with pytest.raises(ConfigError) as caught:
        read(**given)
    error = caught.value
    assert (error.source, error.key) == ("plant.toml", key)
    assert problem in error.problem and error.accepted
    assert len(str(error)) < 500
