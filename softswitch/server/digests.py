"""Digest lists: what is buffered, sent, acknowledged and forgotten (P4Runtime specification, "DigestEntry").

Equal digests are sent once: not again while they wait in the buffer, nor while their list is unacknowledged and younger than the
acknowledgement timeout.  Time is an argument; sending is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from softswitch.server.target import DigestConfig

Values = tuple[int, ...]

MAX_LIST = 1024
"""Digests in one list, if the client sets no limit."""
MAX_UNACKNOWLEDGED = 1024
"""Lists of one digest that are remembered; beyond that the oldest one is taken for acknowledged."""


@dataclass(frozen=True, slots=True)
class DigestBatch:
    """A list to send: P4 id of the digest, number of the list, and distinct field values."""

    digest_id: int
    list_id: int
    values: tuple[Values, ...]


@dataclass(eq=False, slots=True)
class _State:
    buffer: dict[Values, None] = field(default_factory=dict)
    since: int = 0
    sent: dict[int, tuple[int, tuple[Values, ...]]] = field(default_factory=dict)
    cache: set[Values] = field(default_factory=set)

    def forget(self, list_id: int) -> None:
        """Removes a list from the cache; what it holds is in no other list, as it was not sent again while in this one."""
        found = self.sent.pop(list_id, None)
        if found is not None:
            self.cache.difference_update(found[1])


class DigestLists:
    """Digests of one device."""

    def __init__(self) -> None:
        self._states: dict[int, _State] = {}
        self._next_list = 1

    def add(self, digests: Iterable[tuple[int, Values]], configs: Mapping[int, DigestConfig], now: int) -> list[DigestBatch]:
        """Takes digests (P4 id, values) at ``now`` (ns) and returns the lists that are full."""
        self._expire(configs, now)
        result = []
        for number, values in digests:
            config = configs.get(number)
            if config is None:
                continue
            state = self._states.setdefault(number, _State())
            if values in state.cache or values in state.buffer:
                continue
            if not state.buffer:
                state.since = now
            state.buffer[values] = None
            limit = 1 if config.max_timeout_ns == 0 else config.max_list_size or MAX_LIST
            if len(state.buffer) >= limit:
                result.append(self._flush(number, state, config, now))
        return result

    def due(self, configs: Mapping[int, DigestConfig], now: int) -> list[DigestBatch]:
        """Returns the lists whose first digest has waited long enough."""
        self._expire(configs, now)
        return [
            self._flush(number, state, configs[number], now)
            for number, state in self._states.items()
            if state.buffer and now - state.since >= configs[number].max_timeout_ns
        ]

    def next_due(self, configs: Mapping[int, DigestConfig]) -> int | None:
        """Returns when ``due`` next has something to return, in ns."""
        times = [
            state.since + configs[number].max_timeout_ns
            for number, state in self._states.items()
            if state.buffer and number in configs
        ]
        return min(times, default=None)

    def acknowledge(self, digest_id: int, list_id: int) -> None:
        """The client has acted on a list; its digests may be sent again.  An unknown list is ignored."""
        state = self._states.get(digest_id)
        if state is not None:
            state.forget(list_id)

    def clear(self) -> None:
        """Forgets all, as when another program or primary comes."""
        self._states.clear()

    def _flush(self, number: int, state: _State, config: DigestConfig, now: int) -> DigestBatch:
        values = tuple(state.buffer)
        state.buffer.clear()
        list_id = self._next_list
        self._next_list += 1
        if config.ack_timeout_ns:
            state.sent[list_id] = (now, values)
            state.cache.update(values)
            if len(state.sent) > MAX_UNACKNOWLEDGED:
                state.forget(next(iter(state.sent)))
        return DigestBatch(number, list_id, values)

    def _expire(self, configs: Mapping[int, DigestConfig], now: int) -> None:
        for number in [number for number in self._states if number not in configs]:
            del self._states[number]
        for number, state in self._states.items():
            limit = configs[number].ack_timeout_ns
            # Lists are in the order of sending, so the first young one ends the search.
            while state.sent:
                list_id, (sent, _) = next(iter(state.sent.items()))
                if now - sent < limit:
                    break
                state.forget(list_id)


__all__ = ["DigestBatch", "DigestLists"]
