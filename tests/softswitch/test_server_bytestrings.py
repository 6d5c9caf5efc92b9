"""Byte strings: the tables of the P4Runtime specification, and properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("finsy", reason="needs the extra p4")

from softswitch.server import bytestrings
from softswitch.server.codes import Code, Refusal

# "Examples of Valid Bytestring Encoding": type, width, value, string, whether it is the canonical one.
VALID = [
    ("bit", 8, 99, b"\x63", True),
    ("bit", 16, 99, b"\x00\x63", False),
    ("bit", 16, 99, b"\x63", True),
    ("bit", 16, 12388, b"\x30\x64", True),
    ("bit", 16, 12388, b"\x00\x30\x64", False),
    ("bit", 12, 99, b"\x00\x63", False),
    ("bit", 12, 99, b"\x63", True),
    ("bit", 12, 99, b"\x00\x00\x63", False),
    ("int", 8, 99, b"\x63", True),
    ("int", 8, -99, b"\x9d", True),
    ("int", 8, -99, b"\xff\x9d", False),
    ("int", 12, -739, b"\xfd\x1d", True),
    ("int", 16, 0, b"\x00\x00", False),
    ("int", 16, 0, b"\x00", True),
]
# "Examples of Invalid Bytestring Encoding".
INVALID = [
    ("bit", 8, b"\x01\x63"),
    ("bit", 8, b""),
    ("bit", 16, b"\x01\x00\x63"),
    ("bit", 12, b"\x10\x63"),
    ("bit", 12, b"\x01\x00\x63"),
    ("bit", 12, b"\x00\x40\x63"),
    ("int", 8, b"\x00\x9d"),
    ("int", 12, b"\x8d\x1d"),
    ("int", 16, b""),
]


@pytest.mark.parametrize(("kind", "width", "value", "data", "canonical"), VALID)
def test_the_specification_s_valid_strings(kind, width, value, data, canonical):
    decode, encode = _functions(kind)
    assert decode(data, width, "x") == value
    assert (encode(value) == data) == canonical


@pytest.mark.parametrize(("kind", "width", "data"), INVALID)
def test_the_specification_s_invalid_strings(kind, width, data):
    decode, _ = _functions(kind)
    with pytest.raises(Refusal, match="x: ") as caught:
        decode(data, width, "x")
    assert caught.value.code == Code.INVALID_ARGUMENT


@given(st.data(), st.integers(1, 200), st.integers(0, 5))
def test_unsigned_values_come_back_with_any_number_of_leading_zeros(data, width, zeros):
    value = data.draw(st.integers(0, 2**width - 1))
    string = bytestrings.encode(value)
    assert bytestrings.decode(bytes(zeros) + string, width, "x") == value
    assert len(string) == 1 or string[0]


@given(st.data(), st.integers(1, 200), st.integers(0, 5))
def test_signed_values_come_back_with_any_sign_extension(data, width, extension):
    value = data.draw(st.integers(-(2 ** (width - 1)), 2 ** (width - 1) - 1))
    string = bytestrings.encode_signed(value)
    assert bytestrings.decode_signed((b"\xff" if value < 0 else b"\0") * extension + string, width, "x") == value
    shorter = string[1:]
    assert not shorter or int.from_bytes(shorter, "big", signed=True) != value


@given(st.binary(max_size=30), st.integers(1, 64))
def test_what_is_accepted_fits(data, width):
    for decode, low, high in (
        (bytestrings.decode, 0, 2**width),
        (bytestrings.decode_signed, -(2 ** (width - 1)), 2 ** (width - 1)),
    ):
        try:
            value = decode(data, width, "x")
        except Refusal:
            signed = decode is bytestrings.decode_signed
            assert not data or not low <= int.from_bytes(data, "big", signed=signed) < high
        else:
            assert low <= value < high


def _functions(kind):
    if kind == "bit":
        return bytestrings.decode, bytestrings.encode
    return bytestrings.decode_signed, bytestrings.encode_signed
