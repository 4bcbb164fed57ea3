"""Which calls of LAPACK have one thread of BLAS, and that the bound ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from threadpoolctl import threadpool_limits

import hetero_la
from hetero_la.tiles.arrays.host_threads import COPY_THREADS, copy_threads
from hetero_la.tiles.kernels.cpu import lapack
from hetero_la.tiles.kernels.cpu.blas_threads import blas_threads, one_thread_if_alone


@pytest.fixture(autouse=True)
def _four_threads() -> Iterator[None]:
    with threadpool_limits(4, "blas"):
        if blas_threads() != 4:
            pytest.skip("this BLAS takes no number of threads")
        yield


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test's own thread look as if there were none but it and those that copy."""
    copy_threads().submit(int).result()
    copying = [t for t in threading.enumerate() if t.name.startswith(COPY_THREADS)]
    assert copying
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), *copying])


def test_a_bound_begins_and_ends(alone: None) -> None:
    with one_thread_if_alone():
        assert blas_threads() == 1
    assert blas_threads() == 4


def test_a_call_that_raises_leaves_no_bound(alone: None) -> None:
    with pytest.raises(ZeroDivisionError), one_thread_if_alone():
        raise ZeroDivisionError
    assert blas_threads() == 4


def test_nothing_is_changed_beside_another_thread() -> None:
    leave = threading.Event()
    other = threading.Thread(target=leave.wait, args=(10,))
    other.start()
    with one_thread_if_alone():
        assert blas_threads() == 4
    leave.set()
    other.join()


def watched(function: Callable[..., Any], found: list[int]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        found.append(blas_threads())
        return function(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("shape", "dtype", "threads"),
    [
        ((60, 60), "f8", 4), ((128, 128), "f8", 1), ((128, 128), "f4", 1), ((2000, 60), "f8", 1),
        ((60, 2000), "f8", 1), ((257, 257), "f8", 4), ((5000, 60), "f8", 4),
        ((128, 128), "c16", 4),
    ],
)  # fmt: skip
def test_short_reflectors_have_one_thread(
    alone: None, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], dtype: str, threads: int
) -> None:
    found: list[int] = []
    of = lapack.lapack_function
    monkeypatch.setattr(
        lapack, "lapack_function", lambda name, letter: watched(of(name, letter), found)
    )
    a = np.asfortranarray(np.random.default_rng(0).random(shape).astype(dtype))
    q, packed = np.zeros((shape[0], min(shape)), dtype, order="F"), a.copy(order="F")
    lapack.qr_and_q(packed, q)
    np.testing.assert_allclose(q @ np.triu(packed[: len(q.T)]), a, atol=100 * np.finfo(dtype).eps)
    assert len(found) == 2
    small = q.size >= 1 << 14
    assert found == [threads, threads if small else 4]
    assert blas_threads() == 4


@pytest.mark.parametrize(("nrhs", "threads"), [(1, 1), (200, 1), (2000, 4)])
def test_least_squares_with_few_right_hand_sides_have_one_thread(
    alone: None, monkeypatch: pytest.MonkeyPatch, nrhs: int, threads: int
) -> None:
    found: list[int] = []
    monkeypatch.setattr(scipy.linalg, "lstsq", watched(scipy.linalg.lstsq, found))
    rng = np.random.default_rng(0)
    a, b = rng.random((300, 100)), rng.random((300, nrhs))
    x = hetero_la.lstsq(a, b)[0]
    assert found == [threads]
    np.testing.assert_allclose(a.T @ (a @ x), a.T @ b, atol=1e-9)
    assert blas_threads() == 4
