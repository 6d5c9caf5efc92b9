"""Models by name, each with a usual batch on a usual device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dlcp.errors import ConfigError
from dlcp.schema_kinds import suggestion
from dlcp.workload.architectures import CPU_FLOPS, GPU_FLOPS, digits, resnet50, vgg16
from dlcp.workload.description import Workload
from dlcp.workload.generative import dit_g2, simvp
from dlcp.workload.inception import inception_v3
from dlcp.workload.ledger import Ledger
from dlcp.workload.recommendation import deepfm
from dlcp.workload.transformers import bert_large, gpt3, t5_moe, transformer

LARGE_GPU_FLOPS: Final = 140e12
"""Operations a second that a GPU sustains on large matrices of 16 bits; Megatron-LM reports 138 to 163 TFLOP/s (arXiv 2104.04473,
table 1)."""

EDGE_FLOPS: Final = 0.5e12
"""Likewise, of a small device at the edge of a network, to an order of magnitude."""


def federated_resnet50(trained: str = "layer4.2") -> Ledger:
    """Returns ResNet-50 of which only the block ``trained`` and the classifier are trained, as in transfer learning."""
    tape = resnet50()
    before = {"layer4.2": "layer4.1.bn3", "fc": "layer4.2.bn3"}
    if trained not in before:
        raise ValueError(f"{trained!r}; layer4.2 or fc")
    tape.freeze(before[trained])
    return tape


@dataclass(frozen=True)
class Model:
    """A model and its usual setting.

    Attributes:
        make: Writes its layers down; keyword arguments change its shape.
        batch: Samples of a rank in a step.
        flops: Operations a second of its device.
        dtype: Type of its gradients.
        note: What else one has to know.
    """

    make: Callable[..., Ledger]
    batch: int
    flops: float
    dtype: str = "float32"
    note: str = ""


MODELS: Final[Mapping[str, Model]] = {
    "bert-large": Model(bert_large, 32, 5 * GPU_FLOPS),
    "deepfm": Model(deepfm, 4096, GPU_FLOPS),
    "digits": Model(digits, 64, CPU_FLOPS),
    "dit-g2": Model(dit_g2, 4, LARGE_GPU_FLOPS, "bfloat16"),
    "federated-resnet50": Model(
        federated_resnet50, 3200, EDGE_FLOPS, note="a step is a round: 100 local steps of 32 samples, then one average"
    ),
    "gpt3-175b": Model(gpt3, 16, LARGE_GPU_FLOPS, "bfloat16", "share of one rank, without the bubble of the pipeline"),
    "inception-v3": Model(inception_v3, 64, GPU_FLOPS),
    "resnet50": Model(resnet50, 64, GPU_FLOPS),
    "simvp": Model(simvp, 16, GPU_FLOPS),
    "t5-moe": Model(t5_moe, 16, LARGE_GPU_FLOPS, "bfloat16", "share of one rank"),
    "transformer": Model(transformer, 96, 2 * GPU_FLOPS),
    "vgg16": Model(vgg16, 32, GPU_FLOPS),
}
"""Models by name."""


def named(name: str, *, batch: int | None = None, flops: float | None = None, **shape: object) -> Workload:
    """Returns the workload of a model.

    Args:
        name: One of :data:`MODELS`.
        batch: Samples of a rank in a step; None is a usual number.
        flops: Operations a second of its device; None is a usual one.
        shape: What the function that describes the model takes, such as ``tensor`` and ``pipeline``.

    Raises:
        ConfigError: There is no such model, or it does not take such a shape.
    """
    model = MODELS.get(name)
    if model is None:
        near = suggestion(name, {known: known for known in MODELS})
        raise ConfigError("<workload>", "name", f"{name!r} is no model{near}", ", ".join(MODELS) + ", or the path of a file")
    known = inspect.signature(model.make).parameters
    for key in shape:
        if key not in known:
            raise ConfigError("<workload>", key, f"{name} has none", ", ".join(known) or "nothing")
    try:
        ledger = model.make(**shape)
    except ValueError as error:
        raise ConfigError("<workload>", name, str(error), "degrees that divide it") from None
    return ledger.workload(name, batch or model.batch, flops or model.flops, model.dtype, model.note)


__all__ = ["EDGE_FLOPS", "LARGE_GPU_FLOPS", "MODELS", "Model", "federated_resnet50", "named"]
