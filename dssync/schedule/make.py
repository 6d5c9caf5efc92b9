"""Schedules by name, as command lines, checkpoints and configuration files give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from dlcp.errors import ConfigError
from dssync.schedule.base import Schedule
from dssync.schedule.basek import BaseK
from dssync.schedule.domains import Domains
from dssync.schedule.shuffled import Shuffled
from dssync.schedule.simple import BSP, Digits

if TYPE_CHECKING:
    from dlcp.topology import Topology

KINDS: Final = ("bsp", "digits", "base-k", "random", "topology")


def make_schedule(
    kind: str, world: int, *, topology: Topology | None = None, model_bytes: int | None = None, **settings: Any
) -> Schedule:
    """Returns a schedule.

    Args:
        kind: One of :data:`KINDS`.
        world: Number of ranks.
        topology: For ``topology``: the network, from which domains, crossings and period are chosen by the cost model.
        model_bytes: For ``topology``: what is averaged, for the cost model; 100 MB if it is not known.
        settings: What the class of that kind takes: ``group``, ``radices``, ``seed``, ``partitions``, ``domains``, ``local``,
            ``crossing``.

    Raises:
        ConfigError: An unknown kind or setting, or one that does not fit the world.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    if kind == "topology" and topology is not None:
        from dssync.mixing.choice import choose_domains  # the cost model needs numpy

        return choose_domains(topology, world, model_bytes or 100_000_000, **given)
    classes: dict[str, Callable[..., Schedule]] = {
        "bsp": BSP,
        "digits": Digits,
        "base-k": BaseK,
        "random": Shuffled,
        "topology": Domains,
    }
    if kind not in classes:
        raise ConfigError("schedule", "kind", f"{kind!r} is unknown", ", ".join(KINDS))
    if kind == "topology" and "domains" not in settings:
        raise ConfigError("schedule", "topology", "neither a topology nor domains", "one of the two")
    try:
        return classes[kind](world, **given)
    except TypeError as error:
        raise ConfigError("schedule", kind, str(error), f"settings that {kind} takes") from None


def restore_schedule(description: Mapping[str, Any], source: str = "<schedule>") -> Schedule:
    """Returns the schedule that :meth:`~dssync.schedule.base.Schedule.describe` has described; the description is not trusted.

    Raises:
        ConfigError: It is malformed, or does not give the schedule whose digest it names.
    """
    try:
        kind, world, settings = str(description["kind"]), int(description["world"]), dict(description["settings"])
        schedule = make_schedule(kind, world, **settings)
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(source, "schedule", f"malformed: {error}", "what Schedule.describe() returns") from None
    if schedule.digest != description.get("digest"):
        problem = f"its digest is {description.get('digest')!r}, but {schedule!r} has {schedule.digest}"
        raise ConfigError(source, "schedule.digest", problem, "a description of this version of the schedules")
    return schedule


__all__ = ["KINDS", "make_schedule", "restore_schedule"]
