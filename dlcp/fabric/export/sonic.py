"""SONiC: tables of its configuration database, to be merged with ``config load``.

Names and fields are those of ``WRED_PROFILE``, ``QUEUE`` and the QoS maps in SONiC's configuration manual.  A WRED profile has
one pair of thresholds for each colour, which holds for dropping as for marking; all colours get the same."""

from __future__ import annotations

import json
from typing import Any, Final

from dlcp.fabric.export.commodity import CLASSES, SwitchPlan, ramp

_NAME: Final = "DLCP"
_COLOURS: Final = ("green", "yellow", "red")


def config(plan: SwitchPlan) -> str:
    """Returns the tables as JSON."""
    profiles: dict[tuple[int, int], str] = {}
    queues: dict[str, Any] = {}
    for port in plan.ports:
        thresholds = ramp(port)
        if thresholds is not None and thresholds not in profiles:
            profiles[thresholds] = f"{_NAME}{len(profiles) or ''}"
        for queue in range(CLASSES):
            settings = {"scheduler": f"{_NAME}_STRICT"}
            if thresholds is not None and queue < CLASSES - 1:  # what is in the last one is control, and is never dropped early
                settings["wred_profile"] = profiles[thresholds]
            queues[f"{port.interface}|{queue}"] = settings
    same = {_NAME: {str(queue): str(queue) for queue in range(CLASSES)}}
    document = {
        "DSCP_TO_TC_MAP": {_NAME: {str(dscp): str(queue) for dscp, queue in enumerate(plan.queue_of)}},
        "TC_TO_QUEUE_MAP": same,
        "TC_TO_PRIORITY_GROUP_MAP": {_NAME: {str(queue): "0" for queue in range(CLASSES)}},
        "SCHEDULER": {f"{_NAME}_STRICT": {"type": "STRICT"}},
        "WRED_PROFILE": {name: _profile(*thresholds) for thresholds, name in profiles.items()},
        "PORT_QOS_MAP": {
            port.interface: {"dscp_to_tc_map": _NAME, "tc_to_queue_map": _NAME, "tc_to_pg_map": _NAME} for port in plan.ports
        },
        "QUEUE": queues,
    }
    return json.dumps(document, indent=4) + "\n"


def _profile(low: int, high: int) -> dict[str, str]:
    profile = {"ecn": "ecn_all"}
    for colour in _COLOURS:
        profile[f"wred_{colour}_enable"] = "true"
        profile[f"{colour}_min_threshold"] = str(low)
        profile[f"{colour}_max_threshold"] = str(high)
        profile[f"{colour}_drop_probability"] = "100"
    return profile


__all__ = ["config"]
