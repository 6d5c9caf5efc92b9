"""The program that requests refer to: what it declares, its state, and what only the server keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from finsy.proto import p4r

from softswitch.runtime import Runtime
from softswitch.server.schema import Schema


@dataclass(frozen=True, slots=True)
class DigestConfig:
    """How digests of one kind are sent; times in ns, 0 for none, ``max_list_size`` 0 for no limit."""

    max_timeout_ns: int = 0
    max_list_size: int = 0
    ack_timeout_ns: int = 0


@dataclass(eq=False, slots=True)
class Target:
    """A program with its P4Info.

    Attributes:
        program: A ``softswitch.pipeline.Pipeline``: what the switch runs or, after VERIFY_AND_SAVE, will run.
        config: As the client sent it.
        ports: Numbers of the device's ports.
        queues: Classes of service that a port has.
        digests: Configuration of the digests that are switched on, by P4 id.
        defaults: Metadata and cookie of default entries, by P4 id of the table.
        sizes: ``max_size`` of groups, by P4 id of the profile and group id.
    """

    program: Any
    schema: Schema
    config: p4r.ForwardingPipelineConfig
    ports: Container[int]
    queues: int = 8
    digests: dict[int, DigestConfig] = field(default_factory=dict)
    defaults: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def runtime(self) -> Runtime:
        """State of the program."""
        runtime: Runtime = self.program.runtime
        return runtime

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Takes back everything that the body wrote if it raises."""
        kept: tuple[dict[Any, Any], ...] = (self.digests, self.defaults, self.sizes)
        copies = [dict(state) for state in kept]
        try:
            with self.runtime.transaction():
                yield
        except BaseException:
            for state, copy in zip(kept, copies, strict=True):
                state.clear()
                state.update(copy)
            raise


Operation = Callable[[Target], object]
"""One update, checked against the schema; called in the data plane's thread.  It does all or, raising a SwitchError, nothing."""

Query = tuple[Callable[[Target], list[Any]], Callable[[Any], p4r.Entity]]
"""A read: what the data plane's thread copies, and how a row of it becomes a message later, in the server's thread."""

__all__ = ["DigestConfig", "Operation", "Query", "Target"]
