"""What is compared: DLCP, gloo, and as a reference a plain TCP stream that moves the same bytes.

Each runs in every rank, and reduces ``contribution`` into ``output``, two ``float32`` vectors made beforehand.  DLCP is called as
the DDP hook calls it (``allreduce_async``, mean, with tags and a result buffer), gloo as DDP calls it (``all_reduce``, sum, in
place).
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from dlcp.collectives.communicator import Communicator
from dlcp.collectives.operation import Reduction

if TYPE_CHECKING:
    from typing_extensions import Buffer  # Python 3.12 has it in collections.abc

    from dlcp.store import Store

Floats = NDArray[np.float32]

_HOST: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 1 << 20


class Candidate(Protocol):
    """One way to all-reduce, in one rank.

    Attributes:
        scale: What the output is to be multiplied with to give the sum of all contributions; 0 if nothing is reduced.
    """

    scale: int

    def prepare(self) -> None:
        """Brings the buffers into the state in which the call starts; not timed."""

    def run(self) -> Reduction | None:
        """Does it; timed."""

    def close(self) -> None:
        """Frees everything."""


class DlcpCandidate:
    """DLCP.

    Args:
        communicator: Connected.
        contribution: Read.
        output: Written.
        tags: ``uint8[packets]``, or None for untagged packets.
    """

    def __init__(
        self,
        communicator: Communicator,
        contribution: Floats,
        output: Floats,
        tags: Callable[[Communicator], NDArray[np.uint8] | None],
    ) -> None:
        self.communicator = communicator
        self.scale = communicator.world
        self._contribution = contribution
        self._output = output
        self._tags = tags(communicator)

    def prepare(self) -> None:
        self._output.fill(-1)

    def run(self) -> Reduction:
        return self.communicator.allreduce_async(self._contribution, op="mean", tags=self._tags, out=self._output).wait()

    def close(self) -> None:
        self.communicator.close()


class GlooCandidate:
    """torch.distributed over gloo: its own process group, over the loopback interface.

    Args:
        rank: Own rank.
        world: Number of ranks.
        store: A store of torch.distributed.
        contribution: Read.
        output: Reduced in place.
        timeout_s: gloo's own limit for one call.
    """

    def __init__(self, rank: int, world: int, store: Any, contribution: Floats, output: Floats, timeout_s: float) -> None:
        import torch
        import torch.distributed as dist

        self.scale = 1
        self._contribution = contribution
        self._output = output
        self._tensor = torch.from_numpy(output)
        self._dist = dist
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=timeout_s))

    def prepare(self) -> None:
        np.copyto(self._output, self._contribution)

    def run(self) -> None:
        self._dist.all_reduce(self._tensor)

    def close(self) -> None:
        self._dist.destroy_process_group()


class StreamCandidate:
    """No reduction at all: every rank sends to the next one, over plain TCP, as many bytes as an all-reduce must.

    That is 2 (N - 1) / N times the array (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms"), all ranks at once.

    Args:
        rank: Own rank.
        world: Number of ranks.
        store: Where ranks find each other's ports.
        source: What is sent, again from the front when it is at its end.
        timeout_s: Longest wait for a neighbour.
    """

    def __init__(self, rank: int, world: int, store: Store, source: Floats, timeout_s: float) -> None:
        self.scale = 0
        self._source = memoryview(cast("Buffer", source)).cast("B")
        self._scratch = memoryview(bytearray(_CHUNK_BYTES))
        self._bytes = stream_bytes(source.nbytes, world)
        self._timeout_s = timeout_s
        with socket.create_server((_HOST, 0), backlog=1) as listener:
            listener.settimeout(timeout_s)
            store.set(f"port/{rank}", str(listener.getsockname()[1]))
            port = int(store.get(f"port/{(rank + 1) % world}"))
            self._right = socket.create_connection((_HOST, port), timeout_s)
            self._left = listener.accept()[0]
        for sock in (self._left, self._right):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)

    def prepare(self) -> None:
        """Nothing is kept between calls."""

    def run(self) -> None:
        to_send = to_receive = self._bytes
        position = 0
        while to_send or to_receive:
            readable, writable, _ = select.select(
                [self._left] if to_receive else [], [self._right] if to_send else [], [], self._timeout_s
            )
            if not readable and not writable:
                raise TimeoutError(f"a neighbour of the raw stream has been silent for {self._timeout_s:g} s")
            if writable:
                sent = self._right.send(self._source[position : position + min(_CHUNK_BYTES, to_send)])
                position = (position + sent) % len(self._source)
                to_send -= sent
            if readable:
                received = self._left.recv_into(self._scratch, min(_CHUNK_BYTES, to_receive))
                if received == 0:
                    raise ConnectionError("a neighbour of the raw stream has left")
                to_receive -= received

    def close(self) -> None:
        self._left.close()
        self._right.close()


def stream_bytes(array_bytes: int, world: int) -> int:
    """Returns the least number of bytes that a rank must send, and receive, to all-reduce an array among ``world`` ranks."""
    return -(-2 * (world - 1) * array_bytes // world)
