"""What objects show of themselves: one line in a terminal, and HTML in a notebook.

What is drawn in a notebook is written by `hetero_la.displays`, far above most of the classes that
show it.  So these only have ``_repr_html_ = as_html``, and `hetero_la` provides the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

#: Most characters of a one-line `repr`.
LONGEST = 120

_loaders: list[Callable[[], object]] = []


def one_line(name: str, *known: str) -> str:
    """Return a `repr`: a class's name and, in parentheses, what is known of an object.

    Empty texts are left out, and what does not fit into a line of `LONGEST` characters.

    Examples
    --------
    >>> one_line("Timing", "12 ms", "", "2 workers")
    'Timing(12 ms, 2 workers)'
    >>> len(one_line("Timing", 200 * "x")) == LONGEST
    True
    """
    text = " ".join(", ".join(filter(None, known)).split())
    room = LONGEST - len(name) - 2
    return f"{name}({text if len(text) <= room else text[: room - 3] + '...'})"


def provide_displays(load: Callable[[], object]) -> None:
    """Register `load`, which imports what registers with `display`, when HTML is first needed."""
    _loaders[:] = [load]


@functools.singledispatch
def display(_: object) -> str | None:
    """Return an object's HTML, by the function that is registered for its class."""
    return None


def as_html(what: object) -> str | None:
    """Return what a notebook shows; None, if that is the object's `repr` alone."""
    for load in _loaders:
        load()
    return display(what)
