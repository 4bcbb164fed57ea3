"""Least squares: right by LAPACK's ratio, and SciPy's in shape, residues, rank and values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.linalg
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning

from hetero_la import Cluster, lstsq, lstsq_with_report
from hetero_la.api import lstsq as lstsq_module
from hetero_la.numerics.triangle_lstsq import lstsq_by_svd, square_lstsq
from hetero_la.testing.matrices import generate
from tests.support import DTYPES, LIMIT, assert_close, covering, lstsq_ratio, random, spread

NB = 8
OF_ANY_RANK = ("gelsd", "gelss", "gelsy")
DRIVERS = (*OF_ANY_RANK, "gels")
#: One, below nb, nb, one more, ragged, several nb, tall, wide.
SIZES = [(1, 1), (1, 9), (9, 1), (5, 5), (8, 8), (9, 9), (29, 29), (61, 13), (13, 61), (40, 16),
         (16, 40), (61, 60), (60, 61)]  # fmt: skip


@pytest.fixture(scope="module", params=["gpu", "cpu"])
def on_cluster(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    with Cluster(cpus=1, gpus=0, virtual_gpus=2, blas_threads=1) as running:
        yield {"client": running, "panel": request.param, "nb": NB}


def well_conditioned(m: int, n: int, dtype: str) -> NDArray:
    return generate("svd", m, n, dtype=dtype, cond=10.0, seed=m + n)


def right_hand_side(m: int, shape: tuple[int, ...], dtype: str) -> NDArray:
    b = random(m, 20, dtype, seed=3)
    return b[:, : shape[0]] if shape else b[:, 0]


def scipy_s(a: NDArray, b: NDArray, driver: str = "gelsd", cond: float | None = None) -> Any:
    """What the newest SciPy returns, by whichever there is."""
    theirs = "gelsd" if driver == "gels" else driver
    x, squares, rank, s = scipy.linalg.lstsq(a, b, cond, lapack_driver=theirs)
    if a.shape[0] > a.shape[1] > rank and driver != "gelsy":
        squares = np.full(b.shape[1:], np.nan)
    return x, np.asarray(squares, x.dtype), np.int64(rank), None if driver == "gels" else s


def check(
    found: Any, a: NDArray, b: NDArray, driver: str = "gelsd", cond: float | None = None
) -> None:
    """Equal kinds, shapes, dtypes and ranks, and equal values up to rounding."""
    x, squares, rank, s = scipy_s(a, b, driver, cond)
    assert len(found) == 4
    assert_close(found[0], x)
    assert type(found[2]) is np.int64
    assert found[2] == rank
    assert (found[3] is None) == (s is None)
    if s is not None:
        assert_close(found[3], s)
    if np.isnan(squares).any():
        assert (found[1].shape, found[1].dtype) == (squares.shape, squares.dtype)
        assert np.isnan(found[1]).all()
    else:
        assert_close(found[1], squares)


# --- against SciPy


@pytest.mark.parametrize(("m", "n", "dtype"), spread(covering(SIZES, DTYPES)))
def test_solutions_are_scipy_s(m: int, n: int, dtype: str) -> None:
    a = well_conditioned(m, n, dtype)
    for shape in [(), (1,), (20,)]:
        b = right_hand_side(m, shape, dtype)
        before = a.copy(), b.copy()
        for driver in DRIVERS:
            check(lstsq(a, b, lapack_driver=driver, nb=NB), a, b, driver)
        assert np.array_equal(a, before[0])
        assert np.array_equal(b, before[1])
    check(lstsq(a, b, nb=NB), a, b)
    for driver in DRIVERS:  # SciPy refuses to solve for nothing
        found = lstsq(a, right_hand_side(m, (0,), dtype), lapack_driver=driver, nb=NB)
        assert (found[0].shape, found[0].dtype, found[2]) == ((n, 0), a.dtype, min(m, n))
        assert found[1].size == 0


@pytest.mark.parametrize("lookahead", [0, 1, 2])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (9, 9), (61, 13), (13, 61), (30, 29)])
def test_on_a_cluster(m: int, n: int, lookahead: int, on_cluster: dict[str, Any]) -> None:
    a = well_conditioned(m, n, DTYPES[lookahead + 1])
    options = {**on_cluster, "lookahead": lookahead}
    for shape in [(), (20,)]:
        b = right_hand_side(m, shape, a.dtype.name)
        for driver in ("gelsd", "gels"):
            check(lstsq(a, b, lapack_driver=driver, **options), a, b, driver)


@pytest.mark.parametrize(
    ("m", "n", "driver", "routine"),
    [(30, 20, None, "qr"), (20, 30, "gelsy", "qr"), (30, 20, "gels", "lstsq"),
     (20, 30, "gels", "minimum_norm")],
)  # fmt: skip
def test_with_report(m: int, n: int, driver: Any, routine: str, on_cluster: dict[str, Any]) -> None:
    a, b = well_conditioned(m, n, "float64"), right_hand_side(m, (2,), "float64")
    *found, report = lstsq_with_report(a, b, lapack_driver=driver, **on_cluster)
    check(found, a, b, driver or "gelsd")
    assert (report.plan.routine, report.plan.panel) == (routine, on_cluster["panel"])
    assert report.timing.seconds > 0


@pytest.mark.parametrize("driver", OF_ANY_RANK)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize(("m", "n"), [(0, 0), (0, 5), (5, 0)])
@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_empty_problems_are_scipy_s(
    m: int, n: int, shape: tuple[int, ...], dtype: str, driver: str
) -> None:
    a, b = np.empty((m, n), dtype), np.ones((m, *shape), dtype)
    found = lstsq(a, b, lapack_driver=driver)
    expected = scipy.linalg.lstsq(a, b, lapack_driver=driver)
    for one, other in zip(found, expected, strict=True):
        assert np.shape(one) == np.shape(other)
        assert np.allclose(one, other)
    for i in (0, 1, 3):
        assert found[i].dtype == expected[i].dtype


@pytest.mark.parametrize("first", [*DTYPES, "int32"])
@pytest.mark.parametrize("second", [*DTYPES, "int32"])
def test_two_types_are_joined_as_by_scipy(first: str, second: str) -> None:
    for m, n in [(9, 5), (5, 9)]:
        a, b = (well_conditioned(m, n, "float64") * 9).astype(first), np.ones(m, second)
        expected = scipy.linalg.lstsq(a, b)[0]
        assert_close(lstsq(a, b, nb=4)[0], expected, limit=1e-3)


@pytest.mark.parametrize("form", ["C", "F", "strided", "part", "read-only", "list"])
def test_any_form_is_taken_and_left_as_it_is_unless_given_away(
    form: str, on_cluster: dict[str, Any]
) -> None:
    for m, n in [(29, 21), (21, 29)]:
        a, b = well_conditioned(m, n, "float64"), right_hand_side(m, (3,), "float64")

        def variant(a: NDArray) -> Any:
            given = {
                "C": np.ascontiguousarray(a),
                "F": a.copy("F"),
                "strided": np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
                "part": np.asfortranarray(np.pad(a, 3))[3:-3, 3:-3],
                "read-only": a.copy("F"),
                "list": a.copy(),
            }[form]
            given.flags.writeable = form != "read-only"
            return given.tolist() if form == "list" else given

        given = variant(a), variant(b)
        for options in ({"nb": NB}, on_cluster):
            check(lstsq(*given, **options), a, b)
        assert np.array_equal(given[0], a)
        assert np.array_equal(given[1], b)
        check(lstsq(*given, overwrite_a=True, overwrite_b=True, nb=NB), a, b)
        assert np.array_equal(given[0], a) != (form == "F" and len(a) > len(a.T))
        assert np.array_equal(given[1], b)


# --- ratios


@pytest.mark.parametrize(
    ("kind", "dtype"),
    covering(
        [
            "rand",
            "rands",
            "randn",
            "dominant",
            "identity",
            "orthog",
            "gfpp",
            "shift",
            "kms",
            "near-underflow",
            "near-overflow",
        ],
        DTYPES,
    ),
)
def test_solutions_for_every_kind_are_within_the_ratio(kind: str, dtype: str) -> None:
    for m, n in [(61, 61), (61, 23)]:
        a, b = generate(kind, m, n, dtype=dtype), random(m, 3, dtype, seed=1)
        for nb, driver in [(NB, "gels"), (61, "gels"), *((NB, name) for name in OF_ANY_RANK)]:
            assert lstsq_ratio(a, lstsq(a, b, lapack_driver=driver, nb=nb)[0], b) < LIMIT


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize(
    ("kind", "dtype"), covering(["moler", "hilb", "svd", "svd, cond 1/eps"], DTYPES)
)
def test_ill_conditioned_kinds(kind: str, dtype: str) -> None:
    """X may be large: a backward error counts against its size, too."""
    cond = {"cond": float(1 / np.finfo(dtype).eps)} if kind.endswith("eps") else {}
    for m, n in [(61, 61), (61, 23)]:
        a = generate(kind.split(",")[0], m, n, dtype=dtype, **cond)
        b = random(m, 3, dtype, seed=1)
        for driver in DRIVERS:
            x = lstsq(a, b, lapack_driver=driver, nb=NB)[0]
            assert np.isfinite(x).all()
            size = np.abs(a).sum(axis=0).max() * np.abs(x).sum(axis=0).max()
            size /= np.abs(b).sum(axis=0).max()
            assert lstsq_ratio(a, x, b) < LIMIT * max(size, 1)


@pytest.mark.parametrize(
    ("kind", "dtype", "driver"),
    covering(["svd", "orthog", "rands", "near-underflow", "near-overflow"], DTYPES, DRIVERS),
)
def test_shortest_solutions_of_kinds(kind: str, dtype: str, driver: str) -> None:
    a, b = generate(kind, 23, 61, dtype=dtype), random(23, 3, dtype, seed=1)
    x, residues, rank, _ = lstsq(a, b, lapack_driver=driver, nb=NB)
    assert (residues.shape, rank) == ((0,), 23)
    size = np.asarray(np.abs(a).max(), x.real.dtype)  # its powers are out of range
    exact, scaled = (a / size).astype(np.result_type(a, float)), x * size
    eps = np.finfo(dtype).eps
    rows = np.abs(exact) @ np.abs(scaled) + np.abs(b)
    assert (np.abs(exact @ scaled - b) < LIMIT * 61 * eps * rows.max()).all()
    if kind == "svd":
        return
    # Of all solutions the minimum-norm one is in the row space.
    q = scipy.linalg.qr(exact.conj().T, mode="economic")[0]
    outside = scaled - q @ (q.conj().T @ scaled)
    assert np.abs(outside).max() < LIMIT * 61 * eps * np.abs(scaled).max()


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_columns_of_any_size_keep_their_accuracy(dtype: str) -> None:
    d = 10.0 ** np.random.default_rng(0).permutation(np.linspace(-150, 150, 23))
    a, b = well_conditioned(61, 23, dtype), random(61, 3, dtype, seed=1)
    x = lstsq(a * d, b, lapack_driver="gels", nb=NB)[0]
    assert_close(x * d[:, None], lstsq(a, b)[0])


# --- any rank


def graded(m: int, n: int, values: Any, dtype: str) -> NDArray:
    """A matrix of these singular values."""
    k = min(m, n)
    u, v = (scipy.linalg.qr(random(size, k, dtype, seed=size), mode="economic")[0]
            for size in (m, n))  # fmt: skip
    return np.asarray((u * values) @ v.conj().T, dtype)


def deficient(kind: str, m: int, n: int, dtype: str) -> NDArray:
    k = min(m, n)
    if kind == "product":
        return random(m, k - 5, dtype) @ random(k - 5, n, dtype, seed=1)
    if kind == "zeros":
        return np.zeros((m, n), dtype)
    if kind in ("zero columns", "zero rows"):
        a = random(m, n, dtype)
        lines = a if kind == "zero rows" else a.T
        lines[[0, k // 2, k - 1]] = 0
        lines[k:] = 0
        return a
    return generate(kind, m, n, dtype=dtype)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    covering(["product", "rankdef", "zeros", "zero columns", "zero rows"], DTYPES),
)
def test_deficient_matrices_are_solved_as_by_scipy(kind: str, dtype: str) -> None:
    cond = float(np.finfo(dtype).eps) ** 0.75
    for m, n in [(61, 23), (23, 61), (29, 29)]:
        a, b = deficient(kind, m, n, dtype), random(m, 3, dtype, seed=1)
        for driver in OF_ANY_RANK:
            found = lstsq(a, b, cond, lapack_driver=driver, nb=NB)
            check(found, a, b, driver, cond)
            assert found[2] < min(m, n)
            check(lstsq(a, b[:, 0], cond, lapack_driver=driver, nb=NB), a, b[:, 0], driver, cond)
            if m >= n:
                assert lstsq_ratio(a, found[0], b) < LIMIT


@pytest.mark.parametrize(("dtype", "driver"), covering(DTYPES, OF_ANY_RANK))
def test_nearly_deficient_matrices(dtype: str, driver: str) -> None:
    """Whatever the rank is taken for, the residual is that of a solution."""
    for m, n in [(61, 23), (29, 29)]:
        a, b = generate("svd-eps", m, n, dtype=dtype), random(m, 3, dtype, seed=1)
        for cond in (None, 1e-3):
            x, _, rank, _ = lstsq(a, b, cond, lapack_driver=driver, nb=NB)
            assert 0 < rank <= n
            size = np.abs(a).sum(axis=0).max() * np.abs(x).sum(axis=0).max()
            size = max(size / np.abs(b).sum(axis=0).max(), 1)
            dropped = 0 if cond is None else cond / np.finfo(dtype).eps
            assert lstsq_ratio(a, x, b) < LIMIT * (size + dropped)


@pytest.mark.parametrize(
    ("m", "n", "dtype", "driver"),
    spread(covering([(30, 9), (9, 30), (9, 9)], DTYPES, ["gelsd", "gelss"])),
)
def test_the_threshold_parts_the_singular_values(m: int, n: int, dtype: str, driver: str) -> None:
    values = 2.0 ** -np.arange(9)
    a, b = graded(m, n, values, dtype), random(m, 2, dtype, seed=1)
    for rank in range(1, 10):
        for cond in values[rank - 1] * np.array([0.99, 0.51]):
            found = lstsq(a, b, cond, lapack_driver=driver, nb=4)
            assert found[2] == rank
            assert_close(found[3], values.astype(found[3].dtype))
            check(found, a, b, driver, cond)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_at_the_threshold_are_zeros(dtype: str) -> None:
    a, b = np.diag([4.0, 1.0]).astype(dtype), np.ones(2, dtype)
    below = np.nextafter(np.finfo(dtype).dtype.type(0.25), 0)
    for driver in ("gelsd", "gelss"):
        for cond, rank in [(0.25, 1), (below, 2)]:
            x = lstsq(a, b, cond, lapack_driver=driver)
            assert x[2] == rank
            assert lstsq_by_svd(a, b[:, None], cond, driver, lower=False)[1] == rank
            check(x, a, b, driver, cond)


@pytest.mark.parametrize("driver", OF_ANY_RANK)
@pytest.mark.parametrize("cond", [0.0, 1e-20, 0.5, 1, 2.0, np.inf, np.float32(0.1), "0.1"])
def test_any_number_is_a_cond_as_for_scipy(cond: Any, driver: str) -> None:
    for shape in [(30, 9), (9, 30)][: 1 if driver == "gelsy" else 2]:
        a, b = graded(*shape, 4.0 ** -np.arange(9), "float64"), np.ones(shape[0])
        found = lstsq(a, b, cond, lapack_driver=driver, nb=4)
        check(found, a, b, driver, float(cond))
        if driver != "gelsy":
            r, right = np.triu(a[:9, :9]), b[:9, None]
            expected = scipy.linalg.lstsq(r, right, float(cond), lapack_driver=driver)[2]
            assert lstsq_by_svd(r, right, float(cond), driver, lower=False)[1] == expected


@pytest.mark.parametrize(("rank", "dtype", "lower"), covering([0, 5, 9], DTYPES, [False, True]))
def test_singular_values_of_triangles(rank: int, dtype: str, lower: bool) -> None:
    """What a GPU does, on the host."""
    a = random(9, 9, dtype)
    a = scipy.linalg.qr(a, mode="r")[0] + np.diag(np.ones(9, dtype))
    a[:, rank:] = 0
    a, b = a.T if lower else a, random(9, 3, dtype, seed=1)
    for driver in ("gelsd", "gelss"):
        for right in (b, b[:, :0]):
            found = lstsq_by_svd(a, right, 1e-5, driver, lower=lower)
            expected = square_lstsq(a, right, 1e-5, driver, lower=lower)
            assert found[1] == expected[1] == rank
            assert_close(found[0], expected[0])
            assert_close(found[2], expected[2])


@pytest.mark.parametrize(
    ("m", "n", "dtype", "driver"), spread(covering([(61, 23), (23, 61)], DTYPES, OF_ANY_RANK))
)
def test_deficient_matrices_near_the_ends_of_the_range(
    m: int, n: int, dtype: str, driver: str
) -> None:
    info = np.finfo(dtype)
    cond = float(info.eps) ** 0.75
    a, b = deficient("product", m, n, dtype), random(m, 3, dtype, seed=1)
    x, _, rank, s = scipy_s(a, b, driver, cond)
    for up in (info.minexp + info.nmant, info.maxexp - 8):
        found = lstsq(a * 2.0**up, b * 2.0**up, cond, lapack_driver=driver, nb=NB)
        assert found[2] == rank
        assert_close(found[0], x)
        if s is not None:
            assert_close(found[3][:rank], s[:rank] * s.dtype.type(2.0) ** up)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
def test_stacks_of_several_ranks(driver: str) -> None:
    a = np.stack([random(6, 4, seed=i) for i in range(3)])
    a[1, :, 3] = a[1, :, 2] * (1 + 1e-14)
    several = np.stack([random(6, 2, seed=i) for i in range(4, 7)])
    for b in (random(6, 2, seed=4), random(6, 1, seed=4)[:, 0], several):
        x, residues, rank, s = lstsq(a, b, 1e-12, lapack_driver=driver, nb=NB)
        assert rank.tolist() == [4, 3, 4]
        columns = b.shape[1:] if b.ndim < 3 else b.shape[2:]
        assert x.shape == (3, 4, *columns)
        assert residues.shape == ((3, 0) if driver == "gelsy" else (3, *columns))
        assert (s is None) == (driver in ("gelsy", "gels"))
        for i in range(3):
            own = b[i] if b.ndim == 3 else b
            if i != 1 or driver != "gels":
                each = x[i], residues[i], rank[i], None if s is None else s[i]
                check(each, a[i], own, driver, 1e-12)


@pytest.mark.parametrize("driver", OF_ANY_RANK)
@pytest.mark.parametrize(("m", "n"), [(61, 23), (23, 61), (29, 29)])
def test_any_rank_on_a_cluster_is_scipy_s(
    m: int, n: int, driver: str, on_cluster: dict[str, Any]
) -> None:
    for kind in ("product", "zero columns"):
        a, b = deficient(kind, m, n, "complex128"), random(m, 3, "complex128", seed=1)
        check(lstsq(a, b, 1e-10, lapack_driver=driver, **on_cluster), a, b, driver, 1e-10)


@pytest.mark.parametrize(
    ("m", "n", "driver", "dtype"),
    spread(
        covering(
            [(61, 23), (23, 61), (29, 29), (1, 1), (0, 3), (3, 0), (0, 0)], OF_ANY_RANK, DTYPES
        )
    ),
)
def test_dask_arrays_of_any_rank(m: int, n: int, driver: str, dtype: str) -> None:
    cond = float(np.finfo(dtype).eps) ** 0.75
    for a in (random(m, n, dtype), deficient("zeros", m, n, dtype)):
        for b in (random(m, 3, dtype, seed=1), random(m, 1, dtype, seed=2)[:, 0]):
            given = da.from_array(a, chunks=(20, 17)), da.from_array(b, chunks=9)
            lazy = lstsq(*given, cond, lapack_driver=driver, nb=NB)
            known = lstsq(a, b, cond, lapack_driver=driver, nb=NB)
            for one, other in zip(lazy, known, strict=True):
                assert (one is None) == (other is None)
                if other is not None:
                    found = one.compute()
                    assert (one.shape, one.dtype) == (found.shape, found.dtype)
                    assert (found.shape, found.dtype) == (other.shape, other.dtype)
                    assert np.allclose(found, other, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("driver", ["gelsd", "gelss"])
def test_nans_that_nobody_looked_for(driver: str) -> None:
    a = random(30, 20)
    a[13, 7] = np.nan
    for given in (a, a.T):
        with pytest.raises(LinAlgError, match="SVD did not converge"):
            lstsq(given, np.ones(len(given)), check_finite=False, lapack_driver=driver, nb=NB)
    b = np.full(30, np.nan)
    x = lstsq(random(30, 20), b, check_finite=False, lapack_driver=driver, nb=NB)[0]
    assert np.isnan(x).all()


@pytest.mark.parametrize(
    ("m", "n", "driver", "dtype"),
    spread(covering([(30, 9), (9, 30), (9, 9)], ["gelsd", "gelss", "gels"], DTYPES)),
)
def test_which_matrices_of_a_stack_a_gpu_leaves(
    m: int, n: int, driver: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SciPy in the place of the GPU's batched solver."""

    def solved(name: str, a: NDArray, b: NDArray) -> Any:
        found = [scipy.linalg.lstsq(*one) for one in zip(a, b, strict=True)]
        x, s = (np.stack([one[i] for one in found]) for i in (0, 3))
        squares = (np.abs(b - a @ x) ** 2).sum(axis=1)
        return x, squares, s.astype(float), np.array([0, 0, 0, 0, 1])

    monkeypatch.setattr(lstsq_module, "solve_stack_on_gpu", solved)
    a, b = (np.stack([random(m, k, dtype, seed=k + i) for i in range(5)]) for k in (n, 2))
    a[1] = deficient("product", m, n, dtype)
    a[2] *= 2.0 ** (np.finfo(dtype).minexp + 3)
    cond = float(np.finfo(dtype).eps) ** 0.75
    for right in (b, b[:, :, 0]):
        found, numbers = lstsq_module._lstsq_on_gpu(a, right, cond, driver)
        assert numbers == [1, 2, 4]
        for i in (0, 3):
            each = [None if part is None else part[i] for part in found]
            check(each, a[i], right[i], driver, cond)


# --- QR alone


@pytest.mark.parametrize(
    ("m", "n", "dtype"), spread(covering([(61, 23), (23, 61), (29, 29)], DTYPES))
)
def test_a_rank_deficient_matrix_warns(m: int, n: int, dtype: str) -> None:
    k = min(m, n)
    a = np.asarray(random(m, k - 5, dtype) @ random(k - 5, n, dtype, seed=1), order="F")
    with pytest.warns(LinAlgWarning, match=rf"^rank-deficient matrix: .* not {k} ") as caught:
        x, residues, rank, _ = lstsq(a, np.ones(m, dtype), lapack_driver="gels", nb=NB)
    assert [w.filename for w in caught] == [__file__]
    assert x.shape == (n,)
    assert residues.shape == (() if m > n else (0,))
    assert np.isnan(residues).all()
    assert k - 5 <= rank < k
    with pytest.warns(LinAlgWarning, match="rank-deficient") as caught:
        lstsq_with_report(a, np.ones(m, dtype), lapack_driver="gels", nb=NB)
    assert [w.filename for w in caught] == [__file__]


@pytest.mark.filterwarnings("error")
def test_what_counts_as_deficient() -> None:
    a = np.diag([1.0, 1e-3, 1e-6])
    options = {"lapack_driver": "gels"}
    assert lstsq(a, np.ones(3), **options)[2] == 3
    for cond, rank in [(1e-7, 3), (1e-5, 2), (1e-2, 1)]:
        if rank == 3:
            assert lstsq(a, np.ones(3), cond, **options)[2] == 3
        else:
            with pytest.warns(LinAlgWarning, match=rf"its rank is about {rank} and not 3"):
                assert lstsq(a, np.ones(3), cond, **options)[2] == rank
            assert scipy.linalg.lstsq(a, np.ones(3), cond=cond)[2] == rank


@pytest.mark.parametrize("column", [0, 12, 22])
@pytest.mark.parametrize("shape", [(61, 23), (23, 23), (23, 61)])
def test_zeros_are_an_error(
    shape: tuple[int, int], column: int, on_cluster: dict[str, Any]
) -> None:
    a = random(*shape)
    wide = shape[0] < shape[1]
    a[(column, slice(None)) if wide else (slice(None), column)] = 0
    for options in ({"nb": NB}, on_cluster):
        with pytest.raises(
            LinAlgError, match=rf"diagonal number {column + 1} of R is exactly zero"
        ):
            lstsq(a, np.ones(shape[0]), lapack_driver="gels", **options)


# --- errors


@pytest.mark.parametrize(
    ("cond", "error"),
    [
        (np.nan, ValueError),
        (-1, ValueError),
        ("none", ValueError),
        (0.1j, TypeError),
        ([0.1], TypeError),
    ],
)
def test_conds_that_are_no_number_are_refused(cond: Any, error: type[Exception]) -> None:
    a, b = random(3, 2), np.ones(3)
    x, y = da.from_array(a), da.from_array(b)
    said = f"^cond must be None or a non-negative number, not {re.escape(repr(cond))}$"
    for function in (lstsq, lstsq_with_report):
        with pytest.raises(error, match=said):
            function(a, b, cond)
    with pytest.raises(error, match=said):
        lstsq(x, y, cond)


@pytest.mark.parametrize("shape", [(4,), (4, 2), (0,), (1, 3)])
def test_right_hand_sides_of_another_size(shape: tuple[int, ...]) -> None:
    said = (
        rf"b has shape \({', '.join(map(str, shape))},?\), which does not fit a of shape \(3, 2\)"
    )
    with pytest.raises(ValueError, match=said):
        lstsq(random(3, 2), np.ones(shape))


def test_drivers_that_there_are_not() -> None:
    a, b = random(3, 2), np.ones(3)
    for driver in ("gelsx", 1):
        said = f'LAPACK driver "{driver}" is not found'
        for x, y in ((a, b), (da.from_array(a), da.from_array(b))):
            with pytest.raises(ValueError, match=said):
                lstsq(x, y, lapack_driver=driver)
        with pytest.raises(ValueError, match=said):
            scipy.linalg.lstsq(a, b, lapack_driver=driver)
