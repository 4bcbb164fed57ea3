"""The command ``hetero-la``: its errors and its exit status.

The commands are imported in `main`, after Ctrl-C has been provided for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import TextIO

from hetero_la.cli import interrupt
from hetero_la.cli.common.messages import unheard


def _print_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    with unheard():
        print(f"hetero-la: warning: {_one_line(message)}", file=sys.stderr, flush=True)


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


@contextlib.contextmanager
def _short_warnings() -> Iterator[None]:
    """A warning is one line, without a place in the source."""
    from scipy.linalg import LinAlgWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", LinAlgWarning)  # of every run of a sweep
        warnings.showwarning = _print_warning
        yield


def _fail(error: BaseException, status: int, verbose: bool) -> int:
    with unheard():
        if verbose:
            traceback.print_exception(error)
        sentence = _one_line(error) or type(error).__name__
        print(f"hetero-la: {sentence}", file=sys.stderr, flush=True)
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name.  Without them, those of this
        process are taken, and the process is taken to be the command's own: its
        logging is silenced, and Ctrl-C is sure to end it.

    Returns
    -------
    int
        The exit status, as ``hetero-la --help`` lists them.

    Examples
    --------
    >>> from hetero_la.cli.main import main
    >>> main(["lu", "--random", "100", "--kind", "nonsense"])
    2
    """
    if argv is not None:
        try:
            return _run(argv)
        except KeyboardInterrupt:
            interrupt.announce()
            return interrupt.EXIT_STATUS
    interrupt.stop_within_seconds()
    try:
        return _run(None)
    finally:
        # Also for an error or a result that came while the run was being broken off.
        if interrupt.requested():
            interrupt.end()


def _run(argv: Sequence[str] | None) -> int:
    """Parse and run, and turn errors into a sentence and a status."""
    from hetero_la.cli import arguments
    from hetero_la.tiles.arrays.errors import HeteroLAError

    verbose = False
    try:
        with interrupt.orderly():
            args = arguments.parse(argv)
            verbose = getattr(args, "verbose", False)
            if argv is None and not verbose:
                # Dask logs what it also raises, and what is said once is enough.
                logging.disable(logging.CRITICAL)
            with _short_warnings():
                return int(args.run(args))
    except BrokenPipeError:
        # Nobody reads on; the interpreter's own flush at exit must not fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, MemoryError) as error:
        if interrupt.requested():
            raise
        return _fail(error, 2, verbose)
    except HeteroLAError as error:
        if interrupt.requested():
            raise
        return _fail(error, 1, verbose)
