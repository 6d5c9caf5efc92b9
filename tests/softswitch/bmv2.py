"""BMv2's ``simple_switch_grpc`` as a target for tests; see ``targets.Target``.

Entries go by P4Runtime, registers by Thrift (BMv2's P4Runtime server has none), packets by its data-plane gRPC service: that
ends a stream of packets only when all of them are through, so that nothing waits for luck.  gRPC uses sockets in the file
system; Thrift listens on the loopback.  Nothing here needs root.
"""

from __future__ import annotations

import contextlib
import importlib.util
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

from tests.softswitch.targets import CPU_PORT, PORTS, Refused, check_known, eventually, find, short
from tests.softswitch.thrift import Thrift

DEVICE = 1
PATIENCE = 20
"""Seconds until a BMv2 that does not answer fails the test."""

OPTIONS = [(f"grpc.{when}_reconnect_backoff_ms", 20) for when in ("initial", "min", "max")]
"""Its sockets are there only after a moment: try again soon."""


def missing() -> str | None:
    """Why BMv2 cannot be used here, or None if it can."""
    if shutil.which("simple_switch_grpc") is None:
        return "simple_switch_grpc is not on PATH"
    if importlib.util.find_spec("finsy") is None:
        return "needs the extra p4"
    return None


def _dataplane_messages():
    """The messages of BMv2's ``dataplane_interface.proto``."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tests/bmv2_dataplane.proto", package="p4.bm", syntax="proto3")
    layouts = {
        "PacketStreamRequest": [("id", 4), ("device_id", 4), ("port", 13), ("packet", 12)],
        "PacketStreamResponse": [("id", 4), ("device_id", 4), ("port", 13), ("packet", 12)],
        "SetPortOperStatusRequest": [("device_id", 4), ("port", 13), ("oper_status", 13)],
        "SetPortOperStatusResponse": [],
    }
    for name, fields in layouts.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields, 1):
            message.field.add(name=field, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"p4.bm.{name}")) for name in layouts}


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def octets(value):
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8))


class Bmv2Target:
    """A fresh simple_switch_grpc with one program; a context manager."""

    name = "bmv2"

    def __init__(self, path):
        self.program = path

    def __enter__(self):
        import grpc
        from finsy.proto import p4i, p4r, p4r_grpc
        from google.protobuf import text_format

        self.p4r = p4r
        self.rpc_error = grpc.RpcError
        with contextlib.ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bmv2-")))
            control, data = (f"unix:{self.folder}/{name}.sock" for name in ("control", "data"))
            thrift_port = _free_port()
            self.log = stack.enter_context((self.folder / "log").open("w+b"))
            command = ["simple_switch_grpc", "--no-p4", "--device-id", str(DEVICE), "--thrift-port", str(thrift_port), "--"]
            command += ["--grpc-server-addr", control, "--dp-grpc-server-addr", data]
            command += ["--cpu-port", str(CPU_PORT), "--priority-queues", "8"]
            self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, cwd=self.folder)
            stack.callback(self._end)
            self.channel = stack.enter_context(grpc.insecure_channel(control, OPTIONS))
            self.stub = p4r_grpc.P4RuntimeStub(self.channel)
            self.data = stack.enter_context(grpc.insecure_channel(data, OPTIONS))
            messages = _dataplane_messages()
            self.request = messages["PacketStreamRequest"]
            self.port_request = messages["SetPortOperStatusRequest"]
            serialize = {"request_serializer": lambda message: message.SerializeToString()}
            self.stream = self.data.stream_stream(
                "/p4.bm.DataplaneInterface/PacketStream",
                **serialize,
                response_deserializer=messages["PacketStreamResponse"].FromString,
            )
            self.set_port = self.data.unary_unary(
                "/p4.bm.DataplaneInterface/SetPortOperStatus",
                **serialize,
                response_deserializer=messages["SetPortOperStatusResponse"].FromString,
            )
            for channel in (self.channel, self.data):
                grpc.channel_ready_future(channel).result(PATIENCE)
            self.info = text_format.Parse(self.program.with_suffix(".p4info.txtpb").read_text(), p4i.P4Info())
            self.names = {}
            for group in ("tables", "actions", "action_profiles", "counters", "meters", "registers", "digests"):
                self.names[group] = {item.preamble.name: item for item in getattr(self.info, group)}
            self.digest_lists = queue.Queue()
            self.packet_ins = queue.Queue()
            self._arbitrate(stack)
            self._load()
            eventually(self._takes_packets)
            self.thrift = Thrift(thrift_port)
            stack.callback(self.thrift.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        self._stack.close()

    def _end(self):
        self.process.kill()  # it has nothing to save, and takes its time to end by itself
        self.process.wait()

    def _takes_packets(self):
        try:
            return list(self.stream(iter(()), timeout=PATIENCE)) == []
        except self.rpc_error as error:
            if error.details() == "not ready":
                return False
            raise

    def _arbitrate(self, stack):
        p4r = self.p4r
        self.outgoing = queue.Queue()
        first = p4r.StreamMessageRequest()
        first.arbitration.device_id = DEVICE
        first.arbitration.election_id.low = 1
        self.outgoing.put(first)
        responses = self.stub.StreamChannel(iter(self.outgoing.get, None))
        arbitrated = threading.Event()

        def read():
            with contextlib.suppress(self.rpc_error):
                for response in responses:
                    kind = response.WhichOneof("update")
                    if kind == "arbitration":
                        arbitrated.set()
                    elif kind == "digest":
                        self.digest_lists.put(response.digest)
                    elif kind == "packet":
                        self.packet_ins.put(response.packet.payload)

        reader = threading.Thread(target=read)
        reader.start()

        def close():
            self.outgoing.put(None)
            responses.cancel()
            reader.join()

        stack.callback(close)
        assert arbitrated.wait(PATIENCE), "BMv2 did not answer the arbitration"

    def _load(self):
        request = self.p4r.SetForwardingPipelineConfigRequest(device_id=DEVICE, action=3)
        request.election_id.low = 1
        request.config.p4info.CopyFrom(self.info)
        request.config.p4_device_config = self.program.read_bytes()
        self._call(self.stub.SetForwardingPipelineConfig, request)
        for digest in self.info.digests:
            entity = self.p4r.Entity()
            entity.digest_entry.digest_id = digest.preamble.id
            entity.digest_entry.config.max_list_size = 1
            self._write(self.p4r.Update.INSERT, entity)

    # entries

    def entry(self, table, match, action, priority=0, **parameters):
        self._write_entry(self.p4r.Update.INSERT, table, match, priority, action, parameters)

    def modify(self, table, match, action, priority=0, **parameters):
        self._write_entry(self.p4r.Update.MODIFY, table, match, priority, action, parameters)

    def delete(self, table, match, priority=0):
        self._write(self.p4r.Update.DELETE, self._entity(table, match, priority))

    def default(self, table, action, **parameters):
        entity = self.p4r.Entity()
        found = find(self.names["tables"], table)
        entity.table_entry.table_id = found.preamble.id
        entity.table_entry.is_default_action = True
        self._fill(entity.table_entry.action.action, found, action, parameters)
        self._write(self.p4r.Update.MODIFY, entity)

    # action profiles

    def member(self, profile, number, action, **parameters):
        entity = self.p4r.Entity()
        found = find(self.names["action_profiles"], profile)
        table = next(item for item in self.info.tables if item.preamble.id in found.table_ids)
        entity.action_profile_member.action_profile_id = found.preamble.id
        entity.action_profile_member.member_id = number
        self._fill(entity.action_profile_member.action, table, action, parameters)
        self._write(self.p4r.Update.INSERT, entity)

    def group(self, profile, number, members):
        entity = self.p4r.Entity()
        group = entity.action_profile_group
        group.action_profile_id = find(self.names["action_profiles"], profile).preamble.id
        group.group_id = number
        for member, weight, port in members:
            group.members.add(member_id=member, weight=weight, watch_port=b"" if port is None else octets(port))
        self._write(self.p4r.Update.INSERT, entity)

    def to_member(self, table, match, member, priority=0):
        entity = self._entity(table, match, priority)
        entity.table_entry.action.action_profile_member_id = member
        self._write(self.p4r.Update.INSERT, entity)

    def to_group(self, table, match, group, priority=0):
        entity = self._entity(table, match, priority)
        entity.table_entry.action.action_profile_group_id = group
        self._write(self.p4r.Update.INSERT, entity)

    def one_shot(self, table, match, actions, priority=0):
        entity = self._entity(table, match, priority)
        for name, parameters, weight, port in actions:
            place = entity.table_entry.action.action_profile_action_set.action_profile_actions.add(weight=weight)
            if port is not None:
                place.watch_port = octets(port)
            self._fill(place.action, find(self.names["tables"], table), name, parameters)
        self._write(self.p4r.Update.INSERT, entity)

    # replication

    def multicast(self, group, copies):
        entity = self.p4r.Entity()
        entry = entity.packet_replication_engine_entry.multicast_group_entry
        entry.multicast_group_id = group
        for port, instance in copies:
            entry.replicas.add(egress_port=port, instance=instance)
        self._write(self.p4r.Update.INSERT, entity)

    def clone_session(self, session, copies):
        entity = self.p4r.Entity()
        entry = entity.packet_replication_engine_entry.clone_session_entry
        entry.session_id = session
        for port, instance in copies:
            entry.replicas.add(egress_port=port, instance=instance)
        self._write(self.p4r.Update.INSERT, entity)

    # state

    def counter(self, name, cell):
        entity = self.p4r.Entity()
        entity.counter_entry.counter_id = find(self.names["counters"], name).preamble.id
        entity.counter_entry.index.index = cell
        (found,) = self._read(entity)
        return found.counter_entry.data.packet_count, found.counter_entry.data.byte_count

    def counters(self, name):
        """All cells: packets and bytes."""
        entity = self.p4r.Entity()
        entity.counter_entry.counter_id = find(self.names["counters"], name).preamble.id
        cells = sorted((found.counter_entry for found in self._read(entity)), key=lambda found: found.index.index)
        return [(found.data.packet_count, found.data.byte_count) for found in cells]

    def direct_counter(self, table, match, priority=0):
        entity = self.p4r.Entity()
        entity.direct_counter_entry.table_entry.CopyFrom(self._entity(table, match, priority).table_entry)
        # An entry that matches everything reads as a wildcard.
        wanted = entity.direct_counter_entry.table_entry
        answers = [found.direct_counter_entry for found in self._read(entity)]
        (found,) = [answer for answer in answers if list(answer.table_entry.match) == list(wanted.match)]
        return found.data.packet_count, found.data.byte_count

    def meter(self, name, cell, cir, cburst, pir, pburst):
        entity = self.p4r.Entity()
        entity.meter_entry.meter_id = find(self.names["meters"], name).preamble.id
        entity.meter_entry.index.index = cell
        entity.meter_entry.config.CopyFrom(self.p4r.MeterConfig(cir=cir, cburst=cburst, pir=pir, pburst=pburst))
        self._write(self.p4r.Update.MODIFY, entity)

    def direct_meter(self, table, match, priority=0, *, rates):
        entity = self.p4r.Entity()
        entity.direct_meter_entry.table_entry.CopyFrom(self._entity(table, match, priority).table_entry)
        cir, cburst, pir, pburst = rates
        entity.direct_meter_entry.config.CopyFrom(self.p4r.MeterConfig(cir=cir, cburst=cburst, pir=pir, pburst=pburst))
        self._write(self.p4r.Update.MODIFY, entity)

    def register(self, name, cell):
        full = find({key: key for key in self.names["registers"]}, name)
        return self.thrift.call("bm_register_read", (Thrift.I32, 0), (Thrift.STRING, full), (Thrift.I32, cell))[0]

    def registers(self, name):
        """All cells."""
        full = find({key: key for key in self.names["registers"]}, name)
        return self.thrift.call("bm_register_read_all", (Thrift.I32, 0), (Thrift.STRING, full))

    def write_register(self, name, cell, value):
        full = find({key: key for key in self.names["registers"]}, name)
        self.thrift.call("bm_register_write", (Thrift.I32, 0), (Thrift.STRING, full), (Thrift.I32, cell), (Thrift.I64, value))

    def digests(self, name, count):
        """The next ``count`` different digests: BMv2 does not send again what was not acknowledged yet."""
        digest = find(self.names["digests"], name)
        result = {}
        while len(result) < count:
            message = self.digest_lists.get(timeout=PATIENCE)
            assert message.digest_id == digest.preamble.id
            for data in message.data:
                result[tuple(int.from_bytes(member.bitstring) for member in data.struct.members)] = None
            acknowledge = self.p4r.StreamMessageRequest()
            acknowledge.digest_ack.digest_id = message.digest_id
            acknowledge.digest_ack.list_id = message.list_id
            self.outgoing.put(acknowledge)
        return list(result)

    # packets

    def link(self, port, up):
        """Takes effect a little later: see ``targets.eventually``."""
        self.set_port(self.port_request(device_id=DEVICE, port=port, oper_status=2 if up else 1), timeout=PATIENCE)

    def send(self, port, data):
        return self.send_all([(port, data)])

    def send_all(self, packets):
        remaining = list(packets)
        left = []
        while remaining:
            # A queue holds 64 packets, and one that comes may leave as several.
            some, remaining = remaining[:16], remaining[16:]
            requests = (self.request(device_id=DEVICE, port=port, packet=data) for port, data in some)
            answers = self.stream(requests, timeout=PATIENCE)
            # This service has every port that a packet is sent to.
            left += [(answer.port, answer.packet) for answer in answers if answer.port in PORTS]
        assert self.process.poll() is None, f"BMv2 ended with {self.process.returncode}"
        return sorted(left, key=lambda packet: packet[0])

    # inside

    def _call(self, method, request):
        try:
            return method(request, timeout=PATIENCE)
        except self.rpc_error as error:
            raise Refused(f"{error.code()}: {error.details()}") from error

    def _write(self, kind, entity):
        request = self.p4r.WriteRequest(device_id=DEVICE)
        request.election_id.low = 1
        request.updates.add(type=kind, entity=entity)
        self._call(self.stub.Write, request)

    def _read(self, entity):
        request = self.p4r.ReadRequest(device_id=DEVICE, entities=[entity])
        return [found for response in self.stub.Read(request, timeout=PATIENCE) for found in response.entities]

    def _write_entry(self, kind, table, match, priority, action, parameters):
        entity = self._entity(table, match, priority)
        self._fill(entity.table_entry.action.action, find(self.names["tables"], table), action, parameters)
        self._write(kind, entity)

    def _fill(self, message, table, action, parameters):
        available = {self.action(reference.id).preamble.name: self.action(reference.id) for reference in table.action_refs}
        found = find(available, action)
        assert set(parameters) == {parameter.name for parameter in found.params}
        message.action_id = found.preamble.id
        for parameter in found.params:
            message.params.add(param_id=parameter.id, value=octets(parameters[parameter.name]))

    def action(self, number):
        return next(item for item in self.info.actions if item.preamble.id == number)

    def _entity(self, table, match, priority):
        found = find(self.names["tables"], table)
        entity = self.p4r.Entity()
        entity.table_entry.table_id = found.preamble.id
        entity.table_entry.priority = priority
        fields = [field.name for field in found.match_fields]
        check_known(table, fields, match)
        kinds = type(found.match_fields[0]) if found.match_fields else None
        for field in found.match_fields:
            value = short(field.name, fields, match)
            if value is None:
                continue
            item = entity.table_entry.match.add(field_id=field.id)
            if field.match_type == kinds.EXACT:
                item.exact.value = octets(value)
            elif field.match_type == kinds.LPM:
                item.lpm.value, item.lpm.prefix_len = octets(value[0]), value[1]
            elif field.match_type == kinds.TERNARY:
                item.ternary.value, item.ternary.mask = map(octets, value)
            elif field.match_type == kinds.RANGE:
                item.range.low, item.range.high = map(octets, value)
            else:
                item.optional.value = octets(value)
        return entity
