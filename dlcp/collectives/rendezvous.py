"""How ranks meet: each publishes what it is through a store, reads the others, and refuses to start if they do not fit.

Every rank reads every entry, so that all of them notice a mismatch, each by itself, and raise the same error.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dlcp.errors import MismatchError, RendezvousError
from dlcp.policy import Policy
from dlcp.store import Store, fetch


@dataclass(frozen=True, slots=True)
class Entry:
    """What one rank tells the others.

    Attributes:
        rank: Its rank.
        world: Ranks of the job as it counts them, servers included.
        servers: How many of them, the highest, are parameter servers.
        protocol: Wire version.
        algorithm: Of the collectives.
        policy: As plain data.
        host: Where it listens.
        port: Its UDP port.
        stride: Largest packet payload that its interface takes; the job uses the smallest of all.
    """

    rank: int
    world: int
    servers: int
    protocol: int
    algorithm: str
    policy: dict[str, Any]
    host: str
    port: int
    stride: int


@dataclass(frozen=True, slots=True)
class Job:
    """What all ranks agree on."""

    cookie: int
    stride: int
    entries: tuple[Entry, ...]


def meet(
    store: Store,
    entry: Entry,
    *,
    prefix: str,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    draw_cookie: Callable[[], int] = lambda: secrets.randbits(64),
) -> Job:
    """Publishes ``entry`` and collects everybody's.

    Args:
        store: Where ranks meet.
        entry: This rank's.
        prefix: Keeps communicators that share a store apart.
        timeout_s: How long to wait for all.
        clock: Seconds.
        draw_cookie: Source of the job cookie; rank 0 draws it.

    Raises:
        RendezvousError: A rank did not appear in time, or published something unreadable.
        MismatchError: World size, protocol, algorithm or policy differ; names ranks and keys.
    """
    if entry.rank == 0:
        store.set(f"{prefix}/cookie", f"{draw_cookie():016x}")
    store.set(f"{prefix}/rank/{entry.rank}", json.dumps(asdict(entry)))
    end = clock() + timeout_s
    entries = []
    for rank in range(entry.world):
        other = entry if rank == entry.rank else _read(store, f"{prefix}/rank/{rank}", rank, max(end - clock(), 0.001), timeout_s)
        compare(entry, other)
        entries.append(other)
    try:
        cookie = int(fetch(store, f"{prefix}/cookie", max(end - clock(), 0.001)), 16)
    except ValueError as error:
        raise RendezvousError(f"the store's cookie is not a hexadecimal number: {error}") from error
    return Job(cookie, min(e.stride for e in entries), tuple(entries))


def _read(store: Store, key: str, rank: int, wait_s: float, timeout_s: float) -> Entry:
    try:
        raw = fetch(store, key, wait_s)
    except RendezvousError as error:
        raise RendezvousError(f"rank {rank} has not appeared within {timeout_s:g} s") from error
    try:
        entry = Entry(**json.loads(raw))
        Policy.from_dict(entry.policy)
    except (TypeError, ValueError) as error:
        raise RendezvousError(f"rank {rank} published something unreadable (another version of dlcp?): {error}") from error
    return entry


def compare(mine: Entry, other: Entry) -> None:
    """Checks that two ranks can work together.

    Raises:
        MismatchError: They cannot.
    """
    for what in ("protocol", "world", "servers", "algorithm"):
        a, b = getattr(mine, what), getattr(other, what)
        if a != b:
            raise MismatchError(f"{what} differs: rank {mine.rank} says {a}, rank {other.rank} says {b}")
    mine_policy, other_policy = Policy.from_dict(mine.policy), Policy.from_dict(other.policy)
    if mine_policy.digest() != other_policy.digest():
        keys = mine_policy.difference(other_policy)
        details = ", ".join(f"{key} is {_at(mine.policy, key)} / {_at(other.policy, key)}" for key in keys)
        raise MismatchError(f"the policies of ranks {mine.rank} and {other.rank} differ: {details}")


def _at(tree: dict[str, Any], key: str) -> Any:
    value: Any = tree
    for name in key.split("."):
        value = value[name]
    return value
