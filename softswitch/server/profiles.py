"""Members and groups of action profiles (P4Runtime specification, "ActionProfileMember & ActionProfileGroup")."""

from __future__ import annotations

from typing import Any

from finsy.proto import p4r

from softswitch.runtime import GroupMember
from softswitch.server.actions import read_call, read_weight, watch_port, write_call
from softswitch.server.bytestrings import encode
from softswitch.server.codes import Code, Refusal, invalid
from softswitch.server.schema import ProfileSchema, Schema
from softswitch.server.tables import DELETE, INSERT
from softswitch.server.target import Operation, Query, Target


def find_profile(schema: Schema, number: int) -> ProfileSchema:
    """Returns the profile with a P4 id.

    Raises:
        Refusal: NOT_FOUND, or INVALID_ARGUMENT for 0.
    """
    if number == 0:
        raise invalid("action_profile_id is not set")
    profile = schema.profiles.get(number)
    if profile is None:
        raise Refusal(Code.NOT_FOUND, f"there is no action profile with id {number:#x}")
    return profile


def plan_member(schema: Schema, kind: int, message: p4r.ActionProfileMember) -> Operation:
    """Plans an update of a member."""
    profile = find_profile(schema, message.action_profile_id)
    name, number = profile.name, message.member_id
    if number == 0:
        raise invalid("member_id is not set")
    if kind == DELETE:
        return lambda target: target.runtime.profiles[name].delete_member(number)
    if not message.HasField("action"):
        raise invalid(f"member {number} of {name} needs an action")
    call = read_call(profile.choices, message.action, "default")
    if kind == INSERT:
        return lambda target: target.runtime.profiles[name].insert_member(number, call)
    return lambda target: target.runtime.profiles[name].modify_member(number, call)


def plan_group(schema: Schema, kind: int, message: p4r.ActionProfileGroup, target: Target) -> Operation:
    """Plans an update of a group."""
    profile = find_profile(schema, message.action_profile_id)
    name, number, size = profile.name, message.group_id, message.max_size
    if number == 0:
        raise invalid("group_id is not set")
    if not profile.selector:
        raise invalid(f"action profile {name} has no selector, so it has no groups")
    key = (profile.id, number)
    if kind == DELETE:

        def delete(target: Target) -> None:
            target.runtime.profiles[name].delete_group(number)
            target.sizes.pop(key, None)

        return delete
    if size < 0 or (profile.max_group_size and not 0 < size <= profile.max_group_size):
        least = 1 if profile.max_group_size else 0
        raise invalid(f"max_size {size} is not in {least}..{profile.max_group_size or 'any'}")
    members = [
        GroupMember(item.member_id, read_weight(profile, item.weight, profile.by_members), watch_port(item, target.ports))
        for item in message.members
    ]
    used = len(members) if profile.by_members else sum(member.weight for member in members)
    if 0 < size < used:
        raise Refusal(Code.RESOURCE_EXHAUSTED, f"group {number} of {name} holds {used}, more than its max_size of {size}")
    if kind == INSERT:

        def insert(target: Target) -> None:
            target.runtime.profiles[name].insert_group(number, members)
            target.sizes[key] = size

        return insert

    def modify(target: Target) -> None:
        state = target.runtime.profiles[name]
        state.group(number)
        if target.sizes.get(key, 0) != size:
            raise invalid(f"max_size of group {number} of {name} cannot change from {target.sizes.get(key, 0)} to {size}")
        state.modify_group(number, members)

    return modify


def read_members(schema: Schema, message: p4r.ActionProfileMember) -> list[Query]:
    """Returns the queries for one member, all of a profile, or all."""
    wanted = message.member_id

    def query(profile: ProfileSchema) -> Query:
        def gather(target: Target) -> list[Any]:
            members = target.runtime.profiles[profile.name].members
            return [(member.id, member.call) for member in members.values() if wanted in (0, member.id)]

        def encode_row(row: Any) -> p4r.Entity:
            number, call = row
            member = p4r.ActionProfileMember(
                action_profile_id=profile.id, member_id=number, action=write_call(profile.by_index, call)
            )
            return p4r.Entity(action_profile_member=member)

        return gather, encode_row

    return [query(profile) for profile in _selected(schema, message.action_profile_id)]


def read_groups(schema: Schema, message: p4r.ActionProfileGroup) -> list[Query]:
    """Returns the queries for one group, all of a profile, or all."""
    wanted = message.group_id

    def query(profile: ProfileSchema) -> Query:
        def gather(target: Target) -> list[Any]:
            groups = target.runtime.profiles[profile.name].groups
            return [
                (group.id, group.members, target.sizes.get((profile.id, group.id), 0))
                for group in groups.values()
                if wanted in (0, group.id)
            ]

        def encode_row(row: Any) -> p4r.Entity:
            number, members, size = row
            group = p4r.ActionProfileGroup(action_profile_id=profile.id, group_id=number, max_size=size)
            for member in members:
                added = group.members.add(member_id=member.member, weight=0 if profile.weights_disallowed else member.weight)
                if member.watch_port is not None:
                    added.watch_port = encode(member.watch_port)
            return p4r.Entity(action_profile_group=group)

        return gather, encode_row

    return [query(profile) for profile in _selected(schema, message.action_profile_id) if profile.selector]


def _selected(schema: Schema, number: int) -> list[ProfileSchema]:
    return list(schema.profiles.values()) if number == 0 else [find_profile(schema, number)]


__all__ = ["find_profile", "plan_group", "plan_member", "read_groups", "read_members"]
