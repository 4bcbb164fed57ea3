"""Norms, scaling and refinement, each on its own."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning

from hetero_la import solve
from hetero_la.numerics.conditioning import hermitian_norm1, norm1, reciprocal_condition
from hetero_la.numerics.range_scaling import column_exponents, scaling_exponent
from hetero_la.numerics.refinement import refine
from hetero_la.tiles.kernels.cpu.lapack import lapack_function
from hetero_la.tiles.kernels.gpu_libraries.finite import is_finite
from tests.support import DTYPES, positive, random, with_dependent_rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 2, 30, 700])
def test_the_norm_of_a_hermitian_matrix_is_found_from_its_lower_triangle(
    n: int, dtype: str
) -> None:
    a = positive(n, dtype)
    expected = np.abs(a).sum(axis=0, dtype="f8").max(initial=0)
    assert hermitian_norm1(np.tril(a)) == pytest.approx(expected)
    strided = np.repeat(np.tril(a), 2, axis=1)[:, ::2]  # which LAPACK cannot read: block by block
    assert hermitian_norm1(strided) == pytest.approx(expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_near_an_end_of_the_range_is_brought_near_one(dtype: str) -> None:
    info = np.finfo(dtype)
    for largest in (float(info.tiny), float(info.max) / 2):
        a = np.array([largest, 0], dtype)
        assert 0.5 <= math.ldexp(largest, scaling_exponent(a)) < 1
    for largest in (0.0, 1.0, np.inf, np.nan):
        assert scaling_exponent(np.array([largest, 0], dtype)) == 0


def test_columns_that_are_zero_or_not_finite_are_not_scaled() -> None:
    a = np.array([[0.0, np.inf, np.nan, 1.0], [0.0, 1.0, 1.0, 2.0]])
    exponents = column_exponents(a)
    assert exponents[:3].tolist() == [0, 0, 0]
    assert exponents[3] < 0


def test_a_solution_beside_one_of_zeros_is_refined() -> None:
    a = random(40) + 40 * np.eye(40)
    b = np.zeros((40, 2))
    b[:, 1] = 1
    exact = np.linalg.solve(a, b)
    found = refine(a, float(np.abs(a).sum(axis=0).max()), np.linalg.inv(a).dot, b, exact * 1.01)
    assert np.allclose(found, exact, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [*DTYPES, "float16", "longdouble", ">f8"])
@pytest.mark.parametrize("n", [3, 300])
def test_one_element_that_is_not_finite_is_found_in_any_layout(n: int, dtype: str) -> None:
    a = np.asfortranarray(random(n, seed=1).astype(dtype))
    layouts = (a, a.T, a[:, ::-1], np.repeat(a, 2, axis=0)[::2], a[1:])
    huge = a.astype("float64") * 1e300 if a.dtype.kind == "f" else a  # whose squares overflow
    assert all(map(is_finite, (*layouts, huge)))
    a.flags.writeable = True
    for bad in (np.nan, np.inf, -np.inf):
        a[n - 1, n // 2] = bad
        assert not any(map(is_finite, (a, a.T, a[:, ::-1], np.repeat(a, 2, axis=0)[::2], a[1:])))


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_condition_estimates_are_lapack_s(dtype: str, hermitian: bool) -> None:
    for n in (300, 400):  # by LAPACK, and by our own steps
        a = positive(n, dtype) if hermitian else random(n, dtype=dtype)
        factors = getrf_or_potrf(a, hermitian)
        anorm = float(np.abs(a).sum(axis=0).max())
        found = reciprocal_condition(anorm, factors, factors, None, hermitian=hermitian)
        con, how = ("pocon", {"uplo": "L"}) if hermitian else ("gecon", {})
        expected = lapack_function(con, a.dtype.char)(factors, anorm, **how)[0]
        assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_solve_is_enough_for_a_good_condition(dtype: str, hermitian: bool) -> None:
    n = 90
    for smallest in (1e-3, 1e-11):
        a = positive(n, dtype) if hermitian else random(n, dtype=dtype)
        scales = np.geomspace(1, smallest, n).astype(dtype)
        a = a * scales[:, None] * scales if hermitian else a * scales
        factors, anorm = getrf_or_potrf(a, hermitian), norm1(a)
        estimate = partial(reciprocal_condition, anorm, factors, factors, None, hermitian=hermitian)
        found, rough = estimate(), estimate(roughly=True)
        assert found <= rough * 1.01
        assert rough <= 10 * n * found
        enough = dtype in DTYPES[1::2] and rough >= np.finfo(dtype).eps ** 0.5
        assert (rough == found) == (not enough)


@pytest.mark.filterwarnings("error::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize("n", [3, 40, 150])
def test_rows_that_depend_on_each_other_are_noticed(n: int) -> None:
    """Whatever their places and small factors: one solve does not miss them."""
    for a in with_dependent_rows(n):
        with pytest.raises((LinAlgError, LinAlgWarning)):
            solve(a, np.ones(n), assume_a="gen")


@pytest.mark.parametrize("bad", [0.0, 1e-30, np.nan])
def test_the_condition_where_solves_overflow(bad: float) -> None:
    factors = np.asfortranarray(np.eye(400, dtype="float32"))
    factors[:, 0] = factors[0] = 1e10
    factors[0, 0] = bad
    found = reciprocal_condition(1e10, factors, factors, None)
    expected = lapack_function("gecon", "f")(factors, 1e10)[0]
    assert found == pytest.approx(expected, nan_ok=True)
    assert not found > 1e-30


def getrf_or_potrf(a: NDArray, hermitian: bool) -> NDArray:
    name, how = ("potrf", {"lower": True}) if hermitian else ("getrf", {})
    return lapack_function(name, a.dtype.char)(np.asfortranarray(a), **how)[0]
