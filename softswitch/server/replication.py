"""Multicast groups and clone sessions (P4Runtime specification, "PacketReplicationEngineEntry")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from finsy.proto import p4r

from softswitch.runtime import CloneSession, MulticastGroup, Replica
from softswitch.server.bytestrings import decode, encode
from softswitch.server.codes import invalid
from softswitch.server.tables import DELETE, INSERT
from softswitch.server.target import Operation, Query, Target

PORT_BITS = 32


def _replicas(messages: Iterable[p4r.Replica]) -> tuple[Replica, ...]:
    result = []
    for message in messages:
        kind = message.WhichOneof("port_kind")
        if kind is None:
            raise invalid("a replica has no port")
        port = decode(message.port, PORT_BITS, "port") if kind == "port" else message.egress_port
        backups = tuple((decode(backup.port, PORT_BITS, "port"), backup.instance) for backup in message.backup_replicas)
        result.append(Replica(port, message.instance, backups))
    return tuple(result)


def _messages(replicas: Iterable[Replica]) -> list[p4r.Replica]:
    return [
        p4r.Replica(
            port=encode(replica.port),
            instance=replica.instance,
            backup_replicas=[p4r.BackupReplica(port=encode(port), instance=instance) for port, instance in replica.backups],
        )
        for replica in replicas
    ]


def plan_replication(kind: int, message: p4r.PacketReplicationEngineEntry, target: Target) -> Operation:
    """Plans an update of a multicast group or a clone session."""
    which = message.WhichOneof("type")
    if which == "multicast_group_entry":
        return _plan_group(kind, message.multicast_group_entry)
    if which == "clone_session_entry":
        return _plan_session(kind, message.clone_session_entry, target.queues)
    raise invalid("a packet replication entry is a multicast group or a clone session")


def _plan_group(kind: int, message: p4r.MulticastGroupEntry) -> Operation:
    number = message.multicast_group_id
    if number == 0:
        raise invalid("multicast_group_id is not set")
    if kind == DELETE:
        return lambda target: target.runtime.groups.delete(number)
    replicas, metadata = _replicas(message.replicas), message.metadata
    if kind == INSERT:
        return lambda target: target.runtime.groups.insert(MulticastGroup(number, replicas, metadata))
    return lambda target: target.runtime.groups.modify(MulticastGroup(number, replicas, metadata))


def _plan_session(kind: int, message: p4r.CloneSessionEntry, queues: int) -> Operation:
    number = message.session_id
    if number == 0:
        raise invalid("session_id is not set")
    if kind == DELETE:
        return lambda target: target.runtime.sessions.delete(number)
    service, length = message.class_of_service, message.packet_length_bytes
    if service >= queues:
        raise invalid(f"class_of_service {service} is not in 0..{queues - 1}")
    replicas = _replicas(message.replicas)
    if any(replica.backups for replica in replicas):
        raise invalid("replicas of a clone session have no backups")
    if kind == INSERT:
        return lambda target: target.runtime.sessions.insert(CloneSession(number, replicas, service, length))
    return lambda target: target.runtime.sessions.modify(CloneSession(number, replicas, service, length))


def read_replication(message: p4r.PacketReplicationEngineEntry) -> list[Query]:
    """Returns the query for one group or session, or all of a kind."""
    which = message.WhichOneof("type")
    if which == "multicast_group_entry":
        wanted = message.multicast_group_entry.multicast_group_id
        return [(lambda target: _copy(target.runtime.groups, wanted), _write_group)]
    if which == "clone_session_entry":
        wanted = message.clone_session_entry.session_id
        return [(lambda target: _copy(target.runtime.sessions, wanted), _write_session)]
    raise invalid("a packet replication entry is a multicast group or a clone session")


def _copy(items: Iterable[Any], wanted: int) -> list[Any]:
    # Groups and sessions are replaced by a write, never changed, except for where copies go now, which is not shown.
    return [item for item in items if wanted in (0, item.id)]


def _write_group(group: Any) -> p4r.Entity:
    entry = p4r.MulticastGroupEntry(multicast_group_id=group.id, replicas=_messages(group.replicas), metadata=group.metadata)
    return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(multicast_group_entry=entry))


def _write_session(session: Any) -> p4r.Entity:
    entry = p4r.CloneSessionEntry(
        session_id=session.id,
        replicas=_messages(session.replicas),
        class_of_service=session.class_of_service,
        packet_length_bytes=session.packet_length,
    )
    return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(clone_session_entry=entry))


__all__ = ["plan_replication", "read_replication"]
