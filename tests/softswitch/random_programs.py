"""Random programs in BMv2 JSON, with packets and entries for them."""

from __future__ import annotations

from random import Random

STANDARD = [
    ["ingress_port", 9, False],
    ["egress_spec", 9, False],
    ["egress_port", 9, False],
    ["instance_type", 32, False],
    ["packet_length", 32, False],
    ["mcast_grp", 16, False],
    ["egress_rid", 16, False],
    ["checksum_error", 1, False],
    ["parser_error", 32, False],
    ["priority", 3, False],
    ["_padding", 5, False],
]
SCALARS = [["s8", 8, False], ["s7", 7, False], ["s16", 16, False], ["s33", 33, False], ["s64", 64, False], ["b1", 1, False]]
SIGNED = [["i8", 8, True], ["i16", 16, True], ["i5", 5, True]]
ERRORS = ["NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds", "HeaderTooShort", "ParserTimeout", "ParserInvalidArgument"]
HIDDEN = ("egress_spec", "mcast_grp", "instance_type", "priority", "_padding", "rounds")
WIDTHS = [1, 2, 3, 4, 4, 5, 7, 8, 8, 8, 9, 12, 13, 16, 16, 20, 24, 32, 32, 40, 48, 56, 64, 72, 128]


def hexstr(value: int) -> dict:
    return {"type": "hexstr", "value": f"-0x{-value:x}" if value < 0 else f"0x{value:x}"}


def field(header: str, name: str) -> dict:
    return {"type": "field", "value": [header, name]}


def expression(op: str, left: dict | None, right: object, **more: object) -> dict:
    return {"type": "expression", "value": {"op": op, "left": left, "right": right, **more}}


class Maker:
    """Makes one program."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.gentle = random.random() < 0.4
        """Whether headers are mostly left alone."""
        scalars = [*SCALARS, *SIGNED, ["rounds", 8, False], ["_pad", 2, False]]
        self.types: dict[str, list] = {"standard": STANDARD, "scalars_t": scalars}
        self.headers: dict[str, str] = {"standard_metadata": "standard", "scalars": "scalars_t"}
        self.stacks: dict[str, list[str]] = {}
        self.unions: dict[str, list[str]] = {}
        self.registers = {"r0": (8, 16), "r1": (3, 5)}
        self.actions: list[dict] = []
        self.widths: list[int] = []

    # --- headers

    def header_types(self) -> None:
        for number in range(3):
            fields, total = [], 0
            for position in range(self.random.randint(1, 6)):
                width = self.random.choice(WIDTHS)
                signed = width > 1 and self.random.random() < 0.15
                fields.append([f"f{position}", width, signed])
                total += width
            if total % 8:
                fields.append(["last", 8 - total % 8, False])
            self.types[f"t{number}"] = fields
        before = self.random.choice([4, 8, 16])
        self.types["vl"] = [["len", before, False], ["opt", "*"], ["end", 16 - before if before < 16 else 8, False]]

    def instances(self) -> None:
        for number in range(4):
            self.headers[f"h{number}"] = f"t{number % 3}"
        self.headers["v"] = "vl"
        self.headers["v2"] = "vl"
        for stack in ("s", "z"):
            self.stacks[stack] = [f"{stack}[{number}]" for number in range(3)]
            self.headers.update(dict.fromkeys(self.stacks[stack], "t1"))
        self.unions["u"] = ["u.a", "u.b"]
        self.headers.update({"u.a": "t0", "u.b": "t2"})

    @property
    def plain(self) -> list[str]:
        return [name for name in self.headers if name not in ("standard_metadata", "scalars", "v", "v2")]

    def any_field(self, signed: bool | None = None) -> tuple[str, str, int]:
        while True:
            header = self.random.choice(["scalars", "scalars", *self.plain, "standard_metadata"])
            item = self.random.choice(self.types[self.headers[header]])
            if item[0] in HIDDEN:
                continue
            if item[1] != "*" and signed in (None, bool(len(item) > 2 and item[2])):
                return header, item[0], item[1]

    # --- expressions

    def data(self, depth: int = 3) -> dict:
        choice = self.random.random()
        if depth == 0 or choice < 0.35:
            kind = self.random.random()
            if kind < 0.25:
                return hexstr(self.random.choice([0, 1, 2, 7, 255, 65535, self.random.getrandbits(40), -1, -3]))
            if kind < 0.35 and self.widths:
                return {"type": "local", "value": self.random.randrange(len(self.widths))}
            if kind < 0.4:
                return {"type": "stack_field", "value": ["s", self.random.choice(self.types["t1"])[0]]}
            return field(*self.any_field()[:2])
        if choice < 0.65:
            op = self.random.choice(["+", "-", "*", "&", "|", "^"])
            text = expression(op, self.data(depth - 1), self.data(depth - 1))
            if self.random.random() < 0.5:
                text = expression("&", text, hexstr((1 << self.random.choice([8, 16, 32])) - 1))
            return text
        if choice < 0.72:
            amount = self.random.choice([hexstr(self.random.randrange(40)), field("scalars", "s7"), field("scalars", "s8")])
            return expression(self.random.choice(["<<", ">>"]), self.data(depth - 1), amount)
        if choice < 0.76:
            return expression("~", None, self.data(depth - 1))
        if choice < 0.8:
            return expression(self.random.choice(["/", "%"]), self.data(depth - 1), self.data(depth - 1))
        if choice < 0.86:
            width = self.random.choice([2, 8, 13, 32])
            op = self.random.choice(["two_comp_mod", "sat_cast", "usat_cast"])
            return expression(op, self.data(depth - 1), hexstr(width))
        if choice < 0.9:
            return expression("?", self.data(depth - 1), self.data(depth - 1), cond=self.boolean(depth - 1))
        if choice < 0.94:
            return expression("b2d", None, self.boolean(depth - 1))
        if choice < 0.97:
            return expression(self.random.choice(["size_stack", "last_stack_index"]), None, self.stack())
        return self.item_field()

    def stack(self) -> dict:
        return {"type": "header_stack", "value": self.random.choice(list(self.stacks))}

    def item(self) -> dict:
        index = self.random.choice([field("scalars", "s7"), hexstr(self.random.randrange(3)), field("scalars", "i5")])
        return expression("dereference_header_stack", self.stack(), index)

    def item_field(self) -> dict:
        return expression("access_field", self.item(), self.random.randrange(len(self.types["t1"])))

    def boolean(self, depth: int = 2) -> dict:
        choice = self.random.random()
        if depth <= 0 or choice < 0.2:
            kind = self.random.random()
            if kind < 0.2:
                return {"type": "bool", "value": self.random.random() < 0.5}
            if kind < 0.6:
                return expression("d2b", None, field(self.random.choice(self.plain), "$valid$"))
            if kind < 0.7:
                return expression("valid_union", None, {"type": "header_union", "value": "u"})
            return expression("valid", None, {"type": "header", "value": self.random.choice(self.plain)})
        if choice < 0.6:
            return expression(
                self.random.choice(["<", ">", "<=", ">=", "==", "!="]), self.data(depth - 1), self.data(depth - 1)
            )
        if choice < 0.7:
            return expression("not", None, self.boolean(depth - 1))
        if choice < 0.85:
            return expression(self.random.choice(["and", "or"]), self.boolean(depth - 1), self.boolean(depth - 1))
        if choice < 0.9:
            return expression(self.random.choice(["==", "!="]), self.boolean(depth - 1), self.boolean(depth - 1))
        if choice < 0.95:
            pair = self.random.sample(self.stacks["s"] + self.stacks["z"], 2)
            sides = [{"type": "header", "value": name} for name in pair]
            return expression(self.random.choice(["==", "!="]), *sides)
        return expression("d2b", None, self.data(depth - 1))

    # --- actions

    def call(self, op: str, *parameters: dict) -> dict:
        return {"op": op, "parameters": list(parameters)}

    def wrapped(self, node: dict) -> dict:
        return {"type": "expression", "value": node} if node["type"] in ("expression", "local") else node

    def target(self) -> dict:
        if self.gentle and self.random.random() < 0.95:
            return field("scalars", str(self.random.choice(SCALARS + SIGNED)[0]))
        if self.random.random() < 0.1:
            return {"type": "expression", "value": self.item_field()}
        if self.random.random() < 0.1:
            return {"type": "stack_field", "value": ["s", self.random.choice(self.types["t1"])[0]]}
        return field(*self.any_field()[:2])

    def header(self, same_as: str | None = None) -> dict:
        names = self.plain if same_as is None else [n for n in self.plain if self.headers[n] == self.headers[same_as]]
        return {"type": "header", "value": self.random.choice(names)}

    def primitive(self) -> dict:
        choice = self.random.choice([0, 0, 13, 14, 15, 22]) if self.gentle else self.random.randrange(24)
        if choice < 10:
            return self.call("assign", self.target(), self.wrapped(self.data()))
        if choice == 10:
            return self.call(self.random.choice(["add_header", "remove_header"]), self.header())
        if choice == 11:
            target = self.header()
            return self.call("assign_header", target, self.header(target["value"]))
        if choice == 12:
            return self.call(self.random.choice(["push", "pop"]), self.stack(), hexstr(self.random.choice([1, 1, 2, 3, 4])))
        if choice == 13:
            return self.call("register_read", self.target(), self.register(), self.wrapped(self.data(1)))
        if choice == 14:
            return self.call("register_write", self.register(), self.wrapped(self.data(1)), self.wrapped(self.data(2)))
        if choice == 15:
            return self.call("count", {"type": "counter_array", "value": "c0"}, self.wrapped(self.data(1)))
        if choice == 16:
            calculation = {"type": "calculation", "value": f"calc{self.random.randrange(4)}"}
            size = self.random.choice([hexstr(0), hexstr(16), hexstr(65536), field("scalars", "s16")])
            base = self.random.choice([hexstr(0), hexstr(5), field("scalars", "s8")])
            return self.call("modify_field_with_hash_based_offset", field(*self.any_field()[:2]), base, calculation, size)
        if choice == 17:
            return self.call("truncate", self.random.choice([hexstr(20), field("scalars", "s7")]))
        if choice == 18:
            return self.call("assign_VL", field("v2", "opt"), field("v", "opt"))
        if choice == 19:
            return self.call("assign_header", {"type": "header", "value": "v2"}, {"type": "header", "value": "v"})
        if choice == 20:
            names = self.random.sample(["s", "z"], 2)
            return self.call("assign_header_stack", *({"type": "header_stack", "value": name} for name in names))
        if choice == 21:
            item = self.item()
            return self.call(self.random.choice(["add_header", "remove_header"]), {"type": "expression", "value": item})
        if choice == 22:
            return self.call("assign", field("standard_metadata", "egress_spec"), hexstr(self.random.choice([1, 2, 3, 511])))
        return self.call("no_op")

    def register(self) -> dict:
        return {"type": "register_array", "value": self.random.choice(list(self.registers))}

    def body(self, depth: int = 2) -> list[dict]:
        """Primitives with structured jumps, whose offsets are relative until ``action`` places them."""
        primitives: list[dict] = []
        for _ in range(self.random.randint(0, 4)):
            if depth and self.random.random() < 0.25:
                then, other = self.body(depth - 1), self.body(depth - 1)
                skip = len(then) + (2 if other else 1)
                primitives.append({"op": "_jump_if_zero", "parameters": [self.wrapped_flag(), skip]})
                primitives += then
                if other:
                    primitives.append({"op": "_jump", "parameters": [len(other) + 1]})
                    primitives += other
            elif depth == 2 and self.random.random() < 0.1:
                primitives += self.loop()
            elif depth < 2 and self.random.random() < 0.08:
                primitives.append({"op": "_jump", "parameters": [None]})
            elif self.random.random() < 0.04:
                primitives.append(self.call("exit"))
                primitives.append({"op": "_jump", "parameters": [None]})
            else:
                primitives.append(self.primitive())
        return primitives

    def loop(self) -> list[dict]:
        """A loop that ends after a few rounds, as p4c compiles ``for``; its counter is a field that nothing else writes."""
        counter = field("scalars", "rounds")
        more = expression("b2d", None, expression("<", counter, hexstr(self.random.randrange(4))))
        body = [self.primitive() for _ in range(self.random.randint(1, 3))]
        step = expression("&", expression("+", counter, hexstr(1)), hexstr(255))
        return [
            self.call("assign", counter, hexstr(0)),
            {"op": "_jump_if_zero", "parameters": [{"type": "expression", "value": more}, len(body) + 3]},
            *body,
            self.call("assign", counter, {"type": "expression", "value": step}),
            {"op": "_jump", "parameters": [-len(body) - 2]},
        ]

    def wrapped_flag(self) -> dict:
        return {"type": "expression", "value": expression("b2d", None, self.boolean())}

    def action(self, name: str) -> dict:
        self.widths = [self.random.choice([1, 8, 16, 9, 48]) for _ in range(self.random.randint(0, 2))]
        primitives = self.body()
        for position, primitive in enumerate(primitives):
            if primitive["op"] in ("_jump", "_jump_if_zero"):
                offset = primitive["parameters"][-1]
                place = len(primitives) if offset is None else min(position + offset, len(primitives))
                primitive["parameters"][-1] = hexstr(place)
        data = [{"name": f"p{number}", "bitwidth": width} for number, width in enumerate(self.widths)]
        self.widths = []
        return {"name": name, "id": len(self.actions), "runtime_data": data, "primitives": primitives}

    # --- parser

    def parser(self) -> dict:
        names = [f"state{number}" for number in range(self.random.randint(2, 6))]
        states = [self.state(number, names) for number in range(len(names))]
        return {"name": "parser", "id": 0, "init_state": names[0], "parse_states": states}

    def state(self, number: int, names: list[str]) -> dict:
        ops = [self.parser_op() for _ in range(self.random.randint(1, 3))]
        loops = any(op["op"] == "extract" and op["parameters"][0]["type"] == "stack" for op in ops)
        targets = [*names[number + 1 :], None] + ([names[number]] * 2 if loops else [])
        key: list[dict] = []
        widths: list[int] = []
        for _ in range(self.random.randint(0, 2)):
            kind = self.random.random()
            if kind < 0.6:
                header, name, width = self.any_field()
                key.append(field(header, name))
            elif kind < 0.8:
                width = self.random.choice([3, 8, 16])
                key.append({"type": "lookahead", "value": [self.random.choice([0, 0, 5, 8]), width]})
            else:
                item = self.random.choice(self.types["t1"])
                width = item[1]
                key.append({"type": "stack_field", "value": ["s", item[0]]})
            widths.append(width)
        transitions = [
            {"type": "default", "value": None, "mask": None, "next_state": self.random.choice(targets)},
        ]
        for _ in range(self.random.randint(0, 3) if key else 0):
            value = mask = size = 0
            for width in widths:
                padded = (width + 7) // 8 * 8
                own = self.random.choice([(1 << width) - 1, 1, 0, self.random.getrandbits(width)])
                value = value << padded | (self.random.choice([0, 1, self.random.getrandbits(width)]) & ((1 << width) - 1) & own)
                mask = mask << padded | own
                size += padded // 8
            exact = self.random.random() < 0.3
            if exact:
                mask = None  # type: ignore[assignment]
            transitions.append(
                {
                    "type": "hexstr",
                    "value": f"0x{value:0{2 * size}x}",
                    "mask": None if mask is None else f"0x{mask:0{2 * size}x}",
                    "next_state": self.random.choice(targets),
                }
            )
        return {"name": names[number], "id": number, "parser_ops": ops, "transition_key": key, "transitions": transitions}

    def parser_op(self) -> dict:
        choice = self.random.choice([0, 1, 2, 4, 6, 10]) if self.gentle else self.random.randrange(12)
        if choice < 4:
            names = ["h0", "h1", "h2", "u.a", "u.b"]
            return self.call("extract", {"type": "regular", "value": self.random.choice(names)})
        if choice < 6:
            return self.call("extract", {"type": "stack", "value": "s"})
        if choice == 6:
            masked = expression("&", self.data(1), hexstr(self.random.choice([7, 24, 31])))
            length = self.random.choice([hexstr(self.random.choice([0, 8, 16, 24])), expression("<<", masked, hexstr(3)), masked])
            return self.call("extract_VL", {"type": "regular", "value": "v"}, {"type": "expression", "value": length})
        if choice == 7:
            return self.call("set", field(*self.any_field()[:2]), self.wrapped(self.data(2)))
        if choice == 8:
            offset = self.random.choice([0, 0, 3, 16])
            look = {"type": "lookahead", "value": [offset, self.random.choice([1, 8, 12, 16, 40])]}
            return self.call("set", field(*self.any_field()[:2]), look)
        if choice == 9:
            masked = {"type": "expression", "value": expression("&", self.data(1), hexstr(24))}
            bits = self.random.choice([hexstr(8), hexstr(16), hexstr(12), masked])
            return self.call("advance", bits)
        if choice == 10:
            return self.call("verify", self.boolean(), hexstr(self.random.randrange(2, 6)))
        primitive = self.primitive()
        while primitive["op"] == "modify_field_with_hash_based_offset":
            primitive = self.primitive()
        return self.call("primitive", primitive)

    # --- control

    def table(self, number: int, following: list[str | None], actions: list[dict]) -> dict:
        key: list[dict] = []
        kinds = self.random.choice([[], ["exact"], ["exact"], ["exact", "exact"], ["lpm"], ["ternary"], ["range"]])
        kinds = kinds + self.random.choice([[], [], ["exact"]])
        for kind in kinds:
            header, name, width = self.any_field()
            if self.random.random() < 0.1:
                header, name = self.random.choice(self.plain), "$valid$"
            mask = None
            if kind == "exact" and name != "$valid$" and self.random.random() < 0.2:
                mask = f"0x{self.random.getrandbits(width):0{(width + 7) // 8 * 2}x}"
            key.append({"match_type": kind, "target": [header, name], "mask": mask, "name": f"k{len(key)}"})
        chosen = self.random.sample(actions, min(len(actions), self.random.randint(1, 3)))
        default = self.random.choice(chosen)
        widest = next((kind for kind in ("range", "ternary", "lpm") if kind in kinds), "exact")
        if self.random.random() < 0.3:
            nexts = {"__HIT__": self.random.choice(following), "__MISS__": self.random.choice(following)}
        elif self.random.random() < 0.5:
            nexts = {action["name"]: self.random.choice(following) for action in chosen}
        else:
            nexts = dict.fromkeys([action["name"] for action in chosen], self.random.choice(following))
        fixed = self.random.random() < 0.5
        return {
            "name": f"table{number}",
            "id": number,
            "key": key,
            "match_type": widest,
            "type": "simple",
            "max_size": 64,
            "with_counters": self.random.random() < 0.2,
            "support_timeout": False,
            "direct_meters": None,
            "action_ids": [action["id"] for action in chosen],
            "actions": [action["name"] for action in chosen],
            "base_default_next": None,
            "next_tables": nexts,
            "default_entry": {
                "action_id": default["id"],
                "action_const": fixed,
                "action_data": [hexstr(self.random.getrandbits(item["bitwidth"]))["value"] for item in default["runtime_data"]],
                "action_entry_const": fixed,
            },
        }

    def pipeline(self, name: str, first: int, count: int) -> dict:
        names = [f"{'if' if self.random.random() < 0.4 else 'table'}{first + number}" for number in range(count)]
        tables, conditionals = [], []
        for number, node in enumerate(names):
            following: list[str | None] = [*names[number + 1 : number + 4], None] if number + 1 < count else [None]
            if number + 1 < count and self.random.random() < 0.6:
                following = following[:2]
            if node.startswith("table"):
                tables.append(self.table(first + number, following, self.actions))
            else:
                conditionals.append(
                    {
                        "name": node,
                        "id": first + number,
                        "expression": self.boolean(3),
                        "true_next": self.random.choice(following),
                        "false_next": self.random.choice(following),
                    }
                )
        return {
            "name": name,
            "id": first,
            "init_table": names[0] if names else None,
            "tables": tables,
            "action_profiles": [],
            "conditionals": conditionals,
        }

    def calculation(self, number: int) -> dict:
        inputs: list[dict] = []
        bits = 0
        for _ in range(self.random.randint(1, 4)):
            kind = self.random.random()
            if kind < 0.55:
                header, name, width = self.any_field()
                inputs.append(field(header, name))
            elif kind < 0.65:
                inputs.append(field(self.random.choice(["v", "v2"]), "opt"))
                width = 0
            elif kind < 0.8:
                width = self.random.choice([4, 8, 16])
                inputs.append({"type": "hexstr", "value": f"0x{self.random.getrandbits(width):x}", "bitwidth": width})
            else:
                header = self.random.choice(self.plain)
                inputs += [field(header, item[0]) for item in self.types[self.headers[header]]]
                width = sum(item[1] for item in self.types[self.headers[header]])
            bits += width
        if bits % 8 == 0 and self.random.random() < 0.3:
            inputs.append({"type": "payload", "value": None})
        algorithm = self.random.choice(["crc16", "crc32", "csum16", "csum16", "xor16", "identity"])
        return {"name": f"calc{number}", "id": number, "algo": algorithm, "input": inputs}

    def checksum(self, number: int) -> dict:
        target = ("scalars", "s16") if self.random.random() < 0.3 else self.any_field(False)[:2]
        return {
            "name": f"cksum{number}",
            "id": number,
            "target": list(target),
            "type": "generic",
            "calculation": f"calc{self.random.randrange(4)}",
            "verify": number == 0,
            "update": number != 0,
            "if_cond": self.random.choice([None, self.boolean(1)]),
        }

    def make(self) -> dict:
        self.header_types()
        self.instances()
        identities = {name: number for number, name in enumerate(self.headers)}
        self.actions.append(
            {
                "name": "forward",
                "id": 0,
                "runtime_data": [{"name": "port", "bitwidth": 9}],
                "primitives": [
                    self.call("assign", field("standard_metadata", "egress_spec"), {"type": "runtime_data", "value": 0})
                ],
            }
        )
        for number in range(5):
            self.actions.append(self.action(f"action{number}"))
        type_sources = []
        for number, (name, fields) in enumerate(self.types.items()):
            source: dict = {"name": name, "id": number, "fields": fields}
            if name == "vl":
                source["max_length"] = 6
            type_sources.append(source)
        return {
            "__meta__": {"version": [2, 23]},
            "header_types": type_sources,
            "headers": [
                {
                    "name": name,
                    "id": identities[name],
                    "header_type": kind,
                    "metadata": name in ("standard_metadata", "scalars"),
                    "pi_omit": True,
                }
                for name, kind in self.headers.items()
            ],
            "header_stacks": [
                {"name": name, "id": number, "header_type": "t1", "header_ids": [identities[item] for item in items]}
                for number, (name, items) in enumerate(self.stacks.items())
            ],
            "header_union_types": [{"name": "u_t", "id": 0, "headers": [["a", "t0"], ["b", "t2"]]}],
            "header_unions": [
                {"name": name, "id": number, "union_type": "u_t", "header_ids": [identities[item] for item in items]}
                for number, (name, items) in enumerate(self.unions.items())
            ],
            "header_union_stacks": [],
            "field_lists": [],
            "errors": [[name, number] for number, name in enumerate(ERRORS)],
            "enums": [],
            "parsers": [self.parser()],
            "parse_vsets": [],
            "deparsers": [
                {
                    "name": "deparser",
                    "id": 0,
                    "order": [name for name in self.headers if name not in ("standard_metadata", "scalars", "h3")],
                    "primitives": [],
                }
            ],
            "meter_arrays": [],
            "counter_arrays": [{"name": "c0", "id": 0, "size": 6, "is_direct": False}],
            "register_arrays": [
                {"name": name, "id": number, "size": size, "bitwidth": width}
                for number, (name, (size, width)) in enumerate(self.registers.items())
            ],
            "calculations": [self.calculation(number) for number in range(4)],
            "learn_lists": [],
            "actions": self.actions,
            "pipelines": [
                self.pipeline("ingress", 0, self.random.randint(1, 6)),
                self.pipeline("egress", 100, self.random.randint(0, 3)),
            ],
            "checksums": [self.checksum(number) for number in range(self.random.randint(0, 3))],
            "extern_instances": [],
            "field_aliases": [],
        }


def make_program(random: Random) -> dict:
    """A program."""
    return Maker(random).make()


def make_packet(random: Random) -> bytes:
    """Bytes: often with small numbers, so that transitions and entries match."""
    size = random.choice([0, 1, 5, 10, 20, 40, 60, 60])
    return bytes(random.choice([0, 0, 1, 1, 2, 3, 255, random.getrandbits(8)]) for _ in range(size))
