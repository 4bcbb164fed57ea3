"""Least squares: right by LAPACK's ratio, and SciPy's in shape, residues and rank."""

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

import hetero_la
from hetero_la import Cluster, lstsq, lstsq_with_report
from hetero_la.matrices import generate
from tests.support import DTYPES, LIMIT, assert_close, lstsq_ratio, random

NB = 8
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


def check(found: tuple[Any, ...], a: NDArray, b: NDArray) -> None:
    """The same as SciPy's, but for singular values."""
    assert len(found) == 4
    assert found[3] is None
    expected = scipy.linalg.lstsq(a, b)
    assert_close(found[0], expected[0])
    assert found[0].dtype == expected[0].dtype
    assert found[2] == expected[2]
    assert isinstance(found[2], int)
    # Always real here; with SciPy it depends on the version, and on whether there are any.
    assert_close(np.asarray(found[1]), np.asarray(expected[1]).real)


# --- against SciPy


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), SIZES)
def test_solutions_are_scipy_s(m: int, n: int, dtype: str) -> None:
    a = well_conditioned(m, n, dtype)
    for shape in [(), (1,), (20,)]:
        b = right_hand_side(m, shape, dtype)
        before = a.copy(), b.copy()
        check(lstsq(a, b, nb=NB), a, b)
        assert np.array_equal(a, before[0])
        assert np.array_equal(b, before[1])
    x, residues, rank, _ = lstsq(a, right_hand_side(m, (0,), dtype), nb=NB)
    assert (x.shape, x.dtype, rank) == ((n, 0), a.dtype, min(m, n))
    assert residues.size == 0


@pytest.mark.parametrize("lookahead", [0, 1, 2])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (9, 9), (61, 13), (13, 61), (30, 29)])
def test_on_a_cluster(m: int, n: int, lookahead: int, on_cluster: dict[str, Any]) -> None:
    a = well_conditioned(m, n, DTYPES[lookahead + 1])
    for shape in [(), (20,)]:
        b = right_hand_side(m, shape, a.dtype.name)
        check(lstsq(a, b, lookahead=lookahead, **on_cluster), a, b)


def test_with_report(on_cluster: dict[str, Any]) -> None:
    for m, n, routine in [(30, 20, "lstsq"), (20, 30, "minimum_norm")]:
        a, b = well_conditioned(m, n, "float64"), right_hand_side(m, (2,), "float64")
        x, residues, rank, report = hetero_la.lstsq_with_report(a, b, **on_cluster)
        check((x, residues, rank, None), a, b)
        assert (report.plan.routine, report.plan.panel) == (routine, on_cluster["panel"])
        assert report.timing.seconds > 0


@pytest.mark.parametrize(("m", "n"), [(0, 0), (0, 5), (5, 0)])
@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_nothing(m: int, n: int, shape: tuple[int, ...]) -> None:
    b = np.ones((m, *shape))
    x, residues, rank, _ = lstsq(np.empty((m, n)), b)
    expected = scipy.linalg.lstsq(np.empty((m, n)), b)
    assert_close(x, expected[0])
    assert rank == expected[2] == 0
    if m:
        assert_close(np.asarray(residues), np.asarray(expected[1]))


@pytest.mark.parametrize("first", [*DTYPES, "int32"])
@pytest.mark.parametrize("second", [*DTYPES, "int32"])
def test_two_types(first: str, second: str) -> None:
    for m, n in [(9, 5), (5, 9)]:
        a, b = (well_conditioned(m, n, "float64") * 9).astype(first), np.ones(m, second)
        expected = scipy.linalg.lstsq(a, b)[0]
        assert_close(lstsq(a, b, nb=4)[0], expected, limit=1e-3)


@pytest.mark.parametrize("form", ["C", "F", "strided", "part", "read-only", "list"])
def test_any_form_is_taken_and_left_as_it_is(form: str, on_cluster: dict[str, Any]) -> None:
    for m, n in [(29, 21), (21, 29)]:
        a, b = well_conditioned(m, n, "float64"), right_hand_side(m, (3,), "float64")

        def variant(a: NDArray) -> Any:
            given = {
                "C": np.ascontiguousarray(a),
                "F": np.asfortranarray(a),
                "strided": np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
                "part": np.asfortranarray(np.pad(a, 3))[3:-3, 3:-3],
                "read-only": a.copy("F"),
                "list": a.copy(),
            }[form]
            given.flags.writeable = form != "read-only"
            return given.tolist() if form == "list" else given

        given = variant(a), variant(b)
        for options in ({"nb": NB}, on_cluster):
            check(lstsq(*given, overwrite_a=True, overwrite_b=True, **options), a, b)
        assert np.array_equal(given[0], a)
        assert np.array_equal(given[1], b)


# --- ratios


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "kind", ["rand", "rands", "randn", "dominant", "identity", "orthog", "gfpp", "shift", "kms",
             "near-underflow", "near-overflow"],
)  # fmt: skip
def test_every_kind(kind: str, dtype: str) -> None:
    for m, n in [(61, 61), (61, 23)]:
        a, b = generate(kind, m, n, dtype=dtype), random(m, 3, dtype, seed=1)
        for nb in (NB, 61):
            assert lstsq_ratio(a, lstsq(a, b, nb=nb)[0], b) < LIMIT


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["moler", "hilb", "svd", "svd, cond 1/eps"])
def test_ill_conditioned_kinds(kind: str, dtype: str) -> None:
    """X may be large: a backward error counts against its size, too."""
    cond = {"cond": float(1 / np.finfo(dtype).eps)} if kind.endswith("eps") else {}
    for m, n in [(61, 61), (61, 23)]:
        a = generate(kind.split(",")[0], m, n, dtype=dtype, **cond)
        b = random(m, 3, dtype, seed=1)
        x = lstsq(a, b, nb=NB)[0]
        assert np.isfinite(x).all()
        size = np.abs(a).sum(axis=0).max() * np.abs(x).sum(axis=0).max()
        size /= np.abs(b).sum(axis=0).max()
        assert lstsq_ratio(a, x, b) < LIMIT * max(size, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["svd", "orthog", "rands", "near-underflow", "near-overflow"])
def test_shortest_solutions_of_kinds(kind: str, dtype: str) -> None:
    a, b = generate(kind, 23, 61, dtype=dtype), random(23, 3, dtype, seed=1)
    x, residues, rank, _ = lstsq(a, b, nb=NB)
    assert (residues.shape, rank) == ((0,), 23)
    size = np.asarray(np.abs(a).max(), x.real.dtype)  # its powers are out of range
    exact, scaled = (a / size).astype(np.result_type(a, float)), x * size
    eps = np.finfo(dtype).eps
    rows = np.abs(exact) @ np.abs(scaled) + np.abs(b)
    assert (np.abs(exact @ scaled - b) < LIMIT * 61 * eps * rows.max()).all()
    if kind == "svd":
        return
    # Of all solutions the shortest one is in the row space.
    q = scipy.linalg.qr(exact.conj().T, mode="economic")[0]
    outside = scaled - q @ (q.conj().T @ scaled)
    assert np.abs(outside).max() < LIMIT * 61 * eps * np.abs(scaled).max()


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_columns_of_any_size(dtype: str) -> None:
    d = 10.0 ** np.random.default_rng(0).permutation(np.linspace(-150, 150, 23))
    a, b = well_conditioned(61, 23, dtype), random(61, 3, dtype, seed=1)
    assert_close(lstsq(a * d, b, nb=NB)[0] * d[:, None], lstsq(a, b)[0])


# --- rank


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(61, 23), (23, 61), (29, 29)])
def test_a_rank_deficient_matrix_warns(m: int, n: int, dtype: str) -> None:
    k = min(m, n)
    a = np.asarray(random(m, k - 5, dtype) @ random(k - 5, n, dtype, seed=1), order="F")
    with pytest.warns(LinAlgWarning, match=rf"^rank-deficient matrix: .* not {k} ") as caught:
        x, residues, rank, _ = lstsq(a, np.ones(m, dtype), nb=NB)
    assert [w.filename for w in caught] == [__file__]
    assert x.shape == (n,)
    assert residues.shape == (0,)
    assert k - 5 <= rank < k
    with pytest.warns(LinAlgWarning, match="rank-deficient") as caught:
        hetero_la.lstsq_with_report(a, np.ones(m, dtype), nb=NB)
    assert [w.filename for w in caught] == [__file__]


@pytest.mark.filterwarnings("error")
def test_what_counts_as_deficient() -> None:
    a = np.diag([1.0, 1e-3, 1e-6])
    assert lstsq(a, np.ones(3))[2] == 3
    for cond, rank in [(1e-7, 3), (1e-5, 2), (1e-2, 1)]:
        if rank == 3:
            assert lstsq(a, np.ones(3), cond=cond)[2] == 3
        else:
            with pytest.warns(LinAlgWarning, match=rf"its rank is about {rank} and not 3"):
                assert lstsq(a, np.ones(3), cond=cond)[2] == rank
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
            lstsq(a, np.ones(shape[0]), **options)


# --- errors


@pytest.mark.parametrize("cond", [-1, 1, np.nan, "0.1", 0.1j, [0.1]])
def test_conds_that_are_none(cond: Any) -> None:
    a, b = random(3, 2), np.ones(3)
    x, y = da.from_array(a), da.from_array(b)
    said = f"^cond must be None, or a number from 0 to below 1, not {re.escape(repr(cond))}$"
    for function in (lstsq, lstsq_with_report):
        with pytest.raises(ValueError, match=said):
            function(a, b, cond)
    with pytest.raises(ValueError, match=said):
        lstsq(x, y, cond)
    assert lstsq(a, b, np.float32(0.01))[2] == 2


@pytest.mark.parametrize("shape", [(4,), (4, 2), (0,), (1, 3)])
def test_right_hand_sides_of_another_size(shape: tuple[int, ...]) -> None:
    said = (
        rf"b has shape \({', '.join(map(str, shape))},?\), which does not fit a of shape \(3, 2\)"
    )
    with pytest.raises(ValueError, match=said):
        lstsq(random(3, 2), np.ones(shape))


@pytest.mark.parametrize("driver", ["gelsd", "gelsy", "gelss", "nonsense"])
def test_other_drivers_are_refused(driver: str) -> None:
    with pytest.raises(ValueError, match=f"lapack_driver must be None or 'gels', not '{driver}'"):
        lstsq(random(3, 2), np.ones(3), lapack_driver=driver)
    assert lstsq(random(3, 2), np.ones(3), lapack_driver="gels")[2] == 2
