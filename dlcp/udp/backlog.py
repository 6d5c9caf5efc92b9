"""Keeps the queue between the socket and the wire short, so that urgent packets need not wait behind others on their own host.

A send buffer holds what the kernel has taken and the network card has not sent yet.  One that suits a fast link holds a tenth of
a second of a slow one, in one queue for all classes: whatever the sender does by priority is undone there.  So each time that the
buffer has been full, the size is set to what the link drains in a few milliseconds; and when it ran empty meanwhile, it was too
small, and is doubled.  The idea is that of TCP's small queues and of the byte queue limits of Linux drivers
(``net/ipv4/tcp_output.c``, ``lib/dynamic_queue_limits.c``).

On paths without such a queue, as over the loopback, the buffer never fills and stays as it is.
"""

from __future__ import annotations

import array
import fcntl
import socket
import termios
from typing import Final

TARGET_NS: Final = 4_000_000
"""How long what is in the queue may take to drain."""
SMALLEST_BYTES: Final = 32 << 10
"""Smallest queue, in the kernel's bytes (which include its bookkeeping): a dozen packets of 1500 bytes."""
_SHORTEST_NS: Final = 20_000


class Backlog:
    """Watches one socket.

    Args:
        sock: The socket.
        most: Largest size in bytes, as granted by the kernel.

    Attributes:
        limit: Bytes that the kernel takes before it refuses more, its bookkeeping included.
    """

    def __init__(self, sock: socket.socket, most: int) -> None:
        self._socket = sock
        # The kernel doubles what it is asked for, and counts its bookkeeping.
        self.limit = self._most = 2 * most
        self._since: int | None = None

    def refused(self, now: int) -> None:
        """The kernel takes no more."""
        if self._since is None:
            self._since = now

    def taken(self, now: int) -> None:
        """The kernel has taken something (again)."""
        if self._since is None:
            return
        elapsed, self._since = now - self._since, None
        left = self._queued()
        if left is None or elapsed < _SHORTEST_NS:
            return
        limit = adjusted(self.limit, left, elapsed, self._most)
        if limit != self.limit:
            self.limit = limit
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limit // 2)

    def _queued(self) -> int | None:
        """Returns the bytes in the queue."""
        count = array.array("i", [0])
        try:
            fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, count)
        except OSError:
            return None
        return count[0]


def adjusted(limit: int, left: int, elapsed_ns: int, most: int) -> int:
    """Returns the limit that suits a link which drained a full queue of ``limit`` bytes to ``left`` bytes in ``elapsed_ns``."""
    if left == 0:
        wanted = 2 * limit
    else:
        wanted = max(limit - left, 0) * TARGET_NS // elapsed_ns
        wanted = min(max(wanted, limit // 2), 2 * limit)
    return min(max(wanted, SMALLEST_BYTES), most)
