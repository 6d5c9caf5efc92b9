"""BMv2's simple_switch on capture files, and random programs of which BMv2 defines every result.

One process sees one packet: simple_switch reuses its packet headers, so that fields of headers which are not valid show what
earlier packets left there.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import time
from pathlib import Path
from random import Random

from tests.softswitch.random_programs import Maker, field, hexstr

UNDEFINED = ("stack_field", '"/"', '"%"', "dereference", "size_stack", "last_stack_index")
"""What simple_switch asserts, or reads beyond an array for, on some values."""


def defined(node: object) -> bool:
    text = json.dumps(node)
    return not any(word in text for word in UNDEFINED)


class DefinedMaker(Maker):
    """Makes programs whose results BMv2 defines, with their entries inside."""

    def data(self, depth: int = 3) -> dict:
        return self._until_defined(super().data, depth)

    def boolean(self, depth: int = 2) -> dict:
        return self._until_defined(super().boolean, depth)

    def target(self) -> dict:
        while (target := super().target())["type"] != "field":
            pass
        return target

    @staticmethod
    def _until_defined(make, *arguments):
        while not defined(node := make(*arguments)):
            pass
        return node

    def primitive(self) -> dict:
        primitive = self._until_defined(super().primitive)
        index = {"register_read": 2, "register_write": 1, "count": 1}.get(primitive["op"])
        if index is not None:
            primitive["parameters"][index] = self.random.choice([hexstr(0), hexstr(2), field("scalars", "s7")])
        return primitive

    def parser_op(self) -> dict:
        """No use of arrays, which simple_switch reads from the JSON after the parser."""
        while True:
            op = super().parser_op()
            used = op["parameters"][0].get("op") if op["op"] == "primitive" else None
            if used not in ("count", "register_read", "register_write", "truncate"):
                return op

    def state(self, number: int, names: list[str]) -> dict:
        """No lookahead in a select, for which simple_switch does not check the packet's length."""
        while True:
            state = super().state(number, names)
            if all(part["type"] == "field" for part in state["transition_key"]):
                return state

    def parser(self) -> dict:
        """No header with a variable-length field twice: simple_switch adds up its lengths."""
        while True:
            parser = super().parser()
            states = [state for state in parser["parse_states"] for op in state["parser_ops"] if op["op"] == "extract_VL"]
            if not states or (
                len(states) == 1 and all(item["next_state"] != states[0]["name"] for item in states[0]["transitions"])
            ):
                return parser

    def calculation(self, number: int) -> dict:
        """Constants with all their bytes, as p4c writes them."""
        calculation = super().calculation(number)
        for item in calculation["input"]:
            if item["type"] == "hexstr":
                item["value"] = f"0x{int(item['value'], 16):0{(item['bitwidth'] + 7) // 8 * 2}x}"
        return calculation

    def any_field(self, signed: bool | None = None) -> tuple[str, str, int]:
        """Fields of whole bytes for longest-prefix matches: simple_switch counts the padding of others as prefix."""
        found = super().any_field(signed)
        while self._prefixes and found[2] % 8:
            found = super().any_field(signed)
        return found

    _prefixes = False

    def table(self, number: int, following: list[str | None], actions: list[dict]) -> dict:
        self._prefixes = True
        table = super().table(number, following, actions)
        while any((key["match_type"], key["target"][1]) == ("lpm", "$valid$") for key in table["key"]):
            table = super().table(number, following, actions)
        self._prefixes = False
        entries: dict[str, dict] = {}
        for priority in range(1, self.random.randint(1, 4) if table["key"] else 1):
            match = [self._match(key) for key in table["key"]]
            action = self.random.choice([action for action in self.actions if action["id"] in table["action_ids"]])
            data = [hexstr(self.random.getrandbits(item["bitwidth"]))["value"] for item in action["runtime_data"]]
            call = {"action_id": action["id"], "action_data": data}
            entries.setdefault(json.dumps(match), {"match_key": match, "action_entry": call, "priority": priority})
        if entries:
            table["entries"] = list(entries.values())
        return table

    def _match(self, key: dict) -> dict:
        header, name = key["target"]
        width = next((item[1] for item in self.types[self.headers[header]] if item[0] == name), 1)
        digits = (width + 7) // 8 * 2
        full = (1 << width) - 1
        value = self.random.choice([0, 1, 2, self.random.getrandbits(width)]) & full
        if key["mask"]:
            value &= int(key["mask"], 16)
        match key["match_type"]:
            case "exact":
                return {"match_type": "exact", "key": f"0x{value:0{digits}x}"}
            case "lpm":
                length = self.random.randint(0, width)
                value = value >> (width - length) << (width - length)
                return {"match_type": "lpm", "key": f"0x{value:0{digits}x}", "prefix_length": length}
            case "ternary":
                mask = self.random.choice([0, 1, full])
                return {"match_type": "ternary", "key": f"0x{value & mask:0{digits}x}", "mask": f"0x{mask:0{digits}x}"}
        end = min(value + 3, full)
        return {"match_type": "range", "start": f"0x{value:0{digits}x}", "end": f"0x{end:0{digits}x}"}


def make_defined(random: Random) -> dict:
    """A program."""
    return DefinedMaker(random).make()


def capture(packets: list[bytes]) -> bytes:
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    return head + b"".join(struct.pack("<IIII", 1, 0, len(data), len(data)) + data for data in packets)


def packets_in(data: bytes) -> list[bytes]:
    packets, place = [], 24
    while place + 16 <= len(data):
        size = struct.unpack_from("<I", data, place + 8)[0]
        if place + 16 + size > len(data):
            break
        packets.append(data[place + 16 : place + 16 + size])
        place += 16 + size
    return packets


def simple_switch(folder: Path, program: dict, packet: bytes, port: int, ports: set[int], patience: float) -> list:
    """Sends one packet into a new simple_switch.

    Args:
        ports: Ports to look at, besides ``port``.
        patience: Seconds to wait for a packet to come out.

    Returns:
        Port and bytes of the packets that came out within that time.
    """
    (folder / "program.json").write_text(json.dumps(program))
    command = ["simple_switch", "--use-files", "0", "--thrift-port", str(free_port()), "program.json"]
    for number in sorted(ports | {port}):
        (folder / f"port{number}_in.pcap").write_bytes(capture([packet] if number == port else []))
        command[1:1] = ["-i", f"{number}@port{number}"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + patience
        while time.monotonic() < end:
            found = []
            for number in sorted(ports | {port}):
                file = folder / f"port{number}_out.pcap"
                if file.exists():
                    found += [(number, data) for data in packets_in(file.read_bytes())]
            if found:
                return found
            if process.poll() is not None:
                assert process.stdout is not None
                raise AssertionError(process.stdout.read()[-2000:].decode())
            time.sleep(0.02)
        return []
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
