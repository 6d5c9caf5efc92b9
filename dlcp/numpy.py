"""DLCP for training loops in plain numpy: the gradients of a step, averaged over all ranks.

Example:
    >>> import numpy as np, dlcp
    >>> from dlcp.numpy import GradientAverager
    >>> alone = dlcp.Communicator(0, 1, dlcp.MemoryStore())
    >>> averager = GradientAverager(alone, {"weight": np.zeros((2, 2)), "bias": np.zeros(2)})
    >>> averager.average({"weight": np.eye(2), "bias": np.ones(2)})["bias"]
    array([1., 1.])
    >>> alone.close()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.communicator import Communicator
from dlcp.errors import ConfigError
from dlcp.gradients.averager import ArrayAverager, Pass
from dlcp.gradients.layout import BUCKET_BYTES, leaf_of

Array = NDArray[Any]
Parameters = TypeVar("Parameters", Mapping[str, Array], Sequence[Array])


class GradientAverager(ArrayAverager, Generic[Parameters]):
    """Averages gradients that come as a dictionary or as a list of arrays.

    Every rank makes one, from the same parameters, and then averages as often as the others.

    Args:
        communicator: Carries the gradients; the caller closes it.
        parameters: What is trained: arrays by name, or a list of arrays, whose names are their positions.  Only names, shapes and
            types (float16, bfloat16, float32, float64) are kept.
        order: Names in the order in which a forward pass uses them, which decides their classes; None for the order of
            ``parameters``.
        bucket_bytes: Arrays travel together until they fill so many bytes.

    Raises:
        ConfigError: Parameters, order or policy do not fit.
        MismatchError: Another rank has other parameters.
    """

    def __init__(
        self,
        communicator: Communicator,
        parameters: Parameters,
        *,
        order: Sequence[str] | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._keys: tuple[Any, ...] | None = tuple(parameters) if isinstance(parameters, Mapping) else None
        named = parameters.items() if isinstance(parameters, Mapping) else ((str(i), a) for i, a in enumerate(parameters))
        leaves = [leaf_of(str(name), np.shape(array), np.asarray(array).dtype, "parameters") for name, array in named]
        super().__init__(communicator, leaves, order=order, bucket_bytes=bucket_bytes)

    def average(self, gradients: Parameters) -> Parameters:
        """Averages the gradients of a step.

        Args:
            gradients: Like the parameters; None stands for zeros.  They are not changed.

        Returns:
            The averages in the same form, the same bits on all ranks; the caller's to keep and to change.

        Raises:
            ConfigError: Gradients do not fit the parameters.  All ranks are told.
            DLCPError: The transport has failed.
        """
        return self.average_async(gradients)()

    def average_async(self, gradients: Parameters) -> Callable[[], Parameters]:
        """Starts :meth:`average`, and returns what waits for it; meanwhile gradients may change."""
        current: Pass = self.start(self._flat(gradients))
        return lambda: self._whole(current.wait())

    def broadcast(self, parameters: Parameters, root: int = 0) -> Parameters:
        """Returns the parameters of rank ``root``, for all ranks to start from; they are not changed."""
        result: Parameters = self._whole(self.broadcast_arrays(self._flat(parameters), root))
        return result

    def _flat(self, arrays: Any) -> list[Any]:
        if self._keys is None:
            return list(arrays)
        if not isinstance(arrays, Mapping) or set(arrays) != set(self._keys):
            found = ", ".join(map(str, arrays)) if isinstance(arrays, Mapping) else f"a {type(arrays).__name__}"
            error = ConfigError("gradients", "names", found, ", ".join(map(str, self._keys)))
            self.abort_with(error)
            raise error
        return [arrays[key] for key in self._keys]

    def _whole(self, arrays: list[Array]) -> Any:
        return arrays if self._keys is None else dict(zip(self._keys, arrays, strict=True))
