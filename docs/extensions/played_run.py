"""Directive ``played-run``: a run that a plan predicts, as a page that plays it or an animation.

Its argument is what ``hetero-la graph`` is told.  What it draws goes straight into the site.
"""

from __future__ import annotations

import contextlib
import html
import io
import shlex
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from hetero_la.cli.main import main

#: Folder of the site to which they are written.
_FOLDER = "_runs"


class played_run(nodes.General, nodes.Element):  # noqa: N801  # nodes are named like this
    """A run: what to draw, the file to which, and what it shows."""


class PlayedRun(SphinxDirective):
    """Show a run; the suffix of `file` says as what."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"file": directives.path, "alt": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Return its node."""
        return [played_run(command=self.arguments[0], page=self.env.docname, **self.options)]


def _drawn(command: str, path: Path) -> None:
    """Draw a run."""
    path.parent.mkdir(exist_ok=True)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(["graph", *shlex.split(command), "-o", str(path)])
    if status:
        raise RuntimeError(f"hetero-la graph {command}: exit status {status}: {said.getvalue()}")


def _still(path: Path) -> str:
    """Write a picture from the middle of an animation beside it, and return its name."""
    from PIL import Image

    with Image.open(path) as frames:
        frames.seek(frames.n_frames // 2)
        frames.save(path.with_suffix(".png"))
    return path.with_suffix(".png").name


def _visit(self: HTML5Translator, node: played_run) -> None:
    """Draw it, and write what shows it; who wants no motion sees a frame of the animation."""
    path = Path(self.builder.outdir) / _FOLDER / node["file"]
    _drawn(node["command"], path)
    there = f"{'../' * node['page'].count('/')}{_FOLDER}/"
    address, alt = f"{there}{path.name}", html.escape(node["alt"])
    if path.suffix == ".html":
        shown = f'<iframe class="played-run" src="{address}" title="{alt}" loading="lazy"></iframe>'
        shown += f'<p><a href="{address}">Open the page alone</a></p>'
    else:
        still = f"{there}{_still(path)}"
        shown = (
            f'<p><picture><source media="(prefers-reduced-motion: reduce)" srcset="{still}">'
            f'<img class="played-run" src="{address}" alt="{alt}" loading="lazy"></picture></p>'
        )
    self.body.append(f"{shown}\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_node(played_run, html=(_visit, None))
    app.add_directive("played-run", PlayedRun)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
