"""What a kernel does, and what a device must offer to run kernels.

A kernel is named as LAPACK names it, without the type letter.  It takes
column-major array views in the order reads, updates, writes, and works in
place.  ``SPECS`` is the one place that says what each of them computes; the
devices implement them (`hetero_la.tiles.kernels.cpu`,
`hetero_la.tiles.kernels.gpu`), and one test runs each on every device kind.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Array = Any  #: numpy.ndarray or cupy.ndarray, column-major, possibly a view
Event = Any  #: what `Device.record` returns; None where calls have already ended
DeviceKind = Literal["cpu", "gpu"]


class Queue(enum.IntEnum):
    """In-order queues of a device (CUDA streams on a GPU)."""

    PANEL = 0  #: panels and look-ahead updates: high priority
    UPDATE = 1  #: trailing updates
    COPY = 2  #: transfers


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel.

    Parameters
    ----------
    name : str
        LAPACK's name without the type letter, where LAPACK has one.
    equation : str
        What it computes.
    flops : callable
        Floating-point operations (real ones, counting a complex
        multiply-add as LAPACK does for real) from the arrays' shapes.
    """

    name: str
    equation: str
    flops: Callable[[Sequence[tuple[int, ...]]], float]


def _getrf_flops(shapes: Sequence[tuple[int, ...]]) -> float:
    short, long = sorted(shapes[0])
    return long * short**2 - short**3 / 3


def _gemm_flops(shapes: Sequence[tuple[int, ...]]) -> float:
    (m, k), (_, n) = shapes[0], shapes[1]
    return 2.0 * m * n * k


def _none(shapes: Sequence[tuple[int, ...]]) -> float:
    return 0.0


SPECS: dict[str, KernelSpec] = {
    s.name: s
    for s in (
        # getrf(A, ipiv, info): A (r x c) is overwritten by L and U; ipiv (int32,
        # min(r, c)) gets 0-based swaps relative to A's first row; info (int32, 1)
        # gets 0 or the 1-based index of the first exactly zero pivot.
        KernelSpec("getrf", "A = P^T L U", _getrf_flops),
        # netperm(ipiv, net): net (int32, 2 x 2w, w = len(ipiv)) lists what all the
        # swaps together do: row net[0, i] takes the old row net[1, i]; unused
        # entries are -1 in net[0].  Rows are relative, as in ipiv.
        KernelSpec("netperm", "net = rows moved by P", _none),
        # trtri(A, W): A (r x c, a diagonal tile), W (w x w).  W = L^-1 in full (ones
        # on the diagonal, zeros above), L the unit lower triangle of A[:w, :w].
        # Where ||L^-1||_1 exceeds the device's bound or is not finite, W[0, 0] = NaN
        # says that W must not be used.
        KernelSpec("trtri", "W = L^-1", lambda s: s[1][0] ** 3 / 3),
        # swap(ipiv, net, A): the rows of A (r x c) are permuted in place.
        KernelSpec("swap", "A <- P A", _none),
        # trmm(A, W, B): B (w x c) <- W B, or, where W[0, 0] is NaN, B <- L^-1 B by
        # substitution with the unit lower triangle L of A[:w, :w].
        KernelSpec("trmm", "B <- W B", lambda s: float(s[1][0] ** 2 * s[2][1])),
        # gemm(A, B, C): C (m x n) <- C - A B, A (m x k), B (k x n).
        KernelSpec("gemm", "C <- C - A B", _gemm_flops),
        # compose(ipiv, perm) or compose(ipiv, after, perm): perm (int32, r entries)
        # gathers r rows, the first of them ipiv's first row, so that X[perm] has
        # ipiv's swaps applied and then, to the last len(after) rows, X[after].
        KernelSpec("compose", "perm = after o P", _none),
        # laswp(perm, A): A (r x c) <- A[perm] in place; perm (int32, at most r
        # entries) acts on the last len(perm) rows.
        KernelSpec("laswp", "A <- A[perm]", _none),
        # trsm(A, B): B (w x c) <- U^-1 B, U the upper triangle of A[:w, :w].
        KernelSpec("trsm", "B <- U^-1 B", lambda s: float(s[0][0] ** 2 * s[1][1])),
    )
}


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """What a run fixes for all its kernel calls.

    Parameters
    ----------
    ib : int or None
        Inner blocking of a panel; None lets the device choose.
    inverse_bound : float
        Largest ``||L^-1||_1`` of a diagonal tile up to which the triangular
        solve multiplies by the inverse; beyond it, it substitutes.
    """

    ib: int | None = None
    inverse_bound: float = 1e4


class Device(Protocol):
    """Where a worker's tiles live and its kernels run.

    Calls on one queue run in the order given.  On a GPU every call only
    enqueues; errors of arguments are raised at once, numerical failure is
    reported in `info` arrays, never raised.
    """

    kind: DeviceKind
    name: str
    index: int  #: CUDA's device number; -1 for the host
    by_reference: bool  #: whether host arrays of the same process are read where they are

    def activate(self) -> AbstractContextManager[None]:
        """Make the device current in this thread for the block's duration."""
        ...

    def free_bytes(self) -> int:
        """Bytes that can still be allocated."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Allocate a column-major array."""
        ...

    def call(
        self, kernel: str, queue: Queue, arrays: Sequence[Array], options: KernelOptions
    ) -> None:
        """Run or enqueue `kernel`."""
        ...

    def record(self, queue: Queue) -> Event:
        """Mark the point that `queue` has reached."""
        ...

    def wait(self, queue: Queue, event: Event) -> None:
        """Let later calls on `queue` wait for `event`; does not block the host."""
        ...

    def copy(self, target: Array, source: Array, queue: Queue) -> None:
        """Copy between arrays of any devices, asynchronously where the hardware can."""
        ...

    def synchronize(self) -> None:
        """Block the host until everything enqueued has run."""
        ...
