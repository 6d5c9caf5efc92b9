"""Networks that make images and videos: a diffusion transformer, and a forecaster in space and time."""

from __future__ import annotations

from dlcp.workload.architectures import Tape
from dlcp.workload.ledger import Ledger


def dit_g2(patches: int = 4096) -> Ledger:
    """Returns a diffusion transformer of the size DiT-g/2, as Hunyuan-DiT has it (arXiv 2405.08748; its table of models).

    40 blocks of width 1408 with self-attention, attention to the words of a CLIP and a T5, and long skip connections.

    Args:
        patches: Of a sample; 4096 are those of an image of 1024 x 1024.
    """
    width, depth, inner, words, text, long = 1408, 40, round(1408 * 4.3637), 77 + 256, 1024, 2048
    head = width // 16
    ledger = Ledger()
    ledger.dense("patches", 4 * 2 * 2, width, patches)
    ledger.dense("time.up", 256, width)
    ledger.dense("time.out", width, width)
    ledger.dense("words.up", long, 4 * long, 256)
    ledger.dense("words.out", 4 * long, text, 256)
    ledger.embedding("words.padding", words, text)
    ledger.embedding("pool.positions", 256 + 1, long)
    ledger.dense("pool.qkv", long, 3 * long, 256 + 1)
    ledger.dense("pool.out", long, text)
    # The pooled words, the sizes of the image as six sinusoids of 256, and the style.
    ledger.embedding("style", 1, width)
    ledger.dense("condition.up", text + 6 * 256 + width, 4 * width)
    ledger.dense("condition.out", 4 * width, width)
    for index in range(depth):
        name = f"block{index}"
        if index > depth // 2:
            ledger.norm(f"{name}.skip.norm", 2 * width, patches)
            ledger.dense(f"{name}.skip", 2 * width, width, patches)
        ledger.dense(f"{name}.modulation", width, width)
        ledger.norm(f"{name}.norm1", width, patches)
        ledger.dense(f"{name}.self.qkv", width, 3 * width, patches)
        ledger.norm(f"{name}.self.norm_q", head, 16 * patches)
        ledger.norm(f"{name}.self.norm_k", head, 16 * patches)
        ledger.products(f"{name}.self.scores", patches, patches, width)
        ledger.dense(f"{name}.self.out", width, width, patches)
        ledger.norm(f"{name}.norm3", width, patches)
        ledger.dense(f"{name}.cross.q", width, width, patches)
        ledger.dense(f"{name}.cross.kv", text, 2 * width, words)
        ledger.norm(f"{name}.cross.norm_q", head, 16 * patches)
        ledger.norm(f"{name}.cross.norm_k", head, 16 * words)
        ledger.products(f"{name}.cross.scores", patches, words, width)
        ledger.dense(f"{name}.cross.out", width, width, patches)
        ledger.norm(f"{name}.norm2", width, patches)
        ledger.dense(f"{name}.up", width, inner, patches)
        ledger.dense(f"{name}.down", inner, width, patches)
    ledger.dense("final.modulation", width, 2 * width)
    ledger.dense("final", width, 2 * 4 * 2 * 2, patches)
    return ledger


def simvp() -> Ledger:
    """Returns SimVP with inception blocks (Gao et al., CVPR 2022, arXiv 2206.05099) for Moving MNIST.

    Ten frames of 64 x 64 in, ten out; 64 channels for a frame, 512 for the sequence, eight blocks: the setting of OpenSTL.
    """
    frames, space, time = 10, 64, 512
    tape = Tape((1, 64, 64))
    for index, stride in enumerate((1, 2, 1, 2)):
        tape.conv(f"encoder{index}", space, 3, stride=stride, padding=1, bias=True)
        tape.batch_norm(f"encoder{index}.norm", "GroupNorm")
    tape.macs = [frames * macs for macs in tape.macs]
    _, height, width = tape.shape
    tape.shape = (frames * space, height, width)
    for index in range(8):
        _inception(tape, f"translator.down{index}", time // 2, time)
    for index in range(8):
        tape.shape = (time if index == 0 else 2 * time, height, width)
        _inception(tape, f"translator.up{index}", time // 2, time if index < 7 else frames * space)
    frame = Tape((space, height, width))
    for index, doubles in enumerate((True, False, True, False)):
        # Four times the channels become twice the height and the width.
        frame.conv(f"decoder{index}", space * (4 if doubles else 1), 3, padding=1, bias=True)
        if doubles:
            frame.shape = (space, 2 * frame.shape[1], 2 * frame.shape[2])
        frame.batch_norm(f"decoder{index}.norm", "GroupNorm")
    frame.conv("readout", 1, 1, bias=True)
    tape.extend(frame, times=frames)
    return tape


def _inception(tape: Tape, name: str, inner: int, outputs: int) -> None:
    """Records a block of grouped convolutions of four sizes, whose results are added."""
    tape.conv(f"{name}.in", inner, 1, bias=True)
    shape = tape.shape
    for kernel in (3, 5, 7, 11):
        tape.shape = shape
        tape.conv(f"{name}.k{kernel}", outputs, kernel, padding=kernel // 2, bias=True, groups=8)
        tape.batch_norm(f"{name}.k{kernel}.norm", "GroupNorm")


__all__ = ["dit_g2", "simvp"]
