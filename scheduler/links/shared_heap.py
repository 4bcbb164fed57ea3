"""Memory that one process writes and another one reads."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from bisect import bisect
from typing import NamedTuple

#: Blocks begin at multiples of so many bytes, as vector instructions like it.
_ALIGNMENT = 64

#: Least size of an extent.  Pages that nothing has been written to take no memory.
_EXTENT = 1 << 28


def aligned(size: int) -> int:
    """Return the size of a block that holds `size` bytes."""
    return max(1, -(-size // _ALIGNMENT)) * _ALIGNMENT


class HeapBlock(NamedTuple):
    """Where a block is: its offset in the file, and the part of the file that is mapped for it."""

    start: int
    size: int
    extent: int
    extent_size: int


def _memory_file() -> int:
    """Open a file that is in memory only, has no name, and vanishes with its last user."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hetero-la")
    # Python was built with an older C library than the one that it runs with.
    fd = ctypes.CDLL(None, use_errno=True).memfd_create(b"hetero-la", 1)  # MFD_CLOEXEC
    if fd < 0:
        raise OSError(ctypes.get_errno(), "memfd_create failed")
    return fd


class SharedHeap:
    """The writer's side: blocks of one file in memory, which grows as needed.

    A freed block is used again first, as memory that is touched for the first time costs several
    times as much as the copy.  Callers see to it that one thread at a time is in here.

    Examples
    --------
    >>> heap = SharedHeap()
    >>> first, second = heap.allocate(100), heap.allocate(1000)
    >>> heap.free(first.start)
    >>> heap.allocate(50).start == first.start
    True
    >>> heap.close()
    """

    def __init__(self) -> None:
        self.fd = _memory_file()
        self._extents: dict[int, mmap.mmap] = {}
        self._holes: list[tuple[int, int]] = []  # (start, stop), in order
        self._used: dict[int, HeapBlock] = {}
        self._end = 0
        #: Whether blocks have been used since the memory was given back.
        self.touched = False

    def allocate(self, size: int) -> HeapBlock:
        """Return a block of at least `size` bytes: the first that fits."""
        size = aligned(size)
        fitting = (at for at, (start, stop) in enumerate(self._holes) if stop - start >= size)
        at = next(fitting, None)
        if at is None:
            at = self._grow(size)
        start, stop = self._holes[at]
        self._holes[at : at + 1] = [(start + size, stop)] if start + size < stop else []
        extent = max(offset for offset in self._extents if offset <= start)
        block = HeapBlock(start, size, extent, len(self._extents[extent]))
        self._used[start] = block
        self.touched = True
        return block

    def _grow(self, size: int) -> int:
        """Append an extent, and return the index of the hole that it is."""
        length = max(_EXTENT, 1 << (2 * size - 1).bit_length())
        start = self._end
        # The page between extents keeps the holes of two of them apart.
        os.ftruncate(self.fd, start + length)
        self._extents[start] = mmap.mmap(self.fd, length, offset=start)
        self._end = start + length + mmap.ALLOCATIONGRANULARITY
        self._holes.append((start, start + length))
        return len(self._holes) - 1

    def view(self, block: HeapBlock) -> memoryview:
        """Return the memory of a block."""
        at = block.start - block.extent
        return memoryview(self._extents[block.extent])[at : at + block.size]

    def free(self, start: int) -> None:
        """Take back the block that begins at `start`."""
        stop = start + self._used.pop(start).size
        at = bisect(self._holes, (start,))
        if at < len(self._holes) and self._holes[at][0] == stop:
            stop = self._holes.pop(at)[1]
        if at and self._holes[at - 1][1] == start:
            at -= 1
            start = self._holes.pop(at)[0]
        self._holes.insert(at, (start, stop))

    def give_back(self) -> None:
        """Give all memory back to the operating system; no block may be in use."""
        with contextlib.suppress(OSError):  # where this is not known: it stays until the end
            for extent in self._extents.values():
                extent.madvise(mmap.MADV_REMOVE)
        self.touched = False

    def close(self) -> None:
        """Let go of all memory; what others still look at stays until they do not."""
        self._extents.clear()
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class HeapReader:
    """The reader's side of a heap, by its file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._extents: dict[int, mmap.mmap] = {}

    def view(self, block: HeapBlock) -> memoryview:
        """Return the memory of a block, which cannot be written to."""
        if block.extent not in self._extents:
            self._extents[block.extent] = mmap.mmap(
                self._fd, block.extent_size, prot=mmap.PROT_READ, offset=block.extent
            )
        at = block.start - block.extent
        return memoryview(self._extents[block.extent])[at : at + block.size]

    def close(self) -> None:
        """Let go of the memory; arrays in it keep theirs."""
        self._extents.clear()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
