"""dlcp topology: what it prints, and the exit codes."""

import json
import re

import pytest
from hypothesis import given, settings

from dlcp.cli.main import main
from dlcp.topology import FatTree, Host, LeafSpine, Link, Star, Switch, Topology
from dlcp.topology.builders import SHAPES
from dlcp.topology.drawing import draw, spans
from dlcp.topology.summary import summarize
from dlcp.units import Rate
from tests.topology.networks import networks


def output(capsys, *arguments):
    assert main(["topology", *map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(LeafSpine(oversubscription=4).build().to_toml())
    return path


def test_make_show_and_check_agree(tmp_path, capsys):
    path = tmp_path / "net.toml"
    made = LeafSpine(leaves=3, rate=Rate.parse("1 Gbit/s"), oversubscription=2.5).build("lab")
    options = ["leaf-spine", "--leaves", 3, "--rate", "1 Gbit/s", "--oversubscription", 2.5, "--name", "lab"]
    assert output(capsys, "make", *options, path) == f"wrote {path}: 12 hosts, 5 switches, 18 links, 12 ranks\n"
    assert path.read_text() == output(capsys, "make", *options) == made.to_toml()
    assert Topology.from_toml(path) == made
    assert output(capsys, "make", *options, "--comments") == made.to_toml(comments=True)
    assert json.loads(output(capsys, "make", *options, "--json")) == {"digest": made.digest(), "topology": made.to_dict()}
    assert output(capsys, "check", path) == f"{path}: valid, 12 hosts, 5 switches, 18 links, 12 ranks, digest {made.digest()}\n"
    assert json.loads(output(capsys, "check", path, "--json")) == {"source": str(path), "valid": True, "digest": made.digest()}
    again = tmp_path / "again.toml"
    again.write_text(output(capsys, "show", path, "--toml"))
    assert Topology.from_toml(again) == made
    other = tmp_path / "other.toml"
    assert json.loads(output(capsys, "make", *options, other, "--json")) == {"file": str(other), "digest": made.digest()}


@pytest.mark.parametrize("kind", SHAPES)
def test_every_kind_can_be_made_and_shown(kind, tmp_path, capsys):
    path = tmp_path / "net.toml"
    output(capsys, "make", kind, path)
    text = output(capsys, "show", path)
    topology = Topology.from_toml(path)
    assert topology.digest() in text and "bisection" in text and "oversubscription" in text
    for node in (*topology.hosts, *topology.switches):
        assert re.search(rf"\b{node.name}\b", text)
    for address in topology.addresses.values():
        assert address in text


def test_show_counts(file, capsys):
    text = output(capsys, "show", file)
    assert "16 hosts, 6 switches, 24 links, 16 ranks" in text
    assert re.search(r"bisection +20 Gbit/s each way\n", text)
    assert re.search(r"oversubscription +4:1\n", text)
    assert re.search(r"farthest +h0 to h4: 2 paths of 4 links, 4 us one way, 10 Gbit/s\n", text)
    assert re.search(r"fast domains +4: ranks 0-3 \| 4-7 \| 8-11 \| 12-15\n", text)


def test_show_json_has_the_same_and_more(file, capsys):
    document = json.loads(output(capsys, "show", file, "--json"))
    topology = Topology.from_toml(file)
    assert document["source"] == str(file) and document["digest"] == topology.digest()
    assert document["counts"] == {"hosts": 16, "switches": 6, "links": 24, "ranks": 16, "tiers": 2}
    assert document["bisection"] == {"rate_bps": 2 * 10**10, "exact": True}
    assert document["oversubscription"] == pytest.approx(4)
    assert document["fast_domains"] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert [topology.links[link].b[:5] for link in document["boundary_links"]] == ["spine"] * 8
    assert document["farthest"]["capacity_bps"] == 10**10 and document["farthest"]["path_capacity_bps"] == 5 * 10**9
    assert [kind["count"] for kind in document["link_kinds"]] == [16, 8]
    assert {host["name"]: host["ipv4"] for host in document["hosts"]} == topology.addresses
    assert document["switches"][0]["ports"][4] == {"port": 5, "peer": "spine0", "link": 16}
    assert Topology.from_dict(document["topology"]) == topology


def test_long_tables_are_cut_unless_asked_for(tmp_path, capsys):
    path = tmp_path / "net.toml"
    path.write_text(Star(hosts=30).build().to_toml())
    text = output(capsys, "show", path)
    assert "10.0.0.24" in text and "10.0.0.25" not in text and "6 more; --all shows them." in text
    assert "10.0.0.30" in output(capsys, "show", path, "--all")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["make", "star", "--hosts", "0"], "make star: --hosts: 0 is out of range; accepted: a whole number from 1 to 4096"),
        (["make", "star", "--hosts", "two"], "make star: --hosts: 'two' is not a whole number"),
        (["make", "star", "--rate", "100"], "make star: --rate: 100 has no unit"),
        (["make", "fat-tree", "--k", "3"], "make fat-tree: --k: 3 is odd"),
        (["make", "fat-tree", "--hosts-per-edge", "x"], "make fat-tree: --hosts-per-edge: 'x' is not a whole number"),
        (["make", "star", "--name", "a b"], "make star: --name: 'a b' does not fit"),
        (["show", "none.toml"], "none.toml: (file): cannot be read"),
        (["check", "none.toml"], "none.toml: (file): cannot be read"),
    ],
)
def test_mistakes_are_one_line_and_code_2(arguments, message, capsys):
    assert main(["topology", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"dlcp: {message}") and err.count("\n") == 1


def test_check_names_the_mistake_as_json(tmp_path, capsys):
    path = tmp_path / "net.toml"
    path.write_text("hosts = [{ name = 'a' }]\nlinks = [{ a = 'a', b = 'c', rate_mbps = 1 }]\n")
    assert main(["topology", "check", str(path), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "source": str(path),
        "valid": False,
        "error": {"key": "links[0].b", "problem": "there is no node 'c'", "accepted": "the name of a host or a switch"},
    }
    assert main(["topology", "check", str(path)]) == 2
    assert (
        capsys.readouterr().err == f"dlcp: {path}: links[0].b: there is no node 'c'; accepted: the name of a host or a switch\n"
    )


def test_files_are_never_overwritten(file, tmp_path, capsys):
    before = file.read_text()
    assert main(["topology", "make", "star", str(file)]) == 2
    assert "is there already" in capsys.readouterr().err and file.read_text() == before
    assert main(["topology", "make", "star", str(tmp_path / "no" / "where.toml")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_drawing_of_a_leaf_spine():
    topology = LeafSpine(leaves=2, spines=2, hosts_per_leaf=2, uplinks=2, ranks_per_host=2).build()
    assert draw(topology).splitlines() == [
        " spine0     2--------2",
        " spine1     2--------2",
        "            |        |",
        "          leaf0    leaf1",
        "         h0 r0-1  h2 r4-5",
        "         h1 r2-3  h3 r6-7",
    ]


def test_drawing_of_odd_networks():
    names = ("top", "a", "b", "c")
    wires = [("top", "a"), ("top", "c"), ("a", "b"), ("b", "c"), ("h0", "a"), ("h1", "c"), ("h2", "b"), ("h2", "h0")]
    topology = Topology(
        hosts=tuple(Host(name=f"h{index}") for index in range(3)),
        switches=tuple(Switch(name=name) for name in names),
        links=tuple(Link(a=a, b=b, rate=Rate(10**6)) for a, b in wires),
    )
    assert draw(topology).splitlines() == [
        " top   o-----------o",
        "       o-----o     |",
        "       |     o-----o",
        "       |     |     |",
        "       a     b     c",
        "      h0 -  h2 -  h1 -",
        "and h0 - h2",
    ]
    assert draw(topology, width=12) == ""
    back_to_back = Topology(hosts=topology.hosts[:2], links=(Link(a="h0", b="h1", rate=Rate(10**6)),))
    assert draw(back_to_back) == ""
    crossing = draw(FatTree(k=4).build()).splitlines()
    assert crossing[2].split("core2")[1].startswith("    |       o-------+-------o")


@given(networks())
@settings(max_examples=30)
def test_anything_small_can_be_drawn_and_summed_up(topology):
    drawing = draw(topology, width=200)
    for node in (*topology.hosts, *topology.switches):
        assert re.search(rf"\b{node.name}\b", drawing)
    assert not any(line != line.rstrip() for line in drawing.splitlines())
    assert json.loads(json.dumps(summarize(topology), allow_nan=False))["counts"]["links"] == len(topology.links)


def test_spans():
    assert [spans(numbers) for numbers in ([], [3], [0, 1, 2], [7, 1, 0, 5, 6], [1, 3])] == ["", "3", "0-2", "0-1,5-7", "1,3"]
