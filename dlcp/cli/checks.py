"""What a host can do, asked one question at a time.

Every answer comes from trying, never from a version number: a kernel that knows a socket option may still not honour it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dlcp.policy import Policy

TOOL_TIMEOUT_S: Final = 20
_SO_RCVBUFFORCE: Final = 33  # socket(7); Python's socket module has no name for it
_SO_SNDBUFFORCE: Final = 32
_CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13}  # capability.h


@dataclass(frozen=True)
class Check:
    """One answer.

    Attributes:
        id: Stable name, for scripts (``--require``).
        group: Heading under which it is shown.
        what: What was asked, in words.
        ok: Whether the host can do it.
        detail: What was found: a version, a number, or why not.
        lost: What does not work, or works worse, without it.
        remedy: How to get it.
    """

    id: str
    group: str
    what: str
    ok: bool
    detail: str
    lost: str
    remedy: str

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data."""
        return asdict(self)


def output_of(command: Sequence[str]) -> tuple[int, str]:
    """Runs a command and returns its exit code and its output, both streams; 127 if it is not there, 124 if it hangs."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return 127, f"{command[0]} is not installed"
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {TOOL_TIMEOUT_S} s"
    except OSError as error:
        return 126, str(error)
    return done.returncode, done.stdout.decode(errors="replace").strip()


def udp() -> Iterator[Check]:
    """Probes the socket features that the shell uses, by real datagrams over loopback."""
    group = "UDP"
    failure = ""
    found: Any = None
    try:
        from dlcp.udp.probe import probe

        found = probe()
    except (ImportError, OSError) as error:
        failure = f"probe failed: {error}"

    def check(name: str, what: str, lost: str, remedy: str, detail: str = "") -> Check:
        ok = bool(getattr(found, name, False))
        return Check(
            f"udp.{name}", group, what, ok, failure or (detail if ok else "") or ("works" if ok else "refused"), lost, remedy
        )

    segments = f"{getattr(found, 'max_segments', 0)} segments a call"
    newer = "run a Linux kernel of version {} or newer"
    yield check(
        "segmentation",
        "Segmentation offload (UDP_SEGMENT)",
        "cheap sending; sendmmsg is used instead, at about 15 times the CPU",
        newer.format("4.18"),
        segments,
    )
    yield check(
        "receive_offload",
        "Receive offload (UDP_GRO)",
        "cheap receiving; recvmmsg is used instead, at about 10 times the CPU",
        newer.format("5.0"),
    )
    yield check(
        "sendmmsg",
        "Several datagrams a call (sendmmsg)",
        "batched sending; every datagram takes a system call",
        newer.format("3.0"),
    )
    yield check(
        "recvmmsg",
        "Several datagrams a call (recvmmsg)",
        "batched receiving; every datagram takes a system call",
        newer.format("2.6.33"),
    )
    yield check(
        "tos_cmsg",
        "ToS for each call (IP_TOS control message)",
        "a ToS of its own for each batch; every change of class or protection takes one more system call",
        newer.format("3.13"),
    )
    yield check(
        "recv_tos",
        "ToS of what arrives (IP_RECVTOS)",
        'congestion marks (ECN); dctcp sees losses only, so choose congestion.algorithm = "delay"',
        newer.format("2.2"),
    )


def buffers() -> Iterator[Check]:
    """Asks for the socket buffers that the default policy wants, and looks at what was granted."""
    memory = Policy().memory
    rows = (
        (
            "receive",
            socket.SO_RCVBUF,
            _SO_RCVBUFFORCE,
            "rmem_max",
            "room for bursts; above some 200 Mbit/s they overflow and packets are lost",
        ),
        ("send", socket.SO_SNDBUF, _SO_SNDBUFFORCE, "wmem_max", "room for a whole batch; the sender wakes up more often"),
    )
    wanted = {"receive": memory.receive_buffer_bytes, "send": memory.receive_buffer_bytes // 4}
    for name, option, force, limit, lost in rows:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            try:
                sock.setsockopt(socket.SOL_SOCKET, force, wanted[name])
            except OSError:
                sock.setsockopt(socket.SOL_SOCKET, option, wanted[name])
            granted = sock.getsockopt(socket.SOL_SOCKET, option) // 2  # the kernel reports twice what it lets the user have
        yield Check(
            f"buffer.{name}",
            "UDP",
            f"{name.capitalize()} buffer of {wanted[name] >> 20} MiB",
            granted >= wanted[name],
            f"{granted / (1 << 20):.1f} MiB granted",
            lost,
            f"sysctl -w net.core.{limit}={wanted[name]}, or run with CAP_NET_ADMIN",
        )


def compiled() -> Iterator[Check]:
    """Compiles what is done with every packet, or finds that it cannot."""
    wrong = ""
    try:
        from dlcp.transport import arrivals
        from dlcp.udp import batch

        halves = {"received": arrivals.compiled(), "sent": batch.FITS and batch.compiled()}
        wrong = " and ".join(name for name, function in halves.items() if not function)
    except (ImportError, OSError, RuntimeError) as error:
        wrong = f"({error})"
    if os.environ.get("DLCP_COMPILED") == "0":
        detail = "switched off by DLCP_COMPILED=0"
    elif wrong:
        detail = f"packets {wrong} are handled by interpreted Python; llvmlite {_version('llvmlite')}"
    else:
        detail = f"both ways; llvmlite {_version('llvmlite')}"
    yield Check(
        "compiled",
        "UDP",
        "Compiled code for every packet",
        not wrong,
        detail,
        "cheap packets; interpreted Python does the same, at more than 10 times the CPU",
        "pip install 'llvmlite>=0.44', and leave DLCP_COMPILED unset",
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "is not installed"


def rights() -> Iterator[Check]:
    """Looks at the user and the effective capabilities of this process."""
    user = os.geteuid()
    yield Check("root", "Rights", "Root", user == 0, f"user id {user}", "emulated networks and captures", "run with sudo")
    effective = _effective_capabilities()
    lost = {
        "CAP_NET_ADMIN": "namespaces and queues, and socket buffers beyond the system's limit",
        "CAP_NET_RAW": "captures and userspace switches",
    }
    for name, bit in _CAPABILITIES.items():
        has = bool(effective >> bit & 1)
        yield Check(
            name.lower(),
            "Rights",
            name,
            has,
            "effective" if has else "not effective",
            lost[name],
            "run with sudo, or setpriv/setcap",
        )


def _effective_capabilities() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)


def tcp() -> Iterator[Check]:
    """Looks for the congestion control against which random loss is honestly compared."""
    try:
        names = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    except OSError:
        names = []
    yield Check(
        "tcp.bbr",
        "Network",
        "TCP BBR",
        "bbr" in names,
        "available: " + (", ".join(names) or "unknown"),
        "gloo's strongest form in comparisons under random loss",
        "modprobe tcp_bbr (kernel option TCP_CONG_BBR)",
    )


def tools() -> Iterator[Check]:
    """Looks for programs, and asks each for its version."""
    rows = (
        ("ip", ["ip", "-V"], "emulated networks", "apt-get install iproute2"),
        ("tc", ["tc", "-V"], "shaped links and queues", "apt-get install iproute2"),
        ("ethtool", ["ethtool", "--version"], "switching offloads off, which emulated switches need", "apt-get install ethtool"),
        ("mnexec", ["mnexec", "-v"], "the Mininet testbed", "apt-get install --no-install-recommends mininet"),
        ("tshark", ["tshark", "--version"], "captures decoded by the Wireshark dissector", "apt-get install tshark"),
        ("iperf3", ["iperf3", "--version"], "cross traffic and a reference for link speed", "apt-get install iperf3"),
        (
            "p4c",
            ["p4c-bm2-ss", "--version"],
            "compiling P4 programs",
            "build p4c from its source (p4lang/p4c), target bmv2",
        ),
        (
            "bmv2",
            ["simple_switch_grpc", "--version"],
            "running P4 programs on the reference software switch",
            "build behavioral-model from its source (p4lang/behavioral-model)",
        ),
    )
    for name, command, use, remedy in rows:
        path = shutil.which(command[0])
        if path is None:
            yield Check(f"tool.{name}", "Tools", name, False, f"{command[0]} is not on PATH", use, remedy)
            continue
        code, output = output_of(command)
        # Under root tshark first warns about being root.
        lines = [line for line in output.splitlines() if any(ch.isdigit() for ch in line) and not line.startswith("Running as")]
        yield Check(f"tool.{name}", "Tools", name, code == 0, lines[0][:60] if lines else path, use, remedy)


def packages() -> Iterator[Check]:
    """Looks for Python packages; torch is asked whether it sees a GPU."""
    rows = (
        ("numpy", "numpy", "everything", "numpy"),
        ("torch", "torch", "training with DDP; the collectives on numpy arrays still work", "torch"),
        ("scapy", "scapy", "the scapy layer for the DLCP header", "scapy"),
        ("sklearn", "scikit-learn", "the digits data of the examples and the demo", "'dlcp[examples]'"),
        ("tensorboard", "tensorboard", "TensorBoard logs", "'dlcp[plots]'"),
        ("grpc", "grpcio", "controlling P4 switches", "'dlcp[p4]'"),
        ("mininet", "mininet", "the Mininet testbed", "'dlcp[testbed]'"),
        ("llvmlite", "llvmlite", "compiled code for packets and for the simulator", "llvmlite"),
        ("matplotlib", "matplotlib", "figures", "'dlcp[plots]'"),
    )
    for module, name, lost, install in rows:
        try:
            detail = version(name) if find_spec(module) is not None else "not installed"
            ok = detail != "not installed"
        except (PackageNotFoundError, ValueError):
            ok, detail = False, "not installed"
        yield Check(f"python.{module}", "Python", name, ok, detail, lost, f"pip install {install}")
    yield _cuda()


def _cuda() -> Check:
    lost = "tagging and packing on a GPU; the CPU does it"
    remedy = "a CUDA build of torch and an NVIDIA driver"
    try:
        import torch
    except (ImportError, OSError) as error:
        return Check("cuda", "Python", "CUDA", False, f"torch: {error}", lost, remedy)
    if not torch.cuda.is_available():
        built = torch.version.cuda
        return Check(
            "cuda", "Python", "CUDA", False, f"built for CUDA {built}, no device" if built else "CPU build", lost, remedy
        )
    return Check("cuda", "Python", "CUDA", True, f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}", lost, remedy)
