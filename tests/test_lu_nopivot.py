"""LU without pivoting: its factors, its guard, and every way in which it is run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import ModuleType

import dask.array as da
import numpy as np
import pytest
import scipy.linalg
from distributed import LocalCluster
from numpy.linalg import LinAlgError
from numpy.typing import NDArray

import hetero_la
from hetero_la import Cluster, lu_factor, solve
from hetero_la.api.factors import with_each_array
from hetero_la.cli.main import main
from hetero_la.numerics.growth import growth_limit
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import RATIO_LIMIT, lu_ratio, solve_ratio
from hetero_la.tiles.arrays.transfer import gpu_count
from tests.support import DTYPES, covering, host, random
from tests.tiles.kernels import View, eps, fetch, norm, run, vector
from tests.tiles.kernels import random as entries

NB = 16
SIZES = [(0, 0), (0, 3), (3, 0), (1, 1), (9, 9), (16, 16), (99, 99), (99, 40), (40, 99)]


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request: pytest.FixtureRequest) -> ModuleType:
    return pytest.importorskip(request.param)


@pytest.fixture(scope="module", params=["virtual", pytest.param("gpu", marks=pytest.mark.gpu)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    gpus = gpu_count() if request.param == "gpu" else 0
    with Cluster(cpus=1, gpus=gpus, virtual_gpus=0 if gpus else 2, blas_threads=1) as cluster:
        yield cluster


def dominant(m: int, n: int | None = None, dtype: str = "float64") -> NDArray:
    return generate("dominant", m, m if n is None else n, dtype=dtype)


# --- factors


@pytest.mark.parametrize(("shape", "dtype"), covering(SIZES, DTYPES))
@pytest.mark.parametrize("order", ["C", "F"])
def test_factors_of_dominant_matrices_are_as_good_as_lapack_s(
    shape: tuple[int, int], dtype: str, order: str, xp: ModuleType
) -> None:
    a = dominant(*shape, dtype=dtype)
    given = xp.array(a, order=order)
    lu, piv = lu_factor(given, pivot="none", nb=NB)
    assert type(lu) is xp.ndarray
    assert np.array_equal(host(piv), np.arange(min(shape)))
    assert lu_ratio(a, *host(lu, piv)) < RATIO_LIMIT
    assert np.array_equal(host(given), a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("panel", ["cpu", "gpu"])
def test_workers_and_the_calling_thread_agree(cluster: Cluster, panel: str, dtype: str) -> None:
    a, b = dominant(99, dtype=dtype), random(99, 3, dtype)
    factors = lu_factor(a, pivot="none", nb=NB, client=cluster, panel=panel)
    assert factors.plan.workers[0].address
    assert lu_ratio(a, *factors) < RATIO_LIMIT
    assert solve_ratio(a, factors.solve(b), b) < RATIO_LIMIT
    x = solve(a, b, pivot="none", nb=NB, client=cluster, panel=panel)
    assert solve_ratio(a, x, b) < RATIO_LIMIT


def test_workers_of_other_processes() -> None:
    a, b = dominant(99), random(99, 3)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as processes,
        processes.get_client() as client,
    ):
        lu, piv = lu_factor(a, pivot="none", nb=NB, client=client, checkpoint=2)
        x = solve(a, b, pivot="none", nb=NB, client=client)
        with pytest.raises(LinAlgError, match="in step 0 of LU without pivoting"):
            lu_factor(np.ones((50, 50)), pivot="none", nb=NB, client=client)
    assert lu_ratio(a, lu, piv) < RATIO_LIMIT
    assert solve_ratio(a, x, b) < RATIO_LIMIT


@pytest.mark.parametrize("dtype", DTYPES)
def test_dask_arrays(dtype: str, xp: ModuleType) -> None:
    a, b = dominant(99, dtype=dtype), random(99, 3, dtype)
    x, y = (da.from_array(xp.asarray(each), chunks=40, asarray=False) for each in (a, b))
    factors = lu_factor(x, pivot="none", nb=NB)
    assert lu_ratio(a, *host(*(part.compute() for part in factors))) < RATIO_LIMIT
    assert solve_ratio(a, host(factors.solve(y).compute()), b) < RATIO_LIMIT
    found = solve(x, y, pivot="none", nb=NB).compute()
    assert type(found) is xp.ndarray
    assert solve_ratio(a, host(found), b) < RATIO_LIMIT


def test_in_the_place_of_the_matrix(xp: ModuleType) -> None:
    a, b = dominant(50), random(50, 2)
    given = xp.array(a, order="F")
    assert lu_factor(given, overwrite_a=True, pivot="none", nb=NB).lu is given
    x = solve(xp.array(a, order="F"), xp.asarray(b), overwrite_a=True, pivot="none", nb=NB)
    assert solve_ratio(a, host(x), b) < RATIO_LIMIT
    x = solve(xp.asarray(a), xp.asarray(b), transposed=True, pivot="none", nb=NB)
    assert solve_ratio(a.T, host(x), b) < RATIO_LIMIT


def test_stacks() -> None:
    a = np.stack([dominant(9), 2 * dominant(9)])
    lu, piv = lu_factor(a, pivot="none")
    assert max(lu_ratio(each, *factors) for each, *factors in zip(a, lu, piv, strict=True)) < 30


# --- the guard


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zero", [0, 20, 49])
def test_a_zero_pivot_is_an_error_that_names_it(zero: int, dtype: str, xp: ModuleType) -> None:
    a = np.diag(np.ones(50)).astype(dtype)
    a[zero, zero] = 0
    message = f"pivot {zero + 1} is zero in step {zero // NB} of LU without pivoting; growth so far"
    for call in (lambda a: lu_factor(a, pivot="none", nb=NB),
                 lambda a: solve(a, xp.ones(50, dtype), pivot="none", nb=NB)):  # fmt: skip
        with pytest.raises(LinAlgError, match=message):
            call(xp.asarray(a))


@pytest.mark.parametrize("dtype", DTYPES)
def test_growth_above_the_limit_is_an_error_that_names_the_step(dtype: str, xp: ModuleType) -> None:
    a = np.eye(50).astype(dtype)
    a[20:22, 20:22] = [[0, 1], [1, 0]]
    pivot = growth_limit(dtype) ** -0.5  # max |L| max |U| = 1 / pivot^2
    a[20, 20] = 1.01 * pivot
    growth = lu_factor(xp.asarray(a), pivot="none", nb=NB).growth
    assert growth == pytest.approx(growth_limit(dtype) / 1.01**2, rel=1e-4)
    a[20, 20] = 0.99 * pivot
    with pytest.raises(LinAlgError, match=r"the growth in step 1 .* is .*needs pivoting"):
        lu_factor(xp.asarray(a), pivot="none", nb=NB)


def test_growth_is_found_in_dask_arrays_and_on_workers(cluster: Cluster) -> None:
    a = np.array([[1e-20, 1], [1, 1.0]])
    with pytest.raises(LinAlgError, match="the growth in step 0"):
        lu_factor(a, pivot="none", client=cluster)
    with pytest.raises(LinAlgError, match="the growth in step 0"):
        lu_factor(da.from_array(a, chunks=1), pivot="none")[0].compute()
    with pytest.raises(LinAlgError, match="the growth in step 0"):
        solve(da.from_array(a, chunks=1), da.ones(2), pivot="none").compute()


def test_what_is_not_finite_is_never_taken_for_factors(xp: ModuleType) -> None:
    a = dominant(50)
    a[30, 7] = np.nan
    with pytest.raises(LinAlgError, match=r"growth in step 0 .* is nan"):
        lu_factor(xp.asarray(a), pivot="none", check_finite=False, nb=NB)


@pytest.mark.parametrize("make", [np.asarray, da.asarray])
def test_another_word_for_pivoting_is_refused(make) -> None:
    a = make(np.eye(4))
    for call in (partial(lu_factor, a), partial(solve, a, a)):
        with pytest.raises(ValueError, match="pivot must be 'partial' or 'none', not 'rook'"):
            call(pivot="rook")


# --- kernels


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (3, 5), (31, 31), (100, 64), (1100, 530)])
@pytest.mark.parametrize("kind", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_the_panel_and_its_growth(kind: str, shape: tuple[int, int], dtype: type) -> None:
    rng, device = np.random.default_rng(0), kernel_device(kind)
    m, n, k = *shape, min(shape)
    a = entries(rng, shape, dtype) + max(shape) * np.eye(m, n, dtype=dtype)
    above = entries(rng, (7, n), dtype)
    with device.activate():
        panel, info, top = View(device, a), vector(device, [99]), View(device, above)
        found = device.empty((2,), np.float64)
        run(device, "getrf_nopiv", panel, info)
        run(device, "growth", panel, top, found)
        lu, code, growth = panel.get(), int(fetch(device, info)[0]), fetch(device, found)
    low, up = np.tril(lu[:, :k], -1) + np.eye(m, k, dtype=dtype), np.triu(lu[:k])
    assert code == 0
    assert norm(a - low @ up) / (n * norm(a) * eps(dtype)) < RATIO_LIMIT
    below = np.tril(lu, -1)
    expected = [np.abs(below).max(), max(np.abs(up).max(), np.abs(above).max())]
    np.testing.assert_allclose(growth, expected, rtol=4 * eps(dtype))


def kernel_device(kind: str):
    if kind == "cpu":
        from hetero_la.tiles.kernels.cpu.device import CpuDevice

        return CpuDevice()
    from tests.tiles.kernels import gpu

    return gpu()


# --- plans, predictions and the command line


def test_plans_draw_explain_and_simulate(tmp_path) -> None:
    plan = hetero_la.plan("lu_nopivot", (400, 400), nb=100)
    partial = hetero_la.plan("lu", (400, 400), nb=100)
    plan.draw(tmp_path / "lu.svg")
    assert "getrf_nopiv" in (tmp_path / "lu.svg").read_text()
    assert 0 < plan.predicted_seconds < partial.predicted_seconds
    assert plan.flops == partial.flops


@pytest.mark.parametrize("command", ["lu", "solve"])
def test_the_command_line_factors_without_pivoting(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--random", "100", "--nb", "32", "--pivot", "none", "--ref"]) == 0
    assert " dominant " in capsys.readouterr().out
    assert main([command, "--random", "200", "--kind", "shift", "--pivot", "none"]) == 2
    assert "pivot 1 is zero in step 0" in capsys.readouterr().err


def test_factors_are_scipy_s_where_no_row_would_move() -> None:
    a = dominant(40)
    np.testing.assert_allclose(
        lu_factor(a, pivot="none", nb=NB).lu, scipy.linalg.lu_factor(a)[0], rtol=1e-12
    )


def test_factors_with_other_arrays_keep_their_growth() -> None:
    factors = lu_factor(np.eye(9) * 9 + 1, pivot="none")
    again = with_each_array(factors, np.copy)
    assert again.growth == factors.growth is not None
    assert again[0] is not factors[0]
