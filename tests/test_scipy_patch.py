"""Code that calls SciPy's functions calls ours within `patch_scipy`, with the same results."""

from __future__ import annotations

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
import scipy.sparse
from numpy.linalg import LinAlgError

import hetero_la
from hetero_la import LUFactors
from hetero_la.scipy_patch import OURS, run_script
from tests.support import positive, random

THEIRS = {name: getattr(scipy.linalg, name) for name in OURS}
A, B = positive(40, "float64"), random(40, 2, "float64")


def ours(function: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a `lu_factor` is ours: it returns an object of ours."""
    return isinstance(function(*args, **kwargs), LUFactors)


@pytest.fixture(autouse=True)
def _all_is_as_before() -> Iterator[None]:
    yield
    assert {name: getattr(scipy.linalg, name) for name in OURS} == THEIRS


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


def test_least_squares_of_statsmodels() -> None:
    models = pytest.importorskip("statsmodels.regression.linear_model")
    x, y = random(50, 3, "float64"), random(50, 1, "float64", 1)[:, 0]

    def results() -> list[Any]:
        fits = [models.OLS(y, x).fit(method) for method in ("pinv", "qr")]
        fits.append(models.GLS(y, x, sigma=positive(50, "float64")).fit())
        return [value for fit in fits for value in (fit.params, fit.bse, fit.rsquared)]

    expected = results()
    with hetero_la.patch_scipy():
        assert vars(models)["cholesky"] is scipy.linalg.cholesky
        found = results()
    np.testing.assert_allclose(np.hstack(found), np.hstack(expected), rtol=1e-9)


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
