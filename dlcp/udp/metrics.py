"""Counters of the UDP shell, and their rendering for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final


@dataclass(slots=True)
class PortCounters:
    """What one port has done since it was opened.

    Written by the I/O thread alone; any thread may read.

    Attributes:
        packets_sent: Datagrams handed to the kernel, segments counted one by one.
        bytes_sent: Their UDP payload bytes.
        send_calls: System calls that sent.
        batches_sent: Messages that the kernel was asked to segment (UDP_SEGMENT).
        send_blocked: Times the send buffer was full (EAGAIN).
        send_refused: Datagrams lost because the kernel knew no way to the peer or had no room; the peer may not be up yet.
        packets_received: Datagrams received, segments counted one by one.
        bytes_received: Their UDP payload bytes.
        receive_calls: System calls that received.
        batches_received: Messages that the kernel had aggregated (UDP_GRO).
        receive_errors: Errors that a receive call reported instead of a datagram.
    """

    packets_sent: int = 0
    bytes_sent: int = 0
    send_calls: int = 0
    batches_sent: int = 0
    send_blocked: int = 0
    send_refused: int = 0
    packets_received: int = 0
    bytes_received: int = 0
    receive_calls: int = 0
    batches_received: int = 0
    receive_errors: int = 0

    def snapshot(self) -> dict[str, int]:
        return asdict(self)


_FORBIDDEN: Final = re.compile(r"[^a-zA-Z0-9_]+")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _name(text: object) -> str:
    name = _FORBIDDEN.sub("_", str(text)) or "_"
    return f"_{name}" if name[0].isdigit() else name


def _samples(name: str, value: Any, labels: dict[str, str]) -> Iterator[tuple[str, dict[str, str], int | float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(key, int):
                yield from _samples(name, inner, {**labels, name.rpartition("_")[2].removesuffix("s") or "key": str(key)})
            else:
                yield from _samples(f"{name}_{_FORBIDDEN.sub('_', str(key))}", inner, labels)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for index, inner in enumerate(value):
            yield from _samples(name, inner, {**labels, "class": str(index)})
    elif isinstance(value, int | float):
        yield name, labels, value


def render_prometheus(metrics: Mapping[str, Any], *, prefix: str = "dlcp", labels: Mapping[str, object] | None = None) -> str:
    """Renders nested metrics in the Prometheus text exposition format, version 0.0.4.

    Args:
        metrics: Numbers under names.  Mappings nest, and names are joined with ``_``; integer keys become a label that is named
            after the mapping (``{"peers": {3: ...}}`` gives ``peer="3"``); a sequence is one value for each class (label
            ``class``).  Anything else, text for example, is left out.
        prefix: First part of every name.
        labels: Labels of every sample, for example ``{"rank": 0}``.

    Returns:
        Text that ends with a newline, or the empty string if there is no number.
    """
    common = {_name(key): str(value) for key, value in (labels or {}).items()}
    families: dict[str, list[str]] = {}
    for name, tags, value in _samples(_name(prefix), metrics, common):
        text = ",".join(f'{_name(key)}="{label.translate(_ESCAPES)}"' for key, label in tags.items())
        number = str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)
        families.setdefault(name, []).append(f"{name}{{{text}}} {number}" if text else f"{name} {number}")
    lines: list[str] = []
    for name, samples in families.items():
        lines += [f"# TYPE {name} untyped", *samples]
    return "\n".join(lines) + "\n" if lines else ""
