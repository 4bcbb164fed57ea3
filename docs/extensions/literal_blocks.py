"""Literal blocks that are shown in another way: those of the gallery, and the list of packages."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx

#: The page whose first block is a list, which tests read: a name and what it is for, on each line.
_LIST_PAGE = "explanation/design"


def _table(block: nodes.literal_block) -> nodes.table:
    """Return a table of two columns, whose lines can be broken."""
    body = nodes.tbody()
    for line in block.astext().splitlines():
        name, text = line.split(maxsplit=1)
        cells = nodes.literal(name, name), nodes.Text(text)
        entries = [nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells]
        body += nodes.row("", *entries)
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in range(2)), body, cols=2)
    return nodes.table("", group, classes=["table", "names"])


def _change(app: Sphinx, doctree: nodes.document) -> None:
    """Colour the commands of the gallery but not its formulas; turn the list into a table."""
    page = app.env.docname
    blocks = list(doctree.findall(nodes.literal_block))
    if page == _LIST_PAGE:
        blocks[0].replace_self(_table(blocks[0]))
    elif page.startswith("gallery/"):
        for block in blocks:
            if "language" not in block:
                command = block.astext().startswith("python examples/")
                block["language"] = "bash" if command else "none"


def setup(app: Sphinx) -> dict[str, bool]:
    """Let it change pages that have been read."""
    app.connect("doctree-read", _change)
    return {"parallel_read_safe": True}
