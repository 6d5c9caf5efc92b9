"""Configuration for switches without P4: what eight queues, DSCP and ECN can enforce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dlcp.errors import ConfigError
from dlcp.fabric.export import eos, nvue, sonic, tc
from dlcp.fabric.export.commodity import SwitchPlan, plan
from dlcp.policy import Policy
from dlcp.topology import Topology

VENDORS: Final[dict[str, tuple[str, Callable[[SwitchPlan], str]]]] = {
    "sonic": ("Ethernet{port0x4}", sonic.config),
    "nvue": ("swp{port}", nvue.config),
    "eos": ("Ethernet{port}", eos.config),
    "tc": ("swp{port}", tc.script),
}
"""Vendor to pattern of interface names, and to what writes the configuration."""


def export_text(vendor: str, topology: Topology, policy: Policy, switch: str, pattern: str | None = None) -> str:
    """Returns the configuration of a switch.

    Args:
        vendor: One of :data:`VENDORS`. topology: The network. policy: The policy. switch: Name of the switch. pattern: Names
        of its interfaces: ``{port}`` is the number of the port, ``{port0}`` one less, ``{port0x4}`` four times that.

    Raises:
        ConfigError: There is no such vendor or switch, or the pattern gives several ports one name.
    """
    if vendor not in VENDORS:
        raise ConfigError("(command line)", "--vendor", f"{vendor!r} is not known", ", ".join(VENDORS))
    usual, write = VENDORS[vendor]
    return write(plan(topology, policy, switch, usual if pattern is None else pattern))


__all__ = ["VENDORS", "export_text"]
