"""Brings one rank onto the network: socket, rendezvous, endpoint, engine, I/O thread, greeting; and takes it off again."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from dlcp.collectives.collective import Collective
from dlcp.collectives.engine import Engine
from dlcp.collectives.rendezvous import Entry, Job, Rendezvous
from dlcp.errors import ClosedError, ConfigError, DLCPError, MtuError, UnreachableError
from dlcp.policy import Policy
from dlcp.store import Store
from dlcp.transport.endpoint import Endpoint
from dlcp.transport.events import MessageReceived, PeerReached
from dlcp.transport.packets import Burst
from dlcp.udp.faults import FaultPlan
from dlcp.udp.inject import FaultyPort
from dlcp.udp.port import DatagramPort
from dlcp.udp.thread import IOThread
from dlcp.wire.header import HEADER_BYTES, VERSION

LINGER_S: Final = 3.0
"""How long a closing rank still answers peers whose last acknowledgement was lost."""
ABORT_LINGER_S: Final = 1.0
"""How long a failed rank stays to repeat its ABORT, at most."""
LOOK_AGAIN_S: Final = 0.25
"""How often a rank whose peers do not answer looks whether it has met the right ones."""
WINDOW_SHARE: Final = 0.9
"""Share of the receive buffer that peers together may fill; the kernel reserves twice the buffer for its own overhead."""
SMALLEST_AUTO_MTU: Final = 1500
MODEST_BUFFER: Final = 4 << 20
"""Less than this is too little for several peers at Gigabit rates."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Link:
    """One rank on the network.

    Args:
        rank: Own rank; servers come after the ``world`` contributors.
        world: Number of contributors.
        store: Where ranks meet.
        policy: The job's policy.
        host: Address to bind, and under which peers reach this rank.
        port: UDP port, or 0.
        algorithm: Of the collectives; compared between ranks.
        servers: Number of dedicated servers; compared between ranks.
        faults: Faults on outgoing packets.
        name: Keeps jobs that share a store apart.
        serve: See :class:`~dlcp.collectives.engine.Engine`.

    Attributes:
        address: Host and port that peers reach this rank under.
        engine: Runs collectives.
        thread: Runs the engine.
    """

    engine: Engine
    thread: IOThread

    def __init__(
        self,
        rank: int,
        world: int,
        store: Store,
        *,
        policy: Policy,
        host: str,
        port: int,
        algorithm: str,
        servers: int,
        faults: FaultPlan | str | None,
        name: str,
        serve: Callable[[Engine, MessageReceived], Collective | None] | None = None,
    ) -> None:
        self._rank = rank
        self._total = world + servers
        self._policy = policy
        self._faults: FaultPlan | None = None
        self._faulty: FaultyPort | None = None
        self._serve = serve
        self._started = False
        self._ident: int | None = None
        total = self._total
        meeting = Rendezvous(store, rank, total, prefix=f"dlcp/{name}", timeout_s=policy.timeouts.connect_s)
        try:
            self._faults = FaultPlan.parse(faults) if isinstance(faults, str) else faults
            self._port = DatagramPort(host, port, receive_buffer_bytes=policy.memory.receive_buffer_bytes)
            try:
                self.address = self._port.address
                entry = Entry(
                    rank=rank,
                    world=total,
                    servers=servers,
                    protocol=VERSION,
                    algorithm=algorithm,
                    policy=policy.to_dict(),
                    host=self.address[0],
                    port=self.address[1],
                    mtu=self._port.mtu,
                    stride=self._payload_bytes(),
                    nonce=meeting.nonce,
                    node=meeting.node,
                    pid=meeting.pid,
                )
                while not self._join(meeting, meeting.meet(entry)):
                    self._stop_thread()
                meeting.done()
            except BaseException as error:
                if self._started:
                    self.abort(f"{type(error).__name__}: {error}")
                    self.wait_until(lambda: not self.engine.aborting, ABORT_LINGER_S)
                self._stop()
                raise
        except BaseException as error:
            meeting.refuse(error)
            raise

    def _payload_bytes(self) -> int:
        address = ipaddress.ip_address(self.address[0].split("%", 1)[0])
        if address.is_unspecified:
            accepted = "an address of this host under which the other ranks reach it"
            raise ConfigError("Communicator", "host", f"{address} is not an address to send to", accepted)
        ipv6 = address.version == 6
        self._complain_about_buffer()
        mtu = self._policy.wire.datagram_mtu(self._port.mtu)
        if self._policy.wire.mtu == "auto":
            # Every peer may always have two packets in flight; where many peers meet a small buffer, they must be small ones.
            fits = int(self._port.receive_buffer * WINDOW_SHARE) // (2 * max(self._total - 1, 1))
            mtu = min(mtu, max(fits, SMALLEST_AUTO_MTU))
        return self._policy.payload_bytes(mtu, ipv6=ipv6)

    def _complain_about_buffer(self) -> None:
        wanted, granted = self._policy.memory.receive_buffer_bytes, self._port.receive_buffer
        if granted < min(wanted, MODEST_BUFFER):
            _log.warning(
                "the kernel granted a receive buffer of %d KiB, %d were asked for: expect low throughput; "
                "'sysctl -w net.core.rmem_max=%d' allows more",
                granted >> 10,
                wanted >> 10,
                wanted,
            )

    def _join(self, meeting: Rendezvous, job: Job) -> bool:
        """Starts the transport for a job and greets everybody; returns False if it was not the right job."""
        for other in job.entries:
            if other.rank != self._rank:
                self._port.connect_peer(other.rank, (other.host, other.port))
        endpoint = Endpoint(
            rank=self._rank,
            world=len(job.entries),
            cookie=job.cookie,
            policy=self._policy,
            stride=job.stride,
            receive_window=int(self._port.receive_buffer * WINDOW_SHARE),
            now=time.monotonic_ns(),
        )
        self._reached: dict[bool, set[int]] = {False: set(), True: set()}
        engine = self.engine = Engine(
            self._rank, self._policy, endpoint, on_reached=self._on_reached, last_words=self._say_last_words
        )
        serve = self._serve
        if serve is not None:
            engine.serve = lambda event: serve(engine, event)
            endpoint.keep_tags = True
        self.thread = IOThread(self._wrap(), engine, name=f"dlcp-io-{self._rank}")
        self.thread.start()
        self._started = True
        return self._greet(meeting, job)

    def _wrap(self) -> DatagramPort | FaultyPort:
        if self._faults is None:
            return self._port
        self._faulty = FaultyPort(self._port, self._faults, stream=self._rank)
        return self._faulty

    def _on_reached(self, event: PeerReached) -> None:
        self._reached[event.full_size].add(event.peer)

    def _say_last_words(self, bursts: Sequence[Burst]) -> None:
        with contextlib.suppress(DLCPError, OSError, ValueError):
            self._port.send(bursts)

    def _greet(self, meeting: Rendezvous, job: Job) -> bool:
        """Makes sure that every peer answers, and answers to datagrams of full size."""
        peers = {entry.rank: entry for entry in job.entries if entry.rank != self._rank}
        engine, endpoint = self.engine, self.engine.endpoint

        def greet(now: int) -> None:
            self._ident = threading.get_ident()
            for peer in peers:
                endpoint.greet(peer, now)

        def over() -> bool:
            return all(reached >= peers.keys() for reached in self._reached.values()) or engine.error is not None

        limit = self._policy.timeouts.connect_s
        end = time.monotonic() + limit
        with contextlib.suppress(ClosedError):
            self.thread.call(greet)
        while not self.wait_until(over, min(LOOK_AGAIN_S, end - time.monotonic())) and engine.error is None:
            if time.monotonic() >= end:
                break
            if meeting.changed(job):
                return False
        if engine.error is not None:
            raise engine.error
        if over():
            return True
        self.thread.call(lambda now: endpoint.stop_greeting())
        for peer, entry in peers.items():
            where = f"{entry.host}:{entry.port}"
            if peer not in self._reached[False]:
                hint = "is the address reachable from here, and UDP allowed by firewalls on the way?"
                if endpoint.counters().get("foreign"):
                    hint = "datagrams of another job came: does the store still hold what an earlier job left?"
                raise UnreachableError(peer, where, limit, hint)
            if peer not in self._reached[True]:
                size = job.stride + HEADER_BYTES
                raise MtuError(
                    f"rank {peer} at {where} answers, but not to datagrams of {size} bytes: a link on the way has a smaller MTU; "
                    "set wire.mtu in the policy"
                )
        return True

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until ``condition``, evaluated in the I/O thread, holds; returns whether it does."""
        met, given_up = threading.Event(), threading.Event()
        try:
            self.thread.call(lambda now: self.engine.watch(lambda: given_up.is_set() or condition(), met.set))
        except ClosedError:
            return condition()
        if met.wait(max(timeout_s, 0.0)):
            return True
        # The engine forgets a watcher when it has been called.
        given_up.set()
        return False

    @property
    def inside(self) -> bool:
        """Whether the caller is the I/O thread, which must not wait for anything."""
        return threading.get_ident() == self._ident

    def abort(self, reason: str) -> None:
        """Gives up in this rank's name, unless something else has ended the job."""
        with contextlib.suppress(ClosedError):
            self.thread.call(lambda now: self.engine.abort(reason, now))

    def metrics(self) -> dict[str, Any]:
        """Returns counters of transport and socket, and each flow's state."""
        return self._in_thread(self._metrics)

    def _in_thread(self, function: Callable[[], T]) -> T:
        """Calls ``function`` where nothing changes meanwhile: in the I/O thread, or here if that has ended or is this one."""
        if self.inside:
            return function()
        result: list[T] = []
        finished = threading.Event()

        def run(now: int) -> None:
            try:
                result.append(function())
            finally:
                finished.set()

        try:
            self.thread.call(run)
        except ClosedError:
            self.thread.stop()
            return function()
        while not finished.wait(1.0):
            if not self.thread.alive:
                break
        return result[0] if result else function()

    def _metrics(self) -> dict[str, Any]:
        endpoint = self.engine.endpoint
        peers = {}
        for peer in endpoint.peers:
            flow = endpoint.flow(peer)
            peers[peer] = {
                "smoothed_rtt_us": flow.rtt.smoothed / 1000,
                "window_packets": flow.control.window,
                "in_flight_packets": flow.in_flight,
            }
        result: dict[str, Any] = {"transport": endpoint.counters(), "udp": self._port.metrics(), "peers": peers}
        result["senders"] = endpoint.evenness.metrics()
        if self._faulty is not None:
            result["faults"] = self._faulty.injector.metrics()
        return result

    def close(self, linger_s: float = LINGER_S) -> None:
        """Leaves in good order: waits until peers have what they need, then says goodbye and waits for theirs.

        Args:
            linger_s: How long to wait for the others' goodbyes.  What is still to be delivered is waited for as long as peers may
                be silent.
        """
        engine = self.engine
        try:
            if engine.error is None:
                limit = max(linger_s, self._policy.timeouts.peer_s)
                self.wait_until(lambda: engine.idle or engine.error is not None, limit)
            if engine.error is None:
                with contextlib.suppress(ClosedError):
                    self.thread.call(engine.leave)
                # A peer whose last acknowledgement was lost will ask again: answer until all have left too.
                peers = set(engine.endpoint.peers)
                if self.wait_until(lambda: engine.left >= peers or engine.error is not None, linger_s):
                    for _ in range(2):
                        with contextlib.suppress(ClosedError):
                            self.thread.call(engine.leave)
            if engine.error is not None:
                self.wait_until(lambda: not engine.aborting, ABORT_LINGER_S)
                # Peers that are closing do not care for the failure, but wait for this.
                with contextlib.suppress(ClosedError):
                    self.thread.call(engine.endpoint.goodbye)
        finally:
            self._stop()

    def _stop_thread(self) -> bool:
        return not self._started or self.thread.stop()

    def _stop(self) -> None:
        if self._stop_thread():
            self._port.close()
