"""LU of matrices that the registers of a GPU hold."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray

from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import RATIO_LIMIT, lu_ratio
from hetero_la.tiles.kernels.gpu_libraries import resident_lu
from tests.support import DTYPES, random

pytestmark = pytest.mark.gpu

#: Around a strip (8 to 32 columns), a thread's rows (256 threads), and the most rows.
SHAPES = [(1, 1), (1, 7), (7, 1), (8, 8), (33, 33), (60, 200), (200, 60), (256, 256), (257, 300),
          (513, 100), (100, 1000), (700, 700), (1024, 1024), (1024, 1)]  # fmt: skip


def factored(a: NDArray) -> tuple[NDArray, NDArray, int]:
    """L and U packed, row interchanges, and info."""
    import cupy

    if not resident_lu.is_resident(a.shape, a.dtype):
        assert len(a) > resident_lu.most_rows(a.dtype) or a.size > 1 << 17
        pytest.skip("for cuSOLVER: the GPU has too few registers, or is slower so")
    there = cupy.asarray(a, order="F")
    found = resident_lu.getrf(there).get()
    return there.get(), found[:-1], int(found[-1])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_and_interchanges_are_lapack_s(dtype: str, shape: tuple[int, int]) -> None:
    a = random(*shape, dtype)
    lu, piv, info = factored(a)
    expected, interchanges = scipy.linalg.lu_factor(a)
    assert info == 0
    assert lu_ratio(a, lu, piv) < 1
    if max(shape) <= 700:  # then rounding decides between no two rows
        np.testing.assert_array_equal(piv, interchanges)
        limit = 10 * max(shape) * np.finfo(dtype).eps * np.abs(expected).max()
        np.testing.assert_allclose(lu, expected, atol=limit)


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_of_larger_matrices(dtype: str) -> None:
    import cupy

    frame = cupy.full((310, 240), np.nan, dtype, order="F")
    a = random(300, 200, dtype)
    part = frame[4:-6, 30:-10]
    part[...] = cupy.asarray(a)
    found = resident_lu.getrf(part).get()
    assert lu_ratio(a, part.get(), found[:-1]) < 1
    frame[4:-6, 30:-10] = np.nan
    assert bool(cupy.isnan(frame).all())


@pytest.mark.parametrize("kind", ["zero-first", "zero-middle", "zero-last", "gfpp", "hilb",
                                  "near-underflow", "near-overflow", "shift"])  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_of_all_kinds(dtype: str, kind: str) -> None:
    a = generate(kind, 300, dtype=dtype)
    lu, piv, info = factored(a)
    with np.errstate(all="ignore"):
        expected = scipy.linalg.get_lapack_funcs("getrf", (a,))(a)[2]
    assert info == expected
    assert lu_ratio(a, lu, piv) < RATIO_LIMIT


def test_the_first_of_equal_rows_is_the_pivot() -> None:
    a = np.ones((600, 40)) + np.eye(600, 40)[:, ::-1]
    np.testing.assert_array_equal(factored(a)[1], scipy.linalg.lu_factor(a)[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_the_pivot_and_spreads(bad: float) -> None:
    a = random(300)
    a[200, :10] *= 1e-6  # so that it is no pivot before
    expected, interchanges = scipy.linalg.lu_factor(a)
    a[200, 10] = bad
    lu, piv, info = factored(a)
    assert info == 0
    np.testing.assert_array_equal(piv[:11], [*interchanges[:10], 200])
    np.testing.assert_allclose(lu[:10, :10], expected[:10, :10], atol=1e-12)
    np.testing.assert_array_equal(lu[10, 10], bad)
    below = lu[11:, 10]
    assert (np.isnan(below) if np.isnan(bad) else below == 0).all()
    assert np.isnan(lu[11:, 11:]).all() == np.isnan(bad)


def test_larger_ones_are_for_cusolver() -> None:
    double = np.dtype(float)
    assert not resident_lu.is_resident((1025, 10), double)
    assert not resident_lu.is_resident((10, 100000), double)
    assert not resident_lu.is_resident((0, 3), double)
    assert not resident_lu.is_resident((513, 10), np.dtype(complex))


def test_streams_at_once_and_again() -> None:
    """Kernels that wait for their own blocks do not wait for each other's."""
    import cupy

    matrices = [random(900, seed=seed) for seed in range(8)]

    def factor(a: NDArray) -> Any:
        with cupy.cuda.Stream(non_blocking=True):
            return factored(a)

    with ThreadPoolExecutor(4) as pool:
        first, again = (list(pool.map(factor, matrices)) for _ in range(2))
    for a, one, other in zip(matrices, first, again, strict=True):
        assert lu_ratio(a, *one[:2]) < 1
        np.testing.assert_array_equal(one[0], other[0])
