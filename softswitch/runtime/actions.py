"""What a table entry does: a direct action, a member or group of an action profile, or a one-shot group.

The four kinds of P4Runtime's ``TableAction`` (specification, section 9.1.2 and 9.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softswitch.errors import BadValue
from softswitch.program.model import ActionModel


@dataclass(frozen=True, slots=True)
class Call:
    """An action with its arguments.

    Attributes:
        action: Index into the table's ``TableModel.actions`` (for members: into ``Profile.actions``, which is the same list).
        data: One non-negative int a parameter.
    """

    action: int
    data: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberRef:
    """The member of the table's action profile with this id."""

    id: int


@dataclass(frozen=True, slots=True)
class GroupRef:
    """The group of the table's action selector with this id."""

    id: int


@dataclass(frozen=True, slots=True)
class OneShotAction:
    """One alternative of a one-shot group; it is left out of the selection while ``watch_port`` is down."""

    call: Call
    weight: int = 1
    watch_port: int | None = None


@dataclass(frozen=True, slots=True)
class OneShot:
    """A group that lives and dies with its entry (P4Runtime's ``ActionProfileActionSet``)."""

    actions: tuple[OneShotAction, ...]


Action = Call | MemberRef | GroupRef | OneShot


def check_call(call: Call, actions: Sequence[ActionModel], where: str) -> None:
    """Raise ``BadValue`` unless ``call`` names one of ``actions`` and each argument fits its parameter."""
    if not 0 <= call.action < len(actions):
        raise BadValue(f"{where}: there is no action number {call.action}")
    action = actions[call.action]
    if len(call.data) != len(action.parameters):
        raise BadValue(f"{where}: action {action.name} takes {len(action.parameters)} parameters, not {len(call.data)}")
    for value, parameter in zip(call.data, action.parameters, strict=True):
        if value < 0 or value >> parameter.width:
            raise BadValue(f"{where}: {parameter.name} of action {action.name} does not fit {parameter.width} bits: {value}")


__all__ = ["Action", "Call", "GroupRef", "MemberRef", "OneShot", "OneShotAction", "check_call"]
