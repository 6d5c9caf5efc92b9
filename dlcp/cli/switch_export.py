"""``dlcp switch export``: configuration for switches without P4."""

from __future__ import annotations

import argparse
import json
import sys

from dlcp.fabric.export import export_text
from dlcp.policy import Policy
from dlcp.topology import Topology


def export(args: argparse.Namespace) -> int:
    """Prints the configuration of one switch."""
    topology = Topology.from_toml(args.topology)
    policy = Policy() if args.policy is None else Policy.from_toml(args.policy)
    text = export_text(args.vendor, topology, policy, args.switch, args.interface)
    if args.json:
        json.dump({"vendor": args.vendor, "switch": args.switch, "text": text}, sys.stdout, indent=2)
        print()
    else:
        sys.stdout.write(text)
    return 0


__all__ = ["export"]
