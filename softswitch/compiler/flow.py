"""Control-flow graphs to structured source.

A graph of nodes with known successors becomes nested ``if``/``else``.  Where branches come together again, the code that follows
is written once, after the branches; a branch that leaves early says ``break``, for which the caller provides a loop.  Graphs that
would grow too large that way, or that have cycles, become a loop over a state variable.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from softswitch.compiler.writer import TooDeep, Writer

Node = TypeVar("Node", bound=Hashable)
Go = Callable[[Node | None], None]
"""Adds what follows after the branch to a node (None: the end); adds nothing where the branches meet."""

Emit = Callable[[Writer, Node, "Go[Node]"], None]
"""Adds a node's own source, and calls ``go`` once in every branch of it if it has several successors."""

MAX_STEPS = 1 << 18
"""Nodes visited in one run of a loop form; beyond that it counts as endless, and the packet is dropped."""

GROWTH = 4
"""How many times a node may be written on average before the loop form is taken."""


class Flow(Generic[Node]):
    """A control-flow graph.

    Args:
        nodes: All nodes.
        successors: Possible successors of each; None is the end.
        emit: Adds the source of a node.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        successors: Callable[[Node], Sequence[Node | None]],
        emit: Emit[Node],
    ) -> None:
        self.nodes = nodes
        self.emit = emit
        self.successors = {node: tuple(dict.fromkeys(successors(node))) for node in nodes}
        self._order: dict[Node, int] = {}
        self._reach: dict[Node, frozenset[Node]] = {}
        self._pass: dict[Node, frozenset[Node]] = {}
        self._written = 0
        self.cyclic = not self._sort()

    def write(self, writer: Writer, start: Node | None) -> None:
        """Adds the source of everything from ``start`` to the end."""
        if start is None:
            return
        if not self.cyclic:
            trial = _Trial(writer)
            try:
                self._run(trial, start, None)
            except TooDeep:
                pass
            else:
                self._written = 0
                if trial.breaks:
                    with writer.block("while True:"):
                        self._run(writer, start, None)
                        writer.line("break")
                else:
                    self._run(writer, start, None)
                return
        self._machine(writer, start)

    def _sort(self) -> bool:
        """Topological order and reachability; False for a cycle."""
        state: dict[Node, int] = {}
        finished: list[Node] = []
        for root in self.nodes:
            if root in state:
                continue
            path = [(root, iter(self.successors[root]))]
            state[root] = 1
            while path:
                node, rest = path[-1]
                for following in rest:
                    if following is None:
                        continue
                    if state.get(following) == 1:
                        return False
                    if following not in state:
                        state[following] = 1
                        path.append((following, iter(self.successors[following])))
                        break
                else:
                    path.pop()
                    state[node] = 2
                    finished.append(node)
                    after = [item for item in self.successors[node] if item is not None]
                    self._reach[node] = frozenset([node]).union(*(self._reach[item] for item in after))
                    self._pass[node] = self._passed(node)
        self._order = {node: -position for position, node in enumerate(finished)}
        return True

    def _run(self, writer: Writer, node: Node | None, stop: Node | None) -> None:
        while node is not None and node != stop:
            self._written += 1
            if self._written > GROWTH * len(self.nodes) + 64:
                raise TooDeep
            targets = self.successors[node]
            if len(targets) == 1:
                self.emit(writer, node, lambda target: None)
                node = targets[0]
            else:
                join = self._join(targets, stop)
                self.emit(writer, node, lambda target, join=join: self._run(writer, target, join))  # type: ignore[misc]
                node = join
        if node is None and stop is not None:
            writer.line("break")

    def _join(self, targets: Sequence[Node | None], stop: Node | None) -> Node | None:
        """Where branches meet: the first node that all those pass which meet others at all."""
        meeting = self._meeting([target for target in targets if target is not None])
        common = frozenset.intersection(*(self._pass[node] for node in meeting)) if meeting else frozenset()
        if not common and meeting:
            common = frozenset.intersection(*(self._reach[node] for node in meeting))
        if common:
            return min(common, key=self._order.__getitem__)
        return stop if any(stop in self._reach[target] for target in targets if target is not None) else None

    def _meeting(self, targets: Sequence[Node]) -> list[Node]:
        """Those of some nodes from which a node can be reached that another one reaches too."""
        reach = [self._reach[target] for target in targets]
        return [
            target
            for place, target in enumerate(targets)
            if any(reach[place] & other for at, other in enumerate(reach) if at != place)
        ]

    def _passed(self, node: Node) -> frozenset[Node]:
        """Nodes on every way from here to the end, leaving out ways that end early on their own."""
        after = [item for item in self.successors[node] if item is not None]
        through = self._meeting(after) or (after if len(after) == 1 else [])
        common = frozenset.intersection(*(self._pass[item] for item in through)) if through else frozenset()
        return common | {node}

    def _machine(self, writer: Writer, start: Node) -> None:
        numbers = {node: number for number, node in enumerate(self.nodes)}

        def go(target: Node | None) -> None:
            writer.line("break" if target is None else f"s = {numbers[target]!r}")

        def body(number: int) -> None:
            node = self.nodes[number]
            targets = self.successors[node]
            if len(targets) == 1:
                self.emit(writer, node, lambda target: None)
                go(targets[0])
            else:
                self.emit(writer, node, go)

        writer.line(f"s = {numbers[start]!r}")
        with writer.block(f"for _ in range({MAX_STEPS!r}):"):
            dispatch(writer, 0, len(self.nodes), body)
        with writer.block("else:"):
            writer.line("DROPS['endless-loop'] += 1")
            writer.line("return None")


def dispatch(writer: Writer, low: int, high: int, body: Callable[[int], None]) -> None:
    """Source that finds the block of number ``s`` by bisection."""
    if high - low <= 4:
        for number in range(low, high):
            with writer.block(f"{'el' if number > low else ''}if s == {number!r}:"):
                body(number)
        return
    middle = (low + high) // 2
    with writer.block(f"if s < {middle!r}:"):
        dispatch(writer, low, middle, body)
    with writer.block("else:"):
        dispatch(writer, middle, high, body)


class _Trial(Writer):
    """Takes lines only to see whether there is a ``break``."""

    def __init__(self, real: Writer) -> None:
        super().__init__(real.depth + 1)
        self.breaks = False

    def line(self, text: str) -> None:
        super().line(text)
        if text == "break":
            self.breaks = True
