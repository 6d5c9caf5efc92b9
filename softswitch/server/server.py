"""The P4Runtime server: gRPC on one side, one ``DeviceService`` a device on the other.

Requests are parsed here and not by gRPC, so that a malformed one gets INVALID_ARGUMENT.  Each stream takes two threads for as
long as it lives, one that reads and one that writes; other requests share a pool.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
from finsy.proto import p4i, p4r
from google.protobuf.message import DecodeError, Message

from softswitch.errors import BadValue, SwitchError
from softswitch.server.codes import BatchRefusal, Code, Refusal, invalid, refusal, status_details
from softswitch.server.device import Device
from softswitch.server.device_service import DeviceService
from softswitch.server.pipeline_config import Loader, read_p4info
from softswitch.server.streams import Stream

LOGGER = logging.getLogger("softswitch.server")

API_VERSION = "1.5.0"
DEFAULT_ADDRESS = "127.0.0.1:9559"
MAX_MESSAGE = 64 << 20
"""Bytes of a request; the specification asks for 4 MiB at least."""
MAX_STREAMS = 256
WORKERS = 16
"""Threads for requests other than streams."""
SERVICE = "p4.v1.P4Runtime"

M = TypeVar("M", bound=Message)
_STATUS = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """PEM files of a server.

    Attributes:
        certificate: Its certificate chain.
        key: Its private key.
        client_ca: Clients must show a certificate that one of these signed (mutual TLS); None to ask for none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> Any:
        """Returns gRPC's credentials.

        Raises:
            BadValue: A file cannot be read.
        """
        try:
            pair = (Path(self.key).read_bytes(), Path(self.certificate).read_bytes())
            ca = None if self.client_ca is None else Path(self.client_ca).read_bytes()
        except OSError as error:
            raise BadValue(f"{error.filename}: {error.strerror}") from error
        return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)


def default_loader(device: Device) -> Loader:
    """Returns what compiles programs for a device."""

    def load(text: bytes) -> Any:
        # Only now: a server whose programs never change should not wait for the compiler.
        from softswitch.pipeline import Pipeline

        switch = device.switch
        return Pipeline.load(
            text,
            drop_port=switch.drop_port,
            cpu_port=switch.cpu_port,
            seed=device.device_id,
            clock=lambda: switch.clock() - switch.start,
        )

    return load


class P4RuntimeServer:
    """Serves P4Runtime for some devices.

    Args:
        devices: Their ids differ.
        address: Host and port; port 0 takes a free one.  Binding beyond loopback is the caller's decision.
        tls: Without it, connections are neither encrypted nor authenticated.
        loader: Makes the loader of a device.
        max_streams: StreamChannels that may be open at once, over all devices.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        address: str = DEFAULT_ADDRESS,
        tls: TLSFiles | None = None,
        *,
        loader: Callable[[Device], Loader] = default_loader,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        self._bell = threading.Event()
        self._services: dict[int, DeviceService] = {}
        for device in devices:
            if device.device_id in self._services:
                raise BadValue(f"two devices have the id {device.device_id}")
            self._services[device.device_id] = DeviceService(device, loader(device), self._bell.set)
        self._address = address
        self._credentials = None if tls is None else tls.credentials()
        self._max_streams = max_streams
        self._streams = threading.BoundedSemaphore(max_streams)
        self._server: Any = None
        self._pool = ThreadPoolExecutor(max_streams + WORKERS, thread_name_prefix="p4runtime")
        self._stopping = False
        self._timer = threading.Thread(target=self._run_timer, name="p4runtime-timer", daemon=True)

    def install(self, device_id: int, p4info: p4i.P4Info | bytes, device_config: bytes) -> None:
        """Sets the pipeline of a device without a controller, as for a switch that starts with a program.

        Args:
            device_id: One of the devices.
            p4info: The message, or a file in text or binary form.
            device_config: BMv2 JSON.

        Raises:
            Refusal: It cannot be realized.
        """
        info = read_p4info(p4info) if isinstance(p4info, bytes) else p4info
        service = self._service(device_id)
        service.commit(service.load(p4r.ForwardingPipelineConfig(p4info=info, p4_device_config=device_config)))

    def start(self) -> int:
        """Starts to serve and returns the port.

        Raises:
            BadValue: The address cannot be bound.
        """
        self._server = grpc.server(
            self._pool,
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", self._max_streams + WORKERS),
                # Two servers must not share a port unnoticed.
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=self._max_streams + 4 * WORKERS,
        )
        unary = {
            "Capabilities": self._capabilities,
            "Write": self._write,
            "SetForwardingPipelineConfig": self._set_pipeline,
            "GetForwardingPipelineConfig": self._get_pipeline,
        }
        handlers = {name: grpc.unary_unary_rpc_method_handler(handler) for name, handler in unary.items()}
        handlers["Read"] = grpc.unary_stream_rpc_method_handler(self._read)
        handlers["StreamChannel"] = grpc.stream_stream_rpc_method_handler(
            self._stream, response_serializer=p4r.StreamMessageResponse.SerializeToString
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            if self._credentials is None:
                port = self._server.add_insecure_port(self._address)
            else:
                port = self._server.add_secure_port(self._address, self._credentials)
        except RuntimeError as error:
            raise BadValue(f"cannot serve P4Runtime on {self._address}: {error}") from None
        self._server.start()
        self._timer.start()
        return int(port)

    def stop(self, grace: float | None = None) -> None:
        """Ends all streams and waits for requests in progress for up to ``grace`` seconds."""
        self._stopping = True
        self._bell.set()
        if self._server is not None:
            self._server.stop(grace).wait()
        if self._timer.ident is not None:
            self._timer.join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    # Requests

    def _service(self, device_id: int) -> DeviceService:
        service = self._services.get(device_id)
        if service is None:
            raise Refusal(Code.NOT_FOUND, f"there is no device {device_id}")
        return service

    def _capabilities(self, data: bytes, context: Any) -> bytes:
        with _status(context):
            request = _parse(p4r.CapabilitiesRequest, data)
            if request.device_id:
                self._service(request.device_id)
            return _bytes(p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION))
        raise AssertionError

    def _write(self, data: bytes, context: Any) -> bytes:
        with _status(context):
            request = _parse(p4r.WriteRequest, data)
            self._service(request.device_id).write(request)
        return b""

    def _read(self, data: bytes, context: Any) -> Iterator[bytes]:
        with _status(context):
            request = _parse(p4r.ReadRequest, data)
            for response in self._service(request.device_id).read(request):
                yield _bytes(response)

    def _set_pipeline(self, data: bytes, context: Any) -> bytes:
        with _status(context):
            request = _parse(p4r.SetForwardingPipelineConfigRequest, data)
            self._service(request.device_id).set_pipeline(request)
        return b""

    def _get_pipeline(self, data: bytes, context: Any) -> bytes:
        with _status(context):
            request = _parse(p4r.GetForwardingPipelineConfigRequest, data)
            return _bytes(self._service(request.device_id).get_pipeline(request.response_type))
        raise AssertionError

    # Streams

    def _stream(self, requests: Iterator[bytes], context: Any) -> Iterator[p4r.StreamMessageResponse]:
        if not self._streams.acquire(blocking=False):
            with _status(context):
                raise Refusal(Code.RESOURCE_EXHAUSTED, f"{self._max_streams} streams are open already")
        stream = Stream()
        reader = threading.Thread(target=self._read_stream, args=(requests, stream), name="p4runtime-stream", daemon=True)
        try:
            if context.add_callback(stream.close):
                reader.start()
                while (message := stream.next()) is not None:
                    yield message
        finally:
            self._leave(stream)
            self._streams.release()
        if stream.refusal is not None:
            with _status(context):
                raise stream.refusal

    def _leave(self, stream: Stream) -> None:
        if stream.device_id is not None:
            self._services[stream.device_id].leave(stream)

    def _read_stream(self, requests: Iterator[bytes], stream: Stream) -> None:
        """Runs in a thread of its own until the client or the server ends the stream."""
        try:
            for data in requests:
                self._take(_parse(p4r.StreamMessageRequest, data), stream)
            stream.close()
        except SwitchError as error:
            stream.close(refusal(error))
        except Exception as error:
            if not isinstance(error, grpc.RpcError) and type(error) is not Exception:
                LOGGER.exception("a stream failed")
            stream.close(Refusal(Code.INTERNAL, f"{type(error).__name__}: {error}"))

    def _take(self, request: p4r.StreamMessageRequest, stream: Stream) -> None:
        if request.WhichOneof("update") == "arbitration":
            device_id = request.arbitration.device_id
            if stream.device_id not in (None, device_id):
                raise Refusal(
                    Code.FAILED_PRECONDITION, f"the device of a stream cannot change from {stream.device_id} to {device_id}"
                )
            service = self._service(device_id)
            stream.device_id = device_id
            service.arbitrate(stream, request.arbitration)
        elif stream.device_id is None:
            raise Refusal(Code.FAILED_PRECONDITION, "the first message of a stream must be a MasterArbitrationUpdate")
        else:
            self._services[stream.device_id].message(stream, request)

    # Timer

    def _run_timer(self) -> None:
        due: dict[DeviceService, int | None] = dict.fromkeys(self._services.values(), 0)
        while not self._stopping:
            wait = min((time_ns for time_ns in due.values() if time_ns is not None), default=None)
            rung = self._bell.wait(None if wait is None else max(0.0, (wait - time.monotonic_ns()) / 1e9))
            self._bell.clear()
            now = time.monotonic_ns()
            for service, time_ns in due.items():
                if rung or (time_ns is not None and time_ns <= now):
                    try:
                        due[service] = service.tick(now)
                    except Exception:
                        LOGGER.exception("notifications failed")
                        due[service] = now + 1_000_000_000


def _parse(kind: type[M], data: bytes) -> M:
    message: M = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise invalid(f"the request is not a valid {kind.__name__}") from None
    return message


def _bytes(message: Message) -> bytes:
    data: bytes = message.SerializeToString()
    return data


class _status:
    """Turns an error into the status of the request."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, SwitchError):
            refused = refusal(error)
            if isinstance(refused, BatchRefusal):
                details = status_details(refused.message, refused.items)
                self._context.set_trailing_metadata((("grpc-status-details-bin", details),))
            self._context.abort(_STATUS[int(refused.code)], refused.message)
        elif isinstance(error, Exception):
            LOGGER.error("a request failed", exc_info=error)
            self._context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")


__all__ = ["API_VERSION", "DEFAULT_ADDRESS", "P4RuntimeServer", "TLSFiles"]
