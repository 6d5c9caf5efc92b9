"""P4Data: every type that a P4Info can declare goes to the wire and back; what does not fit its type is refused."""

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("finsy", reason="needs the extra p4")

from finsy.proto import p4d, p4i, p4t

from softswitch.server.codes import Code, Refusal
from softswitch.server.p4data import codec

INFO = text_format.Parse(
    """
    type_info {
      structs {
        key: "pair_t"
        value {
          members { name: "a" type_spec { bitstring { bit { bitwidth: 9 } } } }
          members { name: "b" type_spec { header { name: "h_t" } } }
          members { name: "c" type_spec { bool { } } }
        }
      }
      structs { key: "loop_t" value { members { name: "a" type_spec { struct { name: "loop_t" } } } } }
      headers {
        key: "h_t"
        value {
          members { name: "x" type_spec { bit { bitwidth: 4 } } }
          members { name: "y" type_spec { int { bitwidth: 12 } } }
        }
      }
      headers { key: "v_t" value { members { name: "x" type_spec { varbit { max_bitwidth: 8 } } } } }
      serializable_enums { key: "e_t" value { underlying_type { bitwidth: 6 } members { name: "A" value: "\\001" } } }
      enums { key: "plain_t" value { members { name: "red" } members { name: "green" } } }
      error { members: "NoError" members: "PacketTooShort" }
      new_types { key: "port_t" value { translated_type { uri: "" sdn_bitwidth: 32 } } }
      new_types { key: "name_t" value { translated_type { uri: "" sdn_string { } } } }
      new_types { key: "own_t" value { original_type { bitstring { bit { bitwidth: 48 } } } } }
    }
    """,
    p4i.P4Info(),
)

BITS = "bitstring { bit { bitwidth: 9 } }"
SIGNED = "bitstring { int { bitwidth: 9 } }"
TYPES = {
    BITS: (9,),
    SIGNED: (9,),
    "bool { }": (1,),
    'struct { name: "pair_t" }': (9, 4, 12, 1),
    'header { name: "h_t" }': (4, 12),
    'header_stack { header { name: "h_t" } size: 3 }': (4, 12) * 3,
    'serializable_enum { name: "e_t" }': (6,),
    'new_type { name: "port_t" }': (32,),
    'new_type { name: "own_t" }': (48,),
    f"tuple {{ members {{ {BITS} }} members {{ {SIGNED} }} }}": (9, 9),
}


def spec(text):
    return text_format.Parse(text, p4t.P4DataTypeSpec())


@pytest.mark.parametrize("text", TYPES)
def test_widths(text):
    assert codec(spec(text), INFO).widths == TYPES[text]


@given(st.sampled_from(sorted(TYPES)), st.data())
def test_values_come_back(text, data):
    values = [data.draw(st.integers(0, 2**width - 1)) for width in TYPES[text]]
    kind = codec(spec(text), INFO)
    message = kind.encode(iter(values))
    assert kind.decode(message, "x") == values
    assert kind.decode(p4d.P4Data.FromString(message.SerializeToString()), "x") == values


def test_names_of_errors_and_enums():
    for text, name in (("error { }", "PacketTooShort"), ('enum { name: "plain_t" }', "green")):
        kind = codec(spec(text), INFO)
        message = kind.encode(iter((1,)))
        assert name in (message.error, message.enum)
        assert kind.decode(message, "x") == [1]
        with pytest.raises(Refusal, match="there is no"):
            kind.decode(p4d.P4Data(error="?") if message.error else p4d.P4Data(enum="?"), "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BITS, p4d.P4Data()),
        (BITS, p4d.P4Data(bool=True)),
        (BITS, p4d.P4Data(bitstring=b"\x02\x00")),
        (SIGNED, p4d.P4Data(bitstring=b"\x01\x00")),
        ("bool { }", p4d.P4Data(bitstring=b"\x01")),
        ('struct { name: "pair_t" }', p4d.P4Data(struct=p4d.P4StructLike(members=[p4d.P4Data(bitstring=b"\x01")]))),
        ('header { name: "h_t" }', p4d.P4Data(header=p4d.P4Header(is_valid=True, bitstrings=[b"\x01"]))),
        ('header { name: "h_t" }', p4d.P4Data(header=p4d.P4Header(is_valid=False, bitstrings=[b"\x01", b"\x01"]))),
        ('header_stack { header { name: "h_t" } size: 3 }', p4d.P4Data(header_stack=p4d.P4HeaderStack())),
        ('serializable_enum { name: "e_t" }', p4d.P4Data(enum_value=b"\x40")),
        (f"tuple {{ members {{ {BITS} }} }}", p4d.P4Data(struct=p4d.P4StructLike(members=[p4d.P4Data(bitstring=b"\x01")]))),
    ],
)
def test_what_is_not_of_the_type_is_refused(text, message):
    with pytest.raises(Refusal) as caught:
        codec(spec(text), INFO).decode(message, "x")
    assert caught.value.code == Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "text",
    [
        "",
        'struct { name: "nowhere" }',
        'struct { name: "loop_t" }',
        'header { name: "v_t" }',
        'header_union { name: "u" }',
        'new_type { name: "name_t" }',
        "bitstring { varbit { max_bitwidth: 8 } }",
        "bitstring { bit { bitwidth: 0 } }",
    ],
)
def test_types_that_cannot_be_are_refused(text):
    with pytest.raises(Refusal, match="P4Info"):
        codec(spec(text), INFO)
