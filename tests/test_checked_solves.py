"""Solves of host matrices by workers with memory of their own: one run, and nothing after it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import distributed
import numpy as np
import pytest
import scipy.linalg
from numpy.linalg import LinAlgError
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import hetero_la
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.api import cholesky as cholesky_module
from hetero_la.api import solve as solve_module
from hetero_la.execution import executor_choice
from hetero_la.execution.report import Report
from hetero_la.planning import decisions
from hetero_la.planning.decisions import Problem, can_check
from hetero_la.planning.given import Given
from hetero_la.planning.options import Options
from hetero_la.planning.plan import Plan
from hetero_la.planning.planner import make_plan
from hetero_la.scheduler.placement.workers import WorkerInfo, calling_thread
from hetero_la.scheduler.recovery import restart
from hetero_la.scheduler.run.inline import run_in_order
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import solve_ratio
from hetero_la.tiles.arrays.errors import InsufficientMemoryError
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import KernelOptions
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import ArrayStorage
from tests.scheduler.recovery import die_at, local_cluster
from tests.support import DTYPES, covering, positive, random, random_order

N, NB = 5 * 16 + 3, 16
CHECKED = ["solve", "solve_nopivot", "solve_positive"]
CLUSTERS: dict[str, dict[str, Any]] = {
    "1 virtual gpu": {"virtual_gpus": 1, "cpus": 0},
    "3 virtual gpus": {"virtual_gpus": 3, "cpus": 1},
    "real gpus": {"gpus": max(gpu_count(), 1), "cpus": 1},
}


@pytest.fixture(scope="module")
def processes() -> Iterator[distributed.Client]:
    with local_cluster(2) as client:
        yield client


@pytest.fixture(
    scope="module",
    params=["processes", *(
        pytest.param(name, marks=[pytest.mark.gpu] if name == "real gpus" else [])
        for name in CLUSTERS
    )],
)  # fmt: skip
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "processes":
        yield request.getfixturevalue("processes")
        return
    with (
        hetero_la.Cluster(**CLUSTERS[request.param], blas_threads=1) as cluster,
        cluster.get_client() as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other processes count as those of other hosts."""
    monkeypatch.setattr(decisions, "_elsewhere", lambda worker: not worker.here)


@pytest.fixture
def nothing_follows(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Runs and tasks from now on; what the calling thread did of old is an error."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("the calling thread works on the matrix")

    for name in ("norm1", "refine", "factor_and_solve"):
        monkeypatch.setattr(solve_module, name, refused)
    for name in ("hermitian_norm1", "reciprocal_condition"):
        monkeypatch.setattr(cholesky_module, name, refused)
    monkeypatch.setattr("hetero_la.execution.result.reciprocal_condition", refused)
    counts = Counter[str]()

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    counted(distributed.Client, "submit")
    counted(restart, "run_local")
    counted(restart, "run_in_processes")
    return counts


#: Refinement ends at a backward error of eps, which is two units of rounding; its residual and that
#: of the test are rounded differently.
REFINED = 2.1


def right_hand_sides(nrhs: int, dtype: str = "float64") -> NDArray:
    found: NDArray = generate("randn", N, nrhs, dtype=dtype, seed=5)
    return found


def solve(a: NDArray, b: NDArray, client: Any, **options: Any) -> NDArray:
    found: NDArray = hetero_la.solve(a, b, client=client, nb=NB, **options)
    return found


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("nrhs", "dtype"), covering([None, 1, 5], DTYPES))
def test_x_is_as_accurate_as_ever(
    client: Any, nothing_follows: Counter[str], nrhs: int | None, dtype: str, transposed: bool
) -> None:
    transposed = transposed and np.dtype(dtype).kind == "f"
    a = random(N, dtype=dtype)
    b = right_hand_sides(nrhs or 1, dtype)
    b = b[:, 0] if nrhs is None else b
    x = solve(a, b, client, transposed=transposed)
    assert x.shape == b.shape
    assert x.dtype == dtype
    assert solve_ratio(a.T if transposed else a, x, b) < REFINED
    dominant = a + 2 * N * np.eye(N, dtype=dtype)
    lapack = solve_ratio(dominant, scipy.linalg.solve(dominant, b), b)
    x = solve(dominant, b, client, pivot="none")
    assert solve_ratio(dominant, x, b) < max(1.5 * lapack, REFINED)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(("nrhs", "dtype"), covering([1, 5], DTYPES))
def test_positive_definite_systems(
    client: Any, nothing_follows: Counter[str], nrhs: int, dtype: str, lower: bool
) -> None:
    a, b = positive(N, dtype), right_hand_sides(nrhs, dtype)
    half = np.tril(a) if lower else np.triu(a)
    x = solve(half, b, client, assume_a="pos", lower=lower)
    assert solve_ratio(a, x, b) < REFINED


def test_a_solve_has_the_tasks_of_a_factorization(
    client: Any, nothing_follows: Counter[str]
) -> None:
    a, b, c = random(N), random(N, 1), positive(N)
    hetero_la.lu_factor(a, client=client, nb=NB)
    factored = nothing_follows.copy()
    for call in (
        lambda: solve(a, b, client),
        lambda: solve(c, b, client, assume_a="pos"),
        lambda: solve(a, b, client, panel="gpu" if client.cluster.__class__ is hetero_la.Cluster
                      else "auto"),
    ):  # fmt: skip
        nothing_follows.clear()
        call()
        assert nothing_follows == factored


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_determinant_needs_no_factors(
    client: Any, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = random(N, dtype=dtype)
    stored, real = list[int](), ArrayStorage.store

    def store(self: ArrayStorage, *args: Any) -> None:
        stored.append(self.target.shape[1])
        real(self, *args)

    monkeypatch.setattr(ArrayStorage, "store", store)
    sign, logarithm = hetero_la.slogdet(a, client=client, nb=NB)
    assert set(stored) <= {0}  # there is no room for columns
    expected = np.linalg.slogdet(a.astype(np.promote_types(dtype, float)))
    assert sign == pytest.approx(expected[0], rel=1e-3)
    assert logarithm == pytest.approx(expected[1], rel=1e-4)
    assert hetero_la.det(np.ones((20, 20)), client=client, nb=NB) == 0


def test_the_factors_stay_where_they_are(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, real = list[int](), ArrayStorage.store

    def store(self: ArrayStorage, device: Any, start: int, *args: Any) -> None:
        if self.target.shape[1] == 1:
            stored.append(start)
        real(self, device, start, *args)

    monkeypatch.setattr(ArrayStorage, "store", store)
    solve(random(N), random(N, 1), client)
    if client.cluster.__class__ is not hetero_la.Cluster:  # nothing else has been sent
        assert set(stored) == {N}


def report_of(a: NDArray, b: NDArray, client: Any, **options: Any) -> Report:
    return hetero_la.api.solve.solve_with_report(a, b, client=client, nb=NB, **options)[1]


def test_what_is_not_checked(client: Any) -> None:
    a = random(N)
    assert report_of(a, random(N, 2), client).plan.checked
    for b, options in (
        (random(N, 17), {}),  # each takes memory for every tile column
        (random(N, 2), {"checkpoint": 2}),  # which would hold the matrix as well
        (random(N, 0), {}),
    ):
        plan = report_of(a, b, client, **options).plan
        assert not plan.checked
    with hetero_la.Cluster(cpus=2, gpus=0) as cluster:  # whose memory is the caller's
        assert not report_of(a, random(N, 2), cluster).plan.checked


def test_trouble_is_told(client: Any) -> None:
    a, b = random(60), np.ones(60)
    close = a.copy()
    close[:, 7] = close[:, 8] * (1 + 1e-15)
    with pytest.warns(scipy.linalg.LinAlgWarning, match="ill-conditioned"):
        solve(close, b, client)
    singular = a.copy()
    singular[:, 7] = 0
    with pytest.raises(LinAlgError, match="diagonal number 8"):
        solve(singular, b, client)
    c = positive(60)
    c[40, 40] = -1
    with pytest.raises(LinAlgError, match="41"):
        solve(c, b, client, assume_a="pos")
    nearly = np.diag(np.r_[np.ones(59), 1e-17])
    with pytest.warns(scipy.linalg.LinAlgWarning, match="ill-conditioned"):
        solve(nearly, b, client, assume_a="pos")
    a[3, 4] = np.nan
    with pytest.raises(ValueError, match="infs or NaNs"):
        solve(a, b, client)
    with pytest.warns(scipy.linalg.LinAlgWarning, match="ill-conditioned"):
        assert np.isnan(solve(a, b, client, check_finite=False)).any()


def test_norms_beyond_single_precision(client: Any) -> None:
    a = np.tril(np.full((30, 30), 2e37, "f4"))  # its first column sums up to 6e38
    x = solve(a, np.full(30, 1e30, "f4"), client)
    assert_allclose(x, [5e-8] + [0] * 29, rtol=1e-5, atol=1e-13)


def test_conditions_are_within_three(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[float]()
    for module in (solve_module, cholesky_module):
        monkeypatch.setattr(module, "warn_ill_conditioned", lambda rcond, _: found.append(rcond))
    a, c = random(70, dtype="complex128"), positive(70)
    solve(a, np.ones(70), client)
    solve(c, np.ones(70), client, assume_a="pos")
    for rcond, matrix in zip(found, (a, c), strict=True):
        assert 0.999 < rcond * np.linalg.cond(matrix, 1) < 3  # the estimate is of a lower bound


def test_a_matrix_that_has_no_room_twice(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = executor_choice.check_memory

    def short_of_memory(plan: Plan, *args: Any, **kwargs: Any) -> None:
        if plan.checked:
            raise InsufficientMemoryError("not enough")
        real(plan, *args, **kwargs)

    monkeypatch.setattr(executor_choice, "check_memory", short_of_memory)
    a, b = random(N), right_hand_sides(1)
    assert not report_of(a, b, client).plan.checked
    assert solve_ratio(a, solve(a, b, client), b) < REFINED


def test_growth_that_one_step_does_not_make_good(client: Any) -> None:
    a = generate("gfpp", 75, 75)
    b = np.ones((75, 1))
    assert solve_ratio(a, solve(a, b, client), b) < REFINED


def test_more_steps_are_taken_where_they_help(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero_la.execution.result.Result.refined", False)
    a, b = random(N), right_hand_sides(1)
    x, report = hetero_la.api.solve.solve_with_report(a, b, client=client, nb=NB)
    assert not report.plan.checked
    assert solve_ratio(a, x, b) < REFINED


@pytest.mark.parametrize(("kernel", "count"), [("getrf", 2), ("trsv_uc", 1), ("residual", 2)])
def test_a_worker_that_is_lost_in_between(
    processes: distributed.Client, kernel: str, count: int
) -> None:
    a, b = random(N), right_hand_sides(1)
    plan = report_of(a, b, processes).plan
    column = plan.layout.nt if kernel == "residual" else 0
    owner = plan.workers[plan.distribution.owners[column]]
    processes.run(die_at, kernel, count, workers=[owner.address])
    x, report = hetero_la.api.solve.solve_with_report(a, b, client=processes, nb=NB)
    assert len(report.timing.losses) == 1
    assert solve_ratio(a, x, b) < REFINED
    processes.wait_for_workers(2, timeout=30)


def test_who_does_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    caller = calling_thread()
    thread, process = (
        WorkerInfo("cpu0", "cpu", "tcp://0", caller.pid + i, caller.host) for i in (0, 1)
    )
    far = WorkerInfo("cpu0", "cpu", "tcp://0", 1, f"{caller.host}-2")
    for routine, nrhs in (("solve", 1), ("solve_positive", 1), ("lu", 0)):
        problem = Problem(routine, 80, 80, nrhs, np.dtype("f8"))
        assert not can_check(problem, Options(), [thread])
        assert can_check(problem, Options(), [process]) == (routine == "lu")
        assert can_check(problem, Options(), [process, far])
        assert can_check(problem, Options(), virtual(1))


# --- graphs and programs


@pytest.mark.parametrize("routine", CHECKED)
@pytest.mark.parametrize(("shape", "seed"), covering([(1, 1), (37, 3), (32, 1)], [0, 1]))
def test_any_order_finds_the_same(routine: str, shape: tuple[int, int], seed: int) -> None:
    n, nrhs = shape
    a, b = positive(n), random(n, nrhs, seed=1)
    build = ROUTINES[routine].checked_tasks
    assert build is not None
    graph, found = build(TileLayout(n, n, 8, nrhs)), []
    for order in (range(len(graph.tasks)), random_order(graph, seed)):
        array = np.asfortranarray(np.hstack([a, b]))
        values = run_in_order(graph, order, array, CpuDevice(), KernelOptions())
        exact = np.abs(np.linalg.inv(a)).sum(axis=0).max()
        assert 0.8 * exact < values["inverse_norm", 0][0] <= exact * 1.001
        found.append(array)
    assert np.array_equal(*found)
    assert_allclose(found[0][:, n:], np.linalg.solve(a, b), rtol=1e-10)


def virtual(gpus: int) -> tuple[WorkerInfo, ...]:
    caller = calling_thread()
    return *(
        WorkerInfo(f"gpu{i}", "gpu", f"inproc://{i}", caller.pid, caller.host, virtual=True)
        for i in range(gpus)
    ), WorkerInfo("cpu0", "cpu", "inproc://cpu", caller.pid, caller.host)  # fmt: skip


@pytest.mark.parametrize("routine", CHECKED)
@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.exhaustive
def test_programs_end(routine: str, panel: str, on_host: bool) -> None:
    """A simulation that does not end raises an error."""
    for n, gpus, lookahead in itertools.product((8, 29, 100), (1, 2, 3), (0, 1, 2)):
        problem = Problem(routine, n, n, 1, np.dtype("f8"))
        options = Options(nb=8, panel=panel, lookahead=lookahead)  # type: ignore[arg-type]
        plan = make_plan(problem, options, virtual(gpus), Given(on_host), checked=True)
        assert plan.checked
        assert plan.simulate().makespan > 0
