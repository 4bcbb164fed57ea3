"""Copies between the host and a GPU beside a run: by pinned buffers, by threads, into new pages."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hetero_la
from hetero_la.scheduler.run.threads import run_in_threads
from hetero_la.tiles.arrays.errors import RunAbortedError
from hetero_la.tiles.arrays.transfer import gpu_count, to_host
from hetero_la.tiles.kernels.cpu.device import VirtualGpu
from hetero_la.tiles.kernels.device import Array, Event, Queue
from hetero_la.tiles.kernels.gpu_libraries.finite import is_finite
from hetero_la.tiles.storage import fresh_pages, shard, staging
from hetero_la.tiles.storage.arriving import ArrivingColumns, ColumnCopy
from hetero_la.tiles.storage.fresh_pages import FreshPages
from hetero_la.tiles.storage.shard import ArrayStorage
from hetero_la.tiles.storage.staging import Staging
from tests.pictures.drawn import GPUS
from tests.tiles.kernels import gpu


class Done:
    """An event of `Enqueuing`."""

    def __init__(self, last: Any) -> None:
        self._last = last

    def synchronize(self) -> None:
        self._last.result()


class Enqueuing(VirtualGpu):
    """A virtual GPU whose copies are done later, one after the other, by a thread of its own."""

    def __init__(self, seconds: float = 2e-4) -> None:
        super().__init__("gpu0", pinned=False)
        self.index, self.seconds = 0, seconds
        self._queue = ThreadPoolExecutor(1)
        self._last = self._queue.submit(int)

    @functools.cached_property
    def companion(self) -> Enqueuing:
        return Enqueuing(self.seconds)

    def copy(self, target: Array, source: Array, queue: Queue) -> None:
        def later() -> None:
            time.sleep(self.seconds)
            target[...] = source

        self._last = self._queue.submit(later)

    def record(self, queue: Queue) -> Event:
        return Done(self._last)

    def synchronize(self) -> None:
        self._last.result()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and small buffers; what stands in for a GPU has no CUDA."""
    monkeypatch.setattr(staging, "_PIECE", 256)
    monkeypatch.setattr(staging, "_BUFFERS", 4)
    monkeypatch.setattr(staging, "_AHEAD", 2)
    monkeypatch.setattr(fresh_pages, "_PART", 4096)
    if not gpu_count():
        monkeypatch.setattr(staging, "on_device_index", lambda index: contextlib.nullcontext())


def matrix(m: int, n: int, order: Any = "F") -> np.ndarray:
    return np.asarray(np.random.default_rng(0).standard_normal((m, n)), order=order)


@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (40, 3), (33, 31), (100, 1), (1, 100), (0, 4)])
@pytest.mark.parametrize("take", [lambda a: a, lambda a: a[1:, 2:], lambda a: a[::2, ::-1]])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("make", [Enqueuing, pytest.param(gpu, marks=pytest.mark.gpu)])
def test_any_order_goes_through_few_buffers_and_back(
    make: Callable[[], Any], shape: tuple[int, int],
    take: Callable[[np.ndarray], np.ndarray], order: str,
) -> None:  # fmt: skip
    device = make()
    source = take(matrix(shape[0] * 2 + 1, shape[1] + 2, order))
    back = np.zeros(source.shape, order="F")
    with device.activate():
        onboard, copies = device.empty(source.shape, source.dtype), Staging(device)
        copies.upload(onboard, source)
        copies.flush()
        copies.download(back, onboard)
        copies.flush()
        assert np.array_equal(to_host(onboard), source)
    assert np.array_equal(back, source)


def test_downloads_do_not_wait_for_the_users_memory() -> None:
    device, source, back = Enqueuing(0.05), matrix(32, 4), np.zeros((32, 4), order="F")
    copies = Staging(device)
    began = time.perf_counter()
    copies.download(back, source)  # in as many pieces as there are buffers
    assert time.perf_counter() - began < 0.1
    copies.flush()
    assert np.array_equal(back, source)


def test_after_an_error_nobody_writes_to_the_users_memory() -> None:
    device, source, back = Enqueuing(0.02), matrix(32, 4), np.zeros((32, 4), order="F")
    copies = Staging(device)
    copies.download(back, source)
    copies.abandon()
    there = back.copy()
    device.synchronize()
    time.sleep(0.05)
    assert np.array_equal(back, there)


def test_an_error_of_the_copy_to_the_users_memory_is_raised() -> None:
    copies, back = Staging(Enqueuing()), np.zeros((4, 4), order="F")
    back.flags.writeable = False
    copies.download(back, matrix(4, 4))
    with pytest.raises(ValueError, match="read-only"):
        copies.flush()


@pytest.mark.parametrize("device", [VirtualGpu(), Enqueuing()], ids=["virtual", "enqueuing"])
def test_columns_arrive_in_any_order_of_asking(device: Any) -> None:
    source, onboard = matrix(50, 30), np.zeros((50, 30), order="F")
    parts, ended = [(j, slice(j, j + 10)) for j in (0, 10, 20)], threading.Event()
    columns = ArrivingColumns(
        device, [ColumnCopy(j, onboard[:, p], source[:, p]) for j, p in parts], ended.set
    )
    for j in (10, 20, 0):
        event = columns.wait_for(j)
        if event is not None:
            event.synchronize()
        assert np.array_equal(onboard[:, j : j + 10], source[:, j : j + 10])
    assert ended.wait(5)
    columns.stop()


def test_a_column_may_be_asked_for_before_the_thread_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, copy = threading.Event(), ArrivingColumns._copy

    def late(self: ArrivingColumns, *arguments: Any) -> None:
        asked.wait()
        copy(self, *arguments)

    monkeypatch.setattr(ArrivingColumns, "_copy", late)
    a, b = matrix(6, 4), np.zeros((6, 4), order="F")
    arriving = ArrivingColumns(VirtualGpu(), [ColumnCopy(0, b, a)], lambda: None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(arriving.wait_for, 0)
        while 0 in arriving._arrived:
            time.sleep(0.001)
        asked.set()
        waiting.result(timeout=10)
    arriving.stop()
    assert np.array_equal(a, b)


def test_an_error_of_the_loading_thread_is_raised_to_those_who_wait() -> None:
    good, bad = np.zeros((3, 3), order="F"), np.zeros((3, 3), order="F")
    bad.flags.writeable = False
    pairs = [ColumnCopy(0, good, matrix(3, 3)), ColumnCopy(3, bad, matrix(3, 3))]
    ended = threading.Event()
    columns = ArrivingColumns(VirtualGpu(), [*pairs, pairs[0]._replace(start=6)], ended.set)
    columns.wait_for(0)
    for start in (3, 6):
        with pytest.raises(ValueError, match="read-only"):
            columns.wait_for(start)
    columns.stop()
    assert not ended.is_set()


def test_loading_ends_when_the_run_does() -> None:
    device, source, onboard = Enqueuing(0.05), matrix(32, 200), np.zeros((32, 200), order="F")
    columns = [ColumnCopy(j, onboard[:, j : j + 1], source[:, j : j + 1]) for j in range(200)]
    arriving = ArrivingColumns(device, columns, lambda: None)
    arriving.wait_for(0)
    began = time.perf_counter()
    arriving.stop()
    assert time.perf_counter() - began < 2
    assert not onboard[:, 100:].any()
    with pytest.raises(RunAbortedError, match="the run has ended"):
        arriving.wait_for(199)


def test_pages_are_touched_but_not_after_they_are_handed_over() -> None:
    touched = np.ones((512, 64), order="F")  # a page a column
    columns = {j: (touched[:, j : j + 10], slice(0, 512)) for j in range(0, 50, 10)}
    pages = FreshPages(columns | {50: (touched[:, 50:60], slice(256, None))})
    pages.hand_over(10, slice(0, 512))
    touched[:, 10:20] = 2
    for parts in pages._touching.values():
        for *_, part in parts:
            concurrent.futures.wait([part])
    pages.stop()
    assert (touched[:, 10:20] == 2).all()
    others = np.delete(touched[:, :50], np.s_[10:20], axis=1)
    assert (others[0] == 0).all()  # of each page one number was written
    assert (others[1:] == 1).all()
    assert (touched[:256, 50:] == 1).all()
    assert (touched[256, 50:60] == 0).all()
    assert (touched[:, 60:] == 1).all()


def test_rows_are_handed_over_while_others_are_still_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on, touched = threading.Event(), list[int]()

    def touch(array: np.ndarray, *_: int) -> None:
        assert go_on.wait(5)
        touched.append(len(array))

    monkeypatch.setattr(fresh_pages, "_ROWS", 1)
    monkeypatch.setattr(fresh_pages, "_touch", touch)
    array = np.empty((100, 1), order="F")
    pages = FreshPages({0: (array, slice(None))})
    pages.hand_over(0, slice(60, 80))  # which no thread has reached
    go_on.set()
    concurrent.futures.wait([part for *_, part in pages._touching[0]])
    assert sorted(touched) == [*range(1, 21), *range(41, 101)]


def test_pages_are_handed_over_while_a_thread_is_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, touch = threading.Event(), threading.Event(), fresh_pages._touch

    def slowly(*part: Any) -> None:
        begun.set()
        assert go_on.wait(5)
        touch(*part)

    monkeypatch.setattr(fresh_pages, "_touch", slowly)
    array = np.empty((512, 64), order="F")
    pages = FreshPages({0: (array, slice(None))})
    assert begun.wait(5)
    threading.Timer(0.1, go_on.set).start()
    pages.hand_over(0, slice(None))
    array[...] = 1
    time.sleep(0.05)
    assert (array == 1).all()


@pytest.mark.parametrize("make", [Enqueuing, pytest.param(gpu, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
def test_runs_load_and_store_beside_the_kernels(
    routine: str, order: Any, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard, "_LARGE", 0)
    monkeypatch.setattr(staging, "_PIECE", 8192)
    a = matrix(150, 150, order)
    a[np.diag_indices(150)] += 150
    how: dict[str, Any] = {"nb": 32, "qr_panel": "householder"}
    plan = hetero_la.plan(routine, a.shape, workers=GPUS[:1], **how)
    results = []
    for device in (VirtualGpu(), make()):
        storage = ArrayStorage(a, np.full((150, 150), np.nan, order="F"), fresh=True)
        run_in_threads(plan.job(), storage, [device])
        results.append(storage.target)
    assert np.isfinite(results[0]).all()
    assert np.allclose(*results, rtol=1e-10, atol=1e-12)


def test_a_run_that_fails_leaves_no_thread_that_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Enqueuing):
        def call(self, *arguments: Any) -> None:
            raise ArithmeticError("out of order")

    a = matrix(600, 600)
    monkeypatch.setattr(staging, "_PIECE", 8192)
    plan = hetero_la.plan("lu", a.shape, nb=32, workers=GPUS[:1])
    storage = ArrayStorage(a, np.empty_like(a), fresh=True)
    with pytest.raises(ArithmeticError, match="out of order"):
        run_in_threads(plan.job(), storage, [Broken(0.002)])
    names = {thread.name.split("_")[0] for thread in threading.enumerate()}
    assert not names & {"hetero-la-load", "hetero-la-store", "hetero-la-pages"}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 123_456, -1])
@pytest.mark.parametrize("order", ["C", "F"])
def test_large_arrays_are_tested_in_parts(order: Any, place: int, bad: float) -> None:
    a = np.asarray(matrix(1000, 700), order=order)
    assert is_finite(a)
    assert is_finite(np.full_like(a, 1e308))  # whose sum is not
    assert is_finite(a[::2, ::3])
    a.reshape(-1, order="A")[place] = bad
    assert not is_finite(a)
