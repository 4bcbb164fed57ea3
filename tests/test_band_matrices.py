"""Band matrices: found, gathered and solved with on the host, and what goes there from a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning

from hetero_la import solve, trace
from hetero_la.api.structure import Structure, structure_for
from hetero_la.numerics import band_matrices
from hetero_la.numerics.band_matrices import (
    BandFactors,
    bandwidths,
    gather_band,
    solve_on_gpu,
    solve_on_host,
)
from hetero_la.planning import band_routes
from hetero_la.planning.band_routes import band_pays, cusparse_pays
from hetero_la.planning.decisions import Problem
from hetero_la.testing.residuals import RATIO_LIMIT, solve_ratio
from tests.support import DTYPES, assert_close, covering, host, random

#: Orders, and diagonals below and above the main one.
BANDS = [(1, 0, 0), (2, 1, 1), (3, 1, 1), (9, 0, 3), (9, 4, 0), (9, 8, 8), (40, 1, 1), (40, 3, 7)]
#: Structures that a search finds, with the diagonals of an example.
FOUND = {
    Structure.DIAGONAL: (0, 0),
    Structure.TRIDIAGONAL: (1, 1),
    Structure.BANDED: (2, 5),
    Structure.LOWER: (199, 0),
    Structure.UPPER: (0, 199),
    Structure.GENERAL: (199, 199),
}


def banded(n: int, lower: int, upper: int, dtype: str = "float64", seed: int = 0) -> NDArray:
    """A random band matrix that needs pivots."""
    return np.triu(np.tril(random(n, dtype=dtype, seed=seed), upper), -lower)


def layouts(a: NDArray) -> list[NDArray]:
    spread = np.zeros((2 * len(a), 3 * len(a)), a.dtype)[::2, ::3]
    spread[...] = a
    return [np.ascontiguousarray(a), np.asfortranarray(a), spread]


def limit(dtype: str) -> float:
    return 1e-3 if dtype in DTYPES[::2] else 1e-10


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param)


@pytest.mark.parametrize(("band", "dtype"), covering([*BANDS, (600, 31, 257)], DTYPES))
def test_bands_are_found_and_gathered_from_any_layout(
    xp: Any, band: tuple[int, int, int], dtype: str
) -> None:
    a = banded(*band, dtype)
    n, lower, upper = band
    expected = np.zeros((lower + upper + 1, n), dtype)
    for i, j in np.argwhere(a):
        expected[upper + i - j, j] = a[i, j]
    for given in map(xp.asarray, layouts(a)):
        assert bandwidths(given) == (lower, upper)
        assert np.array_equal(gather_band(given, lower, upper), expected)


def test_zeros_inside_a_band_and_nans_count_as_they_do_for_scipy(xp: Any) -> None:
    for value in (np.nan, np.inf, 1e-320):
        a = np.zeros((50, 50))
        assert bandwidths(xp.asarray(a)) == (0, 0)
        a[37, 20] = a[5, 9] = value
        assert bandwidths(xp.asarray(a)) == (17, 4)


@pytest.mark.parametrize(("band", "dtype"), covering(BANDS, DTYPES))
@pytest.mark.parametrize("trans", [0, 1, 2])
def test_factors_solve_as_scipy_s(band: tuple[int, int, int], dtype: str, trans: int) -> None:
    (n, lower, upper), a = band, banded(*band, dtype) + 2 * np.eye(band[0], dtype=dtype)
    factors = BandFactors(gather_band(a, lower, upper), lower, upper)
    matrix = (a, a.T, a.conj().T)[trans]
    for b in (random(n, 3, dtype, seed=1), np.ones(n, dtype)):
        assert_close(factors.solve(b, trans), np.linalg.solve(matrix, b), limit=limit(dtype))


@pytest.mark.parametrize(("band", "dtype"), covering(BANDS, DTYPES))
@pytest.mark.parametrize("few", [0, 1024])
def test_conditions_are_within_a_small_factor(
    band: tuple[int, int, int], dtype: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(band_matrices, "FEW", few)  # LAPACK's estimate, or over solves
    (_, lower, upper), a = band, banded(*band, dtype) + 2 * np.eye(band[0], dtype=dtype)
    found = BandFactors(gather_band(a, lower, upper), lower, upper).reciprocal_condition()
    exact = 1 / np.linalg.cond(a.astype(complex), 1)
    assert 0.9 * exact <= found <= 10 * exact


def test_conditions_do_not_overflow() -> None:
    a = banded(40, 2, 2, "float32") + 10 * np.eye(40, dtype="float32")
    large = a * np.float32(0.05 * np.finfo("float32").max)
    found, same = (
        BandFactors(gather_band(x, 2, 2), 2, 2).reciprocal_condition() for x in (a, large)
    )
    assert same == pytest.approx(found, rel=0.01)
    assert BandFactors(np.zeros((3, 4)), 1, 1).reciprocal_condition() == 0


# --- solve, which searches the matrix


@pytest.mark.parametrize(("structure", "dtype"), covering(list(FOUND), DTYPES))
def test_a_search_finds_the_structure_and_solve_uses_it(
    xp: Any, structure: Structure, dtype: str
) -> None:
    a = banded(200, *FOUND[structure], dtype) + 20 * np.eye(200, dtype=dtype)
    for given in map(xp.asarray, layouts(a)):
        for b in (random(200, 3, dtype, seed=1), np.ones(200, dtype)):
            right = xp.asarray(b)
            assert structure_for(given, right, None).structure is structure
            x = solve(given, right)
            assert type(x) is type(given)
            assert_close(x, np.linalg.solve(a, b), limit=limit(dtype))
            assert np.array_equal(host(right), b)
        if dtype in DTYPES[:2]:
            x = solve(given, right, transposed=True)
            assert_close(x, np.linalg.solve(a.T, b), limit=limit(dtype))
    assert structure_for(xp.asarray(a[:100, :100]), right, None).structure is Structure.GENERAL


@pytest.mark.parametrize("structure", FOUND)
def test_errors_and_warnings_are_those_of_a_named_structure(xp: Any, structure: Structure) -> None:
    a, b = banded(200, *FOUND[structure]) + 20 * np.eye(200), xp.ones(200)
    for name in (None, structure):
        singular, ill = a.copy(), a.copy()
        singular[70] = 0
        with pytest.raises(LinAlgError, match="singular matrix"):
            solve(xp.asarray(singular), b, assume_a=name)
        ill[70] *= 1e-20
        with pytest.warns(LinAlgWarning, match="rcond"):
            solve(xp.asarray(ill), b, assume_a=name)
        with pytest.raises(ValueError, match="infs or NaNs"):
            solve(xp.asarray(np.where(a == a[70, 70], np.nan, a)), b, assume_a=name)


def test_overwriting_b_and_options() -> None:
    a, b = banded(200, 1, 2) + 20 * np.eye(200), random(200, 2)
    given = np.array(b, order="F")
    expected = np.linalg.solve(a, b)
    assert solve(a, given, overwrite_b=True) is given
    assert_close(given, expected)
    assert_close(solve(a, b, nb=64), expected)  # by tasks: nobody searches
    with pytest.raises(ValueError, match="nb"):
        solve(a, b, nb=-1, assume_a="banded")
    with trace() as timeline:
        solve(a, b)  # who asks for a timeline gets one
    assert len(timeline.runs) == 1


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
def test_error_ratios_of_bands_that_need_pivots(xp: Any) -> None:
    for lower, upper in [(1, 1), (4, 2), (20, 30)]:
        a, b = banded(300, lower, upper), random(300, 2)
        x = host(solve(xp.asarray(a), xp.asarray(b)))
        assert solve_ratio(a, x, b) < RATIO_LIMIT


# --- the routes


def test_narrow_bands_go_to_the_host_and_wide_ones_to_dense_lu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = np.broadcast_to(1.0, (8192, 8192)), np.ones((8192, 1))
    many = np.broadcast_to(1.0, (8192, 8192))
    for gpu in (None, 0):  # by the nominal model of an H200
        monkeypatch.setattr(band_routes, "device_index", lambda _, gpu=gpu: gpu)
        assert band_pays(a, 4, 4, 1)
        assert band_pays(a, 32, 32, 1)
        assert not band_pays(a, 4096, 4096, 1)
    assert not band_pays(a, 4, 4, 100_000)  # of which copies take longer
    assert cusparse_pays(many)
    assert not cusparse_pays(b[:100])


#: Milliseconds measured with matrices on an H200: order, diagonals on each side, right-hand sides;
#: by LAPACK on the host, and by dense LU on the GPU, if that was measured.
BAND_SECONDS = [
    (512, 32, 1, 0.44, None), (512, 32, 64, 1.42, 2.55), (512, 128, 1, 1.93, 2.66),
    (2048, 4, 1, 1.23, None), (2048, 32, 1, 3.3, 8.9), (2048, 32, 64, 7.6, 9.1),
    (2048, 128, 1, 10.2, 9.1), (8192, 4, 1, 6.75, None), (8192, 32, 1, 12.3, 38.2),
    (8192, 32, 64, 37, 39), (8192, 128, 1, 43, 38.3), (16384, 4, 1, 7.5, None),
    (16384, 32, 1, 17.9, None), (16384, 32, 64, 69, 99), (16384, 128, 1, 140, 99),
]  # fmt: skip
#: The same of tridiagonal matrices: by LAPACK, and by cuSPARSE, either with factors on the host.
TRIDIAGONAL_SECONDS = [
    (512, 1, 0.28, 0.71), (512, 64, 0.78, 1.37), (2048, 1, 0.75, 0.77), (2048, 64, 2.1, 1.56),
    (8192, 1, 1.35, 1.52), (8192, 64, 3.86, 2.34), (8192, 256, 31, 5.76),
    (8192, 2048, 241, 40.1), (16384, 64, 4.8, 2.67),
]  # fmt: skip


@pytest.mark.parametrize(("n", "k", "nrhs", "band", "dense"), BAND_SECONDS)
def test_bands_are_predicted_as_measured(
    n: int, k: int, nrhs: int, band: float, dense: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the nominal figures of an H200; the choice is hardly ever slower than the other one."""
    monkeypatch.setattr(band_routes, "device_index", lambda _: 0)
    a = np.broadcast_to(1.0, (n, n))
    caller = band_routes._caller(a)
    predicted = 1e3 * band_routes._band_seconds(caller, n, k, k, nrhs, a.dtype)
    assert 0.55 < predicted / band < 1.5
    pays = band_pays(a, k, k, nrhs)
    if dense is None:
        assert pays
        return
    problem = Problem("solve", n, n, nrhs, a.dtype)
    assert 0.75 < 1e3 * band_routes._dense_seconds(problem, caller) / dense < 1.25
    assert (band if pays else dense) <= 1.05 * min(band, dense)


@pytest.mark.parametrize(("n", "nrhs", "host", "cusparse"), TRIDIAGONAL_SECONDS)
def test_cusparse_is_taken_where_it_was_measured_to_pay(
    n: int, nrhs: int, host: float, cusparse: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(band_routes, "device_index", lambda _: 0)
    pays = cusparse_pays(np.broadcast_to(1.0, (n, nrhs)))
    assert (cusparse if pays else host) <= 1.05 * min(cusparse, host)


def exact(lower: NDArray, diagonal: NDArray, upper: NDArray, b: NDArray) -> NDArray:
    band = np.array([upper, diagonal, lower])
    return scipy.linalg.solve_banded((1, 1), band, b, check_finite=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_solve_on_the_gpu_is_refined_and_refused_if_inaccurate(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another solver in the place of cuSPARSE."""
    monkeypatch.setattr(band_matrices, "_PART_BYTES", 2 * 50 * np.dtype(dtype).itemsize)
    a = banded(50, 1, 1, dtype) + np.eye(50, dtype=dtype)
    band, b = gather_band(a, 1, 1), random(50, 3, dtype, seed=2)
    for error, good in [(0, True), (1e-3, True), (0.5, False), (np.nan, False)]:

        def inexact(*system: NDArray, error: float = error) -> NDArray:
            return np.asfortranarray((exact(*system) * (1 + error)).astype(dtype))

        monkeypatch.setattr(band_matrices, "solve_tridiagonal", inexact)
        for right in (b, b[:, 0]):
            x = solve_on_gpu(band, right)
            assert (x is not None) == (good and (error == 0 or dtype in DTYPES[::2]))
            if x is not None:
                assert_close(x, np.linalg.solve(a, right), limit=limit(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nrhs", [1, 3, 200])
def test_cusparse_solves_as_lapack(dtype: str, nrhs: int) -> None:
    cupy = pytest.importorskip("cupy")
    for n in (3, 4, 200, 5000):
        a = np.zeros((3, n), dtype, order="F")
        a[...] = random(3, n, dtype) + 3 * (np.arange(3) == 1)[:, None]
        a[0, 0] = a[2, -1] = 0
        b = random(n, nrhs, dtype, seed=1)
        x = solve_on_gpu(a, cupy.asarray(b))
        assert x is not None
        expected = solve_on_host(BandFactors(a, 1, 1), b)
        assert_close(x, expected, limit=limit(dtype))
