"""Source of pipelines: tables with their actions inlined, and conditions."""

from __future__ import annotations

from softswitch.compiler.actions import ActionCompiler
from softswitch.compiler.calculations import CalculationCompiler
from softswitch.compiler.context import Context
from softswitch.compiler.expressions import Scope, Value
from softswitch.compiler.flow import Flow, Go
from softswitch.compiler.writer import Writer
from softswitch.program.ir import Action, Apply, CalcInput, Calculation, Conditional, Control, DirectCall, FieldRef
from softswitch.program.model import TableModel
from softswitch.program.pipelines import successors

NO_SCOPE = Scope()


class ControlCompiler:
    """Makes source of a pipeline."""

    def __init__(self, context: Context, actions: ActionCompiler, calculations: CalculationCompiler) -> None:
        self.context = context
        self.actions = actions
        self.calculations = calculations
        self.expressions = context.expressions

    def emit(self, writer: Writer, control: Control) -> None:
        """Adds the source of a whole pipeline."""

        def emit(writer: Writer, name: str, go: Go[str]) -> None:
            match control.nodes[name]:
                case Conditional() as node:
                    self._conditional(writer, node, go)
                case DirectCall(action=action):
                    self.actions.emit(writer, self.context.program.actions[action], ())
                case Apply() as node:
                    self._apply(writer, node, go)

        def following(name: str) -> tuple[str | None, ...]:
            node = control.nodes[name]
            targets = successors(node)
            if isinstance(node, Apply):
                table = self.context.program.control.tables[node.table]
                if self._fixed(table) and table.default is not None:
                    return (node.next_miss if node.by_hit else node.next_actions[table.default],)
                if table.default is not None and table.profile is None and not node.by_hit:
                    return targets[:-1]
            return targets

        Flow(list(control.nodes), following, emit).write(writer, control.init)

    def _fixed(self, table: TableModel) -> bool:
        """Whether applying the table always does the same."""
        return not table.keys and table.default_const and table.kind == "simple" and table.default is not None

    def _conditional(self, writer: Writer, node: Conditional, go: Go[str]) -> None:
        condition = self.expressions.boolean(node.condition, NO_SCOPE)
        if node.on_true == node.on_false:
            return
        with writer.block(f"if {condition}:"):
            go(node.on_true)
        mark = writer.position
        with writer.block("else:"):
            go(node.on_false)
        if writer.lines[mark + 1 :] == ["    " * (writer.depth + 1) + "pass"]:
            del writer.lines[mark:]

    def _apply(self, writer: Writer, node: Apply, go: Go[str]) -> None:
        program = self.context.program
        table = program.control.tables[node.table]
        actions = [program.actions[identity] for identity in node.actions]
        if self._fixed(table):
            assert table.default is not None
            self.actions.emit(writer, actions[table.default], table.default_data)
            return
        writer.line(f"a, d, e = {self.context.tables[table.name]}({self._key(table)})")
        self._on_hit(writer, table)
        if table.kind == "indirect_ws":
            assert table.profile is not None
            with writer.block("if a == -1:"):
                writer.line("y = d.active")
                writer.line(f"a, d, _ = y[{self._selector(table.profile)} % len(y)]")
        arms = [(index, action) for index, action in enumerate(actions)]
        if node.by_hit:
            self._arms(writer, arms, None, node, go)
            if node.next_hit != node.next_miss:
                with writer.block("if e is not None:"):
                    go(node.next_hit)
                with writer.block("else:"):
                    go(node.next_miss)
            return
        self._arms(writer, arms, node.next_actions, node, go)

    def _arms(
        self,
        writer: Writer,
        arms: list[tuple[int, Action]],
        following: tuple[str | None, ...] | None,
        node: Apply,
        go: Go[str],
    ) -> None:
        """One branch an action.  Actions that do nothing and lead to the same place share the last one."""
        table = self.context.program.control.tables[node.table]
        nothing = table.default is None or table.profile is not None
        targets = set(following or ())
        if following is not None and nothing:
            targets.add(node.next_none)
        diverges = len(targets) > 1
        idle = [index for index, action in arms if not self.actions.uses(action)]
        rest: str | None = None
        quiet: set[int] = set(idle)
        if diverges:
            assert following is not None
            if nothing:
                rest = node.next_none
            elif idle:
                rest = following[idle[-1]]
            else:
                rest = following[-1]
            quiet = {index for index in idle if following[index] == rest}
        busy = [(index, action) for index, action in arms if index not in quiet]
        certain = not nothing and not quiet
        for place, (index, action) in enumerate(busy):
            if certain and place == len(busy) - 1 and place:
                head = "else:"
            elif certain and len(busy) == 1:
                self.actions.emit(writer, action, "d")
                if diverges:
                    assert following is not None
                    go(following[index])
                return
            else:
                head = f"{'el' if place else ''}if a == {index!r}:"
            with writer.block(head):
                self.actions.emit(writer, action, "d")
                if diverges:
                    assert following is not None
                    go(following[index])
        if diverges and not certain:
            if busy:
                mark = writer.position
                with writer.block("else:"):
                    go(rest)
                if writer.lines[mark + 1 :] == ["    " * (writer.depth + 1) + "pass"]:
                    del writer.lines[mark:]
            else:
                go(rest)

    def _key(self, table: TableModel) -> str:
        parts = []
        for key in table.keys:
            value = self.expressions.unsigned(FieldRef(*key.field), NO_SCOPE)
            full = (1 << key.width) - 1
            if key.mask is not None and key.mask != full:
                value = Value(f"{value.text} & {key.mask!r}")
            parts.append(value.text)
        return parts[0] if len(parts) == 1 else f"({', '.join(parts)})" if parts else "()"

    def _on_hit(self, writer: Writer, table: TableModel) -> None:
        if not (table.with_counters or table.support_timeout or table.direct_meter):
            return
        with writer.block("if e is not None:"):
            if table.direct_meter is not None:
                target = self.context.program.control.meters[table.direct_meter].target
                if target is not None:
                    color = Value("e.meter.color(L, now)", 0, 2)
                    self.actions.primitives.assign(writer, FieldRef(*target), color, NO_SCOPE)
            if table.with_counters:
                writer.line("e.packets += 1")
                writer.line("e.bytes += L")
            if table.support_timeout:
                writer.line("e.last_hit = now")

    def _selector(self, profile: str) -> str:
        model = self.context.program.control.profiles[profile]
        inputs = tuple(CalcInput(field=FieldRef(*ref)) for ref in model.selector)
        calculation = Calculation(f"selector of {profile}", model.algorithm or "crc16", inputs)
        return self.calculations.text(calculation)
