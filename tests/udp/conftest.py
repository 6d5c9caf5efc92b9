"""Real sockets for the tests of the shell."""

import ctypes
import itertools
import os
import queue
import select
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dlcp.transport.packets import Burst, Frames
from dlcp.udp import Capabilities, DatagramPort, IOThread
from dlcp.udp.probe import probe
from dlcp.wire.header import HEADER_BYTES

FLAGS = ("segmentation", "receive_offload", "sendmmsg", "recvmmsg", "tos_cmsg", "recv_tos")


def combinations(family: int = socket.AF_INET) -> list[Capabilities]:
    """Every subset of what this kernel can do."""
    found = probe(family)
    subsets = []
    for choice in itertools.product((False, True), repeat=len(FLAGS)):
        flags = dict(zip(FLAGS, choice, strict=True))
        if all(getattr(found, name) or not wanted for name, wanted in flags.items()):
            subsets.append(replace(found, **flags, max_segments=found.max_segments if flags["segmentation"] else 1))
    return subsets


def name_of(capabilities: Capabilities) -> str:
    return "+".join(name for name in FLAGS if getattr(capabilities, name)) or "plain"


class Tools:
    """What several test files need; a fixture, because test files do not import one another."""

    combinations = staticmethod(combinations)
    name_of = staticmethod(name_of)

    @staticmethod
    def burst(
        rng: np.random.Generator,
        sizes: list[int],
        *,
        peer: int = 0,
        tos: int = 0,
        width: int = HEADER_BYTES,
        payload: np.ndarray | None = None,
    ) -> Burst:
        """A burst of random bytes, whose datagrams lie anywhere in the payload."""
        headers = rng.integers(0, 256, (len(sizes), width), np.uint8)
        lengths = np.array(sizes, np.int64)
        if payload is None:
            payload = rng.integers(0, 256, max([*sizes, 1]) * 3, np.uint8)
        offsets = np.array([rng.integers(0, payload.size - size + 1) for size in sizes], np.int64)
        return Burst(peer, tos, headers, payload, offsets, lengths)

    @staticmethod
    def send_all(port: DatagramPort, bursts: list[Burst]) -> None:
        """Sends everything, waiting for the kernel where it must."""
        left = list(bursts)
        while left:
            del left[: port.send(left)]
            if left:
                select.select([], [port], [], 5.0)

    @staticmethod
    def flatten(frames: list[Frames]) -> list[tuple[bytes, int]]:
        """(datagram, ECN) of every row."""
        result = []
        for batch in frames:
            assert len(batch.data) == len(batch.lengths) == len(batch.ecn)
            assert batch.data.dtype == np.uint8 and batch.lengths.dtype == np.int64 and batch.ecn.dtype == np.uint8
            assert int(batch.lengths.max()) <= batch.data.shape[1]
            for row, length, ecn in zip(batch.data, batch.lengths.tolist(), batch.ecn.tolist(), strict=True):
                result.append((row[:length].tobytes(), ecn))
        return result

    @classmethod
    def receive_all(cls, port: DatagramPort, count: int, seconds: float = 5.0) -> list[tuple[bytes, int]]:
        """Receives until ``count`` datagrams are there, then whatever else is there at once."""
        got: list[tuple[bytes, int]] = []
        while len(got) < count and select.select([port], [], [], seconds)[0]:
            got += cls.flatten(port.receive())
        while frames := port.receive():
            got += cls.flatten(frames)
        return got


@pytest.fixture(scope="session")
def tools() -> type[Tools]:
    return Tools


@pytest.fixture
def open_port() -> Iterator[Callable[..., DatagramPort]]:
    """Opens ports and closes them after the test."""
    ports: list[DatagramPort] = []

    def make(*arguments, **settings) -> DatagramPort:
        ports.append(DatagramPort(*arguments, **settings))
        return ports[-1]

    yield make
    for port in ports:
        port.close()


class Recorder:
    """A machine that notes what is done to it, and does as it is told."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.outbox: deque[list[Burst]] = deque()
        self.timer: int | None = None
        self.interval = 0
        self.on_timer = lambda now: None
        self.failures: list[BaseException] = []
        self.failed = threading.Event()
        self.thread: threading.Thread | None = None

    def _here(self) -> None:
        self.thread = self.thread or threading.current_thread()
        assert threading.current_thread() is self.thread

    def receive(self, frames: list[Frames], now: int) -> None:
        self._here()
        for batch in frames:
            for row, length in zip(batch.data, batch.lengths.tolist(), strict=True):
                self.events.put(("receive", row[:length].tobytes(), now))

    def transmit(self, now: int, room: int) -> list[Burst]:
        self._here()
        return self.outbox.popleft() if self.outbox else []

    def receive_interval(self) -> int:
        return self.interval

    def next_timer(self) -> int | None:
        return self.timer

    def handle_timer(self, now: int) -> None:
        self._here()
        assert self.timer is not None and now >= self.timer
        self.timer = None
        self.events.put(("timer", now))
        self.on_timer(now)

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)
        self.failed.set()

    def next(self, kind: str):
        event = self.events.get(timeout=20.0)
        assert event[0] == kind
        return event[1]


@pytest.fixture(scope="session")
def recorder() -> type[Recorder]:
    return Recorder


@pytest.fixture
def run(open_port):
    """Starts threads on ports and stops them after the test."""
    threads: list[IOThread] = []

    def start(machine, port=None, **settings) -> IOThread:
        thread = IOThread(open_port() if port is None else port, machine, **settings)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        assert thread.stop(20.0)
        assert not thread.alive


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "capabilities" in metafunc.fixturenames:
        metafunc.parametrize("capabilities", combinations(), ids=name_of)


class Namespaces:
    """Two network namespaces joined by a veth pair; commands run inside with ``ip netns exec``."""

    def __init__(self, mtu: int) -> None:
        unique = f"{os.getpid()}-{os.urandom(3).hex()}"
        self.left, self.right = f"dlcp-l-{unique}", f"dlcp-r-{unique}"
        self.addresses = {self.left: "10.117.0.1", self.right: "10.117.0.2"}
        self.mtu = mtu

    @staticmethod
    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)

    @staticmethod
    def inside(name: str, *command: str) -> None:
        """Runs a command inside a namespace; OSError if it fails or is not installed."""
        done = subprocess.run(["ip", "netns", "exec", name, *command], check=False, capture_output=True, text=True, timeout=20)
        if done.returncode:
            raise OSError(done.stderr.strip())

    @staticmethod
    def run(name: str, function: Callable[[], object]) -> object:
        """Runs a function in a thread inside a namespace; sockets opened there stay there."""
        setns = ctypes.CDLL(None, use_errno=True).setns

        def enter() -> object:
            with Path(f"/run/netns/{name}").open() as handle:
                if setns(handle.fileno(), 0) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            return function()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(enter).result(60)

    def __enter__(self) -> "Namespaces":
        try:
            self.ip("netns", "add", self.left)
            self.ip("netns", "add", self.right)
            self.ip("-n", self.left, "link", "add", "v0", "type", "veth", "peer", "name", "v0", "netns", self.right)
            for name, address in self.addresses.items():
                self.ip("-n", name, "address", "add", f"{address}/24", "dev", "v0")
                self.ip("-n", name, "link", "set", "v0", "mtu", str(self.mtu), "up")
                self.ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (self.left, self.right):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=20)


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Namespaces]:
    with ExitStack() as stack:
        try:
            both = stack.enter_context(Namespaces(1500))
        except (OSError, subprocess.SubprocessError) as problem:
            pytest.skip(f"no network namespaces here: {problem}")
        yield both
