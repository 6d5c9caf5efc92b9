"""Where ranks meet: a small key-value store that every rank of a job can reach.

The stores of ``torch.distributed`` (``TCPStore``, ``PrefixStore``, ``FileStore``) fit :class:`Store` as they are.  Without torch
there are :class:`MemoryStore` for ranks that are threads of one process and :class:`FileStore` for processes that share a file
system.

Nothing but addresses, digests and the job's cookie goes through a store, once, at the start.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import quote

from dlcp.errors import RendezvousError

DEFAULT_TIMEOUT_S = 300.0
"""As long as torch's stores wait by default."""

_POLL_FIRST_S = 0.001
_POLL_LAST_S = 0.05
_LONGEST_NAME = 200


@runtime_checkable
class Store(Protocol):
    """What a rendezvous needs; all methods may be called from any thread."""

    def set(self, key: str, value: bytes | str, /) -> None:
        """Writes a value, replacing an earlier one; text is stored as UTF-8."""

    def get(self, key: str, /) -> bytes:
        """Returns a value, waiting until there is one; raises when the store's own timeout is over."""


def fetch(store: Store, key: str, timeout_s: float) -> bytes:
    """Returns the value of ``key``, waiting up to ``timeout_s`` for it, from any kind of store.

    A store that can only ``get`` is waited for as long as it likes.

    Raises:
        RendezvousError: There was no value in time, or the store failed; the store's own error is the cause.
    """
    try:
        wait = getattr(store, "wait", None)
        if wait is not None:
            wait([key], timedelta(seconds=timeout_s))
        return bytes(store.get(key))
    except RendezvousError:
        raise
    except (RuntimeError, OSError, KeyError, ValueError) as error:  # torch raises DistStoreError, a RuntimeError
        summary = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RendezvousError(f"nothing under {key!r} in {type(store).__name__} within {timeout_s:g} s: {summary}") from error


def _timed_out(key: str, where: str, timeout_s: float) -> RendezvousError:
    return RendezvousError(f"nobody has written {key!r} to {where} within {timeout_s:g} s")


def _raw(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class MemoryStore:
    """A store for threads of one process.

    Args:
        timeout_s: How long :meth:`get` waits.
    """

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes | str, /) -> None:
        """Writes a value and wakes whoever waits for it."""
        with self._changed:
            self._values[key] = _raw(value)
            self._changed.notify_all()

    def get(self, key: str, /) -> bytes:
        """Returns a value, waiting for it.

        Raises:
            RendezvousError: Nobody has written it within ``timeout_s``.
        """
        return self._get(key, self.timeout_s)

    def wait(self, keys: Sequence[str], timeout: timedelta, /) -> None:
        """Waits until all ``keys`` have values.

        Raises:
            RendezvousError: Not all of them have, within ``timeout``.
        """
        end = time.monotonic() + timeout.total_seconds()
        for key in keys:
            self._get(key, end - time.monotonic(), timeout.total_seconds())

    def _get(self, key: str, timeout_s: float, named_s: float | None = None) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise _timed_out(key, "the store", timeout_s if named_s is None else named_s)
            return self._values[key]


class FileStore:
    """A store in a directory, for processes on hosts that share a file system.

    Every value is one file, put in place by renaming, so that a reader sees all of it or nothing.  Files can be read by their
    owner only, because one of them holds the cookie of the job.  A directory serves one job: what an earlier one has left in it
    would be taken for this one's.

    Args:
        path: Directory; made if it is missing.
        timeout_s: How long :meth:`get` waits.

    Raises:
        RendezvousError: The directory can be neither found nor made.
    """

    def __init__(self, path: str | Path, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.path = Path(path)
        self.timeout_s = timeout_s
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RendezvousError(f"store directory {self.path}: {error.strerror}") from error

    def set(self, key: str, value: bytes | str, /) -> None:
        """Writes a value.

        Raises:
            RendezvousError: The directory cannot be written to.
        """
        target = self._file(key)
        temporary: Path | None = None
        try:
            handle, name = tempfile.mkstemp(prefix=".new-", dir=self.path)
            temporary = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(_raw(value))
            temporary.replace(target)
        except OSError as error:
            if temporary is not None:
                with suppress(OSError):
                    temporary.unlink()
            raise RendezvousError(f"store directory {self.path}: cannot write {key!r}: {error.strerror}") from error

    def get(self, key: str, /) -> bytes:
        """Returns a value, waiting for it.

        Raises:
            RendezvousError: Nobody has written it within ``timeout_s``, or the directory cannot be read.
        """
        return self._get(key, time.monotonic() + self.timeout_s, self.timeout_s)

    def wait(self, keys: Sequence[str], timeout: timedelta, /) -> None:
        """Waits until all ``keys`` have values.

        Raises:
            RendezvousError: Not all of them have, within ``timeout``, or the directory cannot be read.
        """
        end = time.monotonic() + timeout.total_seconds()
        for key in keys:
            self._get(key, end, timeout.total_seconds())

    def _get(self, key: str, end: float, timeout_s: float) -> bytes:
        file = self._file(key)
        pause = _POLL_FIRST_S
        while True:
            try:
                return file.read_bytes()
            except FileNotFoundError:
                left = end - time.monotonic()
                if left <= 0:
                    raise _timed_out(key, str(self.path), timeout_s) from None
            except OSError as error:
                raise RendezvousError(f"store directory {self.path}: cannot read {key!r}: {error.strerror}") from error
            time.sleep(min(pause, left))
            pause = min(2 * pause, _POLL_LAST_S)

    def _file(self, key: str) -> Path:
        name = quote(key, safe="")
        if len(name) > _LONGEST_NAME:
            return self.path / f"hash-{hashlib.sha256(key.encode()).hexdigest()}"
        return self.path / f"key-{name}"
