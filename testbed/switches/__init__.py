"""What the switches of a lab are, behind one interface: this project's P4 target, BMv2, the Linux kernel, plain bridges."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.switches.base import Context, Switches
    from testbed.switches.nursery import Nursery


def switches_delay(target: str) -> bool:
    """Whether switches of a kind delay and lose by themselves."""
    return target == "softswitch"


def warm_up(target: str) -> None:
    """Begins to load what a kind of switches will need."""
    if target in ("softswitch", "bmv2"):
        from testbed.switches.deploy import warm_up as load

        load()


def make_switches(target: str, context: Context, nursery: Nursery | None) -> Switches:
    """Returns the switches of a network, not started yet; ``nursery`` is needed for ``softswitch``.

    Raises:
        ValueError: There is no such kind.
    """
    if target == "softswitch":
        from testbed.switches.softswitch import Softswitches

        assert nursery is not None
        return Softswitches(context, nursery)
    if target == "bmv2":
        from testbed.switches.bmv2 import Bmv2Switches

        return Bmv2Switches(context)
    if target == "kernel":
        from testbed.switches.kernel import KernelSwitches

        return KernelSwitches(context)
    if target == "bridge":
        from testbed.switches.kernel import Bridges

        return Bridges(context)
    raise ValueError(f"there are no {target!r} switches")


__all__ = ["make_switches", "switches_delay", "warm_up"]
