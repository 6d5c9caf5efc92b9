"""``dlcp switch bench``: how fast a P4 target forwards DLCP and takes table entries, side by side with BMv2."""

from dlcp.bench.switch.command import add_arguments, run

__all__ = ["add_arguments", "run"]
