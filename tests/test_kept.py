"""Factors that stay with the workers while a solve needs them, on virtual GPUs and real ones."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose

import hetero_la
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.api.qr_factors import QRFactors
from hetero_la.execution import executor_choice
from hetero_la.execution import resident_factors as kept_module
from hetero_la.execution.execute import execute
from hetero_la.execution.report import Report
from hetero_la.execution.resident_factors import Residency
from hetero_la.execution.result import Result
from hetero_la.numerics.conditioning import estimate_reciprocal_condition, norm1
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.run.inline import run_in_order
from hetero_la.tiles.arrays.errors import InsufficientMemoryError, WorkerLostError
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import KernelOptions
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.pivots import permutation
from tests.support import CLOSE, DTYPES, covering, positive, random, random_order

NB = 16


CLUSTERS = {
    "1gpu+0cpu": {"virtual_gpus": 1, "cpus": 0},
    "2gpu+0cpu": {"virtual_gpus": 2, "cpus": 0},
    "3gpu+1cpu": {"virtual_gpus": 3, "cpus": 1},
    "real": {"gpus": max(gpu_count(), 1), "cpus": 1},
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.gpu] if name == "real" else []) for name in CLUSTERS
    ],
)
def client(request: pytest.FixtureRequest) -> Iterator[object]:
    with (
        hetero_la.Cluster(**CLUSTERS[request.param], blas_threads=1) as cluster,
        cluster.get_client() as client,
    ):
        yield client


def kept(routine: str, a: np.ndarray, client: object, nrhs: int = 1) -> Result:
    b = random(len(a), nrhs, a.dtype, seed=1)
    result = execute(routine, a, b, residency=Residency.WORKERS, client=client, nb=NB)
    assert result.array.shape == b.shape  # no room was made for the factors
    return result


@pytest.mark.parametrize(("n", "dtype"), covering([1, NB, 5 * NB + 3], DTYPES))
def test_solves_with_kept_lu(client: object, n: int, dtype: str) -> None:
    a = random(n, dtype=dtype) + 2 * n * np.eye(n, dtype=dtype)
    factors = kept("solve", a, client)
    perm = permutation(factors.piv, n)
    assert factors.kept is not None
    for nrhs in (1, 2, NB + 1):
        b = random(n, nrhs, dtype, seed=nrhs)
        for adjoint in (False, True):
            x = factors.kept.solve_lu(perm, b, adjoint)
            matrix = a.conj().T if adjoint else a
            assert_allclose(matrix @ x, b, atol=10 * n * CLOSE[dtype])


@pytest.mark.parametrize(("n", "dtype"), covering([1, NB, 7 * NB + 3], DTYPES))
def test_solves_with_a_kept_cholesky_factor(client: object, n: int, dtype: str) -> None:
    a = positive(n, dtype)
    factors = kept("solve_positive", a, client)
    assert factors.kept is not None
    for nrhs in (1, NB + 1):
        b = random(n, nrhs, dtype, seed=nrhs)
        assert_allclose(a @ factors.kept.solve("cho_solve", b), b, atol=100 * n * CLOSE[dtype])


def test_conditions_are_lapack_s(client: object) -> None:
    a = random(70)
    factors = kept("solve", a, client)
    perm = permutation(factors.piv, len(a))

    def solve(b: np.ndarray, trans: int) -> np.ndarray:
        assert factors.kept is not None
        return factors.kept.solve_lu(perm, b, trans == 2)

    found = estimate_reciprocal_condition(norm1(a), factors.beside, solve)
    gecon = scipy.linalg.get_lapack_funcs("gecon", (a,))
    assert found == pytest.approx(gecon(scipy.linalg.lu_factor(a)[0], norm1(a))[0], rel=0.5)


@pytest.mark.parametrize("nrhs", [1, pytest.param(3, marks=pytest.mark.slow), 40])
def test_public_functions_solve_with_what_is_kept(client: object, nrhs: int) -> None:
    a, b = random(90), random(90, nrhs, seed=1)
    how = {"client": client, "nb": NB}
    assert_allclose(a @ hetero_la.solve(a, b, **how), b, atol=1e-10)
    assert_allclose(a.T @ hetero_la.solve(a, b, transposed=True, **how), b, atol=1e-10)
    s = positive(90, "float64")
    assert_allclose(s @ hetero_la.solve(s, b, assume_a="pos", **how), b, atol=1e-8)
    assert_allclose(a @ hetero_la.inv(a, **how), np.eye(90), atol=1e-9)
    for lower in (False, True):
        inverse = hetero_la.inv(s, assume_a="pos", lower=lower, **how)
        assert_allclose(s @ inverse, np.eye(90), atol=1e-8)


def test_trouble_is_noticed_from_kept_factors(client: object) -> None:
    a, b = random(60), np.ones(60)
    a[:, 7] = a[:, 8] * (1 + 1e-15)
    with pytest.warns(scipy.linalg.LinAlgWarning, match="ill-conditioned"):
        hetero_la.solve(a, b, client=client, nb=NB)
    a[:, 7] = 0
    with pytest.raises(np.linalg.LinAlgError, match="diagonal number 8"):
        hetero_la.solve(a, b, client=client, nb=NB)


@pytest.mark.parametrize(("trans", "dtype"), covering([0, 1, 2], DTYPES))
def test_lu_factors_solve_on_the_gpus(client: object, dtype: str, trans: int) -> None:
    n = 5 * NB + 3
    a = random(n, dtype=dtype)
    factors = hetero_la.lu_factor(a, client=client, nb=NB)
    expected = scipy.linalg.lu_solve(scipy.linalg.lu_factor(a), np.eye(n, dtype=dtype), trans)
    assert_allclose(factors[0], scipy.linalg.lu_factor(a)[0], atol=n * CLOSE[dtype])
    factors[0][...] = 1  # what the host has is not what solves now
    real = np.eye(n, dtype=np.finfo(dtype).dtype)
    for b in (real, np.eye(n, dtype=dtype)[:, ::-1][:, ::2], real[3], [real[0, 0]] * n):
        x = factors.solve(b, trans)
        assert x.dtype == np.dtype(dtype)
        assert_allclose(x, expected @ np.asarray(b), atol=1000 * n * CLOSE[dtype])
        assert_allclose(hetero_la.lu_solve(factors, b, trans), x, atol=CLOSE[dtype])


@pytest.mark.parametrize(("lower", "dtype"), covering([False, True], DTYPES))
def test_cholesky_factors_solve_on_the_gpus(client: object, dtype: str, lower: bool) -> None:
    n = 5 * NB + 3
    a = positive(n, dtype)
    factors = hetero_la.cho_factor(a, lower, client=client, nb=NB)
    factors[0][...] = 1
    for b in (random(n, 7, dtype), random(n, 1, dtype)[:, 0]):
        x = factors.solve(b)
        assert x.shape == b.shape
        assert_allclose(a @ x, b, atol=100 * n * CLOSE[dtype])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    covering([(1, 1), (90, 90), (5 * NB + 3, 3 * NB + 5), (NB, 4 * NB + 1)], DTYPES),
)
def test_qr_factors_multiply_and_solve_on_the_gpus(
    client: object, shape: tuple[int, int], dtype: str
) -> None:
    m, n = shape
    a = random(m, n, dtype)
    factors = hetero_la.qr_factor(a, client=client, nb=NB)
    host = QRFactors(factors.qr.copy(), factors.tau, 0, Report(factors.plan, factors.timing))
    factors[0][...] = 1
    for c in (random(m, min(n, 7), dtype), random(m, 1, dtype)[:, 0]):
        for adjoint in (False, True):
            product = factors.multiply(c, adjoint)
            assert product.shape == c.shape
            assert_allclose(product, host.multiply(c, adjoint), atol=100 * CLOSE[dtype])
        if m >= n:
            expected = scipy.linalg.lstsq(a, c)[0]
            scale = np.linalg.cond(a) * np.abs(expected).max()
            assert_allclose(factors.solve(c), expected, atol=10 * CLOSE[dtype] * scale)


def test_what_the_gpus_do_not_serve_is_solved_on_the_host(client: object) -> None:
    a = random(40)
    factors = hetero_la.lu_factor(a, client=client, nb=NB)
    for b in (random(40, 2, "complex128"), np.empty((40, 0)), random(40, 41)):
        assert factors._kept_for(b) is None
        assert_allclose(a @ factors.solve(b), b, atol=1e-10)
    with pytest.raises(ValueError, match="does not fit"):
        factors.solve(np.ones(39))
    with pytest.raises(ValueError, match="trans must be 0, 1 or 2, not 3"):
        factors.solve(np.ones(40), 3)
    with pytest.raises(ValueError, match="b: array must not contain infs"):
        factors.solve(np.full(40, np.nan))
    for again in (copy.copy(factors), pickle.loads(pickle.dumps(factors))):
        assert again._kept_for(np.ones(40)) is None
        assert_allclose(a @ again.solve(np.ones(40)), np.ones(40), atol=1e-10)
    assert factors._kept_for(np.ones(40)) is not None
    factors.release()
    assert factors._kept_for(np.ones(40)) is None
    assert_allclose(a @ factors.solve(np.ones(40)), np.ones(40), atol=1e-10)


def test_a_run_that_needs_the_memory_gets_it(
    client: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = random(40)
    factors = hetero_la.lu_factor(a, client=client, nb=NB)
    checked = []

    def short_of_memory(plan: Plan, *args: object, **kwargs: object) -> None:
        checked.append(factors._kept_for(a))
        if checked[-1] is not None:
            error = InsufficientMemoryError("not enough")
            error.on_gpu = True
            raise error

    monkeypatch.setattr(executor_choice, "check_memory", short_of_memory)
    assert_allclose(a @ hetero_la.solve(a, a, client=client, nb=NB), a, atol=1e-10)
    assert [kept is None for kept in checked] == [False, True]
    assert_allclose(a @ factors.solve(a), a, atol=1e-10)


@pytest.mark.parametrize("shape", [(5 * NB, 3 * NB), (3 * NB, 5 * NB)])
@pytest.mark.parametrize("trans", [0, 1])
def test_lu_factors_of_other_shapes_solve_nothing(
    client: object, shape: tuple[int, int], trans: int
) -> None:
    factors = hetero_la.lu_factor(random(*shape), client=client, nb=NB)
    with pytest.raises(ValueError, match="square, and lu has shape"):
        factors.solve(np.ones(shape[0]), trans)


def test_the_gpus_say_no_to_what_the_host_says_no_to(client: object) -> None:
    a = random(40)
    for b in (np.ones(40, object), np.array(["x"] * 40)):
        with pytest.raises(ValueError, match="b has dtype"):
            hetero_la.lu_factor(a, client=client, nb=NB).solve(b)
    masked = np.ma.masked_equal(np.arange(40.0), 7)
    for solve in (
        hetero_la.lu_factor(a, client=client, nb=NB).solve,
        partial(hetero_la.cho_solve, hetero_la.cho_factor(a @ a.T, client=client, nb=NB)),
    ):
        with pytest.raises(ValueError, match="masked arrays are not supported"):
            solve(masked)
    single = hetero_la.lu_factor(a.astype("f4"), client=client, nb=NB)
    assert single.solve(np.ones(40, "int8")).dtype == np.float32
    assert single.solve(np.ones(40, "int32")).dtype == np.float64
    a[:, 7] = 0
    with pytest.raises(np.linalg.LinAlgError, match="diagonal 7"):
        hetero_la.qr_factor(a, client=client, nb=NB).solve(np.ones(40))
    a = random(40)
    a[3, 3] = np.nan
    factors = hetero_la.lu_factor(a, client=client, nb=NB, check_finite=False)
    with pytest.raises(ValueError, match="lu: array must not contain infs or NaNs"):
        factors.solve(np.ones(40))


@pytest.mark.parametrize("error", [MemoryError, WorkerLostError])
def test_the_host_solves_where_the_gpus_cannot(
    client: object, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error("no")

    a, b, c = random(48), random(48, 3), positive(48)
    factors = hetero_la.lu_factor(a, client=client, nb=NB)
    others = [hetero_la.cho_factor(c, client=client, nb=NB), hetero_la.qr_factor(c, client=client)]
    monkeypatch.setattr(kept_module, "run_local", fails)
    assert_allclose(a @ factors.solve(b), b, atol=1e-9)
    assert factors._kept_for(b) is None
    for one in others:
        assert_allclose(c @ one.solve(b), b, atol=1e-7)


def test_factors_outlive_the_cluster() -> None:
    a = random(40)
    with hetero_la.Cluster(virtual_gpus=2, cpus=0) as cluster:
        factors = hetero_la.lu_factor(a, client=cluster, nb=NB)
        assert factors._kept_for(a) is not None
    assert factors._kept_for(a) is None
    assert_allclose(a @ factors.solve(a), a, atol=1e-10)


def test_the_memory_is_given_back(client: object) -> None:
    factors = kept("solve", random(50), client)
    assert factors.kept is not None
    shards = [weakref.ref(shard) for shard in factors.kept._held[0].values()]
    del factors
    gc.collect()
    assert [shard() for shard in shards] == [None] * len(shards)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_a_substitution(dtype: str, seed: int) -> None:
    n, nrhs = 37, 5
    a = random(n, dtype=dtype) + n * np.eye(n, dtype=dtype)
    lu, piv = scipy.linalg.lu_factor(a)
    perm, b = permutation(piv, n), random(n, nrhs, dtype, seed=1)
    low = np.asfortranarray(np.linalg.cholesky(positive(n, dtype)))
    cases = [
        ("lu_solve", lu, b[perm], scipy.linalg.lu_solve((lu, piv), b)),
        ("lu_solve_adjoint", lu, b, scipy.linalg.lu_solve((lu, piv), b, trans=2)[perm]),
        ("cho_solve", low, b, scipy.linalg.cho_solve((low, True), b)),
    ]
    for routine, factors, rhs, expected in cases:
        graph = ROUTINES[routine].tasks(TileLayout(n, n, 8, nrhs))
        array = np.asfortranarray(np.hstack([factors, rhs]))
        run_in_order(graph, random_order(graph, seed), array, CpuDevice(), KernelOptions())
        assert_allclose(array[:, n:], expected, atol=100 * CLOSE[dtype])
        assert np.array_equal(array[:, :n], factors)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (700, 900), (3000, 50), (50, 3000)])
def test_the_norm_is_the_largest_column_sum(shape: tuple[int, int], order: str) -> None:
    a = np.array(random(*shape), order=order)
    assert norm1(a) == pytest.approx(np.abs(a).sum(axis=0).max(initial=0))


def test_norms_beyond_single_precision() -> None:
    a = np.tril(np.full((30, 30), 2e37, "f4"))  # its first column sums up to 6e38
    x = hetero_la.solve(a, np.full(30, 1e30, "f4"))  # and no warning
    assert_allclose(x, [5e-8] + [0] * 29, rtol=1e-5, atol=1e-13)
