"""Last writers and readers of each part of a matrix, from which edges are derived.

The tile columns of a matrix are kept in spans that all have the same history, each cut into
segments of rows.  A block of tasks is one access to a span, however many columns it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hetero_la.scheduler.graph.tasks import ALL, INITIAL, OWN, Region, TaskBlock, resolve


class _Reader(NamedTuple):
    """A block that has read rows of a segment; `own` if each task did so in its own column."""

    block: TaskBlock
    own: bool
    start: int
    stop: int


class _Segment(NamedTuple):
    """Adjacent tile rows with the same last writer."""

    start: int
    stop: int
    writer: TaskBlock | None
    readers: tuple[_Reader, ...] = ()


@dataclass(slots=True)
class _Span:
    """Adjacent tile columns with the same history; rows may be relative to the column."""

    start: int
    stop: int
    segments: list[_Segment]
    sloped: bool = False

    def cut(self, column: int) -> _Span:
        """Split off the columns from `column` on."""
        other = _Span(column, self.stop, self.segments[:], self.sloped)
        self.stop = column
        for span in (self, other):
            if span.stop - span.start == 1:
                span.segments, span.sloped = span.at(span.start), False
        return other

    def at(self, column: int) -> list[_Segment]:
        """Return the segments of one of its columns."""
        if not self.sloped:
            return self.segments
        return [
            _Segment(resolve(start, column), resolve(stop, column), writer, readers)
            for start, stop, writer, readers in self.segments
        ]


#: First and last + 1 of the segments that a region overlaps, and whether it cuts the first and the
#: last of them.
_Touched = tuple[int, int, bool, bool]


@dataclass(slots=True)
class Edges:
    """Dependences of a block of tasks, collected access by access.

    Attributes
    ----------
    after, disturbed, flows
        As of `TaskBlock`.
    """

    block: TaskBlock
    after: dict[tuple[int, int], None] = field(default_factory=dict)
    disturbed: dict[tuple[int, int], None] = field(default_factory=dict)
    flows: list[tuple[int, Region]] = field(default_factory=list)

    def wait(self, other: TaskBlock, column: int) -> None:
        """Let the block follow the task of `column` (or `OWN`), whose output it reads."""
        self.after[other.number, other.start if other.single else column] = None

    def disturb(self, other: TaskBlock, column: int) -> None:
        """Let the block follow the task of `column` (`OWN`, `ALL`) whose data it overwrites."""
        edge = other.number, other.start if other.single else column
        self.after[edge] = self.disturbed[edge] = None


class LastAccesses:
    """Latest accesses to each matrix and value of a graph.

    Parameters
    ----------
    mt : int
        Tile rows of a matrix.
    """

    def __init__(self, mt: int) -> None:
        self._mt = mt
        self._matrices: dict[str, list[_Span]] = {}
        self._values: dict[tuple[str, int], _Span] = {}

    def cuts(self, name: str, start: int, stop: int) -> list[int]:
        """Return the columns of ``start:stop`` at which another history begins."""
        found = []
        for span in reversed(self._matrices.get(name, ())):
            if span.start <= start:
                break
            if span.start < stop:
                found.append(span.start)
        return found

    def read(self, region: Region, edges: Edges, *, value: bool) -> None:
        """Note that a block reads a region, and let it follow the region's writers."""
        block = edges.block
        span = self._span(region, block, value)
        first, last, *_ = self._touched(span, region, block, cuts=False)
        reader = _Reader(block, region.own, region.start, region.stop)
        segments = span.segments
        for place in range(first, last):
            segment = segments[place]
            self._flow(segment, region, edges, place == first, place == last - 1)
            start, stop, writer, readers = segment
            segments[place] = _Segment(start, stop, writer, (*readers, reader))

    def write(self, region: Region, edges: Edges, *, value: bool, update: bool) -> None:
        """Note that a block writes a region; with `update`, it also reads it."""
        block = edges.block
        span = self._span(region, block, value)
        first, last, cuts_first, cuts_last = self._touched(span, region, block, cuts=True)
        segments, kept = span.segments, [_Segment(region.start, region.stop, block, ())]
        for place in range(first, last):
            segment = segments[place]
            if update:
                self._flow(segment, region, edges, place == first, place == last - 1)
            elif segment.writer is not None:
                edges.disturb(segment.writer, region.index)
            for reader in segment.readers:
                self._wait_for_reader(reader, region, edges)
        if cuts_first:
            start, _, writer, readers = segments[first]
            kept.insert(0, _Segment(start, region.start, writer, readers))
        if cuts_last:
            _, stop, writer, readers = segments[last - 1]
            kept.append(_Segment(region.stop, stop, writer, readers))
        segments[first:last] = kept
        if not block.single and region.sloped:
            span.sloped = True

    def last_writers(self, name: str) -> Iterator[tuple[TaskBlock, Region]]:
        """Yield the written parts of matrix `name`, column by column, with their last writers."""
        for span in self._matrices.get(name, ()):
            for segment in span.segments:
                if segment.writer is None:
                    continue
                for column in range(span.start, span.stop):
                    part = Region(name, column, segment.start, segment.stop)
                    yield segment.writer, part.of(column)

    def touched(self, name: str) -> Iterator[Region]:
        """Yield the rows of each tile column, from the first to the last that a task accesses."""
        for span in self._matrices.get(name, ()):
            used = [each for each in span.segments if each.writer is not None or each.readers]
            for column in range(span.start, span.stop) if used else ():
                yield Region(name, column, used[0].start, used[-1].stop).of(column)

    def _span(self, region: Region, block: TaskBlock, value: bool) -> _Span:
        """Return the span of exactly the columns of a region: one, or those of the block."""
        name, index, *_ = region
        if value:
            span = self._values.get((name, index))
            if span is None:
                span = _Span(index, index + 1, [_Segment(0, 1, None)])
                self._values[name, index] = span
            return span
        start, stop = (block.start, block.stop) if region.own else (index, index + 1)
        spans = self._matrices.get(name)
        if spans is None:
            # Columns without accesses cost nothing, so their number need not be known.
            spans = self._matrices[name] = [_Span(0, OWN, [_Segment(0, self._mt, None)])]
        # From the end: a factorization works on the last columns of a matrix.
        place = len(spans) - 1
        while spans[place].start > start:
            place -= 1
        if spans[place].start < start:
            place += 1
            spans.insert(place, spans[place - 1].cut(start))
        if spans[place].stop > stop:
            spans.insert(place + 1, spans[place].cut(stop))
        return spans[place]

    @staticmethod
    def _touched(span: _Span, region: Region, block: TaskBlock, *, cuts: bool) -> _Touched:
        """Return the segments of a span that a region overlaps, in all of the block's columns."""
        if block.single or not (region.sloped or span.sloped):
            return _overlap(span.segments, region.start, region.stop)
        ends = [
            _overlap(span.at(column), resolve(region.start, column), resolve(region.stop, column))
            for column in (block.start, block.stop - 1)
        ]
        if ends[0] != ends[1] if cuts else ends[0][:2] != ends[1][:2]:
            raise _unlike(block)
        return ends[0]

    @staticmethod
    def _flow(segment: _Segment, region: Region, edges: Edges, first: bool, last: bool) -> None:
        """Note the last writer of a segment that a block reads, the region's first or last."""
        writer = segment.writer
        if not (first and last):
            name, index, start, stop = region
            start = start if first else segment.start
            stop = stop if last else segment.stop
            region = Region(name, index, start, stop)
        if writer is None:
            edges.flows.append((INITIAL, region))
        else:
            edges.flows.append((writer.number, region))
            edges.wait(writer, OWN if region.own else region.index)

    @staticmethod
    def _wait_for_reader(reader: _Reader, region: Region, edges: Edges) -> None:
        """Let a block follow the readers of data that it overwrites."""
        block, writer = reader.block, edges.block
        if reader.own:
            columns = (writer.start, writer.stop - 1) if region.own else (region.index,)
            met, also = (_meet(reader, region, columns[at]) for at in (0, -1))
            if met != also:
                raise _unlike(writer)
            if met:
                edges.disturb(block, region.index)
        elif not (region.sloped or reader.start >= OWN or reader.stop >= OWN):
            if _meet(reader, region, block.start):
                edges.disturb(block, ALL)
        else:
            for column in range(block.start, block.stop):
                if _meet(reader, region, column):
                    edges.disturb(block, column)


def _meet(reader: _Reader, region: Region, column: int) -> bool:
    """Return whether a reader's rows overlap those of a region, where both are of one column."""
    start, stop = resolve(reader.start, column), resolve(reader.stop, column)
    return start < resolve(region.stop, column) and stop > resolve(region.start, column)


def _unlike(block: TaskBlock) -> ValueError:
    return ValueError(
        f"{block.kind} of step {block.step} finds other rows in tile column {block.start} "
        f"than in {block.stop - 1}: they cannot be in one block"
    )


def _overlap(segments: Sequence[_Segment], start: int, stop: int) -> _Touched:
    # From the end: a factorization works on the last rows of a column.
    last = len(segments)
    while last > 0 and segments[last - 1].start >= stop:
        last -= 1
    first = last
    while first > 0 and segments[first - 1].stop > start:
        first -= 1
    if first == last:
        return first, last, False, False
    return first, last, segments[first].start < start, segments[last - 1].stop > stop
