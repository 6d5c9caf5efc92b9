"""The targets that are measured, as processes: how each is started, what CPU time it has used, and how it is ended."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from dlcp.bench.switch.network import HostLacks
from dlcp.errors import DLCPError

BMV2: Final = "simple_switch_grpc"
CPU_PORT: Final = 510
_READY_S: Final = 30.0
_WITH_SYSFS: Final = ("unshare", "--mount", "sh", "-c", 'mount -t sysfs sysfs /sys && exec "$0" "$@"')
"""BMv2 reads in /sys whether its ports are up, and takes those that it does not find for down: /sys must be the namespace's."""


class TargetDied(DLCPError):
    """A target ended while it was measured."""


def bmv2_path() -> str | None:
    """Returns where simple_switch_grpc is, or None."""
    return shutil.which(BMV2)


class TargetProcess:
    """A running target; a context manager that ends it.

    Args:
        name: ``softswitch`` or ``bmv2``.
        ports: Port number to interface.
        grpc: Port of its P4Runtime server on 127.0.0.1.
        log: Receives its output.
    """

    def __init__(self, name: str, ports: Mapping[int, str], grpc: int, log: IO[bytes]) -> None:
        self.name = name
        self.address = f"127.0.0.1:{grpc}"
        interfaces = [word for number, interface in ports.items() for word in ("-i", f"{number}@{interface}")]
        own = ["--grpc-server-addr", self.address, "--cpu-port", str(CPU_PORT), "--priority-queues", "8"]
        if name == "softswitch":
            command = [sys.executable, "-m", "softswitch", "--no-p4", "--device-id", "1", *interfaces, *own]
        else:
            command = [*_WITH_SYSFS, BMV2, "--no-p4", "--device-id", "1", "--log-level", "off"]
            command += ["--thrift-port", str(grpc + 1000), *interfaces, "--", *own]
        self._log = log
        self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self.pid = self._process.pid

    def wait_until_listening(self) -> None:
        """Waits until its server listens.

        Raises:
            HostLacks: It ended instead, or takes too long.
        """
        port = int(self.address.rpartition(":")[2])
        # Connecting would be simpler, but a gRPC server takes it for a client.
        suffix = f":{port:04X} "
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            for table in ("tcp", "tcp6"):
                path = Path(f"/proc/thread-self/net/{table}")
                lines = path.read_text().splitlines()[1:] if path.exists() else []
                if any(f"{line.split()[1]} ".endswith(suffix) and line.split()[3] == "0A" for line in lines):
                    return
            time.sleep(0.02)
        self._log.flush()
        said = Path(self._log.name).read_text(errors="replace").strip().splitlines()
        raise HostLacks(f"{self.name} did not start: {said[-1] if said else 'it said nothing'}")

    def check(self) -> None:
        """Makes sure that it still runs.

        Raises:
            TargetDied: It does not.
        """
        code = self._process.poll()
        if code is not None:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise TargetDied(f"{self.name} {how} during the measurement")

    def cpu_seconds(self) -> tuple[float, float]:
        """Returns the CPU time of all its threads, and of its first thread alone (the softswitch's data plane)."""
        total = first = 0.0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                used = int((task / "schedstat").read_text().split()[0]) / 1e9
            except OSError:
                continue
            total += used
            if task.name == str(self.pid):
                first = used
        return total, first

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)


__all__ = ["BMV2", "TargetDied", "TargetProcess", "bmv2_path"]
