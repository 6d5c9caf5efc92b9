"""Counters, and their Prometheus form."""

import re

from hypothesis import given
from hypothesis import strategies as st

from dlcp.udp import render_prometheus
from dlcp.udp.metrics import PortCounters

NAME = "[a-zA-Z_][a-zA-Z0-9_]*"
LABEL = NAME + r'="(?:[^"\\\n]|\\.)*"'
LINE = re.compile(rf"^({NAME})(\{{{LABEL}(?:,{LABEL})*\}})? (\S+)$")


def test_a_snapshot_is_a_plain_dict_of_numbers():
    snapshot = PortCounters(packets_sent=3).snapshot()
    assert snapshot["packets_sent"] == 3 and all(type(value) is int for value in snapshot.values())


def test_prometheus_text():
    metrics = {"packets_sent": 3, "loss": 0.25, "faults": {"drop": [1, 2]}, "name": "ignored", "alive": True}
    assert render_prometheus(metrics, labels={"rank": 0, "job": 'a "b"\n'}) == (
        "# TYPE dlcp_packets_sent untyped\n"
        'dlcp_packets_sent{rank="0",job="a \\"b\\"\\n"} 3\n'
        "# TYPE dlcp_loss untyped\n"
        'dlcp_loss{rank="0",job="a \\"b\\"\\n"} 0.25\n'
        "# TYPE dlcp_faults_drop untyped\n"
        'dlcp_faults_drop{rank="0",job="a \\"b\\"\\n",class="0"} 1\n'
        'dlcp_faults_drop{rank="0",job="a \\"b\\"\\n",class="1"} 2\n'
        "# TYPE dlcp_alive untyped\n"
        'dlcp_alive{rank="0",job="a \\"b\\"\\n"} 1\n'
    )
    assert render_prometheus({}) == ""
    assert (
        render_prometheus({"peers": {3: {"rtt_us": 1.5}}})
        == '# TYPE dlcp_peers_rtt_us untyped\ndlcp_peers_rtt_us{peer="3"} 1.5\n'
    )


VALUES = st.recursive(
    st.one_of(st.integers(), st.floats(), st.text(), st.booleans()),
    lambda inner: st.one_of(st.dictionaries(st.text(min_size=1), inner, max_size=3), st.lists(inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1), VALUES, max_size=4), st.dictionaries(st.text(min_size=1), st.text(), max_size=2))
def test_whatever_the_metrics_the_text_is_well_formed(metrics, labels):
    text = render_prometheus(metrics, labels=labels)
    assert text == "" or text.endswith("\n")
    seen = set()
    for line in text.split("\n")[:-1]:
        if line.startswith("# TYPE "):
            name = line.split(" ")[2]
            assert name not in seen
            seen.add(name)
            continue
        match = LINE.match(line)
        assert match and match[1] == name
        float(match[3])
