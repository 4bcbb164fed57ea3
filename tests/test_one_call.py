"""Matrices that need no tiles: LAPACK in one call, without a plan, alone and in stacks."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.linalg import LinAlgError
from scipy.linalg import LinAlgWarning

import hetero_la
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.execution import one_call, stack_runs
from hetero_la.execution.execute import execute
from hetero_la.planning import routes
from hetero_la.planning.decisions import (
    Problem,
    library_estimate,
    nearby_problem,
    quick_estimate,
    team_estimate,
)
from hetero_la.planning.options import Options
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.tiles.arrays.errors import UnsupportedDtypeError
from hetero_la.tiles.kernels.cpu import lapack
from tests.support import CLOSE, DTYPES, covering, random, share_small_matrices

SHAPES = [(1, 1), (1, 5), (5, 1), (5, 5), (6, 6), (7, 3), (3, 7), (50, 50), (130, 130), (200, 9)]
#: Forms in which users have arrays.
FORMS: dict[str, Callable[[Any], Any]] = {
    "column-major": np.asfortranarray,
    "row-major": np.ascontiguousarray,
    "strided": lambda a: np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2],
    "read-only": lambda a: np.broadcast_to(a, a.shape),
    "turned": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
}


def matrix(routine: str, m: int, n: int, dtype: str) -> Any:
    """A matrix that the routine takes; of `minimum_norm`, the right-hand sides are below."""
    a = random(m, n, dtype)
    return a @ a.conj().T + m * np.eye(m, dtype=dtype) if "positive" in known(routine) else a


def known(routine: str) -> str:
    return {"cholesky": "positive"}.get(routine, routine)


def right_hand_sides(routine: str, m: int, n: int, dtype: str) -> tuple[Any, int]:
    """Right-hand sides, or None and the columns that the routine makes."""
    if routine in ("solve", "solve_positive", "lstsq", "minimum_norm"):
        b = random(m, 3, dtype, seed=1)
        if routine == "minimum_norm":
            b[n:] = 0
        return b, 0
    return None, {"inverse": n, "explicit_q": m}.get(routine, 0)


@pytest.fixture
def no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a plan was made")

    monkeypatch.setattr("hetero_la.execution.executor_choice.make_plan", fail)
    monkeypatch.setattr("hetero_la.planning.planner._cached_plan", fail)


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """All stacks are worth two threads; the list says how many each has got."""
    share_small_matrices(monkeypatch)
    started, original = [], stack_runs.for_parts

    def counted(run: Callable[[slice], None], count: int, threads: int, size: int) -> None:
        started.append(threads)
        original(run, count, threads, size)

    monkeypatch.setattr(stack_runs, "for_parts", counted)
    monkeypatch.setattr("hetero_la.api.lstsq.for_parts", counted)
    return started


# --- one matrix


ONE_CALL = [name for name, routine in ROUTINES.items() if routine.library]


def test_all_that_has_a_command_for_dense_matrices_has_a_call() -> None:
    assert set(ONE_CALL) == {
        "lu", "solve", "inverse", "cholesky", "solve_positive", "qr", "explicit_q", "lstsq",
        "minimum_norm",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("routine", "shape", "dtype", "form"), covering(ONE_CALL, SHAPES, DTYPES, FORMS)
)
def test_it_leaves_what_one_tile_does(
    routine: str, shape: tuple[int, int], dtype: str, form: str
) -> None:
    m, n = shape
    if ROUTINES[routine].square:
        m = n = max(shape)
    elif ROUTINES[routine].tall:
        m, n = max(shape), min(shape)
    a = FORMS[form](matrix(routine, m, n, dtype))
    b, columns = right_hand_sides(routine, m, n, dtype)
    before = a.copy()
    found = execute(routine, a, b, columns=columns)
    expected = execute(routine, a, b, columns=columns, nb=max(m, n, columns))
    assert found.layout.kt == 1
    assert np.array_equal(a, before)
    assert found.array.flags.f_contiguous
    assert found.array.dtype == expected.array.dtype
    assert found.values.keys() == expected.values.keys()
    for name, vector in expected.values.items():
        assert found.values[name].dtype == vector.dtype
        assert np.allclose(found.values[name], vector, atol=10 * CLOSE[dtype])
    factors, others = found.factors, expected.factors
    if "positive" in known(routine):
        factors, others = np.tril(factors), np.tril(others)
    if routine in ("lu", "cholesky"):  # the same call of LAPACK
        assert np.array_equal(factors, others)
    scale = max(np.abs(expected.array).max(), 1)
    if routine != "inverse":  # whose factors nobody needs
        assert np.allclose(factors, others, atol=10 * CLOSE[dtype] * scale)
    assert np.allclose(found.beside, expected.beside, atol=10 * CLOSE[dtype] * scale)


def functions(n: int = 9) -> dict[str, Callable[[], Any]]:
    a, b = random(n), random(n, 2, seed=1)
    p = a @ a.T + n * np.eye(n)
    return {
        "lu_factor": lambda: hetero_la.lu_factor(a),
        "lu": lambda: hetero_la.lu(a),
        "cho_factor": lambda: hetero_la.cho_factor(p),
        "cholesky": lambda: hetero_la.cholesky(p, lower=True),
        "qr": lambda: hetero_la.qr(a),
        "qr, r": lambda: hetero_la.qr(a, mode="r"),
        "qr_factor": lambda: hetero_la.qr_factor(a),
        "solve": lambda: hetero_la.solve(a, b),
        "solve, positive": lambda: hetero_la.solve(p, b, assume_a="pos"),
        "solve, symmetric": lambda: hetero_la.solve(p, b, assume_a="sym"),
        "solve_with_report": lambda: hetero_la.solve_with_report(a, b)[0],
        "inv": lambda: hetero_la.inv(a),
        "lstsq": lambda: hetero_la.lstsq(a, b),
        "lstsq, tall": lambda: hetero_la.lstsq(a[:, :4], b),
        "lstsq, wide": lambda: hetero_la.lstsq(a[:4], b[:4]),
        "lstsq, gels": lambda: hetero_la.lstsq(a[:, :4], b, lapack_driver="gels"),
        "det": lambda: hetero_la.det(a),
        "stack": lambda: hetero_la.lu_factor(np.stack([a, p, a])),
    }


@pytest.mark.parametrize("name", functions())
def test_a_small_call_makes_no_plan(name: str, no_plan: None) -> None:
    functions()[name]()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_overwriting(order: Any, overwrite: bool) -> None:
    given = np.array(random(8), order=order)
    a, expected = given.copy(order="K"), scipy.linalg.lu_factor(given)
    factors = hetero_la.lu_factor(a, overwrite_a=overwrite)
    assert np.shares_memory(factors.lu, a) == (overwrite and order == "F")
    assert np.array_equal(factors.lu, expected[0])
    assert factors.plan.source == (
        "row-major" if order == "C" else "in place" if overwrite else "column-major"
    )
    fixed = given.copy(order="K")
    fixed.flags.writeable = False
    hetero_la.lu_factor(fixed, overwrite_a=True)
    assert np.array_equal(fixed, given)


def test_plan_and_timing_are_made_when_they_are_asked_for() -> None:
    factors = hetero_la.lu_factor(random(30))
    for one in (factors, pickle.loads(pickle.dumps(factors))):
        assert (one.plan.routine, one.plan.layout.kt, one.plan.workers[0].name) == (
            "lu", 1, "caller",
        )  # fmt: skip
        assert 0 < one.timing.workers[0].busy == one.timing.seconds
        assert str(one.timing).splitlines()[1].startswith("caller")
    assert hetero_la.qr_factor(random(30)).panels == ("householder",)
    plan, timing = hetero_la.solve_with_report(random(9), np.ones(9))[1]
    assert (plan.routine, timing.losses) == ("solve", ())
    assert hetero_la.lstsq_with_report(random(4, 9), np.ones(4))[4].plan.layout.m == 9


def test_a_trace_records_a_run_of_tasks() -> None:
    with hetero_la.trace() as t:
        hetero_la.lu_factor(random(30))
        hetero_la.lstsq(random(30), np.ones(30))
    assert [run.plan.routine for run in t.runs] == ["lu", "qr"]


def test_what_cannot_be_solved() -> None:
    singular = np.ones((5, 5))
    with pytest.warns(LinAlgWarning, match="Diagonal number 2 is exactly zero"):
        assert hetero_la.lu_factor(singular).info == 2
    for function in (hetero_la.inv, lambda a: hetero_la.solve(a, np.ones(5))):
        with pytest.raises(LinAlgError, match="diagonal number 2 of U"):
            function(singular)
        with pytest.warns(LinAlgWarning, match="ill-conditioned"):
            function(_nearly())
    for function in (
        hetero_la.cho_factor,
        lambda a: hetero_la.solve(a, np.ones(5), assume_a="pos"),
    ):
        with pytest.raises(LinAlgError, match="3-th leading minor"):
            function(np.diag([1.0, 1.0, -1.0, 1.0, 1.0]))
    for name, value in (("a", np.nan), ("b", np.inf)):
        a, b = np.eye(5), np.ones(5)
        (a if name == "a" else b)[3] = value
        with pytest.raises(ValueError, match=f"{name}: array must not contain infs or NaNs"):
            hetero_la.solve(a, b)


def _nearly() -> Any:
    """A matrix of order 5 that is singular to working precision."""
    return np.diag([1.0, 1.0, 1.0, 1.0, 1e-17])


# --- the choice


def test_the_route_follows_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    a = random(40)
    for seconds, expected in ((1e3, False), (0.0, True)):
        one_call._is_fastest.cache_clear()
        one_call._fastest_on_host.cache_clear()
        one_call._lapack_seconds.cache_clear()
        monkeypatch.setattr(one_call, "library_estimate", lambda *_, s=seconds: s)
        assert one_call.takes_one_call("qr", a, 0) is expected
    for clear in (one_call._is_fastest, one_call._fastest_on_host, one_call._lapack_seconds):
        clear.cache_clear()


def test_predictions_of_lapack() -> None:
    def seconds(routine: str, n: int) -> list[float]:
        problem = Problem(routine, n, n, 0, np.dtype(np.float64))
        worker = WorkerInfo("caller", "cpu", blas_threads=2)
        team = [WorkerInfo(f"cpu{i}", "cpu") for i in range(2)]
        return [
            library_estimate(problem, worker), quick_estimate(problem, Options(), worker),
            team_estimate(problem, team),
        ]  # fmt: skip

    for routine in ("lu", "cholesky", "qr"):
        for n in (1, 10, 50):
            alone, tasks, _ = seconds(routine, n)
            assert alone < tasks
    # LAPACK's panels of QR have 32 columns, which is little for large products.
    assert seconds("qr", 8192)[0] > one_call._GAIN * min(seconds("qr", 8192))
    assert seconds("lu", 2000)[0] < 1.1 * min(seconds("lu", 2000))


#: Milliseconds on 16 threads, two to a core, by one call of LAPACK, and by a team of as many.
MANY_CORES = {
    ("lu", 1500): (21.8, 160), ("lu", 2000): (36.5, 206), ("lu", 3000): (98.3, 479),
    ("lu", 4000): (183, 559), ("qr", 1000): (22.4, 75.7), ("qr", 1500): (55.7, 170),
    ("qr", 2000): (104, 173), ("qr", 3000): (258, 346), ("qr", 4000): (482, 588),
}  # fmt: skip


@pytest.mark.parametrize(("routine", "n"), MANY_CORES)
def test_many_cores_are_better_used_by_lapack_than_by_a_team(routine: str, n: int) -> None:
    problem = Problem(routine, n, n, 0, np.dtype(np.float64))
    alone = library_estimate(problem, WorkerInfo("caller", "cpu", blas_threads=16))
    team = team_estimate(problem, [WorkerInfo(f"cpu{i}", "cpu") for i in range(16)])
    measured = MANY_CORES[routine, n]
    assert alone < one_call._GAIN * team
    assert 0.6 < 1e3 * alone / measured[0] < 1.3
    assert 0.4 < 1e3 * team / measured[1] < 1.3


#: Milliseconds of QR on two threads by one call of LAPACK, and by tasks.
TALL_ON_CORES = {
    ("c16", 2000, 60): (1.47, 3.06), ("c16", 10_000, 60): (6.99, 13.9),
    ("c16", 10_000, 200): (52.3, 101), ("c16", 1000, 1000): (62.9, 83.2),
    ("f4", 10_000, 60): (4.75, 5.62), ("f4", 10_000, 200): (20.1, 26.5),
    ("f8", 10_000, 200): (36.7, 38.1),
}  # fmt: skip


@pytest.mark.parametrize(("dtype", "m", "n"), TALL_ON_CORES)
def test_qr_by_one_call_where_that_was_faster(dtype: str, m: int, n: int) -> None:
    problem = nearby_problem(Problem("qr", m, n, 0, np.dtype(dtype)))
    worker = WorkerInfo("caller", "cpu", blas_threads=2)
    alone, tasks = library_estimate(problem, worker), quick_estimate(problem, Options(), worker)
    assert alone < one_call._GAIN * tasks


#: Milliseconds of LU on an H200 by one call of cuSOLVER, and by tasks.
TALL = {
    (80_000, 16): (0.23, 0.70), (80_000, 64): (0.75, 0.96), (80_000, 512): (7.31, 4.15),
    (131_072, 32): (0.49, 0.87), (131_072, 128): (2.00, 1.45), (131_072, 512): (10.2, 5.13),
    (262_144, 16): (0.33, 0.78), (262_144, 32): (0.68, 0.92), (262_144, 128): (3.46, 1.93),
    (1_000_000, 4): (0.21, 0.72), (1_000_000, 64): (6.07, 2.53), (1_000_000, 512): (151, 26.8),
}  # fmt: skip


@pytest.mark.parametrize("shape", TALL, ids=str)
def test_tall_matrices_on_a_gpu_go_the_route_that_is_faster(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = WorkerInfo("caller", "gpu", device=0, memory=2**37)
    monkeypatch.setattr(routes, "calling_thread", lambda **_: gpu)
    problem = nearby_problem(Problem("lu", *shape, 0, np.dtype(np.float64)))
    alone, tasks = routes.gpu_routes(problem, 0).values()
    assert (alone < tasks) == (TALL[shape][0] < TALL[shape][1])


@pytest.mark.parametrize(
    ("n", "seconds"), {256: 2.6e-4, 512: 6.1e-4, 1024: 1.45e-3, 2048: 5.5e-3, 4096: 1.35e-2}.items()
)
def test_lu_of_a_square_matrix_on_a_gpu_is_predicted(n: int, seconds: float) -> None:
    """As measured on an H200: up to order 1024 by our kernel."""
    gpu = WorkerInfo("caller", "gpu", device=0, memory=2**37)
    found = library_estimate(Problem("lu", n, n, 0, np.dtype(np.float64)), gpu)
    assert seconds / 1.3 < found < 1.3 * seconds


def test_choosing_takes_few_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(
        one_call, "library_estimate", lambda problem, _: made.append(problem) or 0.0
    )
    for clear in (one_call._is_fastest, one_call._fastest_on_host, one_call._lapack_seconds):
        clear.cache_clear()
    for n in range(129, 200):
        one_call.takes_one_call("lu", np.ones((n, n)), 0)
    assert {problem.m for problem in made} == {160, 192, 224}
    for clear in (one_call._is_fastest, one_call._fastest_on_host, one_call._lapack_seconds):
        clear.cache_clear()


# --- stacks


@pytest.mark.parametrize(
    ("routine", "n", "threads"),
    [
        ("lu", 32, 1), ("lu", 128, 1), ("solve", 160, 2), ("cholesky", 256, 5), ("lu", 512, 16),
        ("inverse", 127, 1), ("inverse", 128, 4), ("qr", 160, 6), ("qr", 256, 16),
        ("cho_solve", 512, 1),
    ],
)  # fmt: skip
def test_larger_matrices_are_shared_by_more_threads(
    routine: str, n: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_runs, "usable_cores", lambda: 16)
    problem = Problem(routine, n, n, 3, np.dtype(float))
    assert stack_runs.threads_for(1000, problem) == threads
    assert stack_runs.threads_for(2, problem) <= 2
    assert stack_runs.threads_for(1, problem) == 0


STACKED: dict[str, Callable[..., Any]] = {
    "lu_factor": lambda a, **o: hetero_la.lu_factor(a, **o),
    "cho_factor": lambda a, **o: hetero_la.cho_factor(_definite(a), **o),
    "cho_factor, lower": lambda a, **o: hetero_la.cho_factor(_definite(a), lower=True, **o),
    "qr": lambda a, **o: hetero_la.qr(a, **o),
    "qr, economic": lambda a, **o: hetero_la.qr(a, mode="economic", **o),
    "qr, r": lambda a, **o: hetero_la.qr(a, mode="r", **o),
    "qr, raw": lambda a, **o: _flat(hetero_la.qr(a, mode="raw", **o)),
    "lu": lambda a, **o: hetero_la.lu(a, **o),
    "lu, P L": lambda a, **o: hetero_la.lu(a, permute_l=True, **o),
    "lu, indices": lambda a, **o: hetero_la.lu(a, p_indices=True, **o),
    "det": lambda a, **o: hetero_la.det(a / 4, **o),
    "slogdet": lambda a, **o: hetero_la.slogdet(a, **o),
    "cholesky": lambda a, **o: hetero_la.cholesky(_definite(a), **o),
    "cholesky, lower": lambda a, **o: hetero_la.cholesky(_definite(a), lower=True, **o),
    "inv": lambda a, **o: hetero_la.inv(a, **o),
    "inv, positive": lambda a, **o: hetero_la.inv(np.triu(_definite(a)), assume_a="pos", **o),
    "inv, symmetric": lambda a, **o: hetero_la.inv(a, assume_a="sym", **o),
    "solve, positive": lambda a, **o: hetero_la.solve(
        np.tril(_definite(a)), a[..., :2], assume_a="pos", lower=True, **o
    ),
    "solve, positive, a vector": lambda a, **o: hetero_la.solve(
        np.triu(_definite(a)), np.full(a.shape[-1], 1j), assume_a="pos", **o
    ),
    "solve, Hermitian": lambda a, **o: hetero_la.solve(
        np.tril(_definite(a)), a[..., :2], assume_a="her", lower=True, **o
    ),
    "lstsq": lambda a, **o: hetero_la.lstsq(a[..., :3], a[..., :2] + 1, **o),
    "lstsq, wide": lambda a, **o: hetero_la.lstsq(a[..., :3, :], np.ones(min(3, a.shape[-1])), **o),
    "solve": lambda a, **o: hetero_la.solve(a, np.ones((a.shape[-1], 2)), **o),
    "solve, a vector": lambda a, **o: hetero_la.solve(a, np.arange(1.0, a.shape[-1] + 1), **o),
    "solve, complex": lambda a, **o: hetero_la.solve(a, np.full((a.shape[-1], 1), 1j), **o),
}


def _flat(raw: Any) -> Any:
    (packed, tau), r = raw
    return packed, tau, r


def _definite(a: Any) -> Any:
    return a @ a.conj().swapaxes(-1, -2) + a.shape[-1] * np.eye(a.shape[-1], dtype=a.dtype)


@pytest.mark.parametrize(
    ("name", "order", "dtype", "batch"),
    covering(STACKED, [1, 5, 70, 150], DTYPES, [(4,), (2, 3), (3, 1, 2)]),
)
def test_stacks_are_what_their_matrices_are(
    name: str, order: int, dtype: str, batch: tuple[int, ...], in_threads: list[int]
) -> None:
    count = int(np.prod(batch))
    a = np.ascontiguousarray(random(count * order, order, dtype)).reshape(*batch, order, order)
    before = a.copy()
    found, expected = STACKED[name](a), STACKED[name](a, nb=order)  # with an option, one by one
    assert 2 in in_threads
    assert np.array_equal(a, before)
    found, expected = (x if isinstance(x, tuple) else (x,) for x in (found, expected))
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if name == "cho_factor":
            one, other = np.triu(one), np.triu(other)
        elif name == "cho_factor, lower" and one.ndim > 1:
            one, other = np.tril(one), np.tril(other)
        scale = np.abs(other).max(initial=1)
        assert np.allclose(one, other, atol=100 * CLOSE[dtype] * scale)


@pytest.mark.parametrize("shape", [(7, 3), (3, 7)])
@pytest.mark.parametrize("mode", ["full", "economic"])
def test_stacks_of_matrices_that_are_not_square(
    mode: Any, shape: tuple[int, int], in_threads: list[int]
) -> None:
    a = random(6 * shape[0], shape[1]).reshape(6, *shape)
    q, r = hetero_la.qr(a, mode=mode)
    for one, factors in zip(a, zip(q, r, strict=True), strict=True):
        for found, expected in zip(factors, scipy.linalg.qr(one, mode=mode), strict=True):
            assert np.allclose(found, expected, atol=1e-12)
    _, piv = hetero_la.lu_factor(a)
    assert all(np.array_equal(piv[i], scipy.linalg.lu_factor(a[i])[1]) for i in range(6))
    assert in_threads == [2, 2]


@pytest.mark.parametrize("function", [hetero_la.inv, lambda a: hetero_la.solve(a, np.ones(5))])
def test_the_first_matrix_that_fails_is_named(
    function: Callable[..., Any], in_threads: list[int]
) -> None:
    a = np.stack([np.eye(5)] * 8)
    a[3, 1, 1] = a[6, 0, 0] = 0
    with pytest.raises(LinAlgError, match="diagonal number 2 of U") as caught:
        function(a)
    assert caught.value.__notes__ == ["This concerns matrix (3,) of a stack of shape (8,)."]
    a[2] = np.nan
    with pytest.raises(ValueError, match="infs or NaNs") as refused:
        function(a)
    assert refused.value.__notes__ == ["This concerns matrix (2,) of a stack of shape (8,)."]
    with pytest.raises(UnsupportedDtypeError) as unknown:
        function(a.astype(object))
    assert unknown.value.__notes__ == ["This concerns matrix (0,) of a stack of shape (8,)."]


def test_a_stack_warns_as_its_matrices_do(in_threads: list[int]) -> None:
    a = np.stack([np.eye(5)] * 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hetero_la.inv(a)
        hetero_la.solve(a, np.ones(5))
        hetero_la.lu_factor(a)
    a[4] = _nearly()
    for function in (hetero_la.inv, lambda a: hetero_la.solve(a, np.ones(5))):
        with pytest.warns(LinAlgWarning, match="rcond = 1e-17"):
            function(a)
    a[4, 4, 4] = 0
    with pytest.warns(LinAlgWarning, match="Diagonal number 5 is exactly zero"):
        hetero_la.lu_factor(a)
    indefinite = -a
    with pytest.raises(LinAlgError, match="1-th leading minor") as caught:
        hetero_la.cho_factor(indefinite)
    assert caught.value.__notes__ == ["This concerns matrix (0,) of a stack of shape (6,)."]


def test_stacks_keep_what_may_be_overwritten_and_broadcast(in_threads: list[int]) -> None:
    a, b = random(12, 3).reshape(4, 3, 3), random(3, 2, seed=1)
    before = a.copy(), b.copy()
    x = hetero_la.solve(a, b, overwrite_a=True, overwrite_b=True)
    assert np.allclose(x, np.linalg.solve(a, b))
    y = hetero_la.solve(a[0], np.stack([b] * 5), overwrite_b=True)
    assert np.allclose(y, np.linalg.solve(a[0], b))
    assert np.allclose(hetero_la.solve(a, b, transposed=True), np.linalg.solve(a.swapaxes(1, 2), b))
    assert np.array_equal(a, before[0])
    assert np.array_equal(b, before[1])
    assert in_threads == [2, 2, 2]


def test_solutions_of_a_stack_are_refined(in_threads: list[int]) -> None:
    """Of a matrix on which elimination with partial pivoting loses digits."""
    n = 50
    grown = np.tril(-np.ones((n, n)), -1) + np.eye(n)
    grown[:, -1] = 1
    a, b = np.stack([grown, np.eye(n), grown]), random(n, 1)
    x = hetero_la.solve(a, b)
    for one, solution in zip(a, x, strict=True):
        residual = np.abs(b - one @ solution).sum()
        assert residual <= np.finfo(float).eps * np.abs(one).sum(0).max() * np.abs(solution).sum()
    assert in_threads == [2]


# --- the calls


@pytest.mark.parametrize("n", [127, 128, 300, 1100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_columns_of_an_inverse_are_solutions(dtype: str, n: int) -> None:
    a = random(n, n, dtype)
    frame = np.full((n + 3, 2 * n), np.nan, dtype, order="F")  # columns that are not contiguous
    left, x = frame[:n, :n], frame[2:-1, n:]
    left[...] = a
    vectors = lapack.lu_and_invert(left, x)
    assert np.array_equal(vectors["ipiv", 0], scipy.linalg.lu_factor(a)[1])
    residuals = np.abs(a @ x - np.eye(n)).sum(axis=0)
    sizes = np.abs(a).sum(axis=0).max() * np.abs(x).sum(axis=0)
    assert (residuals / sizes).max() < 15 * np.finfo(dtype).eps
    assert np.isnan(frame[n:, :n]).all()
    assert np.isnan(frame[:2, n:]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", [lapack.cholesky_and_solve, lapack.lu_and_invert])
def test_calls_beside_other_threads_do_the_same(call: Callable[..., Any], dtype: str) -> None:
    n = lapack._LONG
    p = np.asfortranarray(_definite(random(n, dtype=dtype)))
    b = np.asfortranarray(np.eye(n, dtype=dtype))
    found = []
    for threads in (False, True):
        a, x = p.copy(order="F"), b.copy(order="F")
        vectors = call(a, x, threads)
        found.append((np.tril(a), x, vectors["info", 0]))
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [5, 70])
def test_stacks_of_factors(order: int, dtype: str, in_threads: list[int]) -> None:
    a = random(6 * order, order, dtype).reshape(6, order, order)
    b = random(6 * order, 3, "complex64", seed=1).reshape(6, order, 3)
    close = 100 * CLOSE["complex64"] * order
    factors = hetero_la.lu_factor(a)
    for trans in (0, 1, 2):
        x = hetero_la.lu_solve(factors, b, trans)
        for i in range(6):
            expected = scipy.linalg.lu_solve((factors[0][i], factors[1][i]), b[i], trans)
            assert x.dtype == expected.dtype
            assert np.allclose(x[i], expected, atol=close * np.abs(expected).max())
    for lower in (False, True):
        c, _ = hetero_la.cho_factor(_definite(a), lower=lower)
        x = hetero_la.cho_solve((c, lower), b[..., :1])
        for i in range(6):
            expected = scipy.linalg.cho_solve((c[i], lower), b[i, :, :1])
            assert np.allclose(x[i], expected, atol=close * np.abs(expected).max())
    assert in_threads == [2] * 4 + [2, 1] * 2  # potrs keeps the interpreter's lock


def test_only_uncertain_matrices_are_looked_at_alone(
    in_threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of the others stay, and errors and warnings are those of single matrices."""
    alone = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        alone.append(args[0])
        return execute(*args, **kwargs)

    for module in ("lu", "solve", "cholesky"):
        monkeypatch.setattr(f"hetero_la.api.{module}.execute", counted)
    a = np.stack([np.eye(5), 2 * np.eye(5), _nearly(), 4 * np.eye(5)]).reshape(2, 2, 5, 5)
    for function in (hetero_la.inv, lambda a: hetero_la.solve(a, np.eye(5))):
        with pytest.warns(LinAlgWarning, match="ill-conditioned") as caught:
            x = function(a)
        assert len(caught) == 1
        assert np.allclose((x @ a).real, np.eye(5))
    with pytest.warns(LinAlgWarning) as caught:
        x = hetero_la.solve(a, np.eye(5), assume_a="pos")
    assert [w.filename for w in caught] == [__file__]
    assert np.allclose(x @ a, np.eye(5))
    a[1, 0, 4, 4] = 0
    with pytest.warns(LinAlgWarning, match="Diagonal number 5 is exactly zero"):
        lu, piv = hetero_la.lu_factor(a)
    assert np.array_equal(lu, a)
    assert (piv == np.arange(5)).all()
    for function in (hetero_la.cholesky, hetero_la.cho_factor):
        with pytest.raises(LinAlgError, match="5-th leading minor") as caught_error:
            function(a)
        assert caught_error.value.__notes__ == [
            "This concerns matrix (1, 0) of a stack of shape (2, 2)."
        ]
    assert len(alone) == 6
    assert np.allclose(hetero_la.det(a), [[1, 32], [0, 1024]])
    assert all(np.allclose(p @ lower @ u, a) for p, lower, u in [hetero_la.lu(a)])
    x, _, rank, _ = hetero_la.lstsq(a * 1e-300, np.eye(5) * 1e-300)
    assert rank.tolist() == [[5, 5], [4, 5]]
    assert np.allclose(x[1, 1] * 4, np.eye(5))
    assert len(alone) == 6


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Host arrays count as a GPU's, with LAPACK for batched routines; which were called."""
    calls: list[tuple[str, int]] = []

    def column_major(count: int, m: int, n: int, dtype: Any) -> Any:
        return np.empty((count, n, m), dtype).swapaxes(1, 2)

    def routine(name: str) -> Callable[[Any, int], Any]:
        def call(a: Any, columns: int) -> Any:
            calls.append((name, len(a)))
            count, m, n = a.shape
            factors, beside = (column_major(count, m, k, a.dtype) for k in (n, columns))
            factors[...] = a
            found = [getattr(lapack, name)(*pair) for pair in zip(factors, beside, strict=True)]
            vectors = {vector: np.array([f[vector, 0] for f in found]) for vector, _ in found[0]}
            return factors, beside, vectors

        return call

    monkeypatch.setattr(stack_runs, "is_device_array", lambda a: True)
    monkeypatch.setattr(stack_runs.functions, "out_of_memory", lambda: MemoryError)
    for name in stack_runs.functions.FACTORS:
        monkeypatch.setitem(stack_runs.functions.FACTORS, name, routine(name))
    return calls


def test_a_stack_on_a_gpu_is_one_call(one_gpu: list[tuple[str, int]]) -> None:
    a = random(60, 6).reshape(2, 5, 6, 6)
    for found, expected in [
        (hetero_la.lu_factor(a), scipy.linalg.lu_factor(a)),
        (hetero_la.lu(a), scipy.linalg.lu(a)),
        (hetero_la.det(a), scipy.linalg.det(a)),
        (hetero_la.cholesky(_definite(a)), np.linalg.cholesky(_definite(a)).swapaxes(2, 3)),
        (hetero_la.qr(a, mode="r"), [np.array([[scipy.linalg.qr(x, mode="r")[0] for x in y]
                                               for y in a])]),
        (hetero_la.qr(a), list(zip(*[scipy.linalg.qr(x) for y in a for x in y], strict=True))),
    ]:  # fmt: skip
        pairs = (
            zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        )
        for one, other in pairs:
            assert np.allclose(one, np.reshape(other, one.shape), atol=1e-12)
    assert one_gpu == [(name, 10) for name in ("lu", "lu", "lu", "cholesky", "qr", "qr_and_q")]
    for other in (a[..., :3], np.zeros((2, 513, 513))):  # for which there is no batched routine
        hetero_la.lu(other)
    assert len(one_gpu) == 6


def test_a_gpu_without_room_for_a_stack_takes_one_matrix_after_another(
    one_gpu: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(a: Any, columns: int) -> None:
        raise MemoryError

    monkeypatch.setitem(stack_runs.functions.FACTORS, "lu", full)
    a = random(30, 6).reshape(5, 6, 6)
    assert np.allclose(hetero_la.det(a), scipy.linalg.det(a))
    assert one_gpu == []
