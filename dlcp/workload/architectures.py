"""Convolutional networks for images, computed from their architecture.

Layers and parameters follow from the shapes.  The times are estimates: two operations for every multiplication with an addition,
at a given speed, the backward pass taking twice as long as the forward pass.  For true times, measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from dlcp.workload.description import Workload
from dlcp.workload.ledger import Ledger

GPU_FLOPS: Final = 10e12
"""Operations a second that a GPU of a training cluster sustains on convolutions, to an order of magnitude."""

CPU_FLOPS: Final = 20e9
"""Likewise, of one core of a server."""


class Tape(Ledger):
    """Records the layers of a model of images while following the shape of one.

    Args:
        shape: Channels, height and width of an input.

    Attributes:
        shape: That of the activations so far; height and width are 1 after :meth:`flatten`.
        macs: Multiplications with an addition for one sample, by layer.
    """

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.shape = shape

    def conv(
        self,
        name: str,
        channels: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        bias: bool = False,
        groups: int = 1,
    ) -> None:
        """Records a convolution; kernel and padding are for both directions, or of height and width."""
        inputs, height, width = self.shape
        high, wide = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        above, beside = padding if isinstance(padding, tuple) else (padding, padding)
        height, width = _slid(height, high, stride, above), _slid(width, wide, stride, beside)
        weights = inputs // groups * high * wide * channels
        self.add(name, "Conv2d", weights + bias * channels, weights * height * width)
        self.shape = (channels, height, width)

    def batch_norm(self, name: str, kind: str = "BatchNorm2d") -> None:
        """Records a batch normalization, or another: a scale and an offset for each channel."""
        channels, height, width = self.shape
        self.add(name, kind, 2 * channels, channels * height * width)

    def pool(self, kernel: int, *, stride: int, padding: int = 0) -> None:
        """Follows a pooling, which has no parameters and hardly any operations."""
        channels, height, width = self.shape
        self.shape = (channels, _slid(height, kernel, stride, padding), _slid(width, kernel, stride, padding))

    def flatten(self, *, average: bool = False) -> None:
        """Follows the change from images to vectors: all values, or with ``average`` one for each channel."""
        channels, height, width = self.shape
        self.shape = (channels if average else channels * height * width, 1, 1)

    def linear(self, name: str, outputs: int) -> None:
        """Records a fully connected layer with a bias."""
        self.dense(name, self.shape[0], outputs)
        self.shape = (outputs, 1, 1)

    @contextmanager
    def branches(self) -> Iterator[Callable[[], None]]:
        """Records branches that all begin with the present shape, and whose channels are joined.

        Yields:
            What to call before every branch.
        """
        start, joined = self.shape, 0
        first = True

        def begin() -> None:
            nonlocal joined, first
            joined += 0 if first else self.shape[0]
            first, self.shape = False, start

        yield begin
        self.shape = (joined + self.shape[0], *self.shape[1:])


def _slid(size: int, kernel: int, stride: int, padding: int) -> int:
    return (size + 2 * padding - kernel) // stride + 1


def digits(width: int = 32) -> Tape:
    """Returns the convolutional network for digits of 8 x 8 points that ``examples/train.py`` trains."""
    tape = Tape((1, 8, 8))
    tape.conv("features.0", width, 3, padding=1, bias=True)
    tape.conv("features.2", 2 * width, 3, padding=1, bias=True)
    tape.pool(2, stride=2)
    tape.conv("features.5", 4 * width, 3, padding=1, bias=True)
    tape.flatten()
    tape.linear("classifier.0", 3 * width)
    tape.linear("classifier.2", 10)
    return tape


def vgg16() -> Tape:
    """Returns VGG-16 (configuration D of Simonyan and Zisserman, arXiv 1409.1556, table 1) for ImageNet."""
    tape = Tape((3, 224, 224))
    index = 0
    for channels, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            tape.conv(f"features.{index}", channels, 3, padding=1, bias=True)
            index += 2  # convolution and ReLU
        tape.pool(2, stride=2)
        index += 1
    tape.flatten()
    for number, outputs in ((0, 4096), (3, 4096), (6, 1000)):
        tape.linear(f"classifier.{number}", outputs)
    return tape


def resnet50() -> Tape:
    """Returns ResNet-50 (He et al., arXiv 1512.03385, table 1) for ImageNet.

    As in most implementations since, the stride of a stage is in its first 3 x 3 convolution ("v1.5"); that changes the number
    of operations but not the parameters.
    """
    tape = Tape((3, 224, 224))
    tape.conv("conv1", 64, 7, stride=2, padding=3)
    tape.batch_norm("bn1")
    tape.pool(3, stride=2, padding=1)
    for stage, (channels, depth) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(depth):
            _bottleneck(tape, f"layer{stage}.{block}", channels, stride=2 if stage > 1 and block == 0 else 1, project=block == 0)
    tape.flatten(average=True)
    tape.linear("fc", 1000)
    return tape


def _bottleneck(tape: Tape, name: str, channels: int, *, stride: int, project: bool) -> None:
    """Records a residual block of three convolutions, with a projection of its input if that has another shape."""
    before = tape.shape
    for number, (outputs, kernel, step) in enumerate(((channels, 1, 1), (channels, 3, stride), (4 * channels, 1, 1)), 1):
        tape.conv(f"{name}.conv{number}", outputs, kernel, stride=step, padding=kernel // 2)
        tape.batch_norm(f"{name}.bn{number}")
    if project:
        after, tape.shape = tape.shape, before
        tape.conv(f"{name}.downsample.0", 4 * channels, 1, stride=stride)
        tape.batch_norm(f"{name}.downsample.1")
        assert tape.shape == after


ARCHITECTURES: Final[Mapping[str, Callable[[], Tape]]] = {"digits": digits, "resnet50": resnet50, "vgg16": vgg16}
"""Name to what records it."""

_SAMPLES: Final = {"digits": (64, CPU_FLOPS), "resnet50": (64, GPU_FLOPS), "vgg16": (32, GPU_FLOPS)}


def sample(name: str) -> Workload:
    """Returns a model with a usual batch on a usual device: what stands in ``workloads/``; KeyError for another name."""
    batch, flops = _SAMPLES[name]
    return ARCHITECTURES[name]().workload(name, batch, flops)


__all__ = ["ARCHITECTURES", "CPU_FLOPS", "GPU_FLOPS", "Tape", "digits", "resnet50", "sample", "vgg16"]
