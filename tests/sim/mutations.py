"""Damage to files, for properties of readers."""

from hypothesis import strategies as st

WORDS = (
    b"-1",
    b"0",
    b"1",
    b"65536",
    b"99999999999999999999",
    b"1e30",
    b"nan",
    b"\x00",
    b"\xff",
    b"\n",
    b" ",
    b"#",
    b'"',
    b"NONE",
    b"[[",
)


@st.composite
def mutations(draw, valid):
    """Draws a copy of ``valid`` with some parts cut out, doubled, overwritten, or exchanged for what makes trouble."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(0, 4))):
        begin = draw(st.integers(0, len(data)))
        end = min(begin + draw(st.integers(0, 12)), len(data))
        kind = draw(st.sampled_from(("cut", "double", "word", "bytes", "swap")))
        if kind == "cut":
            del data[begin:end]
        elif kind == "double":
            data[end:end] = data[begin:end]
        elif kind == "word":
            data[begin:end] = draw(st.sampled_from(WORDS))
        elif kind == "bytes":
            data[begin:end] = draw(st.binary(max_size=6))
        else:
            words = bytes(data).split(b" ")
            left, right = (draw(st.integers(0, len(words) - 1)) for _ in range(2))
            words[left], words[right] = words[right], words[left]
            data = bytearray(b" ".join(words))
    return bytes(data)
