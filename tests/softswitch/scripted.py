"""A pipeline whose packets say themselves what is to be done with them, for tests of what lies around a pipeline.

A packet is a list of 4-byte steps, then anything.  Ingress and egress each take the next step off the front.
"""

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

SEND, DROP, GROUP, CLONE, RESUBMIT, AGAIN, FAULT, KEEP = range(8)


def step(kind, port=0, priority=0, extra=0):
    return bytes([kind, port, priority, extra])


def send(port, priority=0, *, length=64, tag=0, egress=KEEP):
    """A packet for a port; ``length`` is what egress emits."""
    body = tag.to_bytes(4, "big")
    return step(SEND, port, priority) + step(egress) + body + bytes(length - len(body))


@dataclass
class Outcome:
    clones: list = field(default_factory=list)
    resubmit: object = None
    multicast: object = None
    unicast: object = None
    recirculate: object = None
    data: object = None


class ScriptedRuntime:
    def __init__(self):
        self.drops = Counter()
        self.ports = {}
        self.groups = SimpleNamespace(copies=lambda group: self.replicas.get(group, ()))
        self.sessions = SimpleNamespace(items={})
        self.replicas = {}

    def set_port_state(self, port, up):
        self.ports[port] = up


class ScriptedPipeline:
    """``seen`` collects the arguments of every egress."""

    def __init__(self):
        self.runtime = ScriptedRuntime()
        self.entered = []
        self.seen = []

    def ingress(self, data, port, now, instance_type=0, preserved=None):
        self.entered.append((port, now, instance_type, preserved))
        kind, number, priority, extra = data[:4]
        rest = data[4:]
        if kind == SEND:
            return number, priority, rest
        if kind == DROP:
            self.runtime.drops["ingress"] += 1
            return None
        if kind == GROUP:
            return Outcome(multicast=(number, priority, rest))
        if kind == CLONE:
            return Outcome(clones=[(extra, rest)], unicast=(number, priority, rest))
        if kind == RESUBMIT:
            # The preserved value counts down; at 0 the packet goes to the port.
            left = extra if preserved is None else preserved
            return Outcome(resubmit=left - 1) if left else (number, priority, rest)
        raise RuntimeError("a pipeline that breaks its promise")

    def egress(self, phv, port, now, rid, instance_type, priority, enq_timestamp, enq_qdepth, deq_timedelta, deq_qdepth):
        self.seen.append((port, now, rid, instance_type, priority, enq_timestamp, enq_qdepth, deq_timedelta, deq_qdepth))
        kind, _, _, extra = phv[:4]
        rest = phv[4:]
        if kind == DROP:
            self.runtime.drops["egress"] += 1
            return None
        if kind == CLONE:
            return Outcome(clones=[(extra, phv)], data=rest)
        if kind == AGAIN:
            return Outcome(recirculate=(rest, "kept"))
        if kind == FAULT:
            raise RuntimeError("a pipeline that breaks its promise")
        return rest


def session(*copies, cos=0, length=0):
    return SimpleNamespace(active=copies, class_of_service=cos, packet_length=length)
