"""Configuration for switches without P4: the same classes and thresholds whatever the vendor, and names that fit."""

import json
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.errors import ConfigError
from dlcp.fabric.export import VENDORS, export_text
from dlcp.fabric.export.bpf import R0, R1, R2, Assembler
from dlcp.fabric.export.classifier import Thresholds, classifier
from dlcp.fabric.export.commodity import interface, plan, ramp
from dlcp.policy import Classes, Policy, Switches
from dlcp.topology import Topology
from dlcp.units import Buffer

FRAME = 1514


def network(*buffers):
    hosts = [{"name": f"h{index}"} for index in range(len(buffers))]
    links = [{"a": f"h{i}", "b": "s0", "rate": "10 Gbit/s", "buffer": str(buffer)} for i, buffer in enumerate(buffers)]
    return Topology.from_dict({"name": "lab", "hosts": hosts, "switches": [{"name": "s0"}], "links": links})


NETWORK = network(Buffer(100, "packets"), Buffer(100, "packets"), Buffer(1_000_000, "bytes"))
POLICY = Policy(switch=Switches(mark_share=0.25, drop_share=0.5))


@given(
    st.lists(st.integers(0, 63), min_size=8, max_size=8),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(sorted(VENDORS)),
)
def test_any_policy_gives_a_configuration(dscp, mark, drop, vendor):
    policy = Policy(classes=Classes(dscp=tuple(dscp)), switch=Switches(mark_share=mark, drop_share=drop))
    text = export_text(vendor, NETWORK, policy, "s0")
    assert text.endswith("\n") and len(text) < 100_000
    done = plan(NETWORK, policy, "s0")
    for value in range(64):
        classes = [priority for priority in range(8) if dscp[priority] == value]
        assert done.queue_of[value] == max(classes, default=0)
    for port in done.ports:
        assert (port.mark_bytes is None) == (mark == 1) and (port.drop_bytes is None) == (drop == 1)
        assert all(1 <= each <= port.limit_bytes for each in (port.mark_bytes, port.drop_bytes) if each is not None)


def test_sonic():
    tables = json.loads(export_text("sonic", NETWORK, POLICY, "s0"))
    assert set(tables["PORT_QOS_MAP"]) == {"Ethernet0", "Ethernet4", "Ethernet8"}
    assert tables["PORT_QOS_MAP"]["Ethernet0"]["dscp_to_tc_map"] in tables["DSCP_TO_TC_MAP"]
    assert tables["PORT_QOS_MAP"]["Ethernet0"]["tc_to_queue_map"] in tables["TC_TO_QUEUE_MAP"]
    (dscp,) = tables["DSCP_TO_TC_MAP"].values()
    assert len(dscp) == 64 and [dscp[str(8 * c)] for c in range(8)] == [str(c) for c in range(8)] and dscp["49"] == "0"
    assert len(tables["QUEUE"]) == 24
    for name, queue in tables["QUEUE"].items():
        port, number = name.split("|")
        assert tables["SCHEDULER"][queue["scheduler"]] == {"type": "STRICT"}
        if number == "7":
            assert "wred_profile" not in queue
            continue
        profile = tables["WRED_PROFILE"][queue["wred_profile"]]
        low, high = (250_000, 500_000) if port == "Ethernet8" else (25 * FRAME, 50 * FRAME)
        assert profile["ecn"] == "ecn_all"
        for colour in ("green", "yellow", "red"):
            assert profile[f"wred_{colour}_enable"] == "true"
            assert (profile[f"{colour}_min_threshold"], profile[f"{colour}_max_threshold"]) == (str(low), str(high))
    # All values are strings, as in the configuration database.
    assert re.search(r":\s*(\d|true|false|null)", json.dumps(tables)) is None


def test_nvue():
    lines = export_text("nvue", NETWORK, POLICY, "s0").splitlines()
    assert all(re.fullmatch(r"nv (set|config) [\w .,{}/-]+", line) for line in lines) and lines[-1] == "nv config apply"
    text = "\n".join(lines)
    assert "nv set qos mapping default-global dscp 48 switch-priority 6\n" in text
    assert "nv set qos egress-scheduler default-global traffic-class 0-7 mode strict\n" in text
    assert f"nv set qos congestion-control dlcp-0 traffic-class 0-6 min-threshold {25 * FRAME}\n" in text
    assert "nv set qos congestion-control dlcp-1 traffic-class 0-6 max-threshold 500000\n" in text
    assert "nv set interface swp3 qos congestion-control profile dlcp-1" in text
    dscp = [value for line in lines for value in re.findall(r"dscp (\S+) switch", line)]
    assert sorted(int(value) for part in dscp for value in part.split(",")) == list(range(64))


def test_eos():
    text = export_text("eos", NETWORK, POLICY, "s0")
    assert "qos map dscp 56 to traffic-class 7\n" in text
    assert text.count("priority strict") == 16 and text.count("random-detect") == 2 * 2 * 7
    assert f"random-detect drop minimum-threshold {50 * FRAME} bytes maximum-threshold {50 * FRAME} bytes" in text
    assert "random-detect ecn minimum-threshold 250000 bytes maximum-threshold 250000 bytes" in text
    assert "interface Ethernet3\n   service-profile dlcp-1\n" in text


def test_nothing_is_dropped_or_marked_if_the_policy_says_so():
    never = Policy(switch=Switches(mark_share=1, drop_share=1))
    assert "wred_profile" not in export_text("sonic", NETWORK, never, "s0")
    assert "congestion-control" not in export_text("nvue", NETWORK, never, "s0")
    assert "random-detect" not in export_text("eos", NETWORK, never, "s0")
    (port, *_) = plan(NETWORK, Policy(switch=Switches(mark_share=1, drop_share=0.5)), "s0").ports
    assert ramp(port) == (50 * FRAME, 50 * FRAME)


def test_names_of_interfaces():
    assert interface("Ethernet{port0x4}", 3) == "Ethernet8"
    assert interface("Ethernet1/{port}", 3) == "Ethernet1/3"
    assert interface("swp{port0}", 3) == "swp2"
    for pattern in ("", "eth 0", "{port}", "eth{port};rm", "e" * 70):
        with pytest.raises(ConfigError, match="makes no name"):
            interface(pattern, 1)
    assert set(json.loads(export_text("sonic", NETWORK, POLICY, "s0", "Eth{port}"))["PORT_QOS_MAP"]) == {"Eth1", "Eth2", "Eth3"}


def test_what_cannot_be_exported():
    with pytest.raises(ConfigError, match="accepted: sonic, nvue, eos, tc"):
        export_text("acme", NETWORK, POLICY, "s0")
    with pytest.raises(ConfigError, match="there is no switch 'h0'"):
        export_text("tc", NETWORK, POLICY, "h0")


def test_the_assembler_encodes_as_the_standard_says():
    program = Assembler()
    program.alu("mov", R0, -1)
    program.alu_register("add", R0, R1)
    program.load(4, R2, R1, 16)
    program.jump_if("lt", R2, 0x86DD, "end")
    program.constant(R2, 0x1122334455667788)
    program.map_value(R2)
    program.store(8, R1, -8, R2)
    program.label("end")
    program.leave()
    code = program.assemble()
    # RFC 9669: MOV64 K = 0xb7, ADD64 X = 0x0f, LDX MEM W = 0x61, JLT K = 0xa5, LD IMM DW = 0x18, STX MEM DW = 0x7b, EXIT = 0x95.
    assert [code[at] for at in range(0, len(code), 8)] == [0xB7, 0x0F, 0x61, 0xA5, 0x18, 0, 0x18, 0, 0x7B, 0x95]
    assert code[:8] == b"\xb7\x00\x00\x00\xff\xff\xff\xff"
    assert struct.unpack_from("<h", code, 3 * 8 + 2)[0] == 5
    assert (
        struct.unpack_from("<I", code, 4 * 8 + 4)[0] == 0x55667788 and struct.unpack_from("<I", code, 5 * 8 + 4)[0] == 0x11223344
    )
    assert program.maps == [6] and code[6 * 8 + 1] == R2 | 2 << 4
    program.jump("nowhere")
    with pytest.raises(ValueError, match="no label nowhere"):
        program.assemble()
    with pytest.raises(ValueError, match="there already"):
        program.label("end")


def test_a_number_that_does_not_fit_is_refused():
    program = Assembler()
    program.alu("mov", R0, 1 << 32)
    with pytest.raises(ValueError, match="does not fit"):
        program.assemble()


@given(st.integers(1000, 1 << 41), st.integers(1, 1 << 40), st.integers(1, 1 << 40))
def test_the_classifier_is_short_at_any_rate(rate, mark, limit):
    code, maps = classifier(Thresholds(rate, mark, mark, limit, tuple(range(8)), 0, 0x10))
    assert len(code) % 8 == 0 and len(code) // 8 < 400 and len(maps) == 1
