"""The machinery under every description, on descriptions made up to stretch it."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.errors import ConfigError
from dlcp.schema import Document, Record, difference, digest, dump, flatten, load, refuse, required, section, setting
from dlcp.schema_kinds import Choice, Either, Flag, Integer, Items, Number, Text
from dlcp.schema_toml import scalar

NAME = Text(r"[a-z][a-z0-9]*", "a name of small letters and digits")


@section
class Port:
    number: int = required(Integer(1, 48), doc="Which.")
    up: bool = setting(Flag(), default=True, doc="Whether it is in use.")


@section
class Switch:
    name: str = required(NAME, doc="What it is called.")
    note: str = setting(Text(r"(?s).*", "any text"), default="", doc="Anything.")
    ports: tuple[Port, ...] = setting(Items(Record(Port), 0, 4), default=(), doc="Its ports.")
    main: Port = setting(Record(Port), default=Port(number=48), doc="The uplink.")

    def check(self) -> None:
        numbers = [port.number for port in self.ports]
        for index, number in enumerate(numbers):
            if number in numbers[:index]:
                raise refuse(f"ports[{index}].number", f"{number} stands twice", "a number of its own")


@section
class Lab(Document):
    title = "A lab."

    rate: float | str = setting(Either((Number(0, 10, "Gbit/s"), Choice(("line", "none")))), default="line", doc="How fast.")
    grid: tuple[tuple[int, ...], ...] = setting(Items(Items(Integer(0, 9), 2, 2), 0, 3), default=(), doc="Pairs.")
    switches: tuple[Switch, ...] = setting(Items(Record(Switch), 0, 5), default=(), doc="The switches.")


ports = st.builds(Port, number=st.integers(1, 48), up=st.booleans())
switches = st.builds(
    Switch,
    name=st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True),
    note=st.text(st.characters(exclude_categories=["Cs"])),
    ports=st.lists(ports, max_size=4, unique_by=lambda port: port.number).map(tuple),
    main=ports,
)
labs = st.builds(
    Lab,
    rate=st.one_of(st.floats(0, 10), st.sampled_from(["line", "none"])),
    grid=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3).map(tuple),
    switches=st.lists(switches, max_size=5).map(tuple),
)


@given(labs, st.booleans())
def test_lists_of_tables_and_any_text_survive_toml(lab, comments):
    assert Lab.from_dict(tomllib.loads(lab.to_toml(comments=comments))) == lab
    assert Lab.from_dict(lab.to_dict()) == lab


@given(labs, labs)
def test_digest_and_difference_agree(one, two):
    assert (digest(one) == digest(two)) == (one == two) == (difference(one, two) == [])


def test_difference_names_the_place():
    one = Lab(switches=(Switch(name="a"), Switch(name="b", ports=(Port(number=1),))))
    two = Lab(switches=(Switch(name="a", note="x"), Switch(name="b", ports=(Port(number=1, up=False), Port(number=2)))))
    assert one.difference(two) == [
        "switches[0].note",
        "switches[1].ports[0].up",
        "switches[1].ports[1].number",
        "switches[1].ports[1].up",
    ]
    assert Lab().difference(one)[0] == "switches"
    assert dict(flatten(dump(Lab()))) == {"rate": "line", "grid": [], "switches": []}
    assert list(flatten({})) == []


@pytest.mark.parametrize(
    ("mapping", "key", "problem", "accepted"),
    [
        ({"switches": [{}]}, "switches[0].name", "missing", "a name of small letters and digits"),
        ({"switches": [{"name": "A"}]}, "switches[0].name", "'A' does not fit", "a name of small letters and digits"),
        (
            {"switches": [{"name": "a"}, {"nam": "b"}]},
            "switches[1].nam",
            "unknown key (did you mean 'name'?)",
            "name, note, ports, main",
        ),
        ({"switches": {"name": "a"}}, "switches", "{'name': 'a'} is not a list", None),
        ({"switches": [{"name": "a"}] * 6}, "switches", None, None),
        ({"switches": [3]}, "switches[0]", "3 is not a table", "a table with the keys name, note, ports, main"),
        ({"switches": [{"name": "a", "main": {}}]}, "switches[0].main.number", "missing", "a whole number from 1 to 48"),
        (
            {"switches": [{"name": "a", "main": {"number": 1, "up": 1}}]},
            "switches[0].main.up",
            "1 is not a truth value",
            "true or false",
        ),
        (
            {"switches": [{"name": "a", "ports": [{"number": 2}, {"number": 2}]}]},
            "switches[0].ports[1].number",
            "2 stands twice",
            "a number of its own",
        ),
        ({"grid": [[1, 2], [3]]}, "grid[1]", "[3] has 1 items", "a list of 2 items, each a whole number from 0 to 9"),
        ({"grid": [[1, 2], [3, 10]]}, "grid[1][1]", "10 is out of range", "a whole number from 0 to 9"),
        ({"rate": 11}, "rate", "11 is out of range", 'a number from 0 to 10 Gbit/s or "line", "none"'),
        ({"rate": "lin"}, "rate", None, None),
        ({"rate": True}, "rate", "true is not a number", None),
    ],
)
def test_errors_lead_to_the_place(mapping, key, problem, accepted):
    with pytest.raises(ConfigError) as caught:
        load(Lab, mapping, "lab.toml")
    error = caught.value
    assert (error.source, error.key) == ("lab.toml", key)
    assert problem is None or error.problem == problem
    assert accepted is None or error.accepted == accepted


def test_comments_explain_every_key_of_every_table():
    text = Lab(switches=(Switch(name="a", ports=(Port(number=3),)),)).to_toml(comments=True)
    lines = text.splitlines()
    assert lines[0] == "# A lab."
    for number, line in enumerate(lines):
        if " = " in line and not line.startswith("#"):
            assert lines[number - 1].startswith("# Accepted: "), line
    assert "[[switches]]" in lines and "[[switches.ports]]" in lines and "[switches.main]" in lines
    assert "#" not in Lab().to_toml()


def test_what_toml_cannot_say_is_refused():
    with pytest.raises(TypeError):
        scalar(None)
    assert scalar([True, 1, 0.5, 'a"\x7f\n']) == '[true, 1, 0.5, "a\\"\\u007f\\n"]'


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_string_is_written_so_that_toml_reads_it(text):
    assert tomllib.loads(f"x = {scalar(text)}") == {"x": text}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_float_is_written_so_that_toml_reads_it(value):
    assert tomllib.loads(f"x = {scalar(value)}") == {"x": value}


def test_a_default_is_checked_like_any_value():
    @section
    class Wrong:
        number: int = setting(Integer(1, 2), default=3, doc="Out of range.")

    with pytest.raises(ConfigError, match="3 is out of range"):
        Wrong()
