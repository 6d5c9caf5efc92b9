"""NVIDIA Cumulus Linux 5.4 or newer: commands for NVUE, with profiles of their own.

Maps, queues and the scheduler are changed in the profile ``default-global``; thresholds stand in profiles for the ports that
have them. RED drops packets without ECT where ECN marks the others."""

from __future__ import annotations

from typing import Final

from dlcp.fabric.export.commodity import CLASSES, SwitchPlan, ramp

_QOS: Final = "nv set qos"


def config(plan: SwitchPlan) -> str:
    """Returns the commands, one a line."""
    lines = [f"{_QOS} mapping default-global trust l3"]
    for queue in range(CLASSES):
        dscp = ",".join(str(value) for value, its in enumerate(plan.queue_of) if its == queue)
        if dscp:
            lines.append(f"{_QOS} mapping default-global dscp {dscp} switch-priority {queue}")
        lines.append(f"{_QOS} egress-queue-mapping default-global switch-priority {queue} traffic-class {queue}")
    lines.append(f"{_QOS} egress-scheduler default-global traffic-class 0-{CLASSES - 1} mode strict")
    profiles: dict[tuple[int, int], str] = {}
    for port in plan.ports:
        thresholds = ramp(port)
        if thresholds is None:
            continue
        if thresholds not in profiles:
            name = profiles[thresholds] = f"dlcp-{len(profiles)}"
            # What is in the last one is control, and is never dropped early.
            where = f"{_QOS} congestion-control {name} traffic-class 0-{CLASSES - 2}"
            lines += [
                f"{where} min-threshold {thresholds[0]}",
                f"{where} max-threshold {thresholds[1]}",
                f"{where} probability 100",
                f"{where} ecn enable",
                f"{where} red enable",
            ]
        lines.append(f"nv set interface {port.interface} qos congestion-control profile {profiles[thresholds]}")
    return "\n".join([*lines, "nv config apply"]) + "\n"


__all__ = ["config"]
