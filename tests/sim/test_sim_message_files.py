"""Files of messages: written and read back, damaged, and played."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.cli.main import main
from dlcp.policy import Policy
from sim.message_file import COLUMNS, read_messages, write_messages
from sim.messages import Gate, Message
from sim.readers.found import POLICY, stuck
from sim.readers.text import InputError
from sim.scenario_file import read
from tests.conftest import ROOT
from tests.sim.mutations import mutations

HOSTS = ("h0", "left.host-1", "c", "d")

shares = st.one_of(st.just(POLICY), st.floats(0, 1))
texts = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=20)


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 8))
    return [
        Message(
            draw(st.integers(0, len(HOSTS) - 1)),
            draw(st.integers(0, len(HOSTS) - 1)),
            draw(st.integers(1, 1 << 40)),
            draw(st.integers(0, 10**16)),
            draw(st.integers(0, 6)),
            draw(st.lists(st.integers(0, index - 1), max_size=4)) if index else [],
            draw(st.integers(0, 10**16)),
            draw(shares),
            draw(shares),
            draw(texts),
            draw(st.integers(0, 2**31 - 1)),
            draw(texts),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@given(messages=graphs(), names=st.booleans())
def test_what_is_written_is_read_back(tmp_path_factory, suffix, messages, names):
    path = tmp_path_factory.getbasetemp() / f"messages.{suffix}"
    write_messages(path, messages, HOSTS if names else ())
    assert read_messages(path, HOSTS) == messages


def test_what_has_no_column_is_not_lost_in_silence(tmp_path):
    for field, value in (("gate", Gate(5)), ("urgency", 1), ("extra", True)):
        message = Message(0, 1, 5)
        setattr(message, field, value)
        with pytest.raises(ValueError, match="no column"):
            write_messages(tmp_path / "m.csv", [message])


def test_a_file_needs_three_columns(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("# by hand\ndestination,source,size_bytes\nc,h0,100\n\n0,3,7\n")
    assert read_messages(path, HOSTS) == [
        Message(0, 2, 100, protected=POLICY, bound=POLICY),
        Message(3, 0, 7, protected=POLICY, bound=POLICY),
    ]
    path = tmp_path / "m.jsonl"
    path.write_text('{"source": 0, "destination": "c", "size_bytes": 100, "start_s": 0.1, "delay_s": 1e-6}\n\n')
    assert read_messages(path, HOSTS) == [Message(0, 2, 100, start=10**11, delay=10**6, protected=POLICY, bound=POLICY)]


ROW = "0,h0,c,100,0,0,,,,,,,"


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("", "(file)", "holds no message"),
        (",".join(COLUMNS) + "\n", "(file)", "holds no message"),
        ("source,destination\nh0,c\n", "line 1", "no column size_bytes"),
        ("source,destination,size_bytes,colour\n", "line 1", "the unknown column 'colour'"),
        ("source,source,destination,size_bytes\n", "line 1", "column source for the second time"),
        (f"{','.join(COLUMNS)}\n{ROW},\n", "line 2", "14 columns; accepted: 13"),
        (f"{','.join(COLUMNS)}\n{ROW}\n{ROW}\n", "line 3", "message is '0'; accepted: the number of row 1"),
        ("source,destination,size_bytes\nh0,h9,5\n", "line 2", "destination is 'h9'; accepted: the name of a host"),
        ("source,destination,size_bytes\nh0,4,5\n", "line 2", "destination is '4'; accepted: a whole number from 0 to 3"),
        ("source,destination,size_bytes\nh0,c,0\n", "line 2", "size_bytes is '0'"),
        ("source,destination,size_bytes\nh0,c,1.5\n", "line 2", "size_bytes is '1.5'"),
        ("source,destination,size_bytes\nh0,c,\n", "line 2", "size_bytes is missing"),
        ("source,destination,size_bytes,start_s\nh0,c,5,1e-13\n", "line 2", "start_s is '1e-13'; accepted: seconds"),
        ("source,destination,size_bytes,start_s\nh0,c,5,-1\n", "line 2", "start_s is '-1'"),
        ("source,destination,size_bytes,class\nh0,c,5,7\n", "line 2", "class is '7'"),
        ("source,destination,size_bytes,bound\nh0,c,5,1.01\n", "line 2", "bound is '1.01'"),
        ("source,destination,size_bytes,after\nh0,c,5,1\n", "line 2", "after: message 1, of 1"),
        ("source,destination,size_bytes,after\nh0,c,5,x\n", "line 2", "after is 'x'"),
        (
            "source,destination,size_bytes,after\nh0,c,5,\nh0,c,5,2\nh0,c,5,0 1\n",
            "line 3",
            "message 1 waits, over others, for itself",
        ),
        ('source,destination,size_bytes\n"h0,c,5\n', "line 2", "unexpected end of data"),
        ('source,destination,size_bytes\n"h0,c,5\nh0,c,5\n', "line 2", "a quoted cell does not end in its line"),
        ("source,destination,size_bytes\n" + "," * (1 << 24) + "\n", "line 2", "16777217 characters"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, where, message):
    path = tmp_path / "m.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_messages(path, HOSTS)
    assert caught.value.source == str(path) and caught.value.key == where and message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"source": 0,', "line 1: Expecting property name"),
        ("[]", "line 1: []; accepted: an object"),
        ('{"source": 0, "destination": 1}', "line 1: no size_bytes"),
        ('{"source": true, "destination": 1, "size_bytes": 5}', "source is True"),
        ('{"source": 0, "destination": 1, "size_bytes": 5.0}', "size_bytes is 5.0"),
        ('{"source": 0, "destination": 1, "size_bytes": 5, "start_s": NaN}', "NaN is no number of JSON"),
        ('{"source": 0, "destination": 1, "size_bytes": 5, "bound": 1e999}', "bound is inf"),
        ('{"source": 0, "destination": 1, "size_bytes": 5, "after": 0}', "after is 0"),
        ('{"source": 0, "destination": 1, "size_bytes": 5, "after": [-1]}', "after is [-1]"),
        ('{"source": 0, "destination": 1, "size_bytes": 5, "group": ["x"]}', "group is ['x']"),
        ("[" * 100_000, "line 1: "),
        ('{"source": 0, "destination": 1, "size_bytes": ' + "9" * 5000 + "}", "line 1: "),
    ],
)
def test_what_is_wrong_with_json_is_said(tmp_path, text, message):
    path = tmp_path / "m.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_messages(path, HOSTS)
    assert message in str(caught.value) and str(path) in str(caught.value)


SAMPLE = [
    Message(0, 1, 1000, 5, 2, [], 7, 0.5, 0.25, "a", 1),
    Message(1, 0, 10, group="b"),
    Message(2, 2, 1, after=[0, 1], delay=99),
    Message(3, 2, 1 << 30, after=[2], protected=POLICY, bound=POLICY, job="j"),
]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@given(data=st.data())
def test_a_damaged_file_reads_or_the_error_says_where(tmp_path_factory, suffix, data):
    path = tmp_path_factory.getbasetemp() / f"damaged.{suffix}"
    write_messages(path, SAMPLE, HOSTS)
    path.write_bytes(data.draw(mutations(path.read_bytes())))
    try:
        messages = read_messages(path, HOSTS)
    except InputError as error:
        assert error.source == str(path) and error.key and error.accepted
    else:
        assert stuck(messages) is None
        write_messages(path, messages, HOSTS)
        assert read_messages(path, HOSTS) == messages


@given(edges=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_stuck_finds_exactly_what_waits_for_itself(edges):
    messages = [Message(0, 1, 1) for _ in range(7)]
    for follower, other in edges:
        messages[follower].after.append(other)

    def reachable(index, seen):
        for other in messages[index].after:
            if other not in seen:
                seen.add(other)
                reachable(other, seen)
        return seen

    held = [index for index in range(7) if any(other in reachable(other, set()) for other in {index, *reachable(index, set())})]
    assert stuck(messages) == (held[0] if held else None)


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "net.toml").write_text('[generate]\nkind = "star"\nhosts = 4\nrate = "10 Gbit/s"\n')
    path = tmp_path / "run.toml"
    path.write_text('topology = "net.toml"\n[transport]\nname = "dctcp"\n[traffic]\nkind = "file"\nfile = "messages.csv"\n')
    return path


def test_a_run_plays_a_file(scenario, tmp_path, capsys):
    rows = "source,destination,size_bytes,start_s,after,delay_s,group\nh0,h1,15000,0.000002,,,first\nh1,h1,1,,0,0.00001,think\n"
    (tmp_path / "messages.csv").write_text(rows + "h1,h2,1500,,1,,second\n")
    out = tmp_path / "out"
    assert main(["sim", "run", str(scenario), "--engine", "python", "--jsonl", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["complete"] == 2
    found = [json.loads(line) for line in (out / "messages.jsonl").read_text().splitlines()]
    first, second = sorted(found, key=lambda row: row["start_s"])
    assert first["start_s"] == pytest.approx(2e-6) and (first["group"], first["source"], first["destination"]) == (
        "first",
        "h0",
        "h1",
    )
    assert second["start_s"] == pytest.approx(first["end_s"] + 1e-5)  # the receiver thinks before it sends


def test_without_a_bound_the_policy_has_one(scenario, tmp_path):
    (tmp_path / "messages.csv").write_text("source,destination,size_bytes,bound\nh0,h1,5,\nh0,h2,5,0.5\n")
    policy = Policy()
    first, second = read(scenario).build(tmp_path, "python").messages
    assert (first.protected, first.bound) == (policy.protection.share, policy.loss.push)
    assert (second.protected, second.bound) == (policy.protection.share, 0.5)


def test_a_wrong_file_is_one_line_of_the_command(scenario, tmp_path, capsys):
    (tmp_path / "messages.csv").write_text("source,destination,size_bytes\nh0,h7,5\n")
    assert main(["sim", "run", str(scenario), "--engine", "python"]) == 2
    assert "messages.csv: line 2: destination is 'h7'" in capsys.readouterr().err
    assert main(["sim", "run", str(scenario), "--set", "traffic.file="]) == 2
    assert "traffic.file" in capsys.readouterr().err


def test_the_page_names_every_column():
    page = (ROOT / "docs" / "simulator.md").read_text()
    section = page.split("## Inputs")[1].split("\n## ")[0]
    for column in COLUMNS:
        assert f"`{column}`" in section, column
