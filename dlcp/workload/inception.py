"""Inception-v3 (Szegedy et al., arXiv 1512.00567, table 1), without the auxiliary classifier, for images of 299 x 299."""

from __future__ import annotations

from typing import Final

from dlcp.workload.architectures import Tape

_WIDE: Final = ((1, 7), (0, 3))
_HIGH: Final = ((7, 1), (3, 0))


def inception_v3() -> Tape:
    """Returns Inception-v3 as implementations have it: every convolution without a bias and with batch normalization."""
    tape = Tape((3, 299, 299))
    _unit(tape, "conv1a", 32, 3, stride=2)
    _unit(tape, "conv2a", 32, 3)
    _unit(tape, "conv2b", 64, 3, padding=1)
    tape.pool(3, stride=2)
    _unit(tape, "conv3b", 80, 1)
    _unit(tape, "conv4a", 192, 3)
    tape.pool(3, stride=2)
    for name, pooled in (("5b", 32), ("5c", 64), ("5d", 64)):
        _five(tape, f"mixed{name}", pooled)
    _shrink_to_17(tape, "mixed6a")
    for name, inner in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        _seven(tape, f"mixed{name}", inner)
    _shrink_to_8(tape, "mixed7a")
    for name in ("7b", "7c"):
        _wide(tape, f"mixed{name}")
    tape.flatten(average=True)
    tape.linear("fc", 1000)
    return tape


def _unit(
    tape: Tape,
    name: str,
    channels: int,
    kernel: int | tuple[int, int],
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
) -> None:
    tape.conv(name, channels, kernel, stride=stride, padding=padding)
    tape.batch_norm(f"{name}.bn")


def _chain(tape: Tape, name: str, first: int, rest: tuple[tuple[int, tuple[tuple[int, int], tuple[int, int]]], ...]) -> None:
    """Records a 1 x 1 convolution and others of given channels, kernel and padding."""
    _unit(tape, f"{name}_1", first, 1)
    for number, (channels, (kernel, padding)) in enumerate(rest, 2):
        _unit(tape, f"{name}_{number}", channels, kernel, padding=padding)


def _five(tape: Tape, name: str, pooled: int) -> None:
    """The block of the 35 x 35 grid (figure 5)."""
    with tape.branches() as branch:
        branch()
        _unit(tape, f"{name}.1x1", 64, 1)
        branch()
        _chain(tape, f"{name}.5x5", 48, ((64, ((5, 5), (2, 2))),))
        branch()
        _chain(tape, f"{name}.3x3", 64, ((96, ((3, 3), (1, 1))), (96, ((3, 3), (1, 1)))))
        branch()
        _unit(tape, f"{name}.pool", pooled, 1)


def _shrink_to_17(tape: Tape, name: str) -> None:
    """The reduction of the grid from 35 to 17 (figure 10)."""
    with tape.branches() as branch:
        branch()
        _unit(tape, f"{name}.3x3", 384, 3, stride=2)
        branch()
        _chain(tape, f"{name}.double", 64, ((96, ((3, 3), (1, 1))),))
        _unit(tape, f"{name}.double_3", 96, 3, stride=2)
        branch()
        tape.pool(3, stride=2)


def _seven(tape: Tape, name: str, inner: int) -> None:
    """The block of the 17 x 17 grid with factorized 7 x 7 convolutions (figure 6)."""
    with tape.branches() as branch:
        branch()
        _unit(tape, f"{name}.1x1", 192, 1)
        branch()
        _chain(tape, f"{name}.7x7", inner, ((inner, _WIDE), (192, _HIGH)))
        branch()
        _chain(tape, f"{name}.double", inner, ((inner, _HIGH), (inner, _WIDE), (inner, _HIGH), (192, _WIDE)))
        branch()
        _unit(tape, f"{name}.pool", 192, 1)


def _shrink_to_8(tape: Tape, name: str) -> None:
    """The reduction of the grid from 17 to 8."""
    with tape.branches() as branch:
        branch()
        _unit(tape, f"{name}.3x3_1", 192, 1)
        _unit(tape, f"{name}.3x3_2", 320, 3, stride=2)
        branch()
        _chain(tape, f"{name}.7x7", 192, ((192, _WIDE), (192, _HIGH)))
        _unit(tape, f"{name}.7x7_4", 192, 3, stride=2)
        branch()
        tape.pool(3, stride=2)


def _wide(tape: Tape, name: str) -> None:
    """The block of the 8 x 8 grid, whose branches part once more (figure 7)."""
    with tape.branches() as branch:
        branch()
        _unit(tape, f"{name}.1x1", 320, 1)
        branch()
        _unit(tape, f"{name}.3x3_1", 384, 1)
        _part(tape, f"{name}.3x3")
        branch()
        _unit(tape, f"{name}.double_1", 448, 1)
        _unit(tape, f"{name}.double_2", 384, 3, padding=1)
        _part(tape, f"{name}.double")
        branch()
        _unit(tape, f"{name}.pool", 192, 1)


def _part(tape: Tape, name: str) -> None:
    with tape.branches() as branch:
        branch()
        _unit(tape, f"{name}_a", 384, (1, 3), padding=(0, 1))
        branch()
        _unit(tape, f"{name}_b", 384, (3, 1), padding=(1, 0))


__all__ = ["inception_v3"]
