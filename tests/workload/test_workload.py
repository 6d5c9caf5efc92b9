"""The workload file: what it may say, how mistakes are named, and what is computed from it."""

import json
import pickle
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcp.errors import ConfigError
from dlcp.units import Delay
from dlcp.workload import DTYPE_BYTES, Layer, Workload

TIMES = st.integers(0, 10**12).map(Delay)


@st.composite
def workloads(draw, most=8):
    names = draw(st.lists(st.from_regex(r"[a-z0-9_.ü\"]{1,8}", fullmatch=True), min_size=1, max_size=most, unique=True))
    elements = draw(st.lists(st.integers(0, 10**9), min_size=len(names), max_size=len(names)).filter(any))
    return Workload(
        name=draw(st.sampled_from(["resnet50", "a/b:c"])),
        batch=draw(st.integers(1, 1024)),
        optimizer=draw(TIMES),
        note=draw(st.sampled_from(["", "measured on a laptop"])),
        layers=tuple(
            Layer(
                name=name,
                kind=draw(st.sampled_from(["", "Conv2d"])),
                elements=count,
                dtype=draw(st.sampled_from(sorted(DTYPE_BYTES))),
                forward=draw(TIMES),
                backward=draw(TIMES),
            )
            for name, count in zip(names, elements, strict=True)
        ),
    )


@given(workloads(), st.booleans())
@settings(max_examples=50)
def test_a_workload_comes_back_from_dict_json_and_toml(workload, comments):
    assert Workload.from_dict(workload.to_dict()) == workload
    assert Workload.from_dict(json.loads(json.dumps(workload.to_dict()))) == workload
    again = Workload.from_dict(tomllib.loads(workload.to_toml(comments=comments)))
    assert again == workload and again.digest() == workload.digest()
    assert pickle.loads(pickle.dumps(workload)) == workload


@given(workloads(most=3), workloads(most=3))
@settings(max_examples=50)
def test_digests_are_equal_exactly_for_equal_workloads(one, two):
    assert (one.digest() == two.digest()) == (one == two) == (one.difference(two) == [])


@given(workloads())
@settings(max_examples=50)
def test_sums_and_orders(workload):
    assert workload.sizes() == [layer.elements * DTYPE_BYTES[layer.dtype] for layer in workload.layers]
    assert workload.bytes == sum(workload.sizes())
    assert workload.elements == sum(layer.elements for layer in workload.layers)
    assert workload.compute == workload.forward + workload.backward + workload.optimizer
    with_parameters = [index for index, layer in enumerate(workload.layers) if layer.elements]
    ready = list(workload.gradients())
    assert [index for index, _, _ in ready] == with_parameters[::-1]
    for index, layer, time in ready:
        assert layer == workload.layers[index]
        assert time == sum(other.backward for other in workload.layers[index:])
    needed = list(workload.needed())
    assert [index for index, _, _ in needed] == with_parameters
    for index, layer, time in needed:
        assert layer == workload.layers[index]
        assert time == sum(other.forward for other in workload.layers[:index])


@given(workloads(), st.sampled_from([1, 2, 10]), st.sampled_from([1.0, 2.0, 0.0]))
@settings(max_examples=30)
def test_scaling(workload, times, factor):
    scaled = workload.scaled(time=factor, batch=times * workload.batch)
    assert scaled.batch == times * workload.batch and scaled.sizes() == workload.sizes()
    assert scaled.optimizer == round(factor * workload.optimizer)
    for before, after in zip(workload.layers, scaled.layers, strict=True):
        assert (after.forward, after.backward) == (times * factor * before.forward, times * factor * before.backward)
    assert workload.scaled() == workload


def test_scaling_refuses_what_makes_no_sense():
    workload = Workload.from_layers("w", [("a", 1, "9000 s")])
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="it has to be a number from 0 upwards"):
            workload.scaled(time=wrong)
    with pytest.raises(ConfigError, match="batch"):
        workload.scaled(batch=0)
    with pytest.raises(ConfigError, match=r"layers\[0\].forward: '18000 s' is out of range"):
        workload.scaled(time=2)


def test_a_list_makes_a_workload():
    layer = Layer(name="head", elements=10, dtype="float16")
    workload = Workload.from_layers("mine", [("body", 1000, "1.5 ms", Delay(7)), ("relu", 0), layer], batch=8, note="by hand")
    assert [(item.name, item.elements, item.bytes) for item in workload.layers] == [
        ("body", 1000, 4000),
        ("relu", 0, 0),
        ("head", 10, 20),
    ]
    assert workload.layers[0].forward == 15 * 10**8 and workload.layers[0].backward == 7
    assert (workload.name, workload.batch, workload.note) == ("mine", 8, "by hand")
    with pytest.raises(ConfigError, match=r"workload mine: layers\[1\].elements: -1 is out of range"):
        Workload.from_layers("mine", [("a", 1), ("b", -1)])


def test_times_can_be_numbers_with_the_unit_in_the_key():
    workload = Workload.from_dict(
        {"optimizer_ms": 2, "layers": [{"name": "a", "elements": 1, "forward_us": 1.5, "backward_ns": 3}]}
    )
    assert (workload.optimizer, workload.layers[0].forward, workload.layers[0].backward) == (2 * 10**9, 1_500_000, 3000)


@pytest.mark.parametrize(
    ("mapping", "key", "problem"),
    [
        ({}, "layers", "missing"),
        ([], "(top level)", "[] is not a table"),
        ({"layers": []}, "layers", "[] has 0 items"),
        ({"layers": [{"name": "a"}]}, "layers", "no layer has parameters"),
        ({"layers": [{"elements": 1}]}, "layers[0].name", "missing"),
        ({"layers": [{"name": "a", "element": 1}]}, "layers[0].element", "unknown key (did you mean 'elements'?)"),
        ({"layers": [{"name": "a b", "elements": 1}]}, "layers[0].name", "'a b' does not fit"),
        ({"layers": [{"name": "a", "elements": -1}]}, "layers[0].elements", "-1 is out of range"),
        ({"layers": [{"name": "a", "elements": 1.5}]}, "layers[0].elements", "1.5 is not a whole number"),
        ({"layers": [{"name": "a", "elements": 1, "dtype": "fp16"}]}, "layers[0].dtype", "'fp16' is not one of them"),
        ({"layers": [{"name": "a", "elements": 1, "forward": 3}]}, "layers[0].forward", "3 has no unit"),
        ({"layers": [{"name": "a", "elements": 1, "forward": "3 Mbit/s"}]}, "layers[0].forward", "unknown unit 'Mbit/s'"),
        ({"layers": [{"name": "a", "elements": 1, "forward_us": -3}]}, "layers[0].forward_us", "out of range"),
        ({"layers": [{"name": "a", "elements": 1, "backward": "3 hours"}]}, "layers[0].backward", "unknown unit 'hours'"),
        ({"layers": [{"name": "a", "elements": 1}] * 2}, "layers[1].name", "'a' is also the name of layers[0]"),
        ({"layers": [{"name": "a", "elements": 1}], "batch": 0}, "batch", "0 is out of range"),
        ({"layers": [{"name": "a", "elements": 1}], "note": "two\nlines"}, "note", "does not fit"),
        ({"layers": [{"name": "a", "elements": 1}], "optimizer_us": "1"}, "optimizer_us", "'1' is not a number"),
    ],
)
def test_mistakes_are_named(mapping, key, problem, tmp_path):
    with pytest.raises(ConfigError) as caught:
        Workload.from_dict(mapping, "model.toml")
    error = caught.value
    assert (error.source, error.key) == ("model.toml", key)
    assert problem in error.problem and error.accepted


def test_reading_a_file(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text('batch = 4\nlayers = [\n  { name = "a", elements = 7 },\n]\n')
    workload = Workload.from_toml(path)
    assert (workload.bytes, workload.batch) == (28, 4)
    path.write_text("layers = [{ name = 'a', elements = '7' }]")
    with pytest.raises(ConfigError, match=r"model.toml: layers\[0\].elements: '7' is not a whole number"):
        Workload.from_toml(path)
