"""Tables by their short names and packets in and out, for the tests of the switch program."""

from softswitch.pipeline import Pipeline
from softswitch.runtime import Call, GroupMember, GroupRef, MeterConfig, MulticastGroup, OneShot, OneShotAction, Replica
from softswitch.switch import Switch
from tests.conftest import ROOT
from tests.p4 import frames

NEVER = 0x7FFFF
DROPPABLE, PROTECTED, ORDINARY = 0, 8, 16
"""First cell of each third of the counters per class."""
DISCARDS = {name: index for index, name in enumerate(("malformed", "unknown", "refused", "policed", "expired", "hairpin"))}
PORTS = range(1, 9)


def _number(value):
    """MAC and IP addresses as the numbers that they are."""
    if not isinstance(value, str):
        return value
    if value.count(":") == 5:
        return int(value.replace(":", ""), 16)
    from ipaddress import ip_address

    return int(ip_address(value))


class Bench:
    """The program on the softswitch, with ports 1 to 8.  ``port`` options are those of ``Switch.add_port``."""

    takes_empty_frames = True

    def __init__(self, *, rates=None, **options):
        text = (ROOT / "p4" / "build" / "dlcp.json").read_text()
        self.pipeline = Pipeline.load(text)
        self.switch = Switch(seed=1, clock=lambda: self.now)
        self.now = 0
        for number in PORTS:
            self.switch.add_port(number, rate_bps=(rates or {}).get(number), **options)
        self.switch.set_pipeline(self.pipeline)
        self.runtime = self.pipeline.runtime

    # Control plane

    def _find(self, objects, alias):
        (found,) = (value for name, value in objects.items() if name == alias or name.endswith(f".{alias}"))
        return found

    def table(self, alias):
        return self._find(self.runtime.tables, alias)

    def _match(self, table, match):
        given = dict(match)
        items = []
        for key in table.model.keys:
            value = given.pop(key.name)
            full = (1 << key.width) - 1
            if key.kind == "exact":
                items.append(_number(value))
            elif key.kind == "lpm":
                items.append((_number(value[0]), value[1]))
            elif key.kind == "ternary":
                items.append((0, 0) if value is None else (_number(value), full))
            else:
                items.append((0, full) if value is None else tuple(value))
        assert not given, f"no such key: {given}"
        return tuple(items)

    def _call(self, table, action, parameters):
        names = [model.name.split(".")[-1] for model in table.model.actions]
        index = names.index(action)
        given = dict(parameters)
        data = tuple(_number(given.pop(parameter.name)) for parameter in table.model.actions[index].parameters)
        assert not given, f"no such parameter: {given}"
        return Call(index, data)

    def entry(self, table, match, action, priority=0, **parameters):
        """Adds an entry: keys and parameters by name; None is "don't care"."""
        found = self.table(table)
        found.insert(self._match(found, match), priority, self._call(found, action, parameters))

    def delete(self, table, match, priority=0):
        found = self.table(table)
        found.delete(self._match(found, match), priority)

    def default(self, table, action, **parameters):
        found = self.table(table)
        found.set_default(self._call(found, action, parameters))

    def group(self, number, ports, routed=False):
        """Adds a group of paths, each watching its port; a port that stands there twice has twice the weight."""
        table = self.table("paths")
        members = []
        for port in dict.fromkeys(ports):
            if routed:
                call = self._call(table, "routed_path", {"port": port, "src_addr": frames.ROUTER, "dst_addr": frames.MACS[port]})
            else:
                call = self._call(table, "path", {"port": port})
            members.append(OneShotAction(call, weight=ports.count(port), watch_port=port))
        table.insert((number,), 0, OneShot(tuple(members)))

    def multicast(self, number, ports):
        self.runtime.groups.insert(MulticastGroup(number, tuple(Replica(port, 1) for port in ports)))

    def direct_counter(self, table, match, priority=0):
        found = self.table(table)
        entry = found.get(self._match(found, match), priority)
        return entry.packets, entry.bytes

    def direct_meter(self, table, match, priority=0, **rates):
        found = self.table(table)
        found.write_meter(found.get(self._match(found, match), priority), MeterConfig(**rates))

    def counter(self, name, cell):
        """Packets and bytes of a cell."""
        return self._find(self.runtime.counters, name).read(cell)

    # Data plane

    def send(self, port, frame):
        """What leaves through which ports after ``frame`` has come in."""
        self.now += 1_000_000
        self.switch.receive(port, frame, self.now)
        return self.switch.transmit(self.now)

    def link(self, port, up):
        self.switch.set_port_state(port, up, self.now)


def softswitch_bench(**options):
    return Bench(**options)


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
