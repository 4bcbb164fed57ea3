"""Cholesky factors and solves: right by LAPACK's ratio, and SciPy's in shape and meaning."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning

import hetero_la
from hetero_la import Cluster, cho_factor, cho_solve, cholesky, inv, solve
from hetero_la.testing.matrices import generate
from tests.support import DTYPES, LIMIT, assert_close, cholesky_ratio, covering, positive, random

NB = 8
SIZES = [0, 1, 5, 8, 9, 16, 29, 64]
TRIANGLES = pytest.mark.parametrize("lower", [False, True], ids=["upper", "lower"])


@pytest.fixture(scope="module", params=["gpu", "cpu"])
def on_cluster(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    with Cluster(cpus=1, gpus=0, virtual_gpus=2, blas_threads=1) as running:
        yield {"client": running, "panel": request.param, "nb": NB}


def named(a: NDArray, lower: bool) -> NDArray:
    """`a` with nothing but the triangle that is read, NaN in the other."""
    other = np.triu(np.full(a.shape, np.nan), 1)
    return np.asfortranarray(np.where(np.isnan(other if lower else other.T), np.nan, a), a.dtype)


def triangle(c: NDArray, lower: bool) -> NDArray:
    """The triangle of a factor that means something."""
    return np.tril(c) if lower else np.triu(c)


# --- against SciPy


@TRIANGLES
@pytest.mark.parametrize(("n", "dtype"), covering(SIZES, DTYPES))
def test_factors_are_scipy_s(n: int, dtype: str, lower: bool) -> None:
    a = positive(n, dtype, seed=n)
    before = a.copy()
    assert_close(cholesky(a, lower=lower, nb=NB), scipy.linalg.cholesky(a, lower=lower))
    c, low = factors = cho_factor(a, lower=lower, nb=NB)
    expected = scipy.linalg.cho_factor(a, lower=lower)
    assert low is lower
    assert expected[1] == lower
    assert_close(triangle(c, lower), triangle(expected[0], lower))
    assert np.array_equal(a, before)
    assert (factors.info, factors.shape, factors.dtype) == (0, (n, n), a.dtype)
    assert factors.logdet() == pytest.approx(
        np.linalg.slogdet(a.astype("c16")).logabsdet, rel=1e-5, abs=1e-5
    )


@TRIANGLES
@pytest.mark.parametrize(("n", "dtype"), covering(SIZES, DTYPES))
def test_solutions_are_scipy_s(n: int, dtype: str, lower: bool) -> None:
    a = positive(n, dtype, seed=n)
    factors = cho_factor(a, lower=lower, nb=NB)
    for shape in [(n,), (n, 1), (n, 20), (n, 0)]:
        b = random(n, 20, dtype, seed=1)[:, : shape[-1]] if shape[1:] else random(n, 1)[:, 0]
        before = b.copy()
        assert_close(cho_solve(factors, b), scipy.linalg.cho_solve(tuple(factors), b))
        assert_close(factors.solve(b), scipy.linalg.cho_solve(tuple(factors), b))
        x = solve(a, b, lower=lower, assume_a="pos", nb=NB)
        assert_close(x, scipy.linalg.solve(a, b, lower=lower, assume_a="pos"))
        assert np.array_equal(b, before)
    x = cho_solve(factors, random(n, 3, dtype, seed=2).copy("F"), overwrite_b=True)
    assert_close(a @ x, random(n, 3, dtype, seed=2))
    identity = np.eye(n, dtype=dtype)
    assert_close(a @ inv(a, assume_a="pos", lower=lower, nb=NB), identity)


@pytest.mark.parametrize("first", [*DTYPES, "int32"])
@pytest.mark.parametrize("second", [*DTYPES, "int32"])
def test_two_types_are_joined_as_by_scipy(first: str, second: str) -> None:
    a, b = (positive(9) + 0.5).astype(first), np.ones(9, second)
    for n in (9, 0):
        given = a[:n, :n], b[:n]
        x = solve(*given, assume_a="pos", nb=4)
        assert_close(x, scipy.linalg.solve(*given, assume_a="pos"), limit=1e-3)
        c = scipy.linalg.cho_factor(given[0])
        assert_close(cho_solve(c, given[1]), scipy.linalg.cho_solve(c, given[1]), limit=1e-3)


@TRIANGLES
def test_lists_and_numbers_are_taken(lower: bool) -> None:
    expected = np.array([[2.0, 0], [1, 2]])
    assert_close(cholesky([[4, 2], [2, 5]], lower=lower), expected if lower else expected.T)
    for number in (4, [4.0], [[4.0]]):
        assert_close(cholesky(number, lower=lower), np.array([[2.0]]))
        assert_close(cho_factor(number, lower=lower).solve([8.0]), np.array([2.0]))


# --- what is read, and what is written


@TRIANGLES
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_other_triangle_is_not_read(
    dtype: str, lower: bool, on_cluster: dict[str, Any]
) -> None:
    a, b = positive(29, dtype), random(29, 3, dtype, seed=1)
    half = named(a, lower)
    for options in ({"nb": NB}, on_cluster):
        found = cholesky(half, lower=lower, check_finite=False, **options)
        assert_close(found, scipy.linalg.cholesky(a, lower=lower))
        factors = cho_factor(half, lower=lower, check_finite=False, **options)
        assert np.array_equal(np.isnan(factors.c), np.isnan(half))
        x = cho_solve(factors, b, check_finite=False)
        assert_close(x, np.linalg.solve(a, b))
        x = solve(half, b, lower=lower, assume_a="pos", check_finite=False, **options)
        assert_close(x, np.linalg.solve(a, b))


@TRIANGLES
def test_the_diagonal_counts_as_real(lower: bool) -> None:
    a = positive(29, "complex128")
    turned = a + 1j * np.diag(np.arange(29.0))
    expected = scipy.linalg.cholesky(turned, lower=lower)
    assert_close(cholesky(turned, lower=lower, nb=NB), expected)
    assert_close(expected, scipy.linalg.cholesky(a, lower=lower))


@TRIANGLES
@pytest.mark.parametrize("function", [cholesky, cho_factor])
@pytest.mark.parametrize("form", ["C", "F", "strided", "part", "read-only"])
def test_any_form_is_taken_and_overwritten_only_if_allowed(
    function: Any, form: str, lower: bool
) -> None:
    a = positive(29)
    given = {
        "C": np.ascontiguousarray(a),
        "F": a.copy("F"),
        "strided": np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
        "part": np.asfortranarray(np.pad(a, 3))[3:-3, 3:-3],
        "read-only": a.copy("F" if lower else "C"),
    }[form]
    given.flags.writeable = form != "read-only"
    reference = {cholesky: scipy.linalg.cholesky, cho_factor: scipy.linalg.cho_factor}[function]
    expected = reference(a, lower=lower)
    for overwrite in (False, True):
        found = function(given, lower=lower, overwrite_a=overwrite, nb=NB)
        c, expected_c = (found, expected) if function is cholesky else (found[0], expected[0])
        assert_close(triangle(c, lower), triangle(expected_c, lower))
        in_place = overwrite and form in ("C", "F")
        assert np.shares_memory(c, given) == in_place
        assert np.array_equal(given, c if in_place else a)
        assert function is cho_factor or np.array_equal(c, triangle(c, lower))


# --- ratios


def conjugated(g: NDArray) -> NDArray:
    """G G^H, made safely positive definite."""
    a = g @ g.conj().T
    n = len(a)
    a += 4 * n * np.finfo(a.dtype).eps * np.abs(a).sum(axis=0).max() * np.eye(n, dtype=a.dtype)
    return np.asfortranarray((a + a.conj().T) / 2)


def hermitian(kind: str, n: int, dtype: str) -> NDArray:
    """A positive definite matrix, as hard as the kind makes it."""
    info = np.finfo(dtype)
    if kind in ("kms", "moler", "hilb"):
        a = generate(kind, n, dtype=dtype)
        a += 4 * n * info.eps * np.abs(a).sum(axis=0).max() * np.eye(n, dtype=dtype)
        return a
    if kind in ("orthog", "gfpp", "svd", "rands"):
        return conjugated(generate(kind, n, dtype=dtype))
    if kind == "near-equal":  # rows: so that every diagonal tile is ill-conditioned
        return conjugated(1 + info.eps**0.5 * generate("rands", n, dtype=dtype))
    if kind == "svd, cond 1/eps":
        return conjugated(generate("svd", n, dtype=dtype, cond=float(1 / info.eps)))
    a = positive(n, dtype)
    if kind == "columns":  # entries from near underflow to near overflow
        exponents = np.linspace(-0.47, 0.47, n) * np.log10(float(info.max))
        d = 10.0 ** np.random.default_rng(0).permutation(exponents)
        return np.asfortranarray((d[:, None] * a * d).astype(dtype))
    smallest = 0.25 * float(info.tiny) / (float(info.eps) / 2)
    return (a * {"underflow": smallest, "overflow": 1 / smallest / n}[kind]).astype(dtype)


KINDS = ["kms", "moler", "hilb", "orthog", "gfpp", "svd", "rands", "svd, cond 1/eps",
         "near-equal", "columns", "underflow", "overflow"]  # fmt: skip


@TRIANGLES
@pytest.mark.parametrize(("kind", "dtype"), covering(KINDS, DTYPES))
def test_factors_of_every_kind_are_within_the_ratio(
    kind: str, dtype: str, lower: bool, on_cluster: dict[str, Any]
) -> None:
    a = hermitian(kind, 61, dtype)
    inline = [{"nb": NB}, {"nb": 61}, {"nb": NB, "inverse_bound": 0.0}]
    for options in (on_cluster, *(inline if on_cluster["panel"] == "gpu" else [])):
        factor = cholesky(a, lower=lower, **options)
        assert not np.triu(factor if lower else factor.T, 1).any()
        assert cholesky_ratio(a, factor if lower else factor.conj().T) < LIMIT
        if kind == "columns":  # each column by its own scale, too
            scale = np.sqrt(a.diagonal().real)
            rows = (factor if lower else factor.conj().T) / scale[:, None]
            assert cholesky_ratio(a / scale / scale[:, None], rows) < LIMIT


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@TRIANGLES
@pytest.mark.parametrize(("kind", "dtype"), covering(KINDS, DTYPES))
def test_solutions_of_every_kind(kind: str, dtype: str, lower: bool) -> None:
    a, b = hermitian(kind, 61, dtype), random(61, 3, dtype, seed=1)
    x = solve(a, b, lower=lower, assume_a="pos", nb=NB).astype("c16")
    assert np.isfinite(x).all()
    rows = np.abs(a).astype("f8") @ np.abs(x) + np.abs(b)  # each equation by its own scale
    error = np.abs(a.astype("c16") @ x - b)
    assert (error <= LIMIT * 61 * np.finfo(dtype).eps * rows).all()


@pytest.mark.parametrize("lookahead", [0, 1, 2])
@pytest.mark.parametrize("nb", [1, 7, 29, 1000, None])
def test_options_change_nothing_but_rounding(
    nb: int | None, lookahead: int, on_cluster: dict[str, Any]
) -> None:
    a = positive(29)
    options = {**on_cluster, "nb": nb, "lookahead": lookahead}
    factors = cho_factor(a, lower=True, **options)
    assert cholesky_ratio(a, np.tril(factors.c)) < LIMIT
    assert (factors.plan.routine, factors.plan.lookahead) == ("cholesky", lookahead)
    assert factors.plan.panel == on_cluster["panel"]
    assert nb is None or factors.plan.nb == min(nb, 29)


def test_factors_unpack_copy_and_pickle() -> None:
    a, b = positive(20), random(20, 2, seed=1)
    factors = cho_factor(a, lower=True, nb=NB)
    c, lower = factors
    assert c is factors.c is factors[0]
    assert lower is factors.lower is True
    assert "cholesky of a 20 x 20" in factors.plan.explain()
    assert factors.timing.seconds > 0
    assert_close(scipy.linalg.cho_solve(factors, b), np.linalg.solve(a, b))
    for again in (copy.copy(factors), copy.deepcopy(factors), pickle.loads(pickle.dumps(factors))):
        assert isinstance(again, hetero_la.CholeskyFactors)
        assert np.array_equal(again.c, c)
        assert (again.lower, again.info, again.plan.nb) == (True, 0, NB)
        assert_close(again.solve(b), np.linalg.solve(a, b))


# --- errors


@pytest.mark.parametrize(("dtype", "lower"), [("float64", True), ("complex64", False)])
@pytest.mark.parametrize("at", [0, 3, 7, 8, 19, 24, 28])
def test_what_is_not_positive_definite(
    at: int, dtype: str, lower: bool, on_cluster: dict[str, Any]
) -> None:
    a = positive(29, dtype)
    a[at, at] = -1
    for options in ({"nb": NB}, on_cluster):
        for function in (
            lambda **o: cholesky(a, lower=lower, **o),
            lambda **o: cho_factor(a, lower=lower, **o),
            lambda **o: solve(a, np.ones(29), lower=lower, assume_a="pos", **o),
        ):
            said = rf"^{at + 1}-th leading minor .*potrf return info = \[{at + 1}\]"
            with pytest.raises(LinAlgError, match=said):
                function(**options)
    good = positive(29, dtype)
    assert_close(cholesky(good, **on_cluster), scipy.linalg.cholesky(good))


@pytest.mark.parametrize(
    ("diagonal", "minor"), [([0.0] * 9, 1), ([-1.0] * 9, 1), ([1.0] * 8 + [0.0], 9)]
)
def test_what_is_only_semidefinite(diagonal: list[float], minor: int) -> None:
    for nb in (4, 9):
        with pytest.raises(LinAlgError, match=rf"^{minor}-th leading minor"):
            cholesky(np.diag(diagonal), nb=nb)


def test_nans_that_nobody_looked_for() -> None:
    a = positive(29)
    a[20, 20] = np.nan
    for nb in (NB, 29):
        found = cholesky(a, check_finite=False, nb=nb)
        assert np.array_equal(
            np.isnan(found), np.isnan(scipy.linalg.cholesky(a, check_finite=False))
        )


@pytest.mark.filterwarnings("error")
@TRIANGLES
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_norm_that_single_precision_does_not_hold(dtype: str, lower: bool) -> None:
    a = np.full((4, 4), 0.25) + 0.75 * np.eye(4)
    large = (3e38 * a).astype(dtype)
    x = solve(large, large[:, 0], lower=lower, assume_a="pos")
    assert_close(x, np.eye(4, dtype=dtype)[0])


def test_an_ill_conditioned_matrix_warns_where_it_is_solved() -> None:
    a = generate("hilb", 12)
    with pytest.warns(LinAlgWarning, match=r"^An ill-conditioned matrix .*: rcond = ") as caught:
        solve(a, np.ones(12), assume_a="pos", nb=5)
    assert [w.filename for w in caught] == [__file__]
