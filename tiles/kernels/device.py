"""Interface of a device: arrays, queues on which kernels run, and copies."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

Array = Any  #: numpy.ndarray or cupy.ndarray, column-major, possibly a view
Event = Any  #: result of `Device.record`; None where calls have ended when they return
DeviceKind = Literal["cpu", "gpu"]
Interval = tuple[float, float]  #: seconds of `time.perf_counter`


class Queue(enum.IntEnum):
    """In-order queues of a device (CUDA streams on a GPU)."""

    PANEL = 0  #: panels and look-ahead updates: high priority
    UPDATE = 1  #: trailing updates
    COPY = 2  #: transfers from the host and between devices
    STORE = 3  #: results on their way to the host


#: Methods by which a GPU may factor a panel of QR.
QRPanel = Literal["auto", "householder", "cholesky"]
QR_PANELS: tuple[QRPanel, ...] = get_args(QRPanel)

#: How a GPU may compute large products.
Products = Literal["native", "split", "3m"]
PRODUCTS: tuple[Products, ...] = get_args(Products)


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """Options of all kernel calls of a run.

    Parameters
    ----------
    ib : int or None
        Inner blocking of a panel; None lets the device choose.
    inverse_bound : float
        Largest ``||L^-1||_1`` of a diagonal tile (in Cholesky, ``||L^-1||_1 ||L||_1``) up to
        which the triangular solve multiplies by the inverse; beyond it, it substitutes.
    qr_panel : {"auto", "householder", "cholesky"}
        How a GPU factors a panel of QR: column by column, or by CholeskyQR2 where the
        panel is well conditioned; "auto" tries the latter where it is much faster.
    products : {"native", "split", "3m"}
        How a GPU computes large products: as cuBLAS does in the matrix's type; in single precision
        as three products in half precision of operands split into parts; complex ones by three
        real products.
    chunk : int
        Most bytes of a workspace of a GPU in which a kernel does, in turn, what it cannot do in
        place.
    """

    ib: int | None = None
    inverse_bound: float = 1e4
    qr_panel: QRPanel = "auto"
    products: Products = "native"
    chunk: int = 2**26

    def inner_blocking(self, largest: int, where: str = "") -> int:
        """Return the most columns that one kernel of a GPU's panel factors: `largest` by default.

        Raises
        ------
        ValueError
            If ``ib`` is below one, or above `largest`.
        """
        ib = largest if self.ib is None else self.ib
        if not 1 <= ib <= largest:
            raise ValueError(f"ib must be in 1..{largest}{where} on a GPU, not {ib}")
        return ib


class Stopwatch(Protocol):
    """Times at which the queues of a device reach marked points."""

    def mark(self, queue: Queue) -> Event:
        """Mark the point that `queue` has reached in its work."""

    def compare_clocks(self) -> None:
        """Refine the offset between the device's clock and the host's; the device is active."""

    def seconds(self, mark: Event) -> float:
        """Return when the device passed a mark, in seconds of `time.perf_counter`; it must have."""

    def between(self, begin: Event, end: Event) -> float:
        """Return the seconds between two marks, more exact than a difference of `seconds`."""


#: What the two ends of a communicator have in common; a tuple in CuPy 13.
CommunicatorName = bytes | tuple[int, ...]


class Communicator(Protocol):
    """One direction between devices of two processes: what is sent first is received first."""

    name: CommunicatorName

    def connect(self) -> None:
        """Reach the other end, which does the same, before anything is sent or received."""

    def send(self, arrays: Sequence[Array], ready: Event) -> Event:
        """Send arrays once `ready` has come to pass; return the event of their having left."""

    def receive(self, targets: Sequence[Array]) -> None:
        """Receive arrays on the COPY queue."""

    def flush(self) -> None:
        """Wait until all that was sent has left."""

    def abort(self) -> None:
        """End all that is under way, on this side; nothing can be sent or received any more."""


class Device(Protocol):
    """A device on which a worker's tiles are stored and its kernels run.

    Calls on one queue run in the order given.  On a GPU every call only
    enqueues; errors of arguments are raised at once, numerical failure is
    reported in `info` arrays, never raised.
    """

    kind: DeviceKind
    name: str
    index: int  #: CUDA's device number; -1 for the host
    enqueues: bool  #: whether calls return before they have run
    by_reference: bool  #: whether host arrays of the same process are read where they are

    @property
    def nccl_address(self) -> str:
        """The GPU's address, if it can exchange messages by NCCL; else empty."""

    @property
    def loading(self) -> Sequence[Interval]:
        """When a thread loaded or compiled kernels, in calls of this object."""

    @property
    def companion(self) -> Device:
        """An object for the same device, with queues of its own, each for one other thread."""

    def activate(self) -> AbstractContextManager[None]:
        """Make the device current in this thread for the block's duration."""

    def current(self) -> AbstractContextManager[None]:
        """Make the device current for a few calls, within a thread's `activate`."""

    def on_wait(
        self, context: Callable[[], AbstractContextManager[None]]
    ) -> AbstractContextManager[None]:
        """Return a context in which `context` is entered around each wait of the host in a call."""

    def free_bytes(self) -> int:
        """Return the number of bytes that can still be allocated."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Allocate a column-major array."""

    def call(
        self, kernel: str, queue: Queue, arrays: Sequence[Array], options: KernelOptions
    ) -> None:
        """Run or enqueue `kernel`."""

    def record(self, queue: Queue) -> Event:
        """Mark the point that `queue` has reached."""

    def reached(self, event: Event) -> bool:
        """Return whether `event` has come to pass; any thread may ask."""

    def wait(self, queue: Queue, event: Event) -> None:
        """Let later calls on `queue` wait for `event`; does not block the host."""

    def copy(self, target: Array, source: Array, queue: Queue) -> None:
        """Copy between arrays of any devices, asynchronously where the hardware can."""

    def synchronize(self) -> None:
        """Block the host until everything enqueued has run."""

    def stopwatch(self) -> Stopwatch | None:
        """Return a stopwatch for the queues; None where calls have ended when they return."""


class CommunicatingDevice(Device, Protocol):
    """A device with an `nccl_address`."""

    def communicator_name(self) -> CommunicatorName:
        """Return the name of a new communicator."""

    def communicator(self, name: CommunicatorName, *, sends: bool) -> Communicator:
        """Return this end of a communicator, once the other process has begun to make its end."""
