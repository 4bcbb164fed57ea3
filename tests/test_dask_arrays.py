"""Dask arrays in, Dask arrays out: values, laziness, errors."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten
from dask.optimization import cull
from distributed import LocalCluster
from numpy.linalg import LinAlgError
from scipy.linalg import LinAlgWarning

import hetero_la
from hetero_la.dask_arrays import bands, lazy_run, permutations
from hetero_la.dask_arrays.bands import between_diagonals
from hetero_la.dask_arrays.lazy_run import LazyRun, Singular
from hetero_la.scheduler.on_dask import inputs, run_graph
from hetero_la.scheduler.placement.workers import calling_thread
from hetero_la.tiles.arrays.errors import StaleShardError
from tests.dask_support import (
    NB,
    Case,
    any_shape_cases,
    assert_same,
    chunked,
    memory,
    reset_peak,
    square_cases,
)
from tests.support import DTYPES, covering, positive, random

CHUNKS = [(17, 23), (1000, 1000), (5, -1), (-1, 9), (3, 2), ((11, 1, 28), (2, 20, 0, 18))]


def check(case: Case, chunks: Any, **options: Any) -> None:
    """The same as for NumPy arrays, lazily."""

    def lazy(a: np.ndarray) -> da.Array:
        return chunked(a, chunks if a.ndim == 2 and not isinstance(chunks[0], tuple) else 13)

    result = case.call(lazy, nb=NB, **options)
    assert all(isinstance(part, da.Array | bool | None) for part in _flat(result))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LinAlgWarning)
        (found,) = dask.compute(result)
    assert_same(found, _plain(case.call(nb=NB)))


def _flat(result: Any) -> list[Any]:
    parts = result if isinstance(result, tuple) else (result,)
    return [
        inner for part in parts for inner in (_flat(part) if isinstance(part, tuple) else [part])
    ]


def _plain(result: Any) -> Any:
    return tuple(result) if isinstance(result, tuple) else result


@pytest.fixture(
    autouse=True, scope="module",
    params=[pytest.param("sync", marks=pytest.mark.exhaustive), "threads"],
)  # fmt: skip
def scheduler(request: pytest.FixtureRequest) -> Any:
    """Dask's own scheduler; where whether tasks run at once matters, tests name both."""
    with dask.config.set(scheduler=request.param):
        yield


# --- values


@pytest.mark.parametrize(
    ("scheduler", "shape", "dtype"),
    covering(["sync", "threads"], [(40, 40), (50, 33), (33, 50)], DTYPES),
    indirect=["scheduler"],
)
def test_functions_of_any_matrix(shape: tuple[int, int], dtype: str) -> None:
    for case in any_shape_cases(*shape, dtype):
        check(case, CHUNKS[0])


@pytest.mark.parametrize(
    ("scheduler", "dtype"), covering(["sync", "threads"], DTYPES), indirect=["scheduler"]
)
def test_functions_of_a_square_matrix(dtype: str) -> None:
    for case in square_cases(40, dtype):
        check(case, CHUNKS[0])


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_any_chunks_give_the_result_of_the_array(chunks: Any) -> None:
    a, p, b = random(40), positive(40), random(40, 3, seed=1)
    x, y = chunked(a, chunks), chunked(p, chunks)
    for found, expected in [
        (hetero_la.lu_factor(x, nb=NB), tuple(hetero_la.lu_factor(a, nb=NB))),
        (hetero_la.qr(x, nb=NB), hetero_la.qr(a, nb=NB)),
        (hetero_la.cholesky(y, nb=NB), hetero_la.cholesky(p, nb=NB)),
        (hetero_la.solve(x, b, assume_a="sym", nb=NB), hetero_la.solve(a, b, assume_a="sym")),
    ]:
        assert_same(dask.compute(found)[0], expected)


@pytest.mark.parametrize(
    ("scheduler", "dtype"),
    # In portions, the next test has several threads with the others by default.
    [("sync", "float64"), ("threads", "complex64"),
     pytest.param("sync", "complex64", marks=pytest.mark.exhaustive),
     pytest.param("threads", "float64", marks=pytest.mark.exhaustive)],
    indirect=["scheduler"],
)  # fmt: skip
@pytest.mark.exhaustive
def test_several_threads_do_a_long_run_together(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lazy_run.INLINE_LIMIT, "cpu", 0.0)
    monkeypatch.setattr(lazy_run, "CPU_COUNT", 3)
    for case in [*any_shape_cases(50, 33, dtype), *square_cases(40, dtype)]:
        check(case, CHUNKS[0])
    packed, _ = hetero_la.lu_factor(chunked(random(100), 30), nb=NB)
    (task,) = (task for key, task in packed.dask.to_dict().items() if "-run-" in str(key))
    assert len(task.args[0].job.programs) == 3


@pytest.fixture
def in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The input of a run comes in many tasks, however little it is."""
    monkeypatch.setattr(run_graph, "_LEAST_PORTION", 1)


@pytest.mark.usefixtures("in_portions")
@pytest.mark.parametrize(
    ("scheduler", "threads", "dtype"),
    covering(["sync", "threads"], [1, 3], ["float64", "complex64"]),
    indirect=["scheduler"],
)
def test_input_that_comes_in_portions(
    dtype: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if threads > 1:
        monkeypatch.setitem(lazy_run.INLINE_LIMIT, "cpu", 0.0)
    monkeypatch.setattr(lazy_run, "CPU_COUNT", threads)
    for case in [*any_shape_cases(50, 33, dtype), *square_cases(40, dtype)]:
        check(case, CHUNKS[0])
    packed, _ = hetero_la.lu_factor(chunked(random(100), 10), nb=NB)
    keys = [str(key) for key in packed.dask.to_dict()]
    assert sum("-open-" in key or "-load-" in key for key in keys) > 10


@pytest.mark.usefixtures("in_portions")
def test_numbers_are_looked_at_where_they_are_loaded() -> None:
    a = random(40)
    a[37, 29] = np.inf
    x, y = chunked(a, 7), chunked(random(40), 7)
    for function in FUNCTIONS_OF_ANY_ORDER:
        with pytest.raises(ValueError, match="a: array must not contain infs or NaNs"):
            dask.compute(function(x))
    for call in (
        lambda: hetero_la.solve(y, a), lambda: hetero_la.lstsq(y, a)[0],
        lambda: hetero_la.solve(y, a, assume_a="sym"), lambda: hetero_la.lu_factor(y).solve(a),
        lambda: hetero_la.cho_factor(da.eye(40)).solve(a),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="b: array must not contain infs or NaNs"):
            call().compute()
    with pytest.raises(ValueError, match="lu: array must not contain infs or NaNs"):
        hetero_la.lu_solve((x, np.arange(40)), np.ones(40)).compute()
    found, _ = dask.compute(*hetero_la.lu_factor(x, check_finite=False))
    assert not np.isfinite(found).all()


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc")
def test_blocks_that_nobody_else_holds_go_when_they_are_copied() -> None:
    n = 3000
    for size in (200, n):  # once to load libraries and take what is taken once
        x = da.random.default_rng(0).standard_normal((size, size), chunks=250)
        factors = hetero_la.lu_factor(x)
        before = reset_peak()
        # With several threads, as many blocks are made ahead of the copies as time allows.
        factors = factors.persist(scheduler="sync")
        grown = memory("VmHWM") - before
    assert grown < 1.3 * n * n * 8
    assert factors.lu.nbytes == n * n * 8


def test_a_permutation_takes_the_pages_of_its_ones() -> None:
    p = permutations.sparse_zeros((2048, 2048), np.empty(0), np.float64)
    assert (p.shape, p.dtype, p.flags.c_contiguous) == ((2048, 2048), np.float64, True)
    assert not p.any()
    p[np.arange(2048), np.arange(2048)[::-1]] = 1
    assert (p @ np.arange(2048.0))[0] == 2047
    x = da.random.default_rng(0).standard_normal((1100, 1100), chunks=550)
    blocks, lower, upper = hetero_la.lu(x, nb=100)
    assert blocks.numblocks == (2, 2)
    assert abs(blocks @ lower @ upper - x).max().compute() < 1e-10


def test_a_run_whose_input_was_worked_on_is_not_begun_again() -> None:
    buffer = inputs.InputBuffer(np.zeros((3, 3), order="F"))
    buffer.begin([])
    with pytest.raises(StaleShardError, match="compute again"):
        buffer.begin([])


def test_nothing_is_saved_for_checkpoints_that_nobody_takes() -> None:
    workers = [replace(calling_thread(), name=name, pid=1) for name in ("one", "two")]
    assert hetero_la.plan("lu", (90, 90), nb=NB, checkpoint=2, workers=workers).job().checkpoints
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        cluster.get_client() as client,
    ):
        run = lazy_run.LazyRun("lu", chunked(random(90), 30), nb=NB, checkpoint=2, client=client)
    assert len(run.plan.programs) == 2
    assert not run.plan.job().checkpoints


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (1, 4), (0, 2)])
@pytest.mark.parametrize("strip", [1, 2, 64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_is_between_diagonals(
    shape: tuple[int, int], strip: int, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bands, "_LEAST_STRIP", strip)
    a = np.array(random(*shape), order=order)
    for offset in range(-9, 10):
        for limit in range(-2, 3):
            lower = between_diagonals(a, offset, above=limit)
            assert np.array_equal(lower, np.tril(a, offset + limit))
            upper = between_diagonals(a, offset, below=limit)
            assert np.array_equal(upper, np.triu(a, offset - limit))
            for other in range(-limit, 3):
                both = between_diagonals(a, offset, below=limit, above=other)
                assert np.array_equal(both, np.triu(np.tril(a, offset + other), offset - limit))


@pytest.mark.parametrize("shape", [(1, 1), (0, 0), (0, 3), (3, 0), (2, 1)])
def test_small_and_empty_arrays_give_the_result_of_arrays(shape: tuple[int, int]) -> None:
    for case in any_shape_cases(*shape, "float64"):
        found, expected = dask.compute(case.call(lambda a: chunked(a, 2)))[0], case.call()
        if case.name == "lu" and 0 in shape:  # SciPy's p is empty there
            found, expected = found[-1], expected[-1]
        assert_same(found, _plain(expected))
    if shape[0] == shape[1]:
        for case in square_cases(shape[0], "complex64"):
            if case.options.get("assume_a") not in ("upper triangular", "lower triangular"):
                assert_same(
                    dask.compute(case.call(lambda a: chunked(a, 2)))[0], _plain(case.call())
                )


def test_integers_and_mixed_arguments() -> None:
    a, b = np.arange(9).reshape(3, 3) + 5 * np.eye(3, dtype=int), np.ones(3, np.float32)
    for first, second in [(chunked(a, 2), b), (a, chunked(b, 2)), (chunked(a, 2), chunked(b, 1))]:
        assert_same(hetero_la.solve(first, second).compute(), hetero_la.solve(a, b))


def test_factors_as_they_come_out_of_numpy_s_functions_solve() -> None:
    a, b = random(30), random(30, 2, seed=1)
    factors = hetero_la.lu_factor(a)
    assert_same(hetero_la.lu_solve(tuple(factors), chunked(b, 7)).compute(), factors.solve(b))
    assert_same(factors.solve(chunked(b, 7)).compute(), factors.solve(b))


def test_persisted_factors_solve_many_systems() -> None:
    a, b = positive(30), random(30, 2, seed=1)
    for made in (hetero_la.lu_factor(chunked(a, 7)), hetero_la.cho_factor(chunked(a, 7))):
        factors = made.persist()
        assert type(factors) is type(made)
        assert not any("fill" in str(key) or "run" in str(key) for key in factors[0].dask)
        for rhs in (b, 2 * b[:, 0]):
            assert np.allclose(a @ factors.solve(chunked(rhs, 11)).compute(), rhs)
        with pytest.raises(ValueError, match="which does not fit"):
            factors.solve(np.ones(7))


# --- laziness, names


def test_nothing_runs_before_it_is_asked_for() -> None:
    def fail(block: Any) -> Any:
        raise RuntimeError("computed")

    x = chunked(random(20), 7).map_blocks(fail, dtype=np.float64, meta=np.empty((0, 0)))
    result = hetero_la.solve(x, np.ones(20))
    with pytest.raises(RuntimeError, match="computed"):
        result.compute()


def test_equal_calls_have_equal_keys() -> None:
    def keys(**options: Any) -> set[Any]:
        x = chunked(random(40), 13)
        made = [*hetero_la.lu(x, **options), hetero_la.solve(x, np.ones(40), **options)]
        return {key for array in made for key in array.dask.to_dict()}

    assert keys(nb=NB) == keys(nb=NB)
    assert not {key for key in keys(nb=8) & keys(nb=NB) if "hetero" in str(key)}


@pytest.mark.exhaustive
def test_keys_are_the_same_in_another_process() -> None:
    program = (
        "import dask, hetero_la, numpy as np, dask.array as da\n"
        "dask.config.set({'tokenize.ensure-deterministic': True})\n"
        "x = da.from_array(np.eye(40), chunks=13)\n"
        "made = [*hetero_la.lu(x, nb=16), hetero_la.solve(x, np.ones(40)), hetero_la.det(x)]\n"
        "print(sorted({str(key) for array in made for key in array.dask.to_dict()}))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


def test_work_is_shared() -> None:
    x = chunked(random(40), 13)
    p, lower, upper = hetero_la.lu(x, nb=NB)
    determinant = hetero_la.det(x, nb=NB)
    runs = {
        key
        for array in (p, lower, upper, determinant, *hetero_la.lu_factor(x, nb=NB))
        for key in array.dask.to_dict()
        if "-run-" in str(key)
    }
    assert len(runs) == 1


def test_a_part_of_a_larger_computation() -> None:
    a, b = random(40), random(40, 2, seed=1)
    x, y = chunked(a, 13), chunked(b, 7)
    rest = x @ hetero_la.solve(x, y, nb=NB) - y
    assert abs(rest).mean().compute() < 1e-12
    (optimized,) = dask.optimize(rest)
    assert abs(optimized).mean().compute() < 1e-12
    assert abs(rest.persist()).mean().compute() < 1e-12


def test_arrays_that_come_from_elsewhere() -> None:
    a = random(40)
    x = chunked(a, 13)
    block = dask.delayed(np.array)(a)
    for given, plain in [
        (x.persist(), a), (dask.optimize(x)[0], a), (x.T, a.T), (x[::2, 5:25], a[::2, 5:25]),
        (da.from_delayed(block, a.shape, a.dtype), a), (da.eye(40, chunks=9) + x, np.eye(40) + a),
    ]:  # fmt: skip
        found = dask.compute(hetero_la.lu_factor(given, nb=NB))[0]
        assert_same(found, tuple(hetero_la.lu_factor(plain, nb=NB)))


def test_inputs_are_not_changed() -> None:
    a = random(40)
    before = a.copy()
    x = da.from_array(a, chunks=-1).persist()
    hetero_la.lu_factor(x, nb=NB)[0].compute()
    assert np.array_equal(x.compute(), before)
    assert np.array_equal(a, before)


# --- what goes wrong


FUNCTIONS: list[Callable[[Any], Any]] = [
    hetero_la.lu, hetero_la.lu_factor, hetero_la.cholesky, hetero_la.cho_factor, hetero_la.qr,
    hetero_la.inv, hetero_la.det, hetero_la.slogdet, partial(hetero_la.solve, b=np.ones(4)),
    partial(hetero_la.lstsq, b=np.ones(4)),
]  # fmt: skip


FUNCTIONS_OF_ANY_ORDER: list[Callable[[Any], Any]] = [
    *FUNCTIONS[:8],
    *[lambda x, name=name: hetero_la.solve(x, np.ones(40), assume_a=name)
      for name in ("gen", "pos", "sym", "her", "tridiagonal", "banded", "upper triangular")],
    lambda x: hetero_la.inv(x, assume_a="lower triangular"),
    lambda x: hetero_la.inv(x, assume_a="pos"),
    lambda x: hetero_la.lstsq(x, np.ones(40)),
    lambda x: hetero_la.lstsq(x[10:], np.ones(30)),
    lambda x: hetero_la.cholesky(x, lower=True),
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bad_input_is_refused_before_anything_runs(function: Callable[[Any], Any]) -> None:
    x = da.ones((4, 4), chunks=2)
    with pytest.raises(ValueError, match=r"unknown sizes.*compute_chunk_sizes"):
        function(x[x[:, 0] > 0])
    with pytest.raises(ValueError, match=r"2 dimensions, not shape \(2, 4, 4\)"):
        function(da.ones((2, 4, 4)))
    with pytest.raises(ValueError, match="a has dtype object"):
        function(x.astype(object))
    with pytest.raises(ValueError, match="NaN"):
        dask.compute(function(x + np.nan))


def test_what_has_no_lazy_counterpart_says_so() -> None:
    with pytest.raises(TypeError, match="qr_factor does not take dask arrays"):
        hetero_la.qr_factor(da.ones((4, 4)))


def test_shapes_and_options_are_looked_at_first() -> None:
    x = da.ones((4, 3), chunks=2)
    for call, message in [
        (lambda: hetero_la.det(x), r"square, and a has shape \(4, 3\)"),
        (lambda: hetero_la.solve(x.T @ x, np.ones(4)), r"b has shape \(4,\)"),
        (lambda: hetero_la.lu(x, nb=0), "nb must be"),
        (lambda: hetero_la.qr(x, mode="thin"), "Mode argument should be"),
        (lambda: hetero_la.qr(x, pivoting=True, nb=0), "nb must be"),
        (lambda: hetero_la.lstsq(x, np.ones(4), cond="odd"), "cond must be"),
        (lambda: hetero_la.lstsq(x, np.ones(4), lapack_driver="odd"), '"odd" is not found'),
        (lambda: hetero_la.solve(x.T @ x, np.ones(3), assume_a="odd"), "assume_a"),
        (lambda: hetero_la.lu_solve((x.T @ x, np.ones(2, int)), np.ones(3)), "3 row indices"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_failure_of_the_numbers_comes_with_the_numbers() -> None:
    x = da.zeros((40, 40), chunks=13)
    for function in (hetero_la.inv, lambda x: hetero_la.solve(x, np.ones(40), nb=NB)):
        with pytest.raises(LinAlgError, match="diagonal number 1 of U is exactly zero"):
            function(x).compute()
    indefinite = da.diag(da.from_array(np.r_[np.ones(20), -np.ones(20)], chunks=7))
    for lower in (False, True):
        with pytest.raises(LinAlgError, match="21-th leading minor"):
            hetero_la.cholesky(indefinite, lower=lower, nb=NB).compute()
    for structure in ("diagonal", "upper triangular", "lower triangular"):
        with pytest.raises(LinAlgError, match="zero on its diagonal"):
            hetero_la.solve(x, np.ones(40), assume_a=structure).compute()
    with pytest.raises(LinAlgError, match="diagonal number 1 of R"):
        hetero_la.lstsq(x, np.ones(40), lapack_driver="gels")[0].compute()


def test_determinants_are_right_where_products_on_the_way_are_out_of_range() -> None:
    x = chunked(np.diag([1e200] * 3 + [1e-200] * 3), 2)
    assert hetero_la.det(x).compute() == pytest.approx(1)
    sign, logabsdet = dask.compute(*hetero_la.slogdet(x))
    assert (sign, logabsdet) == (1, pytest.approx(0, abs=1e-12))


def test_singular_factors_come_with_a_warning() -> None:
    x = da.zeros((40, 40), chunks=13)
    packed, _ = hetero_la.lu_factor(x, nb=NB)
    with pytest.warns(LinAlgWarning, match="Diagonal number 1 is exactly zero"):
        assert not packed.compute().any()
    a = np.outer(np.arange(1.0, 6), np.ones(3)) + 1e-10 * random(5, 3)
    said = "rank is about 1 and not 3 .*R's diagonal are at most 1e-08 of the largest"
    rank = hetero_la.lstsq(chunked(a, 2), np.ones(5), cond=1e-8, lapack_driver="gels")[2]
    with pytest.warns(LinAlgWarning, match=said):
        assert rank.compute() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hetero_la.det(x).compute() == 0
        assert hetero_la.slogdet(x).logabsdet.compute() == -np.inf


def test_blocks_wait_for_the_check_of_a_run_that_may_fail() -> None:
    def waiting(factors: da.Array) -> list[bool]:
        tasks = factors.dask.to_dict()
        return [
            any("-check-" in str(needed) for needed in cull(tasks, [key])[0])
            for key in flatten(factors.__dask_keys__())
        ]

    x = chunked(positive(40), 13)
    options: dict[str, Any] = {"nb": NB}
    never, last = LazyRun("qr", x, **options).factors, hetero_la.lu_factor(x, **options)[0]
    always = LazyRun("cholesky", x, singular=Singular.NOT_POSITIVE, **options).factors
    blocks = never.numblocks[1]
    assert blocks > 1
    assert waiting(never) == [False] * blocks
    assert waiting(last) == [False] * (blocks - 1) + [True]  # all of it is warned of
    assert waiting(always) == [True] * blocks


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_nearly_singular_matrices_come_with_a_warning(dtype: str) -> None:
    a = np.eye(40, dtype=dtype)
    a[7, 7] = np.finfo(dtype).eps / 100
    calls: list[Callable[[], da.Array]] = [
        lambda: hetero_la.solve(chunked(a, 13), np.ones(40, dtype), nb=NB),
        lambda: hetero_la.inv(chunked(a, 13), nb=NB),
        lambda: hetero_la.solve(chunked(a, 13), np.ones(40, dtype), nb=NB, assume_a="pos"),
    ]
    for call in calls:
        with pytest.warns(LinAlgWarning, match="ill-conditioned matrix .* have the ratio"):
            call().compute()


# --- CuPy


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_cupy_chunks_stay_on_the_gpu(dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    for case in [*any_shape_cases(50, 33, dtype), *square_cases(40, dtype)]:
        result = case.call(
            lambda a: da.from_array(cupy.asarray(a), chunks=13, asarray=False), nb=NB
        )
        with dask.config.set(scheduler="sync"):
            (found,) = dask.compute(result)
        if case.name not in ("det", "slogdet"):
            kinds = {type(part) for part in _flat(found) if np.ndim(part)}
            assert kinds == {cupy.ndarray}, str(case)
        assert_same(_on_host(found), _plain(case.call(nb=NB)), dtype)


def _on_host(found: Any) -> Any:
    if isinstance(found, tuple):
        return tuple(_on_host(part) for part in found)
    return found.get() if hasattr(found, "get") else found
