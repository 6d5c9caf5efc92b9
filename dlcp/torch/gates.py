"""Lets each module's forward pass wait for that module's own parameters only.

Which parameters a module reads is not written down anywhere: most read their own, but some reach into a child without calling it
(``nn.MultiheadAttention`` reads ``out_proj.weight``).  So the first forward pass is watched, and parameters whose own module was
never called are waited for by the nearest module around it that was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class ForwardGates:
    """Hooks on a model and its modules.

    Args:
        model: The module whose forward pass is gated.
        wait: Called before a module runs, with the parameters that it reads.
        drain: Called where all parameters are needed: before a forward pass in evaluation mode, and after every other, so that a
            backward pass never meets a gradient of the one before.
    """

    def __init__(self, model: nn.Module, wait: Callable[[Iterable[Tensor]], None], drain: Callable[[], None]) -> None:
        self._model = model
        self._wait = wait
        self._drain = drain
        self._called: set[nn.Module] = set()
        self._needs: dict[nn.Module, tuple[Tensor, ...]] | None = None
        self._handles: list[RemovableHandle] = []
        self._watching: list[RemovableHandle] = []
        # torch.compile would trace the hooks of inner modules; a compiled model is gated as a whole.
        self._whole = hasattr(model, "_orig_mod")
        self._handles.append(model.register_forward_pre_hook(self._enter, prepend=True))
        self._handles.append(model.register_forward_hook(self._leave))
        self._handles.append(model.register_state_dict_pre_hook(lambda *_: drain()))
        if not self._whole:
            self._watching = [module.register_forward_pre_hook(self._watch) for module in model.modules()]

    def remove(self) -> None:
        """Takes the hooks off."""
        for handle in (*self._handles, *self._watching):
            handle.remove()
        self._handles, self._watching = [], []

    def _idle(self) -> bool:
        """Whether a forward pass runs for its own sake, and not to recompute activations in the middle of a backward pass."""
        return torch._C._current_autograd_node() is None

    def _watch(self, module: nn.Module, inputs: Any) -> None:
        self._called.add(module)

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if self._idle() and (not module.training or self._whole or self._needs is None):
            self._drain()

    def _gate(self, module: nn.Module, inputs: Any) -> None:
        if self._needs is not None and self._idle():
            self._wait(self._needs[module])

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not self._idle():
            return
        self._drain()
        if self._watching:
            for handle in self._watching:
                handle.remove()
            self._watching = []
            self._needs = {module: tuple(found) for module, found in needs(self._model, self._called).items()}
            self._handles += [module.register_forward_pre_hook(self._gate) for module in self._needs]


def needs(model: nn.Module, called: set[nn.Module]) -> dict[nn.Module, list[Tensor]]:
    """Returns the parameters that each module waits for.

    A module waits for its own parameters, called or not (it may be called later), and the nearest called module around an
    uncalled one waits for that one's, too.

    Args:
        model: The outermost module.
        called: Modules whose forward ran.
    """
    found: dict[nn.Module, list[Tensor]] = {}
    for chain in _chains(model, (model,)):
        module = chain[-1]
        own = [parameter for parameter in module._parameters.values() if parameter is not None]
        if not own:
            continue
        found.setdefault(module, []).extend(own)
        if module not in called:
            nearest = next((outer for outer in reversed(chain[:-1]) if outer in called), model)
            if nearest is not module:
                found.setdefault(nearest, []).extend(own)
    return found


def _chains(module: nn.Module, chain: tuple[nn.Module, ...]) -> Iterator[tuple[nn.Module, ...]]:
    """Yields every module with all that it lies in, outermost first; a module that is shared comes once for each place."""
    yield chain
    for child in module.children():
        if child not in chain:
            yield from _chains(child, (*chain, child))


__all__ = ["ForwardGates", "needs"]
