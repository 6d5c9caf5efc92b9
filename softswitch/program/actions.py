"""Reads actions and the primitives that they, the parser and the deparser call."""

from __future__ import annotations

from softswitch.program.expressions import ExpressionReader, kind_of
from softswitch.program.ir import Action, Argument, Primitive, Ref, Text, Vector
from softswitch.program.source import Source

OBJECTS = ("calculation", "meter_array", "counter_array", "register_array")

SIGNATURES: dict[str, tuple[str, ...]] = {
    "assign": ("lvalue", "any"),
    "assign_VL": ("lvalue", "data"),
    "assign_header": ("header", "header"),
    "assign_union": ("union", "union"),
    "assign_header_stack": ("stack", "stack"),
    "assign_union_stack": ("union_stack", "union_stack"),
    "push": ("any_stack", "data"),
    "pop": ("any_stack", "data"),
    "assert": ("any",),
    "assume": ("any",),
    "exit": (),
    "log_msg": ("text", "vector"),
    "_jump": ("data",),
    "_jump_if_zero": ("any", "data"),
    "modify_field": ("lvalue", "any"),
    "modify_field_rng_uniform": ("lvalue", "data", "data"),
    "add_to_field": ("lvalue", "data"),
    "subtract_from_field": ("lvalue", "data"),
    "add": ("lvalue", "data", "data"),
    "subtract": ("lvalue", "data", "data"),
    "bit_xor": ("lvalue", "data", "data"),
    "bit_or": ("lvalue", "data", "data"),
    "bit_and": ("lvalue", "data", "data"),
    "shift_left": ("lvalue", "data", "data"),
    "shift_right": ("lvalue", "data", "data"),
    "drop": (),
    "mark_to_drop": ("header",),
    "generate_digest": ("data", "data"),
    "add_header": ("header",),
    "add_header_fast": ("header",),
    "remove_header": ("header",),
    "copy_header": ("header", "header"),
    "clone_ingress_pkt_to_egress": ("data", "data"),
    "clone_egress_pkt_to_egress": ("data", "data"),
    "resubmit": ("data",),
    "recirculate": ("data",),
    "modify_field_with_hash_based_offset": ("lvalue", "data", "calculation", "data"),
    "no_op": (),
    "execute_meter": ("meter_array", "data", "lvalue"),
    "count": ("counter_array", "data"),
    "register_read": ("lvalue", "register_array", "data"),
    "register_write": ("register_array", "data", "any"),
    "truncate": ("data",),
}
"""Arguments of every primitive of BMv2's core and of simple_switch."""


class ActionReader:
    """Reads actions and primitives."""

    def __init__(self, expressions: ExpressionReader) -> None:
        self.expressions = expressions

    def action(self, source: Source) -> Action:
        """Reads an action.

        Raises:
            ProgramError: Malformed.
            UnsupportedConstruct: A primitive that this target lacks.
        """
        widths = tuple(parameter["bitwidth"].integer(0, 16_384) for parameter in source.items("runtime_data"))
        primitives = tuple(self.primitive(item, widths) for item in source.items("primitives"))
        return Action(source["id"].integer(), source["name"].text(), widths, primitives)

    def primitive(self, source: Source, widths: tuple[int, ...] = ()) -> Primitive:
        """Reads a call of a primitive."""
        op = source["op"].text()
        signature = SIGNATURES.get(op)
        if signature is None:
            source["op"].unsupported(f"primitive '{op}'")
        arguments = source["parameters"].array()
        if len(arguments) != len(signature):
            source["parameters"].fail(f"primitive '{op}' takes {len(signature)} arguments, not {len(arguments)}")
        return Primitive(
            op,
            tuple(self._argument(item, wanted, widths) for item, wanted in zip(arguments, signature, strict=True)),
            source.where,
        )

    def _argument(self, source: Source, wanted: str, widths: tuple[int, ...]) -> Argument:
        names = self.expressions.names
        kind = source["type"].text()
        if wanted in OBJECTS:
            name = source["value"].text()
            if kind != wanted:
                source["type"].fail(f"expected a {wanted}, not a {kind}")
            if name not in names.arrays.get(wanted, ()):
                source["value"].fail(f"there is no {wanted} '{name}'")
            return Ref(wanted, name)
        if wanted == "text":
            return Text(source["value"].text())
        if wanted == "vector":
            items = source["value"].array() if isinstance(source["value"].value, list) else []
            return Vector(tuple(self.expressions.read(item, None, widths) for item in items))
        expression = self.expressions.read(source, None, widths)
        found = kind_of(expression, names)
        accepted = {
            "lvalue": ("data",),
            "any": ("data", "bool"),
            "any_stack": ("stack", "union_stack"),
        }.get(wanted, (wanted,))
        if found not in accepted:
            source.fail(f"expected {' or '.join(accepted)}, not {found}")
        return expression
