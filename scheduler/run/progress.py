"""Progress of the runs of this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from hetero_la.tiles.kernels.device import Array
from hetero_la.tiles.kernels.spec import SPECS

Observer = Callable[[float, float], None]
_observers: list[Observer] = []


@contextlib.contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Call ``observer(done, total)``, in flops, as the runs in the block proceed.

    The total is that of the routine, without the inverses of diagonal tiles.  Flops are counted in
    real arithmetic; on a GPU, they count as done when they are enqueued.  The calls come from
    worker threads.

    Examples
    --------
    >>> with observe(lambda done, total: None):
    ...     pass
    """
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


class Progress:
    """Counter of the flops that the workers of one run have done."""

    def __init__(self, total: float) -> None:
        self._done, self._total = 0.0, total
        self._lock = threading.Lock()

    def add(self, kernel: str, arrays: Sequence[Array]) -> None:
        """Count the flops of a kernel's call, and call the observers."""
        if not _observers:
            return
        flops = SPECS[kernel].flops([array.shape for array in arrays])
        with self._lock:
            self._done = done = min(self._done + flops, self._total)
        for observer in list(_observers):
            observer(done, self._total)
