"""Captures: real ones from the loopback interface, and hand-made ones for traffic that nobody sends."""

import os
import shutil
import socket
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dlcp.wire import codec
from dlcp.wire.bodies import BODIES
from dlcp.wire.header import ABORT_BODY, FEEDBACK_BODY, HEADER, HELLO_BODY, REPORT_BODY, PacketType
from dlcp.wire.wireshark import dissector

PACKET_OUTGOING = 4
SO_ATTACH_FILTER = 26
LOOPBACK_MAC = bytes(6)


def write_pcap(path, frames, wire_lengths=None):
    """Writes Ethernet frames as a pcap file; ``wire_lengths`` tells how long they were before they were cut."""
    with Path(path).open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1))
        for k, frame in enumerate(frames):
            wire = len(frame) if wire_lengths is None else wire_lengths[k]
            file.write(struct.pack("<IIII", 1_700_000_000 + k // 1000, k % 1000 * 1000, len(frame), wire) + frame)
    return path


def udp_frame(payload, sport=40_000, dport=40_001, tos=0):
    """Wraps a UDP payload in Ethernet and IPv4."""
    udp = struct.pack("!HHHH", sport, dport, 8 + len(payload), 0)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, tos, 28 + len(payload), 0, 0, 64, 17, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
    total = sum(word for (word,) in struct.iter_unpack("!H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + ip[12:]
    return LOOPBACK_MAC + LOOPBACK_MAC + b"\x08\x00" + ip + udp + payload


def random_datagram(rng, kind):
    """Draws a well-formed datagram of one type: random header and body, and the size that they say."""
    fields = {f.name: int(rng.integers(0, 1 << f.bits, dtype=np.uint64)) for f in HEADER.fields}
    fields |= {"type": int(kind), "reserved": 0}
    del fields["version"], fields["check"]
    body, layout = b"", BODIES[kind].layout
    if layout:
        values = {f.name: int(rng.integers(0, 1 << min(f.bits, 63))) for f in layout.fields if not f.name.startswith("reserved")}
        tail = b""
        if layout is REPORT_BODY:
            bits = rng.integers(0, 2, int(rng.integers(0, 300))).astype(np.uint8)
            values |= {"packets": len(bits), "missing": int(bits.sum())}
            tail = np.packbits(bits).tobytes()
        elif layout is HELLO_BODY:
            tail = rng.bytes(int(rng.integers(0, 400))) if kind is PacketType.HELLO else b""
            values["datagram"] = 64 + len(tail)
        elif layout is ABORT_BODY:
            tail = "Rang 3 schweigt — größer als erlaubt".encode()[: int(rng.integers(0, 30))]
        body = layout.encode(1, **values).tobytes() + tail
    if kind is PacketType.DATA:
        fields["stride"] = int(rng.integers(1, 180)) * 8
        fields["length"] = int(rng.integers(1, 1 << 20))
        fields["offset"] = int(rng.integers(0, -(-fields["length"] // fields["stride"]))) * fields["stride"]
        if not fields["trimmed"]:
            body = rng.bytes(min(fields["stride"], fields["length"] - fields["offset"]))
    return codec.encode_headers(1, **fields).tobytes() + body


@dataclass
class Sent:
    payload: bytes
    tos: int


class LoopbackCapture:
    """Real datagrams between two real sockets, and a packet socket on the loopback interface that sees them pass."""

    def __init__(self):
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sender.bind(("127.0.0.1", 0))
        self.receiver.bind(("127.0.0.1", 0))
        self.receiver.settimeout(10)
        self.port = self.sender.getsockname()[1]
        self.tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        # Everybody's loopback traffic passes here; the kernel sorts out ours before it can fill the buffer.
        code = [
            (0x28, 0, 0, 12),  # ldh  ethertype
            (0x15, 0, 5, 0x0800),  # jeq  IPv4
            (0x30, 0, 0, 23),  # ldb  protocol
            (0x15, 0, 3, 17),  # jeq  UDP
            (0x28, 0, 0, 34),  # ldh  source port of a header without options
            (0x15, 0, 1, self.port),
            (0x06, 0, 0, 0x40000),  # accept
            (0x06, 0, 0, 0),  # reject
        ]
        self._program = b"".join(struct.pack("HBBI", *line) for line in code)
        self._buffer = np.frombuffer(self._program, np.uint8).copy()
        pointer = struct.pack("HxxxxxxP" if struct.calcsize("P") == 8 else "HxxP", len(code), self._buffer.ctypes.data)
        self.tap.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, pointer)
        self.tap.bind(("lo", 3))  # ETH_P_ALL
        self.tap.settimeout(10)
        self.frames = []

    def exchange(self, payload, tos=0, segment=None):
        """Sends one datagram (or one that the kernel will cut into segments) and waits until both ends of the wire have it."""
        control = [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack("i", tos))]
        if segment:
            control.append((socket.IPPROTO_UDP, 103, struct.pack("H", segment)))  # UDP_SEGMENT
        self.sender.sendmsg([payload], control, 0, self.receiver.getsockname())
        parts = [payload[k : k + segment] for k in range(0, len(payload), segment)] if segment else [payload]
        for part in parts:
            assert self.receiver.recv(65_536) == part
        while True:
            frame, address = self.tap.recvfrom(70_000)
            if address[2] == PACKET_OUTGOING:
                self.frames.append(frame)
                return

    def save(self, path):
        return write_pcap(path, self.frames)

    def close(self):
        for opened in (self.sender, self.receiver, self.tap):
            opened.close()


@pytest.fixture
def loopback():
    """A :class:`LoopbackCapture`."""
    if not hasattr(socket, "AF_PACKET"):
        pytest.skip("no packet sockets on this system: captures need Linux")
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except PermissionError:
        pytest.skip("capturing needs root or CAP_NET_RAW, and this process has neither")
    capture = LoopbackCapture()
    yield capture
    capture.close()


@dataclass
class Tshark:
    """tshark with the dissector loaded and nobody's personal settings."""

    program: str
    script: Path
    home: Path
    # Ephemeral ports may be those of other protocols that Wireshark knows; ours must be recognized all the same.
    any_port = ("-o", "udp.try_heuristic_first:TRUE")

    def __call__(self, capture, *arguments, script=None):
        command = [self.program, "-n", "-X", f"lua_script:{script or self.script}", "-r", str(capture), *arguments]
        environment = os.environ | {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        noise = [line for line in done.stderr.splitlines() if line and not line.startswith("Running as user")]
        assert not noise, noise
        return done.stdout

    def fields(self, capture, *names, options=(), script=None):
        """Returns for every packet the list of values of each field, as text."""
        wanted = [word for name in names for word in ("-e", name)]
        layout = ["-E", "separator=/t", "-E", "occurrence=a", "-E", "aggregator=;"]
        out = self(capture, "-T", "fields", *layout, *wanted, *options, script=script)
        rows = [line.split("\t") for line in out.split("\n")[:-1]]
        return [dict(zip(names, ([v for v in cell.split(";") if v] for cell in row), strict=True)) for row in rows]


@pytest.fixture(scope="session")
def tshark(tmp_path_factory):
    program = shutil.which("tshark")
    if not program:
        pytest.skip("tshark is not installed (apt-get install --no-install-recommends tshark)")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    if "with Lua" not in version:
        pytest.skip("this tshark is built without Lua")
    home = tmp_path_factory.mktemp("tshark")
    script = home / "dlcp.lua"
    script.write_text(dissector(), "utf-8")
    return Tshark(program, script, home)


@pytest.fixture(scope="session")
def wire():
    """The helpers of this file, for tests that cannot import it."""

    class Helpers:
        pcap = staticmethod(write_pcap)
        frame = staticmethod(udp_frame)
        datagram = staticmethod(random_datagram)
        layouts = (HEADER, FEEDBACK_BODY, REPORT_BODY, HELLO_BODY, ABORT_BODY)

    return Helpers
