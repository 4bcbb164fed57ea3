"""Storage of workers' columns side by side in one array each, filled and read by others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from hetero_la.scheduler.exchange.columns import Columns, ColumnSource
from hetero_la.tiles.arrays.transfer import array_module, device_index, on_device_of, to_host
from hetero_la.tiles.kernels.device import Array, Device
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import ALL_ROWS, Wanted
from hetero_la.tiles.storage.staging import Staging

Span = tuple[int, int]  #: first element column, and the one past the last
Moves = tuple[tuple[Span, Span], ...]  #: spans of an array's columns, and where they go


class LocalStorage:
    """A worker's columns side by side in one array, on the host or on a GPU.

    Parameters
    ----------
    array : array, shape (m, width)
        Column-major; receives the result.
    spans : dict
        First element column in the matrix -> span in `array`.
    source : ColumnSource, optional
        Where columns are loaded from; where there is none, the input is in `array`.
    """

    def __init__(
        self, array: Array, spans: dict[int, Span],
        source: ColumnSource | None = None,
    ) -> None:  # fmt: skip
        self.array, self._spans, self._source = array, spans, source
        self._rows: dict[int, slice] = {}  # of each column that was loaded, where not all were
        self._copies: Staging | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return int(self.array.nbytes)

    def home(self, device: Device, width: int) -> tuple[Array | None, bool]:
        """Return the array itself, where the device can work in it."""
        place = device_index(self.array)
        here = device.by_reference if place is None else device.index == place
        return (self.array, self._source is None) if here else (None, False)

    def begin_loading(self, device: Device, columns: Sequence[Wanted]) -> None:
        """Do nothing: a source sends its columns ahead."""

    def load(
        self, device: Device, start: int, stop: int, target: Array, rows: slice = ALL_ROWS
    ) -> None:
        """Copy rows of some columns to the device."""
        if self._source is None:
            self._copies_of(device).upload(target, self.block(start)[rows])
        else:
            self._rows[start] = rows
            self._source.load(self._copies_of(device), start, target)

    def store(
        self, device: Device, start: int, stop: int, source: Array, rows: slice = ALL_ROWS
    ) -> None:
        """Copy rows of some columns back."""
        self._copies_of(device).download(self.block(start)[rows], source)

    def _copies_of(self, device: Device) -> Staging:
        """Return what copies, by threads where the driver would let this one wait.

        It would keep others of the process waiting too: also the one that aborts the run.
        """
        if self._copies is None:
            self._copies = Staging(device)
        return self._copies

    def flush(self, device: Device) -> None:
        """Wait until all copies are complete."""
        if self._copies is not None:
            self._copies.flush()
            self._copies = None

    def abandon(self, device: Device) -> None:
        """Wait until nobody reads or writes the columns any more, after an error."""
        if self._copies is not None:
            self._copies.abandon()
            self._copies = None

    def without_source(self, absent: int = 0) -> LocalStorage:
        """Return the columns, which can be pickled, unlike what they were loaded from.

        Those that begin before element column `absent` are left out, and their memory is freed.
        """
        array, spans = self.array, self._spans
        if absent:
            left = {start: span for start, span in spans.items() if start >= absent}
            first = min((begin for begin, _ in left.values()), default=array.shape[1])
            array = array[:, first:].copy(order="F")
            spans = {start: (begin - first, end - first) for start, (begin, end) in left.items()}
        storage = LocalStorage(array, spans)
        storage._rows = self._rows
        return storage

    def columns(self) -> Iterator[Columns]:
        """Yield each tile column, of one that was loaded those rows that came."""
        for start, (first, last) in self._spans.items():
            rows = self._rows.get(start, ALL_ROWS)
            yield Columns(start, start + last - first, self.array[rows, first:last], rows)

    def __contains__(self, start: int) -> bool:
        return start in self._spans

    def moves(self, columns: Span) -> Moves:
        """Return the spans of a part of the matrix's columns that are here, each with its place."""
        mine = [(start, start + last - first) for start, (first, last) in self._spans.items()]
        return moves(columns, mine, self._spans)

    def block(self, start: int, last: int | None = None) -> Array:
        """Return the tile column that begins at element column `start`, without a copy.

        With `last`, return the adjacent columns from there to the one that begins at `last`.
        """
        stop = self._spans[start if last is None else last][1]
        return self.array[:, self._spans[start][0] : stop]

    def diagonal_extent(self, layout: TileLayout) -> dict[tuple[str, int], np.ndarray]:
        """Return ("diagonal", start) -> smallest and largest modulus of each diagonal tile."""
        starts = [start for start in self._spans if start < min(layout.m, layout.n)]
        if not starts:
            return {}
        with on_device_of(self.array):  # one copy to the host: each makes it wait for the GPU
            diagonals = [self.block(start)[start:].diagonal() for start in starts]
            sizes = abs(to_host(array_module(self.array).concatenate(diagonals)))
        cuts = np.cumsum([len(diagonal) for diagonal in diagonals])[:-1]
        return {
            ("diagonal", start): np.array([size.min(), size.max()], float)
            for start, size in zip(starts, np.split(sizes, cuts), strict=True)
        }


class TeamStorage:
    """The columns of several workers of a process, each with its own in an array on its device.

    Parameters
    ----------
    parts : dict
        Name of each worker's device -> its columns, which it holds from the beginning.
    """

    def __init__(self, parts: dict[str, LocalStorage]) -> None:
        self._parts = parts

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(part.nbytes for part in self._parts.values())

    def home(self, device: Device, width: int) -> tuple[Array | None, bool]:
        """Return the array of a worker's columns, in which it works."""
        return self._parts[device.name].array, True

    def begin_loading(self, device: Device, columns: Sequence[Wanted]) -> None:
        """Do nothing: the columns are there."""

    def load(
        self, device: Device, start: int, stop: int, target: Array, rows: slice = ALL_ROWS
    ) -> None:
        """Copy rows of some columns to the device."""
        self._parts[device.name].load(device, start, stop, target, rows)

    def store(
        self, device: Device, start: int, stop: int, source: Array, rows: slice = ALL_ROWS
    ) -> None:
        """Copy rows of some columns back."""
        self._parts[device.name].store(device, start, stop, source, rows)

    def flush(self, device: Device) -> None:
        """Wait until a worker's copies are complete."""
        self._parts[device.name].flush(device)

    def abandon(self, device: Device) -> None:
        """Wait until nobody reads or writes a worker's columns any more, after an error."""
        self._parts[device.name].abandon(device)

    def block(self, start: int, last: int | None = None) -> Array:
        """Return columns of one worker, as `LocalStorage.block` does."""
        return next(part for part in self._parts.values() if start in part).block(start, last)

    def diagonal_extent(self, layout: TileLayout) -> dict[tuple[str, int], np.ndarray]:
        """Return the extents of all diagonal tiles, as `LocalStorage.diagonal_extent` does."""
        parts = self._parts.values()
        return {key: found for p in parts for key, found in p.diagonal_extent(layout).items()}


def moves(columns: Span, loaded: Iterable[Span], spans: dict[int, Span]) -> Moves:
    """Return spans of an array's columns, with their spans in the memory of some tile columns.

    Parameters
    ----------
    columns : tuple of int
        Which columns of the matrix the array has.
    loaded : iterable of tuple of int
        The tile columns.
    spans : dict
        First element column of each -> its span in the memory.

    Examples
    --------
    >>> moves((3, 8), [(0, 4), (4, 6), (8, 10)], {0: (0, 4), 4: (4, 6), 8: (6, 8)})
    (((0, 3), (3, 6)),)
    """
    found: list[tuple[Span, Span]] = []
    for begin, end in loaded:
        start, stop = max(begin, columns[0]), min(end, columns[1])
        if start >= stop:
            continue
        origin = start - columns[0], stop - columns[0]
        at = spans[begin][0] + start - begin
        target = at, at + stop - start
        if found and found[-1][0][1] == origin[0] and found[-1][1][1] == target[0]:
            (first, _), (to, _) = found.pop()
            origin, target = (first, origin[1]), (to, target[1])
        found.append((origin, target))
    return tuple(found)


def local_spans(layout: TileLayout, columns: Sequence[int]) -> dict[int, Span]:
    """First element column of each of a worker's tile columns -> its span in the shard."""
    spans, stop = {}, 0
    for column in columns:
        first, last = layout.columns(column)
        spans[first] = stop, stop + last - first
        stop += last - first
    return spans


def whole_spans(layout: TileLayout) -> dict[int, Span]:
    """Return the spans of all columns, in the matrix's own order."""
    return local_spans(layout, range(layout.nt + layout.rt))
