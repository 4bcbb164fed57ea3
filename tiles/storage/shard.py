"""A worker's share of a matrix, and the transfer of columns into and out of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, Protocol

from hetero_la.tiles.arrays.copies import copies_on_host
from hetero_la.tiles.arrays.transfer import device_index, is_column_major
from hetero_la.tiles.kernels.device import Array, Device, Event, Queue
from hetero_la.tiles.storage.arriving import ArrivingColumns, ColumnCopy
from hetero_la.tiles.storage.departing import DepartingColumns
from hetero_la.tiles.storage.fresh_pages import FreshPages
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.staging import Staging, copy_in_place

#: Bytes of a new array from which its pages are touched ahead.
_LARGE = 1 << 26
#: Seconds between looks whether a run goes on that waits for another worker's store.
_LOOK_INTERVAL = 1e-3


class Shard:
    """Tile columns of one worker in a column-major array.

    Parameters
    ----------
    array : array, shape (m, width)
        Storage, on the worker's device: either just the columns given, side by
        side, or the whole matrix in its own order, of which they are a part.
    layout : TileLayout
        How the whole matrix is cut.
    columns : sequence of int
        The tile columns of this shard, in the order in which `array` holds them.
    kept : Shard, optional
        Columns of an earlier run, which `array` does not hold.
    places : mapping, optional
        First element column in `array` of each of the columns, where they are there in turn.

    Examples
    --------
    >>> import numpy as np
    >>> shard = Shard(np.zeros((4, 3), order="F"), TileLayout(4, 5, 2), [0, 2])
    >>> shard.view(1, 2, 0, 2).shape
    (2, 3)
    """

    def __init__(
        self,
        array: Array,
        layout: TileLayout,
        columns: Sequence[int],
        kept: Shard | None = None,
        places: Mapping[int, int] | None = None,
    ) -> None:
        self.layout = layout
        self._span: dict[int, tuple[Array, int, int]] = dict(kept._span) if kept else {}
        whole = array.shape[1] == layout.width
        stop = 0
        for column in columns:
            start = places[column] if places else stop
            stop = start + layout.column_width(column)
            first, last = layout.columns(column) if whole else (start, stop)
            self._span[column] = array, first, last

    def __contains__(self, column: int) -> bool:
        return column in self._span

    def view(self, start: int, stop: int, first: int, last: int) -> Array:
        """Return tile rows ``[start, stop)`` of the adjacent tile columns `first` to `last`."""
        rows = slice(self.layout.row(start), self.layout.row(stop))
        array, begin, _ = self._span[first]
        return array[rows, begin : self._span[last][2]]


def local_width(layout: TileLayout, columns: Sequence[int]) -> int:
    """Return the number of element columns of a shard that holds the given tile columns."""
    return sum(layout.column_width(column) for column in columns)


ALL_ROWS = slice(None)


class Wanted(NamedTuple):
    """Arguments of `Storage.load`: columns, where their elements go, and which rows these are."""

    start: int
    stop: int
    target: Array
    rows: slice


class Storage(Protocol):
    """Source and destination of a run's columns, which are given as element ranges."""

    def home(self, device: Device, width: int) -> tuple[Array | None, bool]:
        """Return the user's array, if a shard of `width` columns may work in it, or None.

        The array is of the whole matrix.  The second result is whether it already holds the matrix.
        """

    def begin_loading(self, device: Device, columns: Sequence[Wanted]) -> None:
        """Begin to fill columns, if that can be done ahead of the calls of `load`, in their order.

        Each call still has to be made.
        """

    def load(
        self, device: Device, start: int, stop: int, target: Array, rows: slice = ALL_ROWS
    ) -> None:
        """Fill `target` (on `device`, by its copy queue) with these rows of columns start:stop.

        The run touches no others.
        """

    def store(
        self, device: Device, start: int, stop: int, source: Array, rows: slice = ALL_ROWS
    ) -> None:
        """Store `source` in these rows of columns start:stop; complete after `flush`."""

    def flush(self, device: Device) -> None:
        """Complete the stores from `device`."""

    def abandon(self, device: Device) -> None:
        """End the copies to and from `device` after an error; nobody uses the arrays any more."""


class HomeStorage(Storage, Protocol):
    """Storage that also gives back what was stored, to runs with only some columns in memory."""

    def reload(
        self, device: Device, start: int, stop: int, target: Array, rows: slice,
        check: Callable[[], None],
    ) -> None:  # fmt: skip
        """Fill `target` as `load` does, with what was stored in columns start:stop.

        While another worker has still to store it, `check` is called from time to time; it may
        raise an error.
        """

    def let_read(self, device: Device, start: int, count: int, check: Callable[[], None]) -> None:
        """Let the next store from `device` wait until others have reloaded the column so often."""

    def let_overwrite(self, device: Device, start: int, queue: Queue) -> None:
        """Let `queue` wait until the latest store of a column from `device` has read it there."""


class _Stored(NamedTuple):
    """The latest store of a column, once it is issued.

    Attributes
    ----------
    device : Device
        Where the column is from.
    let_overwrite : callable
        Lets a queue of a device wait until the column has been read there.
    follow : callable
        Lets copies to a device wait until the column is where it was stored.
    """

    device: Device
    let_overwrite: Callable[[Device, Queue], None]
    follow: Callable[[Device], None]


def _wait_until(reached: Callable[[], bool], check: Callable[[], None]) -> None:
    """Wait for another thread of the run; `check` raises an error once the run has ended."""
    while not reached():
        check()
        time.sleep(_LOOK_INTERVAL)


class ArrayStorage:
    """Storage that reads from arrays and writes to one array, all NumPy's or all CuPy's.

    Rows that a run does not touch, as of a Hermitian matrix above the diagonal, do not travel: they
    are copied where the arrays are.

    Parameters
    ----------
    source : array, shape (m, n)
        The matrix; only read, unless it is `target`.
    target : array, shape (m, n + nrhs)
        Column-major; receives the result.
    rhs : array, shape (m, nrhs), optional
        Right-hand sides; only read.
    absent : int, optional
        Number of leading columns (n or 0) that stay with the workers and are not in `target`.
    fresh : bool, optional
        Whether `target` is new memory of the host, to whose pages nobody has written.
    """

    def __init__(
        self, source: Array | None, target: Array, rhs: Array | None = None, absent: int = 0,
        *, fresh: bool = False,
    ) -> None:  # fmt: skip
        self.source, self.target, self.rhs, self._absent = source, target, rhs, absent
        self._fresh = fresh
        self._pages: dict[Device, FreshPages] = {}
        self._arriving: dict[Device, ArrivingColumns] = {}
        self._departing: dict[Device, DepartingColumns] = {}
        self._beside: list[Future[None]] = []  # copies from `source` to `target` on the host
        self._staging: dict[Device, Staging] = {}  # each used by its device's own thread
        self._in_pieces: dict[Device, bool] = {}  # whether its copies of `target` are in pieces
        self._working_in_target: set[Device] = set()
        self._touched: dict[int, slice] = {}  # first column -> rows that are to be stored
        self._stored: dict[int, Future[_Stored]] = {}  # by first columns
        #: First column -> events of the copies to other devices than that.
        self._reloads: dict[int, list[Event]] = {}

    def _on(self, device: Device) -> Staging:
        if device not in self._staging:
            self._staging[device] = Staging(device)
        return self._staging[device]

    def _by_pieces(self, device: Device) -> bool:
        """Return whether copies between `device` and `target` go through pinned buffers."""
        if device not in self._in_pieces:
            self._in_pieces[device] = self._on(device).by_pieces(self.target)
        return self._in_pieces[device]

    def home(self, device: Device, width: int) -> tuple[Array | None, bool]:
        """Return `target`: to CPU workers always, to a GPU's if it owns all columns.

        A file that is mapped into memory may be row-major: no worker can work there.
        """
        if self._absent or not is_column_major(self.target):
            return None, False
        place = device_index(self.target)
        whole = width == self.target.shape[1] and device.index == place
        if whole or (place is None and device.by_reference):
            self._working_in_target.add(device)
            return self.target, self.source is self.target
        return None, False

    def begin_loading(self, device: Device, columns: Sequence[Wanted]) -> None:
        """Begin to copy columns from the host to a GPU."""
        if device.kind == "gpu" and device_index(self.target) is None:
            arrivals = [
                ColumnCopy(start, target, self.columns(start, stop)[rows])
                for start, stop, target, rows in columns
            ]
            staged = self._by_pieces(device)
            touch = partial(self._touch_pages, device, columns) if staged else lambda: None
            self._arriving[device] = ArrivingColumns(device, arrivals, touch)

    def _touch_pages(self, device: Device, columns: Sequence[Wanted]) -> None:
        """Touch the pages to which the device's columns will be copied.

        While these arrive it would only take the memory's time from them.
        """
        if self._fresh and self.target.nbytes > _LARGE:
            self._pages[device] = FreshPages({
                start: (self.target[:, start - self._absent : stop - self._absent], rows)
                for start, stop, _, rows in columns if start >= self._absent
            })  # fmt: skip

    def load(
        self, device: Device, start: int, stop: int, target: Array, rows: slice = ALL_ROWS
    ) -> None:
        """Copy rows of the matrix, or of the right-hand sides, to `target`."""
        if device in self._working_in_target:
            self._on(device).upload(self.target[:, start:stop], self.columns(start, stop))
            return
        self.note_touched(start, rows)
        if device in self._arriving:
            device.wait(Queue.COPY, self._arriving[device].wait_for(start))
        else:
            self._on(device).upload(target, self.columns(start, stop)[rows])

    def note_touched(self, start: int, rows: slice) -> None:
        """Note the only rows of a tile column that will be stored."""
        if rows == ALL_ROWS or self.source is None or self.source is self.target:
            return
        if start < self.source.shape[1]:
            self._touched[start] = rows

    def columns(self, start: int, stop: int) -> Array:
        """Return columns of the matrix, or of the right-hand sides, without a copy."""
        n = self._absent if self.source is None else self.source.shape[1]
        if start < n and self.source is not None:
            return self.source[:, start:stop]
        assert self.rhs is not None
        return self.rhs[:, start - n : stop - n]

    def store(
        self, device: Device, start: int, stop: int, source: Array, rows: slice = ALL_ROWS
    ) -> None:
        """Copy to rows of `target`; once for each column also what was not touched."""
        if start >= self._absent:
            columns = slice(start - self._absent, stop - self._absent)
            touched = self._touched.pop(start, None)
            ready = partial(self._make_ready, device, start, stop, rows, touched)
            stored = self._download(device, self.target[rows, columns], source, ready)
            if self._store_of(start).done():
                del self._stored[start]
            self._store_of(start).set_result(stored)

    def reload(
        self, device: Device, start: int, stop: int, target: Array, rows: slice,
        check: Callable[[], None],
    ) -> None:  # fmt: skip
        """Copy rows of what was stored before to `target`, also what another device stores."""
        issued = self._store_of(start)
        _wait_until(issued.done, check)
        stored = issued.result()
        stored.follow(device)
        source = self.target[rows, start - self._absent : stop - self._absent]
        if self._by_pieces(device):
            self._on(device).upload(target, source)
        else:  # at once: with little memory the host's time for each copy sets the rate
            device.copy(target, source, Queue.COPY)
        if stored.device is not device:
            self._reloads.setdefault(start, []).append(device.record(Queue.COPY))

    def let_read(self, device: Device, start: int, count: int, check: Callable[[], None]) -> None:
        """Let the next store from `device` wait until others have reloaded the column so often."""
        reloads = self._reloads.setdefault(start, [])
        _wait_until(lambda: len(reloads) >= count, check)
        for event in reloads:
            device.wait(Queue.STORE, event)

    def let_overwrite(self, device: Device, start: int, queue: Queue) -> None:
        """Let `queue` wait until the latest store of a column from `device` has read it there."""
        if start in self._stored:
            self._stored[start].result().let_overwrite(device, queue)

    def _store_of(self, start: int) -> Future[_Stored]:
        found = self._stored.get(start)
        return found or self._stored.setdefault(start, Future())

    def _make_ready(
        self, device: Device, start: int, stop: int, rows: slice, touched: slice | None
    ) -> None:
        """Touch rows of columns of `target` no more, and copy what the run has not touched."""
        if pages := self._pages.get(device):
            pages.hand_over(start, rows)
        if touched is not None:
            columns = slice(start - self._absent, stop - self._absent)
            for rest in (slice(touched.start), slice(touched.stop, len(self.target))):
                self._copy(self.target[rest, columns], self.columns(start, stop)[rest])

    def _download(
        self, device: Device, target: Array, source: Array, ready: Callable[[], None]
    ) -> _Stored:
        """Copy from the device; where that takes the host's time, by a thread of its own."""
        if not self._by_pieces(device):
            ready()
            self._on(device).download(target, source)
            event = device.record(Queue.STORE)
            return _Stored(
                device,
                lambda other, queue: other.wait(queue, event),
                lambda other: other.wait(Queue.COPY, event),
            )
        if device not in self._departing:
            arriving = self._arriving.get(device)
            before = arriving.wait if arriving else lambda: None
            self._departing[device] = DepartingColumns(device, self.target.nbytes, before)
        departure = self._departing[device].store(target, source, ready)
        return _Stored(device, departure.let_overwrite, lambda other: departure.wait())

    def _copy(self, target: Array, source: Array) -> None:
        """Copy where both arrays are; on the host, complete after `flush`."""
        if device_index(target) is None:
            self._beside += copies_on_host(target, source)
        else:
            copy_in_place(target, source)

    def flush(self, device: Device) -> None:
        """Wait until the columns stored from `device` are in `target`."""
        self._end_loading(device)
        if departing := self._departing.get(device):
            departing.flush()
            del self._departing[device]
        self._end_touching(device)
        self._on(device).flush()
        for copied in self._beside:
            copied.result()

    def _end_loading(self, device: Device) -> None:
        """End the thread that loads columns, and forget where it copied them to."""
        if arriving := self._arriving.pop(device, None):
            arriving.stop()

    def _end_touching(self, device: Device) -> None:
        """Touch no pages any more, once no copy looks here for those that still are."""
        if pages := self._pages.pop(device, None):
            pages.stop()

    def abandon(self, device: Device) -> None:
        """End the copies to and from `device`, and those on the host."""
        self._end_loading(device)
        if departing := self._departing.pop(device, None):
            departing.abandon()
        self._end_touching(device)
        self._on(device).abandon()
        for copied in self._beside:
            copied.exception()
