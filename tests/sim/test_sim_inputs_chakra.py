"""Chakra traces: the wire format against protobuf's own library, graphs as messages, and damage."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf")

from dlcp.topology import Star
from sim.flows import Transport
from sim.readers.chakra import read_groups, read_traces
from sim.readers.chakra_nodes import read_nodes
from sim.readers.found import POLICY, stuck
from sim.readers.text import InputError
from sim.simulation import Simulation
from tests.sim.chakra_traces import SCALARS, Node, encode, node, write
from tests.sim.mutations import mutations

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
ALL_REDUCE, ALL_GATHER, BARRIER = 0, 2, 9

RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "sint32": (-(2**31), 2**31 - 1),
    "sfixed32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "fixed32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "sint64": (-(2**63), 2**63 - 1),
    "sfixed64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
    "fixed64": (0, 2**64 - 1),
}


@given(data=st.data())
def test_what_protobuf_writes_is_read(tmp_path_factory, data):
    number = st.integers(0, 2**64 - 1)
    ids = data.draw(st.lists(number, min_size=1, max_size=4, unique=True))
    made = []
    for id_ in ids:
        entry = Node(id=id_, type=data.draw(st.integers(0, 7)), name=data.draw(st.text(max_size=9)))
        entry.duration_micros = data.draw(st.integers(0, 10**10))
        entry.start_time_micros = data.draw(number)
        entry.ctrl_deps.extend(data.draw(st.lists(st.sampled_from(ids), max_size=3)))
        entry.data_deps.extend(data.draw(st.lists(number, max_size=3)))
        entry.inputs.values = data.draw(st.text(max_size=9))
        entry.outputs.types = "x"
        for kind in data.draw(st.lists(st.sampled_from([*RANGES, "double", "bool", "string"]), unique=True)):
            attribute = entry.attr.add(name=kind, doc_string="nothing")
            values = {"double": st.floats(allow_nan=False), "bool": st.booleans(), "string": st.text(max_size=5)}
            setattr(attribute, f"{kind}_val", data.draw(values[kind] if kind in values else st.integers(*RANGES[kind])))
        ignored = entry.attr.add(name="ignored")
        ignored.float_list.values.extend([1.5, 2.5])
        entry.attr.add(name="involved_dim").bool_list.values.extend(data.draw(st.lists(st.booleans(), max_size=3)))
        made.append(entry)
    path = tmp_path_factory.getbasetemp() / "any.0.et"
    path.write_bytes(encode(made))
    for mine, entry in zip(read_nodes(path), made, strict=True):
        assert (mine.id, mine.name, mine.kind, mine.duration) == (entry.id, entry.name, entry.type, entry.duration_micros)
        wanted = set(entry.ctrl_deps) | set(entry.data_deps)
        assert set(mine.after) == wanted & set(ids) and mine.dangling == len(wanted - set(ids))
        assert mine.inputs == entry.inputs.values
        values = {
            each.name: getattr(each, f"{each.name}_val") for each in entry.attr if each.name in (*SCALARS, "bool", "string")
        }
        assert mine.values == values
        assert mine.dimensions == list(entry.attr[-1].bool_list.values)


def step(rank, size=4096, computing=100):
    """A step of a rank: computes, reduces, computes on, and waits."""
    return [
        node(1, COMPUTE, duration=computing * (rank + 1)),
        node(2, COLLECTIVE, [1], comm_type=ALL_REDUCE, comm_size=size, involved_dim=[True, True], is_cpu_op=False),
        node(3, COMPUTE, [1], duration=50),
        node(4, COMPUTE, [2, 3], duration=7),
    ]


def test_a_step_takes_as_long_as_its_graph(tmp_path):
    world, size = 4, 400_000
    found = read_traces(write(tmp_path, [step(0, size, computing=400) for _ in range(world)]))
    assert found.hosts == world and stuck(found.messages) is None and not found.notes
    reduced = [m for m in found.messages if m.group == "all_reduce0" and m.source != m.destination]
    assert len(reduced) == 2 * world * (world - 1) and sum(m.size for m in reduced) == 2 * (world - 1) * size
    assert all(m.bound == POLICY for m in reduced)
    for message in found.messages:
        message.bound, message.protected = 0.0, 1.0
    topology = Star(hosts=world, rate="10 Gbit/s", delay="1 us").build()
    simulation = Simulation(topology, found.messages, Transport("raw"), engine="python")
    assert simulation.run()
    # All compute 400 us; then six steps of 100 kB, with headers and store and forward, and 7 us after that.
    total = simulation.progress().now / 10**6
    assert 400 + 6 * 80 + 7 < total < 1.06 * (400 + 6 * 80 + 7)


def test_messages_between_two_ranks_meet_by_tag(tmp_path):
    first = [
        node(1, SEND, comm_dst=1, comm_tag=5, comm_size=10),
        node(2, SEND, [1], comm_dst=1, comm_tag=6, comm_size=20),
        node(3, RECEIVE, [2], comm_src=1, comm_tag=5, comm_size=30),
    ]
    second = [
        node(1, RECEIVE, comm_src=0, comm_tag=6, comm_size=20),
        node(2, RECEIVE, comm_src=0, comm_tag=5, comm_size=10),
        node(3, SEND, [1, 2], comm_src=1, comm_dst=0, comm_tag=5, comm_size=30),
    ]
    messages = read_traces(write(tmp_path, [first, second])).messages
    sent = [(m.source, m.destination, m.size) for m in messages if m.source != m.destination]
    assert sorted(sent) == [(0, 1, 10), (0, 1, 20), (1, 0, 30)] and stuck(messages) is None
    (back,) = (m for m in messages if m.size == 30)
    assert len(back.after) == 2  # both receives


def test_groups_meet_apart(tmp_path):
    traces = [[node(1, COLLECTIVE, comm_type=ALL_GATHER, comm_size=100, pg_name=f"tp{rank // 2}")] for rank in range(4)]
    traces[0].append(node(2, COLLECTIVE, [1], comm_type=BARRIER))
    for rank in range(1, 4):
        traces[rank].insert(0, node(2, COLLECTIVE, [1], comm_type=BARRIER))
    messages = read_traces(write(tmp_path, traces)).messages
    gathered = [(m.source, m.destination, m.size) for m in messages if m.group == "all_gather0" and m.source != m.destination]
    assert sorted(gathered) == [(0, 1, 100), (1, 0, 100), (2, 3, 100), (3, 2, 100)]
    assert {m.source for m in messages if m.group == "barrier0"} == set(range(4))


def test_groups_stand_in_the_trace_or_in_a_file(tmp_path):
    listed = [{"pg_name": "7", "ranks": [0, 2], "group_size": 2}]
    traces = [[node(1, COLLECTIVE, comm_type=ALL_REDUCE, comm_size=64, pg_name="7")] if rank != 1 else [] for rank in range(3)]
    start = Node(id=9, type=1, name="## process_group:init ##")
    start.inputs.values = str([json.dumps(listed)])
    traces[0].append(start)
    pairs = {(m.source, m.destination) for m in read_traces(write(tmp_path, traces)).messages if m.source != m.destination}
    assert pairs == {(0, 2), (2, 0)}
    groups = tmp_path / "groups.json"
    groups.write_text('{"7": [0, 1, 2]}')
    with pytest.raises(InputError, match=r"collective 0 of group 7 never begins on ranks \[1\]"):
        read_traces(write(tmp_path, traces), groups=read_groups(groups))
    groups.write_text('{"7": [0, "1"]}')
    with pytest.raises(InputError, match="a list of ranks"):
        read_groups(groups)


def test_operations_take_time_if_their_speed_is_known(tmp_path):
    files = write(tmp_path, [[node(1, COMPUTE, num_ops=2_000_000), node(2, COMPUTE, [1], runtime=3)]])
    with pytest.raises(InputError, match="2000000 operations, and no time; accepted: duration_micros, or --flops"):
        read_traces(files)
    assert [m.delay for m in read_traces(files, flops=1e12).messages] == [2 * 10**6, 3 * 10**6]


def test_a_node_cannot_wait_for_endlessly_many(tmp_path):
    (file,) = write(tmp_path, [[node(1, COMPUTE, [0] * 1_000_001)]])
    with pytest.raises(InputError, match="more than 1000000 dependencies"):
        read_nodes(file)


def test_ranks_are_those_of_the_names(tmp_path):
    files = write(tmp_path, [step(rank) for rank in range(11)])
    shuffled = [files[10], *files[:10]]
    assert [m.delay for m in read_traces(shuffled).messages if m.delay >= 10**8] == [10**8 * (rank + 1) for rank in range(11)]
    with pytest.raises(InputError, match="there is no file of rank 1"):
        read_traces([files[0], files[2]])
    path = tmp_path / "only.et.gz"
    path.write_bytes(gzip.compress(encode([node(1, COMPUTE, duration=5)])))
    assert read_traces([path]).messages[0].delay == 5 * 10**6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {1: node(2, COLLECTIVE, [1], comm_type=10, comm_size=5)},
            "node 2: comm_type is 10; accepted: comm_type: a whole number from 0",
        ),
        ({1: node(2, COLLECTIVE, [1], comm_type=0)}, "node 2: no attribute comm_size"),
        ({1: node(2, COLLECTIVE, [1], comm_type=0, comm_size=5)}, "where rank 0 has type 0 of 4096 bytes"),
        ({1: node(2, COLLECTIVE, [1], comm_type=0, comm_size=4096, involved_dim=[True, False])}, "involved_dim is [1, 0]"),
        ({1: node(2, COMPUTE, [1], duration=1)}, "collective 0 of group all never begins on ranks [1]"),
        ({1: node(2, SEND, [1], comm_dst=1, comm_size=5)}, "goes from 1 to 1"),
        ({1: node(2, RECEIVE, [1], comm_src=0, comm_size=5), 3: node(4, COMPUTE)}, "never begins on ranks [1]"),
        ({0: node(1, COMPUTE, [4], duration=1)}, "waits for 1 nodes that never end"),
        ({0: node(1, 8)}, "node 1: type 8"),
        ({0: node(2, COMPUTE)}, "the id is also that of the node at byte"),
        ({0: node(1, COMPUTE, duration=10**11)}, "a duration of 100000000000 us"),
    ],
)
def test_what_is_wrong_with_a_graph_is_said(tmp_path, change, message):
    second = step(1)
    for index, replacement in change.items():
        second[index] = replacement
    files = write(tmp_path, [step(0), second])
    with pytest.raises(InputError) as caught:
        read_traces(files)
    assert message in str(caught.value) and caught.value.source in map(str, files) and caught.value.key.startswith("byte ")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "byte 0: the file is empty"),
        (b"\x05\x0a\x03abc\xff", "byte 6, trace: ends within a varint"),
        (b"\x00\x7f\x08", "byte 1, trace: message 1 has 127 bytes, but 1 are left"),
        (b"\x00\x02\x08\x80", "byte 3, message 1: ends within a varint"),
        (b"\x00\x0c\x08" + b"\xff" * 11, "message 1: a varint of more than ten bytes"),
        (b"\x00\x0b\x08" + b"\xff" * 9 + b"\x02", "message 1: a varint of more than 64 bits"),
        (b"\x00\x02\x0b\x00", "field 1 has wire type 3"),
        (b"\x00\x02\x00\x00", "field number 0"),
        (b"\x00\x03\x12\x05a", "field 2 has 5 bytes, but 1 are left"),
        (b"\x00\x03\x12\x01\xff", "is not UTF-8"),
        (b"\x00\x03\x0a\x01a", "id has wire type 2; accepted: wire type 0"),
        (b"\x02\x08\x01", "metadata has wire type 0"),
    ],
)
def test_what_is_wrong_with_the_wire_format_is_said(tmp_path, data, message):
    path = tmp_path / "bad.et"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_nodes(path)
    assert message in str(caught.value)


@given(data=st.data())
def test_a_damaged_trace_reads_or_the_error_says_where(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()
    files = write(folder, [step(rank) for rank in range(2)], "damaged")
    files[1].write_bytes(data.draw(mutations(files[1].read_bytes())))
    try:
        found = read_traces(files, flops=1e12)
    except InputError as error:
        assert error.source in map(str, files) and error.key and error.accepted
    else:
        assert stuck(found.messages) is None
