"""What a role may do (P4Runtime specification, "Role Config").

Without a configuration a role has full access to the pipeline.  The one definition scheme that this target knows is the message
``stratum.P4RoleConfig``, which finsy and Stratum use: lists of P4 ids that the role may write (exclusively, or shared with
others), whether it receives packet-ins and which, and whether it may set the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from finsy.proto import stratum
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError

from softswitch.server.codes import invalid


@dataclass(frozen=True, slots=True)
class RolePolicy:
    """Permissions of a role.

    Attributes:
        exclusive: Ids that no other role may write.
        writable: Ids that this role may write, the exclusive ones included; None for all.
        packet_ins: It receives packet-ins.
        packet_in_filter: Only those whose metadata field (id, canonical value) is this; None for all.
        push_pipeline: It may set the forwarding pipeline.
    """

    exclusive: frozenset[int] = frozenset()
    writable: frozenset[int] | None = None
    packet_ins: bool = True
    packet_in_filter: tuple[int, bytes] | None = None
    push_pipeline: bool = True

    def wants(self, metadata: Iterable[tuple[int, bytes]]) -> bool:
        """Tells whether a packet-in with these metadata fields is for this role."""
        return self.packet_ins and (self.packet_in_filter is None or self.packet_in_filter in metadata)


FULL = RolePolicy()


def parse(config: AnyMessage | None) -> RolePolicy:
    """Reads ``role.config``.

    Raises:
        Refusal: INVALID_ARGUMENT, not the agreed scheme.
    """
    if config is None:
        return FULL
    if not config.Is(stratum.P4RoleConfig.DESCRIPTOR):
        raise invalid(f"role.config: expected a stratum.P4RoleConfig, got {config.type_url[:100]!r}")
    message = stratum.P4RoleConfig()
    try:
        config.Unpack(message)
    except DecodeError:
        raise invalid("role.config: malformed stratum.P4RoleConfig") from None
    exclusive = frozenset(message.exclusive_p4_ids)
    # finsy cannot open a named role without a configuration; an empty list of ids then means "no restriction".
    writable = exclusive | frozenset(message.shared_p4_ids) or None
    wanted = (message.packet_in_filter.metadata_id, message.packet_in_filter.value)
    return RolePolicy(
        exclusive=exclusive,
        writable=writable,
        packet_ins=message.receives_packet_ins,
        packet_in_filter=wanted if wanted[0] else None,
        push_pipeline=message.can_push_pipeline,
    )


__all__ = ["FULL", "RolePolicy", "parse"]
