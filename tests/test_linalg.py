"""The public functions: right by LAPACK's ratios, and SciPy's in shape, type and meaning."""

from __future__ import annotations

import copy
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning

import hetero_la
from hetero_la import (
    Cluster,
    cho_factor,
    cho_solve,
    det,
    inv,
    lu,
    lu_factor,
    lu_solve,
    qr_factor,
    slogdet,
    solve,
)
from hetero_la.numerics.refinement import refine
from hetero_la.testing.matrices import generate, kinds
from hetero_la.testing.residuals import RATIO_LIMIT, lu_ratio, solve_ratio
from hetero_la.tiles.kernels.cpu import lapack
from tests.support import DTYPES, assert_close, covering, positive, random, spread

pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
NB = 8
#: Empty, one, below nb, nb, one more, ragged, several nb, tall, wide.
SIZES = [(0, 0), (0, 5), (5, 0), (1, 1), (1, 9), (9, 1), (5, 5), (8, 8), (9, 9), (29, 29), (64, 64),
         (61, 13), (13, 61), (40, 16), (16, 40)]  # fmt: skip
#: Kinds whose candidate pivots are never equal, nor equal up to rounding.
NO_TIES = ("rand", "rands", "randn", "dominant", "zero-first", "zero-middle", "zero-last", "svd",
           "near-underflow", "near-overflow", "kms", "shift", "identity")  # fmt: skip


def shapes(kind: str) -> list[tuple[int, int]]:
    return [(m, n) for m, n in SIZES if m == n or kind != "wilkinson"]


# --- factors, by the ratio and the pivots


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize(("kind", "dtype"), covering(kinds(), DTYPES))
def test_factors_of_every_kind_are_within_the_ratio(kind: str, dtype: str) -> None:
    for m, n in shapes(kind):
        a = generate(kind, m, n, dtype=dtype, seed=m + n)
        factors = lu_factor(a, nb=NB)
        packed, piv = factors
        assert (packed.shape, packed.dtype, piv.shape) == ((m, n), a.dtype, (min(m, n),))
        assert lu_ratio(a, packed, piv) < RATIO_LIMIT
        # Where candidates tie, any of them may be the pivot: none of L exceeds 1.
        below = np.tril(packed[:, : min(m, n)], -1)
        # A complex pivot is the largest by |re| + |im|, so that |L| may reach sqrt(2).
        bound = 1.0 if a.dtype.kind == "f" else 2**0.5
        assert np.abs(below).max(initial=0) <= bound * (1 + 20 * np.finfo(a.dtype).eps)
        assert np.all(piv >= np.arange(len(piv)))
        assert np.all(piv < max(m, 1))
        if m and n and kind in NO_TIES:
            expected, pivots = scipy.linalg.lu_factor(a)
            assert np.array_equal(piv, pivots)
            zero = np.flatnonzero(expected.diagonal() == 0)
            assert factors.info == (zero[0] + 1 if zero.size else 0)


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize("kind", ["orthog", "gfpp", "shift", "zero-middle", "svd"])
def test_factors_of_several_hundred_rows(kind: str) -> None:
    a = generate(kind, 300)
    with Cluster(cpus=1, gpus=0, virtual_gpus=2, blas_threads=1) as cluster:
        for panel in ("cpu", "gpu"):
            packed, piv = lu_factor(a, nb=32, client=cluster, panel=panel)
            assert lu_ratio(a, packed, piv) < RATIO_LIMIT


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_are_broken_as_lapack_does_within_a_panel(dtype: str) -> None:
    a = np.ones((6, 6), dtype) + np.eye(6, dtype=dtype)  # the first column: all but one tie
    a[0, 0] = 1
    packed, piv = lu_factor(a)
    assert np.array_equal(piv, scipy.linalg.lu_factor(a)[1])
    assert lu_ratio(a, packed, piv) < RATIO_LIMIT


def without_pivoting_between_blocks(a: NDArray, nb: int) -> tuple[NDArray, NDArray]:
    """LU that looks for pivots in the diagonal tile only."""
    packed, n = a.copy(), len(a)
    piv = np.arange(n)
    for k in range(0, n, nb):
        rows = slice(k, min(k + nb, n))
        tile, swaps = scipy.linalg.lu_factor(packed[rows, rows])
        piv[rows] = swaps + k
        for i, p in enumerate(swaps):
            packed[[k + i, k + p]] = packed[[k + p, k + i]]
        packed[rows, rows] = tile
        lower, upper = np.tril(tile, -1) + np.eye(len(tile)), np.triu(tile)
        rest = slice(rows.stop, n)
        packed[rows, rest] = np.linalg.solve(lower, packed[rows, rest])
        packed[rest, rows] = np.linalg.solve(upper.T, packed[rest, rows].T).T
        packed[rest, rest] -= packed[rest, rows] @ packed[rows, rest]
    return packed, piv


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
def test_the_kinds_would_show_pivots_that_are_missed() -> None:
    n = 96
    random_ratio = lu_ratio(
        generate("rand", n), *without_pivoting_between_blocks(generate("rand", n), NB)
    )
    a = generate("orthog", n)
    assert lu_ratio(a, *without_pivoting_between_blocks(a, NB)) > 1e6 * RATIO_LIMIT
    assert random_ratio < 1e3 * RATIO_LIMIT  # which is why random matrices are not enough
    with pytest.raises(np.linalg.LinAlgError):  # a singular leading tile
        without_pivoting_between_blocks(generate("shift", n), NB)
    assert lu_ratio(a, *lu_factor(a, nb=NB)) < RATIO_LIMIT


@pytest.mark.parametrize("bound", [0.0, 1.0, 1e4, float("inf")])
def test_substitution_and_the_inverse_agree(bound: float) -> None:
    a = random(50)
    factors = lu_factor(a, nb=NB, inverse_bound=bound)
    assert_close(factors.lu, scipy.linalg.lu_factor(a)[0])


# --- lu_factor


@pytest.mark.parametrize(("m", "n", "dtype"), spread(covering(SIZES, DTYPES)))
def test_lu_factor_is_scipy_s(m: int, n: int, dtype: str) -> None:
    a = random(m, n, dtype)
    packed, piv = factors = lu_factor(a, nb=NB)
    assert packed.flags.f_contiguous
    assert piv.dtype == np.int32
    assert (factors.info, factors.shape, factors.dtype) == (0, (m, n), a.dtype)
    expected, pivots = scipy.linalg.lu_factor(a)
    assert_close(packed, expected)
    assert np.array_equal(piv, pivots)


def variants(a: NDArray) -> dict[str, Any]:
    """One matrix, in every form in which NumPy can hold it."""
    wide = np.zeros((3 * a.shape[0], 2 * a.shape[1]), a.dtype)
    wide[::3, ::2] = a
    fixed = a.copy()
    fixed.flags.writeable = False
    swapped = a.astype(a.dtype.newbyteorder())
    unaligned = np.frombuffer(b"x" + a.tobytes("F"), np.uint8)[1:].view(a.dtype)
    return {
        "column-major": np.asfortranarray(a),
        "row-major": np.ascontiguousarray(a),
        "strided": wide[::3, ::2],
        "part": np.asfortranarray(np.pad(a, 2))[2:-2, 2:-2],
        "reversed": a[::-1, ::-1].copy()[::-1, ::-1],
        "read-only": fixed,
        "foreign": swapped,
        "unaligned": unaligned.reshape(a.shape, order="F"),
        "list": a.tolist(),
        "matrix": np.asmatrix(a),
    }


@pytest.mark.parametrize("form", variants(random(2)))
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_any_form_is_taken_and_left_as_it_is(form: str, dtype: str) -> None:
    a, b = random(21, dtype=dtype), random(21, 3, dtype, seed=1)
    given, right = variants(a)[form], variants(b)[form]
    before, expected = copy.deepcopy(given), scipy.linalg.lu_factor(a)
    with Cluster(cpus=1, gpus=0, virtual_gpus=2, blas_threads=1) as cluster:
        for client in (None, cluster):
            packed, piv = lu_factor(given, nb=NB, client=client)
            assert np.array_equal(piv, expected[1])
            assert np.allclose(packed, expected[0], atol=1e-4 if dtype == "complex64" else 1e-12)
            assert packed.flags.f_contiguous
            assert type(packed) is np.ndarray
            assert packed.dtype.isnative
            x = solve(given, right, nb=NB, client=client)
            assert solve_ratio(a, x, b) < RATIO_LIMIT
            assert np.array_equal(given, before)
            assert type(given) is type(before)


@pytest.mark.parametrize("function", [lu_factor, lu, det])
@pytest.mark.parametrize("form", ["column-major", "row-major", "strided", "part", "read-only"])
def test_overwriting_changes_no_result(function: Any, form: str) -> None:
    a = random(21)
    given = variants(a)[form]
    expected = function(a, nb=NB)
    found = function(given, overwrite_a=True, nb=NB)
    for one, other in (
        zip(np.atleast_1d(found), np.atleast_1d(expected), strict=True)
        if (function is det)
        else zip(found, expected, strict=True)
    ):
        assert np.allclose(one, other)
    if form == "read-only":
        assert np.array_equal(given, a)
    if function is lu_factor:
        assert np.shares_memory(found[0], given) == (form == "column-major")


@pytest.mark.parametrize(
    ("dtype", "function"), covering(DTYPES, [lu_factor, qr_factor, cho_factor])
)
def test_what_is_not_aligned_is_not_overwritten(function: Any, dtype: str) -> None:
    a = random(100, dtype=dtype)
    a = a @ a.conj().T + 100 * np.eye(100, dtype=dtype)
    memory = np.empty(a.nbytes + 1, np.uint8)
    given = memory[1:].view(a.dtype).reshape(a.shape, order="F")
    given[...] = a
    found = function(given if function is not cho_factor else given.T, overwrite_a=True, nb=NB)
    assert_close(found[0], function(a if function is not cho_factor else a.T, nb=NB)[0])
    assert np.array_equal(given, a)


def test_a_singular_matrix() -> None:
    for n, column in [(1, 0), (7, 3), (30, 29), (30, 0), (30, 8)]:
        a = random(n)
        a[:, column] = 0
        with pytest.warns(LinAlgWarning, match=f"Diagonal number {column + 1} is exactly zero"):
            factors = lu_factor(a, nb=NB)
        assert factors.info == column + 1
        assert lu_ratio(a, *factors) < RATIO_LIMIT
        with pytest.warns(LinAlgWarning):
            assert np.array_equal(scipy.linalg.lu_factor(a)[1], factors.piv)


def test_factors_unpack_copy_and_pickle() -> None:
    a, b = random(20), random(20, 2, seed=1)
    factors = lu_factor(a, nb=NB)
    packed, piv = factors
    assert len(factors) == 2
    assert packed is factors.lu is factors[0]
    assert piv is factors.piv is factors[1]
    assert_close(factors.solve(b), np.linalg.solve(a, b))
    assert_close(factors.solve(b[:, 0], trans=1), np.linalg.solve(a.T, b[:, 0]))
    assert_close(scipy.linalg.lu_solve(factors, b), np.linalg.solve(a, b))
    for again in (copy.copy(factors), copy.deepcopy(factors), pickle.loads(pickle.dumps(factors))):
        assert isinstance(again, hetero_la.LUFactors)
        assert np.array_equal(again.lu, packed)
        assert np.array_equal(again.piv, piv)
        assert again.info == 0
        assert again.plan.nb == NB
        assert again.timing.seconds == factors.timing.seconds
        assert_close(again.solve(b), np.linalg.solve(a, b))


def test_timing_and_plan_say_what_was_done() -> None:
    with Cluster(cpus=1, gpus=0, virtual_gpus=2, blas_threads=1) as cluster:
        factors = lu_factor(random(60), nb=NB, client=cluster, panel="cpu")
    timing = factors.timing
    assert [(row.name, row.kind) for row in timing.workers] == [
        ("gpu0", "virtual gpu"), ("gpu1", "virtual gpu"), ("cpu0", "cpu")
    ]  # fmt: skip
    assert 0 < timing.seconds < 60
    assert timing.load + timing.factor + timing.store >= timing.seconds * 0.99
    assert all(row.busy > 0 and row.calls > 0 for row in timing.workers)
    assert len(str(timing).splitlines()) == 4
    assert "panels on the cpu" in factors.plan.explain()


# --- lu_solve


@pytest.mark.parametrize(("trans", "dtype"), covering([0, 1, 2], DTYPES))
def test_lu_solve_is_scipy_s(trans: int, dtype: str) -> None:
    a = random(30, dtype=dtype)
    factors = lu_factor(a, nb=NB)
    for shape in [(30,), (30, 1), (30, 40), (30, 0)]:
        b = (
            random(30, 40, dtype, seed=1)[:, : shape[-1]]
            if len(shape) == 2
            else random(30, 1)[:, 0]
        )
        before = b.copy()
        x = lu_solve(factors, b, trans=trans)
        expected = scipy.linalg.lu_solve(scipy.linalg.lu_factor(a), b, trans=trans)
        assert_close(
            x, expected, limit=1e-2 if a.dtype.itemsize == 4 or dtype == "complex64" else 1e-9
        )
        assert np.array_equal(b, before)


def test_threads_solve_with_the_same_factors() -> None:
    a, b = random(80, 80, "float64"), random(80, 3, "float64")
    factors = lu_factor(a)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: lu_solve(factors, b), range(400)))
    expected = np.linalg.solve(a, b)
    assert all(np.allclose(x, expected) for x in found)


def test_a_right_hand_side_beside_a_much_larger_one_is_refined_too() -> None:
    a = generate("rands", 600)
    a[:, 0] = np.eye(600)[0]
    large, b = 2.0**60 * a[:, 0], random(600, 1, "float64")[:, 0]  # the first is solved exactly
    x = solve(a, np.column_stack([large, b]), nb=128)
    assert solve_ratio(a, x[:, 1], b) < 1


@pytest.mark.parametrize(("n", "dtype"), covering([9, 128, 400], DTYPES))
def test_many_right_hand_sides_are_refined_where_they_need_it(n: int, dtype: str) -> None:
    a = generate("rands", n, dtype=dtype)
    assert solve_ratio(a, solve(a, a), a) < RATIO_LIMIT
    assert solve_ratio(a, solve(a, np.asfortranarray(a)[:, 1:]), a[:, 1:]) < RATIO_LIMIT


@pytest.mark.parametrize("n", [100, 300])
def test_refinement_finds_a_wrong_column_and_leaves_the_others(n: int) -> None:
    a, b = generate("rands", n), generate("rands", n, seed=1)
    factors, anorm = scipy.linalg.lu_factor(a), np.linalg.norm(a, 1)
    exact = scipy.linalg.lu_solve(factors, b)
    solved: list[int] = []

    def solve_again(residual: np.ndarray) -> np.ndarray:
        solved.append(residual.shape[1])
        return scipy.linalg.lu_solve(factors, residual)

    assert np.array_equal(refine(a, anorm, solve_again, b, exact.copy()), exact)
    assert not solved  # what is good enough costs no solve
    eps = np.finfo(float).eps
    for column in (0, 1, 77, n - 1):
        wrong = exact.copy()
        wrong[:, column] *= 1 + 2000 * eps * random(n, 1)[:, 0]
        assert solve_ratio(a, wrong, b) > RATIO_LIMIT
        x = refine(a, anorm, solve_again, b, wrong)
        assert solve_ratio(a, x, b) < RATIO_LIMIT
        if n == 300:  # few have been looked at one by one
            assert solved.pop() < 10
            assert (x != exact).any(axis=0).sum() < 10


@pytest.mark.parametrize(
    ("rcond", "error", "enough"),
    [(0.0, 1e-12, False), (1e-8, 1e-12, False), (1e-7, 1e-12, True), (1e-7, 1e-9, False)],
)
def test_one_step_is_enough_if_condition_and_error_are_known_to_be_good(
    rcond: float, error: float, enough: bool
) -> None:
    a, x = generate("rands", 200), random(200, 1)
    b = a @ x
    solved: list[int] = []

    def solve_badly(residual: np.ndarray) -> np.ndarray:  # so that a second step would pay
        solved.append(1)
        return 0.9 * np.linalg.solve(a, residual)

    refine(a, np.linalg.norm(a, 1), solve_badly, b, (1 + error) * x, rcond)
    assert (len(solved) == 1) == enough


@pytest.mark.parametrize("nrhs", [1, 5])
@pytest.mark.parametrize("count", [None, 4])
def test_large_growth_is_refined_until_the_error_is_small(count: int | None, nrhs: int) -> None:
    n = 70
    a = np.eye(n) - np.tril(np.ones((n, n)), -1)
    a[:, -1] = 1  # U's last entry is 2^69
    b = random(n, nrhs)
    given = a if count is None else np.stack([a] * count)
    x = hetero_la.solve(given, b)
    x = x if count is None else x[-1]
    size = np.linalg.norm(a, 1) * np.abs(x).sum(axis=0)
    assert (np.abs(b - a @ x).sum(axis=0) <= 15 * np.finfo(float).eps * size).all()


@pytest.mark.parametrize(
    ("order", "columns", "dtype"), covering(["C", "F", "neither"], [0, 1, 3], DTYPES)
)
def test_factors_in_any_order_solve(order: Any, columns: int, dtype: str) -> None:
    a, b = positive(20, dtype), random(20, max(columns, 1), dtype, seed=1)
    b = b if columns else b[:, 0]
    for lower in (False, True):
        c = np.asarray(scipy.linalg.cho_factor(a, lower)[0], order="F" if order == "F" else "C")
        lu, piv = scipy.linalg.lu_factor(a)
        if order == "neither":
            c, lu = (np.repeat(x, 2, axis=0)[::2] for x in (c, lu))
        for overwrite in (False, True):
            for right in (b, b.astype("complex128"), np.asfortranarray(b)):
                expected = np.linalg.solve(a, right)
                for solve_with, factors in ((cho_solve, (c, lower)), (lu_solve, (lu, piv))):
                    given = right.copy("K")
                    x = solve_with(factors, given, overwrite_b=overwrite)
                    assert x.dtype == np.result_type(a, right)
                    error = np.abs(x - expected).max() / np.abs(expected).max()
                    assert error < (1e-12 if dtype in DTYPES[1::2] else 1e-4)
                    assert overwrite or np.array_equal(given, right)
    for empty in (b[:0], b[:, :0] if columns else b[:0]):
        shape = np.eye(len(empty), dtype=dtype)
        assert lapack.cho_solve(shape, empty, True).shape == empty.shape


@pytest.mark.parametrize("copies", [2, 6, 8, 14, 16])
@pytest.mark.parametrize("zero", [False, True])
def test_equal_right_hand_sides_do_not_cancel(copies: int, zero: bool) -> None:
    n = 28
    a = -0.9 * np.tril(np.ones((n, n)), -1) + np.eye(n)  # whose factors grow
    a[:, -1] = 1
    a += 3e-3 * random(n)
    b = np.repeat(random(n, 1, seed=1), copies, axis=1)
    b = np.column_stack([b, np.zeros(n)]) if zero else b
    for x in (solve(a, b, assume_a="gen"), solve(np.stack([a, a]), b, assume_a="gen")[1]):
        assert solve_ratio(a, x, b) < RATIO_LIMIT


def test_read_only_right_hand_sides_are_not_overwritten() -> None:
    a, b = positive(20), random(20, 3, "float64").copy(order="F")
    before = b.copy()
    b.flags.writeable = False
    for solve_with, factors in ((lu_solve, lu_factor(a)), (cho_solve, cho_factor(a))):
        x = solve_with(factors, b, overwrite_b=True)
        assert np.array_equal(b, before)
        assert np.allclose(a @ x, before)


def test_lu_solve_of_nothing_keeps_the_shape() -> None:
    factors = lu_factor(np.empty((0, 0)))
    assert lu_solve(factors, np.empty(0)).shape == (0,)
    assert lu_solve(factors, np.empty((0, 3))).shape == (0, 3)


# --- lu


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("m", "n", "dtype"), spread(covering(SIZES, DTYPES)))
def test_lu_is_scipy_s(m: int, n: int, dtype: str) -> None:
    a = random(m, n, dtype)
    for options in ({}, {"permute_l": True}, {"p_indices": True}):
        found, expected = lu(a, nb=NB, **options), scipy.linalg.lu(a, **options)
        for one, other in zip(found, expected, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            assert np.allclose(one, other, atol=1e-3 if dtype in DTYPES[::2] else 1e-11)


@pytest.mark.filterwarnings("error")
def test_lu_of_a_singular_matrix_says_nothing() -> None:
    p, lower, upper = lu(np.ones((3, 3)))
    assert np.array_equal(p @ lower @ upper, np.ones((3, 3)))


# --- solve


@pytest.mark.parametrize(("n", "dtype"), covering([0, 1, 5, 8, 29, 64], DTYPES))
def test_solve_by_the_ratio(n: int, dtype: str) -> None:
    a = random(n, dtype=dtype, seed=n)
    for nrhs in (0, 1, 7, 8, 20):
        b = random(n, nrhs, dtype, seed=1)
        before = a.copy(), b.copy()
        x = solve(a, b, nb=NB)
        assert (x.shape, x.dtype) == (b.shape, a.dtype)
        assert x.flags.f_contiguous
        assert solve_ratio(a, x, b) < RATIO_LIMIT
        assert np.array_equal(a, before[0])
        assert np.array_equal(b, before[1])
    x = solve(a, np.ones(n), nb=NB)
    assert x.shape == (n,)
    assert solve_ratio(a, x, np.ones(n)) < RATIO_LIMIT


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize(
    ("kind", "dtype"), covering([kind for kind in kinds() if not kind.startswith("zero")], DTYPES)
)
def test_solutions_for_every_kind_are_within_the_ratio(kind: str, dtype: str) -> None:
    a = generate(kind, 50, dtype=dtype)
    b = random(50, 3, dtype)
    assert solve_ratio(a, solve(a, b, nb=NB), b) < RATIO_LIMIT


@pytest.mark.parametrize("given", ["float32", "float64"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_solve_transposed(given: str, overwrite: bool) -> None:
    a, b = random(30, dtype=given), random(30, 2, given, seed=1)
    x = solve(a.copy(), b.copy(), nb=NB, transposed=True, overwrite_a=overwrite,
              overwrite_b=overwrite)  # fmt: skip
    assert solve_ratio(a.T, x, b) < RATIO_LIMIT


@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("second", [*DTYPES, "int32"])
def test_solve_with_two_types_has_scipy_s_dtype(first: str, second: str) -> None:
    a, b = random(10, dtype=first), np.ones(10, second)
    x = solve(a, b, nb=NB)
    assert x.dtype == scipy.linalg.solve(a, b).dtype
    assert solve_ratio(a.astype(x.dtype), x, b.astype(x.dtype)) < RATIO_LIMIT * 10


def test_solve_warns_as_scipy_does() -> None:
    a = generate("hilb", 20)
    with pytest.warns(LinAlgWarning, match=r"^An ill-conditioned matrix .*: rcond = .*e-\d+\."):
        x = solve(a, np.ones(20), nb=NB)
    assert solve_ratio(a, x, np.ones(20)) < RATIO_LIMIT
    with pytest.warns(LinAlgWarning):
        scipy.linalg.solve(a, np.ones(20))


@pytest.mark.filterwarnings("error")
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [2, 20, 400])
def test_a_norm_out_of_range_is_one_warning(n: int, order: Any) -> None:
    a = 1e308 * np.eye(n, order=order)
    a[1:, 0] = 9e307
    b = a[:, 1].copy()
    with Cluster(cpus=1, gpus=0, virtual_gpus=2, blas_threads=1) as cluster:
        for options in ({}, {"nb": -(-n // 3), "client": cluster}):
            with pytest.warns(LinAlgWarning, match=r"^An ill-cond.*: rcond = 0\.") as caught:
                x = solve(a, b, **options)
            assert [w.filename for w in caught] == [__file__]
            assert np.allclose(x, np.eye(n)[1])
    a[0, 0] = np.inf
    with pytest.warns(LinAlgWarning, match=r"Ill-conditioned matrix"):
        solve(a, b, check_finite=False)


@pytest.mark.parametrize("assume_a", [None, "gen", "general"])
def test_solve_takes_scipy_s_arguments(assume_a: str | None) -> None:
    a, b = random(9), random(9, 2, seed=1)
    x = solve(a, b, lower=True, overwrite_a=True, overwrite_b=True, check_finite=False,
              assume_a=assume_a)  # fmt: skip
    assert_close(x, scipy.linalg.solve(random(9), random(9, 2, seed=1)))


def test_solve_with_report_tells_plan_and_times() -> None:
    x, report = hetero_la.solve_with_report(random(9), np.ones(9), nb=4)
    assert_close(x, np.linalg.solve(random(9), np.ones(9)))
    assert report.plan.routine == "solve"
    assert report.timing.seconds > 0


@pytest.mark.parametrize("first", [*DTYPES, "int32"])
@pytest.mark.parametrize("second", ["float32", "complex128", "int32"])
def test_solving_nothing_is_scipy_s(first: str, second: str) -> None:
    for n, shape in [(0, (0,)), (0, (0, 3)), (0, (0, 0)), (3, (3, 0))]:
        a, b = np.zeros((n, n), first), np.ones(shape, second)  # singular: nobody looks
        assert_close(solve(a, b), scipy.linalg.solve(a, b))
        factors = np.zeros((n, n), first), np.zeros(n, np.int32)
        assert_close(lu_solve(factors, b), scipy.linalg.lu_solve(factors, b))


# --- inv, det, slogdet


@pytest.mark.parametrize(("n", "dtype"), covering([0, 1, 8, 29], DTYPES))
def test_inv_is_scipy_s(n: int, dtype: str) -> None:
    a = random(n, dtype=dtype)
    before = a.copy()
    x = inv(a, nb=NB)
    expected = scipy.linalg.inv(a)
    assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
    assert solve_ratio(a, x, np.eye(n, dtype=dtype)) < RATIO_LIMIT
    assert np.array_equal(a, before)
    assert np.array_equal(inv(a.copy("F"), overwrite_a=True, nb=NB), x)


@pytest.mark.parametrize(("n", "dtype"), covering([0, 1, 8, 29], [*DTYPES, "int64"]))
def test_determinants_are_scipy_s(n: int, dtype: str) -> None:
    a = random(n, dtype=dtype) if dtype != "int64" else (random(n) * 5).round().astype(dtype)
    expected = scipy.linalg.det(a)
    found = det(a, nb=NB)
    assert type(found) is type(expected)
    assert found == pytest.approx(expected, rel=1e-3 if dtype in DTYPES[::2] else 1e-9, abs=1e-9)
    sign, logabs = slogdet(a, nb=NB)
    wanted = np.linalg.slogdet(a)
    assert (sign.dtype, logabs.dtype) == (wanted.sign.dtype, wanted.logabsdet.dtype)
    assert sign == pytest.approx(wanted.sign, abs=1e-3)
    if np.isfinite(wanted.logabsdet):
        assert logabs == pytest.approx(wanted.logabsdet, abs=1e-2 if dtype in DTYPES[::2] else 1e-9)


@pytest.mark.filterwarnings("error")
def test_determinant_of_a_singular_matrix_is_zero() -> None:
    assert det(np.ones((4, 4))) == 0
    sign, logabs = slogdet(np.ones((4, 4)))
    assert (sign, logabs) == (0, -np.inf)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_determinant_of_a_singular_matrix_of_large_entries_is_zero(dtype: str) -> None:
    a = np.diag([1e200, -1e200, 0, 1]).astype(dtype)
    assert det(a) == scipy.linalg.det(a) == 0
    assert type(det(a)) is type(scipy.linalg.det(a))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", DTYPES)
def test_determinants_are_right_wherever_they_can_be_represented(dtype: str) -> None:
    large = float(np.finfo(dtype).max) ** 0.7
    a = np.diag([large] * 3 + [1 / large] * 3).astype(dtype)
    unit = 1j if a.dtype.kind == "c" else 1
    for order in range(6), (0, 3, 1, 4, 2, 5), (5, 4, 3, 2, 1, 0):
        assert det(a[np.ix_(order, order)] * unit) == pytest.approx(unit**6, rel=1e-6)
    assert slogdet(a) == pytest.approx((1, 0), abs=1e-5)
    many = np.diag(np.tile([large, -3 * unit, 1 / large, 1 / 3], 80).astype(dtype))
    assert det(many) == pytest.approx(unit**80, rel=1e-4)


@pytest.mark.filterwarnings("error")
def test_determinants_at_the_ends_of_the_range() -> None:
    assert det(np.diag([1e-200, 1e-123])) == 1e-323  # subnormal
    assert det(np.diag([1e-200, 1e-200])) == 0
    assert det(np.diag([1e200, 1e200, -1.0])) == -np.inf
    assert det(np.diag(np.full(4, 1e200 + 1e200j))).real == -np.inf  # SciPy has NaN
    graded = np.array([[1.0, 1.0], [0.0, 1e-300]])
    assert det(graded) == det(graded.copy("F"), overwrite_a=True) == 1e-300
    assert np.isnan(det(np.diag([np.nan, 1.0]), check_finite=False))
    assert det(np.diag([np.inf, 1.0]), check_finite=False) == np.inf


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("dtype", "overwrite_a"), covering(DTYPES, [False, True]))
def test_determinants_where_elimination_leaves_the_range(dtype: str, overwrite_a: bool) -> None:
    kind, top = np.dtype(dtype).kind, float(np.finfo(dtype).max)
    a = random(30, dtype=dtype)
    up = np.log2(0.99 * top / np.abs(np.stack([a.real, a.imag])).max()) // 1
    expected = np.linalg.slogdet(a)
    sign, logabsdet = slogdet(a * a.dtype.type(2.0**up), nb=NB)
    assert sign == pytest.approx(expected.sign, abs=1e-3)
    assert logabsdet == pytest.approx(expected.logabsdet + 30 * up * np.log(2), rel=1e-6)
    up -= up % 2
    scales = np.ldexp(1.0, np.where(np.arange(30) % 3, -up / 2, up).astype(int))
    scaled = np.asfortranarray(a * scales.astype(a.real.dtype))
    found = det(scaled, overwrite_a=overwrite_a, nb=NB)
    assert found == pytest.approx(det(a), rel=1e-3 if dtype in DTYPES[::2] else 1e-9)
    assert type(found) is (np.complex128 if kind == "c" else np.float64)
    n = 200 if dtype in DTYPES[::2] else 1200
    grown = np.tri(n, dtype=dtype) * -1 + 2 * np.eye(n, dtype=dtype)
    grown[:, -1] = 1  # doubles in every step
    assert slogdet(grown).logabsdet == pytest.approx((len(grown) - 1) * np.log(2), rel=1e-6)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_slogdet_of_numbers_whose_moduli_overflow(dtype: str) -> None:
    a = np.diag(np.full(3, 0.9 * (1 + 1j) * np.finfo(dtype).max)).astype(dtype)
    sign, logabsdet = slogdet(a)
    assert (sign.dtype, logabsdet.dtype) == (a.dtype, a.real.dtype)
    assert np.isclose(sign, (-1 + 1j) / np.sqrt(2))
    assert np.isclose(logabsdet, 3 * (np.log(float(a.real.max())) + np.log(2) / 2))


def test_slogdet_of_infinities_that_nobody_looked_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(slogdet(np.diag([np.inf, 1.0]), check_finite=False).sign)


def test_determinants_in_threads_leave_the_warnings_filters() -> None:
    filters, a = list(warnings.filters), random(20)
    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(det, [a] * 100))) == 1
        list(threads.map(slogdet, [a] * 100))
        list(threads.map(lu, [a] * 100))
    assert list(warnings.filters) == filters


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_determinants_out_of_range(scale: float) -> None:
    a = random(9) * scale
    expected = np.linalg.slogdet(a)
    assert slogdet(a, nb=4) == pytest.approx(tuple(expected))
    assert det(a, nb=4) == (0 if scale < 1 else np.inf * expected.sign)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", DTYPES)
def test_slogdet_of_subnormal_pivots(dtype: str) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    a = np.diag(np.array([3, 1, -2])).astype(dtype)
    if a.dtype.kind == "c":
        a[0, 0], a[2, 2] = 3 + 4j, -2j
    a *= tiny
    assert slogdet(a) == pytest.approx(tuple(np.linalg.slogdet(a)))


def test_sign_of_every_permutation_is_right() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        p = np.eye(17)[rng.permutation(17)]
        assert det(p, nb=4) == np.round(np.linalg.det(p))
        assert slogdet(p, nb=4).sign == np.round(np.linalg.det(p))
