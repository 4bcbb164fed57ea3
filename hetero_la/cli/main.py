"""Entry point of the command ``hetero-la``: errors and exit status.

The commands are imported in `main`, after the handler of Ctrl-C has been installed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hetero_la.cli import interrupt

if TYPE_CHECKING:
    from hetero_la.cli.common.output import Output


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


@contextlib.contextmanager
def _short_warnings(report: Output) -> Iterator[None]:
    """Print warnings of the block as one line, without their place in the source."""
    from scipy.linalg import LinAlgWarning

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        report.warn(_one_line(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", LinAlgWarning)  # in every run of a sweep
        warnings.showwarning = show
        yield


def _fail(error: BaseException, status: int, verbose: bool) -> int:
    from hetero_la.cli.common.output import ignore_closed_stderr, print_message

    if verbose:
        with ignore_closed_stderr():
            traceback.print_exception(error)
    print_message(f"hetero-la: {_one_line(error) or type(error).__name__}", "bold red")
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name.  By default those of this process, which is then
        taken to be the command itself: its logging is silenced, and Ctrl-C ends it within
        seconds.

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
    interrupt.install_handler()
    try:
        return _run(None)
    finally:
        # Also if the interrupted run ended with another error, or with a result.
        if interrupt.requested():
            interrupt.exit_now()


def _run(argv: Sequence[str] | None) -> int:
    """Parse and run; turn errors into one sentence and an exit status."""
    from hetero_la.cli import arguments
    from hetero_la.tiles.arrays.errors import HeteroLAError

    verbose = False
    try:
        with interrupt.raising_interrupt():
            args = arguments.parse(argv)
            verbose = getattr(args, "verbose", False)
            if argv is None and not verbose:
                # Dask also logs the errors that it raises: report them once.
                logging.disable(logging.CRITICAL)
            with _short_warnings(args.report):
                return args.report.finish(int(args.run(args)))
    except BrokenPipeError:
        # The reader has gone; the interpreter's flush at exit must not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, MemoryError, HeteroLAError) as error:
        if interrupt.requested():
            raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
            said = OSError(f"the output cannot be written: {error.strerror}")
            error = said.with_traceback(error.__traceback__)
        bad_input = isinstance(error, ValueError | OSError | MemoryError)
        return _fail(error, 2 if bad_input else 1, verbose)
