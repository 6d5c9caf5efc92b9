"""Profiles of torch models: what runs, in which order, what it weighs; and errors that say what to do."""

import json

import pytest
import torch
from torch import nn

from dlcp.cli.main import main
from dlcp.errors import ConfigError
from dlcp.workload import Workload
from dlcp.workload.architectures import digits
from examples.models import CharModel, DigitsNet
from sim.profile import _backward_times, _forward_times, profile
from sim.user_model import find_model, parse_input
from tests.sim import user_models

HERE = "tests.sim.user_models"


def run(*arguments):
    return main(["sim", *map(str, arguments)])


def test_the_examples_model_is_what_its_architecture_says(tmp_path, capsys):
    path = tmp_path / "new" / "digits.toml"
    options = ["--input", "16x1x8x8", "--steps", 3, "--optimizer", "SGD", "--out", path]
    assert run("profile", "examples.models:DigitsNet", *options) == 0
    table = capsys.readouterr().out
    workload = Workload.from_toml(path)
    expected = digits().workload("digits", 16, 1e9)
    assert [(layer.name, layer.kind, layer.elements) for layer in workload.layers] == [
        (layer.name, layer.kind, layer.elements) for layer in expected.layers
    ]
    assert workload.batch == 16 and workload.name == "DigitsNet" and "median of 3 steps" in workload.note
    assert all(layer.forward > 0 and layer.backward > 0 for layer in workload.layers) and workload.optimizer > 0
    assert all(layer.name in table for layer in workload.layers) and str(workload.bytes) in table


def test_what_is_written_runs(tmp_path, capsys):
    assert run("profile", "examples.models:DigitsNet", "--input", "4x1x8x8", "--steps", 1, "--out", tmp_path / "model.toml") == 0
    (tmp_path / "net.toml").write_text('[generate]\nkind = "star"\nhosts = 3\nrate = "10 Gbit/s"\n')
    scenario = tmp_path / "run.toml"
    traffic = '[transport]\nname = "raw"\n[traffic]\nkind = "training"\n'
    scenario.write_text('topology = "net.toml"\nworkload = "model.toml"\n' + traffic)
    capsys.readouterr()
    assert run("run", scenario, "--engine", "python", "--json") == 0
    (*_, step) = json.loads(capsys.readouterr().out)["steps_s"]
    assert step > Workload.from_toml(tmp_path / "model.toml").forward.seconds


def test_parameters_that_are_shared_unused_or_frozen():
    model = user_models.Shared()
    found = profile(model, user_models.batch(), steps=1, warm_up=0)
    described = [(layer.name, layer.elements, layer.dtype) for layer in found.workload.layers]
    assert described == [
        ("Shared", 8, "float64"),
        ("embedding", 400, "float32"),
        ("twice", 72, "float32"),
        ("normed", 16, "bfloat16"),
    ]
    assert found.shared == ["head.weight"]
    assert found.unused == ["never.weight", "never.bias", "frozen.weight", "frozen.bias"]
    assert found.workload.batch == 6
    sent = sum(p.numel() * p.element_size() for p in model.parameters() if p.grad is not None)
    assert found.workload.bytes == sent


def test_every_gradient_is_counted_once():
    model = CharModel(20, width=4)
    found = profile(model, parse_input("int64:2x8"), steps=1, warm_up=0)
    assert found.workload.elements == sum(parameter.numel() for parameter in model.parameters()) and not found.unused
    names = [layer.name for layer in found.workload.layers]
    assert names[:2] == ["CharModel", "symbols"] and names[-1] == "head"
    # Its projections are used without being called; they count for the attention.
    assert "layers.layers.0.self_attn" in names and not any("out_proj" in name for name in names)


def test_parameters_of_children_that_are_not_called():
    found = profile(find_model(f"{HERE}:instance"), parse_input("3x4"), steps=1)
    assert [(layer.name, layer.elements) for layer in found.workload.layers] == [("Functional", 20), ("norm", 8)]


def test_nothing_stays_on_the_model():
    model = DigitsNet(4)
    profile(model, parse_input("2x1x8x8"), steps=1)
    for module in model.modules():
        assert not module._forward_pre_hooks
    for parameter in model.parameters():
        assert not parameter._post_accumulate_grad_hooks


def test_times_are_shared_out():
    assert _forward_times(3, [(0, 10), (1, 15), (0, 18), (2, 30)], 5, 31) == [5 + 5 + 12, 3, 1]
    # Gradients of the last layer come first; layer 1 is late and layer 0 had been done before it.
    assert _backward_times(3, {2: 20, 1: 50, 0: 30}, 10, 60) == [10, 30, 10]
    assert _backward_times(2, {0: 15}, 10, 15) == [5, 0]


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        ("8x3x4", torch.float32, (8, 3, 4)),
        ("2,5", torch.float32, (2, 5)),
        ("int64:7", torch.int64, (7,)),
        ("bfloat16:1x2", torch.bfloat16, (1, 2)),
    ],
)
def test_inputs_are_made_of_shapes(text, dtype, shape):
    made = parse_input(text)
    assert made.dtype == dtype and tuple(made.shape) == shape
    assert dtype != torch.int64 or not made.any()


@pytest.mark.parametrize("text", ["", "x", "8xx3", "-1", "8x0", "int65:4", "99999x99999x99999", "float32:", "8.5", "nn:3"])
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(ConfigError, match="--input"):
        parse_input(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["examples.models"], "has no module, or nothing after the colon"),
        (["nowhere.models:X"], "there is no module nowhere.models"),
        (["examples.models:DigitNet"], "examples.models has no 'DigitNet'"),
        ([f"{HERE}:number"], "is a int; accepted: a torch.nn.Module, its class"),
        ([f"{HERE}:no_model"], "gives a int"),
        ([f"{HERE}:Needy"], "calling it without arguments failed: TypeError"),
        ([f"{HERE}:made"], "not given; accepted: --input SHAPE"),
        ([f"{HERE}:made", "--input", "4x4"], "input float32:4x4: the forward pass failed: RuntimeError"),
        (["examples.models:DigitsNet", "--input", "int64:4x1x8x8"], "int64:4x1x8x8: the forward pass failed"),
        (["examples.models:DigitsNet", "--input", "4x1x8x8", "--input", "4"], "accepted: --input SHAPE such as"),
        ([f"{HERE}:Silent", "--input", "2x2"], "gives int64:scalar, of which nothing has a gradient"),
        ([f"{HERE}:made", "--batch", "missing"], "has no 'missing'"),
        ([f"{HERE}:made", "--batch", "broken"], "failed: RuntimeError: no data today"),
        (["examples.models:DigitsNet", "--input", "4x1x8x8", "--device", "warp"], "--device: warp: cannot be used"),
        (["examples.models:DigitsNet", "--input", "4x1x8x8", "--optimizer", "Magic"], "Magic: is no class of torch.optim"),
        (["examples.models:DigitsNet", "--input", "4x1x8x8", "--steps", "0"], "--steps"),
    ],
)
def test_what_is_wrong_is_one_line(capsys, arguments, message):
    assert run("profile", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_module_that_fails_on_import(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fails_on_import.py").write_text("import there_is_no_such_package\n")
    assert run("profile", "fails_on_import:model") == 2
    assert "importing it failed: ModuleNotFoundError: No module named 'there_is_no_such_package'" in capsys.readouterr().err


def test_a_batch_of_the_users_own_and_json(capsys):
    assert run("profile", f"{HERE}:made", "--batch", "batch", "--steps", 1, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["batch"] == 6 and [layer["bytes"] for layer in found["layers"]] == [64, 1600, 288, 32]
    assert found["unused"] and found["shared"] and found["forward_s"] > 0


def test_a_model_without_gradients_is_refused():
    with pytest.raises(ConfigError, match="nothing has a gradient"):
        profile(nn.Linear(2, 2).requires_grad_(False), torch.ones(1, 2))
