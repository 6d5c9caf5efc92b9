"""Actions on the wire and in the runtime (P4Runtime specification, "Action Specification" and "One Shot ... Programming")."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from finsy.proto import p4r

from softswitch.runtime import Call, GroupRef, MemberRef, OneShot, OneShotAction
from softswitch.runtime.actions import Action
from softswitch.server.bytestrings import decode, encode
from softswitch.server.codes import Code, Refusal, invalid
from softswitch.server.schema import ActionSchema, Choice, ProfileSchema, Scope, TableSchema

_ActionSet = p4r.ActionProfileActionSet
PORT_BITS = 32


@dataclass(frozen=True, slots=True)
class WireOneShot(OneShot):
    """A one-shot group that remembers how the client put it, so that a read returns what was written."""

    mode: int = 0
    semantics: int = 0


def read_call(choices: Mapping[int, Choice], message: p4r.Action, forbidden: Scope) -> Call:
    """Returns the runtime's call.

    Args:
        choices: Actions by P4 id.
        message: As the client sent it.
        forbidden: Actions of this scope cannot be used here: "default" for entries and members, "table" for a default action.

    Raises:
        Refusal: INVALID_ARGUMENT, or PERMISSION_DENIED for the scope.
    """
    choice = choices.get(message.action_id)
    if choice is None:
        raise invalid(f"action id {message.action_id:#x} is not one of the table's actions")
    action = choice.action
    if choice.scope == forbidden:
        where = "as a default action" if forbidden == "table" else "in a table entry"
        raise Refusal(Code.PERMISSION_DENIED, f"action {action.name} cannot be used {where}")
    parameters = action.parameters
    values: list[int | None] = [None] * len(parameters)
    for param in message.params:
        position = action.positions.get(param.param_id)
        if position is None:
            raise invalid(f"action {action.name} has no parameter with id {param.param_id}")
        _, name, width = parameters[position]
        if values[position] is not None:
            raise invalid(f"parameter {name} of action {action.name} is given twice")
        values[position] = decode(param.value, width, name)
    result = tuple([value for value in values if value is not None])
    if len(result) != len(parameters):
        missing = parameters[values.index(None)][1]
        raise invalid(f"parameter {missing} of action {action.name} is missing")
    return Call(choice.index, result)


def write_call(by_index: Mapping[int, ActionSchema], call: Call) -> p4r.Action | None:
    """Returns the message of a call, or None if the P4Info hides the action."""
    action = by_index.get(call.action)
    if action is None:
        return None
    params = [
        p4r.Action.Param(param_id=number, value=encode(value))
        for (number, _, _), value in zip(action.parameters, call.data, strict=True)
    ]
    return p4r.Action(action_id=action.id, params=params)


def watch_port(message: p4r.ActionProfileAction | p4r.ActionProfileGroup.Member, ports: Container[int]) -> int | None:
    """Returns the port whose state a member depends on, or None.

    Args:
        message: A member; ``watch`` is the deprecated form of ``watch_port``.
        ports: Those that the device has.
    """
    kind = message.WhichOneof("watch_kind")
    if kind == "watch_port" and message.watch_port:
        port = decode(message.watch_port, PORT_BITS, "watch_port")
    elif kind == "watch" and message.watch:
        port = message.watch & 0xFFFFFFFF
    else:
        return None
    if port not in ports:
        raise invalid(f"watch_port: the device has no port {port}")
    return port


def read_weight(profile: ProfileSchema, weight: int, by_members: bool) -> int:
    """Returns a member's weight in the runtime (1 if the profile has none)."""
    if profile.weights_disallowed:
        if weight:
            raise invalid(f"action profile {profile.name} has no weights: weight must be 0")
        return 1
    if weight <= 0:
        raise invalid(f"weight {weight} is not positive")
    if by_members and 0 < profile.max_member_weight < weight:
        raise invalid(f"weight {weight} is more than the {profile.max_member_weight} of a member of {profile.name}")
    return weight


def read_one_shot(profile: ProfileSchema, message: p4r.ActionProfileActionSet, ports: Container[int]) -> OneShot:
    """Returns the runtime's one-shot group."""
    if message.action_selection_mode not in (_ActionSet.DEFAULT_MODE_DETERMINED_BY_ACTION_SELECTOR, _ActionSet.HASH):
        raise Refusal(Code.UNIMPLEMENTED, "the only selection mode is by hash")
    own = _ActionSet.SUM_OF_MEMBERS if profile.by_members else _ActionSet.SUM_OF_WEIGHTS
    if message.size_semantics not in (_ActionSet.DEFAULT_SIZE_DETERMINED_BY_ACTION_SELECTOR, own):
        raise Refusal(Code.UNIMPLEMENTED, "size semantics are those of the action selector")
    actions = []
    for item in message.action_profile_actions:
        if not item.HasField("action"):
            raise invalid("an action of an action set is missing")
        call = read_call(profile.choices, item.action, "default")
        weight = read_weight(profile, item.weight, profile.by_members)
        actions.append(OneShotAction(call, weight, watch_port(item, ports)))
    size = len(actions) if profile.by_members else sum(action.weight for action in actions)
    if 0 < profile.max_group_size < size:
        raise invalid(f"a group of {size} is larger than the {profile.max_group_size} that {profile.name} allows")
    return WireOneShot(tuple(actions), message.action_selection_mode, message.size_semantics)


def read_action(table: TableSchema, message: p4r.TableAction, ports: Container[int]) -> Action:
    """Returns the runtime's action of an entry (not of the default entry).

    Raises:
        Refusal: INVALID_ARGUMENT for a kind that the table does not take, and see ``read_call``.
    """
    kind = message.WhichOneof("type")
    profile = table.profile
    if profile is None:
        if kind != "action":
            raise invalid(f"the table is direct and takes an action, not {kind}")
        return read_call(table.choices, message.action, "default")
    if kind == "action_profile_member_id":
        return MemberRef(message.action_profile_member_id)
    if profile.selector and kind == "action_profile_group_id":
        return GroupRef(message.action_profile_group_id)
    if profile.selector and kind == "action_profile_action_set":
        return read_one_shot(profile, message.action_profile_action_set, ports)
    raise invalid(f"the table has the implementation {profile.name} and does not take {kind}")


def write_action(table: TableSchema, action: Action) -> p4r.TableAction | None:
    """Returns the message of an entry's action, or None if the P4Info hides it."""
    if isinstance(action, Call):
        call = write_call(table.by_index, action)
        return None if call is None else p4r.TableAction(action=call)
    if isinstance(action, MemberRef):
        return p4r.TableAction(action_profile_member_id=action.id)
    if isinstance(action, GroupRef):
        return p4r.TableAction(action_profile_group_id=action.id)
    profile = table.profile
    assert profile is not None
    message = p4r.ActionProfileActionSet()
    if isinstance(action, WireOneShot):
        message.action_selection_mode = action.mode  # type: ignore[assignment]
        message.size_semantics = action.semantics  # type: ignore[assignment]
    for item in action.actions:
        added = message.action_profile_actions.add(weight=0 if profile.weights_disallowed else item.weight)
        call = write_call(profile.by_index, item.call)
        if call is not None:
            added.action.CopyFrom(call)
        if item.watch_port is not None:
            added.watch_port = encode(item.watch_port)
    return p4r.TableAction(action_profile_action_set=message)


__all__ = ["WireOneShot", "read_action", "read_call", "read_one_shot", "read_weight", "watch_port", "write_action", "write_call"]
