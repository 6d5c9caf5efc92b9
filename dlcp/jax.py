"""DLCP for JAX: a pytree of gradients, averaged over all ranks, each a process of its own.

Between two compiled functions, which is the sound and the simple way::

    loss, gradients = gradient_step(parameters, batch)       # jax.jit(jax.value_and_grad(...))
    gradients = averager.average(gradients)
    parameters, optimizer = update_step(parameters, gradients, optimizer)

or inside of one, where ``average`` meets tracers and becomes a callback of :func:`jax.experimental.io_callback` with
``ordered=True``: called exactly once for each time that the program gets there, in the order of the program, the same on all
ranks.  :func:`jax.pure_callback` promises none of that.  It may be left out, run twice, or be moved, and a rank that calls a
collective less often than the others, or in another order, stops them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.communicator import Communicator
from dlcp.errors import ConfigError
from dlcp.gradients.averager import ArrayAverager
from dlcp.gradients.layout import BUCKET_BYTES, leaf_of


class GradientAverager(ArrayAverager):
    """Averages pytrees of gradients.

    Every rank makes one, from the same parameters, and then averages as often as the others.

    Args:
        communicator: Carries the gradients; the caller closes it.
        parameters: A pytree of what is trained.  Only its structure, shapes and types (float16, bfloat16, float32, float64) are
            kept.  Names are the paths that :func:`jax.tree_util.keystr` makes, such as ``['dense']['kernel']``.
        order: Names in the order in which a forward pass uses them, which decides their classes; None for the order of the
            pytree, in which dictionaries are sorted by key.
        bucket_bytes: Leaves travel together until they fill so many bytes.

    Raises:
        ImportError: There is no JAX.
        ConfigError: Parameters, order or policy do not fit.
        MismatchError: Another rank has other parameters.
    """

    def __init__(
        self,
        communicator: Communicator,
        parameters: Any,
        *,
        order: Sequence[str] | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._jax = _jax()
        found, self._structure = self._jax.tree_util.tree_flatten_with_path(parameters)
        keystr = self._jax.tree_util.keystr
        leaves = [leaf_of(keystr(path), np.shape(leaf), self._jax.dtypes.result_type(leaf), "parameters") for path, leaf in found]
        super().__init__(communicator, leaves, order=order, bucket_bytes=bucket_bytes)

    def average(self, gradients: Any) -> Any:
        """Averages the gradients of a step; outside of compiled functions, or inside.

        Args:
            gradients: A pytree like the parameters.  Nothing of it is donated or changed.  Arrays may be spread over the devices
                of this process.

        Returns:
            The averages, the same bits on all ranks, each where its gradient was.

        Raises:
            ConfigError: Gradients do not fit the parameters, or lie on devices of several processes.  All ranks are told.
            DLCPError: The transport has failed.  Out of a compiled function it comes as JAX's own error; :meth:`guard` turns it
                back, and :meth:`check` raises it.
        """
        leaves = self._flat(gradients)
        if any(isinstance(leaf, self._jax.core.Tracer) for leaf in leaves):
            return self._whole(self._traced(leaves))
        for leaf in leaves:
            if isinstance(leaf, self._jax.Array):
                leaf.copy_to_host_async()  # all at once; each is waited for when its bucket is filled
        return self._whole(self._placed(self.average_arrays(leaves), leaves))

    def broadcast(self, parameters: Any, root: int = 0) -> Any:
        """Returns the parameters of rank ``root``, for all ranks to start from.

        Args:
            parameters: Any pytree of arrays, of the same structure, shapes and types on all ranks.
            root: Whose.
        """
        leaves, structure = self._jax.tree_util.tree_flatten(parameters)
        return self._jax.tree_util.tree_unflatten(structure, self._placed(self.broadcast_arrays(leaves, root), leaves))

    def _flat(self, gradients: Any) -> list[Any]:
        leaves, structure = self._jax.tree_util.tree_flatten(gradients)
        problem = None
        if structure != self._structure:
            problem = f"a pytree {structure}", f"{self._structure}, like the parameters"
        elif any(isinstance(leaf, self._jax.Array) and not self._is_here(leaf) for leaf in leaves):
            problem = "arrays on devices of other processes", "arrays that this process has all of"
        if problem is not None:
            error = ConfigError("gradients", "pytree", *problem)
            self.abort_with(error)
            raise error
        return list(leaves)

    def _is_here(self, leaf: Any) -> bool:
        return isinstance(leaf, self._jax.core.Tracer) or bool(leaf.is_fully_addressable)

    def _traced(self, leaves: list[Any]) -> Any:
        shapes = [self._jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in self._layout.leaves]
        callback = import_module("jax.experimental").io_callback
        return callback(self._called_back, shapes, *leaves, ordered=True)

    def _called_back(self, *arrays: Any) -> list[NDArray[Any]]:
        return self.average_arrays([np.asarray(array) for array in arrays])

    def _placed(self, arrays: list[NDArray[Any]], like: list[Any]) -> list[Any]:
        places = [leaf.sharding if isinstance(leaf, self._jax.Array) else None for leaf in like]
        placed: list[Any] = self._jax.device_put(arrays, places)
        return placed

    def _whole(self, leaves: Any) -> Any:
        return self._jax.tree_util.tree_unflatten(self._structure, leaves)


def _jax() -> Any:
    try:
        return import_module("jax")
    except ImportError as error:
        raise ImportError("dlcp.jax needs JAX: pip install 'dlcp[jax]'") from error
