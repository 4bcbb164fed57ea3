"""Arrays on the host that a GPU of the calling thread may compute with."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from distributed import Client
from numpy.typing import NDArray

import hetero_la
from hetero_la.api import host_arrays
from hetero_la.execution import execute, gpu_choice
from hetero_la.execution.gpu_choice import HostProblem, gpu_for, host_pays
from hetero_la.mixed import prediction
from hetero_la.planning import routes
from hetero_la.planning.decisions import Problem
from hetero_la.planning.routes import copies_seconds, gpu_routes
from hetero_la.testing.residuals import RATIO_LIMIT, lstsq_ratio
from hetero_la.tiles.arrays.transfer import array_module, gpu_count, to_host
from hetero_la.tiles.kernels.gpu_libraries import finite as finite_tests
from hetero_la.tiles.storage.host_copies import HostCopies
from tests.support import CLOSE, DTYPES, assert_close, random

N = 200  # enough elements for a GPU to be considered


class CopiesOnHost:
    """Copies to a GPU that is the host; they are counted."""

    unfilled = np.nan  # what is where a copy comes later

    def __init__(self) -> None:
        self.uploads: list[NDArray] = []

    def to_gpu(self, a: NDArray) -> NDArray:
        self.uploads.append(a)
        return a.copy(order="A")

    def to_gpu_later(self, a: NDArray) -> tuple[NDArray, Callable[[], None]]:
        """What is read before shows."""
        there = np.full_like(a, self.unfilled, order="A")
        return there, lambda: np.copyto(there, self.to_gpu(a))

    def to_host(self, a: NDArray) -> NDArray:
        return a.copy(order="A")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[CopiesOnHost]:
    """Everything for which a GPU is considered goes there."""
    made = CopiesOnHost()
    monkeypatch.setattr(host_arrays, "gpus_possible", lambda: True)
    monkeypatch.setattr(host_arrays, "gpu_for", lambda asked: 0)
    monkeypatch.setattr(host_arrays, "_copies", lambda gpu: made)
    monkeypatch.setattr(host_arrays, "on_device_index", lambda gpu: contextlib.nullcontext())
    monkeypatch.setattr(host_arrays, "FactorsOnGpu", lambda *arrays: None)
    return made


def positive(dtype: str = "float64") -> NDArray:
    a = random(N, N, dtype)
    return a @ a.conj().T + N * np.eye(N, dtype=dtype)


def lower(a: Any) -> Any:
    """The triangle that is defined."""
    return array_module(a).tril(a)


def parts(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def by_columns(a: Any) -> Any:
    return a.copy(order="F")


CALLS: dict[str, Callable[[NDArray, NDArray], Any]] = {
    "lu_factor": lambda a, b: tuple(hetero_la.lu_factor(a)),
    "cho_factor": lambda a, b: lower(hetero_la.cho_factor(positive(a.dtype.name), lower=True)[0]),
    "cholesky": lambda a, b: hetero_la.cholesky(positive(a.dtype.name)),
    "qr": lambda a, b: hetero_la.qr(a, mode="economic"),
    "qr_factor": lambda a, b: tuple(hetero_la.qr_factor(a)),
    "solve": lambda a, b: hetero_la.solve(a, b),
    "solve positive": lambda a, b: hetero_la.solve(positive(a.dtype.name), b, assume_a="pos"),
    "by name": lambda a, b: hetero_la.solve(a=a, b=b[:, 0]),
    "inv": lambda a, b: hetero_la.inv(a),
    "det": lambda a, b: hetero_la.det(a / 10),
    "slogdet": lambda a, b: hetero_la.slogdet(a),
    "lu": lambda a, b: hetero_la.lu(a),
    "lu, permuted": lambda a, b: hetero_la.lu(a, permute_l=True),
    "lstsq": lambda a, b: hetero_la.lstsq(a[:, :190], b),
    "lstsq, wide": lambda a, b: hetero_la.lstsq(a[:190], b[:190, 0], lapack_driver="gelss"),
    "lstsq, full rank": lambda a, b: hetero_la.lstsq(a[:, :190], b, lapack_driver="gels")[:3],
    "lstsq, shortest": lambda a, b: hetero_la.lstsq(a[:190], b[:190], lapack_driver="gels")[:3],
    "lstsq_with_report": lambda a, b: hetero_la.lstsq_with_report(a, b)[:4],
    "solve_with_report": lambda a, b: hetero_la.solve_with_report(a, b)[:1],
}
#: Those that do not test for NaN, and may overwrite their arrays.
UNCHECKED: dict[str, Callable[[NDArray, NDArray], Any]] = {
    "cho_factor, one triangle": lambda a, b: lower(hetero_la.cho_factor(
        lower(positive(a.dtype.name)), lower=True, check_finite=False
    )[0]),
    "cholesky, overwritten": lambda a, b: hetero_la.cholesky(
        by_columns(positive(a.dtype.name)), overwrite_a=True, check_finite=False
    ),
    "solve, overwritten": lambda a, b: hetero_la.solve(
        by_columns(a), b.copy(), overwrite_a=True, overwrite_b=True, check_finite=False
    ),
    "det, overwritten": lambda a, b: hetero_la.det(
        by_columns(a / 10), overwrite_a=True, check_finite=False
    ),
}  # fmt: skip
EVERY_CALL = {**CALLS, **UNCHECKED}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("unfilled", "late"), [(np.nan, True), (1e30, True), (np.nan, False)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", EVERY_CALL)
def test_results_are_those_of_the_host(
    call: str, dtype: str, unfilled: float, late: bool, copies: CopiesOnHost,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    a, b = random(N, N, dtype), random(N, 3, dtype, seed=1)
    monkeypatch.setattr(copies, "unfilled", unfilled)
    if not late:
        monkeypatch.setattr(host_arrays, "_CHECKED_LATE", 100)
    found = EVERY_CALL[call](a, b)
    assert copies.uploads
    monkeypatch.setattr(host_arrays, "gpu_for", lambda asked: None)
    expected = EVERY_CALL[call](a, b)
    assert type(found) is type(expected)
    for one, other in zip(parts(found), parts(expected), strict=True):
        assert_close(one, other)


def test_mixed_precision_reads_the_matrix_before_the_run(
    copies: CopiesOnHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "pays", lambda problem, gpu: True)
    a, b = random(N), random(N, 2, seed=1)
    x, report = hetero_la.solve_with_report(a, b, precision="mixed")
    assert report.mixed is not None
    assert report.mixed.factored == "float32"
    assert len(copies.uploads) == 2
    assert_close(x, scipy.linalg.solve(a, b))


@pytest.mark.parametrize(
    "call",
    [lambda a: hetero_la.solve(a + 99 * np.eye(N), a[0], assume_a="upper triangular"),
     lambda a: hetero_la.solve(a, a[0], assume_a="her"),
     lambda a: hetero_la.solve(a + N * np.eye(N), a[0], pivot="none"),
     lambda a: hetero_la.qr(a, pivoting=True),
     lambda a: hetero_la.lu_factor(a, nb=50),
     lambda a: hetero_la.lu_factor(a[:20]),
     lambda a: hetero_la.lu_factor(a.tolist()),
     lambda a: hetero_la.inv(a, assume_a="sym"),
     lambda a: hetero_la.lstsq(a, a[0], lapack_driver="gelsy")],
    ids=["triangle", "Hermitian", "no pivots", "pivoted QR", "tiles", "few", "a list", "symmetric",
         "gelsy"],
)  # fmt: skip
def test_what_stays_on_the_host(call: Callable[[NDArray], Any], copies: CopiesOnHost) -> None:
    call(random(N))
    assert not copies.uploads


def test_the_time_of_a_run_has_its_copies(
    copies: CopiesOnHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, seconds = random(N), 0.05

    def slowly(given: NDArray) -> NDArray:
        time.sleep(seconds)
        copies.uploads.append(given)
        return given.copy(order="A")

    monkeypatch.setattr(copies, "to_gpu", slowly)
    monkeypatch.setattr(host_arrays, "_home", lambda found, to: time.sleep(2 * seconds) or found)
    for call in (lambda: hetero_la.lu_factor(a), lambda: hetero_la.solve_with_report(a, a[0])[1]):
        timing = call().timing
        assert seconds * len(copies.uploads) <= timing.load < timing.seconds
        assert 2 * seconds <= timing.store <= timing.seconds - timing.load
        assert timing.factor < timing.seconds - timing.load
        copies.uploads.clear()


def test_a_client_s_workers_are_used(copies: CopiesOnHost) -> None:
    with hetero_la.Cluster(cpus=1, gpus=0) as cluster, cluster.get_client() as client:
        hetero_la.lu_factor(random(N), client=client)
    assert not copies.uploads


def test_other_types_are_cast_before_they_travel(copies: CopiesOnHost) -> None:
    a = random(N)
    for given in (a.astype(">f8"), np.rint(8 * a).astype(np.int32), a.astype(np.longdouble)):
        lu, _ = hetero_la.lu_factor(given)
        assert copies.uploads.pop().dtype == lu.dtype == np.float64
        np.testing.assert_allclose(lu, scipy.linalg.lu_factor(given)[0])


def test_errors_are_the_same(copies: CopiesOnHost) -> None:
    a, b = random(N), random(N, 3)
    with pytest.raises(ValueError, match="infs or NaNs"):
        hetero_la.lu_factor(np.where(a > a.mean(), np.nan, a))
    with pytest.raises(ValueError, match="Expected a square matrix"):
        hetero_la.solve(a[:-1], b[:-1])
    with pytest.raises(ValueError, match="Shape mismatch"):
        hetero_la.solve(a, b[:-1])
    with pytest.raises(TypeError, match="missing"):
        hetero_la.solve(a)
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        hetero_la.solve(np.ones((N, N)), b)
    with pytest.raises(ValueError, match="b: array must not contain infs or NaNs"):
        hetero_la.solve(a, b * np.inf)


def test_what_is_not_finite_comes_before_what_came_of_it(
    copies: CopiesOnHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = positive()
    bad[7, 5] = bad[5, 7] = np.nan
    monkeypatch.setattr(finite_tests, "is_device_array", lambda array: True)
    monkeypatch.setattr(
        finite_tests, "_holds_not_finite_there", lambda array: not np.isfinite(array).all()
    )
    with pytest.raises(ValueError, match="a: array must not contain infs or NaNs") as error:
        hetero_la.cho_factor(bad)
    assert error.value.__cause__ is None
    with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
        hetero_la.cho_factor(-positive())
    both = {"a": random(N) * np.nan, "b": random(N, 3) * np.nan}
    with pytest.raises(ValueError, match="a: array must not contain infs or NaNs"):
        hetero_la.solve(**both)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [N, 700])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_not_finite_is_refused(
    call: str, bad: float, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_arrays, "gpu_for", lambda asked: 0)
    spd = np.asfortranarray(random(n) @ random(n).T + n * np.eye(n))
    monkeypatch.setattr(f"{__name__}.positive", lambda dtype="float64": with_bad(spd))

    def with_bad(a: NDArray) -> NDArray:
        a = a.copy(order="F")
        a[7, 5] = a[5, 7] = bad
        return a

    with warnings.catch_warnings(record=True) as issued, pytest.raises(ValueError, match="NaNs"):
        CALLS[call](with_bad(random(n)), random(n, 3, seed=1))
    assert not issued


@pytest.mark.parametrize("finite", [True, False])
def test_warnings_are_for_finite_matrices_and_the_caller_s_line(
    copies: CopiesOnHost, finite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not finite is seen while the GPU computes, and its condition is no news."""
    a, b = random(N), random(N, 3)
    a[:, 7] = a[:, 8] * (1 + 1e-15)
    a[5, 7] = 0 if finite else np.nan
    a[5, 8] = 0
    monkeypatch.setattr(finite_tests, "is_device_array", lambda array: array.size > N * 3)
    monkeypatch.setattr(finite_tests, "_holds_not_finite_there", lambda array: not finite)
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        if finite:
            hetero_la.solve(a, b)
        else:
            with pytest.raises(ValueError, match="a: array must not contain infs or NaNs"):
                hetero_la.solve(a, b)
    assert len(issued) == finite
    assert all(one.filename == __file__ for one in issued)


def test_without_memory_on_the_gpu_the_host_computes(
    copies: CopiesOnHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(a: NDArray) -> NDArray:
        raise MemoryError("the GPU is full")

    monkeypatch.setattr(copies, "to_gpu_later", fail)
    a = random(N)
    assert np.array_equal(hetero_la.lu_factor(a)[0], scipy.linalg.lu_factor(a)[0])


# --- the choice


def asked(n: int, routine: str = "lu", dtype: str = "float64") -> HostProblem:
    return HostProblem(Problem(routine, n, n, 0, np.dtype(dtype)), n * n)


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A nominal GPU, which no call uses."""
    monkeypatch.setattr(gpu_choice, "gpu_count", lambda: 1)
    monkeypatch.setattr(gpu_choice, "current_gpu", lambda: 0)
    monkeypatch.setattr(routes, "current_profile", lambda: None)
    monkeypatch.setattr(gpu_choice, "fits", lambda size, gpu: True)
    gpu_choice._considered.cache_clear()
    yield
    gpu_choice._considered.cache_clear()


def test_a_gpu_takes_what_it_is_predicted_to_do_sooner(a_gpu: None) -> None:
    for routine in ("lu", "cholesky", "solve", "explicit_q", "inverse"):
        assert gpu_for(asked(64, routine)) is None
        assert gpu_for(asked(4096, routine)) == 0
    assert gpu_for(asked(60000)) is None  # overlapped with its copies, on a cluster


def test_the_copies_count(a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    few = asked(512)
    computing = min(gpu_routes(few.problem, 0).values())
    copies = copies_seconds(few.problem, few.results)
    assert copies > 2 * 512**2 * 8 / 20e9
    for seconds, expected in ((computing + copies / 2, None), (computing + 1.01 * copies, 0)):
        gpu_choice._considered.cache_clear()
        monkeypatch.setattr(gpu_choice, "host_routes", lambda problem, s=seconds: {"tasks": s})
        assert gpu_for(few) == expected


def test_singular_values_count(a_gpu: None) -> None:
    """They take far longer than the rest, on the host as on a GPU."""
    for n, there in ((128, None), (4096, 0)):
        assert gpu_for(asked(n, "qr")._replace(values=True)) == there
    for kind in ("cpu", "gpu"):
        single, double = (routes.values_seconds(4096, dtype, kind) for dtype in "fd")
        assert 1 < double / single <= 2


def test_a_cluster_and_a_trace_have_priority(a_gpu: None) -> None:
    with hetero_la.trace():
        assert gpu_for(asked(4096)) is None
    with hetero_la.Cluster(cpus=1, gpus=0) as cluster, Client(cluster):
        assert gpu_for(asked(4096)) is None
    assert gpu_for(asked(4096)) == 0


def test_without_a_gpu_the_host_computes() -> None:
    if not gpu_count():
        assert gpu_for(asked(4096)) is None


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["C", "F", "strided"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_gives_the_results_and_keeps_the_factors(dtype: str, order: str) -> None:
    n = 1300
    a, b = random(n, n, dtype), random(n, 3, dtype, seed=1)
    given = np.repeat(a, 2, axis=0)[::2] if order == "strided" else np.array(a, order=order)
    eps = 30 * n * np.finfo(dtype).eps

    def check(matrix: NDArray, x: NDArray, of: NDArray) -> None:
        assert isinstance(x, np.ndarray)
        assert np.abs(matrix @ x - of).max() < eps * np.abs(matrix).max() * np.abs(x).max()

    factors = hetero_la.lu_factor(given)
    assert factors._kept.there
    assert np.array_equal(factors.piv, scipy.linalg.lu_factor(a)[1])
    for trans, matrix in enumerate((a, a.T, a.conj().T)):
        check(matrix, factors.solve(b, trans), b)
        check(matrix, factors.solve(b[:, 0], trans), b[:, 0])
    factors.release()
    check(a, factors.solve(b), b)
    spd = a @ a.conj().T + n * np.eye(n, dtype=dtype)
    for lower in (False, True):
        check(spd, hetero_la.cho_factor(spd, lower=lower).solve(b), b)
    check(spd, hetero_la.solve(spd, b, assume_a="pos"), b)
    check(a, hetero_la.qr_factor(given).solve(b), b)
    check(a, hetero_la.solve(given, b), b)
    q, r = hetero_la.qr(given, mode="economic")
    check(q, r, a)
    p, lower, upper = hetero_la.lu(given)
    check(p @ lower, upper, a)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(1400, 700), (700, 1400)])
def test_a_gpu_solves_by_least_squares(m: int, n: int, dtype: str) -> None:
    a, b = random(m, n, dtype), random(m, 3, dtype, seed=1)
    expected = scipy.linalg.lstsq(a, b)
    for driver in ("gelsd", "gels"):
        x, residues, rank, s = hetero_la.lstsq(a, b, lapack_driver=driver)  # type: ignore[call-overload]
        assert type(x) is type(residues) is np.ndarray
        assert rank == 700
        assert lstsq_ratio(a, x, b) < RATIO_LIMIT
        assert residues.shape == expected[1].shape
        assert (s is None) == (driver == "gels")
        if s is not None:
            assert np.abs(s - expected[3]).max() < 100 * np.finfo(dtype).eps * s[0]


@pytest.mark.gpu
@pytest.mark.parametrize("n", [700, 1600])  # copied by the driver, and piece by piece
def test_results_that_somebody_has_stay(n: int) -> None:
    first = [random(n, n, seed=seed) for seed in range(3)]
    found = [hetero_la.qr(a, mode="economic") for a in first]
    for a, (q, r) in zip(first, found, strict=True):
        assert_close(q @ r, a)
    kept = found[0][0][: n // 2]
    expected = kept.copy()
    del found
    for a in first:
        hetero_la.qr(a + 1, mode="economic")
    assert np.array_equal(kept, expected)


def test_small_matrices_are_quicker_on_the_host() -> None:
    for routine, n in (("lu", 10), ("solve", 50), ("cholesky", 20), ("inverse", 100)):
        problem = Problem(routine, n, n, n if routine == "inverse" else 1, np.dtype(float))
        assert host_pays(HostProblem(problem, n * n), 0)
    assert not host_pays(HostProblem(Problem("lu", 2000, 2000, 0, np.dtype(float)), 0), 0)


def test_a_recorder_and_a_client_want_the_gpu() -> None:
    few = HostProblem(Problem("lu", 10, 10, 0, np.dtype(float)), 100)
    with hetero_la.trace():
        assert not host_pays(few, 0)
    with hetero_la.Cluster(cpus=1, gpus=0) as cluster, cluster.get_client():
        assert not host_pays(few, 0)
    assert host_pays(few, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("tasks", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", EVERY_CALL)
def test_a_matrix_is_copied_before_it_is_read(
    call: str, dtype: str, tasks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[NDArray] = []

    def later(copies: HostCopies, a: NDArray) -> tuple[Any, Callable[[], None]]:
        there = copies.to_gpu(a)
        there.fill(np.nan)

        def fill() -> None:
            filled.append(a)
            there.set(a)

        return there, fill

    a, b = random(N, N, dtype), random(N, 3, dtype, seed=1)
    monkeypatch.setattr(host_arrays, "gpu_for", lambda asked: None)
    expected = EVERY_CALL[call](a, b)
    monkeypatch.setattr(host_arrays, "gpu_for", lambda asked: 0)
    monkeypatch.setattr(HostCopies, "to_gpu_later", later)
    if tasks:
        monkeypatch.setattr(execute, "takes_one_call", lambda *args, **kwargs: False)
    found = EVERY_CALL[call](a, b)
    assert filled
    for one, other in zip(parts(found), parts(expected), strict=True):
        assert_close(one, other, limit=CLOSE[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", CALLS)
def test_small_arrays_of_a_gpu(
    call: str, dtype: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are the same, of the same types, whether the host computes them or the GPU."""
    import cupy

    asked: list[HostProblem] = []

    def pays(problem: HostProblem, gpu: int) -> bool:
        asked.append(problem)
        return True

    host = random(N, N, dtype), random(N, 3, dtype, seed=1)
    a, b = (cupy.asarray(x, order=order) for x in host)
    monkeypatch.setattr(f"{__name__}.positive", lambda name="float64": cupy.asarray(
        host[0] @ host[0].conj().T + N * np.eye(N, dtype=dtype), order=order
    ))  # fmt: skip
    monkeypatch.setattr(host_arrays, "host_pays", pays)
    found = CALLS[call](a, b)
    assert asked
    monkeypatch.setattr(host_arrays, "host_pays", lambda problem, gpu: False)
    expected = CALLS[call](a, b)
    assert type(found) is type(expected)
    for one, other in zip(parts(found), parts(expected), strict=True):
        assert type(one) is type(other), (type(one), type(other))
        assert_close(to_host(one), to_host(other), limit=CLOSE[dtype])  # det is always double


@pytest.mark.gpu
def test_factors_that_the_host_has_found_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    monkeypatch.setattr(host_arrays, "host_pays", lambda problem, gpu: True)
    a, b = cupy.asarray(positive(), order="F"), cupy.ones(N)
    for factor in (hetero_la.lu_factor, hetero_la.cho_factor, hetero_la.qr_factor):
        found = factor(a)
        assert isinstance(found[0], cupy.ndarray)
        assert found.plan.workers[0].kind == "cpu"
        x = found.solve(b)
        assert isinstance(x, cupy.ndarray)
        assert float(abs(a @ x - b).max()) < 1e-10
    with pytest.raises(ValueError, match="must not contain infs or NaNs"):
        hetero_la.lu_factor(a * np.nan)
    with pytest.raises(TypeError, match="must be on the same device"):
        hetero_la.solve(a, np.ones(N))
    with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
        hetero_la.cho_factor(-a)
