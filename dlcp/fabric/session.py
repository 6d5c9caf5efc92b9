"""A conversation with one switch over P4Runtime: reading, and, as its primary controller, writing.

Reading needs no arbitration (P4Runtime 1.4, section 5), so that looking at switches disturbs no other controller.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import grpc
from finsy import GRPCCredentialsTLS, GRPCStatusCode, P4Client, P4ClientError
from finsy.proto import U128, p4r

from dlcp.fabric.endpoints import TLS, Target
from dlcp.fabric.errors import FabricError

PATIENCE_S: Final = 10.0
"""Longest wait for the answer to arbitration; finsy's limit for other calls is as long."""

PROGRAM_S: Final = 120.0
"""Longest wait for a program to be verified or set: a target may compile it."""

_CANNOT: Final = frozenset(
    {
        GRPCStatusCode.UNIMPLEMENTED,
        GRPCStatusCode.UNKNOWN,
        GRPCStatusCode.INVALID_ARGUMENT,
        GRPCStatusCode.FAILED_PRECONDITION,
        GRPCStatusCode.NOT_FOUND,
    }
)
"""Codes of targets that cannot read a kind of entity, or not now."""

_DEVICE_HINT: Final = "give the switch's device_id in the topology; ids that are not given count from 1"
_PAUSES_S: Final = (0.3, 1.0)
"""Before asking again a switch that drops the first connection; gRPC itself connects anew after a second."""
_HINTS: Final = {
    GRPCStatusCode.UNAVAILABLE: "is its P4Runtime server running, and are the address and the certificates right?",
    GRPCStatusCode.DEADLINE_EXCEEDED: "it accepts connections but does not answer; is it overloaded, or something else?",
    GRPCStatusCode.PERMISSION_DENIED: "another controller is its primary; stop it, or raise --election-id",
    GRPCStatusCode.UNAUTHENTICATED: "it wants a client certificate: --tls-cert and --tls-key",
    GRPCStatusCode.UNIMPLEMENTED: "is that a P4Runtime server, and recent enough?",
    GRPCStatusCode.RESOURCE_EXHAUSTED: "a table of the program is full",
}


class _Client(P4Client):
    """finsy's client, with more patience where a target may have to compile."""

    async def set_pipeline(self, request: p4r.SetForwardingPipelineConfigRequest) -> None:
        """Sends the request; P4ClientError if it fails."""
        assert self._stub is not None
        try:
            await self._stub.SetForwardingPipelineConfig(request, timeout=PROGRAM_S)
        except grpc.RpcError as error:
            raise P4ClientError(error, "SetForwardingPipelineConfig") from None


class Session:
    """A connection; an asynchronous context manager.

    Attributes:
        target: The switch.
        written: Updates that it has accepted.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.written = 0
        self._client = _Client(target.address, _credentials(target.tls), wait_for_ready=False)
        self._election = 0
        self._notices: asyncio.Task[None] | None = None
        self._lost = ""

    async def __aenter__(self) -> Self:
        try:
            await self._client.open()
        except (OSError, ValueError) as error:
            raise self.failed(str(error)) from None
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._notices is not None:
            self._notices.cancel()
            with contextlib.suppress(asyncio.CancelledError, P4ClientError):
                await self._notices
        await self._client.close()

    def failed(self, problem: str, hint: str = "") -> FabricError:
        """Makes an error about this switch."""
        return FabricError(self.target.name, self.target.address, problem, hint)

    async def version(self) -> str:
        """Returns the version of P4Runtime that the switch speaks; empty if it is too old to say."""
        for pause in (*_PAUSES_S, None):
            try:
                answer = await self._client.request(p4r.CapabilitiesRequest())
                break
            except P4ClientError as error:
                if error.code == GRPCStatusCode.UNIMPLEMENTED:
                    return ""
                # A server that has only just started may drop its first connection; one that is not there refuses it.
                dropped = error.code == GRPCStatusCode.UNAVAILABLE and "refused" not in error.message.lower()
                if pause is None or not dropped:
                    raise self._explain(error, "asking for its version") from None
                await asyncio.sleep(pause)
        return str(answer.p4runtime_api_version)

    async def become_primary(self, election: int) -> None:
        """Takes part in the arbitration with an election id, and never pushes aside a primary with a higher one.

        A switch remembers the highest id that it has seen (P4Runtime 1.4, section 5.3).  If whoever had it has left, the next
        higher one is asked for.

        Raises:
            FabricError: Another controller is the primary.
        """
        answer = await self._arbitrate(election)
        if answer.status.code == GRPCStatusCode.NOT_FOUND:
            election = U128.decode(answer.election_id) + 1
            answer = await self._arbitrate(election)
        if answer.status.code != GRPCStatusCode.OK:
            primary = U128.decode(answer.election_id)
            hint = f"let it finish, or take over with an --election-id above {primary >> 64}"
            raise self.failed(f"another controller is its primary, with election id {primary}", hint)
        self._election = election
        self._notices = asyncio.create_task(self._listen())

    async def _arbitrate(self, election: int) -> p4r.MasterArbitrationUpdate:
        update = p4r.MasterArbitrationUpdate(device_id=self.target.device_id, election_id=U128.encode(election))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._client.send(p4r.StreamMessageRequest(arbitration=update))
                answer = await self._client.receive()
                while answer.WhichOneof("update") != "arbitration":
                    answer = await self._client.receive()
        except P4ClientError as error:
            if error.is_election_id_used:
                problem = f"another controller uses the election id {election}"
                raise self.failed(problem, "let it finish, or take over with a higher --election-id") from None
            if error.code == GRPCStatusCode.NOT_FOUND:
                raise self.failed(f"it has no device {self.target.device_id}", _DEVICE_HINT) from None
            raise self._explain(error, "arbitration") from None
        except TimeoutError:
            raise self.failed(f"no answer within {PATIENCE_S:g} s", _HINTS[GRPCStatusCode.DEADLINE_EXCEEDED]) from None
        except RuntimeError:  # finsy's word for a stream that the server has closed
            raise self.failed("it closed the connection", _HINTS[GRPCStatusCode.UNIMPLEMENTED]) from None
        return answer.arbitration

    async def _listen(self) -> None:
        """Keeps the stream, which is what makes this the primary, and notes when another takes over."""
        with contextlib.suppress(P4ClientError, RuntimeError):
            while True:
                message = await self._client.receive()
                if message.WhichOneof("update") == "arbitration" and message.arbitration.status.code != GRPCStatusCode.OK:
                    self._lost = "another controller has taken over"

    async def pipeline(self, *, whole: bool) -> p4r.ForwardingPipelineConfig | None:
        """Returns what the switch runs: its cookie, or the whole configuration; None if it runs nothing."""
        request = p4r.GetForwardingPipelineConfigRequest
        kind = request.ALL if whole else request.COOKIE_ONLY
        try:
            answer = await self._client.request(request(device_id=self.target.device_id, response_type=kind))
        except P4ClientError as error:
            if error.code == GRPCStatusCode.FAILED_PRECONDITION:
                return None
            if error.code == GRPCStatusCode.NOT_FOUND:
                raise self.failed(f"it has no device {self.target.device_id}", _DEVICE_HINT) from None
            raise self._explain(error, "reading its program") from None
        config = answer.config
        # Some targets answer with nothing where others answer with an error.
        return config if config.HasField("p4info" if whole else "cookie") else None

    async def set_pipeline(self, config: p4r.ForwardingPipelineConfig, *, commit: bool) -> None:
        """Has the switch verify a program, or verify and run it, which empties its tables."""
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=self.target.device_id,
            election_id=U128.encode(self._election),
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
            if commit
            else p4r.SetForwardingPipelineConfigRequest.VERIFY,
            config=config,
        )
        try:
            await self._client.set_pipeline(request)
        except P4ClientError as error:
            # Some targets cannot verify without committing; they find out then.
            if commit or error.code != GRPCStatusCode.UNIMPLEMENTED:
                raise self._explain(error, "setting its program" if commit else "verifying the program") from None

    async def read(self, entities: Sequence[p4r.Entity], *, optional: bool = False) -> list[p4r.Entity]:
        """Returns what matches; ``optional``: nothing, where the switch cannot read such."""
        found: list[p4r.Entity] = []
        try:
            async for answer in self._client.request_iter(p4r.ReadRequest(device_id=self.target.device_id, entities=entities)):
                found += answer.entities
        except P4ClientError as error:
            if not optional or error.code not in _CANNOT:
                raise self._explain(error, "reading its tables") from None
        return found

    async def write(self, updates: Sequence[p4r.Update], labels: Sequence[str] = ()) -> None:
        """Writes updates, which the switch may carry out in any order.

        Args:
            updates: What to write.
            labels: Each in words, for the error.

        Raises:
            FabricError: The switch refused; some of the updates may have been made.
        """
        if self._lost:
            raise self.failed(self._lost, _HINTS[GRPCStatusCode.PERMISSION_DENIED])
        request = p4r.WriteRequest(device_id=self.target.device_id, election_id=U128.encode(self._election), updates=updates)
        try:
            await self._client.request(request)
        except P4ClientError as error:
            raise self._refused(error, labels) from None
        self.written += len(updates)

    def _refused(self, error: P4ClientError, labels: Sequence[str]) -> FabricError:
        for index, detail in sorted(error.details.items()):
            what = labels[index] if index < len(labels) else f"update {index}"
            more = f" (and {len(error.details) - 1} more)" if len(error.details) > 1 else ""
            code = detail.canonical_code
            return self.failed(f"refused {what}: {code.name} {detail.message}{more}", _HINTS.get(code, ""))
        return self._explain(error, "writing")

    def _explain(self, error: P4ClientError, doing: str) -> FabricError:
        message = " ".join(error.message.split())[:200]
        if error.code == GRPCStatusCode.UNAVAILABLE and not self.target.tls:
            message = "no answer" if "refused" not in message.lower() else "connection refused"
        return self.failed(f"{doing}: {message or error.code.name}", _HINTS.get(error.code, ""))


def _credentials(tls: TLS | None) -> GRPCCredentialsTLS | None:
    if tls is None:
        return None
    return GRPCCredentialsTLS(cacert=tls.ca, cert=tls.certificate, private_key=tls.key, target_name_override=tls.name)


__all__ = ["Session"]
