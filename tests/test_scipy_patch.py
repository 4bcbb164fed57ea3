"""Code that calls SciPy's functions calls ours within `patch_scipy`, with the same results."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.signal
import scipy.sparse
from numpy.linalg import LinAlgError
from scipy.linalg import LinAlgWarning

import hetero_la
from hetero_la import LUFactors
from hetero_la.api import host_arrays
from hetero_la.api.host_arrays import Movable, on_a_gpu
from hetero_la.api.qr import qr_factor
from hetero_la.execution.gpu_choice import HostProblem
from hetero_la.stand_ins import numpy_functions, tall_svd
from hetero_la.stand_ins.scipy_patch import OURS, run_script
from tests.support import positive, random

THEIRS = {name: getattr(scipy.linalg, name) for name in OURS}
NUMPY_S = {name: getattr(np.linalg, name) for name in numpy_functions.CALLS}
A, B = positive(40, "float64"), random(40, 2, "float64")


def ours(function: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a `lu_factor` is ours: it returns an object of ours."""
    return isinstance(function(*args, **kwargs), LUFactors)


@pytest.fixture(autouse=True)
def _all_is_as_before() -> Iterator[None]:
    yield
    assert {name: getattr(scipy.linalg, name) for name in OURS} == THEIRS
    assert {name: getattr(np.linalg, name) for name in NUMPY_S} == NUMPY_S


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that has imported SciPy's functions before."""
    module = ModuleType("some_user")
    exec("from scipy.linalg import lu_factor\nfrom scipy.linalg import solve as s\n", vars(module))
    monkeypatch.setitem(sys.modules, "some_user", module)
    return module


def test_modules_that_have_imported_it_before_and_within(user: ModuleType) -> None:
    with hetero_la.patch_scipy():
        assert ours(scipy.linalg.lu_factor, A)
        assert ours(user.lu_factor, A)
        assert user.s is scipy.linalg.solve
        assert user.s.__name__ == "solve"
        exec("from scipy.linalg import inv", vars(user))
        assert user.inv is not THEIRS["inv"]
        left = user.lu_factor
    assert (user.lu_factor, user.s, user.inv) == tuple(
        map(THEIRS.get, ("lu_factor", "solve", "inv"))
    )
    assert not ours(left, A)  # what was stored elsewhere calls SciPy's again


def test_blocks_are_nested_and_errors_end_them(user: ModuleType) -> None:
    with hetero_la.patch_scipy():
        with hetero_la.patch_scipy():
            assert ours(user.lu_factor, A)
        assert ours(user.lu_factor, A)
        with pytest.raises(KeyError), hetero_la.patch_scipy():
            raise KeyError
        assert ours(user.lu_factor, A)
    with pytest.raises(KeyError), hetero_la.patch_scipy():
        raise KeyError
    assert not ours(user.lu_factor, A)


def test_threads_enter_and_leave_in_any_order(user: ModuleType) -> None:
    wrong: list[int] = []

    def work() -> None:
        for number in range(20):
            with hetero_la.patch_scipy():
                if not ours(user.lu_factor, A[:3, :3]):
                    wrong.append(number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert user.lu_factor is THEIRS["lu_factor"]


CALLS = {
    "lu": (A,), "lu_factor": (A,), "solve": (A, B), "inv": (A,), "det": (A,), "cholesky": (A, True),
    "cho_factor": (A,), "qr": (A,), "lstsq": (A, B),
    "lu_solve": (THEIRS["lu_factor"](A), B), "cho_solve": (THEIRS["cho_factor"](A), B),
}  # fmt: skip


@pytest.mark.parametrize("name", OURS)
def test_each_is_ours_and_gives_scipy_s_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        called.append(name)
        return OURS[name](*args, **kwargs)

    expected = THEIRS[name](*CALLS[name])
    with hetero_la.patch_scipy():
        stand_in = getattr(scipy.linalg, name)
        for cell in stand_in.__closure__:
            if cell.cell_contents is OURS[name]:
                monkeypatch.setattr(cell, "cell_contents", counted)
        found = stand_in(*CALLS[name])
    assert called == [name]
    for one, other in zip(
        found if isinstance(found, tuple) else (found,),
        expected if isinstance(expected, tuple) else (expected,), strict=True,
    ):  # fmt: skip
        if name == "cho_factor" and np.ndim(one):  # the other triangle is undefined
            one, other = np.triu(one), np.triu(other)
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:Calling lu_factor with .* dtype=object:DeprecationWarning")
def test_arguments_that_are_not_ours_are_scipy_s() -> None:
    masked = np.ma.masked_greater(A, 1e9)
    sparse = scipy.sparse.eye_array(3).tocsr()
    objects = np.array([[Fraction(2), Fraction(1)], [Fraction(1), Fraction(3)]])
    with hetero_la.patch_scipy():
        for arguments, options in (((masked,), {}), ((A,), {"check_finite": True})):
            assert ours(scipy.linalg.lu_factor, *arguments, **options) is bool(options)
        with pytest.raises(TypeError, match="pivot"):  # an option that only ours has
            scipy.linalg.lu_factor(A, pivot="none")
        found = scipy.linalg.lu_factor(objects)
        with pytest.raises((TypeError, ValueError)) as error:
            scipy.linalg.lu_factor(sparse)
        with pytest.raises(LinAlgError, match="2-th leading minor"):
            scipy.linalg.cholesky(np.diag([1.0, -1.0]))
    assert type(found) is tuple
    assert np.array_equal(found[0], THEIRS["lu_factor"](objects)[0])
    with pytest.raises(error.type, match=re.escape(str(error.value))):
        THEIRS["lu_factor"](sparse)


def test_ours_call_scipy_s_own() -> None:
    """From whatever thread: else they would call themselves."""
    expected = hetero_la.lu_solve(hetero_la.lu_factor(A), B)
    many = np.stack([A] * 8)
    with hetero_la.patch_scipy():
        assert np.array_equal(scipy.linalg.lu_solve(scipy.linalg.lu_factor(A), B), expected)
        np.testing.assert_allclose(scipy.linalg.solve(many, B)[3], expected)
        np.testing.assert_allclose(hetero_la.cho_solve(hetero_la.cho_factor(A), B), expected)


# --- programs that use it


def test_gaussian_processes_and_ridge_regression_of_scikit_learn() -> None:
    process = pytest.importorskip("sklearn.gaussian_process")
    ridge = pytest.importorskip("sklearn.linear_model").Ridge
    x, y = random(60, 2, "float64"), random(60, 1, "float64", 1)[:, 0]
    kernel = process.kernels.RBF(2.0) + process.kernels.WhiteKernel(0.1)

    def results() -> list[Any]:
        model = process.GaussianProcessRegressor(kernel).fit(x, y)
        line = ridge(solver="cholesky").fit(x, y)
        wide = ridge(solver="cholesky").fit(random(8, 30, "float64"), y[:8])
        mean, deviation = model.predict(x[:7], return_std=True)
        return [mean, deviation, model.log_marginal_likelihood_value_, line.coef_, wide.coef_]

    expected = results()
    with hetero_la.patch_scipy():
        implementation = sys.modules["sklearn.gaussian_process._gpr"]
        assert vars(implementation)["cholesky"] is scipy.linalg.cholesky  # imported before
        found = results()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_least_squares_of_statsmodels(gpu: list[str]) -> None:
    models = pytest.importorskip("statsmodels.regression.linear_model")
    x, y = random(50, 3, "float64"), random(50, 1, "float64", 1)[:, 0]

    def results() -> list[Any]:
        fits = [models.OLS(y, x).fit(method) for method in ("pinv", "qr")]
        fits.append(models.GLS(y, x, sigma=positive(50, "float64")).fit())
        return [value for fit in fits for value in (fit.params, fit.bse, fit.rsquared)]

    expected = results()
    for numpy in (False, True):
        with hetero_la.patch_scipy(numpy=numpy):
            assert vars(models)["cholesky"] is scipy.linalg.cholesky
            found = results()
        np.testing.assert_allclose(np.hstack(found), np.hstack(expected), rtol=1e-9)
        used = {"svd", "singular_values", "pinv", "qr", "inv", "solve"}
        assert set(gpu) == (used if numpy else set())


SCRIPT = """
import signal, sys
from scipy.linalg import lu_factor
import beside
print(type(lu_factor([[1.0, 2.0], [3.0, 4.0]])).__name__, *sys.argv[1:], beside.NAME, __name__)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
sys.exit(7)
"""


def test_a_script_runs_as_by_python_itself(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("NAME = 'neighbour'")
    ran = subprocess.run(
        [sys.executable, "-m", "hetero_la", str(tmp_path / "script.py"), "lu", "--n=3"],
        capture_output=True, text=True, timeout=120, check=False,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert ran.stdout.splitlines() == ["LUFactors lu --n=3 neighbour __main__", "True"], ran.stderr
    assert ran.returncode == 7


def test_a_script_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_script("missing.py", [])
    assert capsys.readouterr().err == "hetero-la: there is no file missing.py\n"


# --- NumPy's functions


NUMPY_CALLS: dict[str, list[tuple[Any, ...]]] = {
    "solve": [(B,), (B[:, 0],)], "inv": [()], "det": [()], "slogdet": [()], "cholesky": [()],
    "qr": [(), ("reduced",), ("complete",)], "lstsq": [(B,), (B[:, 0],), (B, 1e-3)],
    "svd": [(False,), (True, False)], "pinv": [(), (0.2,)], "matrix_rank": [(), (7.0,)],
}  # fmt: skip


class _NoCopies:
    """Copies to a GPU that is the host."""

    to_gpu = staticmethod(lambda a: np.array(a, order="F"))
    to_gpu_later = staticmethod(lambda a: (np.array(a, order="F"), lambda: None))
    to_host = None  # nothing is on a GPU


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls that might go to a GPU do, and are computed on the host; their names."""
    called: list[str] = []
    name = ""

    def named(movable: Movable, args: tuple[()], given: dict[str, Any]) -> tuple[Any] | None:
        nonlocal name
        name = movable.function.__name__
        return on_a_gpu(movable, args, given)

    monkeypatch.setattr(numpy_functions, "on_a_gpu", named)
    monkeypatch.setattr(numpy_functions, "LEAST_ELEMENTS", 0)
    monkeypatch.setattr(host_arrays, "gpu_for", lambda asked: called.append(name) or 0)
    monkeypatch.setattr(host_arrays, "_copies", lambda gpu: _NoCopies)
    monkeypatch.setattr(host_arrays, "on_device_index", lambda gpu: contextlib.nullcontext())
    for module in (numpy_functions, host_arrays):
        monkeypatch.setattr(module, "gpus_possible", lambda: True)
    return called


@pytest.mark.parametrize("shape", [(40, 40), (40, 10), (10, 40), (40, 30)])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", NUMPY_CALLS)
def test_results_of_a_gpu_are_as_numpy_s(
    name: str, dtype: str, shape: tuple[int, int], gpu: list[str]
) -> None:
    if shape[0] != shape[1] and name not in ("qr", "lstsq", "svd", "pinv", "matrix_rank"):
        pytest.skip("of square matrices")
    a = positive(40, dtype) if shape == (40, 40) else random(*shape, dtype)
    for rest in NUMPY_CALLS[name]:
        more = [x[: len(a)].astype(dtype) if isinstance(x, np.ndarray) else x for x in rest]
        expected = getattr(np.linalg, name)(a, *more)
        with hetero_la.patch_scipy(numpy=True):
            found = getattr(np.linalg, name)(a, *more)
        assert type(found) is type(expected)
        both = [part if isinstance(part, tuple) else (part,) for part in (found, expected)]
        for one, other in zip(*both, strict=True):
            assert np.shape(one) == np.shape(other)
            assert np.result_type(one) == np.result_type(other)
            if np.ndim(one) == 2:
                assert one.flags.c_contiguous
                if name in ("qr", "svd"):  # signs of columns are free
                    one, other = np.abs(one), np.abs(other)
            np.testing.assert_allclose(
                one, other, rtol=1e-10, atol=1e-12 * np.max(np.abs(other), initial=1)
            )
        if name == "svd" and len(both[0]) == 3:
            u, values, vh = found
            np.testing.assert_allclose((u * values) @ vh, a, atol=1e-11 * values[0])
    by_values = name in ("svd", "pinv", "matrix_rank")  # of those with few columns or rows
    assert len(gpu) == (0 if by_values and min(shape) > 20 else len(NUMPY_CALLS[name]))


def test_what_is_not_for_a_gpu_is_numpy_s(gpu: list[str]) -> None:
    with hetero_la.patch_scipy(numpy=True):
        for a in (np.eye(3, dtype=int), np.eye(3, dtype="g"), [[1.0]], np.stack([A, A])[:, :3]):
            with contextlib.suppress(TypeError, LinAlgError):  # of long doubles, not square
                np.linalg.inv(a)
        np.linalg.inv(np.eye(3).view(np.matrix))
        np.linalg.qr(A, mode="raw")
        np.linalg.lstsq(A, B, rcond=-1)
        np.linalg.svd(B)  # with square U and V
        np.linalg.svd(A, False)  # of which LAPACK does no QR first
        with contextlib.suppress(LinAlgError):  # not square
            np.linalg.svd(B, False, True, True)
        np.linalg.pinv(B, rtol=1e-9)
        np.linalg.pinv(B, np.array(1e-9))
        np.linalg.matrix_rank(B, np.array(1e-9))
        assert not gpu
        with pytest.raises(LinAlgError, match="did not converge"):
            np.linalg.svd(np.full((4, 2), np.nan), False)
        with pytest.raises(LinAlgError, match="Singular matrix"):
            np.linalg.inv(np.zeros((3, 3)))
        assert np.isnan(np.linalg.solve(A * np.nan, B)).all()
        with pytest.raises(LinAlgError, match="must be square"):
            np.linalg.inv(np.ones((2, 3)))
        with pytest.raises(TypeError, match="missing"):
            np.linalg.solve(A)
        near = np.array([[1.0, 1.0], [1.0, 1 + 2.3e-16]])
        with pytest.warns(LinAlgWarning, match="ill-conditioned"):
            hetero_la.inv(near)
        np.linalg.inv(near)  # pytest makes errors of warnings
        assert gpu == ["svd", "inv", "solve", "inv"]


@pytest.mark.parametrize("shape", [(40, 10), (10, 40)])
def test_a_gpu_factors_the_longer_side(
    shape: tuple[int, int], gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[HostProblem] = []
    monkeypatch.setattr(host_arrays, "gpu_for", asked.append)  # which returns None
    with hetero_la.patch_scipy(numpy=True):
        np.linalg.svd(random(*shape, "float64"), full_matrices=False)
        np.linalg.svd(random(*shape, "float64"), compute_uv=False)
    assert [problem[:4] for problem, *_ in asked] == [("qr", 40, 10, 10), ("qr", 40, 10, 0)]
    assert [problem.results for problem in asked] == [510, 10]


@pytest.mark.parametrize("factor", [1e-305, 1e300])
def test_decompositions_near_the_ends_of_the_range(
    factor: float, gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def factored(a: Any, *args: Any) -> Any:
        assert 0.1 < abs(a).max() <= 1  # cuSOLVER's QR, unlike LAPACK's, scales nothing
        return qr_factor(a, *args)

    monkeypatch.setattr(tall_svd, "qr_factor", factored)
    a = random(40, 10, "float64")
    with hetero_la.patch_scipy(numpy=True):
        u, s, vh = np.linalg.svd(factor * a, full_matrices=False)
        inverse = np.linalg.pinv(factor * a)
        assert np.linalg.matrix_rank(factor * a) == 10
    np.testing.assert_allclose((u * (s / factor)) @ vh, a, atol=1e-12)
    np.testing.assert_allclose(inverse @ (factor * a), np.eye(10), atol=1e-12)
    assert len(gpu) == 3


def test_single_precision_is_computed_in_double(gpu: list[str]) -> None:
    """As NumPy does: 1e-6 of the largest is no zero for it."""
    a = np.diag(np.geomspace(1, 1e-6, 40)).astype("float32")
    with hetero_la.patch_scipy(numpy=True):
        rank = np.linalg.lstsq(a, np.ones(40, "float32"))[2]
        np.linalg.inv(a)
    assert rank == 40
    assert not gpu


def test_what_numpy_and_scipy_call_is_numpy_s(gpu: list[str]) -> None:
    with hetero_la.patch_scipy(numpy=True):
        np.linalg.matrix_power(A, -1)
        np.polyfit(np.arange(9.0), np.arange(9.0), 2)
        scipy.signal.place_poles(np.diag([1.0, 2.0]), np.eye(2), [-1.0, -2.0])
    assert not gpu


def test_numpy_s_functions_are_replaced_on_request_only(gpu: list[str]) -> None:
    theirs = np.linalg.inv
    with hetero_la.patch_scipy():
        assert np.linalg.inv is theirs
        with hetero_la.patch_scipy(numpy=True):
            assert np.linalg.inv is not theirs
            assert np.linalg.inv.__name__ == "inv"
            np.linalg.inv(A)
            hetero_la.inv(np.stack([A] * 3))  # which may call NumPy's
        assert np.linalg.inv is theirs
        np.linalg.inv(A)
    assert len(gpu) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_numpy_s_functions_on_a_gpu(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, went = 1500, []
    monkeypatch.setattr(
        numpy_functions, "on_a_gpu", lambda *given: went.append(found := on_a_gpu(*given)) or found
    )
    a, b = positive(n, dtype), random(n, 3, dtype)
    tall, limit = random(3000, 700, dtype), 1e3 * n * np.finfo(dtype).eps
    with hetero_la.patch_scipy(numpy=True):
        x, inverse, lower = np.linalg.solve(a, b), np.linalg.inv(a), np.linalg.cholesky(a)
        q, r = np.linalg.qr(tall)
        np.linalg.lstsq(tall, tall[:, :2])
        sign, log = np.linalg.slogdet(a)
        u, s, vh = np.linalg.svd(tall, full_matrices=False)
        wide = np.linalg.svd(tall.T, full_matrices=False)
        inverses = np.linalg.pinv(tall), np.linalg.pinv(tall.T)
        assert np.linalg.matrix_rank(tall) == 700
        assert all(went)
        assert len(went) == 11
        assert np.linalg.svd(a, full_matrices=False)[1][-1] > 0  # of a square matrix: NumPy's
        assert went[11:] == [None]
    for found, expected in (
        (a @ x, b), (a @ inverse, np.eye(n)), (lower @ lower.conj().T, a), (q @ r, tall),
        ((u * s) @ vh, tall), ((wide[0] * wide[1]) @ wide[2], tall.T), (wide[1], s),
        (inverses[0] @ tall, np.eye(700)), (tall.T @ inverses[1], np.eye(700)),
    ):  # fmt: skip
        assert np.abs(found - expected).max() < limit * np.abs(expected).max()
    assert sign == pytest.approx(1, abs=1e-3)
    assert log == pytest.approx(np.linalg.slogdet(a)[1], rel=1e-4)
