"""Models by name agree with what is published of them, and with torch where it has the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dlcp.errors import ConfigError
from dlcp.workload import Workload
from dlcp.workload.architectures import ARCHITECTURES, sample
from dlcp.workload.inception import inception_v3
from dlcp.workload.ledger import Ledger
from dlcp.workload.named import MODELS, named
from dlcp.workload.recommendation import deepfm
from dlcp.workload.transformers import bert_large, gpt3, t5_moe, transformer

PUBLISHED = {
    # The exact numbers are those of the reference implementations' checkpoints.
    "bert-large": (335_141_888, 0),
    "digits": (290_346, 0),
    "inception-v3": (23_834_568, 0),
    "resnet50": (25_557_032, 0),
    "vgg16": (138_357_544, 0),
    # "1.5 B" (Hunyuan-DiT's table of models), "58.0 M" (OpenSTL's table for Moving MNIST), "65 million" (table 3 of the paper).
    "dit-g2": (1.5e9, 0.02),
    "simvp": (58.0e6, 0.001),
    "transformer": (65e6, 0.04),
}
OPERATIONS = {
    # For one sample, without normalizations: torchvision's table (5.71 and 4.09 GFLOPs), OpenSTL's (19.4 G).
    "inception-v3": 5.713e9,
    "resnet50": 4.089e9,
    "simvp": 19.4e9,
    "vgg16": 15.47e9,
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_models_have_their_published_size(name):
    expected, slack = PUBLISHED[name]
    assert MODELS[name].make().elements == pytest.approx(expected, rel=slack)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_models_have_their_published_operations(name):
    ledger = MODELS[name].make()
    kinds = [layer.kind for layer in ledger.workload("any", 1, 1e12).layers]
    macs = sum(macs for kind, macs in zip(kinds, ledger.macs, strict=True) if "Norm" not in kind)
    assert macs == pytest.approx(OPERATIONS[name], rel=0.005)


def test_the_large_ones_add_up_over_their_ranks():
    # "175 B"; the shapes of table 2.1 give 174.6 B.
    assert gpt3(1, 1).elements == pytest.approx(175e9, rel=0.003)
    assert t5_moe(experts=1).elements == 222_903_552
    # Switch-Base: 7.4 B with 128 experts, 620 M with 8.
    assert t5_moe(local_experts=128).elements == pytest.approx(7.4e9, rel=0.003)
    assert t5_moe(experts=8, local_experts=8).elements == pytest.approx(620e6, rel=0.002)


@settings(max_examples=12)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8, 16]))
def test_shares_of_gpt3_are_a_part_of_it(tensor, pipeline):
    whole = gpt3(1, 1)
    stages = [gpt3(tensor, pipeline, stage) for stage in range(pipeline)]
    split = sum(tensor * stage.elements for stage in stages)
    # What all tensor-parallel ranks hold alike (normalizations, some biases) counts once for each; and the table of words twice.
    twice = 50_257 * 12_288 if pipeline > 1 else 0
    assert whole.elements + twice <= split + tensor <= (whole.elements + twice) * 1.001 + 4 * tensor * 12_288 * 96 * 6
    macs = sum(sum(stage.macs) for stage in stages)
    assert macs * tensor == pytest.approx(sum(whole.macs), rel=0.01)


@settings(max_examples=12)
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3, 4, 6, 12, 24]), st.integers(1, 8))
def test_experts_that_are_elsewhere_weigh_nothing(tensor, pipeline, local):
    dense = sum(t5_moe(tensor, pipeline, stage, experts=8, local_experts=1).elements for stage in range(pipeline))
    more = sum(t5_moe(tensor, pipeline, stage, experts=8, local_experts=local).elements for stage in range(pipeline))
    # Twelve layers have experts, of two matrices of 768 x 3072 each.
    assert more - dense == (local - 1) * 12 * 2 * 768 * 3072 // tensor
    work = [sum(sum(t5_moe(tensor, pipeline, s, experts=8, local_experts=n).macs) for s in range(pipeline)) for n in (1, local)]
    assert work[0] == work[1]


def test_the_transformer_is_that_of_torch():
    model = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True, device="meta")
    assert transformer().elements - 37_000 * 512 == sum(parameter.numel() for parameter in model.parameters())


def test_a_layer_of_bert_is_that_of_torch():
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, device="meta")
    mine = [one for one in bert_large().workload("any", 1, 1e12).layers if one.name.startswith("layer7.")]
    assert sum(one.elements for one in mine) == sum(parameter.numel() for parameter in layer.parameters())


def test_deepfm_is_a_sum_of_tables_and_three_layers():
    deep = nn.Sequential(nn.Linear(390, 400), nn.Linear(400, 400), nn.Linear(400, 400), nn.Linear(400, 1))
    assert deepfm(5000, 10).elements == 11 * 5000 + 1 + sum(parameter.numel() for parameter in deep.parameters())


def test_inception_runs_on_images_of_299():
    tape = inception_v3()
    layers = tape.workload("any", 1, 1e12).layers
    assert tape.shape == (1000, 1, 1)
    assert sum(layer.kind == "Conv2d" for layer in layers) == 94
    assert layers[-1].elements == 2048 * 1000 + 1000


def test_of_transfer_learning_only_the_end_is_trained():
    whole, part = named("resnet50", batch=32, flops=1e12), named("federated-resnet50", batch=32, flops=1e12)
    trained = [layer.name for layer in part.layers if layer.elements]
    assert trained[0] == "layer4.2.conv1" and trained[-1] == "fc"
    assert part.elements == sum(layer.elements for layer in whole.layers if layer.name in trained)
    assert part.forward == whole.forward
    assert part.backward == 2 * sum(layer.forward for layer in whole.layers if layer.name in trained)
    assert named("federated-resnet50", trained="fc").elements == 2_049_000


@pytest.mark.parametrize("name", sorted(MODELS))
def test_names_give_workloads(name):
    workload = Workload.named(name)
    assert workload.name == name and workload.bytes > 0
    assert Workload.from_dict(workload.to_dict()) == workload
    faster = Workload.named(name, flops=2 * MODELS[name].flops)
    assert faster.forward == pytest.approx(workload.forward / 2, rel=1e-3, abs=1000 * len(workload.layers))
    assert Workload.named(name, batch=2 * workload.batch).forward == pytest.approx(2 * workload.forward, rel=1e-3)
    if name in ARCHITECTURES:
        assert workload == sample(name)


def test_what_is_no_model_is_answered_with_those_there_are():
    with pytest.raises(ConfigError, match="did you mean 'resnet50'") as caught:
        Workload.named("resnet-50")
    assert all(name in str(caught.value) for name in MODELS)
    for name, shape in (("resnet50", {"tensor": 2}), ("gpt3-175b", {"width": 1})):
        with pytest.raises(ConfigError, match="has none"):
            Workload.named(name, **shape)
    for shape, text in (({"tensor": 7}, "not a multiple"), ({"pipeline": 7}, "not a multiple"), ({"stage": 99}, "stage 99")):
        with pytest.raises(ConfigError, match=text):
            Workload.named("gpt3-175b", **shape)
    with pytest.raises(ConfigError, match="of 128"):
        Workload.named("t5-moe", local_experts=129)


def test_freezing_needs_a_layer():
    ledger = Ledger()
    ledger.dense("one", 2, 2)
    with pytest.raises(ValueError, match="other"):
        ledger.freeze("other")


@given(st.integers(1, 64), st.integers(1, 64), st.booleans())
def test_dense_and_norm_are_those_of_torch(inputs, outputs, bias):
    ledger = Ledger()
    ledger.dense("dense", inputs, outputs, bias=bias)
    ledger.norm("norm", outputs, bias=bias)
    ledger.embedding("table", inputs, outputs)
    with torch.device("meta"):
        modules = [nn.Linear(inputs, outputs, bias=bias), nn.LayerNorm(outputs, bias=bias), nn.Embedding(inputs, outputs)]
    found = [layer.elements for layer in ledger.workload("any", 1, 1e9).layers]
    assert found == [sum(parameter.numel() for parameter in module.parameters()) for module in modules]
