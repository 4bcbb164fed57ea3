"""Directive ``command-line``: every command and option, from the parser of ``hetero-la``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from hetero_la.cli.arguments import build_parser

#: Most columns of a line of notes and its indentation, between the side bars of a page.
_COLUMNS = 79


def _escaped(text: str) -> str:
    """Return text in which reStructuredText sees no markup."""
    return "".join(f"\\{letter}" if letter in "*`|_\\" else letter for letter in text)


def _described(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the lines of one command: its summary, usage, options by group, and notes."""
    yield from (_escaped(parser.description or ""), "", ".. code-block:: text", "")
    yield from (f"   {parser.usage}", "", f".. program:: {parser.prog}", "")
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        if not shown or isinstance(shown[0], argparse._SubParsersAction):
            continue
        yield from (f".. rubric:: {(group.title or '').capitalize()}", "")
        for action in shown:
            yield f".. option:: {formatter._format_action_invocation(action)}"
            yield from ("", f"   {_escaped(formatter._expand_help(action))}", "")
    if parser.epilog:
        yield from (
            ".. code-block:: text",
            "   :class: help",
            "",
            formatter._fill_text(parser.epilog.rstrip(), _COLUMNS, "   "),
            "",
        )


class CommandLine(SphinxDirective):
    """Describe all commands, each in a section."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        parser = build_parser()
        lines = [*_described(parser)]
        for name, command in parser._subparsers._group_actions[0].choices.items():  # type: ignore[union-attr]
            lines += [name, "-" * len(name), "", *_described(command)]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
