"""Reads control flow: where each table, condition and call leads to."""

from __future__ import annotations

from softswitch.program.expressions import ExpressionReader
from softswitch.program.ir import Action, Apply, Conditional, Control, DirectCall, Node
from softswitch.program.model import TableModel
from softswitch.program.source import Source


def read_pipeline(
    source: Source, expressions: ExpressionReader, actions: dict[int, Action], tables: dict[str, TableModel]
) -> Control:
    """Reads the control flow of a pipeline whose tables were read.

    Raises:
        ProgramError: A node that is not there, or a cycle.
    """
    conditionals = {item["name"].text(): item for item in source.items("conditionals")}
    calls = {item["name"].text(): item for item in source.items("action_calls")}
    table_sources = {item["name"].text(): item for item in source.items("tables")}
    known = set(conditionals) | set(calls) | set(table_sources)
    if len(known) != len(conditionals) + len(calls) + len(table_sources):
        source.fail("two nodes of a pipeline have the same name")

    def target(item: Source) -> str | None:
        name = item.optional_text()
        if name is not None and name not in known:
            item.fail(f"there is no node '{name}' in this pipeline")
        return name

    nodes: dict[str, Node] = {}
    for name, item in table_sources.items():
        nodes[name] = _apply(item, tables[name], target)
    for name, item in conditionals.items():
        condition = expressions.read(item["expression"], "bool")
        nodes[name] = Conditional(condition, target(item.get("true_next")), target(item.get("false_next")))
    for name, item in calls.items():
        identity = item["action_id"].integer()
        if identity not in actions:
            item["action_id"].fail(f"there is no action with id {identity}")
        if actions[identity].widths:
            item["action_id"].fail("an action with parameters cannot be called without a table")
        nodes[name] = DirectCall(identity, target(item.get("next_node")))
    control = Control(source["name"].text(), target(source.get("init_table")), nodes)
    _check_acyclic(source, control)
    return control


def _apply(source: Source, table: TableModel, target: object) -> Apply:
    assert callable(target)
    following = source["next_tables"]
    by_hit = following.has("__HIT__") or following.has("__MISS__")
    if not by_hit and isinstance(following.value, dict):
        by_hit = "__HIT__" in following.value or "__MISS__" in following.value
    next_actions: tuple[str | None, ...]
    if by_hit:
        next_actions = (None,) * len(table.actions)
    else:
        next_actions = tuple(target(following[action.name]) for action in table.actions)
    hit = target(following["__HIT__"]) if by_hit else None
    miss = target(following["__MISS__"]) if by_hit else None
    none = miss if by_hit else target(source.get("base_default_next"))
    return Apply(table.name, tuple(action.id for action in table.actions), next_actions, by_hit, hit, miss, none)


def successors(node: Node) -> tuple[str | None, ...]:
    """Nodes that may follow; None is the end of the pipeline."""
    match node:
        case Conditional(on_true=on_true, on_false=on_false):
            return (on_true, on_false)
        case DirectCall(next=following):
            return (following,)
        case Apply(by_hit=True, next_hit=hit, next_miss=miss):
            return (hit, miss)
        case Apply(next_actions=actions, next_none=none):
            return (*actions, none)


def _check_acyclic(source: Source, control: Control) -> None:
    finished: set[str] = set()
    for start in control.nodes:
        if start in finished:
            continue
        path = [(start, iter(successors(control.nodes[start])))]
        open_nodes = {start}
        while path:
            name, rest = path[-1]
            for following in rest:
                if following in open_nodes:
                    source.fail(f"the pipeline has a cycle through '{following}'")
                if following is not None and following not in finished:
                    path.append((following, iter(successors(control.nodes[following]))))
                    open_nodes.add(following)
                    break
            else:
                path.pop()
                open_nodes.discard(name)
                finished.add(name)
