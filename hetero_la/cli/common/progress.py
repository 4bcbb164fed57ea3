"""What is being done in a long command, on terminals only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from hetero_la.cli.common.output import console, is_terminal


@contextlib.contextmanager
def show_steps(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows on a terminal what is being done."""
    if quiet or not is_terminal(sys.stderr):
        yield lambda step: None
        return
    with console(sys.stderr).status("") as status:
        yield status.update
