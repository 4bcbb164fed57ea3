"""Reports of accuracy: against exact values, LAPACK's estimates, and definitions."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import dask.array as da
import numpy as np
import pytest
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning, get_lapack_funcs

import hetero_la
from hetero_la import AccuracyReport, Cluster, cho_factor, lstsq, lu_factor, qr_factor, solve
from hetero_la.accuracy import energy
from hetero_la.accuracy.energy import nvml_counters, rapl_counters, start_meter
from hetero_la.accuracy.factored import CholeskyFactored, LUFactored, QRFactored
from hetero_la.accuracy.histogram import Histogram
from hetero_la.accuracy.residuals import componentwise_errors, residual_and_moduli
from hetero_la.cli.main import main
from hetero_la.io.files import write_matrix
from hetero_la.numerics.conditioning import estimate_norm1
from hetero_la.testing.matrices import generate
from hetero_la.tiles.kernels.cpu import cholesky as cholesky_kernels
from hetero_la.tiles.kernels.cpu import lu as lu_kernels
from tests.command_line import in_own_folder  # noqa: F401  (a fixture)
from tests.support import DTYPES, host, positive, random

N, NB = 60, 16
#: How far LAPACK's estimates of norms are from the norms, nearly always.
USUAL = 3.0


def wide(a: NDArray) -> NDArray:
    """The same numbers in the longest floats that there are."""
    return a.astype(np.clongdouble if a.dtype.kind == "c" else np.longdouble)


def known(kind: str, dtype: str, cond: float, nrhs: int = 1) -> tuple[NDArray, NDArray, NDArray]:
    """A matrix of known condition, right-hand sides, and the exact solution for these."""
    a = generate(kind, N, dtype=dtype, cond=cond, seed=3)
    b = random(N, nrhs, dtype, seed=4)
    exact = np.linalg.solve(a.astype("complex128"), b.astype("complex128"))
    for _ in range(3):  # refinement with longer residuals
        left = wide(b) - wide(a) @ wide(exact)
        exact = exact + np.linalg.solve(a.astype("complex128"), left.astype("complex128"))
    return a, b, exact


def exact_rcond(a: NDArray) -> float:
    return float(1 / np.linalg.cond(a.astype("complex128"), 1))


def error_of(x: NDArray, exact: NDArray) -> float:
    return float((abs(x - exact).max(axis=0) / abs(exact).max(axis=0)).max())


def frobenius(a: NDArray) -> float:
    return float(np.linalg.norm(a.astype("complex128")))


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_componentwise_errors_are_those_of_the_definition(
    dtype: str, order: Any, hermitian: bool
) -> None:
    full = positive(300, dtype) if hermitian else random(300, dtype=dtype)
    a = np.asarray(np.tril(full) if hermitian else full, order=order)
    b = random(300, 2, dtype, seed=1)
    x = (np.linalg.solve(full, b) * (1 + 0.01 * random(300, 2, "float32", seed=2))).astype(dtype)
    found = componentwise_errors(residual_and_moduli(a, x, b, hermitian=hermitian))
    left = abs(wide(b) - wide(full) @ wide(x))
    eps = float(np.finfo(dtype).eps)
    expected = left / (abs(wide(full)) @ abs(wide(x)) + abs(wide(b)))
    assert found == pytest.approx(expected.astype(float), rel=1e-2, abs=300 * eps)
    assert found.max() == pytest.approx(float(expected.max()), rel=1e-2)


def test_entries_that_are_zero_count_as_exact() -> None:
    _, report = solve(np.eye(3), [1.0, 0.0, 0.0], report=True)
    assert report.componentwise_error == 0
    assert report.backward_error == 0


@pytest.mark.parametrize("options", [{}, {"nb": NB}, {"transposed": True}], ids=str)
@pytest.mark.parametrize("cond", [10.0, 1e4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_and_condition_of_solutions(dtype: str, cond: float, options: Any) -> None:
    a, b, exact = known("svd", dtype, cond)
    if options.get("transposed") and np.dtype(dtype).kind == "c":
        pytest.skip("SciPy refuses it")
    given = a.T if options.get("transposed") else a
    x, report = solve(given, b, report=True, **options)
    error = error_of(x, exact)
    assert error <= report.forward_error <= 100 * N * max(error, np.finfo(dtype).eps * cond)
    assert exact_rcond(a) / 1.01 <= report.rcond <= USUAL * exact_rcond(a)
    (gesvx,) = get_lapack_funcs(("gesvx",), (a,))
    *_, rcond, ferr, berr, _ = gesvx(a, b)
    assert report.rcond == pytest.approx(rcond, rel=0.5)
    assert ferr[0] / 2 <= report.forward_error <= 2 * ferr[0]
    assert report.componentwise_error <= 4 * max(berr[0], np.finfo(dtype).eps)
    sums = [float(abs(wide(part)).sum()) for part in (b - a @ x, x, b)]
    anorm = float(abs(a).sum(axis=0).max())
    assert report.backward_error == pytest.approx(sums[0] / (anorm * sums[1] + sums[2]), rel=1)


@pytest.mark.parametrize("place", ["host", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bound_is_the_norm_of_the_inverse_times_the_residual(
    dtype: str, transposed: bool, place: str
) -> None:
    if np.dtype(dtype).kind == "c" and transposed:
        pytest.skip("SciPy refuses it")
    a = random(N, dtype=dtype) + 9 * np.eye(N, dtype=dtype)
    a *= np.logspace(0, 3, N, dtype=a.real.dtype)  # the norms of A^-1 by rows and columns differ
    matrix, b = a.T if transposed else a, random(N, 1, dtype, seed=7)
    xp: Any = np if place == "host" else pytest.importorskip("cupy")
    found, report = solve(
        xp.asarray(a), xp.asarray(b), check_finite=False, transposed=transposed, report=True
    )
    x = host(found)
    rounding = (N + 1) * float(np.finfo(dtype).eps) / 2
    weights = rounding * (abs(matrix) @ abs(x) + abs(b))
    rest = abs(b - matrix @ x)
    inverse = abs(np.linalg.inv(matrix.astype("complex128")))
    least = float((inverse @ weights).max() / abs(x).max())
    most = float((inverse @ (weights + rest)).max() / abs(x).max())
    assert least / USUAL <= report.forward_error <= 1.1 * most + least


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_positive_definite_systems(dtype: str, lower: bool) -> None:
    a, b, exact = known("spd", dtype, 1e3, nrhs=2)
    half = np.tril(a) if lower else np.triu(a)
    x, report = solve(half, b, lower=lower, assume_a="pos", report=True)
    assert error_of(x, exact) <= report.forward_error < 0.5 * np.finfo(dtype).eps * 1e3 * N * N
    assert exact_rcond(a) / 1.01 <= report.rcond <= USUAL * exact_rcond(a)
    of_factors = cho_factor(half, lower).report(half, b, x)
    assert of_factors.componentwise_error == pytest.approx(report.componentwise_error)
    assert of_factors.forward_error == pytest.approx(report.forward_error, rel=0.2)
    assert of_factors.pivots == report.pivots
    left = abs(wide(b) - wide(a) @ wide(x)) / (abs(wide(a)) @ abs(wide(x)) + abs(wide(b)))
    eps = float(np.finfo(dtype).eps)
    assert report.componentwise_error == pytest.approx(float(left.max()), abs=8 * eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["svd", "orthog", "rands"])
def test_the_condition_of_lu_is_that_of_lapack(kind: str, dtype: str) -> None:
    a = generate(kind, N, dtype=dtype)
    factors = lu_factor(a, nb=NB)
    (gecon,) = get_lapack_funcs(("gecon",), (a,))
    report = factors.report(a)
    assert report.rcond == pytest.approx(gecon(factors.lu, np.linalg.norm(a, 1))[0], rel=1e-3)
    # Without the matrix, its norm is estimated, too.
    assert report.rcond / 1.01 <= factors.report().rcond <= USUAL * report.rcond
    assert factors.report().factorization_error is None
    assert factors.report().growth is None


@pytest.mark.parametrize("shape", [(N, N), (N, 25), (25, N)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_of_factorizations(dtype: str, shape: tuple[int, int]) -> None:
    a = random(*shape, dtype)
    wrong = (a * (1 + 0.01 * random(*shape, "float32", seed=1))).astype(dtype)
    exact = frobenius(wrong - a) / frobenius(wrong)
    for factors in (lu_factor(a, nb=NB), qr_factor(a, nb=NB)):
        assert factors.report(a).factorization_error < 10 * np.finfo(dtype).eps
        assert exact / USUAL < factors.report(wrong).factorization_error < USUAL * exact


@pytest.mark.parametrize("lower", [False, True])
def test_errors_of_cholesky_factors(lower: bool) -> None:
    a = positive(N, "complex128")
    factors = cho_factor(a, lower, nb=NB)
    assert factors.report(a).factorization_error < 1e-14
    wrong = a + np.diag(np.full(N, 0.01 * frobenius(a)))
    exact = frobenius(wrong - a) / frobenius(wrong)
    assert exact / USUAL < factors.report(wrong).factorization_error < USUAL * exact
    assert exact_rcond(a) / 1.01 <= factors.report().rcond <= USUAL * exact_rcond(a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_orthogonality(dtype: str) -> None:
    factors = qr_factor(random(N, 25, dtype), nb=NB)
    report = factors.report()
    assert report.orthogonality < 10 * 5 * np.finfo(dtype).eps
    assert report.panels == {"householder": 2}
    q = np.linalg.qr(random(N, 25, dtype))[0] + 0.01 * random(N, 25, dtype, seed=1)

    def apply(c: NDArray, adjoint: bool) -> NDArray:
        return q.conj().T @ c if adjoint else q @ c[:25]

    loose = QRFactored(factors.qr, factors._report, apply)
    exact = frobenius(q.conj().T @ q - np.eye(25))
    found = loose.orthogonality()
    assert found is not None
    assert exact / USUAL < found < USUAL * exact


def test_rank_and_condition_of_r() -> None:
    full = generate("svd", N, 20, cond=1e5)
    report = qr_factor(full).report()
    assert report.rank == 20
    assert 1e-5 / 20 < report.rcond < 20 * 1e-5
    full[:, 5] = full[:, 4]
    assert qr_factor(full).report().rank in (19, 20)  # by the diagonal alone
    full[:, 0] = 0
    assert qr_factor(full).report().rank <= 19


def test_growth() -> None:
    a = np.eye(10) - np.tri(10, k=-1)
    a[:, -1] = 1  # Wilkinson's
    assert lu_factor(a).report(a).growth == 2**9
    assert solve(a, np.ones(10), report=True)[1].growth == 2**9
    dominant = generate("dominant", 20)
    factors = lu_factor(dominant, pivot="none")
    assert factors.report().growth == factors.growth
    assert solve(dominant, np.ones(20), pivot="none", report=True)[1].growth == factors.growth
    assert cho_factor(positive(5)).report(positive(5)).growth is None


@pytest.mark.parametrize("bound", [0.0, 8.0, 1e4])
def test_inverses_given_up_are_those_that_the_kernels_gave_up(
    monkeypatch: pytest.MonkeyPatch, bound: float
) -> None:
    seen: list[bool] = []
    for kernels in (lu_kernels, cholesky_kernels):
        flag = kernels.flag_unless

        def noted(size: float, bound: float, w: NDArray, flag: Any = flag) -> None:
            seen.append(not size <= bound)
            flag(size, bound, w)

        monkeypatch.setattr(kernels, "flag_unless", noted)
    a, spd = random(N), positive(N)
    calls = (
        lambda how: lu_factor(a, **how).report(),
        lambda how: cho_factor(spd, lower=True, **how).report(),
        lambda how: solve(a, a[0], report=True, **how)[1],
        lambda how: lu_factor(random(N, 25), **how).report(),
        lambda how: lu_factor(random(25, N), **how).report(),
    )
    for call in calls:
        seen.clear()
        report = call({"nb": NB, "inverse_bound": bound})
        assert (report.inverses, report.substitutions) == (len(seen), sum(seen))
        assert report.inverses > 0
        assert f"{sum(seen)} of {len(seen)} diagonal tile" in str(report)
    assert lu_factor(a).report().inverses == 0  # one call of LAPACK's


@pytest.mark.gpu
@pytest.mark.parametrize("nb", [256, 300])
def test_inverses_given_up_on_a_gpu_are_those_of_the_same_factors_on_the_host(nb: int) -> None:
    import cupy

    n, found = 1500, []
    graded = random(n) * np.logspace(0, -2, n)[:, None]  # tiles of L with large inverses
    for bound in (0.0, 30.0, 1e9):
        how: Any = {"nb": nb, "coarse": None, "inverse_bound": bound}
        for a in (graded, graded[:, :1000]):
            lu = lu_factor(cupy.asarray(a), **how)
            there = LUFactored(lu.lu, lu._report, lu.piv)
            found.append(there.inverses())
            assert LUFactored(host(lu.lu), lu._report, lu.piv).inverses() == found[-1]
        c = cho_factor(cupy.asarray(positive(n)), lower=True, **how)
        found.append(CholeskyFactored(c.c, c._report).inverses())
        assert CholeskyFactored(host(c.c), c._report).inverses() == found[-1]
    assert all(lost == steps > 0 for steps, lost in found[:3])
    assert all(lost == 0 for _, lost in found[-3:])


@pytest.mark.gpu
def test_a_report_of_a_solution_on_a_gpu_says_what_its_factors_say() -> None:
    import cupy

    for kind, how in (("svd", {}), ("spd", {"assume_a": "pos", "lower": True})):
        a = cupy.asarray(generate(kind, 1500, cond=1e4))
        b = cupy.asarray(random(1500, 2))
        x, report = solve(a, b, report=True, **how)
        factors: Any = cho_factor(a, lower=True) if how else lu_factor(a)
        again = factors.report(a, b, x)
        assert again.componentwise_error == report.componentwise_error
        assert again.forward_error == pytest.approx(report.forward_error, rel=0.5)
        assert again.rcond == pytest.approx(report.rcond, rel=0.5)
        assert (again.inverses, again.growth) == (report.inverses, report.growth)


def test_steps_of_refinement_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(a: Any, anorm: float, again: Any, b: Any, x: Any, rcond: float) -> Any:
        return x + again(b - a @ x) * 0 + again(b - a @ x) * 0

    monkeypatch.setattr(sys.modules["hetero_la.api.solve"], "refine", twice)
    report = solve(random(N), np.ones(N), report=True)[1]
    assert report.refinement_steps == 2
    assert "2 steps of refinement" in str(report)


@pytest.mark.parametrize(
    "kind", ["diagonal", "tridiagonal", "banded", "upper triangular", "lower triangular"]
)
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_structures_need_no_factors(kind: str, dtype: str) -> None:
    full = random(N, dtype=dtype) + 8 * np.eye(N, dtype=dtype)
    widths = {"diagonal": (0, 0), "tridiagonal": (1, 1), "banded": (2, 3),
              "upper triangular": (0, N), "lower triangular": (N, 0)}[kind]  # fmt: skip
    a = np.tril(np.triu(full, -widths[0]), widths[1])
    given = a if kind == "banded" else full
    b = random(N, 1, dtype, seed=5)
    x, report = solve(given, b, assume_a=kind, report=True)  # type: ignore[call-overload]
    exact = np.linalg.solve(a.astype("complex128"), b)
    assert np.allclose(x, exact, rtol=1e-4)
    assert error_of(x, exact) <= report.forward_error < 1e4 * N * np.finfo(dtype).eps
    assert exact_rcond(a) / 1.01 <= report.rcond <= USUAL * exact_rcond(a)
    assert report.run is report.plan is report.timing is None
    assert kind in report.title


@pytest.mark.parametrize("driver", [None, "gelss", "gels"])
@pytest.mark.parametrize("shape", [(N, 20), (20, N)])
def test_least_squares(driver: Any, shape: tuple[int, int]) -> None:
    a = generate("svd", *shape, cond=1e4)
    b = a @ np.ones(shape[1]) + 1e-2 * random(shape[0], 1, seed=5)[:, 0]
    x, _, rank, _, report = lstsq(a, b, lapack_driver=driver, report=True)
    exact = np.linalg.lstsq(a, b)[0]
    error = float(np.linalg.norm(x - exact) / np.linalg.norm(exact))
    assert error / 2 <= report.forward_error < 1e-5
    assert report.rank == rank == 20
    assert 1e-4 / 20 < report.rcond < 20e-4
    assert report.backward_error < 1e-12
    assert report.componentwise_error is None


def test_the_bound_of_least_squares_has_the_square_of_the_condition() -> None:
    a, b = generate("svd", N, 20, cond=1e5), random(N, 1, seed=5)
    _, residues, *_, report = lstsq(a, b, report=True)
    sine = float((residues**0.5 / np.linalg.norm(b)).max())
    assert sine > 0.5
    tangent = sine / (1 - sine**2) ** 0.5
    kappa, unit = 1e5, 2.0**-53
    expected = unit * (2 * kappa / (1 - sine**2) ** 0.5 + tangent * kappa**2)
    assert report.forward_error == pytest.approx(expected, rel=0.01)


def test_least_squares_backward_error_grows_with_the_error() -> None:
    a, b = random(N, 20), random(N, 1, seed=5)
    factors = qr_factor(a)
    x = factors.solve(b)
    # Stewart's perturbation for the worse solution, as a matrix.
    worse = x * 1.001
    left = b - a @ worse
    first = np.linalg.norm(a.T @ left) / np.linalg.norm(left) / frobenius(a)
    found = factors.report(a, b, worse).backward_error
    assert first / USUAL < found < USUAL * first
    assert factors.report(a, b).backward_error < 1e-14


def test_a_deficient_matrix_has_no_bound() -> None:
    *_, rank, _, report = lstsq(np.ones((4, 2)), np.ones(4), report=True)
    assert report.rank == rank == 1
    assert report.forward_error is None
    assert report.rcond < 1e-15
    assert "forward" not in str(report)


def test_singular_matrices() -> None:
    a = random(5)
    a[:, 2] = 0
    with pytest.raises(LinAlgError, match="singular"):
        solve(a, np.ones(5), report=True)
    with pytest.warns(LinAlgWarning):
        factors = lu_factor(a)
    report = factors.report(a)
    assert report.rcond == 0
    assert report.pivots is not None
    assert report.pivots.zeros == 1
    with pytest.warns(LinAlgWarning, match="ill"):
        near = solve(generate("hilb", 20), np.ones(20), report=True)[1]
    assert near.rcond < 1e-16
    assert near.forward_error > 1


def test_one_number_and_no_numbers() -> None:
    x, report = solve([[2.0]], [4.0], report=True)
    assert (x[0], report.rcond, report.growth, report.judged) == (2, 1, 1, 1)
    for factors in (lu_factor([[2.0]]), cho_factor([[2.0]]), qr_factor([[2.0]])):
        assert factors.report([[2.0]], [4.0]).rcond == pytest.approx(1)
    for what in (solve(np.zeros((0, 0)), np.zeros(0), report=True)[1],
                 solve(np.eye(3), np.zeros((3, 0)), report=True)[1],
                 solve(np.eye(3), np.zeros((3, 0)), assume_a="pos", report=True)[1],
                 solve(np.eye(3), np.zeros((3, 0)), assume_a="diagonal", report=True)[1],
                 lstsq(np.zeros((3, 0)), np.zeros(3), report=True)[4],
                 lu_factor(np.zeros((0, 3))).report(np.zeros((0, 3))),
                 qr_factor(np.zeros((3, 0))).report()):  # fmt: skip
        assert what.forward_error is what.backward_error is None
        assert json.loads(what.to_json()) == what.as_dict()
        assert what.title in str(what)
    zero = solve(np.eye(3), np.zeros(3), report=True)[1]
    assert (zero.backward_error, zero.forward_error) == (0, 0)


def test_what_is_refused() -> None:
    a, b = random(5), np.ones(5)
    factors = lu_factor(a)
    bad = a.copy()
    bad[1, 1] = np.nan
    for call, said in (
        (lambda: solve(bad, b, report=True), "infs or NaNs"),
        (lambda: factors.report(bad), "infs or NaNs"),
        (lambda: factors.report(b=b), "a and b"),
        (lambda: factors.report(a, x=b), "a and b"),
        (lambda: factors.report(random(4)), r"a of shape \(4, 4\)"),
        (lambda: factors.report(a, np.ones(4)), r"b of shape \(4, 1\)"),
        (lambda: factors.report(a, b, np.ones((5, 2))), r"x of shape \(5, 2\)"),
        (lambda: factors.report(a + 1j), "complex128"),
        (lambda: solve(np.stack([a, a]), np.ones((2, 5)), report=True), "not for a stack"),
        (lambda: lstsq(np.stack([a, a]), np.ones((2, 5)), report=True), "not for a stack"),
        (lambda: solve(2.0, b, report=True), "one number"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    lazy = da.from_array(a)
    for call in (lambda: solve(lazy, b, report=True), lambda: lstsq(lazy, b, report=True),
                 lambda: factors.report(lazy)):  # fmt: skip
        with pytest.raises(TypeError, match="dask arrays"):
            call()


def test_inputs_stay_and_solutions_are_those_without_a_report() -> None:
    a, b = np.asfortranarray(random(N)), np.asfortranarray(random(N, 2, seed=5))
    kept = a.copy(), b.copy()
    x, _ = solve(a, b, overwrite_a=True, report=True)
    assert np.array_equal(a, kept[0])
    assert np.array_equal(b, kept[1])
    assert np.array_equal(x, solve(a, b))
    into, report = solve(a, b, overwrite_b=True, report=True)
    assert into is b
    assert report.backward_error < 1e-15


def test_many_right_hand_sides_are_judged_by_some() -> None:
    a, b, exact = known("svd", "float64", 1e3, nrhs=40)
    x, report = solve(a, b, report=True)
    assert report.judged == 8
    assert error_of(x, exact) <= report.forward_error


def test_as_text_and_json_and_picture(tmp_path: Path) -> None:
    a = random(N)
    report = solve(a, a[0], report=True)[1]
    assert json.loads(report.to_json()) == report.as_dict()
    names = {field.name for field in dataclasses.fields(AccuracyReport)}
    assert set(report.as_dict()) == names - {"run"} | {"mixed"}
    infinite = dataclasses.replace(report, forward_error=np.inf, rcond=np.nan)
    assert infinite.as_dict()["forward_error"] is None
    assert json.loads(infinite.to_json())["rcond"] is None
    assert "None" not in str(report)
    assert str(report) == report.as_text()
    assert report.plan is not None
    assert report.timing is not None
    report.draw(tmp_path / "a.svg")
    drawn = ElementTree.parse(tmp_path / "a.svg")
    bars = drawn.findall(".//{http://www.w3.org/2000/svg}rect")
    shown = [h for h in (report.pivots, report.errors) if h is not None]
    assert len(bars) - 1 == sum(count > 0 for h in shown for count in h.counts)
    with pytest.raises(ValueError, match=r"must end in one of \.svg, \.png"):
        report.draw(tmp_path / "a.txt")
    bare = AccuracyReport("nothing", "float64")
    with pytest.raises(ValueError, match="nothing to draw"):
        bare.draw(tmp_path / "b.svg")


@pytest.mark.parametrize("values", [[], [0.0, np.nan], [1e-300, 1.0, 1e300], [1.0] * 5])
def test_histograms_hold_all_numbers(values: list[float]) -> None:
    found = Histogram.of(np.array(values))
    assert sum(found.counts) + found.zeros + found.not_finite == len(values)
    assert len(found.counts) <= 100
    finite = np.array([v for v in values if v > 0])
    if finite.size:
        ends = found.begin, found.begin + len(found.counts) * found.step
        assert ends[0] <= np.log10(finite).min() <= np.log10(finite).max() < ends[1]


def test_the_norm_estimate_is_lapack_s() -> None:
    rng = np.random.default_rng(1)
    for n in (1, 2, 3, 5, 40):
        for dtype in DTYPES:
            m = random(n, dtype=dtype, seed=int(rng.integers(99)))
            found = estimate_norm1(m, lambda y, m=m: m @ y, lambda y, m=m: m.conj().T @ y)
            exact = float(np.linalg.norm(m, 1))
            assert exact / USUAL <= found <= exact * 1.001
    with np.errstate(all="ignore"):
        huge = np.full((3, 3), np.inf)
        assert not np.isfinite(estimate_norm1(huge, lambda y: huge @ y, lambda y: huge @ y))


def test_counters_of_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for zone, name, count in (("intel-rapl:0", "package-0", 5e6), ("intel-rapl:0:0", "core", 1e6)):
        (tmp_path / zone).mkdir()
        for file, text in (("name", name), ("energy_uj", count), ("max_energy_range_uj", 8e6)):
            (tmp_path / zone / file).write_text(f"{text}\n")
    ((name, counter),) = rapl_counters(tmp_path)
    assert (name, counter.read(), counter.around) == ("package-0", 5.0, 8.0)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()  # as if only root might read it
    assert list(rapl_counters(tmp_path)) == []
    counts = iter([1000, 1000, 1000, 3500])

    def set_to(value: Callable[[], int]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            arguments[-1]._obj.value = value()
            return 0

        return call

    fake = SimpleNamespace(
        nvmlDeviceGetCount_v2=set_to(lambda: 1), nvmlDeviceGetHandleByIndex_v2=set_to(lambda: 7),
        nvmlDeviceGetTotalEnergyConsumption=set_to(lambda: next(counts)),
    )  # fmt: skip
    monkeypatch.setattr(energy, "_nvml", lambda: fake)
    monkeypatch.setattr(energy, "_readable_counters", energy._readable_counters.__wrapped__)
    assert [name for name, _ in nvml_counters()] == ["GPU 0"]
    assert start_meter().joules()["GPU 0"] == 2.5
    counts = iter([1000, 1000, 3000])
    report = solve(random(9), np.ones(9), report=True)[1]
    assert report.joules is not None
    assert report.joules["GPU 0"] == 2
    assert "GPU 0 2 J" in str(report)
    fake.nvmlDeviceGetTotalEnergyConsumption = lambda *arguments: 3  # not supported
    assert list(nvml_counters()) == []
    without = dataclasses.replace(report, joules={})
    assert "energy" in str(without)
    assert "not readable" in str(without)
    assert "energy" not in str(lu_factor(random(9)).report())


def test_a_counter_of_energy_may_begin_anew() -> None:
    counts = iter([9.0, 2.0, 4.0, 3.0])
    meter = energy.Meter({"package-0": energy.Counter(lambda: next(counts), around=10.0)})
    assert [meter.total() for _ in range(3)] == [3.0, 5.0, 14.0]


def test_runs_on_workers() -> None:
    a, spd, b = random(N), positive(N), random(N, 2, seed=5)
    with Cluster(cpus=0, virtual_gpus=2, blas_threads=1) as cluster:
        how: Any = {"client": cluster, "nb": NB}
        for factors, of in (
            (lu_factor(a, **how), a), (cho_factor(spd, **how), spd), (qr_factor(a, **how), a),
        ):  # fmt: skip
            report = factors.report(of, b)
            assert report.factorization_error < 1e-14
            assert exact_rcond(of) / 60 <= report.rcond <= 60 * exact_rcond(of)  # of QR: of R
            assert report.plan is factors.plan
        for assume_a, of in (("gen", a), ("pos", spd)):
            x, report = solve(of, b, assume_a=assume_a, report=True, **how)  # type: ignore[arg-type]
            assert np.allclose(x, np.linalg.solve(of, b))
            assert error_of(x, np.linalg.solve(of, b)) <= report.forward_error
            assert report.inverses == (4 if assume_a == "gen" else 1)  # Cholesky merges its tail
            assert report.timing is not None
            assert len(report.timing.workers) == 2
        *_, judged = lstsq(a, b, lapack_driver="gels", report=True, **how)
        assert judged.forward_error < 1e-8


@pytest.mark.usefixtures("in_own_folder")
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("lu --random 40", "growth factor"), ("solve --random 40", "forward error bound"),
        ("solve --random 40 --assume-a pos --upper", "positive definite"),
        ("solve --random 40 --assume-a sym", "symmetric"),
        ("cholesky --random 40 --upper", "error of the factorization"),
        ("qr --random 60x40", "orthogonality of Q"), ("qr --random 40x60", "rank "),
        ("qr --random 60x40 --mode full", "orthogonality of Q"),
        ("qr --random 60x40 --mode raw", "orthogonality of Q"),
        ("lstsq --random 60x40", "forward error bound"),
    ],
)  # fmt: skip
def test_the_command_line(capfd: pytest.CaptureFixture[str], argv: str, said: str) -> None:
    assert main([*argv.split(), "--no-check", "--report"]) == 3
    assert said in capfd.readouterr().out
    assert main([*argv.split(), "--report", "--json"]) == 0
    judged = json.loads(capfd.readouterr().out)["accuracy"]
    assert judged["precision"] == "float64"
    assert judged["rcond"] > 0
    assert main([*argv.split(), "--json"]) == 0
    assert "accuracy" not in json.loads(capfd.readouterr().out)


@pytest.mark.usefixtures("in_own_folder")
def test_the_command_line_does_not_overwrite_what_it_judges(
    capfd: pytest.CaptureFixture[str],
) -> None:
    write_matrix("a.npy", random(40))
    assert main(["lu", "a.npy", "--no-check", "--report", "--json", "-o", "f.npz"]) == 3
    assert json.loads(capfd.readouterr().out)["accuracy"]["factorization_error"] < 1e-14


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [N, 1500])
def test_cupy_arrays(dtype: str, n: int) -> None:
    import cupy

    a, spd, b = random(n, dtype=dtype), positive(n, dtype), random(n, 2, dtype, seed=5)
    given = [cupy.asarray(part) for part in (a, spd, b)]
    exact = np.linalg.solve(a.astype("complex128"), b)
    x, report = solve(given[0], given[2], report=True)
    assert isinstance(x, cupy.ndarray)
    here = solve(a, b, report=True)[1]
    assert error_of(host(x), exact) <= report.forward_error <= 10 * here.forward_error
    assert report.rcond == pytest.approx(here.rcond, rel=1)
    assert report.growth == pytest.approx(here.growth, rel=0.1)
    assert report.componentwise_error < 30 * n * np.finfo(dtype).eps
    definite = solve(given[1], given[2], assume_a="pos", report=True)[1]
    beside = solve(spd, b, assume_a="pos", report=True)[1]
    assert definite.rcond == pytest.approx(beside.rcond, rel=1)
    assert definite.forward_error == pytest.approx(beside.forward_error, rel=2)
    for factors, of in ((lu_factor(given[0]), 0), (cho_factor(given[1]), 1),
                        (qr_factor(given[0]), 0)):  # fmt: skip
        judged = factors.report(given[of], given[2])
        assert judged.factorization_error < 30 * np.finfo(dtype).eps * n**0.5
        assert judged.rcond > 0
        assert judged.forward_error > 0
        with pytest.raises(TypeError, match="on the same device"):
            factors.report((a, spd)[of])
    *_, squares = lstsq(given[0][:, :20], given[2], report=True)
    assert squares.rank == 20
    assert squares.backward_error < 1e-4
    assert isinstance(hetero_la.solve(a, b, report=True)[1].seconds, float)
