"""How ranks meet: each publishes what it is through a store, reads the others, and refuses to start if they do not fit.

Theory of operation.  Every rank has one key, and what stands there goes through these states::

    nothing --publish--> entry --all peers answered--> spent
                           |
                           +--the rank gives up------> failure

* Every rank reads every entry, so that all of them notice a mismatch, each by itself, and raise the same error.
* Every entry holds a random number, and the job's cookie is a hash of all of them.  So a rank that has read a stale entry, left
  by an earlier job in the same store, gets another cookie than the others, whose datagrams it then takes for foreign; while
  peers do not answer, it looks whether entries have changed, and begins anew.
* A peer that answers has the right cookie, so it has read all entries: when all have answered, one's own entry may go.
* A failure is published, so that others need not wait for a rank that will not come.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from dlcp.errors import DLCPError, MismatchError, MtuError, RemoteError, RendezvousError
from dlcp.policy import Policy
from dlcp.store import Store, fetch

POLL_S: Final = 0.02
LINGER_S: Final = 2.0
"""How long a rank that gives up stays for others to notice; the store may live in its process."""
_SAME_EVERYWHERE: Final[Mapping[str, type[DLCPError]]] = {
    kind.__name__: kind for kind in (MismatchError, MtuError, RendezvousError)
}
"""Failures that are the job's rather than one rank's: peers raise the same."""


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
        mtu: Of its interface, in bytes.
        stride: Largest packet payload that this allows; the job uses the smallest of all.
        nonce: Random, 64 bits.
        node: Name of its machine.
        pid: Its process there.
    """

    rank: int
    world: int
    servers: int
    protocol: int
    algorithm: str
    policy: dict[str, Any]
    host: str
    port: int
    mtu: int
    stride: int
    nonce: int
    node: str
    pid: int


@dataclass(frozen=True, slots=True)
class Failure:
    """What a rank leaves that gave up."""

    rank: int
    error: str
    reason: str
    node: str
    pid: int


@dataclass(frozen=True, slots=True)
class Job:
    """What all ranks agree on."""

    cookie: int
    stride: int
    entries: tuple[Entry, ...]


class Rendezvous:
    """One rank's way into a job.

    Args:
        store: Where ranks meet.
        rank: Own rank.
        world: Number of ranks, servers included.
        prefix: Keeps communicators that share a store apart.
        timeout_s: How long to wait for all.
        clock: Seconds.
        sleep: Waits for so many seconds.
        draw_nonce: Source of 64 random bits.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        *,
        prefix: str,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        draw_nonce: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        self._store = store
        self._rank = rank
        self._world = world
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._end = clock() + timeout_s
        self._entry: Entry | None = None
        self.nonce = draw_nonce()
        self.node = platform.node()
        self.pid = os.getpid()

    def meet(self, entry: Entry) -> Job:
        """Publishes ``entry``, if that has not been done, and collects everybody's.

        Raises:
            RendezvousError: A rank did not appear in time, or published something unreadable, or the store failed.
            MismatchError: World size, protocol, algorithm or policy differ; names ranks and keys.
            MtuError: The policy asks for larger packets than a rank's interface takes.
            RemoteError: A rank has given up.
        """
        if self._entry is None:
            self._entry = entry
            self._publish(asdict(entry))
        entries = tuple(entry if rank == entry.rank else self._read(rank, entry) for rank in range(entry.world))
        nonces = ",".join(f"{other.nonce:016x}" for other in entries)
        cookie = int.from_bytes(hashlib.sha256(f"{self._prefix}:{nonces}".encode()).digest()[:8], "big")
        return Job(cookie, min(other.stride for other in entries), entries)

    def changed(self, job: Job) -> bool:
        """Whether a rank has published another entry than the one in ``job``: that one was left by an earlier job.

        Raises:
            MismatchError, MtuError, RendezvousError, RemoteError: A rank has given up since.
            MismatchError: Another process has published an entry for this rank.
        """
        if self._taken():
            raise MismatchError(f"another process has joined as rank {self._rank}")
        for known in job.entries:
            if known.rank == self._rank:
                continue
            found = self._parse(known.rank, fetch(self._store, self._key(known.rank), self._timeout_s))
            if isinstance(found, Failure) and not _is_gone(found):
                raise _as_error(found)
            if isinstance(found, Entry) and found != known:
                return True
        return False

    def _taken(self) -> bool:
        """Whether what stands under this rank's key is another process's."""
        try:
            found = self._parse(self._rank, fetch(self._store, self._key(self._rank), POLL_S))
        except RendezvousError:
            return False
        return isinstance(found, Entry) and self._entry is not None and found.nonce != self._entry.nonce

    def done(self) -> None:
        """Everybody has answered, so everybody has read this rank's entry."""
        self._publish({"rank": self._rank, "spent": True}, quietly=True)

    def refuse(self, error: BaseException) -> None:
        """Tells the others that this rank gives up, and stays until they know, for a moment at most."""
        patient = hasattr(self._store, "wait")
        if patient and self._taken():
            return
        failure = Failure(self._rank, type(error).__name__, str(error), self.node, self.pid)
        self._publish({**asdict(failure), "failed": True}, quietly=True)
        # Whoever did not appear in time will not notice either; and the others have learned of this one's timeout with their own.
        if isinstance(error, RendezvousError) or not patient:
            return
        end = self._clock() + LINGER_S
        for rank in range(self._world):
            while rank != self._rank and self._clock() < end:
                try:
                    if not isinstance(self._parse(rank, fetch(self._store, self._key(rank), POLL_S)), Entry):
                        break
                except DLCPError:
                    pass
                self._sleep(POLL_S)

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/rank/{rank}"

    def _publish(self, document: dict[str, Any], *, quietly: bool = False) -> None:
        try:
            self._store.set(self._key(self._rank), json.dumps(document))
        except RendezvousError:
            if not quietly:
                raise
        except (RuntimeError, OSError, ValueError) as error:
            if not quietly:
                raise RendezvousError(f"cannot write to {type(self._store).__name__}: {error}") from error

    def _read(self, rank: int, mine: Entry) -> Entry:
        """Waits for an entry that fits.

        What speaks against it counts at once, unless its writer is known to be dead: then it may be left from an earlier job,
        and the rank may still appear.
        """
        problem: DLCPError | None = None
        while True:
            left = self._end - self._clock()
            if left <= 0:
                raise problem or RendezvousError(f"rank {rank} has not appeared within {self._timeout_s:g} s")
            try:
                raw = fetch(self._store, self._key(rank), left)
            except RendezvousError as error:
                raise problem or RendezvousError(f"rank {rank} has not appeared within {self._timeout_s:g} s") from error
            found = self._parse(rank, raw)
            if isinstance(found, Entry):
                try:
                    compare(mine, found)
                    return found
                except DLCPError as error:
                    problem = error
            elif isinstance(found, Failure):
                problem = _as_error(found)
            if found is not None and problem is not None and not _is_gone(found):
                raise problem
            self._sleep(POLL_S)

    def _parse(self, rank: int, raw: bytes) -> Entry | Failure | None:
        """Reads what stands under a rank's key; None if it is spent.

        Raises:
            RendezvousError: It is neither.
        """
        try:
            document = json.loads(raw)
            if not isinstance(document, dict) or document.get("rank") != rank:
                raise ValueError(f"not about rank {rank}")
            if document.pop("spent", False):
                return None
            if document.pop("failed", False):
                failure: Failure = _record(Failure, document)
                return failure
            entry: Entry = _record(Entry, document)
            Policy.from_dict(entry.policy)
            return entry
        except (TypeError, ValueError) as error:
            text = f"rank {rank} published something unreadable (another version of dlcp?): {error}"
            raise RendezvousError(text) from error


def _record(kind: type[Any], document: dict[str, Any]) -> Any:
    """Makes a dataclass of plain data, whose types come from the other end of a wire."""
    types = {"int": int, "str": str, "dict[str, Any]": dict}
    for field in fields(kind):
        value = document.get(field.name)
        if not isinstance(value, types[str(field.type)]) or isinstance(value, bool):
            raise ValueError(f"{field.name} is {value!r}")
    return kind(**document)


def _is_gone(found: Entry | Failure) -> bool:
    """Whether the process that wrote this is known not to run any more."""
    if found.node != platform.node():
        return False
    try:
        os.kill(found.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _as_error(failure: Failure) -> DLCPError:
    kind = _SAME_EVERYWHERE.get(failure.error)
    if kind is not None:
        return kind(f"rank {failure.rank} reports: {failure.reason}")
    return RemoteError(failure.rank, f"{failure.error}: {failure.reason}")


def compare(mine: Entry, other: Entry) -> None:
    """Checks that two ranks can work together.

    Raises:
        MismatchError: They cannot.
        MtuError: Not with packets of the size that the policy asks for.
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
    for entry in (mine, other):
        if isinstance(mine_policy.wire.mtu, int) and mine_policy.wire.mtu > entry.mtu:
            limit = f"the interface of rank {entry.rank} ({entry.host}) takes {entry.mtu} bytes"
            raise MtuError(f"wire.mtu is {mine_policy.wire.mtu}, but {limit}")


def _at(tree: dict[str, Any], key: str) -> Any:
    value: Any = tree
    for name in key.split("."):
        value = value[name]
    return value
