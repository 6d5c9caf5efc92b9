"""Source of the three functions: what simple_switch does around parser, pipelines and deparser.

The order of things, and which metadata a copy of a packet starts with, are those of ``ingress_thread`` and ``egress_thread`` in
BMv2's simple_switch.cpp.
"""

from __future__ import annotations

import re

from softswitch.compiler.calculations import CalculationCompiler
from softswitch.compiler.changes import mark, tracked
from softswitch.compiler.context import Context
from softswitch.compiler.deparser import DeparserCompiler
from softswitch.compiler.expressions import Scope, Value, fit
from softswitch.compiler.parser import ParserCompiler
from softswitch.compiler.tables import ControlCompiler
from softswitch.compiler.writer import Writer
from softswitch.program.ir import FieldRef

INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, REPLICA, RESUBMITTED = 1, 2, 4, 5, 6
"""Values of ``instance_type`` (simple_switch.h)."""

_LOCAL = re.compile(r"\b[fvbwond]\d+(?:_\d+)?\b")
NO_SCOPE = Scope()


def names_in(lines: list[str]) -> list[str]:
    """Local variables of headers and stacks that source mentions."""
    return sorted({name for line in lines for name in _LOCAL.findall(line)})


class StageWriter:
    """Writes the functions."""

    def __init__(
        self,
        context: Context,
        parser: ParserCompiler,
        control: ControlCompiler,
        calculations: CalculationCompiler,
        deparser: DeparserCompiler,
    ) -> None:
        self.context = context
        self.program = context.program
        self.parser = parser
        self.control = control
        self.calculations = calculations
        self.deparser = deparser
        self.metadata = {
            self.context.layout.name(header.name, item.name)
            for header in self.program.headers.values()
            if header.metadata
            for item in header.type.fields
        }

    def write(self) -> str:
        """All source."""
        egress = self._egress_body()
        ingress_control = Writer(1)
        self.control.emit(ingress_control, self.program.ingress)
        ingress_control.lines = mark(ingress_control.lines, tracked(self.context.layout))
        parse = Writer(1)
        parse.line("PE = 0")
        self.parser.emit(parse)
        self._after_parser(parse)
        used = set(names_in(egress.lines)) | set(self._kept_in_egress())
        self.phv = sorted(used & (set(names_in(ingress_control.lines + parse.lines)) | self._set_by_ingress()))
        self.carried = ["data", "L", "Q", "D"] + [name for name in ("N", "TR") if self._packet_wide(name)] + self.phv
        ingress = self._ingress(parse, ingress_control)
        reparse = self._reparse(parse)
        whole = ingress.lines + reparse.lines + self._egress(egress, sorted(used)).lines
        return "\n".join(self._without_unused_offsets(whole)) + "\n"

    @staticmethod
    def _without_unused_offsets(lines: list[str]) -> list[str]:
        counts: dict[str, int] = {}
        for line in lines:
            for name in re.findall(r"\bo\d+\b", line):
                counts[name] = counts.get(name, 0) + 1
        stores: dict[str, int] = {}
        pattern = re.compile(r"\s*(o\d+) = [\w +]+$")
        for line in lines:
            if found := pattern.match(line):
                stores[found[1]] = stores.get(found[1], 0) + 1
        unused = {name for name, count in counts.items() if stores.get(name) == count}
        return [line for line in lines if not ((found := pattern.match(line)) and found[1] in unused)]

    def _packet_wide(self, name: str) -> bool:
        if name == "N":
            return self.context.target_field("packet_length") is not None
        return name in self.context.used

    def _set_by_ingress(self) -> set[str]:
        names = ("ingress_port", "packet_length", "instance_type", "ingress_global_timestamp", "parser_error")
        found = {self.context.target_field(name) for name in names}
        lists = {self._local(ref) for refs in self.program.field_lists.values() for ref in refs}
        return {name for name in found | lists if name is not None}

    def _local(self, ref: FieldRef) -> str:
        return self.context.layout.name(ref.header, ref.field)

    def _kept_in_egress(self) -> list[str]:
        """Fields that a clone or a recirculated packet may keep, if egress makes any."""
        if not self.context.used & {"CS", "RC"}:
            return []
        return [self._local(ref) for refs in self.program.field_lists.values() for ref in refs]

    def _set(self, writer: Writer, name: str, text: str, low: int | None = 0, high: int | None = None) -> None:
        """Sets a target's field, wrapped to its width."""
        local = self.context.target_field(name)
        if local is not None:
            writer.line(f"{local} = {fit(Value(text, low, high), self.context.target_width(name))}")

    def _after_parser(self, writer: Writer) -> None:
        self._set(writer, "parser_error", "PE", 0, 127)
        self.calculations.verify(writer)

    def _start(self, writer: Writer, names: list[str]) -> None:
        for start in range(0, len(names), 16):
            writer.line(f"{' = '.join(names[start : start + 16])} = 0")

    def _restore(self, writer: Writer) -> None:
        """Adds source that sets the fields which ``preserved`` brings along: the list's id, and their values."""
        lists = [(identity, refs) for identity, refs in sorted(self.program.field_lists.items()) if refs]
        for place, (identity, refs) in enumerate(lists):
            with writer.block(f"{'el' if place else ''}if preserved[0] == {identity!r}:"):
                names = [self._local(ref) if self._keeps(ref) else "_" for ref in refs]
                writer.line(f"{', '.join(names)}, = preserved[1]")

    def _keeps(self, ref: FieldRef) -> bool:
        return self.context.layout.is_live(ref.header, ref.field)

    def _preserved(self, writer: Writer, number: str) -> None:
        """Adds source that sets ``y`` to a tuple for ``preserved``, by the list's id in a variable."""
        writer.line("y = (0, ())")
        for place, (identity, refs) in enumerate(sorted(self.program.field_lists.items())):
            with writer.block(f"{'el' if place else ''}if {number} == {identity!r}:"):
                values = "".join(f"{self._local(ref)}, " for ref in refs)
                writer.line(f"y = ({identity!r}, ({values}))")

    # --- ingress

    def _ingress(self, parse: Writer, control: Writer) -> Writer:
        end = Writer(1)
        self._ingress_end(end)
        body = parse.lines + control.lines + end.lines
        writer = Writer()
        with writer.block("def ingress(data, port, now, instance_type=0, preserved=None):"):
            writer.line("L = len(data)")
            self._start(writer, sorted(set(names_in(body)) | set(self.phv)))
            self._packet_variables(writer, ("N", "TR", "CS", "RS", "DG"))
            with writer.block("if instance_type:"):
                with writer.block("if preserved is not None:"):
                    self._restore(writer)
                self._set(writer, "instance_type", "instance_type", 0, 15)
            with writer.block("else:"):
                self._set(writer, "ingress_port", "port")
                self._set(writer, "ingress_global_timestamp", "now")
            self._set(writer, "packet_length", "L")
            writer.lines += body
        return writer

    def _packet_variables(self, writer: Writer, names: tuple[str, ...]) -> None:
        initial = {"N": "L", "TR": "65536", "CS": "-1", "RS": "0", "RC": "0", "DG": "0"}
        for name in names:
            if self._packet_wide(name):
                writer.line(f"{name} = {initial[name]}")
                if name == "CS":
                    writer.line("CF = 0")

    def _tuple(self, changes: dict[str, str] | None = None) -> str:
        changes = changes or {}
        return f"({', '.join(changes.get(name, name) for name in self.carried)},)"

    def _with_type(self, value: int) -> str:
        local = self.context.target_field("instance_type")
        changes = {local: repr(value)} if local is not None and local in self.phv else {}
        if value == REPLICA:
            # simple_switch copies the packet anew for each replica, and the copy is whole again.
            changes["TR"] = "65536"
        return self._tuple(changes)

    def _ingress_end(self, writer: Writer) -> None:
        used = self.context.used
        group = self.context.target_field("mcast_grp")
        spec = self.context.target_field("egress_spec")
        assert spec is not None
        priority = self.context.target_field("priority") or "0"
        special = [f"{name} >= 0" if name == "CS" else name for name in ("CS", "RS") if name in used]
        if "DG" in used:
            with writer.block("if DG:"):
                self._digests(writer)
        if special:
            with writer.block(f"if {' or '.join(special)}:"):
                self._special_end(writer, group, spec, priority)
        if group is not None:
            with writer.block(f"if {group}:"):
                writer.line(f"return OUTCOME(multicast=({group}, {priority}, {self._with_type(REPLICA)}))")
        with writer.block(f"if {spec} == {self.context.drop_port!r}:"):
            self._count_drop(writer)
            writer.line("return None")
        writer.line(f"return ({spec}, {priority}, {self._with_type(0)})")

    def _count_drop(self, writer: Writer) -> None:
        names = self.context.pool.shared(
            "K", "parser errors", lambda: {code: f"parser-{name}" for name, code in self.program.errors.items()}
        )
        writer.line(f"DROPS[{names}.get(PE, 'parser-error') if PE else 'ingress'] += 1")

    def _digests(self, writer: Writer) -> None:
        for place, (identity, (name, refs)) in enumerate(sorted(self.program.digests.items())):
            with writer.block(f"{'el' if place else ''}if DG == {identity!r}:"):
                values = "".join(f"{self.control.expressions.unsigned(ref, NO_SCOPE).text}, " for ref in refs)
                title = self.context.pool.add("K", name)
                writer.line(f"DIGEST({title}, ({values}))")

    def _special_end(self, writer: Writer, group: str | None, spec: str, priority: str) -> None:
        used = self.context.used
        writer.line("r = OUTCOME()")
        if "CS" in used:
            with writer.block("if CS >= 0:"):
                self._preserved(writer, "CF")
                writer.line(f"c = reparse(data, port, now, {INGRESS_CLONE!r}, y)")
                with writer.block("if c is not None:"):
                    writer.line("r.clones.append((CS, c))")
        if "RS" in used:
            with writer.block("if RS:"):
                self._preserved(writer, "RS")
                writer.line("r.resubmit = y")
                writer.line("return r")
        if group is not None:
            with writer.block(f"if {group}:"):
                writer.line(f"r.multicast = ({group}, {priority}, {self._with_type(REPLICA)})")
                writer.line("return r")
        with writer.block(f"if {spec} == {self.context.drop_port!r}:"):
            self._count_drop(writer)
        with writer.block("else:"):
            writer.line(f"r.unicast = ({spec}, {priority}, {self._with_type(0)})")
        writer.line("return r")

    # --- reparse

    def _reparse(self, parse: Writer) -> Writer:
        writer = Writer()
        metadata = sorted(name for name in self.phv if name in self.metadata)
        with writer.block("def reparse(data, port, now, instance_type, preserved):"):
            writer.line("L = len(data)")
            self._start(writer, sorted(set(names_in(parse.lines)) | set(self.phv)))
            self._packet_variables(writer, ("N", "TR"))
            self._set(writer, "ingress_port", "port")
            writer.lines += parse.lines
            self._start(writer, metadata)
            with writer.block("if preserved is not None:"):
                kept = Writer(writer.depth)
                self._restore(kept)
                writer.lines += mark(kept.lines, tracked(self.context.layout))
            self._set(writer, "instance_type", "instance_type", 0, 15)
            writer.line(f"return {self._tuple()}")
        return writer

    # --- egress

    def _egress_body(self) -> Writer:
        writer = Writer(1)
        self.control.emit(writer, self.program.egress)
        writer.lines = mark(writer.lines, tracked(self.context.layout))
        self._marks = writer.position
        self.calculations.update(writer)
        for primitive in self.program.deparser.primitives:
            self.control.actions.primitives.emit(writer, primitive, NO_SCOPE)
        self.deparser.emit(writer)
        return writer

    def _egress(self, body: Writer, used: list[str]) -> Writer:
        pipeline, rest = body.lines[: self._marks], body.lines[self._marks :]
        spec = self.context.target_field("egress_spec")
        writer = Writer()
        queue = "priority=0, enq_timestamp=0, enq_qdepth=0, deq_timedelta=0, deq_qdepth=0"
        with writer.block(f"def egress(phv, port, now, rid, instance_type=-1, {queue}):"):
            writer.line(f"{self._tuple()[1:-1]} = phv")
            self._start(writer, [name for name in used if name not in self.phv])
            self._packet_variables(writer, ("CS", "RC"))
            writer.line("PE = 0")
            self._egress_metadata(writer)
            writer.lines += pipeline
            if "CS" in self.context.used:
                writer.line("c = None")
                with writer.block("if CS >= 0:"):
                    self._egress_clone(writer)
            with writer.block(f"if {spec} == {self.context.drop_port!r}:"):
                writer.line("DROPS['egress'] += 1")
                clones = "None if c is None else OUTCOME(clones=[(CS, c)])" if "CS" in self.context.used else "None"
                writer.line(f"return {clones}")
            writer.lines += rest
            result = "o[:TR]" if self._packet_wide("TR") else "o"
            special = [test for name, test in (("CS", "CS >= 0"), ("RC", "RC")) if name in self.context.used]
            if special:
                with writer.block(f"if {' or '.join(special)}:"):
                    self._egress_outcome(writer, result)
            writer.line(f"return {result}")
        return writer

    def _egress_metadata(self, writer: Writer) -> None:
        for name, text in (
            ("egress_global_timestamp", "now"),
            ("enq_timestamp", "enq_timestamp"),
            ("enq_qdepth", "enq_qdepth"),
            ("deq_timedelta", "deq_timedelta"),
            ("deq_qdepth", "deq_qdepth"),
            ("qid", "priority"),
            ("egress_port", "port"),
            ("egress_rid", "rid"),
        ):
            self._set(writer, name, text)
        after_drop = self.context.drop_port + 1
        self._set(writer, "egress_spec", repr(after_drop), after_drop, after_drop)
        self._set(writer, "packet_length", "N")
        if self.context.target_field("instance_type") is not None:
            with writer.block("if instance_type >= 0:"):
                self._set(writer, "instance_type", "instance_type", 0, 15)

    def _egress_clone(self, writer: Writer) -> None:
        """The clone's headers are those of now; its metadata start anew, but for what is preserved."""
        changes = {name: "0" for name in self.phv if name in self.metadata}
        local = self.context.target_field("instance_type")
        if local is not None and local in self.phv:
            changes[local] = repr(EGRESS_CLONE)
        if self._packet_wide("TR"):
            changes["TR"] = "65536"
        lists = sorted(self.program.field_lists.items())
        for place, (identity, refs) in enumerate(lists):
            kept = {self._local(ref) for ref in refs}
            with writer.block(f"{'el' if place else ''}if CF == {identity!r}:"):
                writer.line(f"c = {self._tuple({name: text for name, text in changes.items() if name not in kept})}")
        line = f"c = {self._tuple(changes)}"
        if lists:
            with writer.block("else:"):
                writer.line(line)
        else:
            writer.line(line)

    def _egress_outcome(self, writer: Writer, result: str) -> None:
        used = self.context.used
        writer.line("r = OUTCOME()")
        if "CS" in used:
            with writer.block("if c is not None:"):
                writer.line("r.clones.append((CS, c))")
        if "RC" in used:
            with writer.block("if RC:"):
                self._preserved(writer, "RC")
                # Whole, even if truncate was called: simple_switch copies the buffer and forgets the length.
                writer.line("r.recirculate = (o, y)")
                writer.line("return r")
        writer.line(f"r.data = {result}")
        writer.line("return r")
