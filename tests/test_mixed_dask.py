"""Mixed precision of Dask arrays: held by the workers, refined by the caller."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.linalg import LinAlgError
from numpy.testing import assert_array_equal

import hetero_la
from hetero_la import cho_factor, cho_solve, lstsq, lu_factor, lu_solve, solve
from hetero_la.mixed import prediction
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import lstsq_ratio, solve_ratio
from tests.dask_support import chunked
from tests.support import host, positive, random

LOWER = {"float64": "float32", "complex128": "complex64"}
N = 90
mixed = partial(solve, precision="mixed", report=True)


@pytest.fixture(autouse=True)
def _tried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixed precision is tried at any size, but where a test is of the prediction."""
    if "predicted" not in request.node.name:
        monkeypatch.setattr(prediction, "gains", lambda *args, **how: True)


CLUSTERS: dict[str, dict[str, int] | None] = {
    "threads": None,
    "2 processes": {"cpus": 2, "gpus": 0},
    "2 virtual gpus": {"virtual_gpus": 2, "cpus": 0},
}


#: The default run takes each with one of the types, and the exhaustive one all.
WITH_TYPES = [
    pytest.param(name, dtype, marks=() if (at + place) % 2 == 0 else pytest.mark.exhaustive)
    for at, name in enumerate(CLUSTERS)
    for place, dtype in enumerate(LOWER)
]
with_types = pytest.mark.parametrize(("how", "dtype"), WITH_TYPES, indirect=["how"])


@pytest.fixture(scope="module", params=CLUSTERS)
def how(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Options of a run in Dask's threads, by processes, and by workers that pose as GPUs."""
    kinds = CLUSTERS[request.param]
    if kinds is None:
        yield {"nb": 32}
        return
    with hetero_la.Cluster(**kinds, blas_threads=1) as cluster, cluster.get_client() as client:
        yield {"nb": 32, "client": client}


def lazy(a: np.ndarray) -> da.Array:
    return chunked(a, (50, 50) if a.ndim == 2 else 40)


def require_lower(outcome: Any, dtype: str, *, inner: bool = False) -> None:
    assert outcome.fallback == ""
    assert outcome.factored == LOWER[dtype]
    assert outcome.steps > 0
    assert (outcome.inner_steps > 0) is inner


@with_types
def test_solve(how: dict[str, Any], dtype: str) -> None:
    columns = None if dtype == "float64" else 3
    a, p, b = random(N, dtype=dtype), positive(N, dtype), random(N, columns or 1, dtype, seed=1)
    b = b[:, 0] if columns is None else b
    for matrix, structure in ((a, "gen"), (p, "her"), (p, "pos")):
        x, report = mixed(lazy(matrix), lazy(b), assume_a=structure, **how)
        require_lower(report.mixed, dtype)
        assert isinstance(x, da.Array)
        assert (x.shape, x.dtype) == (b.shape, b.dtype)
        assert solve_ratio(matrix, x.compute(), b) < 1
        assert report.backward_error < 2e-16
        assert report.refinement_steps == report.mixed.steps
        assert report.plan.dtype == LOWER[dtype]
    assert "factored in " in str(report)


@with_types
def test_factors(how: dict[str, Any], dtype: str) -> None:
    a, p, b = random(N, dtype=dtype), positive(N, dtype), random(N, 2, dtype, seed=1)
    factors = lu_factor(lazy(a), precision="mixed", **how)
    assert factors.lu.dtype == LOWER[dtype]
    for trans, matrix in enumerate((a, a.T, a.conj().T)):
        x = factors.solve(lazy(b), trans) if trans else lu_solve(factors.persist(), b)
        require_lower(factors.mixed, dtype)
        assert solve_ratio(matrix, x.compute(), b) < 1
    for lower in (False, True):
        definite = cho_factor(lazy(p), lower, precision="mixed", **how)
        assert definite.c.dtype == LOWER[dtype]
        c = np.tril(definite.c.compute()) if lower else np.tril(definite.c.compute().conj().T)
        assert np.abs(c @ c.conj().T - p).max() < 1e-5 * np.abs(p).max()
        x = definite.solve(b[:, 0]) if lower else cho_solve(definite.persist(), lazy(b[:, 0]))
        require_lower(definite.mixed, dtype)
        assert solve_ratio(p, x.compute(), b[:, 0]) < 1


@pytest.mark.parametrize("shape", [(90, 40), (40, 90), (60, 60)])
@with_types
def test_least_squares(how: dict[str, Any], dtype: str, shape: tuple[int, int]) -> None:
    a, b = random(*shape, dtype), random(shape[0], 2, dtype, seed=1)
    rhs = b if dtype == "float64" else b[:, 0]
    x, residues, rank, s, report = lstsq(lazy(a), lazy(rhs), precision="mixed", report=True, **how)
    require_lower(report.mixed, dtype)
    expected = lstsq(a, rhs, lapack_driver="gels")
    assert x.shape == expected[0].shape
    assert lstsq_ratio(a, x.compute(), rhs) < 1
    assert (residues.dtype, residues.shape) == (expected[1].dtype, expected[1].shape)
    np.testing.assert_allclose(residues.compute(), expected[1], rtol=1e-12)
    assert (rank.compute(), s) == (min(shape), None)


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
def test_falling_back(how: dict[str, Any]) -> None:
    b = random(N, 2, seed=1)
    for a, structure in ((generate("svd", N, cond=1e12), "gen"),
                         (generate("spd", N, cond=1e12), "pos")):  # fmt: skip
        x, report = mixed(lazy(a), lazy(b), assume_a=structure, **how)
        assert "float32" in report.mixed.fallback
        assert report.mixed.factored == "float64"
        assert report.backward_error is None
        assert solve_ratio(a, x.compute(), b) < 30
    factors = lu_factor(lazy(generate("svd", N, cond=1e12)), precision="mixed", **how)
    assert factors.mixed is not None
    assert "ill-conditioned" in factors.mixed.fallback
    assert factors.lu.dtype == factors.persist().lu.dtype == np.float64
    a = generate("svd", N, 40, cond=1e10)
    x, *_, report = lstsq(lazy(a), lazy(b), precision="mixed", report=True, **how)
    assert "ill-conditioned in float32" in report.mixed.fallback
    expected = lstsq(lazy(a), lazy(b), lapack_driver="gels", **how)[0].compute()
    np.testing.assert_allclose(x.compute(), expected, rtol=1e-12)


def test_a_few_tiny_singular_values_are_left_to_gmres(how: dict[str, Any]) -> None:
    a, b = random(N), random(N, 2, seed=1)
    a[:, -1] = a[:, :-1].sum(axis=1) + 1e-11 * a[:, -1]
    x, report = mixed(lazy(a), lazy(b), **how)
    require_lower(report.mixed, "float64", inner=True)
    assert solve_ratio(a, x.compute(), b) < 1


@pytest.mark.parametrize("structure", ["gen", "pos"])
def test_beyond_the_lower_range(how: dict[str, Any], structure: Any) -> None:
    a, b = (random(N) if structure == "gen" else positive(N)), random(N, 2, seed=1)
    scale = 10.0 ** np.linspace(-50, 50, N)
    given = a * scale if structure == "gen" else a * scale * scale[:, None]
    rhs = b if structure == "gen" else b * scale[:, None]
    x, report = mixed(lazy(given), lazy(rhs), assume_a=structure, **how)
    require_lower(report.mixed, "float64")
    assert solve_ratio(a, x.compute() * scale[:, None], b) < 1


@pytest.mark.parametrize("lower", [False, True])
def test_only_one_triangle_is_read(lower: bool) -> None:
    a, b = positive(N, "complex128"), random(N, 2, "complex128", seed=1)
    given = a.copy()
    given[np.triu_indices(N, 1) if lower else np.tril_indices(N, -1)] = 1e300
    x, report = mixed(chunked(given, (40, 35)), lazy(b), assume_a="pos", lower=lower)
    require_lower(report.mixed, "complex128")
    assert solve_ratio(a, x.compute(), b) < 1


def test_transposed_without_pivoting_and_complex_columns() -> None:
    a, b = generate("dominant", N), random(N, 2, seed=1)
    x, report = mixed(lazy(a), lazy(b), transposed=True, pivot="none", nb=32)
    require_lower(report.mixed, "float64")
    assert solve_ratio(a.T, x.compute(), b) < 3
    b = random(N, 2, "complex128", seed=1)
    found = lu_factor(lazy(a), precision="mixed").solve(b).compute()
    assert solve_ratio(a.astype(complex), found, b) < 3


def test_many_steps_of_the_prediction_come_before_large_matrices() -> None:
    a, b = random(200), random(200, 2, seed=1)  # of which some columns are looked at
    _, report = mixed(lazy(a), lazy(b))
    require_lower(report.mixed, "float64")
    _, report = mixed(lazy(generate("svd", 200, cond=1e12)), lazy(b))
    assert "pivots of some columns" in report.mixed.fallback


def test_what_is_predicted_to_gain_nothing_stays_lazy() -> None:
    a, b = random(N), random(N, 2, seed=1)
    x, report = mixed(lazy(a), lazy(b))
    assert report.mixed.fallback == "full precision is predicted to be as fast"
    assert_array_equal(x.compute(), solve(lazy(a), lazy(b)).compute())


def test_degenerate_systems() -> None:
    for shape in ((0,), (0, 2)):
        x = solve(da.empty((0, 0)), da.empty(shape), precision="mixed")
        assert x.compute().shape == shape
    x = solve(da.from_array([[4.0]]), da.from_array([2.0]), precision="mixed")
    assert x.compute().tolist() == [0.5]
    x = solve(da.from_array(np.eye(3)), da.ones(3), assume_a="diagonal", precision="mixed")
    assert x.compute().tolist() == [1.0, 1.0, 1.0]


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
def test_what_full_precision_refuses() -> None:
    a, b = random(N), random(N, 1, seed=1)
    a[3, 4] = np.nan
    with pytest.raises(ValueError, match="infs or NaNs"):
        solve(lazy(a), lazy(b), precision="mixed").compute()
    _, report = mixed(lazy(a), lazy(b), check_finite=False)
    assert report.mixed.fallback == "an entry of the matrix is not finite"
    singular = generate("zero-middle", N)
    with pytest.raises(LinAlgError, match="singular matrix"):
        solve(lazy(singular), lazy(b), precision="mixed").compute()
    indefinite = positive(N)
    indefinite[40, 40] = -1
    with pytest.raises(LinAlgError, match="41-th leading minor"):
        solve(lazy(indefinite), lazy(b), assume_a="pos", precision="mixed").compute()


def test_what_is_refused() -> None:
    a = lazy(positive(N, "float32"))
    for function in (partial(solve, a, a[0]), partial(lu_factor, a), partial(cho_factor, a),
                     partial(lstsq, a, a[0])):  # fmt: skip
        with pytest.raises(ValueError, match="float32 has no lower precision"):
            function(precision="mixed")
        with pytest.raises(ValueError, match="precision must be 'full' or 'mixed'"):
            function(precision="half")
    with pytest.raises(ValueError, match="for square matrices"):
        lu_factor(lazy(random(N, 40)), precision="mixed")
    with pytest.raises(ValueError, match="lapack_driver='gels'"):
        lstsq(lazy(random(N)), lazy(random(N, 1)), lapack_driver="gelsd", precision="mixed")
    for function in (partial(solve, a, a[0]), partial(lstsq, a, a[0])):
        with pytest.raises(TypeError, match="report=True is not for dask arrays"):
            function(report=True)


def test_factors_fall_back_once_when_a_solution_cannot_be_refined() -> None:
    a, b = random(N), random(N, 2, seed=1)
    factors: Any = lu_factor(lazy(a), precision="mixed", nb=32)
    lower = factors._refinable._lower
    lower.solve = lambda b, trans: b * np.float32(1e-3)  # of no use
    assert solve_ratio(a, factors.solve(b).compute(), b) < 30
    assert factors.mixed.fallback == "refinement does not converge"
    full = factors._refinable._full
    factors.solve(b)
    assert factors._refinable._full is full


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", LOWER)
def test_cupy_chunks(dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    a, p, b = random(300, dtype=dtype), positive(300, dtype), random(300, 2, dtype, seed=1)
    A, P, B = (da.from_array(cupy.asarray(x), chunks=110, asarray=False) for x in (a, p, b))
    for matrix, given, structure in ((a, A, "gen"), (p, P, "pos")):
        x, report = mixed(given, B, assume_a=structure)
        require_lower(report.mixed, dtype)
        found = x.compute()
        assert isinstance(found, cupy.ndarray)
        assert solve_ratio(matrix, host(found), b) < 1
    for trans, matrix in enumerate((a, a.T, a.conj().T)):
        found = lu_factor(A, precision="mixed").solve(B, trans).compute()
        assert solve_ratio(matrix, host(found), b) < 1
    found, *_ = lstsq(A[:, :120], B, precision="mixed")
    assert lstsq_ratio(a[:, :120], host(found.compute()), b) < 1
