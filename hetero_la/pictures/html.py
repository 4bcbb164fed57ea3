"""Writer of what notebooks show: a title, facts, tables and pictures, as one HTML element.

It has no background and takes the colours of the text around it, so that it can be read on dark
pages too; pictures are on white paper.  It needs no script, and is well-formed XML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from hetero_la.pictures.scene import Scene
from hetero_la.pictures.svg import svg

#: Most rows of a table: who wants more has the object.
MOST_ROWS = 64

#: A picture that is too wide is scaled down as far as this, where its text has 6 px, then scrolls.
_LEAST_SCALE = 0.55

#: Two classes in a selector, so that JupyterLab's own rules for tables do not win.
_STYLE = """<style>
.hetero-la { font-size: 13px; line-height: 1.4; }
.hetero-la div { overflow: auto; max-height: 44em; margin: 0.4em 0; }
.hetero-la .picture { max-height: 120em; }
.hetero-la table { border-collapse: collapse; margin: 0; font-size: inherit; }
.hetero-la table :is(tr, th, td) { border: 0; }
.hetero-la .facts :is(th, td), .hetero-la .figures :is(th, td) {
  padding: 1px 1.2em 1px 0; text-align: left; vertical-align: top; line-height: inherit; }
.hetero-la .facts th, .hetero-la .figures th {
  font-weight: normal; opacity: 0.7; white-space: nowrap; }
.hetero-la .figures :is(th + th, td + td) { text-align: right; white-space: nowrap; }
.hetero-la svg { display: block; max-width: 100%; min-width: var(--least); height: auto; }
</style>"""


class Table(NamedTuple):
    """A table of texts; all columns but the first are figures."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def html(title: str, facts: Mapping[str, str], *parts: Table | Scene) -> str:
    """Return the HTML of an object.

    Parameters
    ----------
    title : str
        What it is.
    facts : mapping of str to str
        Names of facts, with or without a colon, and texts; empty ones are left out.
    *parts : Table or Scene
        What follows them; tables without rows are left out.  Of a long table the first
        `MOST_ROWS` rows are shown.

    Examples
    --------
    >>> print(html("Timing", {"took": "5 ms < 1 s", "losses": ""}).partition("</style>")[2])
    <BLANKLINE>
    <b>Timing</b>
    <div><table class="facts">
    <tr><th>took</th><td>5 ms &lt; 1 s</td></tr>
    </table></div>
    </div>
    """
    rows = [
        f"<tr><th>{escape(name.rstrip(':'))}</th><td>{escape(text)}</td></tr>"
        for name, text in facts.items()
        if text
    ]
    known = ['<div><table class="facts">', *rows, "</table></div>"] if rows else []
    shown = (part for part in parts if isinstance(part, Scene) or part.rows)
    body = [_picture(part) if isinstance(part, Scene) else _table(part) for part in shown]
    head = ['<div class="hetero-la">', _STYLE, f"<b>{escape(title)}</b>"]
    return "\n".join([*head, *known, *body, "</div>"])


def _table(table: Table) -> str:
    rows = [_row("th", table.head), *(_row("td", row) for row in table.rows[:MOST_ROWS])]
    if (hidden := len(table.rows) - MOST_ROWS) > 0:
        rows.append(_row("td", [f"and {hidden} more"]))
    return "\n".join(['<div><table class="figures">', *rows, "</table></div>"])


def _row(cell: str, texts: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{cell}>{escape(text)}</{cell}>' for text in texts)}</tr>"


def _picture(scene: Scene) -> str:
    least = f"--least: {_LEAST_SCALE * scene.width:.0f}px"
    return f'<div class="picture" style="{least}">{svg(scene)}</div>'
