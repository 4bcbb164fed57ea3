from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg as sl

from hetero_la._kinds import GFPP_GROWTH
from hetero_la.matrices import DTYPES, generate, kinds
from hetero_la.residuals import RATIO_LIMIT, lu_ratio, solve_ratio

SHAPES = [(0, 0), (0, 3), (3, 0), (1, 1), (2, 2), (33, 33), (40, 25), (25, 40)]
SINGULAR = ("zero-first", "zero-middle", "zero-last")


def shapes(kind: str) -> list[tuple[int, int]]:
    return [(m, n) for m, n in SHAPES if m == n or kind != "wilkinson"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", kinds())
def test_every_kind_has_the_shape_and_type_asked_for(kind: str, dtype: str) -> None:
    for m, n in shapes(kind):
        a = generate(kind, m, n, dtype=dtype, seed=3)
        assert a.shape == (m, n)
        assert a.dtype == dtype
        assert a.flags.f_contiguous
        assert a.flags.writeable
        assert np.isfinite(a).all()
        assert np.array_equal(a, generate(kind, m, n, dtype=dtype, seed=3))


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", kinds())
def test_lapack_passes_on_every_kind(kind: str, dtype: str) -> None:
    for m, n in [(m, n) for m, n in shapes(kind) if m and n]:
        a = generate(kind, m, n, dtype=dtype)
        assert lu_ratio(a, *sl.lu_factor(a)) < RATIO_LIMIT


@pytest.mark.parametrize("kind", kinds())
def test_complex_kinds_are_complex(kind: str) -> None:
    if kind != "identity":
        assert np.abs(generate(kind, 12, dtype="complex128").imag).max() > 0


@pytest.mark.parametrize("kind", ["rand", "rands", "randn", "svd", "near-overflow"])
def test_seeds_make_different_matrices(kind: str) -> None:
    assert not np.array_equal(generate(kind, 5, seed=1), generate(kind, 5, seed=2))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_orthog_is_orthogonal(dtype: str) -> None:
    q = generate("orthog", 200, dtype=dtype)
    assert np.linalg.norm(q.conj().T @ q - np.eye(200), 2) < 1e-13


def test_orthog_shows_missing_pivoting() -> None:
    a = generate("orthog", 100)
    unpivoted = a.copy()
    for k in range(99):
        unpivoted[k + 1 :, k] /= unpivoted[k, k]
        unpivoted[k + 1 :, k + 1 :] -= np.outer(unpivoted[k + 1 :, k], unpivoted[k, k + 1 :])
    assert lu_ratio(a, unpivoted, np.arange(100)) > 100 * RATIO_LIMIT


@pytest.mark.parametrize(("n", "growth"), [(2, 2.0), (5, 16.0), (100, 100.0 * GFPP_GROWTH)])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_gfpp_grows(n: int, growth: float, dtype: str) -> None:
    upper = np.triu(sl.lu_factor(generate("gfpp", n, dtype=dtype))[0])
    assert np.abs(upper).max() == pytest.approx(growth, rel=1e-8)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_shift_swaps_at_every_step(dtype: str) -> None:
    a = generate("shift", 20, dtype=dtype)
    assert not np.abs(a[0, :-1]).any()
    assert np.allclose(a.conj().T @ a, np.eye(20))
    assert np.array_equal(sl.lu_factor(a)[1], [*range(1, 20), 19])


@pytest.mark.parametrize(("kind", "column"), [*zip(SINGULAR, (0, 4, 8), strict=True)])
def test_one_column_is_zero(kind: str, column: int) -> None:
    zero = [j for j, values in enumerate(generate(kind, 9).T) if not values.any()]
    assert zero == [column]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("kind", ["kms", "moler", "hilb"])
def test_positive_definite_kinds(kind: str, dtype: str) -> None:
    a = generate(kind, 8, dtype=dtype)
    assert np.array_equal(a, a.conj().T)
    assert np.linalg.eigvalsh(a)[0] > 0


def test_entries_of_kinds_with_a_formula() -> None:
    assert np.array_equal(generate("hilb", 6), sl.hilbert(6))
    assert np.array_equal(generate("kms", 5), sl.toeplitz(0.5 ** np.arange(5.0)))
    lower = np.eye(5) - np.tril(np.ones((5, 5)), -1)
    assert np.array_equal(generate("moler", 5), lower @ lower.T)
    assert np.array_equal(
        generate("wilkinson", 5), np.diag([2.0, 1, 0, 1, 2]) + np.eye(5, k=1) + np.eye(5, k=-1)
    )


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_svd_has_the_condition_asked_for(dtype: str) -> None:
    sigma = np.linalg.svd(generate("svd", 30, 20, dtype=dtype, cond=1e6), compute_uv=False)
    assert np.allclose(sigma, 1e6 ** -np.linspace(0, 1, 20), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_are_near_the_ends_of_the_range(dtype: str) -> None:
    info = np.finfo(dtype)
    # Squares are out of range, sums of a few thousand entries are not.
    large = float(np.abs(generate("near-overflow", 50, dtype=dtype)).max())
    small = float(np.abs(generate("near-underflow", 50, dtype=dtype)).max())
    assert np.sqrt(float(info.max)) < large < float(info.max) / 1e5
    assert float(info.tiny) * 1e5 < small < np.sqrt(float(info.tiny))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nonsense", 3), "unknown kind of matrix 'nonsense'; known are rand"),
        (("wilkinson", 3, 4), "square only, but 3 x 4"),
        (("rand", -1), "-1 x -1"),
    ],
)
def test_what_cannot_be_made_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(*arguments)


@pytest.mark.parametrize("dtype", ["float16", "int64", "longdouble"])
def test_other_types_are_refused(dtype: str) -> None:
    with pytest.raises(ValueError, match="is not one of float32"):
        generate("rand", 3, dtype=dtype)


@pytest.mark.parametrize(("kind", "cond"), [("rand", 10.0), ("svd", 0.5), ("svd", np.inf)])
def test_a_condition_that_means_nothing_is_refused(kind: str, cond: float) -> None:
    with pytest.raises(ValueError, match="cond="):
        generate(kind, 3, cond=cond)


# --- residuals -------------------------------------------------------------------------


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
    expected = 1 / (np.linalg.norm(a, 1) * np.linalg.norm(x, 1) * eps)
    assert solve_ratio(a, x, b) == pytest.approx(expected, rel=0.05)
    assert solve_ratio(a, x[:, 1], b[:, 1]) == pytest.approx(
        1 / (np.linalg.norm(a, 1) * np.linalg.norm(x[:, 1], 1) * eps), rel=0.05
    )


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3, 4\)"):
        lu_ratio(np.eye(3), np.ones((3, 4)), np.arange(3))
    with pytest.raises(ValueError, match="do not match"):
        solve_ratio(np.eye(3), np.ones(4), np.ones(3))
