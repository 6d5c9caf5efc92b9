"""HTML and SVG as strings that cannot be forgotten to be escaped: whatever is not :class:`Markup` is text."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any, Final

_SPACES: Final = "\n\t\N{NO-BREAK SPACE}"
_VOID: Final = frozenset(("meta", "br", "hr", "input", "img"))


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = Markup | str | int | float | None | Iterable[Any]


def render(content: Content) -> Markup:
    """Returns content as HTML: text is escaped, None is nothing, of an iterable every item is rendered."""
    if isinstance(content, Markup):
        return content
    if content is None:
        return Markup("")
    if isinstance(content, str | int | float):
        # What no document may hold, or what turns the direction of the text around it, could end up in a name.
        return Markup(escape("".join(c if c.isprintable() or c in _SPACES else "\ufffd" for c in str(content)), quote=True))
    return Markup("".join(render(item) for item in content))


def element(tag: str, *content: Content, **attributes: Any) -> Markup:
    """Returns an element.

    Args:
        tag: Its name; never from outside.
        content: What is in it, see :func:`render`.
        attributes: Their names as Python allows them: ``class_`` is ``class``, ``data_value`` is ``data-value``.  None and False
            leave one out, True is one without a value; numbers are written with two decimals at most.
    """
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{render(content)}</{tag}>")


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    if isinstance(value, float) and not name.startswith("data-"):
        value = coordinate(value)
    return f' {name}="{render(str(value))}"'


def coordinate(value: float) -> str:
    """Returns a coordinate in pixels, short."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def joined(items: Iterable[Content]) -> Markup:
    """Returns several pieces one after the other."""
    return Markup("".join(render(item) for item in items))


__all__ = ["Content", "Markup", "coordinate", "element", "joined", "render"]
