"""A page as a tree, to ask what is in it."""

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "input", "img", "link"}


class Node:
    """An element; ``text`` is all text within it."""

    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent, self.children = tag, dict(attributes), parent, []

    def all(self, tag, **wanted):
        """Elements within it, in order; ``class_`` asks for one of the classes."""
        found = []
        for child in self.children:
            if isinstance(child, Node):
                if child.tag == tag and all(child.has(name, value) for name, value in wanted.items()):
                    found.append(child)
                found += child.all(tag, **wanted)
        return found

    def has(self, name, value):
        own = self.attributes.get(name.rstrip("_").replace("_", "-"))
        return own is not None and (value in own.split() if name == "class_" else own == value)

    def __getitem__(self, name):
        return self.attributes[name]

    @property
    def text(self):
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = self.at = Node("document", {}, None)

    def handle_starttag(self, tag, attributes):
        node = Node(tag, attributes, self.at)
        self.at.children.append(node)
        if tag not in VOID:
            self.at = node

    def handle_endtag(self, tag):
        assert self.at.tag == tag, f"</{tag}> where <{self.at.tag}> is open"
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.children.append(data)


def parse(page: str) -> Node:
    """Reads a page, all of whose elements must be closed in order."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.at is reader.root, f"<{reader.at.tag}> stays open"
    return reader.root


def rows(table: Node):
    """Rows of a table's body: for each cell its number where it has one (None for an empty one), else its text."""

    def content(cell):
        number = cell.attributes.get("data-value")
        return cell.text if number is None else float(number) if number else None

    return [[content(cell) for cell in line.children] for line in table.all("tbody")[0].all("tr")]


def headings(table: Node):
    """Headings of a table's columns."""
    return [cell.text for cell in table.all("thead")[0].all("th")]
