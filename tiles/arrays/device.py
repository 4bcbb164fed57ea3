"""What a device offers: arrays, queues on which kernels run, and copies."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

Array = Any  #: numpy.ndarray or cupy.ndarray, column-major, possibly a view
Event = Any  #: what `Device.record` returns; None where calls have already ended
DeviceKind = Literal["cpu", "gpu"]


class Queue(enum.IntEnum):
    """In-order queues of a device (CUDA streams on a GPU)."""

    PANEL = 0  #: panels and look-ahead updates: high priority
    UPDATE = 1  #: trailing updates
    COPY = 2  #: transfers


#: How a GPU may factor a panel of QR.
QRPanel = Literal["auto", "householder", "cholesky"]
QR_PANELS: tuple[QRPanel, ...] = get_args(QRPanel)


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """What a run fixes for all its kernel calls.

    Parameters
    ----------
    ib : int or None
        Inner blocking of a panel; None lets the device choose.
    inverse_bound : float
        Largest ``||L^-1||_1`` of a diagonal tile (in Cholesky, ``||L^-1||_1 ||L||_1``) up to
        which the triangular solve multiplies by the inverse; beyond it, it substitutes.
    qr_panel : {"auto", "householder", "cholesky"}
        How a GPU factors a panel of QR: column by column, or by CholeskyQR2 where the
        panel is well conditioned; "auto" tries that where it is the faster by far.
    """

    ib: int | None = None
    inverse_bound: float = 1e4
    qr_panel: QRPanel = "auto"


class Stopwatch(Protocol):
    """Tells when the queues of a device have reached which point."""

    def mark(self, queue: Queue) -> Event:
        """The point that `queue` has reached in what it was given."""

    def compare_clocks(self) -> None:
        """Find out better by how much the host's clock is ahead; the device must be active."""

    def seconds(self, mark: Event) -> float:
        """When the device was there, in seconds of `time.perf_counter`; it must have been."""

    def between(self, begin: Event, end: Event) -> float:
        """Seconds from one mark to another, more exactly than the difference of the two."""


class Device(Protocol):
    """Where a worker's tiles live and its kernels run.

    Calls on one queue run in the order given.  On a GPU every call only
    enqueues; errors of arguments are raised at once, numerical failure is
    reported in `info` arrays, never raised.
    """

    kind: DeviceKind
    name: str
    index: int  #: CUDA's device number; -1 for the host
    enqueues: bool  #: whether calls return before they have run
    by_reference: bool  #: whether host arrays of the same process are read where they are

    def activate(self) -> AbstractContextManager[None]:
        """Make the device current in this thread for the block's duration."""

    def on_wait(
        self, context: Callable[[], AbstractContextManager[None]]
    ) -> AbstractContextManager[None]:
        """Within it, `context` is entered around each wait of the host in a call."""

    def free_bytes(self) -> int:
        """Bytes that can still be allocated."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Allocate a column-major array."""

    def call(
        self, kernel: str, queue: Queue, arrays: Sequence[Array], options: KernelOptions
    ) -> None:
        """Run or enqueue `kernel`."""

    def record(self, queue: Queue) -> Event:
        """Mark the point that `queue` has reached."""

    def wait(self, queue: Queue, event: Event) -> None:
        """Let later calls on `queue` wait for `event`; does not block the host."""

    def copy(self, target: Array, source: Array, queue: Queue) -> None:
        """Copy between arrays of any devices, asynchronously where the hardware can."""

    def synchronize(self) -> None:
        """Block the host until everything enqueued has run."""

    def stopwatch(self) -> Stopwatch | None:
        """What measures the queues; None where calls have ended when they return."""
