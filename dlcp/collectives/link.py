"""Brings one rank onto the network: socket, rendezvous, endpoint, engine, I/O thread, greeting; and takes it off again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from dlcp.collectives.collective import Collective
from dlcp.collectives.engine import Engine
from dlcp.collectives.rendezvous import Entry, Job, meet
from dlcp.errors import ClosedError, MtuError, UnreachableError
from dlcp.policy import Policy
from dlcp.store import Store
from dlcp.transport.endpoint import Endpoint
from dlcp.transport.events import MessageReceived, PeerReached
from dlcp.udp.faults import FaultPlan
from dlcp.udp.port import DatagramPort
from dlcp.udp.thread import IOThread
from dlcp.wire.header import HEADER_BYTES, VERSION

LINGER_S: Final = 3.0
"""How long a closing rank still answers peers whose last acknowledgement was lost."""


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
    """

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
        faults: FaultPlan | None,
        name: str,
        serve: Callable[[Engine, MessageReceived], Collective | None] | None = None,
    ) -> None:
        total = world + servers
        self._port = DatagramPort(host, port, receive_buffer_bytes=policy.memory.receive_buffer_bytes)
        self._faulty: Any = None
        try:
            self.address = self._port.address
            ipv6 = ":" in self.address[0]
            stride = policy.payload_bytes(policy.wire.datagram_mtu(self._port.mtu), ipv6=ipv6)
            entry = Entry(
                rank=rank,
                world=total,
                servers=servers,
                protocol=VERSION,
                algorithm=algorithm,
                policy=policy.to_dict(),
                host=self.address[0],
                port=self.address[1],
                stride=stride,
            )
            job = meet(store, entry, prefix=f"dlcp/{name}", timeout_s=policy.timeouts.connect_s)
            for other in job.entries:
                if other.rank != rank:
                    self._port.connect_peer(other.rank, (other.host, other.port))
            endpoint = Endpoint(
                rank=rank,
                world=total,
                cookie=job.cookie,
                policy=policy,
                stride=job.stride,
                receive_window=self._port.receive_buffer // 2,
                now=time.monotonic_ns(),
            )
            self._reached: dict[bool, set[int]] = {False: set(), True: set()}
            self._changed = threading.Condition()
            self.engine = Engine(rank, policy, endpoint, on_reached=self._on_reached)
            if serve is not None:
                self.engine.serve = lambda event: serve(self.engine, event)
            self.thread = IOThread(self._wrap(faults, rank), self.engine, name=f"dlcp-io-{rank}")
        except BaseException:
            self._port.close()
            raise
        self.thread.start()
        try:
            self._greet(job, rank, policy)
        except BaseException:
            self._stop()
            raise

    def _wrap(self, faults: FaultPlan | None, rank: int) -> Any:
        if faults is None:
            return self._port
        from dlcp.udp.inject import FaultyPort

        self._faulty = FaultyPort(self._port, faults, stream=rank)
        return self._faulty

    def _on_reached(self, event: PeerReached) -> None:
        with self._changed:
            self._reached[event.full_size].add(event.peer)
            self._changed.notify_all()

    def _greet(self, job: Job, rank: int, policy: Policy) -> None:
        """Makes sure that every peer answers, and answers to datagrams of full size."""
        peers = {entry.rank: entry for entry in job.entries if entry.rank != rank}
        endpoint = self.engine.endpoint

        def greet(now: int) -> None:
            for peer in peers:
                endpoint.greet(peer, now)

        def all_reached() -> bool:
            return all(self._reached[size] >= peers.keys() for size in (False, True)) or self.engine.error is not None

        self.thread.call(greet)
        limit = policy.timeouts.connect_s
        with self._changed:
            done = self._changed.wait_for(lambda: all_reached() or not self.thread.alive, limit)
        if self.engine.error is not None:
            raise self.engine.error
        if self.thread.error is not None:
            raise self.thread.error
        if done and all_reached():
            return
        self.thread.call(lambda now: endpoint.stop_greeting())
        for peer, entry in peers.items():
            where = f"{entry.host}:{entry.port}"
            if peer not in self._reached[False]:
                hint = "is the address reachable from here, and UDP allowed by firewalls on the way?"
                raise UnreachableError(peer, where, limit, hint)
            if peer not in self._reached[True]:
                size = job.stride + HEADER_BYTES
                raise MtuError(
                    f"rank {peer} at {where} answers, but not to datagrams of {size} bytes: a link on the way has a smaller MTU; "
                    "set wire.mtu in the policy"
                )

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until ``condition``, evaluated in the I/O thread, holds; returns whether it does."""
        met = threading.Event()
        try:
            self.thread.call(lambda now: self.engine.watch(condition, met.set))
        except ClosedError:
            return False
        return met.wait(timeout_s)

    def metrics(self) -> dict[str, Any]:
        """Returns counters of transport and socket, and each flow's state."""
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
        if self._faulty is not None:
            result["faults"] = self._faulty.injector.metrics()
        return result

    def close(self, linger_s: float = LINGER_S) -> None:
        """Says goodbye and stops."""
        engine = self.engine
        if engine.error is None:
            self.wait_until(lambda: engine.idle or engine.error is not None, linger_s)
        if engine.error is None:
            try:
                for _ in range(2):
                    self.thread.call(engine.endpoint.goodbye)
            except ClosedError:
                pass
            # A peer whose last acknowledgement was lost will ask again: answer until all have left too.
            peers = set(engine.endpoint.peers)
            self.wait_until(lambda: engine.left >= peers or engine.error is not None, linger_s)
        else:
            self.wait_until(lambda: not engine.aborting, 1.0)
        self._stop()

    def _stop(self) -> None:
        if self.thread.stop():
            self._port.close()
