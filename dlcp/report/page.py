"""The page: figures in their order, one style sheet, one script, and nothing from anywhere else."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dlcp.report.figure import Figure
from dlcp.report.markup import Content, Markup, element, joined


@dataclass(frozen=True)
class Section:
    """A part of the page; ``content`` are figures or whatever else there is."""

    key: str
    title: str
    content: Sequence[Figure | Content]


def page(title: str, head: Sequence[Content], sections: Sequence[Section], foot: Content) -> Markup:
    """Returns a whole HTML document that loads nothing, by a policy that browsers enforce.

    Args:
        title: Of the window.
        head: What stands on top.
        sections: What follows, with a table of contents.
        foot: The last line.
    """
    style, script = _style(), _file("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Only this script may run: should a name ever find its way into the page unescaped, it stays without effect.
    rules = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )
    links = [element("a", section.title, href=f"#{section.key}") for section in sections]
    body = [
        element("header", *head, element("nav", *links, aria_label="Sections")),
        element("main", *(_section(section) for section in sections)),
        element("footer", foot),
        element("script", Markup(script)),
    ]
    document = element(
        "html",
        element(
            "head",
            element("meta", charset="utf-8"),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{rules}">'),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            # Without an icon of its own browsers ask for one.
            Markup('<link rel="icon" href="data:,">'),
            element("title", title),
            element("style", Markup(style)),
        ),
        element("body", *body),
        lang="en",
    )
    return Markup(f"<!DOCTYPE html>\n{document}\n")


def _section(section: Section) -> Markup:
    content = [item.render() if isinstance(item, Figure) else item for item in section.content]
    return element("section", element("h2", section.title), joined(content), id=section.key)


def save(path: Path, text: str) -> Path:
    """Writes a file, whole or not at all, and returns its path."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    """Returns the style sheet with a colour for every class of marks."""
    rules = [".best{--c:var(--best)}"]
    dashes = ("none", "7 3", "2 3", "9 3 2 3")
    for place in range(64):
        rules.append(f".s{place}{{--c:var(--s{place % 8});--dash:{dashes[place // 8 % 4]}}}")
        rules.append(f".b{place}{{--c:var(--b{place % 4});--dash:{dashes[(place + 1) % 4]}}}")
        rules.append(f".d{place}{{--c:var(--{('s', 'b')[place // 8 % 2]}{place % 8 % (8, 4)[place // 8 % 2]})}}")
    rules += [f".{letter}{place}{{--c:var(--{letter}{place})}}" for letter in "hk" for place in range(8)]
    return _file("style.css") + "\n".join(rules)


__all__ = ["Section", "page", "save"]
