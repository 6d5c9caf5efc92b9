"""Puts the generated functions together and makes them.

Every function works on local variables.  What must survive between ingress and egress travels as a tuple, the ``Phv``: the packet
as it came, its length, the payload's place, and those variables that egress or the deparser mention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from softswitch.compiler.actions import ActionCompiler
from softswitch.compiler.calculations import CalculationCompiler
from softswitch.compiler.context import Context, Notify
from softswitch.compiler.deparser import DeparserCompiler
from softswitch.compiler.expressions import ExpressionCompiler
from softswitch.compiler.layout import analyse
from softswitch.compiler.parser import ParserCompiler
from softswitch.compiler.pool import Pool
from softswitch.compiler.primitives import PrimitiveCompiler
from softswitch.compiler.stages import StageWriter
from softswitch.compiler.tables import ControlCompiler
from softswitch.errors import ProgramError
from softswitch.program.ir import FieldRef, Program
from softswitch.runtime import Runtime

TARGET_FIELDS = {
    "ingress_port": "standard_metadata.ingress_port",
    "packet_length": "standard_metadata.packet_length",
    "instance_type": "standard_metadata.instance_type",
    "egress_spec": "standard_metadata.egress_spec",
    "egress_port": "standard_metadata.egress_port",
    "parser_error": "standard_metadata.parser_error",
    "checksum_error": "standard_metadata.checksum_error",
    "ingress_global_timestamp": "intrinsic_metadata.ingress_global_timestamp",
    "egress_global_timestamp": "intrinsic_metadata.egress_global_timestamp",
    "mcast_grp": "intrinsic_metadata.mcast_grp",
    "egress_rid": "intrinsic_metadata.egress_rid",
    "priority": "intrinsic_metadata.priority",
    "enq_timestamp": "queueing_metadata.enq_timestamp",
    "enq_qdepth": "queueing_metadata.enq_qdepth",
    "deq_timedelta": "queueing_metadata.deq_timedelta",
    "deq_qdepth": "queueing_metadata.deq_qdepth",
    "qid": "queueing_metadata.qid",
}
"""Fields that simple_switch reads and writes, by its name for them."""

TARGET_READS = ("egress_spec", "mcast_grp", "priority")


@dataclass(frozen=True, slots=True)
class Compiled:
    """The functions of a program, and the source they were made from."""

    source: str
    ingress: Callable[..., Any]
    reparse: Callable[..., Any]
    egress: Callable[..., Any]


def target_fields(program: Program) -> dict[str, FieldRef]:
    """Which field of the program stands for each of the target's."""
    found = {}
    for name, full in TARGET_FIELDS.items():
        ref = program.aliases.get(full)
        header, field = full.split(".")
        for place in (header, "standard_metadata"):
            instance = program.headers.get(place)
            if ref is None and instance is not None and any(item.name == field for item in instance.type.fields):
                ref = FieldRef(place, field)
        if ref is not None:
            found[name] = ref
    return found


def compile_program(program: Program, runtime: Runtime, *, drop_port: int, notify: Notify | None, outcome: object) -> Compiled:
    """Compiles a program.

    Args:
        runtime: Tables, arrays and so on that the functions use from now on.
        drop_port: Egress port that means "drop".
        notify: Gets the texts of ``log_msg``.
        outcome: What the functions return if there is more to do than to forward one packet; called with keywords.

    Raises:
        UnsupportedConstruct: Something in the program that this target lacks.
    """
    target = target_fields(program)
    layout = analyse(program, [target[name] for name in TARGET_READS if name in target])
    pool = Pool()
    registers = {name: pool.add("R", array.cells) for name, array in runtime.registers.items()}
    context = Context(program, layout, pool, runtime, ExpressionCompiler(layout, pool, registers), drop_port, target, notify)
    context.registers = registers
    context.counters = {name: (pool.add("C", a.packets), pool.add("C", a.bytes)) for name, a in runtime.counters.items()}
    context.meters = {name: pool.add("M", array.cells) for name, array in runtime.meters.items()}
    context.tables = {name: pool.add("T", table.lookup) for name, table in runtime.tables.items()}
    pool.names.update(DROPS=runtime.drops, DIGEST=runtime.digests.push, OUTCOME=outcome, NOTIFY=notify)
    for action in program.actions.values():
        for primitive in action.primitives:
            if primitive.op == "truncate":
                context.used.add("TR")
    offsets: dict[str, int] = {}
    for _ in range(2):
        # Once to learn which headers are always in the same place, and once to make use of it.
        deparser = DeparserCompiler(context, offsets)
        calculations = CalculationCompiler(context, deparser)
        primitives = PrimitiveCompiler(context, calculations.by_name)
        parser = ParserCompiler(context, primitives)
        control = ControlCompiler(context, ActionCompiler(primitives), calculations)
        stages = StageWriter(context, parser, control, calculations, deparser)
        source = stages.write()
        places = {name: next(iter(found)) for name, found in parser.offsets.items() if len(found) == 1}
        offsets = {name: place for name, place in places.items() if place is not None}
    try:
        exec(compile(source, "<softswitch program>", "exec"), pool.names)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ProgramError("", f"too large or too deep for Python: {error}") from error
    names = pool.names
    return Compiled(source, *(names[name] for name in ("ingress", "reparse", "egress")))  # type: ignore[arg-type]


