"""Descriptions of a bad network: which packets to drop, delay, reorder, duplicate or corrupt, and how often.

The text form is a list of rules separated by ``;``.  A rule is one effect and any number of conditions, separated by commas::

    drop=0.05,class=0-3,protected=no; delay_ms=2,jitter_ms=1,probability=0.1; reorder=0.02; seed=7

=================  ==============================================================================
``drop=P``         the packet is lost with probability P
``duplicate=P``    it is sent twice
``corrupt=P``      one bit of the DLCP header that a switch must not change is flipped
``reorder=P``      it is held back for up to ``gap_ms`` (1 if not given), so that later ones overtake it
``delay_ms=T``     it is held back for T ms, ``jitter_ms`` more or less; with ``probability`` (1)
``class=A-B``      only packets of these classes; single ones and ranges joined by ``+``
``type=NAME``      only these packet types (``data``, ``probe``, ...), joined by ``+``
``protected=yes``  only protected packets, or only droppable ones (``no``)
``seed=N``         of the random numbers; belongs to the whole plan
=================  ==============================================================================

Rules apply one after the other to what the rules before them left; a packet that is held back is out of reach of later rules.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import Final

from dlcp.errors import ConfigError
from dlcp.wire.header import PacketType

EFFECTS: Final = ("drop", "duplicate", "corrupt", "reorder", "delay_ms")
_CLASSES: Final = 8
_KEYS: Final = (*EFFECTS, "probability", "jitter_ms", "gap_ms", "class", "type", "protected", "seed")
_EXTRAS: Final = {"probability": "delay_ms", "jitter_ms": "delay_ms", "gap_ms": "reorder"}
_GAP_MS: Final = 1.0
_LONGEST_MS: Final = 3_600_000.0


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One effect on some packets.

    Attributes:
        effect: ``drop``, ``duplicate``, ``corrupt``, ``reorder`` or ``delay``.
        probability: Share of the packets concerned, 0 to 1.
        delay_ms: Delay in milliseconds; for ``reorder`` the longest.
        jitter_ms: The delay is uniform within this many milliseconds around ``delay_ms``.
        classes: Classes (0 to 7) concerned; None: all.
        types: Packet types concerned; None: all.
        protected: Only protected packets (True) or droppable ones (False); None: both.

    Raises:
        ConfigError: A value out of range.
    """

    effect: str
    probability: float = 1.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    classes: frozenset[int] | None = None
    types: frozenset[int] | None = None
    protected: bool | None = None

    def __post_init__(self) -> None:
        kinds = ("drop", "duplicate", "corrupt", "reorder", "delay")
        if self.effect not in kinds:
            raise ConfigError("<fault rule>", "effect", f"{self.effect!r} is unknown", ", ".join(kinds))
        for key, value, most in (
            ("probability", self.probability, 1.0),
            ("delay_ms", self.delay_ms, _LONGEST_MS),
            ("jitter_ms", self.jitter_ms, _LONGEST_MS),
        ):
            if isinstance(value, bool) or not 0.0 <= value <= most:
                raise ConfigError("<fault rule>", key, f"{value!r} is out of range", f"a number from 0 to {most:g}")
        if self.jitter_ms > self.delay_ms:
            raise ConfigError("<fault rule>", "jitter_ms", "larger than delay_ms", "at most delay_ms")
        if self.classes is not None and not self.classes <= set(range(_CLASSES)):
            raise ConfigError("<fault rule>", "class", f"{sorted(self.classes)}", "classes from 0 to 7")
        if self.types is not None and not self.types <= set(PacketType):
            raise ConfigError("<fault rule>", "type", f"{sorted(self.types)}", _type_names())

    def __str__(self) -> str:
        if self.effect == "delay":
            parts = [f"delay_ms={self.delay_ms!r}", f"jitter_ms={self.jitter_ms!r}", f"probability={self.probability!r}"]
        else:
            parts = [f"{self.effect}={self.probability!r}"]
        if self.effect == "reorder":
            parts.append(f"gap_ms={self.delay_ms!r}")
        if self.classes is not None:
            parts.append("class=" + "+".join(map(str, sorted(self.classes))))
        if self.types is not None:
            parts.append("type=" + "+".join(PacketType(kind).name.lower() for kind in sorted(self.types)))
        if self.protected is not None:
            parts.append(f"protected={'yes' if self.protected else 'no'}")
        return ",".join(parts)


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Rules and the seed of their random numbers.  ``str(plan)`` is text that :meth:`parse` reads back to an equal plan."""

    rules: tuple[FaultRule, ...] = ()
    seed: int = 0

    def __str__(self) -> str:
        return ";".join([*map(str, self.rules), f"seed={self.seed}"])

    def __bool__(self) -> bool:
        return bool(self.rules)

    @classmethod
    def parse(cls, text: str, source: str = "<faults>") -> FaultPlan:
        """Reads the text form that the module describes.  Empty text is a perfect network.

        Args:
            text: Rules.
            source: Where the text came from, for error messages.

        Raises:
            ConfigError: An unknown key, a value of the wrong kind or out of range, or a rule without exactly one effect.
        """
        rules: list[FaultRule] = []
        seed: int | None = None
        for part in text.split(";"):
            if not part.strip():
                continue
            settings = _settings(part, source)
            if "seed" in settings:
                if seed is not None:
                    raise ConfigError(source, "seed", "given twice", "one seed for the whole plan")
                seed = _seed(settings.pop("seed"), source)
            if settings:
                rules.append(_rule(settings, source))
        return cls(tuple(rules), seed or 0)


def _settings(part: str, source: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for item in part.split(","):
        key, equals, value = (piece.strip() for piece in item.partition("="))
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(source, key or item.strip() or "<empty>", f"unknown key{hint}", ", ".join(_KEYS))
        if not equals or not value:
            raise ConfigError(source, key, "no value", f"{key}=VALUE")
        if key in settings:
            raise ConfigError(source, key, "given twice in one rule", "each key once; separate rules with ';'")
        settings[key] = value
    return settings


def _rule(settings: dict[str, str], source: str) -> FaultRule:
    effects = [key for key in settings if key in EFFECTS]
    if len(effects) != 1:
        problem = f"{' and '.join(effects)} in one rule" if effects else f"{', '.join(settings)} without an effect"
        raise ConfigError(
            source, effects[0] if effects else next(iter(settings)), problem, f"one of {', '.join(EFFECTS)} in each rule"
        )
    effect = effects[0]
    for key, owner in _EXTRAS.items():
        if key in settings and owner != effect:
            raise ConfigError(source, key, f"does not go with {effect}", f"{key} together with {owner}")
    classes = _classes(settings["class"], source) if "class" in settings else None
    types = _types(settings["type"], source) if "type" in settings else None
    protected = _flag(settings["protected"], source) if "protected" in settings else None
    probability, delay, jitter = 1.0, 0.0, 0.0
    if effect == "delay_ms":
        delay = _number(settings, effect, _LONGEST_MS, source)
        jitter = _number(settings, "jitter_ms", delay, source) if "jitter_ms" in settings else 0.0
        if "probability" in settings:
            probability = _number(settings, "probability", 1.0, source)
    else:
        probability = _number(settings, effect, 1.0, source)
    if effect == "reorder":
        delay = _number(settings, "gap_ms", _LONGEST_MS, source) if "gap_ms" in settings else _GAP_MS
    return FaultRule(effect.removesuffix("_ms"), probability, delay, jitter, classes, types, protected)


def _number(settings: dict[str, str], key: str, most: float, source: str) -> float:
    accepted = f"a number from 0 to {most:g}"
    try:
        value = float(settings[key])
    except ValueError:
        raise ConfigError(source, key, f"{settings[key]!r} is not a number", accepted) from None
    if not math.isfinite(value) or not 0.0 <= value <= most:
        raise ConfigError(source, key, f"{settings[key]} is out of range", accepted)
    return value


def _seed(text: str, source: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) >= 1 << 63:
        raise ConfigError(source, "seed", f"{text!r} is not a seed", "an integer from 0 to 2^63 - 1")
    return int(text)


def _flag(text: str, source: str) -> bool:
    if text not in ("yes", "no"):
        raise ConfigError(source, "protected", f"{text!r} is neither", "yes or no")
    return text == "yes"


def _classes(text: str, source: str) -> frozenset[int]:
    accepted = "classes from 0 to 7, for example 2, 0-3 or 0-2+7"
    found: set[int] = set()
    for piece in text.split("+"):
        low, dash, high = (end.strip() for end in piece.partition("-"))
        ends = (low, high) if dash else (low, low)
        if not all(end.isascii() and end.isdecimal() and int(end) < _CLASSES for end in ends) or int(ends[0]) > int(ends[1]):
            raise ConfigError(source, "class", f"{piece.strip()!r} is no class or range of classes", accepted)
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(found)


def _type_names() -> str:
    return ", ".join(kind.name.lower() for kind in PacketType)


def _types(text: str, source: str) -> frozenset[int]:
    names = {kind.name.lower(): int(kind) for kind in PacketType}
    pieces = [piece.strip() for piece in text.split("+")]
    for piece in pieces:
        if piece not in names:
            raise ConfigError(source, "type", f"{piece!r} is no packet type", f"{_type_names()}; joined by +")
    return frozenset(names[piece] for piece in pieces)
