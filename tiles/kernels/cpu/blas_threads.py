"""How many threads BLAS may use, which is one number for all threads of a process."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import threadpoolctl

from hetero_la.tiles.arrays.forks import in_forked_child
from hetero_la.tiles.arrays.host_threads import COPY_THREADS


@functools.cache
def _blas() -> threadpoolctl.ThreadpoolController:
    """Return what sets the threads of the BLAS libraries in use."""
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def blas_libraries() -> list[dict[str, Any]]:
    """Return what threadpoolctl knows of the BLAS libraries in use."""
    return [library.info() for library in _blas().lib_controllers]


def blas_threads() -> int:
    """Return the threads that a call of BLAS may use now."""
    return max((number for _, number in _numbers()), default=1)


def _numbers() -> list[tuple[threadpoolctl.LibController, int]]:
    return [(library, library.num_threads) for library in _blas().lib_controllers]


class _BlasBound:
    """Bound on the BLAS threads of the process, from the first running task to the last.

    threadpoolctl lets only the thread that changed the number change it back: so one thread holds
    the bound for all tasks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks = 0
        self._bounded = threading.Event()
        self._idle = threading.Event()
        self._before: list[tuple[threadpoolctl.LibController, int]] = []

    def end(self) -> None:
        """Remove the bound in a forked child, which runs none of its parent's tasks."""
        if self._before:  # in a thread that ends, so that threadpoolctl lets others bound BLAS
            restoring = threading.Thread(target=self._restore)
            restoring.start()
            restoring.join()
        self.__init__()  # type: ignore[misc]

    def _restore(self) -> None:
        for library, number in self._before:
            library.set_num_threads(number)
        self._before = []

    @contextlib.contextmanager
    def __call__(self, threads: int) -> Iterator[None]:
        with self._lock:
            if self._tasks == 0:
                self._bounded.clear()
                self._idle.clear()
                self._holder = threading.Thread(target=self._hold, args=(threads,), daemon=True)
                self._holder.start()
                self._bounded.wait()
            self._tasks += 1
        try:
            yield
        finally:
            with self._lock:
                self._tasks -= 1
                if self._tasks == 0:
                    self._idle.set()
                    self._holder.join()

    def _hold(self, threads: int) -> None:
        try:
            self._before = _numbers()
            for library, number in self._before:
                library.set_num_threads(min(threads, number))
            self._bounded.set()
            self._idle.wait()
            self._restore()
        finally:
            self._bounded.set()


blas_bound = _BlasBound()
in_forked_child(blas_bound.end)


def one_thread_if_alone() -> contextlib.AbstractContextManager[object]:
    """Return a bound of BLAS to one thread, if there is no other thread of Python.

    Those that copy do not count.  Another one could begin a product meanwhile, or set the number
    back to what it has found.
    """
    others = [t for t in threading.enumerate() if not t.name.startswith(COPY_THREADS)]
    return _blas().limit(limits=1) if len(others) == 1 else contextlib.nullcontext()
