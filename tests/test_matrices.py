from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg as sl

from hetero_la.testing.kinds import GFPP_GROWTH, KINDS
from hetero_la.testing.matrices import DTYPES, generate, kinds
from hetero_la.testing.residuals import RATIO_LIMIT, lu_ratio, qr_factors_ratio

SHAPES = [(0, 0), (0, 3), (3, 0), (1, 1), (2, 2), (33, 33), (40, 25), (25, 40)]
SPD = ("spd", "spd-underflow", "spd-overflow")
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
        assert qr_factors_ratio(a, *sl.qr(a, mode="raw")[0]) < RATIO_LIMIT


@pytest.mark.parametrize("kind", kinds())
def test_complex_kinds_are_complex(kind: str) -> None:
    if kind != "identity":
        assert np.abs(generate(kind, 12, dtype="complex128").imag).max() > 0


@pytest.mark.parametrize("kind", kinds())
def test_seeds_make_different_matrices_of_random_kinds(kind: str) -> None:
    same = np.array_equal(generate(kind, 5, seed=1), generate(kind, 5, seed=2))
    assert same == (not KINDS[kind].random)


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
def test_gfpp_grows_as_its_formula_says(n: int, growth: float, dtype: str) -> None:
    upper = np.triu(sl.lu_factor(generate("gfpp", n, dtype=dtype))[0])
    assert np.abs(upper).max() == pytest.approx(growth, rel=1e-8)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_shift_swaps_at_every_step(dtype: str) -> None:
    a = generate("shift", 20, dtype=dtype)
    assert not np.abs(a[0, :-1]).any()
    assert np.allclose(a.conj().T @ a, np.eye(20))
    assert np.array_equal(sl.lu_factor(a)[1], [*range(1, 20), 19])


@pytest.mark.parametrize(("kind", "column"), [*zip(SINGULAR, (0, 4, 8), strict=True)])
def test_exactly_the_column_named_is_zero(kind: str, column: int) -> None:
    zero = [j for j, values in enumerate(generate(kind, 9).T) if not values.any()]
    assert zero == [column]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("kind", ["kms", "moler", "hilb", *SPD])
def test_positive_definite_kinds(kind: str, dtype: str) -> None:
    a = generate(kind, 8, dtype=dtype)
    assert np.array_equal(a, a.conj().T)
    assert np.linalg.eigvalsh(a / np.abs(a).max())[0] > 0
    assert np.array_equal(generate(kind, 8, 5, dtype=dtype), a[:, :5])


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_spd_has_the_eigenvalues_asked_for(dtype: str) -> None:
    found = np.linalg.eigvalsh(generate("spd", 40, dtype=dtype, cond=1e5))
    assert np.allclose(found[::-1], 1e5 ** -np.linspace(0, 1, 40), rtol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_svd_eps_is_singular_to_working_precision(dtype: str) -> None:
    sigma = np.linalg.svd(generate("svd-eps", 30, dtype=dtype).astype("c16"), compute_uv=False)
    assert sigma[-1] == pytest.approx(float(np.finfo(dtype).eps), rel=0.9)
    assert sigma[0] == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(("m", "n"), [(9, 9), (20, 7), (7, 20), (2, 2)])
def test_rankdef_has_half_the_full_rank(m: int, n: int, dtype: str) -> None:
    a = generate("rankdef", m, n, dtype=dtype)
    assert np.linalg.matrix_rank(a) == (min(m, n) + 1) // 2
    assert len(np.unique(a, axis=1).T) == (min(m, n) + 1) // 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_of_colscale_span_the_range(dtype: str) -> None:
    a = generate("colscale", 30, 20, dtype=dtype)
    sizes = np.sort(np.abs(a).max(axis=0).astype(np.float64))
    for size, kind in ((sizes[0], "near-underflow"), (sizes[-1], "near-overflow")):
        assert size == pytest.approx(np.abs(generate(kind, 30, dtype=dtype)).max(), rel=0.5)
    steps = np.diff(np.log10(sizes))
    assert np.allclose(steps, steps.mean(), atol=0.5)


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
        (("nonsense", 3), "there is no kind of matrix 'nonsense'; there are rand"),
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


@pytest.mark.parametrize(("kind", "cond"), [("rand", 10.0), ("svd", 0.5), ("spd", np.inf)])
def test_a_condition_that_means_nothing_is_refused(kind: str, cond: float) -> None:
    with pytest.raises(ValueError, match="cond="):
        generate(kind, 3, cond=cond)
