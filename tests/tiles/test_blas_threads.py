"""How many threads BLAS uses, and that each bound ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import hetero_la
from hetero_la.tiles.kernels.cpu import lapack
from hetero_la.tiles.kernels.cpu.blas_threads import blas_bound, blas_threads


@pytest.fixture(autouse=True)
def _four_threads() -> Iterator[None]:
    with threadpool_limits(4, "blas"):
        if blas_threads() != 4:
            pytest.skip("this BLAS takes no number of threads")
        yield


def test_a_call_is_bound_to_one_thread() -> None:
    with blas_bound.to_one():
        assert blas_threads() == 1
    assert blas_threads() == 4


def test_a_call_that_raises_leaves_no_bound() -> None:
    with pytest.raises(ZeroDivisionError), blas_bound.to_one():
        raise ZeroDivisionError
    assert blas_threads() == 4
    with blas_bound.to_one():
        assert blas_threads() == 1


def test_a_bound_of_tasks_stays_as_it_is() -> None:
    with blas_bound(2):
        before = blas_threads()
        with blas_bound.to_one():
            assert blas_threads() == before
        assert blas_threads() == before
    assert blas_threads() == 4


def test_calls_of_several_threads_at_once_leave_no_bound() -> None:
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with blas_bound.to_one():
            inside.set()
            leave.wait(10)

    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(first)
        assert inside.wait(10)
        with blas_bound.to_one():  # of another thread: does not wait
            pass
        tasks = pool.submit(_bounded)
        leave.set()
        running.result(10)
        tasks.result(10)
    assert blas_threads() == 4


def _bounded() -> None:
    with blas_bound(1):
        pass


@pytest.mark.parametrize(
    ("shape", "dtype", "threads"),
    [
        ((60, 60), "f8", 4), ((128, 128), "f8", 1), ((128, 128), "f4", 1), ((2000, 60), "f8", 1),
        ((60, 2000), "f8", 1), ((257, 257), "f8", 4), ((5000, 60), "f8", 4),
        ((128, 128), "c16", 4),
    ],
)  # fmt: skip
def test_reflectors_of_small_real_matrices_are_applied_by_one_thread(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], dtype: str, threads: int
) -> None:
    found, of = [], lapack.lapack_function

    def watched(name: str, letter: str):
        function = of(name, letter)

        def call(*args, **kwargs):
            if name in ("geqrf", "orgqr", "ormqr"):
                found.append(blas_threads())
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(lapack, "lapack_function", watched)
    a = np.random.default_rng(0).random(shape).astype(dtype)
    q, r = hetero_la.qr(a, mode="economic")
    tolerance = np.finfo(dtype).eps * 100
    np.testing.assert_allclose(q @ r, a, atol=tolerance)
    if shape[0] > shape[1]:
        hetero_la.lstsq(a, np.ones((shape[0], 2), dtype))
    assert found[0] == threads
    assert blas_threads() == 4
