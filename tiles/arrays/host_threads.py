"""Threads of the host that copy and read large arrays: one core cannot saturate memory."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor

from hetero_la.tiles.arrays.forks import in_forked_child

#: Arrays with fewer bytes are not worth a second thread.
PARALLEL_BYTES = 1 << 21
COPY_THREADS = "hetero-la-copy"  #: how the names of the threads begin


@functools.cache
def copy_threads() -> ThreadPoolExecutor:
    """Return the threads, whose tasks wait for nothing: all of them end soon."""
    return ThreadPoolExecutor(thread_count(), thread_name_prefix=COPY_THREADS)


def thread_count() -> int:
    """Return the number of these threads: more than twelve gain nothing."""
    return min(os.cpu_count() or 1, 12)


in_forked_child(copy_threads.cache_clear)
