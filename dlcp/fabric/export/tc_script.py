"""Sets a Linux switch up: strict-priority queues on each port (HTB), and a classifier that knows which packets may be lost.

Needs Python 3.9 or newer and tc (iproute2), and root; nothing else, no compiler.  The rest of the file says what for which port.

    ./NAME.tc.py up [PORT ...]        configure the ports (all by default)
    ./NAME.tc.py status [--json]      what was forwarded, given up and marked, by class
    ./NAME.tc.py down [PORT ...]      take the configuration off again
    ./NAME.tc.py up --dev 1=eth4      port 1 is the interface eth4 here
"""

import argparse
import ctypes
import json
import os
import platform
import re
import struct
import subprocess
import sys
import tempfile
from typing import Any

BPF_MAP_CREATE, BPF_MAP_LOOKUP_ELEM, BPF_PROG_LOAD, BPF_OBJ_PIN = 0, 1, 5, 6
BPF_PROG_GET_FD_BY_ID, BPF_MAP_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD = 13, 14, 15
BPF_MAP_TYPE_ARRAY, BPF_PROG_TYPE_SCHED_CLS = 2, 3
SYS_BPF = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "loongarch64": 280, "ppc64le": 361, "s390x": 351}
HANDLE = "d1c:"
LOG_BYTES = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """What went wrong, in a line."""


def bpf(command: int, attributes: bytes, what: str) -> int:
    """Calls bpf(2)."""
    number = SYS_BPF.get(platform.machine())
    if number is None or sys.byteorder != "little":
        raise Failed(f"bpf(2) is not known for {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    result = int(libc.syscall(number, command, buffer, len(buffer)))
    if result < 0:
        raise Failed(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def load(code: bytes, map_positions: list[int], map_fd: int) -> int:
    """Loads the classifier, with the map written into it, and returns its descriptor."""
    patched = bytearray(code)
    for position in map_positions:
        struct.pack_into("<I", patched, 8 * position + 4, map_fd)
    instructions = ctypes.create_string_buffer(bytes(patched), len(patched))
    licence = ctypes.create_string_buffer(b"Dual MIT/GPL")
    log = ctypes.create_string_buffer(LOG_BYTES)
    where = ctypes.addressof

    def attributes(level: int) -> bytes:
        report = (level, LOG_BYTES if level else 0, where(log) if level else 0)
        fields = (BPF_PROG_TYPE_SCHED_CLS, len(patched) // 8, where(instructions), where(licence), *report)
        return struct.pack("<IIQQIIQ", *fields)

    try:
        return bpf(BPF_PROG_LOAD, attributes(0), "loading the classifier")
    except Failed:
        try:
            return bpf(BPF_PROG_LOAD, attributes(1), "loading the classifier")
        except Failed as error:
            last = log.value.decode(errors="replace").strip().splitlines()[-3:]
            raise Failed(f"{error}: {' | '.join(last)}") from None


def tc(*words: str, check: bool = True) -> str:
    """Runs tc and returns what it prints."""
    try:
        done = subprocess.run(["tc", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Failed("tc is missing; install iproute2") from None
    if check and done.returncode:
        raise Failed(f"tc {' '.join(words)}: {' '.join(done.stderr.split())}")
    return done.stdout


def up(port: dict[str, Any], dev: str) -> None:
    """Configures one port; what was there is replaced."""
    major = HANDLE
    tc("qdisc", "del", "dev", dev, "root", check=False)
    try:
        tc("qdisc", "add", "dev", dev, "root", "handle", major, "htb", "default", f"{port['minor']:x}", "r2q", "1000")
        overhead = ["overhead", str(port["overhead"])]
        shape = [
            "rate",
            f"{port['rate_bps']}bit",
            "ceil",
            f"{port['rate_bps']}bit",
            "burst",
            port["burst"],
            "cburst",
            port["burst"],
        ]
        tc("class", "add", "dev", dev, "parent", major, "classid", f"{major}1", "htb", *shape, *overhead)
        for priority in range(8):
            minor = f"{port['minor'] + priority:x}"
            rate = port["rate_bps"] if priority == 7 else max(port["rate_bps"] // 1000, 8)
            shape = ["rate", f"{rate}bit", "ceil", f"{port['rate_bps']}bit", "burst", port["burst"], "cburst", port["burst"]]
            order = ["prio", str(7 - priority), "quantum", str(port["quantum"])]
            tc("class", "add", "dev", dev, "parent", f"{major}1", "classid", major + minor, "htb", *shape, *order, *overhead)
            tc("qdisc", "add", "dev", dev, "parent", major + minor, "bfifo", "limit", str(port["limit_bytes"]))
        attach(port, dev, major)
        check(dev, major)
    except Failed:
        tc("qdisc", "del", "dev", dev, "root", check=False)
        raise


def attach(port: dict[str, Any], dev: str, major: str) -> None:
    """Loads the classifier and hands it to tc through a file system of its own; the filter keeps it alive."""
    map_fd = bpf(BPF_MAP_CREATE, struct.pack("<IIIII", BPF_MAP_TYPE_ARRAY, 4, port["map_bytes"], 1, 0), "making a map")
    program = -1
    try:
        program = load(bytes.fromhex("".join(port["code"])), port["maps"], map_fd)
        with tempfile.TemporaryDirectory(prefix="dlcp-tc-") as folder:
            mounted = libc.mount(b"bpf", folder.encode(), b"bpf", 0, None)
            if mounted:
                raise Failed(f"mounting a bpf file system: {os.strerror(ctypes.get_errno())}")
            try:
                path = ctypes.create_string_buffer(f"{folder}/classifier".encode())
                bpf(BPF_OBJ_PIN, struct.pack("<QII", ctypes.addressof(path), program, 0), "pinning the classifier")
                what = ["bpf", "da", "object-pinned", f"{folder}/classifier", "classid", major]
                tc("filter", "add", "dev", dev, "parent", major, "protocol", "all", "prio", "1", *what)
            finally:
                libc.umount2(folder.encode(), 0)
    finally:
        for fd in (map_fd, program):
            if fd >= 0:
                os.close(fd)


def check(dev: str, major: str) -> None:
    """Reads back what tc says it has: some kernels lack parts and tc does not always complain."""
    leaves = len(re.findall(r"^qdisc bfifo ", tc("qdisc", "show", "dev", dev), re.MULTILINE))
    filters = len(re.findall(r"\bid \d+", tc("filter", "show", "dev", dev, "parent", major)))
    if leaves != 8 or filters != 1:
        raise Failed(
            f"{dev}: {leaves} queues and {filters} classifiers were made, not 8 and 1; does this kernel have HTB and cls_bpf?"
        )


def counters(port: dict[str, Any], dev: str) -> list[dict[str, int]]:
    """Reads the classifier's counters, by class."""
    found = re.search(r"\bid (\d+)", tc("filter", "show", "dev", dev, "parent", HANDLE, check=False))
    if found is None:
        raise Failed(f"{dev} is not configured; run up")
    open_fds = []
    try:
        open_fds.append(bpf(BPF_PROG_GET_FD_BY_ID, struct.pack("<III", int(found[1]), 0, 0), "finding the classifier"))
        ids = (ctypes.c_uint32 * 4)()
        info = ctypes.create_string_buffer(256)
        # struct bpf_prog_info: nr_map_ids stands at 52, map_ids (a pointer) at 56.
        struct.pack_into("<IQ", info, 52, len(ids), ctypes.addressof(ids))
        fields = struct.pack("<IIQ", open_fds[0], len(info), ctypes.addressof(info))
        bpf(BPF_OBJ_GET_INFO_BY_FD, fields, "asking for the map")
        open_fds.append(bpf(BPF_MAP_GET_FD_BY_ID, struct.pack("<III", ids[0], 0, 0), "finding the map"))
        key, value = ctypes.c_uint32(0), ctypes.create_string_buffer(port["map_bytes"])
        where = ctypes.addressof
        fields = struct.pack("<IIQQQ", open_fds[1], 0, where(key), where(value), 0)
        bpf(BPF_MAP_LOOKUP_ELEM, fields, "reading the map")
    finally:
        for fd in open_fds:
            os.close(fd)
    names = port["counters"]
    numbers = struct.unpack_from(f"<{8 * len(names)}Q", value.raw, port["map_bytes"] - 64 * len(names))
    return [{name: numbers[len(names) * index + place] for place, name in enumerate(names)} for index in range(8)]


def show(ports: list[tuple[dict[str, Any], str]], as_json: bool) -> None:
    """Prints the counters."""
    read = [{"port": port["port"], "dev": dev, "classes": counters(port, dev)} for port, dev in ports]
    if as_json:
        print(json.dumps(read, indent=2))
        return
    print(f"{'port':>4} {'interface':<15} {'class':>5} " + " ".join(f"{name:>14}" for name in ports[0][0]["counters"]))
    for each in read:
        for index in reversed(range(8)):
            row = each["classes"][index]
            print(f"{each['port']:>4} {each['dev']:<15} {index:>5} " + " ".join(f"{number:>14}" for number in row.values()))


def chosen(plan: dict[str, Any], args: argparse.Namespace) -> list[tuple[dict[str, Any], str]]:
    """Returns the ports that are meant, and their interfaces."""
    names = {}
    for pair in args.dev:
        number, _, dev = pair.partition("=")
        if not number.isdigit() or not dev:
            raise Failed(f"--dev {pair}: PORT=INTERFACE is wanted, such as 1=eth4")
        names[int(number)] = dev
    known = {port["port"]: port for port in plan["ports"]}
    for number in [*args.port, *names]:
        if number not in known:
            raise Failed(f"there is no port {number}; there are {', '.join(map(str, known))}")
    wanted = args.port or list(known)
    return [(known[number], names.get(number, known[number]["interface"])) for number in wanted]


def main(plan: dict[str, Any]) -> int:
    """Runs a command on what ``plan`` says."""
    parser = argparse.ArgumentParser(description=f"queues of the switch {plan['switch']}", epilog=plan["summary"])
    parser.add_argument("command", choices=("up", "down", "status"))
    parser.add_argument("port", nargs="*", type=int, help="ports (all by default)")
    parser.add_argument("--dev", action="append", default=[], metavar="PORT=INTERFACE", help="the interface of a port")
    parser.add_argument("--json", action="store_true", help="status as JSON")
    args = parser.parse_intermixed_args()
    try:
        if os.geteuid():
            raise Failed("root is needed")
        ports = chosen(plan, args)
        if args.command == "status":
            show(ports, args.json)
        for port, dev in ports if args.command != "status" else ():
            if not os.path.isdir(f"/sys/class/net/{dev}"):  # noqa: PTH112  one module less to import
                raise Failed(f"port {port['port']}: there is no interface {dev}; name it with --dev {port['port']}=INTERFACE")
            if args.command == "up":
                up(port, dev)
            else:
                tc("qdisc", "del", "dev", dev, "root")
            print(f"port {port['port']}: {dev} {args.command}")
    except Failed as error:
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        return 1
    return 0
