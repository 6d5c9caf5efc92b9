"""DLCP for TensorFlow and Keras: a list of gradients, averaged over all ranks, each a process of its own.

In a loop of one's own, eager or inside ``tf.function``::

    gradients = tape.gradient(loss, model.trainable_variables)
    gradients = averager.average(gradients)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

or with Keras' own loop, by an optimizer that averages what it is given::

    model.compile(averager.wrap(keras.optimizers.SGD(0.1)), loss=..., jit_compile=False)
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
    """Averages lists of gradients.

    Every rank makes one, from the same variables, and then averages as often as the others.

    Args:
        communicator: Carries the gradients; the caller closes it.
        variables: What is trained: a model's ``trainable_variables``.  Only shapes and types (float16, bfloat16, float32,
            float64) are kept.  Names are positions, since Keras numbers its variables anew in each process.
        order: Names in the order in which a forward pass uses them, which decides their classes; None for the order of
            ``variables``.
        bucket_bytes: Gradients travel together until they fill so many bytes.

    Raises:
        ImportError: There is no TensorFlow.
        ConfigError: Variables, order or policy do not fit.
        MismatchError: Another rank has other variables.
    """

    def __init__(
        self,
        communicator: Communicator,
        variables: Sequence[Any],
        *,
        order: Sequence[str] | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._tf = _tensorflow()
        self._types = [self._tf.as_dtype(variable.dtype) for variable in variables]
        leaves = [
            leaf_of(str(i), tuple(variable.shape), kind.as_numpy_dtype, "variables")
            for i, (variable, kind) in enumerate(zip(variables, self._types, strict=True))
        ]
        super().__init__(communicator, leaves, order=order, bucket_bytes=bucket_bytes, source="variables")

    def average(self, gradients: Sequence[Any]) -> list[Any]:
        """Averages the gradients of a step; eagerly, or inside ``tf.function``, whose graph calls back then.

        Args:
            gradients: One for each variable, in their order, as ``tape.gradient`` returns them.  None, which says that the loss
                does not depend on a variable, counts as zeros; sparse ones (``tf.IndexedSlices``) are made dense.

        Returns:
            The averages as tensors, the same bits on all ranks.

        Raises:
            ConfigError: Gradients do not fit the variables.  All ranks are told.
            DLCPError: The transport has failed.  Out of a ``tf.function`` it comes as TensorFlow's own error; :meth:`guard` turns
                it back, and :meth:`check` raises it.
        """
        gradients = list(gradients)
        if len(gradients) != len(self._types):
            problem = f"{len(gradients)} of them"
            error = ConfigError("variables", "gradients", problem, f"{len(self._types)}, one for each variable")
            self.abort_with(error)
            raise error
        dense = [None if gradient is None else self._tf.convert_to_tensor(gradient) for gradient in gradients]
        if self._tf.executing_eagerly():
            averages = self.average_arrays([None if gradient is None else gradient.numpy() for gradient in dense])
            return [self._tf.convert_to_tensor(average) for average in averages]
        leaves, zeros = self._layout.leaves, self._tf.zeros
        given = [zeros(leaves[i].shape, self._types[i]) if g is None else g for i, g in enumerate(dense)]
        # A stateful operation: the graph neither leaves it out, nor runs it twice, nor reorders it with others.
        results = self._tf.numpy_function(self._called_back, given, self._types, stateful=True)
        for result, leaf in zip(results, leaves, strict=True):
            result.set_shape(leaf.shape)
        return list(results)

    def broadcast(self, variables: Sequence[Any], root: int = 0) -> None:
        """Gives variables the values that they have on rank ``root``, for all ranks to start from; eagerly."""
        values = self.broadcast_arrays([self._tf.convert_to_tensor(variable).numpy() for variable in variables], root)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(self._tf.convert_to_tensor(value))

    def wrap(self, optimizer: Any) -> Any:
        """Returns a Keras optimizer like ``optimizer``, not used yet, that averages gradients before it applies them.

        Clipping and the like, which optimizers do by themselves, then see averages.  With ``model.fit`` compile the model with
        ``jit_compile=False``: XLA cannot call back.

        Raises:
            TypeError: Not an optimizer of Keras 3.
        """
        kind = type(optimizer)
        if not callable(getattr(kind, "apply", None)) or not callable(getattr(kind, "from_config", None)):
            raise TypeError(f"a {kind.__name__} has no apply() and from_config(); an optimizer of Keras 3 is needed")
        average = self.average

        def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
            return kind.apply(self, average(grads), trainable_variables)

        averaging = type(kind.__name__, (kind,), {"apply": apply, "__module__": kind.__module__, "__doc__": kind.__doc__})
        return averaging.from_config(optimizer.get_config())  # type: ignore[attr-defined]

    def _called_back(self, *arrays: Any) -> list[NDArray[Any]]:
        return self.average_arrays([np.asarray(array) for array in arrays])


def _tensorflow() -> Any:
    try:
        return import_module("tensorflow")
    except ImportError as error:
        raise ImportError("dlcp.tensorflow needs TensorFlow: pip install 'dlcp[tensorflow]'") from error
