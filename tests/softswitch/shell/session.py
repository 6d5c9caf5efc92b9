"""Run by p4runtime-shell's own interpreter: a session as a user would type it.  Prints what it found as JSON."""

import json
import sys

import p4runtime_sh.shell as sh
from p4runtime_sh.p4runtime import P4RuntimeWriteException

address, second_address, p4info, program = sys.argv[1:]
found: dict[str, object] = {}


def refused(function):
    """Returns the canonical codes of a write that fails."""
    try:
        function()
    except P4RuntimeWriteException as error:
        return [detail.canonical_code for _, detail in error.errors]
    return []


def read(entity):
    return [str(item) for item in entity.read()]


def first_session():
    sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=sh.FwdPipeConfig(p4info, program), verbose=False)
    try:
        found["version"] = sh.APIVersion()
        entry = sh.TableEntry("TheIngress.dmac")(action="TheIngress.forward")
        entry.match["hdr.ethernet.dst"] = "00:00:00:00:00:05"
        entry.action["port"] = "3"
        entry.insert()
        found["duplicate"] = refused(entry.insert)
        entry.action["port"] = "4"
        entry.modify()
        found["entries"] = [item.action["port"].value.hex() for item in sh.TableEntry("TheIngress.dmac").read()]
        entry.delete()
        found["missing"] = refused(entry.delete)
        found["empty"] = read(sh.TableEntry("TheIngress.dmac"))

        route = sh.TableEntry("TheIngress.routes")(action="TheIngress.forward_to")
        route.match["hdr.ipv4.dst"] = "10.0.0.0/8"
        route.action["port"] = "1"
        route.action["dst"] = "00:00:00:00:00:01"
        route.insert()
        acl = sh.TableEntry("TheIngress.acl")(action="TheIngress.permit")
        acl.match["hdr.ethernet.type"] = "0x800&&&0xff00"
        acl.match["hdr.ipv4.protocol"] = "6..17"
        acl.match["std.ingress_port"] = "3"
        acl.match["hdr.ipv4.$valid$"] = "1"
        acl.priority = 5
        acl.meter_config.cir = 1
        acl.meter_config.pir = 2
        acl.insert()
        counted = sh.TableEntry("TheIngress.smac")(action="TheIngress.count_direct")
        counted.match["hdr.ethernet.src"] = "9"
        counted.idle_timeout_ns = 10**15
        counted.metadata = b"note"
        counted.insert()
        default = sh.TableEntry("TheIngress.always")(action="TheIngress.forward", is_default=True)
        default.action["port"] = "7"
        default.modify()
        found["default"] = [
            item.action["port"].value.hex() for item in sh.TableEntry("TheIngress.always")(is_default=True).read()
        ]
        sh.TableEntry("TheIngress.always")(is_default=True).modify()
        found["all"] = sorted(item.name.split(".")[-1] for item in sh.TableEntry("TheIngress.routes").read())
        found["const"] = len(read(sh.TableEntry("TheIngress.classes")))

        member = sh.ActionProfileMember("TheIngress.balancer")(action="TheIngress.forward", member_id=1)
        member.action["port"] = "2"
        member.insert()
        group = sh.ActionProfileGroup("TheIngress.balancer")(group_id=1)
        group.add(1, weight=2)
        group.max_size = 5
        group.insert()
        balanced = sh.TableEntry("TheIngress.balanced")
        balanced.match["hdr.ipv4.src"] = "5"
        balanced.group_id = 1
        balanced.insert()
        found["in use"] = refused(group.delete)
        found["groups"] = [(item.group_id, item.max_size) for item in sh.ActionProfileGroup("TheIngress.balancer").read()]
        balanced.delete()
        group.delete()
        member.delete()
        shot = sh.TableEntry("TheIngress.balanced")
        shot.match["hdr.ipv4.src"] = "6"
        hop = sh.Action("TheIngress.forward")
        hop["port"] = "1"
        shot.oneshot.add(hop, weight=3)
        shot.insert()
        found["one shot"] = len(read(sh.TableEntry("TheIngress.balanced")))

        counter = sh.CounterEntry("TheIngress.port_counter")(index=2)
        counter.packet_count = 5
        counter.modify()
        counters = list(sh.CounterEntry("TheIngress.port_counter").read())
        found["counters"] = [len(counters), counters[2].packet_count]
        beyond = sh.CounterEntry("TheIngress.port_counter")(index=16)
        beyond.packet_count = 5
        found["beyond"] = refused(beyond.modify)
        meter = sh.MeterEntry("TheIngress.port_meter")(index=1, cir=1, cburst=2, pir=3, pburst=4)
        meter.modify()
        found["meter"] = [item.pir for item in sh.MeterEntry("TheIngress.port_meter")(index=1).read()]
        direct = sh.DirectCounterEntry("TheIngress.smac_counter")
        direct.table_entry.match["hdr.ethernet.src"] = "9"
        found["direct counter"] = [item.packet_count for item in direct.read()]

        flood = sh.MulticastGroupEntry(1)
        flood.add(1, 1).add(2, 2)
        flood.insert()
        clones = sh.CloneSessionEntry(100)
        clones.add(3, 1)
        clones.packet_length_bytes = 64
        clones.insert()
        found["replicas"] = [len(item.replicas) for item in sh.MulticastGroupEntry(1).read()]
        digest = sh.DigestEntry("learn_t")
        digest.max_list_size = 1
        digest.insert()

        packets = sh.PacketIn()
        punt = sh.TableEntry("TheIngress.dmac")(action="TheIngress.to_controller")
        punt.match["hdr.ethernet.dst"] = "1"
        punt.action["reason"] = "5"
        punt.insert()
        print("ready", flush=True)
        sys.stdin.readline()
        (packet,) = packets.sniff(timeout=1)
        found["packet in"] = [packet.packet.payload.hex(), [item.value.hex() for item in packet.packet.metadata]]
        out = sh.PacketOut(bytes.fromhex("0102"), egress_port="4", flags="0")
        out.send()
    finally:
        sh.teardown()


def second_session():
    """Another switch, in the same process."""
    sh.setup(device_id=2, grpc_addr=second_address, election_id=(0, 1), config=sh.FwdPipeConfig(p4info, program), verbose=False)
    try:
        found["second"] = read(sh.TableEntry("TheIngress.dmac"))
    finally:
        sh.teardown()


first_session()
second_session()
print(json.dumps(found), flush=True)
