"""Ctrl-C ends the process within seconds, with one line, whatever it is doing.

Nothing heavy is imported here: the package provides for Ctrl-C before its own imports, which take
a second.
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

EXIT_STATUS = 130  #: what shells expect of a process that Ctrl-C ended
_GRACE = 3.0  #: seconds for an orderly end

_announced = threading.Lock()  #: held from the announcement on


class _State:
    """What the handler needs to know; plain attributes, as it may interrupt itself."""

    provided = False  #: whether there is the handler
    working = False  #: whether there is something that an exception has to unwind
    stopping = False  #: whether Ctrl-C was pressed


def announce() -> None:
    """Say once, on stderr, that the run was interrupted."""
    # Without a stderr at the start, another file may have its number by now.
    if _announced.acquire(blocking=False) and sys.__stderr__ is not None:
        with contextlib.suppress(OSError):
            os.write(2, b"hetero-la: interrupted\n")


def end() -> NoReturn:
    """End this process now, without the noise of what is still running in it."""
    announce()
    if (writes := sys.modules.get("hetero_la.scheduler.machine.atomic_files")) is not None:
        with contextlib.suppress(OSError, AttributeError):  # it may be half imported
            writes.discard_unfinished()
    os._exit(EXIT_STATUS)


@contextlib.contextmanager
def orderly() -> Iterator[None]:
    """In the block, Ctrl-C raises KeyboardInterrupt; outside it ends the process at once."""
    _State.working = True
    try:
        yield
    finally:
        _State.working = False


def requested() -> bool:
    """Whether Ctrl-C was pressed: what is raised from then on is its consequence."""
    return _State.stopping


def provide_before_imports() -> None:
    """Do `stop_within_seconds` now if this process is the command's own, by its command line.

    Processes that it starts have its `sys.argv`, but another `sys.orig_argv`.
    """
    program = sys.orig_argv[-len(sys.argv) :][0] if sys.argv else ""
    if os.path.basename(program).removeprefix("-m") in ("hetero-la", "hetero_la"):
        stop_within_seconds()


def stop_within_seconds() -> None:
    """Bound the time between Ctrl-C and the end of this process.

    Python raises KeyboardInterrupt between two of its own instructions, and one
    call of LAPACK may take minutes.  The signal is therefore also watched from
    a thread, which ends the process if an orderly end takes too long.
    """
    if _State.provided:
        return
    _State.provided = True
    _fill_standard_streams()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return  # whoever started this process wants it so, as nohup does
    receiving, sending = os.pipe()
    os.set_blocking(sending, False)
    signal.signal(signal.SIGINT, _handle)
    signal.set_wakeup_fd(sending, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(receiving,), name="ctrl-c", daemon=True).start()
    # Runs last.  The interpreter then drops handlers, and would die by the signal.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def _fill_standard_streams() -> None:
    """See that no pipe or file gets the number of a stream that was closed."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    if sys.stderr is None:  # print() would write to stdout instead
        sys.stderr = os.fdopen(number, "w")
    else:
        os.close(number)


def _handle(signum: int, frame: FrameType | None) -> None:
    """Raise for the first Ctrl-C; another must not break the end that it began."""
    if _State.stopping:
        return
    _State.stopping = True
    if not _State.working:
        end()
    # Threads that are broken off, and what is collected meanwhile, have nothing to say.
    sys.unraisablehook = _say_nothing
    threading.excepthook = _say_nothing
    raise KeyboardInterrupt


def _say_nothing(hook_args: object) -> None:
    pass


def _watch(receiving: int) -> None:
    while os.read(receiving, 1) != bytes([signal.SIGINT]):
        pass
    time.sleep(_GRACE)
    end()
