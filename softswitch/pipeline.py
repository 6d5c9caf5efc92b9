"""A compiled program with its state: what the traffic manager calls for every packet.

Behaviour is simple_switch's (targets/simple_switch/simple_switch.cpp of the behavioral model).  Time is microseconds since the
switch started.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from softswitch.compiler.unit import compile_program
from softswitch.program.model import ControlModel
from softswitch.program.reader import read
from softswitch.runtime import Runtime

Phv = tuple[Any, ...]
"""A parsed packet between ingress and egress.  Immutable; only compiled code knows what is where in it."""

Preserved = tuple[int, tuple[int, ...]]
"""Fields that a packet keeps when it comes again: the field list's id, and their values."""


@dataclass(slots=True)
class Outcome:
    """What becomes of a packet, if it is more than one copy to one port.

    Attributes:
        clones: Clone session and packet of each clone.
        resubmit: The packet as it came goes through ingress again (instance type 6) with these fields.
        multicast: Group, priority and packet, to be replicated.
        unicast: Egress port, priority and packet.
        recirculate: Bytes that go through ingress again (instance type 4), with these fields.
        data: Bytes to transmit (from egress).
    """

    clones: list[tuple[int, Phv]] = field(default_factory=list)
    resubmit: Preserved | None = None
    multicast: tuple[int, int, Phv] | None = None
    unicast: tuple[int, int, Phv] | None = None
    recirculate: tuple[bytes, Preserved] | None = None
    data: bytes | None = None


Result = tuple[int, int, Phv] | Outcome | None


class Pipeline:
    """A program ready to run.  Use ``load`` to make one.

    Attributes:
        control: What its control plane sees.
        runtime: Its state.
        source: Python source that was generated for it.
        ingress: ``ingress(data, port, now, instance_type=0, preserved=None)`` gives ``(egress_port, priority, phv)`` for a packet
            that goes to one port, None for a dropped one (``runtime.drops`` counts the causes), or an ``Outcome``.
        reparse: ``reparse(data, port, now, instance_type, preserved)`` gives the Phv of a packet that only went through the
            parser, or None if it was dropped there.
        egress: ``egress(phv, port, now, rid, instance_type=-1, priority=0, enq_timestamp=0, enq_qdepth=0, deq_timedelta=0,
            deq_qdepth=0)`` gives the bytes to transmit, None for a dropped packet, or an ``Outcome``; instance type -1 keeps that
            of the Phv.

    None of the three raises, whatever the packet's bytes are.
    """

    __slots__ = ("control", "egress", "ingress", "reparse", "runtime", "source")

    ingress: Callable[..., Result]
    reparse: Callable[..., Phv | None]
    egress: Callable[..., bytes | Outcome | None]

    def __init__(
        self,
        text: str | bytes,
        *,
        drop_port: int = 511,
        cpu_port: int | None = None,
        seed: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
        notify: Callable[[str, str], None] | None = None,
    ) -> None:
        program = read(text)
        self.control: ControlModel = program.control
        self.runtime = Runtime(program.control, random=Random(seed), clock=clock)
        compiled = compile_program(program, self.runtime, drop_port=drop_port, notify=notify, outcome=Outcome)
        self.source = compiled.source
        self.ingress = compiled.ingress
        self.reparse = compiled.reparse
        self.egress = compiled.egress

    @classmethod
    def load(
        cls,
        text: str | bytes,
        *,
        drop_port: int = 511,
        cpu_port: int | None = None,
        seed: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
        notify: Callable[[str, str], None] | None = None,
    ) -> Pipeline:
        """Compiles a program.

        Args:
            text: BMv2 JSON.
            drop_port: Egress port that means "drop".
            cpu_port: Port of the controller; nothing in the pipelines depends on it.
            seed: Of the program's random numbers.
            clock: Nanoseconds with the same origin as the packets' ``now``; idle timeouts compare the two.
            notify: Called with ``log_msg`` and the text of a program's log messages; None leaves them out of the compiled code.

        Raises:
            ProgramError: The JSON is no valid program.
            UnsupportedConstruct: The program needs something that this target lacks.
        """
        return cls(text, drop_port=drop_port, cpu_port=cpu_port, seed=seed, clock=clock, notify=notify)


def generated_source(text: str | bytes, *, drop_port: int = 511) -> str:
    """The Python source that a program is compiled to.

    Raises:
        ProgramError: The JSON is no valid program.
        UnsupportedConstruct: The program needs something that this target lacks.
    """
    return Pipeline.load(text, drop_port=drop_port).source


__all__ = ["Outcome", "Phv", "Pipeline", "Preserved", "Result", "generated_source"]
