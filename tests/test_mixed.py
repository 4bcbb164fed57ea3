"""Mixed precision: solutions as accurate as in full precision, and the way back to that."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.linalg import LinAlgError
from numpy.testing import assert_array_equal
from scipy.linalg import LinAlgWarning

import hetero_la
from hetero_la import cho_factor, cho_solve, lstsq, lu_factor, lu_solve, solve
from hetero_la.cli.main import main
from hetero_la.execution.execute import execute
from hetero_la.mixed import lower_factors, prediction
from hetero_la.mixed.equilibration import general_equilibration, lowered
from hetero_la.mixed.fallback import LowerPrecisionError, first_mixed, give_up
from hetero_la.mixed.gmres import flexible_gmres
from hetero_la.mixed.refinement import RefinedSystem, refine_to_full
from hetero_la.planning.decisions import Problem
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import lstsq_ratio, solve_ratio
from tests.support import host, positive, random

HIGHER = ("float64", "complex128")
LOWER = {"float64": "float32", "complex128": "complex64"}
N = 90
mixed = partial(solve, precision="mixed", report=True)


@pytest.fixture(autouse=True)
def _tried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixed precision is tried at any size, but where a test is of the prediction."""
    if "predicted" not in request.node.name:
        monkeypatch.setattr(prediction, "pays", lambda problem, gpu: True)


def graded(cond: float, n: int = N, dtype: str = "float64") -> np.ndarray:
    return generate("svd", n, dtype=dtype, cond=cond)


def nearly_singular(n: int = N, rank: int = N - 1, dtype: str = "float64") -> np.ndarray:
    """All but some singular values are tiny, which no few columns show."""
    a = random(n, dtype=dtype)
    a[:, rank:] = a[:, :rank] @ random(rank, n - rank, seed=2) + 1e-11 * a[:, rank:]
    return a


def test_full_precision_has_the_memory_of_the_lower_one() -> None:
    """On a GPU both would not fit: a copy, its factors, and what full precision takes."""
    copies: list[weakref.ref[Any]] = []

    def in_both() -> Any:
        lower = np.ones(9, np.float32)
        copies.append(weakref.ref(lower))
        give_up("it is of no use")

    def in_full() -> Any:
        assert copies[0]() is None
        return copies

    assert first_mixed("lu", np.eye(9), 1, in_both, in_full, lambda found: None) is copies


def require_lower(report: Any, dtype: str, *, inner: bool = False) -> None:
    """X is from factors in the lower precision."""
    assert report.mixed.fallback == ""
    assert report.mixed.factored == LOWER[dtype]
    assert (report.mixed.inner_steps > 0) is inner


# --- square systems


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", HIGHER)
@pytest.mark.parametrize("nrhs", [None, 1, 5])
def test_general_systems(dtype: str, order: Any, nrhs: int | None) -> None:
    a = np.array(random(N, dtype=dtype), order=order)
    b = random(N, nrhs or 1, dtype, seed=1)
    b = b[:, 0] if nrhs is None else b
    a.flags.writeable = b.flags.writeable = False
    x, report = mixed(a, b)
    require_lower(report, dtype)
    assert x.dtype == a.dtype
    assert x.shape == b.shape
    assert solve_ratio(a, x, b) < 1
    assert np.abs(x - solve(a, b)).max() < 1e-11 * np.abs(x).max()
    assert report.mixed.steps == report.refinement_steps > 0
    assert_array_equal(solve(a, b, precision="mixed"), x)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("structure", ["pos", "her"])
@pytest.mark.parametrize("dtype", HIGHER)
def test_only_one_triangle_is_read(dtype: str, structure: Any, lower: bool) -> None:
    a, b = positive(N, dtype), random(N, 3, dtype, seed=1)
    given = a.copy()
    given[np.triu_indices(N, 1) if lower else np.tril_indices(N, -1)] = 1e300
    x, report = mixed(given, b, assume_a=structure, lower=lower)
    require_lower(report, dtype)
    assert solve_ratio(a, x, b) < 1
    assert report.backward_error < 1e-16


def test_transposed_and_without_pivoting() -> None:
    a, b = generate("dominant", N), random(N, 2, seed=1)
    x, report = mixed(a, b, transposed=True)
    require_lower(report, "float64")
    assert solve_ratio(a.T, x, b) < 1
    x, report = mixed(a, b, pivot="none")
    require_lower(report, "float64")
    assert report.plan.routine == "lu_nopivot"
    assert solve_ratio(a, x, b) < 1


def test_growth_without_pivoting_in_the_lower_precision_falls_back() -> None:
    a = random(N)
    a[0, 0] = 1e-3
    x, report = mixed(a, a[0], pivot="none")
    assert "in float32, " in report.mixed.fallback
    assert_array_equal(x, solve(a, a[0], pivot="none"))


@pytest.mark.parametrize("shape", [(0,), (0, 2)])
def test_empty_systems(shape: tuple[int, ...]) -> None:
    assert solve(np.empty((0, 0)), np.empty(shape), precision="mixed").shape == shape


def test_systems_of_order_one_and_integers() -> None:
    assert solve([[4.0]], [2.0], precision="mixed") == [0.5]
    assert solve(4.0, [2.0, 4.0], precision="mixed").tolist() == [0.5, 1.0]
    assert solve([[2, 1], [0, 4]], [3, 4], precision="mixed").tolist() == [1.0, 1.0]


def test_a_stack_is_solved_matrix_by_matrix() -> None:
    a = np.stack([random(20, seed=s) for s in range(3)])
    x = solve(a, a[:, :, :1], precision="mixed")
    assert all(solve_ratio(*one) < 3 for one in zip(a, x, a[:, :, :1], strict=True))


def test_zero_right_hand_sides_stay_zero() -> None:
    a, b = random(N), random(N, 3, seed=1)
    b[:, 1] = 0
    x, report = mixed(a, b)
    require_lower(report, "float64")
    assert not x[:, 1].any()
    assert solve_ratio(a, x, b) < 1


# --- range


@pytest.mark.parametrize("power", [-300, -45, 30, 39, 60, 290])
@pytest.mark.parametrize("structure", ["gen", "pos"])
def test_matrices_beyond_the_lower_range(structure: Any, power: int) -> None:
    a = (random(N) if structure == "gen" else positive(N)) * 10.0**power
    b = random(N, 2, seed=1)
    x, report = mixed(a, b, assume_a=structure)
    require_lower(report, "float64")
    assert solve_ratio(a, x, b) < 1


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize("dtype", HIGHER)
def test_rows_and_columns_beyond_the_lower_range(dtype: str) -> None:
    a, b = random(N, dtype=dtype), random(N, 2, dtype, seed=1)
    scale = 10.0 ** np.linspace(-50, 50, N)
    x, report = mixed(a * scale[:, None], b * scale[:, None])
    require_lower(report, dtype)
    assert solve_ratio(a, x, b) < 1  # as if there were no scaling
    x, report = mixed(a * scale, b)
    require_lower(report, dtype)
    assert solve_ratio(a, x * scale[:, None], b) < 1


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
def test_a_definite_matrix_beyond_the_lower_range() -> None:
    a, b = positive(N), random(N, 2, seed=1)
    scale = 10.0 ** np.linspace(-50, 50, N)
    x, report = mixed(a * scale * scale[:, None], b * scale[:, None], assume_a="pos")
    require_lower(report, "float64")
    assert solve_ratio(a, x * scale[:, None], b) < 1


def test_a_scaled_matrix_warns_as_in_full_precision() -> None:
    a = random(N) * 10.0 ** np.linspace(-50, 50, N)
    with pytest.warns(LinAlgWarning, match="ill-conditioned"):
        _, report = mixed(a, a[:, 0])
    require_lower(report, "float64")
    assert report.rcond < 1e-90


def test_scaling_is_exact() -> None:
    a = random(N) * 10.0 ** np.linspace(-200, 200, N)
    scaling = general_equilibration(a)
    assert scaling is not None
    with np.errstate(under="ignore"):
        expected = np.ldexp(np.ldexp(a, scaling.rows[:, None]), scaling.columns)
    assert_array_equal(lowered(a, np.float64, scaling), expected)
    assert 0.2 < np.abs(expected).max(axis=0).min() <= np.abs(expected).max() <= 1


# --- slow convergence, and falling back


@pytest.mark.parametrize("dtype", HIGHER)
@pytest.mark.parametrize("tiny", [1, 3, 8])
def test_gmres_takes_over_where_refinement_is_slow(
    dtype: str, tiny: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower_factors, "tiny_values", lambda *given: 8)  # as for larger matrices
    a, b = nearly_singular(rank=N - tiny, dtype=dtype), random(N, 3, dtype, seed=1)
    x, report = mixed(a, b)
    require_lower(report, dtype, inner=True)
    assert solve_ratio(a, x, b) < 1
    assert "of GMRES" in str(report)
    assert 0.02 < report.rcond * np.linalg.cond(a, 1) < 50


def test_small_pivots_beside_grown_ones_are_not_for_gmres() -> None:
    """As of Wilkinson's matrix, which is well conditioned, and whose largest pivot is 2^89."""
    a = np.tril(-np.ones((N, N)), -1) + np.eye(N)
    a[:, -1] = 1
    found = lower_factors.lower_lu(a, partial(execute, "lu", overwrite_a=True))
    assert found.rcond > 1e-3
    assert lower_factors.small_pivots(found.result.factors.diagonal()) > 40
    assert found.tiny == 0
    few = lower_factors.lower_lu(nearly_singular(rank=N - 2), partial(execute, "lu"))
    assert few.tiny == 2


@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("dtype", HIGHER)
def test_gmres_takes_over_in_later_solves(dtype: str, trans: int) -> None:
    a, b = nearly_singular(dtype=dtype), random(N, 3, dtype, seed=1)
    factors = lu_factor(a, precision="mixed")
    x = factors.solve(b, trans)
    require_lower(factors, dtype, inner=True)
    assert solve_ratio((a, a.T, a.conj().T)[trans], x, b) < 1
    rcond = factors.report().rcond
    assert rcond is not None
    assert 0.02 < rcond * np.linalg.cond(a, 1) < 50


def test_factors_of_definite_matrices_are_widened_where_refinement_is_slow() -> None:
    a, b = generate("spd", N, cond=3e6), random(N, 2, seed=1)
    factors = cho_factor(a, precision="mixed")
    assert solve_ratio(a, factors.solve(b), b) < 1
    assert factors.mixed is not None
    x, report = mixed(a, b, assume_a="pos")
    assert report.mixed.factored == factors.mixed.factored
    assert solve_ratio(a, x, b) < 1


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("structure", ["gen", "pos"])
def test_overwriting(structure: Any, order: Any) -> None:
    a, b = (random(N) if structure == "gen" else positive(N)), random(N, 2, seed=1)
    given, rhs = np.array(a, order=order), np.array(b, order="F")
    x = solve(given, rhs, assume_a=structure, precision="mixed", overwrite_a=True, overwrite_b=True)
    assert solve_ratio(a, x, b) < 1
    assert_array_equal(given, a)
    assert_array_equal(rhs, x)


@pytest.mark.parametrize("step", [2, -1])
def test_strided_arrays(step: int) -> None:
    size = 2 * N if step == 2 else N
    a, p, b = random(size), positive(size), random(size, 4, seed=1)
    a, p, b = a[::step, ::step], p[::step, ::step], b[::step, ::2]
    for matrix, structure in ((a, "gen"), (p, "pos")):
        x, report = mixed(matrix, b, assume_a=structure)
        require_lower(report, "float64")
        assert solve_ratio(matrix, x, b) < 1
    assert solve_ratio(a, lu_factor(a, precision="mixed").solve(b), b) < 1
    assert solve_ratio(p, cho_factor(p, precision="mixed").solve(b), b) < 1
    *_, report = lstsq(a[:, :20], b, precision="mixed", report=True)
    require_lower(report, "float64")


def test_a_matrix_that_is_singular_to_full_precision_is_warned_of() -> None:
    a = random(N)
    a[:, -1] = a[:, 0] + a[:, 1]
    with pytest.warns(LinAlgWarning, match="ill-conditioned|singular"):
        solve(a, a[:, 3], precision="mixed")


@pytest.mark.parametrize(
    ("a", "reason"),
    [(graded(1e12), "ill-conditioned in float32"), (nearly_singular(rank=N // 2), "ill-cond"),
     (graded(1e12, 300), "pivots of some columns"), (generate("hilb", 300), "pivots of some")],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
def test_ill_conditioned_matrices_fall_back(a: np.ndarray, reason: str) -> None:
    b = random(len(a), 2, seed=1)
    x, report = mixed(a, b)
    assert reason in report.mixed.fallback
    assert report.mixed.factored == "float64"
    assert report.plan.dtype == np.float64
    assert_array_equal(x, solve(a, b))


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
def test_ill_conditioned_definite_matrices_fall_back() -> None:
    a, b = generate("spd", 200, cond=1e12), random(200, 2, seed=1)
    x, report = mixed(a, b, assume_a="pos")
    assert "pivots of some" in report.mixed.fallback
    assert_array_equal(x, solve(a, b, assume_a="pos"))


def test_singular_and_indefinite_matrices_fail_as_in_full_precision() -> None:
    a = generate("zero-middle", N)
    with pytest.raises(LinAlgError, match="singular matrix"):
        solve(a, a[0], precision="mixed")
    indefinite = positive(N)
    indefinite[40, 40] = -1
    with pytest.raises(LinAlgError, match="41-th leading minor"):
        solve(indefinite, a[0], assume_a="pos", precision="mixed")
    with pytest.raises(LinAlgError, match="41-th leading minor"):
        cho_factor(indefinite, precision="mixed")


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_entries_that_are_not_finite(value: float) -> None:
    a = random(N)
    a[3, 4] = value
    with pytest.raises(ValueError, match="infs or NaNs"):
        solve(a, a[0], precision="mixed")
    _, report = mixed(a, np.ones(N), check_finite=False)
    assert report.mixed.fallback == "an entry of the matrix is not finite"


def test_refinement_ends_soon_where_corrections_are_useless() -> None:
    calls: list[int] = []
    rng = np.random.default_rng(0)

    def correct(r: Any) -> Any:
        calls.append(1)
        return rng.standard_normal(r.shape)

    a, b = random(N), random(N, 1, seed=1)
    system = RefinedSystem(
        lambda x, b: b - a @ x, lambda d: a @ d, correct,
        lambda x, r: float(np.abs(r).sum() / np.abs(x).sum()),
    )  # fmt: skip
    with pytest.raises(LowerPrecisionError, match=r"^refinement does not converge$"):
        refine_to_full(system, b, correct(b), 2.0**-52)
    assert len(calls) <= 12


@pytest.mark.parametrize("dtype", HIGHER)
def test_flexible_gmres_solves_several_systems(dtype: str) -> None:
    a, r = positive(12, dtype) / 12, random(12, 3, dtype, seed=1) * [1e-200, 1, 0]
    found = flexible_gmres(lambda v: a @ v, lambda v: v, r, most=12, patience=12, wanted=1e-14)
    assert found.left <= 1e-13
    assert_close = np.testing.assert_allclose
    assert_close(found.d[:, 0] * 1e200, np.linalg.solve(a, r[:, 0] * 1e200), rtol=1e-9)
    assert_close(found.d[:, 1], np.linalg.solve(a, r[:, 1]), rtol=1e-9)
    assert not found.d[:, 2].any()
    useless = flexible_gmres(lambda v: np.roll(v, 1, 0), lambda v: v, r * 0 + np.eye(12, 3),
                             most=11, patience=4, wanted=1e-3)  # fmt: skip
    assert useless.steps == 4


# --- factors


@pytest.mark.parametrize("dtype", HIGHER)
@pytest.mark.parametrize("trans", [0, 1, 2])
def test_lu_factors_solve_accurately(dtype: str, trans: int) -> None:
    a, b = random(N, dtype=dtype), random(N, 4, dtype, seed=1)
    factors = lu_factor(a, precision="mixed")
    turned = (a, a.T, a.conj().T)[trans]
    turned = turned.copy()
    a[:] = 0  # they have a copy
    for x in (factors.solve(b, trans), lu_solve(factors, b, trans)):
        assert solve_ratio(turned, x, b) < 1
    assert factors.lu.dtype == LOWER[dtype]
    require_lower(factors, dtype)
    assert factors.mixed is not None
    assert factors.mixed.steps > 0
    assert factors.solve(b[:, 0], trans).shape == (N,)


@pytest.mark.parametrize("dtype", HIGHER)
@pytest.mark.parametrize("lower", [False, True])
def test_cholesky_factors_solve_accurately(dtype: str, lower: bool) -> None:
    a, b = positive(N, dtype), random(N, 4, dtype, seed=1)
    factors = cho_factor(a, lower, precision="mixed")
    require_lower(factors, dtype)
    for x in (factors.solve(b), cho_solve(factors, b)):
        assert solve_ratio(a, x, b) < 1
    assert factors.c.dtype == LOWER[dtype]
    assert factors.logdet() == pytest.approx(np.linalg.slogdet(a)[1], rel=1e-13)
    report = factors.report(b=b)
    assert report.backward_error is not None
    assert report.backward_error < 2e-16
    assert report.precision == dtype


def test_copies_and_pickles_of_factors_solve_accurately() -> None:
    a, b = random(N), random(N, 2, seed=1)
    factors = lu_factor(a, precision="mixed")
    for other in (copy.copy(factors), pickle.loads(pickle.dumps(factors))):
        assert solve_ratio(a, other.solve(b), b) < 1


def test_factors_report_what_their_solutions_are_worth() -> None:
    a, b = random(N), random(N, 2, seed=1)
    factors = lu_factor(a, precision="mixed")
    report = factors.report(a, b)
    exact = np.linalg.cond(a, 1)
    assert report.rcond is not None
    assert report.backward_error is not None
    assert 0.9 / exact < report.rcond < 4 / exact
    assert report.backward_error < 1e-16
    assert report.as_dict()["mixed"] == {
        "factored": "float32", "steps": report.refinement_steps, "inner_steps": 0, "fallback": "",
    }  # fmt: skip
    assert json.loads(report.to_json()) == report.as_dict()
    assert "factored in float32" in str(report)
    wrong = factors.report(b=b, x=factors.solve(b) * 1.01)
    assert wrong.backward_error is not None
    assert wrong.backward_error > 1e-6
    with pytest.raises(ValueError, match="beside right-hand sides"):
        factors.report(x=b)


def test_factors_of_real_matrices_solve_for_complex_numbers() -> None:
    a, b = random(N), random(N, 2, "complex128", seed=1)
    x = lu_factor(a, precision="mixed").solve(b)
    assert x.dtype == "complex128"
    assert solve_ratio(a.astype(complex), x, b) < 1


def test_with_overwrite_the_factors_keep_the_matrix_itself() -> None:
    a = random(N)
    given = a.copy(order="F")
    factors = lu_factor(given, overwrite_a=True, precision="mixed")
    assert_array_equal(given, a)
    assert factors._beside is not None
    assert factors._beside.matrix is given


def test_factors_fall_back_when_a_solution_cannot_be_refined() -> None:
    a, other, b = random(N), random(N, seed=5), random(N, 2, seed=1)
    factors = lu_factor(a, precision="mixed")
    assert factors._beside is not None
    factors._beside.matrix = other  # whose factors these are not
    assert solve_ratio(other, factors.solve(b), b) < 8
    assert factors.mixed is not None
    assert factors.mixed.fallback == "refinement does not converge"
    assert factors.mixed.factored == "float64"
    full = factors._beside.full
    factors.solve(b)
    assert factors._beside.full is full  # once


def test_ill_conditioned_matrices_have_factors_in_full_precision() -> None:
    factors = lu_factor(graded(1e12), precision="mixed")
    assert factors.lu.dtype == np.float64
    assert factors.mixed is not None
    assert "ill-conditioned" in factors.mixed.fallback
    assert_array_equal(factors.lu, lu_factor(graded(1e12)).lu)
    assert lu_factor(random(3)).mixed is None


# --- least squares


@pytest.mark.parametrize("shape", [(90, 40), (40, 90), (60, 60)])
@pytest.mark.parametrize("dtype", HIGHER)
@pytest.mark.parametrize("nrhs", [None, 3])
def test_least_squares(dtype: str, shape: tuple[int, int], nrhs: int | None) -> None:
    a, b = random(*shape, dtype), random(shape[0], nrhs or 1, dtype, seed=1)
    b = b[:, 0] if nrhs is None else b
    x, residues, rank, s, report = lstsq(a, b, precision="mixed", report=True)
    require_lower(report, dtype)
    expected = lstsq(a, b, lapack_driver="gels")
    assert lstsq_ratio(a, x, b) < 1
    assert np.abs(x - expected[0]).max() < 1e-12 * np.abs(x).max()
    assert (residues.dtype, residues.shape) == (expected[1].dtype, expected[1].shape)
    np.testing.assert_allclose(residues, expected[1], rtol=1e-12)
    assert rank == min(shape)
    assert s is None
    full = lstsq(a, b, lapack_driver="gels", report=True)[-1]
    assert report.rcond == pytest.approx(full.rcond, rel=1e-3)


@pytest.mark.parametrize("shape", [(90, 40), (40, 90)])
def test_least_squares_with_columns_or_rows_beyond_the_lower_range(shape: tuple[int, int]) -> None:
    a, b = random(*shape), random(shape[0], 2, seed=1)
    scale = 10.0 ** np.linspace(-5, 5, min(shape))
    given = a * scale if shape[0] > shape[1] else a * scale[:, None]
    rhs = b if shape[0] > shape[1] else b * scale[:, None]
    x, *_, report = lstsq(given, rhs, precision="mixed", report=True)
    require_lower(report, "float64")
    x = x * scale[:, None] if shape[0] > shape[1] else x
    expected = lstsq(a, b, lapack_driver="gels")[0]
    assert np.abs(x - expected).max() < 1e-10 * np.abs(expected).max()


@pytest.mark.parametrize("shape", [(90, 40), (40, 90)])
def test_least_squares_fall_back(shape: tuple[int, int]) -> None:
    a, b = generate("svd", *shape, cond=1e10), random(shape[0], 2, seed=1)
    x, *_, report = lstsq(a, b, precision="mixed", report=True)
    assert "ill-conditioned in float32" in report.mixed.fallback
    assert_array_equal(x, lstsq(a, b, lapack_driver="gels")[0])


def test_the_rank_is_left_to_full_precision() -> None:
    a = generate("svd", 60, 30, cond=1e4)
    with pytest.warns(LinAlgWarning, match="rank-deficient"):
        *_, report = lstsq(a, a[:, 0], cond=1e-2, precision="mixed", report=True)
    assert "has to find the rank" in report.mixed.fallback


# --- what is refused


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_there_is_no_precision_below_single(dtype: str) -> None:
    a = positive(5, dtype)
    message = f"^precision='mixed' is for float64 and complex128: {dtype} has no lower precision$"
    for function in (
        partial(solve, a, a[0]), partial(solve, a, a[0], assume_a="pos"), partial(lu_factor, a),
        partial(cho_factor, a), partial(lstsq, a, a[0]),
        partial(hetero_la.solve_with_report, a, a[0]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            function(precision="mixed")


def test_other_values_are_refused() -> None:
    a = np.eye(3)
    message = "^precision must be 'full' or 'mixed', not 'half'$"
    for function in (partial(solve, a, a[0]), partial(lu_factor, a), partial(cho_factor, a),
                     partial(lstsq, a, a[0])):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            function(precision="half")
    with pytest.raises(ValueError, match=r"^precision='mixed' is for square matrices, .*\(3, 2\)"):
        lu_factor(a[:, :2], precision="mixed")
    for factor in (lu_factor, cho_factor):
        with pytest.raises(ValueError, match="the factors of one matrix, not of a stack"):
            factor(np.stack([a, a]), precision="mixed")
    for driver in ("gelsd", "gelss", "gelsy"):
        with pytest.raises(ValueError, match=f"lapack_driver='gels', QR alone, not '{driver}'"):
            lstsq(a, a[0], lapack_driver=driver, precision="mixed")


# --- predictions


def pays(routine: str, n: int, nrhs: int = 1, dtype: str = "float64") -> bool:
    return prediction.pays(Problem(routine, n, n, nrhs, np.dtype(dtype)), None)


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
def test_large_matrices_are_predicted_to_gain(routine: str) -> None:
    assert not pays(routine, 60)
    assert pays(routine, 6000)
    assert pays(routine, 6000, dtype="complex128")
    assert not pays(routine, 6000, nrhs=6000)


@pytest.mark.parametrize(
    ("routine", "sample"), [("lu", ("lu", 4000, 500)), ("cholesky", ("cholesky", 1000, 1000))]
)
def test_predictions_count_the_sample_and_chains_on_a_gpu(
    routine: str, sample: tuple[str, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[float, float]] = []

    def seconds(problem: Problem, gpu: int | None, with_gpus: bool) -> float:
        whole = 8.0 if problem.dtype == np.float64 else 4.0
        return {(routine, 4000, 4000): whole, sample: whole / 4}[problem[:3]]

    monkeypatch.setattr(prediction, "_factor_seconds", seconds)
    monkeypatch.setattr(
        prediction, "gains", lambda problem, gpu, full, low: counted.append((full, low))
    )
    for with_gpus in (False, True):
        prediction._pays.__wrapped__(
            Problem(routine, 4000, 4000, 1, np.dtype(float)), None, with_gpus
        )
    assert counted[0] == (8.0, 5.0)
    assert counted[1] == (8.0, pytest.approx(5.0 + 3 * 4000 * 6e-7))


def test_small_systems_are_predicted_to_gain_nothing() -> None:
    a, b = random(20), random(20, 1, seed=1)
    x, report = mixed(a, b)
    assert report.mixed.fallback == "full precision is predicted to be as fast"
    assert_array_equal(x, solve(a, b))


# --- runs of tasks


@pytest.fixture(
    scope="module", params=[{"cpus": 2, "gpus": 0}, {"virtual_gpus": 2, "cpus": 0}], ids=str
)
def client(request: pytest.FixtureRequest) -> Iterator[object]:
    with (
        hetero_la.Cluster(**request.param, blas_threads=1) as cluster,
        cluster.get_client() as client,
    ):
        yield client


@pytest.mark.parametrize("dtype", HIGHER)
def test_on_a_cluster(client: Any, dtype: str) -> None:
    a, b, definite = random(N, dtype=dtype), random(N, 2, dtype, seed=1), positive(N, dtype)
    how: dict[str, Any] = {"client": client, "nb": 32}
    for matrix, structure in ((a, "gen"), (definite, "pos")):
        x, report = mixed(matrix, b, assume_a=structure, **how)
        require_lower(report, dtype)
        assert len(report.plan.workers) == 2
        assert report.plan.dtype == LOWER[dtype]
        assert solve_ratio(matrix, x, b) < 1
    x = lu_factor(a, precision="mixed", **how).solve(b, 2)
    assert solve_ratio(a.conj().T, x, b) < 1
    for lower in (False, True):
        x = cho_factor(definite, lower, precision="mixed", **how).solve(b)
        assert solve_ratio(definite, x, b) < 1
    *found, report = lstsq(a[:, :40], b, precision="mixed", report=True, **how)
    require_lower(report, dtype)
    assert lstsq_ratio(a[:, :40], found[0], b) < 1


def test_falling_back_on_a_cluster(client: Any) -> None:
    a, b = graded(1e12), random(N, 2, seed=1)
    x, report = mixed(a, b, client=client, nb=32)
    assert "ill-conditioned" in report.mixed.fallback
    assert solve_ratio(a, x, b) < 30


def test_products_from_parts_are_for_the_lower_precision() -> None:
    a, b = random(N), random(N, 1, seed=1)
    x, report = mixed(a, b, products="split")
    require_lower(report, "float64")
    assert solve_ratio(a, x, b) < 1
    x, report = mixed(graded(1e12), b, products="split")
    assert report.mixed.factored == "float64"


def test_gpus_split_products_of_large_matrices_as_predicted() -> None:
    assert prediction.split_products("lu", (16384, 16384), np.float32, 0) == {"products": "split"}
    assert prediction.split_products("lu", (500, 500), np.float32, 0) is None
    assert prediction.split_products("lu", (16384, 16384), np.float32, None) is None


# --- command line


@pytest.mark.parametrize("command", ["solve", "lu", "cholesky", "lstsq", "solve --assume-a pos"])
def test_the_command_line(capfd: pytest.CaptureFixture[str], command: str) -> None:
    argv = f"{command} --random 60 --precision mixed --report --nb 32"
    assert main(argv.split()) == 0
    assert "factored in float32" in capfd.readouterr().out


def test_the_command_line_says_that_it_fell_back(capfd: pytest.CaptureFixture[str]) -> None:
    argv = "solve --random 60 --kind svd --cond 1e12 --precision mixed"
    assert main(argv.split()) == 0
    assert "--precision mixed: factored in float64: the matrix" in capfd.readouterr().err


# --- GPUs


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HIGHER)
def test_on_a_gpu(dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    n = 600
    a, b, definite = random(n, dtype=dtype), random(n, 3, dtype, seed=1), positive(n, dtype)
    A, B, D = map(cupy.asarray, (a, b, definite))
    x, report = mixed(A, B)
    require_lower(report, dtype)
    assert solve_ratio(a, host(x), b) < 1
    x, report = mixed(D, B, assume_a="pos")
    require_lower(report, dtype)
    assert solve_ratio(definite, host(x), b) < 1
    x = lu_factor(A, precision="mixed").solve(B, 2)
    assert solve_ratio(a.conj().T, host(x), b) < 1
    x = cho_factor(D, precision="mixed").solve(B)
    assert solve_ratio(definite, host(x), b) < 1
    for matrix, right in ((A[:, :200], B), (A[:200], B[:200])):
        x, *_, report = lstsq(matrix, right, precision="mixed", report=True)
        require_lower(report, dtype)
        assert lstsq_ratio(host(matrix), host(x), host(right)) < 1


@pytest.mark.gpu
def test_falling_back_and_scaling_on_a_gpu() -> None:
    cupy = pytest.importorskip("cupy")
    b = cupy.asarray(random(600, 1, seed=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LinAlgWarning)
        _, report = mixed(cupy.asarray(graded(1e12, 600)), b)
        assert report.mixed.factored == "float64"
        a = random(600) * 10.0 ** np.linspace(-50, 50, 600)
        _, report = mixed(cupy.asarray(a), b)
        require_lower(report, "float64")
        a = nearly_singular(600, 599)
        x, report = mixed(cupy.asarray(a), b)
        require_lower(report, "float64", inner=True)
        assert solve_ratio(a, host(x), host(b)) < 1
        x = lu_factor(cupy.asarray(a), precision="mixed").solve(b)
        assert solve_ratio(a, host(x), host(b)) < 1
