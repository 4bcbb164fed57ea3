"""Handler of Ctrl-C, which ends the process within seconds, with one line of output.

Nothing heavy is imported here: the package installs the handler before its own imports, which
take a second.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

EXIT_STATUS = 130  #: of a process that Ctrl-C ended, as shells expect it
_GRACE = 3.0  #: seconds for the exception to unwind the run

_announced = threading.Lock()  #: held once the message has been printed


class _State:
    """State of the handler; plain attributes, since the handler may interrupt itself."""

    provided = False  #: whether the handler is installed
    working = False  #: whether a run has to be unwound by an exception
    stopping = False  #: whether Ctrl-C was pressed


def announce() -> None:
    """Print on stderr, once, that the run was interrupted."""
    # If the process started without stderr, descriptor 2 may be another file by now.
    if _announced.acquire(blocking=False) and sys.__stderr__ is not None:
        with contextlib.suppress(OSError):
            # A progress bar hides the cursor, and may not come to show it again.
            clean = b"\r\x1b[K\x1b[?25h" if os.isatty(2) else b""
            os.write(2, clean + b"hetero-la: interrupted\n")


def exit_now() -> NoReturn:
    """Exit this process now, without output from threads that still run."""
    announce()
    if (writes := sys.modules.get("hetero_la.scheduler.machine.atomic_files")) is not None:
        with contextlib.suppress(OSError, AttributeError):  # it may be half imported
            writes.discard_unfinished()
    os._exit(EXIT_STATUS)


@contextlib.contextmanager
def raising_interrupt() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt in the block; outside it, Ctrl-C exits at once."""
    _State.working = True
    try:
        yield
    finally:
        _State.working = False


def requested() -> bool:
    """Return whether Ctrl-C was pressed; later errors are then a consequence of it."""
    return _State.stopping


def install_before_imports() -> None:
    """Install the handler if this process is the command itself, by its command line.

    Processes that it starts have its `sys.argv`, but another `sys.orig_argv`.
    """
    program = sys.orig_argv[-len(sys.argv) :][0] if sys.argv else ""
    if os.path.basename(program).removeprefix("-m") in ("hetero-la", "hetero_la"):
        install_handler()


def install_handler() -> None:
    """Install the handler, which bounds the time between Ctrl-C and the end of this process.

    Python raises KeyboardInterrupt only between two of its own instructions, and one call of
    LAPACK may take minutes.  A thread therefore also watches for the signal, and exits the
    process if unwinding takes too long.
    """
    if _State.provided:
        return
    _State.provided = True
    _fill_standard_streams()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return  # the parent process ignores Ctrl-C, as nohup does
    receiving, sending = os.pipe()
    os.set_blocking(sending, False)
    signal.signal(signal.SIGINT, _handle)
    signal.set_wakeup_fd(sending, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(receiving,), name="ctrl-c", daemon=True).start()
    # Runs last: then the interpreter removes handlers, and the signal would kill it.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def _fill_standard_streams() -> None:
    """Open closed standard streams, so that no pipe or file gets their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    if sys.stderr is None:  # else print() would write to stdout
        sys.stderr = os.fdopen(number, "w")
    else:
        os.close(number)


def _handle(signum: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt for the first Ctrl-C; ignore further ones."""
    if _State.stopping:
        return
    _State.stopping = True
    if not _State.working:
        exit_now()
    # Errors of interrupted threads and of finalizers are not reported.
    sys.unraisablehook = _ignore_error
    threading.excepthook = _ignore_error
    raise KeyboardInterrupt


def _ignore_error(hook_args: object) -> None:
    pass


def _watch(receiving: int) -> None:
    while os.read(receiving, 1) != bytes([signal.SIGINT]):
        pass
    time.sleep(_GRACE)
    exit_now()
