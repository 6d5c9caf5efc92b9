"""The forwarding pipeline configuration of a device (P4Runtime specification, "SetForwardingPipelineConfig RPC").

A saved configuration that is not committed has its own compiled program with its own state.  Reads and writes go there until
COMMIT puts it in force, so what the specification calls "replaying the writes" has then been done already.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from finsy.proto import p4i, p4r
from google.protobuf import text_format
from google.protobuf.message import DecodeError

from softswitch.errors import SwitchError
from softswitch.server.binding import bind
from softswitch.server.codes import Refusal, invalid, refusal
from softswitch.server.target import Target

Loader = Callable[[bytes], Any]
"""Compiles BMv2 JSON; raises ProgramError."""

_BYTES = 2


def load_target(config: p4r.ForwardingPipelineConfig, loader: Loader, ports: Container[int], queues: int) -> Target:
    """Compiles a configuration.

    Raises:
        Refusal: INVALID_ARGUMENT, it cannot be realized; the message says where and why.
    """
    if not config.HasField("p4info"):
        raise invalid("the configuration has no p4info")
    if not config.p4_device_config:
        raise invalid("the configuration has no p4_device_config; it is the JSON that p4c-bm2-ss writes")
    text = unwrap(config.p4_device_config)
    try:
        program = loader(text)
    except SwitchError as error:
        refused = refusal(error)
        raise Refusal(refused.code, f"p4_device_config: {refused.message}") from None
    schema = bind(config.p4info, program.runtime.control, text)
    kept = p4r.ForwardingPipelineConfig()
    kept.CopyFrom(config)
    return Target(program, schema, kept, ports, queues)


def unwrap(data: bytes) -> bytes:
    """Returns the JSON in a device configuration.

    Older controllers, those of the P4 tutorials among them, wrap it into BMv2's ``p4.tmp.P4DeviceConfig``, whose field 3 it is.
    """
    if data.lstrip()[:1] in (b"{", b""):
        return data
    try:
        position = 0
        while position < len(data):
            key, position = _varint(data, position)
            if key & 7 == 0:
                _, position = _varint(data, position)
            elif key & 7 == _BYTES:
                length, position = _varint(data, position)
                if key >> 3 == 3:
                    return data[position : position + length]
                position += length
            else:
                break
    except IndexError:
        pass
    return data


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def answer(target: Target | None, kind: int) -> p4r.GetForwardingPipelineConfigResponse:
    """Returns the parts of a configuration that ``GetForwardingPipelineConfig`` asks for."""
    request = p4r.GetForwardingPipelineConfigRequest
    response = p4r.GetForwardingPipelineConfigResponse()
    if kind not in (request.ALL, request.COOKIE_ONLY, request.P4INFO_AND_COOKIE, request.DEVICE_CONFIG_AND_COOKIE):
        raise invalid(f"response type {kind} is unknown")
    if target is None:
        return response
    response.config.SetInParent()
    if target.config.HasField("cookie"):
        response.config.cookie.CopyFrom(target.config.cookie)
    if kind in (request.ALL, request.P4INFO_AND_COOKIE):
        response.config.p4info.CopyFrom(target.config.p4info)
    if kind in (request.ALL, request.DEVICE_CONFIG_AND_COOKIE):
        response.config.p4_device_config = target.config.p4_device_config
    return response


def read_p4info(data: bytes) -> p4i.P4Info:
    """Reads a P4Info file, text or binary.

    Raises:
        Refusal: INVALID_ARGUMENT, neither.
    """
    info = p4i.P4Info()
    try:
        text_format.Parse(data.decode(), info)
        return info
    except (text_format.ParseError, UnicodeDecodeError):
        pass
    info = p4i.P4Info()
    try:
        info.ParseFromString(data)
    except DecodeError:
        raise invalid("the P4Info is neither the text nor the binary form of p4.config.v1.P4Info") from None
    return info


__all__ = ["Loader", "answer", "load_target", "read_p4info", "unwrap"]
