"""What all kinds of switches have in common, and what they need to be started."""

from __future__ import annotations

import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from dlcp.policy import Policy
from testbed.lab.errors import LabError
from testbed.lab.ledger import Ledger
from testbed.lab.plan import LabPlan, PortPlan

_PATIENCE_S: Final = 10.0


@dataclass(frozen=True)
class Context:
    """What switches are started with.

    Attributes:
        plan: What is built.
        policy: What they carry out.
        pids: A process in the namespaces of each node.
        ledger: Notes what is started.
        environment: Of what is started.
        folder: Receives logs, traces and statistics.
        seed: Of losses and of what programs draw.
        notify: Is told what is going on.
    """

    plan: LabPlan
    policy: Policy
    pids: Mapping[str, int]
    ledger: Ledger
    environment: Mapping[str, str]
    folder: Path
    seed: int
    notify: Callable[[str], object] = lambda text: None


@dataclass(frozen=True)
class TraceFile:
    """Queue depths of one switch over time, as ``softswitch --trace`` writes them.

    Attributes:
        switch: Its name.
        path: The file.
        started_s: Its time 0, by the monotonic clock.
        ports: Number of a port to the node at its other end.
    """

    switch: str
    path: Path
    started_s: float
    ports: dict[str, str]


class Switches(ABC):
    """All switches of a network; they are of one kind."""

    kind: ClassVar[str]
    delays: ClassVar[bool] = False
    """Whether they delay and lose what they send; where not, wires do."""
    bears_link_down: ClassVar[bool] = True
    """Whether a port works again after its interface was down."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @abstractmethod
    def start(self) -> None:
        """Starts all switches; they forward when it returns.

        Raises:
            LabError: One did not start.
        """

    @abstractmethod
    def restart(self, switch: str) -> None:
        """Ends a switch as a crash does, and starts it again: what it held is lost, and deployed anew."""

    @abstractmethod
    def set_rate(self, switch: str, port: PortPlan, rate_bps: int) -> None:
        """Changes the rate of a port."""

    def set_loss(self, switch: str, port: PortPlan, loss: float) -> None:
        """Changes the losses of a port, of what leaves there, and, from a host, of what arrives."""
        raise LabError(f"{self.kind} switches lose nothing by themselves; name the link in Lab(lossy=...)")

    @abstractmethod
    def statistics(self) -> dict[str, Any]:
        """Returns what each switch has counted, by its name: at least ``ports``, by number."""

    @property
    def traces(self) -> list[TraceFile]:
        """Files with queue depths over time, where the switches write them."""
        return []

    def check(self) -> None:  # noqa: B027  what has no process cannot have ended
        """Makes sure that all still run; LabError if one does not."""

    @abstractmethod
    def stop(self) -> None:
        """Ends all; may be repeated."""


def ask(path: Path, request: Mapping[str, Any]) -> Any:
    """Asks a running switch of this project (:mod:`softswitch.control`) and returns its answer.

    Raises:
        LabError: It does not answer, or refuses.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(_PATIENCE_S)
            channel.connect(str(path))
            channel.sendall(json.dumps(request).encode() + b"\n")
            with channel.makefile("rb") as file:
                answer = json.loads(file.readline() or b"{}")
    except (OSError, ValueError) as error:
        raise LabError(f"{path.name}: {error}") from error
    if "ok" not in answer:
        raise LabError(f"{path.name}: {answer.get('error', 'no answer')}")
    return answer["ok"]


__all__ = ["Context", "Switches", "TraceFile", "ask"]
