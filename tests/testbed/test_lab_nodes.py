"""Nodes that are being started when a signal comes."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest

from testbed.lab.signals import Ended, unwinding

nodes = pytest.importorskip("testbed.lab.nodes", reason="mininet is not installed (pip install 'dlcp[testbed]')")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_waits_until_all_nodes_are_registered(monkeypatch, number):
    """The first shell is there only after the signal: unregistered nobody would end it, and its thread would wait for ever."""
    came = threading.Event()
    main = threading.main_thread().ident

    class Starting:
        def __init__(self, name, environment, **parameters):
            self.name = name
            if name == "h0":
                os.kill(os.getpid(), number)
                signal.pthread_kill(main, number)  # which wakes the thread that waits for this one
                came.set()
            assert came.wait(20)

    monkeypatch.setattr(nodes, "LabNode", Starting)
    network = SimpleNamespace(hosts=[], switches=[], nameToNode={})
    with unwinding(), pytest.raises(Ended) as ended:
        nodes.add_nodes(network, {f"h{host}": f"10.0.0.{host + 1}" for host in range(4)}, ["s0", "s1"], {})
    assert ended.value.number == number
    assert [node.name for node in network.hosts] == ["h0", "h1", "h2", "h3"]
    assert [node.name for node in network.switches] == ["s0", "s1"] and len(network.nameToNode) == 6
