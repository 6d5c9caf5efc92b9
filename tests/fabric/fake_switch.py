"""A P4Runtime server for tests of transactions: many switches in one process, each can be told to refuse its n-th update.

It checks what a deployment depends on (arbitration, unknown tables and actions, keys that are there or not) and nothing else.
"""

import asyncio
import contextlib

import grpc
from finsy.proto import U128, p4r, p4r_grpc, rpc_code, rpc_status
from google.protobuf import any_pb2


class Device:
    """One switch."""

    def __init__(self):
        self.config = None
        self.entities = {}
        self.defaults = {}
        self.streams = {}
        self.updates = []
        self.requests = 0
        self.pipelines = 0
        self.refuse_update = None
        self.refuse_pipeline = False
        self.refuse_verify = False
        self.lies = False
        self.with_cookie = True
        self.hold = None
        self.held = asyncio.Event()

    def table(self, number):
        for table in self.config.p4info.tables:
            if table.preamble.id == number:
                return table
        return None

    def snapshot(self):
        entities = sorted(entity.SerializeToString(deterministic=True) for entity in self.entities.values())
        defaults = sorted(entity.SerializeToString(deterministic=True) for entity in self.defaults.values())
        return (None if self.config is None else self.config.SerializeToString(deterministic=True), entities, defaults)


def key_of(entity):
    kind = entity.WhichOneof("entity")
    if kind == "table_entry":
        entry = entity.table_entry
        match = tuple(sorted(field.SerializeToString(deterministic=True) for field in entry.match))
        return (kind, entry.table_id, entry.priority, match)
    if kind == "packet_replication_engine_entry":
        return (kind, entity.packet_replication_engine_entry.multicast_group_entry.multicast_group_id)
    if kind == "action_profile_member":
        return (kind, entity.action_profile_member.action_profile_id, entity.action_profile_member.member_id)
    return (kind, entity.action_profile_group.action_profile_id, entity.action_profile_group.group_id)


class Refused(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code, self.message = code, message


class FakeServer(p4r_grpc.P4RuntimeServicer):
    def __init__(self, device_ids):
        self.devices = {number: Device() for number in device_ids}

    @contextlib.asynccontextmanager
    async def run(self):
        server = grpc.aio.server()
        p4r_grpc.add_P4RuntimeServicer_to_server(self, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(0)

    async def Capabilities(self, request, context):
        return p4r.CapabilitiesResponse(p4runtime_api_version="1.4.1")

    async def StreamChannel(self, requests, context):
        mine = asyncio.Queue()
        device = None
        try:
            async for request in requests:
                device = self.devices[request.arbitration.device_id]
                device.streams[mine] = U128.decode(request.arbitration.election_id)
                highest = max(device.streams.values())
                for stream, election in device.streams.items():
                    code = rpc_code.OK if election == highest else rpc_code.ALREADY_EXISTS
                    answer = p4r.MasterArbitrationUpdate(
                        device_id=request.arbitration.device_id, status=rpc_status.Status(code=code)
                    )
                    answer.election_id.CopyFrom(U128.encode(highest))
                    if stream is mine:
                        await context.write(p4r.StreamMessageResponse(arbitration=answer))
        finally:
            if device is not None:
                device.streams.pop(mine, None)

    async def _primary(self, device, request, context):
        if not device.streams or U128.decode(request.election_id) != max(device.streams.values()):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not primary")

    async def GetForwardingPipelineConfig(self, request, context):
        device = self.devices[request.device_id]
        if device.config is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "No forwarding pipeline config set for this device")
        answer = p4r.GetForwardingPipelineConfigResponse()
        if request.response_type == p4r.GetForwardingPipelineConfigRequest.COOKIE_ONLY:
            if device.with_cookie:
                answer.config.cookie.CopyFrom(device.config.cookie)
        else:
            answer.config.CopyFrom(device.config)
        return answer

    async def SetForwardingPipelineConfig(self, request, context):
        device = self.devices[request.device_id]
        await self._primary(device, request, context)
        if request.action == p4r.SetForwardingPipelineConfigRequest.VERIFY:
            if device.refuse_verify:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unsupported construct at pipelines[0]")
            return p4r.SetForwardingPipelineConfigResponse()
        if device.refuse_pipeline:
            device.refuse_pipeline = False
            await context.abort(grpc.StatusCode.INTERNAL, "cannot load")
        device.config = request.config
        device.entities, device.defaults = {}, {}
        device.pipelines += 1
        return p4r.SetForwardingPipelineConfigResponse()

    async def Write(self, request, context):
        device = self.devices[request.device_id]
        await self._primary(device, request, context)
        device.requests += 1
        if device.hold is not None:
            device.hold -= 1
            if device.hold < 0:
                device.hold = None
                device.held.set()
                await asyncio.Event().wait()  # until the client gives up
        errors = []
        for update in request.updates:
            error = p4r.Error(canonical_code=rpc_code.OK)
            try:
                self._write(device, update)
            except Refused as refused:
                error = p4r.Error(canonical_code=refused.code, message=refused.message)
            errors.append(error)
        if any(error.canonical_code for error in errors):
            details = []
            for error in errors:
                packed = any_pb2.Any()
                packed.Pack(error)
                details.append(packed)
            status = rpc_status.Status(code=rpc_code.UNKNOWN, message="some updates failed", details=details)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            await context.abort(grpc.StatusCode.UNKNOWN, "some updates failed")
        return p4r.WriteResponse()

    def _write(self, device, update):
        if device.refuse_update is not None:
            device.refuse_update -= 1
            if device.refuse_update < 0:
                device.refuse_update = None
                raise Refused(rpc_code.RESOURCE_EXHAUSTED, "no room")
        entity = update.entity
        if entity.WhichOneof("entity") == "table_entry":
            if device.config is None:
                raise Refused(rpc_code.FAILED_PRECONDITION, "no program")
            if device.table(entity.table_entry.table_id) is None:
                raise Refused(rpc_code.NOT_FOUND, "no such table")
            if entity.table_entry.is_default_action:
                if update.type != p4r.Update.MODIFY:
                    raise Refused(rpc_code.INVALID_ARGUMENT, "a default action can only be modified")
                device.updates.append(update)
                if entity.table_entry.HasField("action"):
                    device.defaults[entity.table_entry.table_id] = entity
                else:
                    device.defaults.pop(entity.table_entry.table_id, None)
                return
        key = key_of(entity)
        if update.type == p4r.Update.INSERT and key in device.entities:
            raise Refused(rpc_code.ALREADY_EXISTS, "is there already")
        if update.type != p4r.Update.INSERT and key not in device.entities:
            raise Refused(rpc_code.NOT_FOUND, "is not there")
        device.updates.append(update)
        if update.type == p4r.Update.DELETE:
            del device.entities[key]
        elif not device.lies:
            device.entities[key] = entity

    async def Read(self, request, context):
        device = self.devices[request.device_id]
        answer = p4r.ReadResponse()
        for wanted in request.entities:
            kind = wanted.WhichOneof("entity")
            if kind == "table_entry" and wanted.table_entry.is_default_action:
                number = wanted.table_entry.table_id
                if number in device.defaults:
                    answer.entities.append(device.defaults[number])
                else:
                    answer.entities.add().table_entry.CopyFrom(wanted.table_entry)
                continue
            for entity in device.entities.values():
                if entity.WhichOneof("entity") != kind:
                    continue
                if kind == "table_entry" and wanted.table_entry.table_id not in (0, entity.table_entry.table_id):
                    continue
                answer.entities.append(entity)
        yield answer
