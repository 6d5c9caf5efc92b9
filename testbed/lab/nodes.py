"""Mininet's classes, as this testbed needs them.

Everything is a node in a network namespace of its own, switches too.  Interfaces are made in one go for the whole network
(:mod:`testbed.lab.wiring`), and not one by one, so :class:`Cable` only tells Mininet what is there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Node

from testbed.lab.errors import HostLacks
from testbed.lab.signals import uninterrupted

_AT_ONCE: Final = 8


class LabNode(Node):
    """A host or a switch: a shell in namespaces of its own.

    Args:
        name: Of the node.
        environment: Environment of the shell and of all that it starts.
    """

    def __init__(self, name: str, environment: dict[str, str] | None = None, **parameters: Any) -> None:
        self._environment = environment
        # Mininet would leave switches in the namespace of the machine.
        super().__init__(name, **{**parameters, "inNamespace": True})

    @classmethod
    def setup(cls) -> None:
        """Makes sure that what nodes need is there; Mininet's own also wants ifconfig."""
        if shutil.which("mnexec") is None:
            raise HostLacks(["mnexec is missing: apt-get install --no-install-recommends mininet"])

    def _popen(self, cmd: Sequence[str], **parameters: Any) -> Any:
        parameters.setdefault("env", self._environment)
        return subprocess.Popen(cmd, **parameters)

    def kill(self) -> None:
        """Ends the shell without waiting; ``terminate`` does the rest."""
        # An interactive shell ignores SIGTERM.
        if self.shell is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.shell.pid, signal.SIGKILL)

    def terminate(self) -> None:
        """Ends the shell and closes its terminal."""
        self.kill()
        if self.shell is not None:
            for table in (self.outToNode, self.inToNode):
                table.pop(self.stdout.fileno(), None)
        self.cleanup()


class LabInterface(Intf):
    """An interface that is there already and has its addresses."""

    def config(self, **parameters: Any) -> dict[str, Any]:
        """Does nothing."""
        return {}

    def delete(self) -> None:
        """Does nothing: interfaces go with their namespaces."""


class Cable(Link):
    """A pair of interfaces that are there already."""

    @classmethod
    def makeIntfPair(cls, *arguments: Any, **parameters: Any) -> None:
        """Does nothing."""

    def delete(self) -> None:
        """Does nothing."""


def make_network() -> Any:
    """Returns an empty ``Mininet`` with these classes.

    Its initialization is skipped: it would raise system-wide kernel parameters for good.
    """
    Mininet.inited = True
    return Mininet(controller=None, switch=LabNode, host=LabNode, link=Cable, intf=LabInterface, build=False)


def add_nodes(network: Any, hosts: Mapping[str, str], switches: Sequence[str], environment: dict[str, str]) -> None:
    """Adds hosts (name to address) and switches, several at a time: most of what that takes is waiting for shells.

    ``Mininet.addHost`` does no more than this, one after the other.
    """
    kinds = [(name, {"ip": address}) for name, address in hosts.items()] + [(name, {}) for name in switches]
    # Were this left while shells start, they would be ended unregistered; and a thread that waits for the prompt of a shell that
    # is gone waits for ever, because this process itself keeps the other end of the terminal open.
    with uninterrupted():
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            started = [pool.submit(LabNode, name, environment, **parameters) for name, parameters in kinds]
        # Those that were started are registered, and so ended later, even if another one failed.
        for (name, parameters), future in zip(kinds, started, strict=True):
            if future.exception() is None:
                (network.hosts if parameters else network.switches).append(future.result())
                network.nameToNode[name] = future.result()
    for future in started:
        future.result()


def stop_network(network: Any, others: Sequence[LabNode] = ()) -> None:
    """Ends all nodes, and others that are not in the network."""
    nodes = [*network.hosts, *network.switches, *others]
    for node in nodes:
        node.kill()
    for node in nodes:
        node.terminate()


__all__ = ["Cable", "LabInterface", "LabNode", "add_nodes", "make_network", "stop_network"]
