"""An optimizer that does not wait for the last gradient before the next forward pass begins.

Under plain DDP every bucket must be in before ``step()``, so it gains nothing that front layers travel first.  Here ``step()``
returns at once.  A module's next forward pass waits for the gradients of its own parameters, updates them, and runs; what the
back layers need travels on meanwhile (as in ByteScheduler, SOSP 2019, and P3, SysML 2019, for plain DDP).

Theory of operation.  DDP's hook cuts a bucket into parts, of whole parameters, and starts a reduction for each, the most urgent
first; to DDP it pretends to be finished.  The averages are written into DDP's buffer.  After the backward pass ``parameter.grad``
is a stand-in that waits when it is looked at.  ``step()`` notes the hyperparameters of the moment.  An update is made in the
thread that runs the model, part by part, by the optimizer's own code on those parameters alone; so no state is touched by two
threads, and any optimizer that treats parameters one by one computes the very same bits.

When a forward pass has ended nothing is pending: a backward pass never meets a gradient of the one before.
"""

# No "from __future__ import annotations": DDP compares the annotations of the hook below with types.

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, Optimizer

from dlcp.torch.c10d import GradBucket
from dlcp.torch.gates import ForwardGates
from dlcp.torch.layout import BucketLayout
from dlcp.torch.pending import Part, PendingGradient, Settings
from dlcp.torch.state import DLCPState

PARTITION_BYTES: Final = 1 << 20
"""Parts below this size are not worth a collective call of their own: it is about 170 packets of 1,500 bytes."""

_log = logging.getLogger(__name__)


class PipelinedOptimizer(Optimizer):
    """Wraps an optimizer so that updates are made when averaged gradients have come and parameters are needed.

    Use it like the optimizer itself; it registers the communication hook, so do not call ``state.attach``::

        model = DistributedDataParallel(net, bucket_cap_mb=1)
        state = DLCPState.from_process_group(policy=policy)
        optimizer = PipelinedOptimizer(SGD(model.parameters(), lr=0.1), model, state)

    Schedulers, parameter groups, ``no_sync``, gradient scalers, recomputed activations, shared, frozen and unused parameters
    work as ever.  Whoever needs gradients between ``backward()`` and ``step()``, such as ``clip_grad_norm_`` or a scaler, simply
    gets them, by waiting, and nothing is pipelined in that step; ``clip_norm`` clips without waiting.  Evaluation,
    ``state_dict()`` of model and optimizer, and :meth:`drain` make all updates first.  **Reading parameters directly after**
    ``step()`` **needs** :meth:`drain` **before**.

    If the transport fails, some parameters may have been updated and others not: go on from a checkpoint.

    Args:
        optimizer: Any that treats parameters one by one, which all of ``torch.optim`` but LBFGS do.
        model: Not yet run backward.  Buckets are launched when all their gradients are there, so small ones
            (``bucket_cap_mb=1``) let the transport start earlier.
        state: Not attached yet.
        partition_bytes: Buckets are cut into parts of at least this many bytes.
        clip_norm: Largest norm of the gradient of each parameter; None does not clip.

    Raises:
        TypeError, ValueError: The arguments do not fit.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: DistributedDataParallel,
        state: DLCPState,
        *,
        partition_bytes: int = PARTITION_BYTES,
        clip_norm: float | None = None,
    ) -> None:
        if isinstance(optimizer, LBFGS | PipelinedOptimizer):
            raise TypeError(f"{type(optimizer).__name__} cannot be pipelined: it does not treat parameters one by one")
        if partition_bytes < 1:
            raise ValueError(f"partition_bytes is {partition_bytes}; at least 1 is needed")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm is {clip_norm}; a number above 0 is needed")
        # Optimizer.__init__ is not called: parameters, hyperparameters, state and hooks are those of the wrapped optimizer.
        self.optimizer = optimizer
        self._model = model
        self._state = state
        self._partition_bytes = partition_bytes
        self._clip_norm = clip_norm
        self._pending: dict[Tensor, Part] = {}
        self._fresh: list[Part] = []
        self._cuts: dict[tuple[int, ...], list[tuple[int, BucketLayout]]] = {}
        self._open = False
        self._told = False
        self._synchronous = False

        def pipelined_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
            return self._launch(bucket)

        state.attach(model, hook=pipelined_hook)
        self._gates = ForwardGates(model.module, self._wait, self.drain)

    # -- what an optimizer is

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # not set yet: a half-made object must not look for itself in itself
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"PipelinedOptimizer({self.optimizer!r})"

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a PipelinedOptimizer belongs to its process; save its state_dict()")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Makes all updates, then adds a group to the wrapped optimizer."""
        self.drain()
        self.optimizer.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients; updates that are due still get theirs."""
        if not set_to_none:
            self.drain()
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Makes all updates, then returns the state of the wrapped optimizer."""
        self.drain()
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes all updates, then loads the state of the wrapped optimizer."""
        self.drain()
        self.optimizer.load_state_dict(dict(state_dict))

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Notes that updates are due, with the hyperparameters of this moment, and makes those that nobody need wait for.

        Raises:
            DLCPError: The transport has failed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._state.check()
        settings = _settings(self.optimizer)
        at_once: list[tuple[int, Tensor]] = []
        for index, group in enumerate(self.optimizer.param_groups):
            for parameter in group["params"]:
                part = self._due(parameter)
                if part is not None:
                    part.enrolled.append((index, parameter))
                elif parameter.grad is not None:
                    at_once.append((index, parameter))
        for part in self._fresh:
            part.settings = settings
        self._fresh = []
        if at_once:
            self._update(at_once, settings)
        # The wrapped optimizer's step() is not called as such, and a scheduler that was made for it looks.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        return loss

    # -- beyond that

    @torch.no_grad()
    def drain(self) -> None:
        """Makes all updates that are due, and waits for every gradient under way.

        Raises:
            DLCPError: The transport has failed.
        """
        for part in dict.fromkeys(self._pending.values()):
            self._settle(part)
        if self._open:
            self._open = False
            self._state.reducer.finish()

    def close(self) -> None:
        """Makes all updates and takes the hooks off the modules; the model keeps its communication hook."""
        self.drain()
        self._gates.remove()

    # -- the backward pass

    def _launch(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        reducer = self._state.reducer
        reducer.check()
        try:
            if bucket.index() == 0:
                self.drain()
                self._fresh = []
                self._open = True
                reducer.begin()
            layout = reducer.observe(bucket)
            self._launch_parts(bucket, layout)
            # A static graph's first pass launches buckets after the end of the backward pass, and reads them at once.
            if torch._C._current_autograd_node() is None:
                self._synchronous = True
                for part in self._fresh:
                    reducer.await_landing(part.future)
            if bucket.is_last():
                self._end_backward()
        except BaseException as error:
            reducer.fail(error)
            raise
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def _launch_parts(self, bucket: GradBucket, layout: BucketLayout) -> None:
        buffer, views = bucket.buffer(), bucket.gradients()
        first = 0
        parts = []
        for count, part_layout in self._cut(layout, buffer.element_size()):
            begin, end = int(layout.edges[first]), int(layout.edges[first + count])
            parts.append((buffer[begin:end], part_layout, views[first : first + count]))
            first += count
        # Buckets hold back layers first.  All ranks cut alike, and so launch in the same order.
        for piece, part_layout, part_views in reversed(parts):
            future = self._state.reducer.launch(piece, part_layout)
            part = Part(part_layout.parameters, part_views, future)
            self._fresh.append(part)
            for parameter in part.parameters:
                self._pending[parameter] = part

    def _cut(self, layout: BucketLayout, item: int) -> list[tuple[int, BucketLayout]]:
        """Returns the parts of a bucket: number of parameters, and layout."""
        key = tuple(map(id, layout.parameters))
        if key not in self._cuts:
            groups: list[list[Tensor]] = [[]]
            for parameter in layout.parameters:
                if sum(p.numel() for p in groups[-1]) * item >= self._partition_bytes:
                    groups.append([])
                groups[-1].append(parameter)
            self._cuts[key] = [(len(group), self._state.reducer.layout(group)) for group in groups]
        return self._cuts[key]

    def _end_backward(self) -> None:
        if self._synchronous:
            # DDP sets the gradients itself, from buffers that hold the averages.
            self._synchronous = False
            for part in self._fresh:
                self._settle(part)
            return
        # DDP's own callback, which sets the gradients, is queued after this one; a callback of a callback comes after both.
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(self._stand_in))

    def _stand_in(self) -> None:
        self._state.check()
        for part in self._fresh:
            if part.done:
                continue
            for parameter in part.parameters:
                if parameter.grad is not None:
                    parameter.grad = PendingGradient.of(parameter.grad, part, self._look)

    # -- updates

    def _due(self, parameter: Tensor) -> Part | None:
        """Returns the part that a parameter's update has to wait for, or None if its gradient is there, or there is none."""
        gradient = parameter.grad
        if not isinstance(gradient, PendingGradient):
            return None
        part = gradient.part
        if part.done or part.settings is not None:  # the second: step() once more, without a backward pass between
            self._settle(part)
            return None
        return part

    def _wait(self, parameters: Iterable[Tensor]) -> None:
        if self._pending:
            for parameter in parameters:
                part = self._pending.get(parameter)
                if part is not None:
                    self._settle(part)

    def _look(self, part: Part) -> None:
        """Somebody looks at a gradient."""
        if part.settings is None and not self._told:
            self._told = True
            _log.info("gradients were looked at before step(), which waits for them; clip_norm= clips without waiting")
        self._settle(part)

    @torch.no_grad()
    def _settle(self, part: Part) -> None:
        """Waits for a part's gradients, puts them where they belong, and makes the update that is due."""
        if part.done:
            return
        self._state.reducer.await_landing(part.future)
        part.done = True
        # This may be in the middle of a forward pass under autocast, which is no business of the optimizer's.
        with torch.autocast(part.views[0].device.type, enabled=False):
            self._finish(part)

    def _finish(self, part: Part) -> None:
        for parameter, view in zip(part.parameters, part.views, strict=True):
            self._pending.pop(parameter, None)
            gradient = parameter.grad
            if isinstance(gradient, PendingGradient):
                # DDP insists that gradients either all lie in its buffers or all outside, as gradient_as_bucket_view says.
                parameter.grad = gradient.tensor
                if gradient.tensor.data_ptr() != view.data_ptr():
                    gradient.tensor.copy_(view)
        if part.settings is None or not part.enrolled:
            return
        kept = [parameter.grad for parameter in part.parameters]  # zero_grad() may have been called since step()
        for parameter, view in zip(part.parameters, part.views, strict=True):
            parameter.grad = view
        self._update(part.enrolled, part.settings)
        for parameter, gradient in zip(part.parameters, kept, strict=True):
            parameter.grad = gradient

    def _update(self, due: list[tuple[int, Tensor]], settings: Settings) -> None:
        if self._clip_norm is not None:
            for _, parameter in due:
                torch.nn.utils.clip_grad_norm_(parameter, self._clip_norm)
        chosen: dict[int, list[Tensor]] = {}
        for index, parameter in due:
            chosen.setdefault(index, []).append(parameter)
        kind = type(self.optimizer)
        worker = object.__new__(kind)
        worker.__dict__.update(self.optimizer.__dict__)
        worker.param_groups = [{**settings[index], "params": parameters} for index, parameters in chosen.items()]
        # The undecorated function: hooks around step() belong to the whole step, and a scheduler may have replaced the bound one.
        step: Any = kind.step
        while hasattr(step, "hooked") and hasattr(step, "__wrapped__"):
            step = step.__wrapped__
        step(worker)


def _settings(optimizer: Optimizer) -> Settings:
    """Returns the hyperparameters of each group as they are now; tensors are copied, as a scheduler changes them in place."""
    return [
        {key: value.clone() if isinstance(value, Tensor) else value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


PipelinedOptimizer.step = Optimizer.profile_hook_step(PipelinedOptimizer.step)  # type: ignore[method-assign]
PipelinedOptimizer.step.hooked = True  # type: ignore[attr-defined]

__all__ = ["PARTITION_BYTES", "PipelinedOptimizer"]
