"""The switch program on a target, with addresses as people write them."""

import shutil
from ipaddress import ip_address

from tests.conftest import ROOT
from tests.p4 import frames
from tests.softswitch.targets import SoftswitchTarget

PROGRAM = ROOT / "p4" / "build" / "dlcp.json"
KINDS = ["softswitch", *(["bmv2"] if shutil.which("simple_switch_grpc") else [])]
NEVER = 0x7FFFF
DROPPABLE, PROTECTED, ORDINARY = 0, 8, 16
"""First cell of each third of the counters per class."""
DISCARDS = {name: index for index, name in enumerate(("malformed", "unknown", "refused", "policed", "expired", "hairpin"))}


def number(value):
    """MAC and IP addresses, alone or in a pair, as the numbers that they are."""
    if isinstance(value, tuple):
        return tuple(number(item) for item in value)
    if not isinstance(value, str):
        return value
    if value.count(":") == 5:
        return int(value.replace(":", ""), 16)
    return int(ip_address(value))


def numbers(values):
    return {name: number(value) for name, value in values.items()}


TERNARY = {("jobs", "cookie"): 64, ("jobs", "port"): 9, ("limits", "port"): 9}
"""Widths of the fields that are looked for as a whole or not at all, though any mask would do."""


def matches(table, match):
    """A match as targets take it, of numbers."""
    result = numbers(match)
    for name, value in result.items():
        if value is not None and (table, name) in TERNARY:
            result[name] = (value, (1 << TERNARY[table, name]) - 1)
    return result


class Bench:
    """A target; see ``tests.softswitch.targets`` for its methods."""

    def __init__(self, target):
        self.target = target
        self.counter = target.counter
        self.send = target.send
        self.send_all = target.send_all
        self.link = target.link

    def entry(self, table, match, action, priority=0, **parameters):
        self.target.entry(table, matches(table, match), action, priority, **numbers(parameters))

    def delete(self, table, match, priority=0):
        self.target.delete(table, matches(table, match), priority)

    def direct_counter(self, table, match, priority=0):
        return self.target.direct_counter(table, matches(table, match), priority)

    def direct_meter(self, table, match, priority=0, *, rates):
        self.target.direct_meter(table, matches(table, match), priority, rates=rates)

    def default(self, table, action, **parameters):
        self.target.default(table, action, **numbers(parameters))

    def treat(self, spray=0, stamp=0, classes=range(8)):
        """Class n into queue n."""
        for klass in classes:
            self.entry("dlcp_classes", {"class": klass}, "treat", queue=klass, spray=spray, stamp=stamp)

    def group(self, group, ports, routed=False):
        """Adds a group of paths, each watching its port; a port that stands there twice has twice the weight."""
        actions = []
        for port in dict.fromkeys(ports):
            parameters = {"port": port}
            if routed:
                parameters |= numbers({"src_addr": frames.ROUTER, "dst_addr": frames.MACS[port]})
            actions.append(("routed_path" if routed else "path", parameters, ports.count(port), port))
        self.target.one_shot("paths", {"group": group}, actions)

    def multicast(self, group, ports):
        self.target.multicast(group, [(port, 1) for port in ports])


def softswitch_bench(**options):
    """A bench whose queues and clock can be looked at: ``target.switch``."""
    return Bench(SoftswitchTarget(PROGRAM.read_text(), **options))


def bridge(bench):
    """Hosts behind ports 1 to 4 in one subnet; the rest is flooded to these ports."""
    for port in range(1, 5):
        bench.entry("bridge", {"dst_addr": frames.MACS[port]}, "to_port", port=port)
    bench.multicast(1, [1, 2, 3, 4])
    bench.default("bridge", "flood", group=1)
    return bench


def route(bench):
    """The switch is the router of the hosts behind ports 1 and 2."""
    bench.entry("bridge", {"dst_addr": frames.ROUTER}, "route")
    for port in (1, 2):
        hop = {"port": port, "src_addr": frames.ROUTER, "dst_addr": frames.MACS[port]}
        bench.entry("ipv4_routes", {"dst_addr": (f"10.0.0.{port}", 32)}, "to_neighbor", **hop)
        bench.entry("ipv6_routes", {"dst_addr": (f"fd00::{port}", 128)}, "to_neighbor", **hop)
    return bench


def spread(bench):
    """Four equal paths, ports 2 to 5, to one address."""
    bench.group(1, [2, 3, 4, 5])
    bench.entry("bridge", {"dst_addr": frames.GROUP_MAC}, "to_group", group=1, salt=0xC0FFEE)
    return bench
