"""Wires: relays between pairs of interfaces that delay and lose what passes, each way for itself.

They are for switches that do neither.  A wire is a switch of this project whose program is a patch panel, so time, order and
losses are those of its links.

    wires --pair a=b --delay 5000000 --loss 0.01 [--pair ...] --seed 7 --control SOCKET

Ports are numbered from 0: those of the n-th pair are 2 n and 2 n + 1.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from softswitch.control import ControlSocket
from softswitch.loop import SwitchLoop
from softswitch.ports.packet_socket import InterfaceIO
from softswitch.switch import Switch

ROOM: Final = 100_000
"""Packets that may be on the way; a link's own queue is before the wire."""


class _Runtime:
    """What a switch asks of the state of a program; there is none."""

    def __init__(self) -> None:
        self.drops: Counter[str] = Counter()

    def set_port_state(self, number: int, up: bool) -> None:
        """Does nothing: a wire has one way."""


class Patch:
    """The program: what enters at one end of a pair leaves at the other."""

    def __init__(self) -> None:
        self.runtime = _Runtime()

    @staticmethod
    def ingress(data: bytes, port: int, now: int, *rest: Any) -> tuple[int, int, bytes]:
        """Port 2 n leads to 2 n + 1, and back."""
        return port ^ 1, 0, data

    @staticmethod
    def egress(phv: bytes, *rest: Any) -> bytes:
        """Leaves everything as it is."""
        return phv

    reparse = egress


def main(arguments: Sequence[str]) -> int:
    """Relays until SIGTERM."""
    parser = argparse.ArgumentParser(prog="wires")
    for option, kind in (("--pair", str), ("--delay", int), ("--loss", float)):
        parser.add_argument(option, action="append", default=[], type=kind)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--control", type=Path, required=True)
    args = parser.parse_args(arguments)
    switch = Switch(seed=args.seed, drop_port=2 * len(args.pair))
    with ExitStack() as stack:
        loop = SwitchLoop(switch)
        stack.callback(loop.close)
        for index, (pair, delay, loss) in enumerate(zip(args.pair, args.delay, args.loss, strict=True)):
            for end, name in enumerate(pair.split("=")):
                switch.add_port(2 * index + end, queue_depth=ROOM, delay_ns=delay, loss=loss)
                loop.attach(2 * index + end, InterfaceIO(name))
        switch.set_pipeline(Patch())  # type: ignore[arg-type]
        signal.signal(signal.SIGTERM, lambda number, frame: loop.stop())
        signal.set_wakeup_fd(loop.wake_descriptor, warn_on_full_buffer=False)
        stack.callback(ControlSocket(loop, args.control).close)
        print("ready", flush=True)
        loop.run()
    return 0


__all__ = ["Patch", "main"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
