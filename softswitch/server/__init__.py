"""P4Runtime server of the switch, version 1.5 of the API.

It has all RPCs, pipeline actions, atomicity modes and entities of the specification, except for what answers UNIMPLEMENTED:

- counters per colour of meters, and excess bursts of single-rate meters;
- direct counters and meters of default entries;
- one-shot groups that select at random, or whose size counts otherwise than their selector's;
- externs, and architecture-specific stream messages.

What the specification leaves open: byte strings that do not fit get INVALID_ARGUMENT; ids that the P4Info does not have get
NOT_FOUND; the other updates of a batch that rolls back get ABORTED; a group all of whose members' watch ports are down does
nothing; entries that a program declares cannot be written, const or not, as BMv2's JSON does not tell; translated types
(@p4runtime_translation) have the same numbers on both sides; roles are configured by ``stratum.P4RoleConfig``.
"""

from __future__ import annotations

from softswitch.server.codes import Code, Refusal
from softswitch.server.device import Device, InMemoryDevice
from softswitch.server.server import API_VERSION, DEFAULT_ADDRESS, P4RuntimeServer, TLSFiles

__all__ = ["API_VERSION", "DEFAULT_ADDRESS", "Code", "Device", "InMemoryDevice", "P4RuntimeServer", "Refusal", "TLSFiles"]
