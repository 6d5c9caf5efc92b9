"""Readers of text: HPCC, htsim, astra-sim and SimAI; what they say of right files, and of wrong ones."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.units import Buffer
from sim.readers.astra import read_text_workload, training, workload
from sim.readers.found import POLICY, stuck
from sim.readers.hpcc import read_flows, read_topology
from sim.readers.htsim import read_matrix
from sim.readers.htsim_tree import read_tree
from sim.readers.load import Options, load
from sim.readers.text import InputError
from tests.sim.mutations import mutations

HPCC = """\
5 2 5
3 4
0 3 100Gbps 1000ns 0
1 3 25Gb/s 0.001ms 0.01
2 4 100Gbps 1us 0.000000
3 4 12.5GB/s 0s 0
3 4 200Gbps 1000ns 0
"""
FLOWS = """\
3
0 2 3 100 200000000 2
1 0 0 100 1 0.000001
2 1 6 101 4096 1e-3
"""
TREE = """\
# two pods
Nodes 8
Tiers 3
Podsize 4

Tier 0
Downlink_speed_Gbps 200
Radix_Down 2
Radix_Up 2
Downlink_Latency_ns 1000
Switch_Latency_ns 300

Tier 1
Downlink_speed_Gbps 200
Radix_Down 2
Radix_Up 4
Downlink_Latency_ns 1000
Queue_Down 100000

Tier 2
Downlink_speed_Gbps 100
Radix_Down 4
Downlink_Latency_ns 2000
Bundle 2
"""
MATRIX = """\
Nodes 8
Connections 6
Triggers 3
0->1 id 1 start 0 size 1000 send_done_trigger 1
2->3 id 2 start 1500000.0 size 2000 recv_done_trigger 2
4->5 id 3 trigger 1 size 3000 recv_done_trigger 2 prio 7
6->7 id 4 trigger 2 size 10
7->6 id 5 trigger 2 size 10 send_done_trigger 3
1->0 id 6 trigger 3 size 10
trigger id 1 oneshot
trigger id 2 barrier count 2
trigger id 3 multishot
"""
SIMAI = """\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 8 all_gpus: 8 checkpoints: 1 7
3
embedding -1 556000 ALLREDUCE 1024 1 NONE 0 1 NONE 0 1
mlp -1 1000 ALLTOALL_EP 4096 2000 ALLGATHER 8192 3000 REDUCESCATTER_DP_EP 16384 1
embedding -1 0 NONE 0 0 NONE 0 10 ALLREDUCE 2048 1
"""
ASTRA = """\
DATA
2
conv1 -1 100 NONE 0 200 NONE 0 300 ALLREDUCE 4001 10
fc	-1	50	NONE	0	60	NONE	0	70	ALLREDUCE	8000	10
"""


def write(folder, text, name="file.txt"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_topology_of_hpcc(tmp_path):
    network = read_topology(write(tmp_path, HPCC), buffer=Buffer.parse("1 MB"))
    topology = network.topology
    assert [host.name for host in topology.hosts] == ["h0", "h1", "h2"] and [s.name for s in topology.switches] == ["s3", "s4"]
    assert network.hosts == {0: 0, 1: 1, 2: 2} and topology.world == 3
    described = [(link.a, link.b, int(link.rate), int(link.delay), link.loss, link.parallel) for link in topology.links]
    assert described == [
        ("h0", "s3", 10**11, 10**6, 0, False),
        ("h1", "s3", 25 * 10**9, 10**6, 0.01, False),
        ("h2", "s4", 10**11, 10**6, 0, False),
        ("s3", "s4", 10**11, 0, 0, False),
        ("s3", "s4", 2 * 10**11, 10**6, 0, True),
    ]
    assert all(link.buffer == Buffer.parse("1 MB") for link in topology.links)
    messages, notes = read_flows(write(tmp_path, FLOWS + "9 9 9\n"), network.hosts)
    assert [(m.source, m.destination, m.priority, m.size, m.start) for m in messages] == [
        (0, 2, 3, 200_000_000, 2 * 10**12),
        (1, 0, 0, 1, 10**6),
        (2, 1, 6, 4096, 10**9),
    ]
    assert all(m.bound == m.protected == POLICY for m in messages) and "1 lines after the 3 flows" in notes[0]


def test_switches_of_hpcc_may_have_any_numbers_on_several_lines(tmp_path):
    text = "4 2 3\n0\n2\n1 0 1Gbps 1us 0\n0 2 1Gbps 1us 0\n2 3 1Gbps 1us 0\n"
    network = read_topology(write(tmp_path, text))
    assert network.hosts == {1: 0, 3: 1} and network.topology.hosts[1].name == "h3"


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("5 2 5", "5 2", "line 1", "3 words: nodes, switches, links"),
        ("5 2 5", "5 5 5", "line 1", "switches is '5'"),
        ("3 4\n", "3 3\n", "line 2", "switch 3 for the second time"),
        ("3 4\n", "3 4 4\n", "line 2", "3 numbers of switches"),
        ("100Gbps 1000ns 0\n1", "100Gbit 1000ns 0\n1", "line 3", "rate is '100Gbit'; accepted: a rate such as 100Gbps"),
        ("0.001ms", "soon", "line 4", "delay is 'soon'"),
        ("0.01\n", "1.01\n", "line 4", "error rate is '1.01'"),
        ("2 4 100", "2 5 100", "line 5", "node is '5'; accepted: a whole number from 0 to 4"),
        ("2 4 100", "4 4 100", "line 5", "joins node 4 to itself"),
        ("3 4 200Gbps 1000ns 0\n", "", "line 6", "ends after 4 links; accepted: 5 links"),
        ("2 4 100Gbps", "0 4 100Gbps", "(file)", "no link leads to h2"),
    ],
)
def test_what_is_wrong_with_a_topology_is_said(tmp_path, old, new, where, message):
    assert old in HPCC
    path = write(tmp_path, HPCC.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        read_topology(path)
    assert caught.value.source == str(path) and caught.value.key == where and message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("3\n", "three\n", "line 1", "number of flows is 'three'"),
        ("3\n", "4\n", "line 4", "ends after 3 flows; accepted: 4 flows"),
        ("0 2 3", "3 2 3", "line 2", "source is 3; accepted: the number of a node of the topology that is no switch"),
        ("0 2 3", "2 2 3", "line 2", "from 2 to itself"),
        ("1 0 0 100 1", "1 0 7 100 1", "line 3", "priority group is '7'"),
        ("1 0 0 100 1 ", "1 0 0 100 0 ", "line 3", "bytes is '0'"),
        ("1e-3", "-1", "line 4", "start is '-1'"),
        ("1e-3", "1e99", "line 4", "start is '1e99'"),
        ("1e-3", "", "line 4", "5 words"),
    ],
)
def test_what_is_wrong_with_flows_is_said(tmp_path, old, new, where, message):
    path = write(tmp_path, FLOWS.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        read_flows(path, {0: 0, 1: 1, 2: 2})
    assert caught.value.key == where and message in str(caught.value)


def test_a_tree_is_wired_as_in_htsim(tmp_path):
    topology, notes = read_tree(write(tmp_path, TREE, "test.topo"))
    assert not notes
    assert len(topology.hosts) == 8 and [switch.name for switch in topology.switches if switch.name < "b"] == [
        f"agg{index}" for index in range(4)
    ]
    peers = {name: sorted(arc.target for arc in topology.graph.leaving(name)) for name in topology.graph.switches}
    assert peers["tor0"] == ["agg0", "agg1", "h0", "h1"] and peers["tor3"] == ["agg2", "agg3", "h6", "h7"]
    assert peers["agg0"] == ["core0", "core0", "core2", "core2", "tor0", "tor1"]
    assert peers["core1"] == ["agg1", "agg1", "agg3", "agg3"]
    # A packet that crosses a switch takes its latency once: half of it is on each of two links.
    assert topology.routes.delay("h0", "h1") == 2 * 10**6 + 300_000
    assert topology.routes.delay("h0", "h7") == 2 * (1000 + 1000 + 2000) * 1000 + 2 * 300_000
    assert {str(link.buffer) for link in topology.links if link.b.startswith("agg")} == {"100 kB"}
    rates = {(link.a[:3], link.b[:3]): str(link.rate) for link in topology.links}
    assert rates[("agg", "cor")] == "100 Gbit/s" and rates[("tor", "agg")] == "200 Gbit/s"


def test_a_leaf_spine_of_htsim(tmp_path):
    text = "Nodes 32\nTiers 2\nPodsize 32\nTier 0\nDownlink_speed_Gbps 100\nRadix_Down 8\nRadix_Up 2\nDownlink_Latency_ns 1000\n"
    text += "Oversubscribed 4\nTier 1\nDownlink_speed_Gbps 100\nRadix_Down 4\nDownlink_Latency_ns 1000\n"
    topology, _ = read_tree(write(tmp_path, text))
    assert len(topology.links) == 32 + 4 * 2 and len(topology.switches) == 4 + 2


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("Tiers 3", "Tiers 1", "line 2", "1 tiers"),
        ("Podsize 4\n", "", "line 2", "no Podsize"),
        ("Podsize 4", "Podsize 3", "line 2", "multiples of each other"),
        ("Tier 2\nDown", "Tier 1\nDown", "line 20", "tier 1 for the second time"),
        ("Radix_Down 2\nRadix_Up 2", "Radix_Dwon 2\nRadix_Up 2", "line 8", "did you mean 'radix_down'?"),
        ("Radix_Down 2\nRadix_Up 2", "Radix_Down 2\nRadix_Up 1", "line 6", "has 400 Gbit/s down, 200 up"),
        ("Bundle 2", "Bundle 3", "line 20", "Radix_Down 4"),
        ("Bundle 2", "Bundle 1", "line 20", "a multiple of 2 switches"),
        ("Downlink_Latency_ns 2000\n", "", "line 20", "no Downlink_Latency_ns"),
        ("Queue_Down 100000", "Queue_Down", "line 18", "1 words"),
    ],
)
def test_what_is_wrong_with_a_tree_is_said(tmp_path, old, new, where, message):
    assert old in TREE
    with pytest.raises(InputError) as caught:
        read_tree(write(tmp_path, TREE.replace(old, new, 1)))
    assert caught.value.key == where and message in str(caught.value)


def test_a_matrix_with_triggers(tmp_path):
    matrix = read_matrix(write(tmp_path, MATRIX))
    assert matrix.nodes == 8
    first, second, third, fourth, fifth, sixth, barrier = matrix.messages
    assert (first.source, first.destination, first.size, first.start, first.after) == (0, 1, 1000, 0, [])
    assert second.start == 1_500_000 and third.after == [0]
    assert barrier.source == barrier.destination and barrier.after == [1, 2]
    assert fourth.after == fifth.after == [6] and sixth.after == [4]
    assert stuck(matrix.messages) is None and "order of the file" in matrix.notes[0]


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("Connections 6", "Connections 5", "line 12", "6 connections in all; accepted: 5"),
        ("Triggers 3\n", "", "line 11", "3 triggers in all; accepted: 0"),
        ("Nodes 8\n", "", "line 1", "before the number of nodes"),
        ("0->1", "0->8", "line 4", "node 8"),
        ("0->1", "0-1", "line 4", "begins with '0-1'"),
        ("size 1000", "size 0", "line 4", "a flow without end"),
        ("size 1000", "size", "line 4", "size is 'send_done_trigger'"),
        ("start 0 ", "", "line 4", "neither start nor trigger"),
        ("trigger 1 size", "start 0 trigger 1 size", "line 6", "both start and trigger"),
        ("id 2 start", "id 1 start", "line 5", "also that of line 4"),
        ("barrier count 2", "barrier count 3", "line 11", "fired 2 times, but counts 3"),
        ("id 6 trigger 3", "id 6 trigger 9", "line 9", "trigger 9, which no line describes"),
        ("prio 7", "priority 7", "line 6", "the unknown word 'priority'"),
        ("id 1 oneshot", "id 1 oneshot barrier", "line 10", "barrier besides oneshot"),
        ("trigger id 3 multishot", "failure switch_type TOR switch_id 1 link_id 1", "line 12", "failures are not read"),
        ("6->7 id 4 trigger 2", "6->7 id 4 trigger 3", "line 12", "fired 1 times, but starts 2"),
        ("0->1 id 1 start 0 size 1000", "0->1 id 1 trigger 1 size 1000", "line 4", "waits, over triggers, for itself"),
    ],
)
def test_what_is_wrong_with_a_matrix_is_said(tmp_path, old, new, where, message):
    assert old in MATRIX
    with pytest.raises(InputError) as caught:
        read_matrix(write(tmp_path, MATRIX.replace(old, new, 1)))
    assert caught.value.key == where and message in str(caught.value)


def test_a_text_that_is_data_parallel_is_a_workload(tmp_path):
    text = read_text_workload(write(tmp_path, ASTRA))
    assert text.policy == "DATA" and text.data_parallel
    found = load("astra", [write(tmp_path, ASTRA)], Options(ranks=16))
    assert found.hosts == 16 and found.workload == workload(text, 1000)
    conv, fc = found.workload.layers
    assert (conv.name, conv.elements, str(conv.forward), str(conv.backward)) == ("conv1", 1001, "100 ns", "500 ns")
    assert fc.bytes == 8000


def test_a_text_of_simai_is_messages_of_its_groups(tmp_path):
    text = read_text_workload(write(tmp_path, SIMAI))
    assert text.header["model_parallel_NPU_group"] == 2 and text.header["all_gpus"] == 8 and not text.data_parallel
    found = training(text, unit=1000, iterations=1)
    assert found.hosts == 8 and stuck(found.messages) is None

    def pairs(group):
        return {(m.source, m.destination) for m in found.messages if m.group == group and m.source != m.destination}

    def total(group):
        return sum(m.size for m in found.messages if m.group == group and m.source != m.destination)

    tensor = {(rank, rank ^ 1) for rank in range(8)}
    assert pairs("embedding.forward") == tensor and total("embedding.forward") == 4 * 2 * 1024
    # Expert parallel: ranks with the same place in their tensor parallel group, two by two.
    assert pairs("mlp.forward") == {(rank, rank ^ 2) for rank in range(8)} and total("mlp.forward") == 8 * 4096 // 2
    assert pairs("mlp.inputs") == tensor and total("mlp.inputs") == 4 * 8192
    assert pairs("mlp.weights") == {(rank, rank ^ 4) for rank in range(8)} and total("mlp.weights") == 4 * 16384
    # Data parallel: one ring of four through all ranks of the same place.
    assert pairs("embedding.weights") == {(rank, (rank + 2) % 8) for rank in range(8)}
    assert total("embedding.weights") == 2 * 2 * 3 * 2048
    assert all(m.bound == POLICY for m in found.messages if m.group == "mlp.weights" and m.source != m.destination)
    assert all(m.bound == 0 for m in found.messages if m.group == "mlp.inputs")


def test_header_words_may_stand_on_lines_of_their_own(tmp_path):
    text = "HYBRID_DLRM\nDLRM_LAST_BOTTOM_LAYER: 1\n1\nx -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 4 1\n"
    assert read_text_workload(write(tmp_path, text)).header == {"DLRM_LAST_BOTTOM_LAYER": 1}
    text = text.replace("\nDLRM_LAST_BOTTOM_LAYER: 1\n", " 1\n")
    assert read_text_workload(write(tmp_path, text)).header == {"DLRM_LAST_BOTTOM_LAYER": 1}


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMERS", "line 1", "begins with 'HYBRID_TRANSFORMERS'"),
        ("ep: 2", "ep: two", "line 1", "ep: is 'two'"),
        ("ep: 2", "exp: 2", "line 1", "the unknown word 'exp:'"),
        ("\n3\n", "\n4\n", "line 5", "ends after 3 layers; accepted: 4 layers"),
        ("\n3\n", "\n2\n", "line 5", "a line after the last layer"),
        ("\n3\n", "\n", "line 4", "without a number of layers"),
        ("ALLREDUCE 1024", "ALLREDUCE_TP 1024", "line 3", "collective of the forward pass is 'ALLREDUCE_TP'"),
        ("556000", "-5", "line 3", "time of the forward pass is '-5'"),
        ("16384 1", "16384", "line 4", "11 words"),
        ("all_gpus: 8", "all_gpus: 6", "header", "ranks that groups divide"),
        ("all_gpus: 8", "all_gpus: 0", "header", "how many ranks there are"),
        ("all_gpus: 8", "all_gpus: 64000", "(file)", "more than 2000000 messages"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(tmp_path, old, new, where, message):
    assert old in SIMAI
    with pytest.raises(InputError) as caught:
        training(read_text_workload(write(tmp_path, SIMAI.replace(old, new, 1))), unit=1000, iterations=1)
    assert caught.value.key == where and message in str(caught.value)


def test_files_may_be_compressed_but_not_beyond_the_limit(tmp_path):
    small = write(tmp_path, gzip.compress(FLOWS.encode()), "flow.txt.gz")
    assert len(read_flows(small, {0: 0, 1: 1, 2: 2})[0]) == 3
    bomb = write(tmp_path, gzip.compress(b"1 " * 1_000_000), "bomb.gz")
    with pytest.raises(InputError, match="more than 1000 bytes"):
        read_flows(bomb, {}, limit=1000)
    with pytest.raises(InputError, match="ends in the middle"):
        read_flows(write(tmp_path, gzip.compress(FLOWS.encode())[:-9], "cut.gz"), {})
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_matrix(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"line 2: byte 7 of the file is not UTF-8"):
        read_matrix(write(tmp_path, b"Nodes 4\xff".replace(b" 4", b"\n4")))


READERS = {
    "hpcc topology": (HPCC, lambda path: read_topology(path)),
    "hpcc flows": (FLOWS, lambda path: read_flows(path, {0: 0, 1: 1, 2: 2})),
    "tree": (TREE, lambda path: read_tree(path)),
    "matrix": (MATRIX, lambda path: read_matrix(path)),
    "simai": (SIMAI, lambda path: training(read_text_workload(path), unit=1000, iterations=1, ranks=8)),
    "astra": (ASTRA, lambda path: workload(read_text_workload(path), 10**6)),
}


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_whatever_is_done_to_a_file_it_reads_or_the_error_says_where(tmp_path_factory, name, data):
    text, read = READERS[name]
    path = tmp_path_factory.getbasetemp() / f"{name.replace(' ', '-')}.txt"
    path.write_bytes(data.draw(mutations(text.encode())))
    try:
        read(path)
    except InputError as error:
        assert error.source == str(path) and error.key and error.accepted
