"""Memory of results that is used again."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hetero_la.tiles.arrays import reused_memory
from hetero_la.tiles.arrays.reused_memory import ReusedMemory

MB = 1 << 20


@pytest.fixture
def memory() -> ReusedMemory:
    return ReusedMemory()


def address(a: np.ndarray) -> int:
    return a.ctypes.data


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("shape", [(), (0, 5), (7,), (1000, 700), (1 << 18,)])
def test_an_array_is_as_numpy_would_make_it(memory, shape, dtype, order) -> None:
    a, expected = memory.empty(shape, dtype, order), np.empty(shape, dtype, order)
    assert (a.shape, a.dtype, a.strides) == (expected.shape, expected.dtype, expected.strides)
    assert a.flags.writeable
    assert a.flags.aligned


def test_memory_is_used_again_once_nobody_has_it(memory: ReusedMemory) -> None:
    a = memory.empty((MB,), "uint8")
    view, first = a[5:].view("int8")[::2], address(a)
    del a
    assert address(memory.empty((MB,), "uint8")) != first  # a view still has it
    del view
    b = memory.empty((MB,), "uint8")
    assert address(b) == first
    assert address(memory.empty((MB,), "uint8")) != first


@pytest.mark.parametrize(("mb", "taken"), [(5, 5), (4, 4), (3, 4), (2, 2)])
def test_memory_is_used_by_arrays_of_about_its_size(memory: ReusedMemory, mb, taken) -> None:
    memory.empty((4 * MB,), "uint8")
    owner = memory.empty((mb * MB,), "uint8").base
    assert isinstance(owner, np.ndarray)
    assert owner.nbytes == taken * MB


def test_what_is_kept_is_bounded(memory: ReusedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reused_memory, "_KEPT", 4 * MB)
    held = [memory.empty((MB,), "uint8") for _ in range(9)]
    del held
    assert sum(free.nbytes for free in memory._free) == 4 * MB
    memory.empty((8 * MB,), "uint8")  # more than is kept at all
    assert len(memory._free) == 4
    for _ in range(2):
        memory.empty((2 * MB,), "uint8")  # what is older makes room for it
    assert [free.nbytes // MB for free in memory._free] == [1, 1, 2]


def test_threads_never_share_memory(memory: ReusedMemory) -> None:
    wrong: list[int] = []

    def use(number: int) -> None:
        for _ in range(200):
            a = memory.empty((MB // 8,), "int64")
            a[::4096] = number
            if (a[::4096] != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(memory._free) <= 4
