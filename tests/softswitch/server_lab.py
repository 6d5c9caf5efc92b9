"""A bare P4Runtime client for the tests of the server: it sends what it is told, right or wrong, and shows what comes back."""

import queue
import threading
from pathlib import Path

import grpc
from finsy.proto import p4i, p4r, p4r_grpc, rpc_status
from google.protobuf import text_format

from softswitch.server import Code

PROGRAMS = Path(__file__).parent / "programs"
JSON = PROGRAMS / "control.json"
P4INFO = PROGRAMS / "control.p4info.txtpb"
INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
SET = p4r.SetForwardingPipelineConfigRequest
TIMEOUT = 20


def load_p4info(path=P4INFO):
    return text_format.Parse(path.read_text(), p4i.P4Info())


class Names:
    """P4 ids by name or alias."""

    def __init__(self, info):
        self.info = info
        self.ids = {}
        for group in ("tables", "actions", "action_profiles", "counters", "meters", "registers", "digests", "value_sets"):
            for item in getattr(info, group):
                self.ids[item.preamble.name] = self.ids[item.preamble.alias] = item.preamble.id
        self.tables = {item.preamble.alias: item for item in info.tables}

    def __getitem__(self, name):
        return self.ids[name]

    def action(self, name, *values):
        params = [p4r.Action.Param(param_id=number, value=octets(value)) for number, value in enumerate(values, 1)]
        return p4r.Action(action_id=self[name], params=params)

    def match(self, table, **values):
        """Match fields by number: ``f1=5`` exact, or a dict that is the message."""
        result = []
        for name, value in values.items():
            field = p4r.FieldMatch(field_id=int(name[1:]))
            if isinstance(value, dict):
                for kind, parts in value.items():
                    message = getattr(field, kind)
                    message.SetInParent()
                    for part, number in parts.items():
                        setattr(message, part, number if part == "prefix_len" else octets(number))
            else:
                field.exact.value = octets(value)
            result.append(field)
        return result

    def entry(self, table, action=None, /, *values, priority=0, match=None, **fields):
        entry = p4r.TableEntry(table_id=self[table], match=self.match(table, **(match or {})), priority=priority, **fields)
        if action is not None:
            entry.action.action.CopyFrom(self.action(action, *values))
        return entry


def octets(value):
    return value if isinstance(value, bytes) else value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")


def entity(message):
    """Wraps a message into an Entity, whatever it is."""
    names = {field.message_type.name: field.name for field in p4r.Entity.DESCRIPTOR.fields}
    return p4r.Entity(**{names[message.DESCRIPTOR.name]: message})


class Failed(Exception):
    """An RPC failed: code, message, and a (code, message) pair for each item of the batch."""

    def __init__(self, error):
        self.code = Code(error.code().value[0])
        self.message = error.details()
        self.items = []
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                status = rpc_status.Status.FromString(value)
                assert (status.code, status.message) == (self.code, self.message)
                for detail in status.details:
                    item = p4r.Error()
                    assert detail.Unpack(item)
                    self.items.append((Code(item.canonical_code), item.message))
        super().__init__(f"{self.code.name}: {self.message} {self.items}")

    @property
    def item(self):
        """The code of the only item."""
        (item,) = self.items
        return item[0]


class Controller:
    """A client with one stream at most."""

    def __init__(self, address, device_id=1, info=None, credentials=None):
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", 1 << 20),
        ]
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            self.channel = grpc.secure_channel(address, credentials, options)
        self.address = address
        self.stub = p4r_grpc.P4RuntimeStub(self.channel)
        self.device_id = device_id
        self.election_id = None
        self.role = ""
        self.names = Names(info or load_p4info())
        self.received = queue.Queue()
        self.requests = queue.Queue()
        self.call = None
        self.reader = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close_stream()
        self.channel.close()

    # Stream

    def send(self, **message):
        if self.call is None:
            self.call = self.stub.StreamChannel(iter(self.requests.get, None))
            self.reader = threading.Thread(target=self._read, args=(self.call,), daemon=True)
            self.reader.start()
        self.requests.put(p4r.StreamMessageRequest(**message))

    def _read(self, call):
        try:
            for message in call:
                self.received.put(message)
            self.received.put(None)
        except grpc.RpcError as error:
            self.received.put(Failed(error))

    def receive(self, kind=None):
        """Returns the next message of the stream; raises its error; None if it ended well."""
        message = self.received.get(timeout=TIMEOUT)
        if isinstance(message, Failed):
            raise message
        if message is None or kind is None:
            return message
        assert message.WhichOneof("update") == kind, message
        return getattr(message, kind)

    def bid(self, election_id, role=None, config=None, device_id=None):
        """Sends an arbitration message and returns the answer."""
        update = p4r.MasterArbitrationUpdate(device_id=self.device_id if device_id is None else device_id)
        if election_id is not None:
            update.election_id.high, update.election_id.low = election_id >> 64, election_id & (2**64 - 1)
            update.election_id.SetInParent()
            self.election_id = election_id
        if role is not None:
            update.role.name = self.role = role
        if config is not None:
            update.role.config.Pack(config)
        self.send(arbitration=update)
        return self.receive("arbitration")

    def close_stream(self):
        if self.call is not None:
            self.call.cancel()
            self.reader.join()
            self.requests.put(None)
            self.call, self.requests, self.received = None, queue.Queue(), queue.Queue()

    # Requests

    def rpc(self, method, request):
        try:
            return getattr(self.stub, method)(request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            raise Failed(error) from None

    def identity(self):
        result = {"device_id": self.device_id, "role": self.role}
        if self.election_id is not None:
            result["election_id"] = p4r.Uint128(high=self.election_id >> 64, low=self.election_id & (2**64 - 1))
        return result

    def set_pipeline(self, action=SET.VERIFY_AND_COMMIT, info=None, json=None, cookie=None, config=None):
        request = SET(action=action, **self.identity())
        if config is None and action != SET.COMMIT:
            config = p4r.ForwardingPipelineConfig(
                p4info=info or self.names.info, p4_device_config=JSON.read_bytes() if json is None else json
            )
            if cookie is not None:
                config.cookie.cookie = cookie
        if config is not None:
            request.config.CopyFrom(config)
        self.rpc("SetForwardingPipelineConfig", request)

    def get_pipeline(self, kind=0):
        request = p4r.GetForwardingPipelineConfigRequest(device_id=self.device_id, response_type=kind)
        return self.rpc("GetForwardingPipelineConfig", request).config

    def write(self, *updates, atomicity=0):
        """Writes (type, message) pairs."""
        request = p4r.WriteRequest(
            updates=[p4r.Update(type=kind, entity=entity(message)) for kind, message in updates],
            atomicity=atomicity,
            **self.identity(),
        )
        self.rpc("Write", request)

    def insert(self, *messages):
        self.write(*((INSERT, message) for message in messages))

    def modify(self, *messages):
        self.write(*((MODIFY, message) for message in messages))

    def delete(self, *messages):
        self.write(*((DELETE, message) for message in messages))

    def read(self, *messages, role=""):
        """Returns the bare messages that were read."""
        request = p4r.ReadRequest(device_id=self.device_id, role=role, entities=[entity(message) for message in messages])
        try:
            answers = list(self.stub.Read(request, timeout=TIMEOUT))
        except grpc.RpcError as error:
            raise Failed(error) from None
        return [getattr(item, item.WhichOneof("entity")) for answer in answers for item in answer.entities]
