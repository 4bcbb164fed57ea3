"""Ctrl-C ends the process within seconds, whatever it is doing."""

from __future__ import annotations

import os
import signal
import threading
import time

from hetero_la.files import discard_unfinished

EXIT_STATUS = 130  #: what shells expect of a process that Ctrl-C ended
_GRACE = 3.0  #: seconds for an orderly end

_announced = threading.Event()


def announce() -> None:
    """Say once, on stderr, that the run was interrupted."""
    if not _announced.is_set():
        _announced.set()
        os.write(2, b"hetero-la: interrupted\n")


def stop_within_seconds() -> None:
    """Bound the time between Ctrl-C and the end of this process.

    Python raises KeyboardInterrupt between two of its own instructions, and one
    call of LAPACK may take minutes.  The signal is therefore also watched from
    a thread, which ends the process if an orderly end takes too long.
    """
    receiving, sending = os.pipe()
    os.set_blocking(sending, False)
    signal.set_wakeup_fd(sending, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(receiving,), name="ctrl-c", daemon=True).start()


def _watch(receiving: int) -> None:
    while os.read(receiving, 1) != bytes([signal.SIGINT]):
        pass
    time.sleep(_GRACE)
    announce()
    discard_unfinished()
    os._exit(EXIT_STATUS)
