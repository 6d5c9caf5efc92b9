"""The policy: what it accepts, what it refuses and how it says so, and what is computed from it."""

import dataclasses
import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dlcp.errors import ConfigError
from dlcp.policy import ECN_BITS, Classes, Congestion, Loss, Policy, Protection, Timeouts, Wire
from dlcp.wire.header import HEADER_BYTES

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def numbers(low, high, **how):
    return st.one_of(st.floats(low, high, **how), st.integers(int(low) + (how.get("exclude_min", False)), int(high)))


ECN = st.sampled_from(["ect0", "ect1", "not-ect"])
NOT_STRINGS = [0, 1.5, True, [], {}, None]
NOT_NUMBERS = ["1", True, False, None, [1], {}, "auto"]
UNREAL = [float("nan"), float("inf"), float("-inf"), 10**400, -(10**400)]

# Key -> (what is accepted, what is not).  Written down here a second time on purpose: this is the contract.
KEYS = {
    "classes.count": (st.integers(1, 7), [0, 8, -1, 7.0, *NOT_NUMBERS]),
    "classes.dscp": (
        st.lists(st.integers(0, 63), min_size=8, max_size=8),
        [
            [0] * 7,
            [0] * 9,
            [0] * 7 + [64],
            [0] * 7 + [-1],
            [0] * 7 + [1.0],
            [0] * 7 + [True],
            [0] * 7 + ["1"],
            "01234567",
            3,
            {},
            None,
        ],
    ),
    "classes.ecn_protected": (ECN, ["ce", "ECT0", "", "ect2", *NOT_STRINGS]),
    "classes.ecn_droppable": (ECN, ["ce", "not_ect", "", *NOT_STRINGS]),
    "protection.share": (numbers(0, 1), [-0.01, 1.01, 2, *UNREAL, *NOT_NUMBERS]),
    "protection.sample": (st.integers(1, 1_000_000), [0, -8, 8.0, 1_000_001, *NOT_NUMBERS]),
    "loss.push": (numbers(0, 0.5), [-0.01, 0.51, 1, *UNREAL, *NOT_NUMBERS]),
    "loss.push_by_class": (
        st.lists(numbers(0, 0.5), max_size=7),
        [[0.1] * 8, [0.51], [-0.1], [True], ["0.1"], [float("nan")], 0.1, "0.1", {}, None],
    ),
    "loss.bound": (st.sampled_from(["fixed", "adaptive"]), ["Adaptive", "", "none", *NOT_STRINGS]),
    "loss.bound_window": (st.integers(1, 1_000_000), [0, -1, 1.0, 1_000_001, *NOT_NUMBERS]),
    "loss.evenness": (numbers(0, 1000), [-0.1, 1000.1, *UNREAL, *NOT_NUMBERS]),
    "loss.pull": (numbers(0, 0.5), [-0.01, 0.51, 1, *UNREAL, *NOT_NUMBERS]),
    "loss.resync_steps": (st.integers(0, 1_000_000_000), [-1, 1.0, 1_000_000_001, *NOT_NUMBERS]),
    "loss.compensation": (st.sampled_from(["error-feedback", "zero", "rescale"]), ["error_feedback", "Zero", "", *NOT_STRINGS]),
    "grace.factor": (numbers(0, 1000), [-1, 1001, *UNREAL, *NOT_NUMBERS]),
    "grace.floor_ms": (numbers(0, 60_000), [-1, 60_001, *UNREAL, *NOT_NUMBERS]),
    "congestion.algorithm": (st.sampled_from(["dctcp", "delay", "fixed"]), ["cubic", "DCTCP", "", *NOT_STRINGS]),
    "congestion.rate_mbps": (numbers(0, 1_000_000), [-1, 1_000_001, *UNREAL, *NOT_NUMBERS]),
    "congestion.initial_window_packets": (st.integers(1, 65_535), [0, 65_536, 16.0, *NOT_NUMBERS]),
    "congestion.max_window_bytes": (st.integers(4 * KIB, 2 * GIB), [4 * KIB - 1, 2 * GIB + 1, 8e6, *NOT_NUMBERS]),
    "congestion.target_delay_us": (numbers(0, 1e7, exclude_min=True), [0, 0.0, -1, 1e7 + 1, *UNREAL, *NOT_NUMBERS]),
    "congestion.gain": (numbers(0, 1, exclude_min=True), [0, 1.1, *UNREAL, *NOT_NUMBERS]),
    "timeouts.connect_s": (numbers(0, 86_400, exclude_min=True), [0, -1, 86_401, *UNREAL, *NOT_NUMBERS]),
    "timeouts.peer_s": (numbers(0, 86_400, exclude_min=True), [0, -1, 86_401, *UNREAL, *NOT_NUMBERS]),
    "timeouts.operation_s": (numbers(0, 604_800, exclude_min=True), [0, -1, 604_801, *UNREAL, *NOT_NUMBERS]),
    "timeouts.probe_min_ms": (numbers(0, 60_000, exclude_min=True), [0, -1, 60_001, *UNREAL, *NOT_NUMBERS]),
    "timeouts.probe_max_ms": (numbers(0, 60_000, exclude_min=True), [0, -1, 60_001, *UNREAL, *NOT_NUMBERS]),
    "wire.mtu": (
        st.one_of(st.just("auto"), st.integers(576, 65_535)),
        [0, 575, 65_536, 1500.0, True, "1500", "Auto", "", None, [1500], {}],
    ),
    "wire.dtype": (st.sampled_from(["float32", "float16", "bfloat16"]), ["float64", "fp16", "int8", *NOT_STRINGS]),
    "wire.message_bytes": (st.integers(256, GIB), [255, 0, -1, GIB + 1, 1e6, *NOT_NUMBERS]),
    "memory.early_bytes": (st.integers(64 * KIB, 1024 * GIB), [64 * KIB - 1, 1024 * GIB + 1, 1e9, *NOT_NUMBERS]),
    "memory.receive_buffer_bytes": (st.integers(4 * KIB, GIB - 1), [4 * KIB - 1, GIB, 1e7, *NOT_NUMBERS]),
    "switch.mark_share": (numbers(0, 1), [-0.01, 1.01, 2, *UNREAL, *NOT_NUMBERS]),
    "switch.drop_share": (numbers(0, 1), [-0.01, 1.01, 2, *UNREAL, *NOT_NUMBERS]),
    "switch.overload": (st.sampled_from(["drop", "trim"]), ["mark", "Trim", "", *NOT_STRINGS]),
    "switch.spray": (st.sampled_from(["round-robin", "random", "hash"]), ["round_robin", "ecmp", "", *NOT_STRINGS]),
    "switch.stamp_depth": (st.booleans(), [0, 1, "true", 1.0, None, [], {}]),
    "switch.trust_dscp": (st.booleans(), [0, 1, "false", None, [], {}]),
    "switch.isolation": (st.sampled_from(["none", "demote", "refuse"]), ["off", "Refuse", "", *NOT_STRINGS]),
}


def nested(values):
    """{"loss.push": 1} -> {"loss": {"push": 1}}"""
    out = {}
    for key, value in values.items():
        head, leaf = key.split(".")
        out.setdefault(head, {})[leaf] = value
    return out


@st.composite
def mappings(draw):
    """Any subset of the keys with accepted values, the rules between keys satisfied."""
    chosen = draw(st.lists(st.sampled_from(sorted(KEYS)), unique=True))
    values = {key: draw(KEYS[key][0]) for key in chosen}
    if values.get("loss.pull", 0) > 0:
        values["loss.resync_steps"] = draw(st.integers(1, 100))
    else:
        values.pop("loss.resync_steps", None)
    if values.get("congestion.algorithm") == "fixed":
        values["congestion.rate_mbps"] = draw(st.floats(1, 1e5))
    lower, upper = values.get("timeouts.probe_min_ms", 2.0), values.get("timeouts.probe_max_ms", 200.0)
    if lower > upper or upper >= 1000 * values.get("timeouts.peer_s", 10.0):
        values.update({"timeouts.probe_min_ms": 1.0, "timeouts.probe_max_ms": 2.0, "timeouts.peer_s": 3.0})
    if isinstance(values.get("wire.mtu"), int):
        payload = payload_of(values["wire.mtu"])
        values["wire.message_bytes"] = draw(st.integers(payload, GIB))
    return nested(values)


def payload_of(mtu):
    return (mtu - 20 - 8 - HEADER_BYTES) // 8 * 8


@given(mappings())
def test_what_is_accepted_comes_back_from_dict_json_and_toml(mapping):
    policy = Policy.from_dict(mapping)
    assert Policy.from_dict(policy.to_dict()) == policy
    assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    for comments in (False, True):
        assert Policy.from_dict(tomllib.loads(policy.to_toml(comments=comments))) == policy
    for head, part in mapping.items():
        for leaf, value in part.items():
            stored = getattr(getattr(policy, head), leaf)
            assert stored == (tuple(value) if isinstance(value, list) else value)


@given(mappings(), mappings())
def test_digest_is_equal_exactly_when_nothing_differs(one, two):
    left, right = Policy.from_dict(one), Policy.from_dict(two)
    assert (left.digest() == right.digest()) == (left == right) == (left.difference(right) == [])
    assert sorted(left.difference(right)) == sorted(right.difference(left))
    again = Policy.from_dict({head: dict(reversed(part.items())) for head, part in reversed(one.items())})
    assert again.digest() == left.digest()


def test_the_contract_covers_every_key():
    here = {f"{head}.{leaf}" for head, part in Policy().to_dict().items() for leaf in part}
    assert here == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_every_refused_value_is_named_with_file_key_and_what_is_accepted(key):
    for value in KEYS[key][1]:
        with pytest.raises(ConfigError) as caught:
            Policy.from_dict(nested({key: value}), source="lab.toml")
        error = caught.value
        assert error.source == "lab.toml"
        assert error.key == key or (key in ("classes.dscp", "loss.push_by_class") and error.key[:-3] == key)
        assert error.accepted
        assert str(error) == f"lab.toml: {error.key}: {error.problem}; accepted: {error.accepted}"
        assert len(str(error)) < 300 and "\n" not in str(error)


@pytest.mark.parametrize("key", KEYS)
def test_a_single_change_changes_the_digest_and_is_named(key):
    companions = {
        "loss.pull": {"loss.resync_steps": 5},
        "loss.resync_steps": {"loss.pull": 0.1},
        "wire.mtu": {"wire.mtu": 1500},
    }.get(key, {})
    other = {
        "classes.count": 3,
        "classes.dscp": [1, 8, 16, 24, 32, 40, 48, 56],
        "classes.ecn_protected": "ect1",
        "classes.ecn_droppable": "ect0",
        "protection.share": 0.5,
        "protection.sample": 1,
        "loss.push": 0,
        "loss.push_by_class": [0.01],
        "loss.bound": "adaptive",
        "loss.pull": 0.01,
        "loss.resync_steps": 7,
        "loss.compensation": "zero",
        "congestion.algorithm": "delay",
        "congestion.rate_mbps": 5,
        "timeouts.peer_s": 11,
        "wire.mtu": 9000,
        "wire.dtype": "float16",
        "switch.overload": "drop",
        "switch.spray": "hash",
        "switch.stamp_depth": False,
        "switch.trust_dscp": True,
        "switch.isolation": "refuse",
    }
    base = Policy.from_dict(nested(companions if key not in ("loss.pull", "loss.resync_steps") else {}))
    value = other.get(key)
    if value is None:
        head, leaf = key.split(".")
        value = getattr(getattr(base, head), leaf) * 2
    changed = Policy.from_dict(nested({**companions, key: value}))
    assert base.digest() != changed.digest()
    assert base.difference(changed) == (
        ["loss.pull", "loss.resync_steps"] if key in ("loss.pull", "loss.resync_steps") else [key]
    )


def test_digest_does_not_depend_on_platform_or_version_of_python():
    # A constant: ranks on different hosts compare digests.  It changes when a key or a default does.
    assert Policy().digest() == "b8866abe825fab3bdcd1ee41eb9f492b"


def test_minus_zero_is_zero():
    assert Policy(loss=Loss(push=-0.0)).digest() == Policy(loss=Loss(push=0)).digest()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_other_data_is_refused_or_accepted_but_never_crashes(data):
    for mapping in (data, {"loss": data}, {"loss": {"push": data}}, {"wire": {"mtu": data}}, {"classes": {"dscp": data}}):
        try:
            Policy.from_dict(mapping)
        except ConfigError as error:
            assert error.accepted and error.key


@pytest.mark.parametrize(
    ("mapping", "key", "hint"),
    [
        ({"los": {}}, "los", "did you mean 'loss'"),
        ({"loss": {"pusch": 0.1}}, "loss.pusch", "did you mean 'push'"),
        ({"push": 0.1}, "push", "did you mean 'loss.push'"),
        ({"loss": {"compensation": "error-fedback"}}, "loss.compensation", "did you mean 'error-feedback'"),
        ({"wire": {"zzz": 1}}, "wire.zzz", "unknown key"),
        ({3: 1}, "3", "unknown key"),
        ({"loss": 3}, "loss", "not a table"),
        ({"loss": [{"push": 0.1}]}, "loss", "not a table"),
        ("loss", "(top level)", "not a table"),
    ],
)
def test_unknown_keys_and_near_misses(mapping, key, hint):
    with pytest.raises(ConfigError) as caught:
        Policy.from_dict(mapping)
    assert caught.value.key == key
    assert hint in caught.value.problem
    assert caught.value.source == "<dict>"


@pytest.mark.parametrize(
    ("mapping", "key"),
    [
        ({"loss": {"pull": 0.1}}, "loss.resync_steps"),
        ({"loss": {"resync_steps": 5}}, "loss.resync_steps"),
        ({"congestion": {"algorithm": "fixed"}}, "congestion.rate_mbps"),
        ({"timeouts": {"probe_min_ms": 300}}, "timeouts.probe_min_ms"),
        ({"timeouts": {"probe_max_ms": 10_000}}, "timeouts.probe_max_ms"),
        ({"timeouts": {"peer_s": 0.2}}, "timeouts.probe_max_ms"),
        ({"wire": {"mtu": 1500, "message_bytes": 1000}}, "wire.message_bytes"),
    ],
)
def test_rules_between_keys(mapping, key):
    with pytest.raises(ConfigError) as caught:
        Policy.from_dict(mapping)
    assert caught.value.key == key


def test_invalid_objects_cannot_be_made_directly_or_by_replace():
    with pytest.raises(ConfigError, match=r"push: 2 is out of range"):
        Loss(push=2)
    with pytest.raises(ConfigError, match="true is not a number"):
        Protection(share=True)
    with pytest.raises(ConfigError, match="loss: 'x' is not a table"):
        Policy(loss="x")
    with pytest.raises(ConfigError):
        dataclasses.replace(Loss(), pull=0.1)
    with pytest.raises(TypeError):
        Loss(0.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Loss().push = 0.2
    assert Classes(dscp=[1] * 8).dscp == (1,) * 8
    assert isinstance(Loss(push=0).push, float)
    assert hash(Policy()) == hash(Policy())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"loss = ", "is not TOML"),
        (b"[loss]\npush = 0.1\npush = 0.2\n", "is not TOML"),
        (b'[loss]\npush = "\xff"\n', "byte 15 is not UTF-8"),
        (b"x = " + b"[" * 100_000, "is not TOML"),
        (b"x = " + b"9" * 10_000, "is not TOML"),
        (None, "cannot be read"),
    ],
)
def test_files_that_are_not_toml(tmp_path, content, problem):
    path = tmp_path / "policy.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Policy.from_toml(path)
    assert caught.value.source == str(path)
    assert problem in caught.value.problem


def test_a_directory_is_not_a_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        Policy.from_toml(tmp_path)


def test_reads_a_file_and_names_it(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text("[loss]\npush = 0.125\n")
    assert Policy.from_toml(path) == Policy.from_toml(str(path)) == Policy(loss=Loss(push=0.125))
    path.write_text("[loss]\npush = 0.9\n")
    with pytest.raises(ConfigError, match=rf"{path}: loss\.push: 0\.9 is out of range; accepted: a number from 0 to 0\.5"):
        Policy.from_toml(path)


def test_the_sample_file_holds_the_defaults_and_explains_every_key(project: Path):
    path = project / "policies" / "default.toml"
    assert path.read_text() == Policy().to_toml(comments=True)
    assert Policy.from_toml(path) == Policy()
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if " = " in line and not line.startswith("#"):
            assert lines[number - 1].startswith("# "), line


@pytest.mark.parametrize("path", sorted(Path(__file__).resolve().parents[2].glob("policies/*.toml")), ids=lambda p: p.name)
def test_every_policy_that_ships_is_valid(path):
    Policy.from_toml(path)


@given(mappings(), st.integers(0, 7), st.booleans())
def test_tos(mapping, priority, protected):
    policy = Policy.from_dict(mapping)
    tos = policy.tos(priority, protected)
    assert tos >> 2 == policy.classes.dscp[priority]
    assert tos & 3 == ECN_BITS[policy.classes.ecn_protected if protected else policy.classes.ecn_droppable]
    assert 0 <= tos <= 255 and tos & 3 != 0b11


def test_tos_defaults_and_bounds():
    assert Policy().tos(7, True) == 0xE2
    assert Policy().tos(3, False) == 0x60
    for priority in (-1, 8):
        with pytest.raises(ValueError, match="classes are 0 to 7"):
            Policy().tos(priority, False)


@given(st.integers(0, 70_000), st.booleans())
def test_payload_fills_the_mtu_to_the_last_multiple_of_8(mtu, ipv6):
    header = (40 if ipv6 else 20) + 8 + HEADER_BYTES
    try:
        payload = Policy().payload_bytes(mtu, ipv6)
    except ConfigError as error:
        assert mtu - header < 256 if error.key == "wire.mtu" else error.key == "wire.message_bytes" and mtu - header < 512
        return
    assert payload % 8 == 0 and payload >= 256
    assert payload + header <= min(mtu, 65_535) < payload + header + 8


@given(st.integers(576, 65_535), st.integers(256, GIB))
def test_a_message_is_at_least_a_packet(mtu, message):
    policy = Policy(wire=Wire(message_bytes=message))
    payload = payload_of(mtu)
    fits = message >= payload
    try:
        assert policy.payload_bytes(mtu) == payload
        assert fits
    except ConfigError as error:
        assert not fits and error.key == "wire.message_bytes"


def test_payload_of_common_mtus():
    assert Policy().payload_bytes(1500) == 1424
    assert Policy().payload_bytes(9000) == 8920
    assert Policy().payload_bytes(1500, ipv6=True) == 1400


@given(st.integers(68, 100_000))
def test_auto_mtu_is_the_interfaces_up_to_a_cap_and_a_number_stands(interface):
    assert Wire().datagram_mtu(interface) == min(interface, 65_535)
    assert Wire(mtu=1500).datagram_mtu(interface) == 1500


def test_fixed_rate_and_timeouts_can_be_set_together():
    assert Congestion(algorithm="fixed", rate_mbps=100).rate_mbps == 100.0
    assert Timeouts(peer_s=0.1, probe_max_ms=50).peer_s == 0.1


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_no_float_slips_through_a_range(value):
    assume(not 0 <= value <= 0.5)
    with pytest.raises(ConfigError):
        Loss(push=value)
