"""The P4Runtime service of one device: arbitration, pipeline, writes, reads, and what goes out on the streams.

Threads.  Any number of threads of the gRPC server call the methods here; ``_lock`` makes their requests follow one another, and
is held while a request waits for the data plane's thread.  So the data plane's thread must never take it: packet-ins read
``_receivers``, which is replaced as a whole, and digests only ring a bell.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from finsy.proto import p4r

from softswitch.errors import SwitchError
from softswitch.runtime import Entry
from softswitch.server import batches, pipeline_config
from softswitch.server.arbitration import Arbiter, Notice
from softswitch.server.codes import Code, Refusal, invalid, refusal
from softswitch.server.device import Device
from softswitch.server.digests import DigestBatch, DigestLists
from softswitch.server.packet_io import packet_in, packet_out
from softswitch.server.reconcile import reconcile
from softswitch.server.roles import FULL, RolePolicy
from softswitch.server.streams import Stream, stream_error
from softswitch.server.table_reads import copy_entry, write_key
from softswitch.server.target import Target

IDLE_SCAN_NS = 100_000_000
"""How often entries are looked through for idle ones."""

_Set = p4r.SetForwardingPipelineConfigRequest


def role_name(request: p4r.WriteRequest | _Set) -> str:
    """Returns a request's role; the deprecated number stands for a name of digits."""
    return request.role or (str(request.role_id) if request.role_id else "")


def election_id(request: p4r.WriteRequest | _Set | p4r.MasterArbitrationUpdate) -> int | None:
    """Returns a request's election id, or None if it is not set."""
    if not request.HasField("election_id"):
        return None
    return request.election_id.high << 64 | request.election_id.low


class DeviceService:
    """One device.

    Args:
        device: What is controlled.
        loader: Compiles BMv2 JSON for this device.
        bell: Called, from any thread, when ``tick`` may have something to do.
    """

    def __init__(self, device: Device, loader: pipeline_config.Loader, bell: Callable[[], None]) -> None:
        self.device = device
        self._loader = loader
        self._bell = bell
        self._lock = threading.RLock()
        self._loading = threading.Lock()
        self._arbiter = Arbiter()
        self._streams: dict[Any, Stream] = {}
        self._receivers: tuple[tuple[Stream, RolePolicy], ...] = ()
        self._committed: Target | None = None
        self._saved: Target | None = None
        self._verified: Target | None = None
        self._digests = DigestLists()
        self._idle_scan = 0
        self._notified: dict[Entry, int] = {}
        device.switch.on_packet_in = self._packet_in

    # Streams

    def arbitrate(self, stream: Stream, update: p4r.MasterArbitrationUpdate) -> None:
        """Takes an arbitration message.

        Raises:
            Refusal: The stream must end with this error.
        """
        role = update.role.name or (str(update.role.id) if update.role.id else "")
        config = update.role.config if update.role.HasField("config") else None
        with self._lock:
            before = self._arbiter.primaries()
            named = update.HasField("role")
            notices = self._arbiter.update(stream.session, role, election_id(update), named=named, config=config)
            self._streams[stream.session] = stream
            self._announce(notices, before)

    def leave(self, stream: Stream) -> None:
        """A stream has ended."""
        with self._lock:
            before = self._arbiter.primaries()
            notices = self._arbiter.leave(stream.session)
            self._streams.pop(stream.session, None)
            self._announce(notices, before)

    def _announce(self, notices: list[Notice], before: list[Any]) -> None:
        primaries = self._arbiter.primaries()
        self._receivers = tuple((self._streams[session], policy) for session, policy in primaries)
        for notice in notices:
            self._streams[notice.session].notify(notice, self.device.device_id)
        if [session for session, _ in before] != [session for session, _ in primaries]:
            self._digests.clear()
            self._bell()

    def message(self, stream: Stream, request: p4r.StreamMessageRequest) -> None:
        """Takes any other message of a stream; errors go back on the stream."""
        try:
            kind = request.WhichOneof("update")
            if kind == "packet":
                self._packet_out(stream, request.packet)
            elif kind == "digest_ack":
                self._acknowledge(request.digest_ack)
            else:
                raise Refusal(Code.UNIMPLEMENTED, f"stream messages of kind {kind} are not supported")
        except SwitchError as error:
            stream.send(stream_error(refusal(error), request))

    def _packet_out(self, stream: Stream, packet: p4r.PacketOut) -> None:
        if not any(stream is receiver for receiver, _ in self._receivers):
            raise Refusal(Code.PERMISSION_DENIED, "only a primary may send packets")
        committed = self._committed
        if committed is None:
            raise Refusal(Code.FAILED_PRECONDITION, _NO_PIPELINE)
        data = packet_out(committed.schema.packet_out, packet)
        self.device.call(lambda: self.device.switch.packet_out(data))

    def _acknowledge(self, ack: p4r.DigestListAck) -> None:
        with self._lock:
            if self._committed is None or ack.digest_id not in self._committed.schema.digests:
                raise invalid(f"there is no digest with id {ack.digest_id:#x}")
            self._digests.acknowledge(ack.digest_id, ack.list_id)

    def _packet_in(self, data: bytes) -> None:
        """Runs in the data plane's thread."""
        committed, receivers = self._committed, self._receivers
        if committed is None or not receivers:
            return
        message = packet_in(committed.schema.packet_in, data)
        if message is None:
            return
        response = p4r.StreamMessageResponse(packet=message)
        for stream, policy in receivers:
            if policy is FULL or policy.wants([(item.metadata_id, item.value) for item in message.metadata]):
                stream.send(response)

    # Pipeline

    def set_pipeline(self, request: _Set) -> None:
        """Carries out ``SetForwardingPipelineConfig``.

        Raises:
            Refusal: It cannot be done; the pipeline in force is unchanged.
        """
        role, number = role_name(request), election_id(request)
        with self._lock:
            self._arbiter.check(role, number)
            if not self._arbiter.policy(role).push_pipeline:
                raise Refusal(Code.PERMISSION_DENIED, f"the role {role!r} may not set the pipeline")
        action = request.action
        if action == _Set.COMMIT:
            self._commit_saved(request)
            return
        if action not in (_Set.VERIFY, _Set.VERIFY_AND_SAVE, _Set.VERIFY_AND_COMMIT, _Set.RECONCILE_AND_COMMIT):
            raise invalid(f"action {action} is unknown or not set")
        if not request.HasField("config"):
            raise invalid("the request has no config")
        # Compiling takes long; reads, writes and other sessions go on meanwhile.  One at a time: it is all CPU.
        with self._loading:
            target = self._take_verified(request.config) or self.load(request.config)
        with self._lock:
            self._arbiter.check(role, number)
            if action == _Set.VERIFY:
                self._verified = target
            elif action == _Set.VERIFY_AND_SAVE:
                self._saved = target
            else:
                self.commit(target, reconcile_with=self._committed if action == _Set.RECONCILE_AND_COMMIT else None)

    def _take_verified(self, config: p4r.ForwardingPipelineConfig) -> Target | None:
        """Returns what VERIFY compiled, if it is this configuration; nothing has been written into it."""
        with self._lock:
            target, self._verified = self._verified, None
        if target is None or target.config.p4info != config.p4info or target.config.p4_device_config != config.p4_device_config:
            return None
        target.config.CopyFrom(config)
        return target

    def load(self, config: p4r.ForwardingPipelineConfig) -> Target:
        """Compiles a configuration; see ``load_target``."""
        switch = self.device.switch
        return pipeline_config.load_target(config, self._loader, switch.ports, switch.queues)

    def _commit_saved(self, request: _Set) -> None:
        if request.HasField("config"):
            raise invalid("COMMIT takes no config; it commits the one that was saved")
        with self._lock:
            self._arbiter.check(role_name(request), election_id(request))
            if self._saved is None:
                raise Refusal(Code.NOT_FOUND, "there is no saved config: send VERIFY_AND_SAVE first")
            self.commit(self._saved)

    def commit(self, target: Target, reconcile_with: Target | None = None) -> None:
        """Puts a program in force, at first with the state of ``reconcile_with``."""
        switch = self.device.switch

        def swap() -> None:
            if reconcile_with is not None:
                reconcile(reconcile_with, target)
            target.runtime.digests.notify = self._bell
            switch.set_pipeline(target.program)

        with self._lock:
            self.device.call(swap)
            self._committed = target
            self._saved = None
            self._digests.clear()
            self._notified.clear()
        self._bell()

    def get_pipeline(self, kind: int) -> p4r.GetForwardingPipelineConfigResponse:
        """Carries out ``GetForwardingPipelineConfig``."""
        with self._lock:
            return pipeline_config.answer(self._saved or self._committed, kind)

    def _target(self) -> Target:
        target = self._saved or self._committed
        if target is None:
            raise Refusal(Code.FAILED_PRECONDITION, _NO_PIPELINE)
        return target

    # Entities

    def write(self, request: p4r.WriteRequest) -> None:
        """Carries out ``Write``.

        Raises:
            Refusal: All or some of it failed.
        """
        role = role_name(request)
        with self._lock:
            self._arbiter.check(role, election_id(request))
            batches.write(self._target(), self.device.call, request.updates, request.atomicity, self._writable(role))
            self._bell_for_digests(request)

    def _writable(self, role: str) -> batches.Allowed | None:
        own, others = self._arbiter.policy(role).writable, self._arbiter.reserved(role)
        if own is None and not others:
            return None
        return lambda number: number not in others and (own is None or number in own)

    def _bell_for_digests(self, request: p4r.WriteRequest) -> None:
        if any(update.entity.HasField("digest_entry") for update in request.updates):
            self._bell()

    def read(self, request: p4r.ReadRequest) -> Iterator[p4r.ReadResponse]:
        """Carries out ``Read``; the answers are made one by one, from a copy taken at once.

        Raises:
            Refusal: All or some of it failed.
        """
        with self._lock:
            own = self._arbiter.policy(request.role).writable if request.role else None
            allowed = None if own is None else own.__contains__
            return batches.read(self._target(), self.device.call, request.entities, allowed)

    # Notifications

    def tick(self, now: int) -> int | None:
        """Sends what is due at ``now`` (ns) and returns when to come again, or None for when the bell rings."""
        with self._lock:
            target = self._committed
            if target is None:
                return None
            times = [self._send_digests(target, now), self._send_idle(target, now) if self._receivers else None]
        return min((due for due in times if due is not None), default=None)

    def _notify(self, number: int, message: p4r.StreamMessageResponse) -> None:
        """Sends a message about the object with a P4 id to the primaries that it concerns."""
        for stream, policy in self._receivers:
            if policy.writable is None or number in policy.writable:
                stream.send(message)

    def _send_digests(self, target: Target, now: int) -> int | None:
        names = {digest.name: digest.id for digest in target.schema.digests.values()}
        taken = self.device.call(target.runtime.digests.drain) if target.runtime.digests else []
        digests = [(names[name], values) for name, values in taken if name in names]
        lists = self._digests.add(digests, target.digests, now) + self._digests.due(target.digests, now)
        for item in lists:
            self._notify(item.digest_id, _digest_message(target, item))
        return self._digests.next_due(target.digests)

    def _send_idle(self, target: Target, now: int) -> int | None:
        tables = [table for table in target.schema.tables.values() if table.timeouts]
        if not tables:
            return None
        if now < self._idle_scan:
            return self._idle_scan
        self._idle_scan = now + IDLE_SCAN_NS

        def scan() -> list[list[Any]]:
            now_us = target.runtime.clock() // 1000
            return [
                [(entry, copy_entry(entry, now_us)) for entry in target.runtime.tables[table.name].idle(now_us)]
                for table in tables
            ]

        notified: dict[Entry, int] = {}
        for table, rows in zip(tables, self.device.call(scan), strict=True):
            message = p4r.StreamMessageResponse()
            for entry, row in rows:
                # The timer starts again with each notification.
                last = self._notified.get(entry)
                if last is not None and now - last < row.timeout:
                    notified[entry] = last
                    continue
                notified[entry] = now
                message.idle_timeout_notification.table_entry.append(write_key(table, row))
            if message.HasField("idle_timeout_notification"):
                message.idle_timeout_notification.timestamp = time.time_ns()
                self._notify(table.id, message)
        self._notified = notified
        return self._idle_scan


_NO_PIPELINE = "No forwarding pipeline config set for this device."


def _digest_message(target: Target, item: DigestBatch) -> p4r.StreamMessageResponse:
    codec = target.schema.digests[item.digest_id].codec
    data = [codec.encode(iter(values)) for values in item.values]
    return p4r.StreamMessageResponse(
        digest=p4r.DigestList(digest_id=item.digest_id, list_id=item.list_id, data=data, timestamp=time.time_ns())
    )


__all__ = ["DeviceService", "election_id", "role_name"]
