"""Marks of change: whether a packet's headers still are what came in.

``D`` says whether anything of the packet's bytes may have changed at all, ``d3`` whether something wrote to header 3 after it was
extracted.  A packet without ``D`` leaves as it came, and a header without its mark is sliced from the packet as it came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from softswitch.compiler.layout import Layout

_ASSIGNMENT = re.compile(r"(\s*)([a-z]\w*(?:(?:, | = )[a-z]\w*)*),? = ")
_NAME = re.compile(r"[fvbw](\d+)(?:_\d+)?")


def tracked(layout: Layout) -> set[int]:
    """Indices of the headers that the deparser emits."""
    headers = layout.program.headers
    return {headers[name].index for name in layout.program.deparser.order if not headers[name].metadata}


def mark(lines: Iterable[str], indices: set[int]) -> list[str]:
    """Source with a mark after every assignment to a variable of these headers."""
    marked = []
    for line in lines:
        marked.append(line)
        found = _ASSIGNMENT.match(line)
        if found is None:
            continue
        names = [_NAME.fullmatch(name) for name in re.split(", | = ", found[2])]
        written = sorted({int(name[1]) for name in names if name is not None} & indices)
        if written:
            marked.append(f"{found[1]}D = {' = '.join(f'd{index}' for index in written)} = 1")
    return marked
