"""Linux: one script that configures the ports of a switch with tc, needing neither this package nor a compiler there.

The script is :mod:`dlcp.fabric.export.tc_script`, word for word, and a plan in JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from dlcp.fabric.export import tc_script
from dlcp.fabric.export.classifier import COUNTERS, FRAME_OVERHEAD, MAP_BYTES, Thresholds, classifier
from dlcp.fabric.export.commodity import ETHERNET_BYTES, PortPlan, SwitchPlan

FIRST_MINOR: Final = 0x10
_BURST_SECONDS: Final = 0.001
_WORDS: Final = 64
"""Hexadecimal digits of code to a line."""


def script(plan: SwitchPlan) -> str:
    """Returns the script."""
    document = {
        "switch": plan.switch,
        "summary": f"network {plan.topology}; droppable packets are those with ECN {plan.droppable}",
        "ports": [_port(plan, port) for port in plan.ports],
    }
    text = json.dumps(document, indent=1)
    if '"""' in text or "\\" in text:
        raise ValueError("a name does not fit into the script")
    code = Path(tc_script.__file__).read_text(encoding="utf-8")
    run = 'if __name__ == "__main__":\n    sys.exit(main(json.loads(PLAN)))\n'
    return f'#!/usr/bin/env python3\n{code}\n\nPLAN = """\n{text}\n"""\n\n{run}'


def _port(plan: SwitchPlan, port: PortPlan) -> dict[str, Any]:
    code, maps = classifier(
        Thresholds(
            rate_bps=port.rate_bps,
            mark_bytes=port.mark_bytes,
            drop_bytes=port.drop_bytes,
            limit_bytes=port.limit_bytes,
            dscp=plan.dscp,
            droppable_ecn=plan.droppable_bits,
            first_minor=FIRST_MINOR,
        )
    )
    words = code.hex()
    frame = port.mtu + ETHERNET_BYTES
    return {
        "port": port.number,
        "peer": port.peer,
        "interface": port.interface,
        "rate_bps": port.rate_bps,
        "limit_bytes": port.limit_bytes,
        "mark_bytes": port.mark_bytes,
        "drop_bytes": port.drop_bytes,
        "burst": str(max(2 * frame, round(port.rate_bps / 8 * _BURST_SECONDS))),
        "quantum": frame,
        "overhead": FRAME_OVERHEAD,
        "minor": FIRST_MINOR,
        "counters": list(COUNTERS),
        "map_bytes": MAP_BYTES,
        "maps": maps,
        "code": [words[start : start + _WORDS] for start in range(0, len(words), _WORDS)],
    }


__all__ = ["FIRST_MINOR", "script"]
