"""Small programs in BMv2 JSON, written by hand: two headers, some metadata, and whatever a test adds."""

from __future__ import annotations

import copy
import json
from typing import Any

from softswitch.pipeline import Pipeline
from tests.softswitch.random_programs import ERRORS, expression, field, hexstr

STANDARD = [
    ["ingress_port", 9, False],
    ["egress_spec", 9, False],
    ["egress_port", 9, False],
    ["instance_type", 32, False],
    ["packet_length", 32, False],
    ["enq_timestamp", 32, False],
    ["enq_qdepth", 19, False],
    ["deq_timedelta", 32, False],
    ["deq_qdepth", 19, False],
    ["ingress_global_timestamp", 48, False],
    ["egress_global_timestamp", 48, False],
    ["mcast_grp", 16, False],
    ["egress_rid", 16, False],
    ["checksum_error", 1, False],
    ["parser_error", 32, False],
    ["priority", 3, False],
    ["_padding", 3, False],
]
"""v1model's standard metadata."""

ALIASES = {
    "queueing_metadata": ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth"),
    "intrinsic_metadata": ("ingress_global_timestamp", "egress_global_timestamp", "mcast_grp", "egress_rid", "priority"),
}


def standard(name: str) -> dict:
    return field("standard_metadata", name)


def meta(name: str) -> dict:
    return field("scalars", name)


def call(op: str, *parameters: dict) -> dict:
    return {"op": op, "parameters": list(parameters)}


def assign(target: dict, value: dict) -> dict:
    wrapped = {"type": "expression", "value": value} if value["type"] in ("expression", "local") else value
    return call("assign", target, wrapped)


def argument(index: int) -> dict:
    return {"type": "runtime_data", "value": index}


def named(kind: str, name: str) -> dict:
    return {"type": kind, "value": name}


def header(name: str) -> dict:
    return named("header", name)


DROP = call("mark_to_drop", header("standard_metadata"))


class Small:
    """A program under construction; ``json`` is its JSON, ``load`` compiles it.

    The packet is ``a`` (kind: 8 bits, value: 16, note: 8), and if kind is 1 also ``b`` (x: 32).  Metadata: ``m8``, ``m16``,
    ``m32``, ``m48``, the signed ``i8``.  Tables are applied in the order in which they are added.
    """

    def __init__(self) -> None:
        self.json: dict[str, Any] = {
            "__meta__": {"version": [2, 23], "compiler": "by hand"},
            "header_types": [
                {"name": "standard_t", "id": 0, "fields": copy.deepcopy(STANDARD)},
                {
                    "name": "scalars_t",
                    "id": 1,
                    "fields": [["m8", 8, False], ["m16", 16, False], ["m32", 32, False], ["m48", 48, False], ["i8", 8, True]],
                },
                {"name": "a_t", "id": 2, "fields": [["kind", 8, False], ["value", 16, False], ["note", 8, False]]},
                {"name": "b_t", "id": 3, "fields": [["x", 32, False]]},
            ],
            "headers": [
                {"name": "standard_metadata", "id": 0, "header_type": "standard_t", "metadata": True, "pi_omit": True},
                {"name": "scalars", "id": 1, "header_type": "scalars_t", "metadata": True, "pi_omit": True},
                {"name": "a", "id": 2, "header_type": "a_t", "metadata": False, "pi_omit": True},
                {"name": "b", "id": 3, "header_type": "b_t", "metadata": False, "pi_omit": True},
            ],
            "header_stacks": [],
            "header_union_types": [],
            "header_unions": [],
            "header_union_stacks": [],
            "field_lists": [],
            "errors": [[name, number] for number, name in enumerate(ERRORS)],
            "enums": [],
            "parsers": [
                {
                    "name": "parser",
                    "id": 0,
                    "init_state": "start",
                    "parse_states": [
                        {
                            "name": "start",
                            "id": 0,
                            "parser_ops": [call("extract", {"type": "regular", "value": "a"})],
                            "transition_key": [field("a", "kind")],
                            "transitions": [
                                {"type": "hexstr", "value": "0x01", "mask": None, "next_state": "more"},
                                {"type": "default", "value": None, "mask": None, "next_state": None},
                            ],
                        },
                        {
                            "name": "more",
                            "id": 1,
                            "parser_ops": [call("extract", {"type": "regular", "value": "b"})],
                            "transition_key": [],
                            "transitions": [{"type": "default", "value": None, "mask": None, "next_state": None}],
                        },
                    ],
                }
            ],
            "parse_vsets": [],
            "deparsers": [{"name": "deparser", "id": 0, "order": ["a", "b"], "primitives": []}],
            "meter_arrays": [],
            "counter_arrays": [],
            "register_arrays": [],
            "calculations": [],
            "learn_lists": [],
            "actions": [],
            "pipelines": [
                {"name": "ingress", "id": 0, "init_table": None, "tables": [], "action_profiles": [], "conditionals": []},
                {"name": "egress", "id": 1, "init_table": None, "tables": [], "action_profiles": [], "conditionals": []},
            ],
            "checksums": [],
            "force_arith": [],
            "extern_instances": [],
            "field_aliases": [
                [f"{group}.{name}", ["standard_metadata", name]] for group, names in ALIASES.items() for name in names
            ],
        }
        self._last: dict[str, list[dict]] = {"ingress": [], "egress": []}

    def action(self, name: str, primitives: list[dict], **parameters: int) -> int:
        """Adds an action; its id."""
        identity = len(self.json["actions"])
        data = [{"name": key, "bitwidth": width} for key, width in parameters.items()]
        self.json["actions"].append({"name": name, "id": identity, "runtime_data": data, "primitives": primitives})
        return identity

    def pipeline(self, name: str) -> dict:
        return next(item for item in self.json["pipelines"] if item["name"] == name)

    def table(
        self,
        name: str,
        key: list[tuple[str, dict]],
        actions: list[int],
        *,
        default: int | None = None,
        data: tuple[int, ...] = (),
        const: bool = False,
        pipeline: str = "ingress",
        **more: Any,
    ) -> dict:
        """Adds a table at the end of a pipeline; the key is given by match types and fields."""
        kinds = [kind for kind, _ in key]
        names = [self.json["actions"][action]["name"] for action in actions]
        table: dict[str, Any] = {
            "name": name,
            "id": sum(len(item["tables"]) for item in self.json["pipelines"]),
            "key": [
                {"match_type": kind, "target": item["value"], "mask": None, "name": ".".join(item["value"])} for kind, item in key
            ],
            "match_type": next((kind for kind in ("range", "ternary", "lpm") if kind in kinds), "exact"),
            "type": "simple",
            "max_size": 64,
            "with_counters": False,
            "support_timeout": False,
            "direct_meters": None,
            "action_ids": actions,
            "actions": names,
            "base_default_next": None,
            "next_tables": dict.fromkeys(names),
        }
        if default is not None:
            table["default_entry"] = {
                "action_id": default,
                "action_const": const,
                "action_data": [hexstr(value)["value"] for value in data],
                "action_entry_const": const,
            }
        table.update(more)
        self.pipeline(pipeline)["tables"].append(table)
        self._link(pipeline, table)
        return table

    def run(self, primitives: list[dict], pipeline: str = "ingress") -> None:
        """Adds an action that always runs."""
        identity = self.action(f"act_{len(self.json['actions'])}", primitives)
        self.table(f"tbl_act_{identity}", [], [identity], default=identity, const=True, pipeline=pipeline)

    def _link(self, pipeline: str, node: dict) -> None:
        """Makes the node before lead to this one."""
        for before in self._last[pipeline]:
            for key, value in before["next_tables"].items():
                if value is None:
                    before["next_tables"][key] = node["name"]
            before["base_default_next"] = node["name"]
        if not self._last[pipeline]:
            self.pipeline(pipeline)["init_table"] = node["name"]
        self._last[pipeline] = [node]

    def forward(self, port: int = 1) -> Small:
        """Sends every packet out of a port."""
        self.run([assign(standard("egress_spec"), hexstr(port))])
        return self

    def load(self, **options: Any) -> Pipeline:
        return Pipeline.load(json.dumps(self.json), **options)


def packet(kind: int = 0, value: int = 0, note: int = 0, rest: bytes = b"") -> bytes:
    return bytes([kind]) + value.to_bytes(2, "big") + bytes([note]) + rest


def out(pipeline: Pipeline, data: bytes, port: int = 0, now: int = 0) -> tuple[int, bytes] | None:
    """Where a packet that goes to one port comes out, and its bytes; None if it is dropped."""
    result = pipeline.ingress(data, port, now)
    if result is None:
        return None
    assert isinstance(result, tuple)
    sent = pipeline.egress(result[2], result[0], now, 0, priority=result[1])
    assert sent is None or isinstance(sent, bytes)
    return None if sent is None else (result[0], sent)


__all__ = [
    "DROP",
    "Small",
    "argument",
    "assign",
    "call",
    "expression",
    "field",
    "header",
    "hexstr",
    "meta",
    "named",
    "out",
    "packet",
    "standard",
]
