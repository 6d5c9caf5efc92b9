"""The processes of a network's wires (:mod:`testbed.switches.wires`), and what can be changed and read there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from testbed.lab.errors import LabError
from testbed.lab.plan import WIRES, Wire
from testbed.switches.base import Context, ask
from testbed.switches.nursery import Nursery

AT_ONCE: Final = 8
"""Wires of one process: so the relays share the processors, and packet sockets, which take the kernel long to close, close at the
same time."""


class Relays:
    """All wires.

    Args:
        context: What is built.
        nursery: Starts the processes.
    """

    def __init__(self, context: Context, nursery: Nursery) -> None:
        self._context = context
        self._nursery = nursery
        wires = context.plan.wires
        self._groups = [wires[start : start + AT_ONCE] for start in range(0, len(wires), AT_ONCE)]

    def start(self) -> None:
        """Starts all; they relay when it returns.

        Raises:
            LabError: One has not started.
        """
        context = self._context
        names = [f"{WIRES}{number}" for number in range(len(self._groups))]
        for number, (name, group) in enumerate(zip(names, self._groups, strict=True)):
            words = ["--seed", str((context.seed << 20) + number), "--control", str(self._control(number))]
            for wire in group:
                words += ["--pair", "=".join(wire.ends), "--delay", str(wire.delay_ns), "--loss", repr(wire.loss)]
            log = context.folder / f"_wires{number}.log"
            self._nursery.start(name, "wires", words, namespaces=context.pids[WIRES], log=log)
        self._nursery.wait_for(lambda: all(self._control(number).exists() for number in range(len(self._groups))), names)

    def check(self) -> None:
        """Makes sure that all still run; LabError if one does not."""
        self._nursery.poll()
        for name, code in self._nursery.ended.items():
            if name.startswith(WIRES):
                raise LabError(f"a process of wires has ended with code {code}; its log is in {self._context.folder}")

    def set_loss(self, wire: Wire, loss: float) -> None:
        """Changes the losses of a wire, both ways."""
        for number, group in enumerate(self._groups):
            if wire in group:
                first = 2 * group.index(wire)
                for port in (first, first + 1):
                    ask(self._control(number), {"do": "link", "port": port, "loss": loss})

    def statistics(self) -> dict[str, Any]:
        """Returns what each wire has carried: ``from_a`` and ``from_b`` of ``A - B``, with a number if there are several."""
        found: dict[str, Any] = {}
        for number, group in enumerate(self._groups):
            counted = ask(self._control(number), {"do": "statistics"})
            for index, wire in enumerate(group):
                link = self._context.plan.topology.links[wire.link]
                name = f"{link.a} - {link.b}"
                # What leaves at one end came in at the other.
                ends = {"from_a": str(2 * index + 1), "from_b": str(2 * index)}
                found[name if name not in found else f"{name} ({wire.link})"] = {
                    end: {
                        "packets": counted["ports"][port]["out_packets"],
                        "bytes": counted["ports"][port]["out_bytes"],
                        "drops": {**counted["ports"][port]["drops"], **counted["outside_drops"][port]},
                    }
                    for end, port in ends.items()
                }
        return found

    def _control(self, number: int) -> Path:
        return self._context.ledger.scratch / f"wires{number}.control"


__all__ = ["Relays"]
