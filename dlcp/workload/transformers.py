"""Transformers, computed from their published shapes; of those too large for a device the share of one rank.

With tensor parallelism of degree t a rank holds a t-th of every matrix, with pipeline parallelism of degree p a p-th of blocks.
Its gradients are averaged with those of the ranks that hold the same share: that is what crosses the data-parallel network.  What
tensor and pipeline parallelism exchange themselves stays within a server or between neighbours, and is not part of a workload.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dlcp.workload.ledger import Ledger

Block: TypeAlias = Callable[[Ledger], None]


def transformer(tokens: int = 32, vocabulary: int = 37_000) -> Ledger:
    """Returns the base model of "Attention is all you need" (arXiv 1706.03762, table 3), with biases everywhere.

    Args:
        tokens: Of a sentence, on either side.
        vocabulary: Byte pairs that both languages share; their table is also the output projection, and counts once.
    """
    width, inner, layers = 512, 2048, 6
    ledger = Ledger()
    ledger.embedding("embedding", vocabulary, width)
    for side, crosses in (("encoder", False), ("decoder", True)):
        for index in range(layers):
            name = f"{side}.{index}"
            _attention(ledger, f"{name}.self", width, tokens, tokens)
            ledger.norm(f"{name}.norm1", width, tokens)
            if crosses:
                _attention(ledger, f"{name}.cross", width, tokens, tokens)
                ledger.norm(f"{name}.norm2", width, tokens)
            ledger.dense(f"{name}.up", width, inner, tokens)
            ledger.dense(f"{name}.down", inner, width, tokens)
            ledger.norm(f"{name}.norm3", width, tokens)
        ledger.norm(f"{side}.norm", width, tokens)
    ledger.add("output", "Linear", 0, width * vocabulary * tokens)
    return ledger


def _attention(ledger: Ledger, name: str, width: int, queries: int, keys: int) -> None:
    ledger.dense(f"{name}.qkv", width, 3 * width, queries)
    ledger.products(f"{name}.scores", queries, keys, width)
    ledger.dense(f"{name}.out", width, width, queries)


def bert_large(tokens: int = 128) -> Ledger:
    """Returns BERT-large (arXiv 1810.04805, section 3) with its pooler and without heads, for sequences of ``tokens``."""
    width, inner, layers, vocabulary = 1024, 4096, 24, 30_522
    ledger = Ledger()
    ledger.embedding("embedding.words", vocabulary, width)
    ledger.embedding("embedding.positions", 512, width)
    ledger.embedding("embedding.types", 2, width)
    ledger.norm("embedding.norm", width, tokens)
    for index in range(layers):
        name = f"layer{index}"
        _attention(ledger, f"{name}.self", width, tokens, tokens)
        ledger.norm(f"{name}.norm1", width, tokens)
        ledger.dense(f"{name}.up", width, inner, tokens)
        ledger.dense(f"{name}.down", inner, width, tokens)
        ledger.norm(f"{name}.norm2", width, tokens)
    ledger.dense("pooler", width, width)
    return ledger


def stage_of(blocks: list[Block], pipeline: int, stage: int) -> list[Block]:
    """Returns the blocks of a stage; ValueError if the degree does not divide them, or there is no such stage."""
    if pipeline < 1 or len(blocks) % pipeline:
        raise ValueError(f"{len(blocks)} blocks are not a multiple of {pipeline} stages")
    if not 0 <= stage < pipeline:
        raise ValueError(f"stage {stage} of {pipeline}; from 0 to {pipeline - 1}")
    each = len(blocks) // pipeline
    return blocks[stage * each : stage * each + each]


def check_tensor(tensor: int, *sizes: int) -> None:
    """Refuses a degree that does not divide what is to be split; ValueError."""
    for size in sizes:
        if tensor < 1 or size % tensor:
            raise ValueError(f"{size} is not a multiple of {tensor} tensor-parallel ranks")


def gpt3(tensor: int = 8, pipeline: int = 16, stage: int = 0) -> Ledger:
    """Returns the share of a rank in GPT-3 175B (arXiv 2005.14165, table 2.1), split as Megatron-LM does (arXiv 1909.08053).

    The first stage holds the embeddings, the last one the final normalization and its copy of the table of words, whose gradients
    the two add up among themselves.

    Args:
        tensor: Degree of tensor parallelism.
        pipeline: Degree of pipeline parallelism.
        stage: Which stage the rank is in.

    Raises:
        ValueError: The degrees do not divide heads and layers, or there is no such stage.
    """
    width, heads, layers, context, vocabulary = 12_288, 96, 96, 2048, 50_257
    check_tensor(tensor, heads)

    def block(index: int) -> Block:
        def write(ledger: Ledger) -> None:
            name = f"layer{index}"
            ledger.norm(f"{name}.norm1", width, context)
            ledger.dense(f"{name}.qkv", width, 3 * width, context, shards=tensor)
            ledger.products(f"{name}.scores", context, context, width, shards=tensor)
            _rows(ledger, f"{name}.out", width, width, context, tensor)
            ledger.norm(f"{name}.norm2", width, context)
            ledger.dense(f"{name}.up", width, 4 * width, context, shards=tensor)
            _rows(ledger, f"{name}.down", 4 * width, width, context, tensor)

        return write

    mine = stage_of([block(index) for index in range(layers)], pipeline, stage)
    ledger = Ledger()
    if stage == 0:
        ledger.embedding("embedding.words", vocabulary, width, tensor)
        ledger.embedding("embedding.positions", context, width)
    for write in mine:
        write(ledger)
    if stage == pipeline - 1:
        ledger.norm("norm", width, context)
        own = 0 if stage == 0 else vocabulary * width // tensor
        ledger.add("output", "Linear", own, vocabulary * width // tensor * context)
    return ledger


def _rows(ledger: Ledger, name: str, inputs: int, outputs: int, positions: int, shards: int) -> None:
    """A layer of which every rank holds rows: the bias is added once the parts are summed, so all hold it."""
    ledger.add(name, "Linear", inputs * outputs // shards + outputs, inputs * outputs // shards * positions)


def t5_moe(tensor: int = 1, pipeline: int = 1, stage: int = 0, *, experts: int = 128, local_experts: int = 1) -> Ledger:
    """Returns the share of a rank in a T5 with mixtures of experts: Switch-Base (arXiv 2101.03961, tables 1 and 9).

    Every other feed-forward layer is ``experts`` ones, of which each token uses one.  With expert parallelism a rank holds
    ``local_experts`` of each layer and averages their gradients with the other ranks that hold the same ones; tokens travel to
    their experts within such a group, which is not part of a workload.

    Args:
        tensor: Degree of tensor parallelism.
        pipeline: Degree of pipeline parallelism.
        stage: Which stage the rank is in.
        experts: Experts of a layer; 1 makes it T5-Base.
        local_experts: Those that one rank holds.

    Raises:
        ValueError: The degrees do not divide heads and layers, or there are not so many experts.
    """
    width, inner, heads, layers, vocabulary, tokens = 768, 3072, 12, 12, 32_128, 512
    check_tensor(tensor, heads)
    if not 1 <= local_experts <= experts:
        raise ValueError(f"{local_experts} experts of {experts}")

    def block(side: str, index: int) -> Block:
        def write(ledger: Ledger) -> None:
            name = f"{side}.{index}"
            for part in ("self", "cross") if side == "decoder" else ("self",):
                ledger.norm(f"{name}.{part}.norm", width, tokens, bias=False)
                ledger.dense(f"{name}.{part}.qkv", width, 3 * width, tokens, bias=False, shards=tensor)
                if index == 0 and part == "self":
                    ledger.embedding(f"{name}.{part}.positions", 32, heads, tensor)
                ledger.products(f"{name}.{part}.scores", tokens, tokens, width, shards=tensor)
                ledger.dense(f"{name}.{part}.out", width, width, tokens, bias=False, shards=tensor)
            ledger.norm(f"{name}.norm", width, tokens, bias=False)
            sparse = experts > 1 and index % 2 == 1
            if sparse:
                ledger.dense(f"{name}.router", width, experts, tokens, bias=False)
            weights = 2 * width * inner // tensor
            # A token uses one expert, however many a rank holds.
            ledger.add(
                f"{name}.experts" if sparse else f"{name}.feed",
                "Experts" if sparse else "FeedForward",
                weights * (local_experts if sparse else 1),
                weights * tokens,
            )
            if index == layers - 1:
                ledger.norm(f"{side}.norm", width, tokens, bias=False)

        return write

    mine = stage_of([block(side, index) for side in ("encoder", "decoder") for index in range(layers)], pipeline, stage)
    ledger = Ledger()
    if stage == 0:
        ledger.embedding("embedding", vocabulary, width, tensor)
    for write in mine:
        write(ledger)
    if stage == pipeline - 1:
        own = 0 if stage == 0 else vocabulary * width // tensor
        ledger.add("output", "Linear", own, vocabulary * width // tensor * tokens)
    return ledger


__all__ = ["bert_large", "check_tensor", "gpt3", "stage_of", "t5_moe", "transformer"]
