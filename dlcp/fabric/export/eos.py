"""Arista EOS: maps from DSCP to traffic class to queue, and a QoS profile for ports with equal thresholds.

``random-detect drop`` is for packets without ECT, ``random-detect ecn`` marks the others; each has thresholds of its own.
"""

from __future__ import annotations

from dlcp.fabric.export.commodity import CLASSES, PortPlan, SwitchPlan


def config(plan: SwitchPlan) -> str:
    """Returns lines for the configuration mode."""
    lines = []
    for queue in range(CLASSES):
        dscp = " ".join(str(value) for value, its in enumerate(plan.queue_of) if its == queue)
        if dscp:
            lines.append(f"qos map dscp {dscp} to traffic-class {queue}")
        lines.append(f"qos map traffic-class {queue} to tx-queue {queue}")
    profiles: dict[tuple[int | None, int | None], str] = {}
    attached = []
    for port in plan.ports:
        key = (port.mark_bytes, port.drop_bytes)
        if key not in profiles:
            profiles[key] = f"dlcp-{len(profiles)}"
            lines += ["!", f"qos profile {profiles[key]}", "   qos trust dscp"]
            for queue in range(CLASSES):
                lines += ["   !", f"   tx-queue {queue}", "      priority strict"]
                if queue < CLASSES - 1:  # what is in the last one is control, and is never dropped early
                    lines += [f"      {line}" for line in _thresholds(port)]
        attached += ["!", f"interface {port.interface}", f"   service-profile {profiles[key]}"]
    return "\n".join([*lines, *attached, "!"]) + "\n"


def _thresholds(port: PortPlan) -> list[str]:
    lines = []
    if port.drop_bytes is not None:
        at = f"minimum-threshold {port.drop_bytes} bytes maximum-threshold {port.drop_bytes} bytes"
        lines.append(f"random-detect drop {at} drop-probability 100")
    if port.mark_bytes is not None:
        at = f"minimum-threshold {port.mark_bytes} bytes maximum-threshold {port.mark_bytes} bytes"
        lines.append(f"random-detect ecn {at} max-mark-probability 100 weight 0")
    return lines


__all__ = ["config"]
