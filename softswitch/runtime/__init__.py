"""State of the switch that the control plane writes and the data plane reads."""

from __future__ import annotations

from softswitch.runtime.actions import Action, Call, GroupRef, MemberRef, OneShot, OneShotAction
from softswitch.runtime.arrays import CounterArray, MeterArray, RegisterArray
from softswitch.runtime.digest import Digest, DigestQueue
from softswitch.runtime.entry import GROUP, NOTHING, Entry, Hit
from softswitch.runtime.meter import GREEN, RED, YELLOW, Meter, MeterConfig
from softswitch.runtime.profile import Group, GroupMember, Member, Profile
from softswitch.runtime.replication import CloneSession, CloneSessions, MulticastGroup, MulticastGroups, Replica
from softswitch.runtime.state import Runtime
from softswitch.runtime.table import Table
from softswitch.runtime.valueset import ValueSet

__all__ = [
    "GREEN",
    "GROUP",
    "NOTHING",
    "RED",
    "YELLOW",
    "Action",
    "Call",
    "CloneSession",
    "CloneSessions",
    "CounterArray",
    "Digest",
    "DigestQueue",
    "Entry",
    "Group",
    "GroupMember",
    "GroupRef",
    "Hit",
    "Member",
    "MemberRef",
    "Meter",
    "MeterArray",
    "MeterConfig",
    "MulticastGroup",
    "MulticastGroups",
    "OneShot",
    "OneShotAction",
    "Profile",
    "RegisterArray",
    "Replica",
    "Runtime",
    "Table",
    "ValueSet",
]
