"""Computed layers agree with what is published, and with what torch makes of the same architecture."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dlcp.workload import Workload
from dlcp.workload.architectures import ARCHITECTURES, Tape, digits, resnet50, sample, vgg16
from examples.models import DigitsNet


@pytest.mark.parametrize("width", [1, 8, 32])
def test_digits_is_the_model_of_the_example(width):
    model = DigitsNet(width)
    modules = [
        (name, module) for name, module in model.named_modules() if next(module.parameters(recurse=False), None) is not None
    ]
    workload = digits(width).workload("digits", 4, 1e9)
    assert [(layer.name, layer.kind, layer.elements) for layer in workload.layers] == [
        (name, type(module).__name__, sum(parameter.numel() for parameter in module.parameters())) for name, module in modules
    ]


def test_resnet50_has_its_published_size():
    tape = resnet50()
    workload = tape.workload("resnet50", 1, 1e12)
    layers = {layer.name: layer for layer in workload.layers}
    assert workload.elements == 25_557_032
    assert len([layer for layer in workload.layers if layer.kind == "Conv2d"]) == 53
    assert tape.shape == (1000, 1, 1)
    convolutions = sum(macs for layer, macs in zip(workload.layers, tape.macs, strict=True) if layer.kind != "BatchNorm2d")
    assert convolutions == 4_089_184_256
    assert layers["conv1"].elements == 9408 and layers["fc"].elements == 2_049_000
    assert layers["layer2.0.downsample.0"].elements == 256 * 512 and layers["layer4.2.conv2"].elements == 512 * 512 * 9
    order = [layer.name for layer in workload.layers]
    assert order[:2] == ["conv1", "bn1"] and order[-1] == "fc"
    assert order.index("layer1.0.downsample.1") < order.index("layer1.1.conv1")


def test_vgg16_has_its_published_size():
    tape = vgg16()
    workload = tape.workload("vgg16", 1, 1e12, dtype="float16")
    assert workload.elements == 138_357_544 and workload.bytes == 2 * 138_357_544
    assert sum(tape.macs) == 15_470_264_320
    assert [layer.elements for layer in workload.layers[-3:]] == [102_764_544, 16_781_312, 4_097_000]
    assert [layer.name for layer in workload.layers[:3]] == ["features.0", "features.2", "features.5"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_samples_are_what_the_code_computes(name, project):
    path = project / "workloads" / f"{name}.toml"
    assert path.read_text() == sample(name).to_toml()
    workload = Workload.from_toml(path)
    assert workload == sample(name)
    assert workload.backward == 2 * workload.forward
    assert all(layer.forward > 0 for layer in workload.layers)


def test_every_sample_is_known(project):
    assert {path.stem for path in (project / "workloads").glob("*.toml")} == set(ARCHITECTURES)


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("conv"), st.integers(1, 4), st.sampled_from([1, 3, 5]), st.integers(1, 3), st.integers(0, 2), st.booleans()
        ),
        st.tuples(st.just("norm")),
        st.tuples(st.just("pool"), st.integers(1, 3), st.integers(1, 2), st.integers(0, 1)),
    ),
    max_size=6,
)


@given(steps=STEPS, outputs=st.integers(1, 9), average=st.booleans())
@settings(max_examples=50)
def test_shapes_and_parameters_are_those_of_torch(steps, outputs, average):
    tape, values = Tape((3, 23, 17)), torch.empty(1, 3, 23, 17, device="meta")
    parameters = []

    def follow(module):
        nonlocal values
        values = module.to("meta").eval()(values)
        if count := sum(parameter.numel() for parameter in module.parameters()):
            parameters.append(count)

    for number, (what, *how) in enumerate(steps):
        _, height, width = tape.shape
        if what == "norm":
            tape.batch_norm(f"{number}")
            follow(nn.BatchNorm2d(values.shape[1]))
        elif what == "conv":
            channels, kernel, stride, padding, bias = how
            if min(height, width) + 2 * padding < kernel:
                continue
            tape.conv(f"{number}", channels, kernel, stride=stride, padding=padding, bias=bias)
            follow(nn.Conv2d(values.shape[1], channels, kernel, stride, padding, bias=bias))
        else:
            kernel, stride, padding = how
            if min(height, width) + 2 * padding < kernel or padding > kernel // 2:
                continue
            tape.pool(kernel, stride=stride, padding=padding)
            follow(nn.MaxPool2d(kernel, stride, padding))
        assert tape.shape == tuple(values.shape[1:])
    tape.flatten(average=average)
    values = values.mean((2, 3)) if average else values.flatten(1)
    tape.linear("last", outputs)
    follow(nn.Linear(values.shape[1], outputs))
    assert tape.shape == (outputs, 1, 1)
    assert [layer.elements for layer in tape.workload("random", 1, 1e9).layers] == parameters
