"""A slow, plain interpreter of BMv2 JSON, written from its specification: what compiled code is compared with.

It walks the JSON itself and shares nothing with the package.  Where BMv2 leaves a result undefined it does what the compiler
documents: fields of headers that are not valid are zero until set, and keep their values.
"""

from __future__ import annotations

import operator
import zlib
from typing import Any

VALID = "$valid$"
OPS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_, "|": operator.or_, "^": operator.xor}
COMPARE = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne}


class ParserError(Exception):
    pass


class Exit(Exception):
    pass


def number(text: str) -> int:
    negative = text.startswith("-")
    value = int(text.lstrip("-").removeprefix("0x") or "0", 16)
    return -value if negative else value


def crc16(data: bytes) -> int:
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0xA001 if value & 1 else 0)
    return value


def csum16(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def xor16(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    value = 0
    for i in range(0, len(data), 2):
        value ^= int.from_bytes(data[i : i + 2], "big")
    return value


HASHES: dict = {
    "crc16": crc16,
    "crc32": zlib.crc32,
    "csum16": csum16,
    "xor16": xor16,
    "identity": lambda data: int.from_bytes(data[:8], "big"),
}


class Oracle:
    """A program; ``tables`` maps a table's name to its entries ``(match, priority, action id, data)`` and ``defaults`` to
    ``(action id, data)``."""

    def __init__(self, program: dict, drop_port: int = 511) -> None:
        self.program = program
        self.drop_port = drop_port
        self.types = {item["name"]: item for item in program["header_types"]}
        self.headers = {item["name"]: item for item in program["headers"]}
        self.by_id = {item["id"]: item["name"] for item in program["headers"]}
        self.stacks = {item["name"]: [self.by_id[i] for i in item["header_ids"]] for item in program["header_stacks"]}
        self.unions = {item["name"]: [self.by_id[i] for i in item["header_ids"]] for item in program.get("header_unions", [])}
        self.union_of = {header: names for names in self.unions.values() for header in names}
        self.actions = {item["id"]: item for item in program["actions"]}
        self.calculations = {item["name"]: item for item in program["calculations"]}
        self.registers = {item["name"]: [0] * item["size"] for item in program["register_arrays"]}
        self.register_width = {item["name"]: item["bitwidth"] for item in program["register_arrays"]}
        self.counters = {item["name"]: [[0, 0] for _ in range(item.get("size", 0))] for item in program["counter_arrays"]}
        self.errors = {name: code for name, code in program["errors"]}
        self.truncated = 1 << 30
        self.tables: dict[str, list[tuple]] = {}
        self.defaults: dict[str, tuple] = {}
        for pipeline in program["pipelines"]:
            for table in pipeline["tables"]:
                self.tables[table["name"]] = []
                if "default_entry" in table:
                    entry = table["default_entry"]
                    self.defaults[table["name"]] = (entry["action_id"], [number(item) for item in entry["action_data"]])

    # --- fields

    def fields(self, header: str) -> list[list]:
        return self.types[self.headers[header]["header_type"]]["fields"]

    def described(self, header: str, field: str) -> list:
        return next(item for item in self.fields(header) if item[0] == field)

    def get(self, header: str, field: str) -> int:
        if field == VALID:
            return int(header in self.valid or self.headers[header]["metadata"])
        return self.values.get((header, field), 0)

    def put(self, *parts: Any) -> None:
        """Sets a field: header, name, value."""
        header, field, value = parts
        item = self.described(header, field)
        width = item[1]
        value &= (1 << width) - 1
        if len(item) > 2 and item[2] and value >> (width - 1):
            value -= 1 << width
        self.values[header, field] = value

    def mark(self, header: str, valid: bool) -> None:
        if valid:
            for other in self.union_of.get(header, []):
                self.valid.discard(other)
            self.valid.add(header)
        else:
            self.valid.discard(header)

    def bits(self, header: str) -> str:
        text = ""
        for item in self.fields(header):
            name, width = item[0], item[1]
            value = self.values.get((header, name), 0)
            if width == "*":
                width = self.widths.get(header, 0)
            if width:
                text += f"{value & ((1 << width) - 1):0{width}b}"
        return text

    # --- expressions

    def eval(self, node: dict, data: tuple = ()):
        kind, value = node["type"], node["value"]
        if kind == "expression":
            if "op" not in value:
                return self.eval(value, data)
            return self.operate(value, data)
        if kind == "hexstr":
            return number(value)
        if kind == "bool":
            return value
        if kind == "field":
            return self.get(*value)
        if kind in ("local", "runtime_data"):
            return data[value]
        if kind == "stack_field":
            count = self.counts[value[0]]
            return self.get(self.stacks[value[0]][count - 1], value[1]) if count else 0
        if kind in ("header", "header_stack", "header_union"):
            return (kind, value)
        raise NotImplementedError(kind)

    def operate(self, node: dict, data: tuple):
        op = node["op"]
        if op == "?":
            return self.eval(node["left" if self.eval(node["cond"], data) else "right"], data)
        if op == "access_field":
            header = self.eval(node["left"], data)
            return 0 if header is None else self.get(header[1], self.fields(header[1])[node["right"]][0])
        right = self.eval(node["right"], data)
        if op == "dereference_header_stack":
            stack = self.stacks[node["left"]["value"]]
            return ("header", stack[right]) if 0 <= right < len(stack) else None
        if op in ("d2b", "b2d"):
            return bool(right) if op == "d2b" else int(right)
        if op == "not":
            return not right
        if op == "~":
            return ~right
        if op == "valid":
            return bool(right is not None and self.get(right[1], VALID))
        if op == "valid_union":
            return any(self.get(header, VALID) for header in self.unions[right[1]])
        if op == "size_stack":
            return self.counts[right[1]]
        if op == "last_stack_index":
            return self.counts[right[1]] - 1
        left = self.eval(node["left"], data) if node.get("left") is not None else 0
        if op in ("==", "!=") and isinstance(left, tuple):
            same = all(self.get(side[1], VALID) for side in (left, right)) and self.bits(left[1]) == self.bits(right[1])
            return same == (op == "==")
        if op in OPS:
            return OPS[op](left, right)
        if op in COMPARE:
            return COMPARE[op](left, right)
        if op == "and":
            return left and right
        if op == "or":
            return left or right
        if op == "<<":
            return left << right if right < 65536 else 0
        if op == ">>":
            return left >> right
        if op in ("/", "%"):
            if right == 0:
                return 0
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return quotient if op == "/" else left - quotient * right
        if op == "two_comp_mod":
            value = left & ((1 << right) - 1)
            return value - (1 << right) if value >> (right - 1) else value
        low, high = (0, (1 << right) - 1) if op == "usat_cast" else (-(1 << (right - 1)), (1 << (right - 1)) - 1)
        assert op in ("usat_cast", "sat_cast"), op
        return min(max(left, low), high)

    # --- parser

    def parse(self, packet: bytes) -> None:
        self.position = 0
        self.packet = packet
        self.error = self.errors["NoError"]
        parser = self.program["parsers"][0]
        states = {item["name"]: item for item in parser["parse_states"]}
        name = parser["init_state"]
        try:
            while name is not None:
                name = self.parse_state(states[name])
        except ParserError as error:
            self.error = self.errors.get(error.args[0], error.args[0])

    def need(self, size: int) -> None:
        if len(self.packet) - self.position < size:
            raise ParserError("PacketTooShort")

    def look(self, offset: int, width: int) -> int:
        self.need((offset + width + 7) // 8)
        text = "".join(f"{byte:08b}" for byte in self.packet[self.position :])
        return int(text[offset : offset + width], 2)

    def parse_state(self, state: dict) -> str | None:
        for op in state["parser_ops"]:
            self.parse_op(op["op"], op["parameters"])
        key = []
        for part in state["transition_key"]:
            kind, value = part["type"], part["value"]
            if kind == "field":
                width = 1 if value[1] == VALID else self.described(*value)[1]
            elif kind == "stack_field":
                width = self.described(self.stacks[value[0]][0], value[1])[1]
            else:
                width = value[1]
            found = self.look(*value) if kind == "lookahead" else self.eval(part)
            key.append((found & ((1 << width) - 1), width))
        packed = b"".join(value.to_bytes((width + 7) // 8, "big") for value, width in key)
        default = None
        for transition in state["transitions"]:
            if transition["type"] == "default":
                default = transition["next_state"]
        for transition in state["transitions"]:
            if transition["type"] != "hexstr" or not key:
                continue
            mask = number(transition["mask"]) if transition["mask"] else -1
            if int.from_bytes(packed, "big") & mask == number(transition["value"]) & mask:
                return transition["next_state"]
        return default

    def parse_op(self, op: str, parameters: list) -> None:
        if op in ("extract", "extract_VL"):
            kind, name = parameters[0]["type"], parameters[0]["value"]
            stack = None
            if kind == "stack":
                stack = name
                if self.counts[stack] >= len(self.stacks[stack]):
                    raise ParserError("StackOutOfBounds")
                name = self.stacks[stack][self.counts[stack]]
            self.extract(name, self.eval(parameters[1]) if op == "extract_VL" else 0)
            if stack:
                self.counts[stack] += 1
        elif op == "set":
            target, source = parameters
            if source["type"] == "lookahead":
                self.put(*target["value"], self.look(*source["value"]))
            elif self.described(*target["value"])[1] == "*":
                self.copy_variable(target["value"], source["value"])
            else:
                self.put(*target["value"], int(self.eval(source)))
        elif op == "verify":
            if not self.eval(parameters[0]):
                raise ParserError(self.eval(parameters[1]))
        elif op == "advance":
            bits = self.eval(parameters[0])
            if bits % 8:
                raise ParserError("ParserInvalidArgument")
            if bits < 0:
                raise ParserError("PacketTooShort")
            self.need(bits // 8)
            self.position += bits // 8
        elif op == "primitive":
            self.primitive(parameters[0], ())
        else:
            raise NotImplementedError(op)

    def extract(self, header: str, variable: int) -> None:
        described = self.types[self.headers[header]["header_type"]]
        widths = [variable if item[1] == "*" else item[1] for item in self.fields(header)]
        if variable % 8:
            raise ParserError("ParserInvalidArgument")
        if variable < 0:
            raise ParserError("PacketTooShort")
        size = sum(widths) // 8
        self.need(size)
        if described.get("max_length") and size > described["max_length"]:
            raise ParserError("HeaderTooShort")
        text = "".join(f"{byte:08b}" for byte in self.packet[self.position : self.position + size])
        for item, width in zip(self.fields(header), widths, strict=True):
            if item[1] == "*":
                self.values[header, item[0]] = int(text[:width] or "0", 2)
                self.widths[header] = width
            else:
                self.put(header, item[0], int(text[:width], 2))
            text = text[width:]
        self.position += size
        self.mark(header, True)

    # --- actions

    def run_action(self, identity: int, data: tuple) -> None:
        primitives = self.actions[identity]["primitives"]
        position = 0
        exited = False
        while position < len(primitives):
            primitive = primitives[position]
            op = primitive["op"]
            position += 1
            if op == "_jump":
                position = number(primitive["parameters"][0]["value"])
            elif op == "_jump_if_zero":
                if not self.eval(primitive["parameters"][0], data):
                    position = number(primitive["parameters"][1]["value"])
            elif op == "exit":
                exited = True
            else:
                self.primitive(primitive, data)
        if exited:
            raise Exit

    def copy_variable(self, target: list, source: list) -> None:
        self.values[tuple(target)] = self.values.get(tuple(source), 0)
        self.widths[target[0]] = self.widths.get(source[0], 0)

    def copy_header(self, target: str, source: str) -> None:
        if target == source:
            return
        if not self.get(source, VALID):
            self.mark(target, False)
            return
        for item in self.fields(source):
            self.values[target, item[0]] = self.values.get((source, item[0]), 0)
        self.widths[target] = self.widths.get(source, 0)
        self.mark(target, True)

    def store(self, target: dict, value: int, data: tuple) -> None:
        if target["type"] == "field":
            self.put(*target["value"], value)
        elif target["type"] == "stack_field":
            stack, field = target["value"]
            if self.counts[stack]:
                self.put(self.stacks[stack][self.counts[stack] - 1], field, value)
        else:
            node = target["value"]
            while "op" not in node:
                node = node["value"]
            assert node["op"] == "access_field"
            header = self.eval(node["left"], data)
            if header is not None:
                self.put(header[1], self.fields(header[1])[node["right"]][0], value)

    def hash(self, name: str) -> int:
        calculation = self.calculations[name]
        text, payload = "", b""
        for item in calculation["input"]:
            if item["type"] == "field":
                header, field = item["value"]
                if self.get(header, VALID):
                    width = self.described(header, field)[1]
                    width = self.widths.get(header, 0) if width == "*" else width
                    if width:
                        text += f"{self.values.get((header, field), 0) & ((1 << width) - 1):0{width}b}"
            elif item["type"] == "hexstr":
                text += f"{number(item['value']):0{item['bitwidth']}b}"
            elif item["type"] == "header":
                if self.get(item["value"], VALID):
                    text += self.bits(item["value"])
            else:
                payload = self.packet[self.position :][: self.truncated]
        text += "0" * (-len(text) % 8)
        return HASHES[calculation["algo"]](int(text or "0", 2).to_bytes(len(text) // 8, "big") + payload)

    def primitive(self, node: dict, data: tuple) -> None:
        op, parameters = node["op"], node["parameters"]
        values = [item["value"] for item in parameters]
        if op == "assign":
            self.store(parameters[0], int(self.eval(parameters[1], data)), data)
        elif op == "assign_VL":
            self.copy_variable(*values)
        elif op == "assign_header":
            sides = [self.eval(item, data) for item in parameters]
            if None not in sides:
                self.copy_header(sides[0][1], sides[1][1])
        elif op == "assign_header_stack":
            for target, source in zip(*(self.stacks[name] for name in values), strict=True):
                self.copy_header(target, source)
            self.counts[values[0]] = self.counts[values[1]]
        elif op == "assign_union":
            for target, source in zip(*(self.unions[name] for name in values), strict=True):
                self.copy_header(target, source)
        elif op == "add_header":
            header = self.eval(parameters[0], data)
            if header is not None and not self.get(header[1], VALID):
                for item in self.fields(header[1]):
                    self.values[header[1], item[0]] = 0
                self.widths[header[1]] = 0
                self.mark(header[1], True)
                self.length += sum(item[1] for item in self.fields(header[1]) if item[1] != "*") // 8
        elif op == "remove_header":
            header = self.eval(parameters[0], data)
            if header is not None and self.get(header[1], VALID):
                self.length -= len(self.bits(header[1])) // 8
                self.mark(header[1], False)
        elif op in ("push", "pop"):
            self.shift(values[0], number(values[1]) * (1 if op == "push" else -1))
        elif op == "mark_to_drop":
            self.put(values[0], "egress_spec", self.drop_port)
            self.put(values[0], "mcast_grp", 0)
        elif op == "modify_field_with_hash_based_offset":
            base, size = self.eval(parameters[1], data), self.eval(parameters[3], data)
            self.store(parameters[0], self.hash(values[2]) % (size or 1) + base, data)
        elif op == "register_read":
            index = self.eval(parameters[2], data)
            if 0 <= index < len(self.registers[values[1]]):
                self.store(parameters[0], self.registers[values[1]][index], data)
        elif op == "register_write":
            index = self.eval(parameters[1], data)
            if 0 <= index < len(self.registers[values[0]]):
                value = int(self.eval(parameters[2], data))
                self.registers[values[0]][index] = value & ((1 << self.register_width[values[0]]) - 1)
        elif op == "count":
            index = self.eval(parameters[1], data)
            if 0 <= index < len(self.counters[values[0]]):
                self.counters[values[0]][index][0] += 1
                self.counters[values[0]][index][1] += len(self.packet)
        elif op == "truncate":
            self.truncated = min(self.truncated, self.eval(parameters[0], data))
        elif op != "no_op":
            raise NotImplementedError(op)

    def shift(self, stack: str, amount: int) -> None:
        items = self.stacks[stack]
        before = [
            (item in self.valid, [self.values.get((item, field[0]), 0) for field in self.fields(item)], self.widths.get(item, 0))
            for item in items
        ]
        for position, item in enumerate(items):
            origin = position - amount
            if 0 <= origin < len(items):
                valid, values, width = before[origin]
                for field, value in zip(self.fields(item), values, strict=True):
                    self.values[item, field[0]] = value
                self.widths[item] = width
                self.mark(item, valid)
            else:
                self.mark(item, False)
        count = self.counts[stack] + amount
        self.counts[stack] = min(max(count, 0), len(items))

    # --- control

    def run(self, pipeline: dict) -> None:
        tables = {item["name"]: item for item in pipeline["tables"]}
        conditionals = {item["name"]: item for item in pipeline["conditionals"]}
        name = pipeline["init_table"]
        try:
            while name is not None:
                if name in conditionals:
                    node = conditionals[name]
                    name = node["true_next" if self.eval(node["expression"]) else "false_next"]
                else:
                    name = self.apply(tables[name])
        except Exit:
            pass

    def apply(self, table: dict) -> str | None:
        key = []
        for part in table["key"]:
            header, field = part["target"]
            width = 1 if field == VALID else self.described(header, field)[1]
            value = self.get(header, field) & ((1 << width) - 1)
            key.append((value & number(part["mask"]) if part.get("mask") else value, width))
        best = None
        for match, priority, action, data in self.tables[table["name"]]:
            rank = self.matches(match, key, table["key"])
            if rank is not None and (best is None or (priority, rank) > best[0]):
                best = ((priority, rank), action, data)
        if best is not None:
            _, action, data = best
        else:
            action, data = self.defaults[table["name"]]
        name = self.actions[action]["name"]
        self.run_action(action, tuple(data))
        following = table["next_tables"]
        if "__HIT__" in following:
            return following["__HIT__" if best is not None else "__MISS__"]
        return following[name]

    @staticmethod
    def matches(match: tuple, key: list, parts: list) -> int | None:
        """None, or the length of the matching prefix."""
        rank = 0
        for item, (value, width), part in zip(match, key, parts, strict=True):
            kind = part["match_type"]
            if kind == "exact" and value != item:
                return None
            if kind == "lpm":
                if item[1] and value >> (width - item[1]) != item[0] >> (width - item[1]):
                    return None
                rank = item[1]
            if kind == "ternary" and value & item[1] != item[0]:
                return None
            if kind == "range" and not item[0] <= value <= item[1]:
                return None
        return rank

    # --- packets

    def process(self, packet: bytes, port: int = 0) -> tuple[int, bytes] | None:
        """Egress port and bytes, or None for a dropped packet."""
        self.values: dict[tuple[str, str], int] = {}
        self.widths: dict[str, int] = {}
        self.valid: set[str] = set()
        self.counts = dict.fromkeys(self.stacks, 0)
        self.length = len(packet)
        self.truncated = 1 << 30
        self.put("standard_metadata", "ingress_port", port)
        self.put("standard_metadata", "packet_length", len(packet))
        self.parse(packet)
        self.put("standard_metadata", "parser_error", self.error)
        wrong = [not self.verify(checksum) for checksum in self.program["checksums"] if checksum["verify"]]
        self.put("standard_metadata", "checksum_error", int(any(wrong)))
        pipelines = {item["name"]: item for item in self.program["pipelines"]}
        self.run(pipelines["ingress"])
        spec = self.get("standard_metadata", "egress_spec")
        if spec == self.drop_port:
            return None
        self.put("standard_metadata", "egress_port", spec)
        self.put("standard_metadata", "egress_spec", self.drop_port + 1)
        self.put("standard_metadata", "packet_length", self.length)
        self.run(pipelines["egress"])
        if self.get("standard_metadata", "egress_spec") == self.drop_port:
            return None
        for checksum in self.program["checksums"]:
            if checksum["update"] and self.met(checksum) and self.get(checksum["target"][0], VALID):
                self.put(*checksum["target"], self.hash(checksum["calculation"]))
        text = "".join(self.bits(name) for name in self.program["deparsers"][0]["order"] if name in self.valid)
        data = int(text or "0", 2).to_bytes(len(text) // 8, "big") + packet[self.position :]
        return spec, data[: self.truncated]

    def met(self, checksum: dict) -> bool:
        condition = checksum.get("if_cond")
        return condition is None or self.eval(condition)

    def verify(self, checksum: dict) -> bool:
        if not self.get(checksum["target"][0], VALID) or not self.met(checksum):
            return True
        return self.hash(checksum["calculation"]) == self.get(*checksum["target"])
