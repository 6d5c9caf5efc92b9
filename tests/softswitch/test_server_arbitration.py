"""Arbitration against a model of the specification's rules: sessions come, bid, go; at most one primary, and who hears what."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

pytest.importorskip("finsy", reason="needs the extra p4")

from finsy.proto import stratum
from google.protobuf.any_pb2 import Any as AnyMessage

from softswitch.server.arbitration import Arbiter, Session
from softswitch.server.codes import Code, Refusal
from softswitch.server.roles import FULL, parse

ROLES = st.sampled_from(["", "a", "b"])
IDS = st.none() | st.integers(0, 6)


class Arbitration(RuleBasedStateMachine):
    """The model: live sessions with role and id, the highest id per role, and the primary by its definition."""

    sessions = Bundle("sessions")

    def __init__(self):
        super().__init__()
        self.arbiter = Arbiter()
        self.live = {}
        self.highest = {}
        self.demoted = set()

    def primary(self, role):
        """Who holds the highest id ever seen; one that stepped down, or left, holds it no more."""
        for session, (own, number) in self.live.items():
            if own == role and number is not None and number == self.highest.get(role):
                return session
        return None

    def peers(self, role):
        return {session for session, (own, _) in self.live.items() if own == role}

    def check_notices(self, notices, role, expected):
        assert {notice.session for notice in notices} == expected
        assert len(notices) == len(expected)
        primary = self.primary(role)
        for notice in notices:
            assert notice.election_id == self.highest.get(role)
            if notice.session is primary:
                assert notice.code == Code.OK
                assert notice is notices[-1]
            else:
                assert notice.code == (Code.NOT_FOUND if primary is None else Code.ALREADY_EXISTS)

    @rule(target=sessions, role=ROLES, number=IDS)
    def join(self, role, number):
        session = Session()
        self.bid(session, role, number)
        return session

    @rule(session=sessions, number=IDS)
    def bid_again(self, session, number):
        if session in self.live:
            self.bid(session, self.live[session][0], number)

    def bid(self, session, role, number):
        taken = any(other is not session and own == (role, number) for other, own in self.live.items())
        if number is not None and taken:
            with pytest.raises(Refusal, match="already used") as caught:
                self.arbiter.update(session, role, number)
            assert caught.value.code == Code.INVALID_ARGUMENT
            self.leave(session)
            return
        was_primary = self.primary(role) is session
        notices = self.arbiter.update(session, role, number)
        self.live[session] = (role, number)
        wins = number is not None and number >= self.highest.get(role, 0)
        if wins:
            self.highest[role] = number
        self.check_notices(notices, role, self.peers(role) if wins or was_primary else {session})

    @rule(session=sessions, role=ROLES)
    def change_role(self, session, role):
        if session in self.live and self.live[session][0] != role:
            with pytest.raises(Refusal) as caught:
                self.arbiter.update(session, role, 5)
            assert caught.value.code == Code.FAILED_PRECONDITION
            self.leave(session)

    @rule(session=consumes(sessions))
    def leave(self, session):
        role = self.live.get(session, ("", None))[0]
        was_primary = session in self.live and self.primary(role) is session
        self.live.pop(session, None)
        notices = self.arbiter.leave(session)
        self.check_notices(notices, role, self.peers(role) if was_primary else set())

    @invariant()
    def the_primary_is_who_it_should_be(self):
        for role in ("", "a", "b"):
            primary = self.primary(role)
            assert self.arbiter.primary(role) is primary
            for number in (None, *range(7)):
                if primary is not None and number is not None and number == self.live[primary][1]:
                    assert self.arbiter.check(role, number) is primary
                else:
                    known = role == "" or self.arbiter.primary(role) is not None or role in self.highest or self.peers(role)
                    with pytest.raises(Refusal) as caught:
                        self.arbiter.check(role, number)
                    assert caught.value.code in (Code.PERMISSION_DENIED, Code.NOT_FOUND)
                    assert not known or caught.value.code == Code.PERMISSION_DENIED


Arbitration.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestArbitration = Arbitration.TestCase


def config(**fields):
    message = AnyMessage()
    message.Pack(stratum.P4RoleConfig(**fields))
    return message


def test_streams_of_a_role_are_bounded():
    arbiter = Arbiter(max_sessions=2)
    arbiter.update(Session(), "", 1)
    arbiter.update(Session(), "", 2)
    with pytest.raises(Refusal) as caught:
        arbiter.update(Session(), "", 3)
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    arbiter.update(Session(), "other", 1)
    with pytest.raises(Refusal, match="roles") as caught:
        arbiter.update(Session(), "third", 1)
    assert caught.value.code == Code.RESOURCE_EXHAUSTED


def test_the_configuration_of_the_latest_primary_holds():
    arbiter = Arbiter()
    first, second, backup = Session(), Session(), Session()
    arbiter.update(first, "a", 1, config=config(shared_p4_ids=[5]))
    assert arbiter.policy("a").writable == {5}
    arbiter.update(backup, "a", 0, config=config(shared_p4_ids=[7]))
    assert arbiter.policy("a").writable == {5}
    notices = arbiter.update(second, "a", 2, config=config(exclusive_p4_ids=[6], shared_p4_ids=[5]))
    assert arbiter.policy("a").writable == {5, 6}
    assert arbiter.reserved("") == {6}
    assert arbiter.reserved("a") == frozenset()
    assert all(notice.config == config(exclusive_p4_ids=[6], shared_p4_ids=[5]) for notice in notices)


def test_role_configurations():
    assert parse(None) is FULL
    policy = parse(config(receives_packet_ins=True, packet_in_filter={"metadata_id": 1, "value": b"\x05"}))
    assert policy.writable is None
    assert not policy.push_pipeline
    assert policy.wants([(1, b"\x05"), (2, b"\x00")])
    assert not policy.wants([(1, b"\x06")])
    assert not parse(config()).wants([])
    other = AnyMessage()
    other.Pack(stratum.P4RoleConfig.PacketFilter())
    broken = AnyMessage(type_url="type.googleapis.com/stratum.P4RoleConfig", value=b"\xff\xff")
    for wrong in (other, broken):
        with pytest.raises(Refusal, match=r"role\.config") as caught:
            parse(wrong)
        assert caught.value.code == Code.INVALID_ARGUMENT
