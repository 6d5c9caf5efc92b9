"""The state of the communication hook: what a training script makes, attaches, guards, saves and closes."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self, cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dlcp.collectives.communicator import Algorithm, Communicator
from dlcp.collectives.residual import ResidualStore
from dlcp.errors import ClosedError, ConfigError, DLCPError
from dlcp.policy import Policy
from dlcp.tagging.layers import FirstForward
from dlcp.torch.adaptive import Adaptation
from dlcp.torch.c10d import Hook, PrefixStore
from dlcp.torch.checkpoint import pack_state, unpack_state
from dlcp.torch.layout import LayerClasses, ParameterNames
from dlcp.torch.reducer import Reducer
from dlcp.torch.resync import Resynchronizer
from dlcp.udp.faults import FaultPlan

if TYPE_CHECKING:
    from dlcp.store import Store

_log = logging.getLogger(__name__)

EVENTS_KEPT: Final = 4096

# States made from one process group so far: the same number on all ranks, as each makes them in the same order.
_claims: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()


class DLCPState:
    """State for :func:`dlcp.torch.dlcp_hook`; one for each model.

    Typical use::

        model = DistributedDataParallel(net)
        state = DLCPState.from_process_group(policy=Policy.from_toml("policy.toml"))
        state.attach(model)
        with state.guard():
            train(model)
        state.close()

    Args:
        communicator: Carries the gradients.  None for a state that :meth:`bind` will give one.
        model: The module, or its ``DistributedDataParallel``.  Names of parameters come from it; without it they are numbered
            in the order in which DDP presents them, which is stable only as long as model and settings are.
        max_in_flight: Buckets that may be under way at once, each holding a host copy; a further one waits in the hook.  None: 2,
            or 64 MiB of them, for gradients on the host; any number for those on a GPU, where a hook that waits would keep
            kernels from being launched.

    Attributes:
        residuals: What has not arrived yet, by parameter.
        passes: Backward passes that were reduced, over restarts.
        events: What happened to loss bounds, newest last, as plain dictionaries: ``bound`` (the adaptive bound has moved: step,
            old, new, reason, ratio) and ``evenness`` (a sender's data is asked for beyond its bound, or no more: step, sender,
            held, missing_share, others_share).  Whoever reads them may remove them; of many only the latest are kept.
    """

    def __init__(
        self,
        communicator: Communicator | None = None,
        *,
        model: nn.Module | None = None,
        max_in_flight: int | None = None,
    ) -> None:
        if max_in_flight is not None and max_in_flight < 1:
            raise ValueError(f"max_in_flight is {max_in_flight}; at least 1 is needed")
        self.residuals = ResidualStore()
        self.passes = 0
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self._adaptation: Adaptation | None = None
        self._adapted: Mapping[str, Any] | None = None
        self._max_in_flight = max_in_flight
        self._order: list[str] | None = None
        self._owned = False
        self._communicator: Communicator | None = None
        self._reducer: Reducer | None = None
        self._classes: LayerClasses | None = None
        self._resync: Resynchronizer | None = None
        self._first_forward: FirstForward | None = None
        self._model = _bare(model)
        if communicator is not None:
            self.bind(communicator)

    @classmethod
    def from_process_group(
        cls,
        process_group: dist.ProcessGroup | None = None,
        *,
        policy: Policy | None = None,
        algorithm: Algorithm = "sharded",
        servers: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        faults: FaultPlan | str | None = None,
        model: nn.Module | None = None,
        max_in_flight: int | None = None,
    ) -> Self:
        """Makes a state whose communicator joins the ranks of a process group.

        Every rank of the group calls this, in the same order if there are several states.  Only the group's store is used; the
        gradients do not touch the group.

        Args:
            process_group: None for the default group.
            policy: None for the defaults.
            algorithm: ``sharded``, ``ring`` or ``ps``.
            servers: Number of dedicated servers, for ``ps``.
            host: Address of this rank that the others can reach; the default serves ranks on one machine.
            port: UDP port; 0 takes a free one.
            faults: Loss, delay and so on to inject into outgoing packets, for example ``drop=0.01``.
            model: See the class.
            max_in_flight: See the class.

        Raises:
            DLCPError: The ranks did not meet, or do not agree.
        """
        group = process_group if process_group is not None else dist.group.WORLD
        if group is None:
            raise ConfigError("process_group", "process_group", "there is no default group", "one; call init_process_group first")
        state = cls(model=model, max_in_flight=max_in_flight)
        number = _claims.get(group, 0)
        _claims[group] = number + 1
        communicator = Communicator(
            dist.get_rank(group),
            dist.get_world_size(group),
            cast("Store", PrefixStore(f"dlcp/{number}", group.get_group_store())),
            policy=policy if policy is not None else Policy(),
            host=host,
            port=port,
            algorithm=algorithm,
            servers=servers,
            faults=FaultPlan.parse(faults) if isinstance(faults, str) else faults,
        )
        state.bind(communicator)
        state._owned = True
        return state

    # -- model and communicator

    @property
    def communicator(self) -> Communicator:
        """The communicator.

        Raises:
            ClosedError: There is none: the state was unpickled and not bound, or is closed.
        """
        if self._communicator is None:
            raise ClosedError("this DLCPState has no communicator: bind() gives it one")
        return self._communicator

    @property
    def reducer(self) -> Reducer:
        """What carries buckets; for the hook.

        Raises:
            ClosedError: There is no communicator.
        """
        if self._reducer is None:
            raise ClosedError("this DLCPState has no communicator: bind() gives it one")
        return self._reducer

    def bind(self, communicator: Communicator) -> None:
        """Goes on with another communicator, after unpickling or after a failure.  What is owed stays.

        Args:
            communicator: The new one.  The old one is closed if the state made it.
        """
        self._release()
        self._communicator = communicator
        self._set_up(communicator)

    def attach(self, model: DistributedDataParallel, *, hook: Hook | None = None, record: bool = True) -> None:
        """Registers the hook with a model and learns the model's parameters.

        Args:
            model: Not yet run backward; DDP takes a hook once.
            hook: None for :func:`dlcp.torch.dlcp_hook`; a wrapper around it to compress.
            record: Note the order in which the first forward pass uses the parameters, which decides their classes.  Without,
                it is derived from the order in which gradients become ready.

        Raises:
            TypeError: Not a ``DistributedDataParallel``.
            ClosedError: The state has no communicator.
        """
        from dlcp.torch.hook import dlcp_hook  # the hook's module needs this one

        if not isinstance(model, DistributedDataParallel):
            raise TypeError(f"a {type(model).__name__} takes no communication hook; wrap it into DistributedDataParallel")
        communicator = self.communicator
        if self._model is not model.module:
            self._model = model.module
            self._set_up(communicator)
        model.register_comm_hook(self, hook if hook is not None else dlcp_hook)
        self.reducer.may_skip = bool(model.find_unused_parameters or model.static_graph)
        loss = communicator.policy.loss
        if loss.pull > 0:
            self._resync = Resynchronizer(model, loss.resync_steps, self._broadcast, self.passes)
        # torch.compile traces forward hooks; its wrapper, which has _orig_mod, goes without a recorded order.
        if record and self._order is None and not hasattr(model.module, "_orig_mod"):
            self._first_forward = FirstForward(model.module)

    def _set_up(self, communicator: Communicator) -> None:
        names = ParameterNames(self._model)
        self._classes = LayerClasses(names, communicator.policy.classes.count)
        if self._order is not None:
            self._classes.record(self._order)
        loss = communicator.policy.loss
        if loss.bound == "adaptive":
            sample = communicator.policy.protection.sample
            kept = self._adaptation.control.state_dict() if self._adaptation is not None else self._adapted
            self._adaptation = Adaptation(loss.push, communicator.world, loss.bound_window, sample)
            if kept is not None:
                self._adaptation.control.load_state_dict(kept)
        else:
            self._adaptation = None
        self._reducer = Reducer(
            communicator,
            self.residuals,
            names,
            self._classes,
            max_in_flight=self._max_in_flight,
            began=self._pass_began,
            ended=self._pass_ended,
            adaptation=self._adaptation,
        )

    def _pass_began(self) -> None:
        if self._resync is None and self.communicator.policy.loss.pull > 0:
            raise ConfigError("policy", "loss.pull", "replicas drift apart that nobody repairs", "0, or DLCPState.attach(model)")
        first = self._first_forward
        if first is not None and first.order is not None and self._classes is not None:
            self._first_forward = None
            self._order = first.order
            self._classes.record(first.order)

    def _pass_ended(self) -> None:
        self.passes += 1
        change = self._adaptation.end_pass() if self._adaptation is not None else None
        if change is not None:
            _log.info("step %d: loss bound %.4g -> %.4g, %s (ratio %.3g)", self.passes, *change)
            self.events.append({"event": "bound", "step": self.passes, **change._asdict()})
        for notice in self.communicator.take_notices():
            self.events.append({**notice, "step": self.passes})
        if self._resync is not None:
            self._resync.stepped()

    def _broadcast(self, flat: Tensor) -> None:
        self.communicator.broadcast(flat.numpy(), root=0)

    # -- failures

    @property
    def error(self) -> BaseException | None:
        """What ended the work, or None."""
        return self._reducer.error if self._reducer is not None else None

    def check(self) -> None:
        """Raises what has ended the work, if anything has; costs nothing worth mentioning."""
        self.reducer.check()

    def abort(self, reason: str) -> None:
        """Ends the work on all ranks: here and there the hook raises, there :class:`~dlcp.errors.RemoteError` with ``reason``."""
        self.reducer.fail(ClosedError(f"aborted: {reason}"))

    @contextmanager
    def guard(self) -> Iterator[Self]:
        """A context for the training loop: whatever leaves it as an exception ends the other ranks at once.

        Without it they would notice after ``timeouts.peer_s`` of silence.  An error of the transport that reached the loop as
        torch's ``RuntimeError``, through a wrapper's future, leaves as what it was.
        """
        try:
            yield self
        except BaseException as error:
            known = self.error
            if known is None:
                ending = isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and not error.code)
                if self._reducer is not None and not ending:
                    self._reducer.fail(error)
                raise
            if known is error or isinstance(error, DLCPError) or not isinstance(error, RuntimeError):
                raise
            raise known from error

    # -- metrics and checkpoints

    def metrics(self) -> dict[str, Any]:
        """Returns counts since the communicator was bound.

        ``hook`` holds buckets, elements, packets, protected_packets, lost_elements and lost_l1 (number and sum of |g| of what did
        not arrive in its own pass), bound (if it is adaptive), seconds (spent in the hook), passes, residual_elements,
        residual_l1 and nonfinite_elements; ``transport`` is what the communicator reports.
        """
        mass = self.residuals.mass()
        hook: dict[str, Any] = dict(self._reducer.counts) if self._reducer is not None else {}
        hook["passes"] = self.passes
        if self._adaptation is not None:
            hook["bound"] = self._adaptation.control.bound
        hook["residual_elements"] = mass.elements
        hook["residual_l1"] = mass.l1
        hook["nonfinite_elements"] = self.residuals.nonfinite
        return {"hook": hook, "transport": self._communicator.metrics() if self._communicator is not None else {}}

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint needs, in plain types and tensors that ``torch.load(weights_only=True)`` accepts.

        It is this rank's own: every rank saves its own, and on resuming each is loaded by exactly one rank.  To be called between
        steps.
        """
        adapted = self._adaptation.control.state_dict() if self._adaptation is not None else None
        return pack_state(self.residuals, self.passes, self._order, adapted)

    def load_state_dict(self, state: Mapping[str, Any], source: str = "<state_dict>") -> None:
        """Takes up a checkpoint.

        Args:
            state: What :meth:`state_dict` returned; not trusted.
            source: Where it came from, for errors.

        Raises:
            ConfigError: It is malformed, or of another model.  Nothing has changed.
        """
        sizes = (
            {name: parameter.numel() for name, parameter in self._model.named_parameters()} if self._model is not None else None
        )
        loaded = unpack_state(state, source, sizes)
        if loaded.adapted is not None:
            if self._adaptation is not None:
                self._adaptation.control.load_state_dict(loaded.adapted, f"{source}: bound")
            else:
                self._adapted = loaded.adapted
        self.residuals.restore(loaded.residuals.snapshot())
        self.passes = loaded.passes
        self._order = loaded.order
        if loaded.order is not None:
            if self._first_forward is not None:
                self._first_forward.remove()
                self._first_forward = None
            if self._classes is not None:
                self._classes.record(loaded.order)

    def scale_residuals(self, factor: float) -> None:
        """Multiplies what is owed.

        Under a loss scale residuals are scaled like the gradients that they come from: to be called with new / old whenever the
        scale changes.
        """
        self.residuals.scale(factor)
        if self._adaptation is not None:
            self._adaptation.scale(factor)

    def __getstate__(self) -> dict[str, Any]:
        _log.warning("a pickled DLCPState holds neither communicator nor model: bind() and attach() it again")
        return {"state": self.state_dict(), "max_in_flight": self._max_in_flight}

    def __setstate__(self, state: dict[str, Any]) -> None:
        DLCPState.__init__(self, max_in_flight=state["max_in_flight"])
        self.load_state_dict(state["state"], "<pickle>")

    # -- the end

    def close(self) -> None:
        """Ends background threads, and the communicator if the state made it.  What is owed can still be saved."""
        if self._first_forward is not None:
            self._first_forward.remove()
            self._first_forward = None
        if self._resync is not None:
            self._resync.remove()
            self._resync = None
        self._release()

    def _release(self) -> None:
        reducer, self._reducer = self._reducer, None
        communicator, self._communicator = self._communicator, None
        owned, self._owned = self._owned, False
        if reducer is not None:
            reducer.close()
        if communicator is not None and owned:
            communicator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _bare(model: nn.Module | None) -> nn.Module | None:
    return model.module if isinstance(model, DistributedDataParallel) else model
