from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg as sl
from numpy.typing import NDArray

from hetero_la.testing import residual_blocks
from hetero_la.testing.matrices import DTYPES, generate
from hetero_la.testing.residuals import (
    RATIO_LIMIT,
    cholesky_ratio,
    lstsq_ratio,
    lu_ratio,
    orthogonality_ratio,
    qr_factors_ratio,
    qr_ratio,
    solve_ratio,
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(1100, 1100), (1030, 50), (50, 1030)])
def test_lu_ratio_is_the_formula(m: int, n: int, dtype: str) -> None:
    a = generate("rands", m, n, dtype=dtype)
    p, lower, upper = sl.lu(a)
    lu, piv = sl.lu_factor(a)
    lu[0, -1] += 1e-3  # an error that drowns rounding, and a known one
    upper[0, -1] = lu[0, -1]
    wrong = np.linalg.norm(p.T @ a - lower @ upper, 1)
    eps = 2.0**-24 if a.dtype.itemsize < 8 or dtype == "complex64" else 2.0**-53
    expected = wrong / (n * np.linalg.norm(a, 1) * eps)
    assert lu_ratio(a, lu, piv) == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("where", [(0, 0), (5, 2), (2, 5), (9, 9)])
def test_lu_ratio_sees_every_entry(where: tuple[int, int]) -> None:
    a = generate("rands", 10)
    lu, piv = sl.lu_factor(a)
    lu[where] += 1e-9
    assert lu_ratio(a, lu, piv) > RATIO_LIMIT


def test_ratios_never_pass_nan() -> None:
    a = generate("rands", 6)
    lu, piv = sl.lu_factor(a)
    lu[3, 3] = np.nan
    assert lu_ratio(a, lu, piv) == np.inf
    assert solve_ratio(a, np.full(6, np.nan), np.ones(6)) == np.inf
    assert solve_ratio(a, np.full(6, np.inf), np.ones(6)) == np.inf


def test_ratios_of_nothing_are_zero() -> None:
    assert lu_ratio(np.empty((0, 4)), np.empty((0, 4)), np.empty(0, int)) == 0
    assert lu_ratio(np.zeros((3, 3)), np.zeros((3, 3)), np.arange(3)) == 0
    assert solve_ratio(np.empty((0, 0)), np.empty((0, 2)), np.empty((0, 2))) == 0


def test_a_wrong_factor_of_zero_fails() -> None:
    assert lu_ratio(np.zeros((3, 3)), np.eye(3), np.arange(3)) == np.inf


@pytest.mark.parametrize("dtype", DTYPES)
def test_solve_ratio_is_the_formula(dtype: str) -> None:
    a, x = generate("rands", 1100, dtype=dtype), generate("rands", 1100, 2, dtype=dtype, seed=1)
    b = a @ x
    b[7, 1] += 1
    eps = float(np.finfo(dtype).eps) / 2
    expected = 1 / (np.linalg.norm(a, 1) * np.linalg.norm(x[:, 1], 1) * eps)
    assert solve_ratio(a, x, b) == pytest.approx(expected, rel=0.05)
    assert solve_ratio(a, x[:, 1], b[:, 1]) == pytest.approx(expected, rel=0.05)


def test_solve_ratio_is_that_of_the_worst_column() -> None:
    a, x = generate("rands", 40), generate("rands", 40, 2, seed=1)
    b = a @ x
    b[7, 1] += 1e-9
    alone = solve_ratio(a, x[:, 1], b[:, 1])
    assert alone > RATIO_LIMIT
    for scale in (1e-20, 1.0, 1e20):  # beside a large column, a small one's error would not show
        x[:, 0] = scale * x[:, 1]
        b[:, 0] = a @ x[:, 0]
        assert solve_ratio(a, x, b) == pytest.approx(alone, rel=1e-2)
        assert lstsq_ratio(a[:30], x, b[:30]) == pytest.approx(
            lstsq_ratio(a[:30], x[:, 1], b[:30, 1]), rel=1e-2
        )


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3, 4\)"):
        lu_ratio(np.eye(3), np.ones((3, 4)), np.arange(3))
    with pytest.raises(ValueError, match="do not match"):
        solve_ratio(np.eye(3), np.ones(4), np.ones(3))


# --- Cholesky, QR and least squares -----------------------------------------------------


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual_blocks, "BLOCK", 7)


def eps(dtype: str) -> float:
    return float(np.finfo(dtype).eps) / 2


def norm1(a: NDArray) -> float:
    return float(np.linalg.norm(a, 1))


def rubbish(a: NDArray, *, lower: bool) -> NDArray:
    """`a` with NaNs in the triangle that is not named."""
    return np.where(
        np.tri(len(a), dtype=bool) if lower else np.tri(len(a), dtype=bool).T, a, np.nan
    )


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 7, 20])
@pytest.mark.parametrize("lower", [False, True])
def test_cholesky_ratio_is_the_formula(n: int, lower: bool, dtype: str) -> None:
    a = generate("spd", n, dtype=dtype, cond=100)
    factor = np.asfortranarray(sl.cholesky(a, lower=lower))
    assert cholesky_ratio(a, factor, lower) < 1
    factor[(-1, n // 2) if lower else (n // 2, -1)] += 0.1
    product = factor @ factor.conj().T if lower else factor.conj().T @ factor
    expected = norm1(product - a) / (n * norm1(a) * eps(dtype))
    found = cholesky_ratio(rubbish(a, lower=lower), rubbish(factor, lower=lower), lower)
    assert found == pytest.approx(expected, rel=1e-3)
    assert found > RATIO_LIMIT


def test_cholesky_ratio_ignores_imaginary_parts_on_the_diagonal() -> None:
    a = generate("spd", 5, dtype="complex128")
    assert cholesky_ratio(a + 1j * np.eye(5), sl.cholesky(a)) < 1


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(1, 1), (20, 20), (25, 9), (9, 25)])
@pytest.mark.parametrize("mode", ["economic", "full"])
def test_qr_ratios_are_the_formulas(m: int, n: int, mode: str, dtype: str) -> None:
    a = generate("rands", m, n, dtype=dtype)
    q, r = sl.qr(a, mode=mode)
    assert max(qr_ratio(a, q, r), orthogonality_ratio(q)) < RATIO_LIMIT / 3
    r[0, -1] += 0.1
    expected = norm1(r - q.conj().T @ a) / (m * norm1(a) * eps(dtype))
    assert qr_ratio(a, q, r) == pytest.approx(expected, rel=1e-3)
    q[-1, 0] += 0.1
    expected = norm1(np.eye(q.shape[1]) - q.conj().T @ q) / (m * eps(dtype))
    assert orthogonality_ratio(q) == pytest.approx(expected, rel=1e-3)
    assert min(qr_ratio(a, q, r), orthogonality_ratio(q)) > RATIO_LIMIT


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(20, 20), (25, 9), (9, 25)])
def test_qr_factors_ratio_is_that_of_the_explicit_factors(m: int, n: int, dtype: str) -> None:
    a = generate("rands", m, n, dtype=dtype)
    (qr, tau), _ = sl.qr(a, mode="raw")
    assert qr_factors_ratio(a, qr, tau) < RATIO_LIMIT / 10
    for wrong in ((5, 2), (2, 5), (8, 8)):  # a vector, R, and R's diagonal
        factors = qr.copy()
        factors[wrong] += 0.01
        assert qr_factors_ratio(a, factors, tau) > RATIO_LIMIT
    factors = qr.copy()
    factors[0, -1] += 0.1
    expected = 0.1 / (m * norm1(a) * eps(dtype))
    assert qr_factors_ratio(a, factors, tau) == pytest.approx(expected, rel=1e-2)


def test_qr_factors_ratio_sees_a_q_that_is_not_orthogonal() -> None:
    """Where A is zero, R - Q^H A shows nothing."""
    a = np.zeros((6, 3))
    qr, tau = np.asfortranarray(a), np.array([0.0, 0.5, 0.0])
    assert qr_factors_ratio(a, qr, np.zeros(3)) == 0
    expected = 0.75 / (6 * eps("float64"))  # I - H H for H = diag(1, 1/2, 1, ...)
    assert qr_factors_ratio(a, qr, tau) == pytest.approx(expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["rands", "near-underflow", "near-overflow"])
@pytest.mark.parametrize("in_range", [False, True])
def test_lstsq_ratio_passes_and_fails_at_every_scale(
    small_blocks: None, kind: str, in_range: bool, dtype: str
) -> None:
    a = generate(kind, 30, 12, dtype=dtype)
    b = generate("rands", 30, 3, dtype=dtype, seed=1)
    if in_range:
        b = a @ b[:12]
    x = sl.lstsq(a / norm1(a), b / norm1(b))[0] * (norm1(b) / norm1(a))
    assert lstsq_ratio(a, x, b) < 1
    wrong = x.copy()
    wrong[4, 1] *= 1.1
    assert lstsq_ratio(a, wrong, b) > RATIO_LIMIT
    if kind == "rands":
        expected = norm1((a @ wrong - b).conj().T @ a) / (30 * norm1(a) * norm1(b) * eps(dtype))
        assert lstsq_ratio(a, wrong, b) == pytest.approx(expected, rel=1e-2)
    assert lstsq_ratio(a, x[:, 0], b[:, 0]) < 1


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", DTYPES)
def test_lstsq_ratio_of_fewer_rows_is_that_of_a_solution(dtype: str) -> None:
    a, b = generate("rands", 12, 30, dtype=dtype), generate("rands", 12, 2, dtype=dtype, seed=1)
    x = sl.lstsq(a, b)[0]
    assert lstsq_ratio(a, x, b) == pytest.approx(solve_ratio(a, x, b), rel=1e-3)
    assert lstsq_ratio(a, x, b) < RATIO_LIMIT
    assert lstsq_ratio(a, x * 1.01, b) > RATIO_LIMIT


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("assume_a", ["sym", "her", "pos"])
@pytest.mark.parametrize("lower", [False, True])
def test_solve_ratio_reads_one_triangle(assume_a: str, lower: bool, dtype: str) -> None:
    a = generate("rands", 20, dtype=dtype)
    a += a.T if assume_a == "sym" else a.conj().T
    x = generate("rands", 20, 2, dtype=dtype, seed=1)
    b = a @ x
    given = rubbish(a, lower=lower).astype(dtype)
    assert solve_ratio(given, x, b, assume_a=assume_a, lower=lower) < 1
    b[7, 1] += 1
    found = solve_ratio(given, x, b, assume_a=assume_a, lower=lower)
    assert found == pytest.approx(1 / (norm1(a) * np.abs(x[:, 1]).sum() * eps(dtype)), rel=1e-2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_never_passes(bad: float) -> None:
    a = generate("spd", 6)
    broken = np.eye(6)
    broken[4, 2] = broken[2, 4] = bad
    (qr, tau), r = sl.qr(a, mode="raw")
    assert cholesky_ratio(a, broken) == np.inf
    assert qr_ratio(a, broken, r) == np.inf
    assert orthogonality_ratio(broken) == np.inf
    assert qr_factors_ratio(a, broken, tau) == np.inf
    assert qr_factors_ratio(a, qr, np.full(6, bad)) == np.inf
    assert lstsq_ratio(a, broken[:, 2], np.ones(6)) == np.inf
    assert lstsq_ratio(a[:5], broken[:, 2], np.ones(5)) == np.inf


@pytest.mark.parametrize(("m", "n"), [(0, 0), (0, 4), (4, 0)])
def test_ratios_of_empty_factors_are_zero(m: int, n: int) -> None:
    a, k = np.empty((m, n)), min(m, n)
    assert qr_ratio(a, np.eye(m, k), np.empty((k, n))) == 0
    assert orthogonality_ratio(np.empty((m, 0))) == 0
    assert qr_factors_ratio(a, a, np.empty(k)) == 0
    assert lstsq_ratio(a, np.zeros((n, 2)), np.zeros((m, 2))) == 0
    assert cholesky_ratio(np.empty((0, 0)), np.empty((0, 0))) == 0


@pytest.mark.parametrize(
    ("ratio", "shapes"),
    [
        (cholesky_ratio, [(3, 4), (3, 4)]),
        (cholesky_ratio, [(3, 3), (2, 2)]),
        (qr_ratio, [(3, 2), (3, 2), (3, 2)]),
        (qr_ratio, [(3, 2), (2, 2), (2, 2)]),
        (qr_factors_ratio, [(3, 2), (3, 2), (3,)]),
        (lstsq_ratio, [(3, 2), (3,), (3,)]),
        (lstsq_ratio, [(3, 2), (2,), (3, 1)]),
    ],
)
def test_factors_of_another_matrix_are_refused(
    ratio: Callable[..., float], shapes: list[tuple[int, ...]]
) -> None:
    with pytest.raises(ValueError, match=r"do(es)? not (belong|match)"):
        ratio(*map(np.ones, shapes))


def test_a_structure_that_the_ratio_does_not_know_is_refused() -> None:
    with pytest.raises(
        ValueError, match="assume_a must be one of gen, sym, her, pos, not 'banded'"
    ):
        solve_ratio(np.eye(2), np.ones(2), np.ones(2), assume_a="banded")
