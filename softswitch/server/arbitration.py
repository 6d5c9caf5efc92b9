"""Who may write: sessions, roles and election ids (P4Runtime specification, "Client Arbitration and Controller Replication").

For each role of a device the primary is the live session whose election id is the highest that the device has ever seen for that
role.  So when a primary leaves, nobody is primary until a session presents an id at least as high; backups are told, and may do
so.  Without an election id a session stays a backup for ever.  All of this is plain state and return values; the caller does the
sending.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from google.protobuf.any_pb2 import Any as AnyMessage

from softswitch.server import roles
from softswitch.server.codes import Code, Refusal, invalid

MAX_SESSIONS = 64


@dataclass(eq=False, slots=True)
class Session:
    """What arbitration knows of one stream.

    Attributes:
        role: Name of its role; "" is the default role.  None before the first accepted update.
        named: The client sent a role message, so answers carry one too.
        election_id: None is lower than every number.
    """

    role: str | None = None
    named: bool = False
    election_id: int | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """A ``MasterArbitrationUpdate`` to send.

    Attributes:
        election_id: Highest id ever seen for the role, or None.
        code: OK to the primary; ALREADY_EXISTS to backups if there is a primary, NOT_FOUND if there is none.
        config: Role configuration of the most recent primary.
    """

    session: Session
    election_id: int | None
    code: Code
    message: str
    config: AnyMessage | None


@dataclass(eq=False, slots=True)
class _Role:
    sessions: list[Session] = field(default_factory=list)
    primary: Session | None = None
    highest: int | None = None
    config: AnyMessage | None = None
    policy: roles.RolePolicy = roles.FULL

    def notices(self, to: list[Session]) -> Iterator[Notice]:
        """The primary is told last, so that it starts only after the others know."""
        for session in sorted(to, key=lambda session: session is self.primary):
            if session is self.primary:
                code, message = Code.OK, "Is primary"
            elif self.primary is not None:
                code, message = Code.ALREADY_EXISTS, "Is backup"
            else:
                code, message = Code.NOT_FOUND, "Is backup, and there is no primary"
            yield Notice(session, self.highest, code, message, self.config)


class Arbiter:
    """Sessions of one device.

    Args:
        max_sessions: Live sessions that a role may have.
    """

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._roles: dict[str, _Role] = {"": _Role()}
        self._max_sessions = max_sessions

    def update(
        self, session: Session, role: str, election_id: int | None, *, named: bool = False, config: AnyMessage | None = None
    ) -> list[Notice]:
        """Takes the update that ``session`` sent, its first or a later one.

        Returns:
            Who is to be told what, in this order.

        Raises:
            Refusal: The stream must be ended with this status; then call ``leave``.
        """
        state = self._roles.get(role)
        if session.role is not None and session.role != role:
            raise Refusal(Code.FAILED_PRECONDITION, f"the role of a stream cannot change from {session.role!r} to {role!r}")
        policy = roles.parse(config)
        if state is not None and election_id is not None:
            if any(other.election_id == election_id for other in state.sessions if other is not session):
                raise invalid(f"election id {election_id} is already used by another connection with the same role")
        if session.role is None:
            if state is not None and len(state.sessions) >= self._max_sessions:
                raise Refusal(Code.RESOURCE_EXHAUSTED, f"role {role!r} has {self._max_sessions} sessions already")
            if state is None:
                if len(self._roles) >= self._max_sessions:
                    raise Refusal(Code.RESOURCE_EXHAUSTED, f"the device has {self._max_sessions} roles already")
                state = self._roles[role] = _Role()
            session.role = role
            state.sessions.append(session)
        assert state is not None
        session.named = named
        session.election_id = election_id
        if election_id is not None and (state.highest is None or election_id >= state.highest):
            state.highest = election_id
            state.primary = session
            state.config = config
            state.policy = policy
            return list(state.notices(state.sessions))
        if state.primary is session:
            state.primary = None
            return list(state.notices(state.sessions))
        return list(state.notices([session]))

    def leave(self, session: Session) -> list[Notice]:
        """The stream of ``session`` ended; returns who is to be told what."""
        state = self._roles.get(session.role) if session.role is not None else None
        if state is None or session not in state.sessions:
            return []
        state.sessions.remove(session)
        if state.primary is not session:
            return []
        state.primary = None
        return list(state.notices(state.sessions))

    def primary(self, role: str = "") -> Session | None:
        """Returns the primary of a role, if there is one."""
        state = self._roles.get(role)
        return state.primary if state is not None else None

    def primaries(self) -> list[tuple[Session, roles.RolePolicy]]:
        """Returns the primaries of all roles, with what they may do."""
        return [(state.primary, state.policy) for state in self._roles.values() if state.primary is not None]

    def policy(self, role: str) -> roles.RolePolicy:
        """Returns what a role may do.

        Raises:
            Refusal: NOT_FOUND.
        """
        state = self._roles.get(role)
        if state is None:
            raise Refusal(Code.NOT_FOUND, f"there is no role {role!r}")
        return state.policy

    def reserved(self, role: str) -> frozenset[int]:
        """Returns the ids that other roles have exclusively."""
        return frozenset().union(*(state.policy.exclusive for name, state in self._roles.items() if name != role))

    def check(self, role: str, election_id: int | None) -> Session:
        """Returns the primary that a request with this role and election id comes from.

        Raises:
            Refusal: NOT_FOUND (no such role) or PERMISSION_DENIED (not the primary).
        """
        state = self._roles.get(role)
        if state is None:
            raise Refusal(Code.NOT_FOUND, f"there is no role {role!r}")
        if state.primary is None:
            raise Refusal(
                Code.PERMISSION_DENIED, "there is no primary: open a StreamChannel and send a MasterArbitrationUpdate first"
            )
        if election_id is None or election_id != state.primary.election_id:
            raise Refusal(Code.PERMISSION_DENIED, f"not primary: the primary's election id is {state.primary.election_id}")
        return state.primary


__all__ = ["MAX_SESSIONS", "Arbiter", "Notice", "Session"]
