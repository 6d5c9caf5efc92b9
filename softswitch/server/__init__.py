"""P4Runtime server of the switch (P4Runtime specification 1.5): arbitration, pipeline, entities, streams."""

from __future__ import annotations

from softswitch.server.codes import Code, Refusal
from softswitch.server.device import Device, InMemoryDevice
from softswitch.server.server import API_VERSION, DEFAULT_ADDRESS, P4RuntimeServer, TLSFiles

__all__ = ["API_VERSION", "DEFAULT_ADDRESS", "Code", "Device", "InMemoryDevice", "P4RuntimeServer", "Refusal", "TLSFiles"]
