"""QR factors: right by LAPACK's ratios, and SciPy's in shape, type, sign and structure."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray

import hetero_la
from hetero_la import Cluster, qr, qr_factor, qr_multiply
from hetero_la.testing.matrices import generate, kinds
from tests.support import (
    DTYPES,
    LIMIT,
    assert_close,
    covering,
    orthogonality_ratio,
    qr_ratio,
    random,
    spread,
)

NB = 8
MODES = ("full", "r", "economic", "raw")
#: Empty, one, below nb, nb, one more, ragged, several nb, tall, wide.
SIZES = [(0, 0), (0, 5), (5, 0), (1, 1), (1, 9), (9, 1), (5, 5), (8, 8), (9, 9), (29, 29), (64, 64),
         (61, 13), (13, 61), (40, 16), (16, 40), (61, 60), (60, 61)]  # fmt: skip
FEW = [(1, 1), (9, 9), (61, 13), (13, 61), (30, 29)]


@pytest.fixture(scope="module", params=["gpu", "cpu"])
def on_cluster(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    with Cluster(cpus=1, gpus=0, virtual_gpus=2, blas_threads=1) as running:
        yield {"client": running, "panel": request.param, "nb": NB}


def arrays(found: Any) -> list[NDArray]:
    """The arrays of nested tuples, one after the other."""
    return [a for part in found for a in arrays(part)] if isinstance(found, tuple) else [found]


def structure(found: Any) -> Any:
    return tuple(map(structure, found)) if isinstance(found, tuple) else type(found)


def assert_same(found: Any, expected: Any) -> None:
    """Equal in every part, and in how the parts are put together."""
    assert structure(found) == structure(expected)
    for one, other in zip(arrays(found), arrays(expected), strict=True):
        assert_close(one, other)


# --- against SciPy


@pytest.mark.parametrize(("m", "n", "dtype"), spread(covering(SIZES, DTYPES)))
def test_qr_is_scipy_s(m: int, n: int, dtype: str) -> None:
    a = random(m, n, dtype, seed=m + n)
    before = a.copy()
    for mode in MODES:
        found = qr(a, mode=mode, nb=NB)
        assert_same(found, scipy.linalg.qr(a, mode=mode))
    assert np.array_equal(a, before)
    packed, tau = factors = qr_factor(a, nb=NB)
    (expected, scalars), r = scipy.linalg.qr(a, mode="raw")
    assert_same((packed, tau), (expected, scalars))
    assert_close(factors.r, r)
    assert packed.flags.f_contiguous
    assert (factors.info, factors.shape, factors.dtype) == (0, (m, n), a.dtype)


@pytest.mark.parametrize("lookahead", [0, 1, 2])
@pytest.mark.parametrize(("m", "n"), FEW)
def test_qr_on_a_cluster_is_scipy_s(
    m: int, n: int, lookahead: int, on_cluster: dict[str, Any]
) -> None:
    a = random(m, n, DTYPES[lookahead + 1])
    for mode in MODES:
        found = qr(a, mode=mode, lookahead=lookahead, **on_cluster)
        assert_same(found, scipy.linalg.qr(a, mode=mode))
    plan = qr_factor(a, lookahead=lookahead, **on_cluster).plan
    assert (plan.routine, plan.lookahead, plan.panel) == ("qr", lookahead, on_cluster["panel"])


@pytest.mark.parametrize("nb", [1, 7, 29, 1000, None])
def test_tile_sizes_change_nothing_but_rounding(nb: int | None, on_cluster: dict[str, Any]) -> None:
    for m, n in [(29, 17), (17, 29)]:
        a = random(m, n)
        assert_same(qr(a, **{**on_cluster, "nb": nb}), scipy.linalg.qr(a))


def test_lists_are_taken() -> None:
    assert_close(qr([[3, 1], [4, 2]])[1], np.array([[-5, -2.2], [0, 0.4]]))


@pytest.mark.parametrize("function", [qr_factor, *MODES])
@pytest.mark.parametrize("form", ["C", "F", "strided", "part", "read-only"])
def test_any_form_is_taken_and_overwritten_only_if_allowed(function: Any, form: str) -> None:
    a = random(29, 21)
    given = {
        "C": np.ascontiguousarray(a),
        "F": a.copy("F"),
        "strided": np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
        "part": np.asfortranarray(np.pad(a, 3))[3:-3, 3:-3],
        "read-only": a.copy("F"),
    }[form]
    given.flags.writeable = form != "read-only"
    mode = "raw" if function is qr_factor else function
    expected = scipy.linalg.qr(a, mode=mode)
    for overwrite in (False, True):
        if function is qr_factor:
            found = qr_factor(given, overwrite_a=overwrite, nb=NB)
            assert_same(tuple(found), expected[0])
        else:
            found = qr(given, overwrite_a=overwrite, mode=mode, nb=NB)
            assert_same(found, expected)
        in_place = overwrite and form == "F" and mode in ("raw", "r")
        packed = expected[0][0] if mode == "raw" else None
        assert np.array_equal(given, a) != in_place
        if in_place:
            assert_close(given, expected[0] if packed is None else packed)
            assert np.shares_memory(arrays(tuple(found))[0], given)


# --- with column pivoting


@pytest.mark.parametrize(("m", "n", "dtype"), spread(covering(SIZES, DTYPES)))
def test_pivoting_is_scipy_s(m: int, n: int, dtype: str) -> None:
    a = random(m, n, dtype, seed=m + n)
    before = a.copy()
    for mode in (*MODES, "qr"):
        assert_same(qr(a, mode=mode, pivoting=True), scipy.linalg.qr(a, mode=mode, pivoting=True))
    assert np.array_equal(a, before)
    if not a.size:
        return
    k = min(m, n)
    for mode, shapes in [("right", [(m,), (3, m)]), ("left", [(k,), (k, 3)])]:
        for shape in shapes:
            c = random(*(shape if shape[1:] else (*shape, 1)), dtype, seed=1).reshape(shape)
            for conjugate in (False, True):
                options = {"mode": mode, "conjugate": conjugate, "pivoting": True}
                found = qr_multiply(a, c, **options)
                assert_same(found, scipy.linalg.qr_multiply(a, c, **options))


@pytest.mark.parametrize("kind", ["orthog", "rankdef", "svd", "colscale", "near-overflow"])
def test_pivoting_reveals_the_rank(kind: str) -> None:
    for m, n in [(61, 61), (61, 23), (23, 61)]:
        a = matrix(kind, m, n, "float64")
        q, r, p = qr(a, mode="economic", pivoting=True)
        assert (np.diff(np.abs(r.diagonal())) <= 1e-14 * np.abs(r).max()).all()
        assert qr_ratio(a[:, p], q, r) < LIMIT
        assert orthogonality_ratio(q) < LIMIT


def test_pivoting_of_stacks_and_of_forms() -> None:
    a = np.stack([random(7, 5, seed=i) for i in range(3)])
    for mode in MODES:
        found = qr(a, mode=mode, pivoting=True)
        each = [scipy.linalg.qr(one, mode=mode, pivoting=True) for one in a]
        for part, expected in zip(arrays(found), zip(*map(arrays, each), strict=True), strict=True):
            assert_close(part, np.stack(expected))
    for given in (a[0].copy("F"), a[0][::-1], a[0].tolist(), (9 * a[0]).astype(int)):
        expected = scipy.linalg.qr(np.array(given), pivoting=True)
        assert_same(qr(given, pivoting=True), expected)
        if isinstance(given, np.ndarray):
            given.flags.writeable = False
            before = given.copy()
            assert_same(qr(given, True, pivoting=True), expected)
            assert np.array_equal(given, before)
    with pytest.raises(ValueError, match="infs or NaNs"):
        qr(np.full((3, 3), np.nan), pivoting=True)
    with pytest.raises(TypeError, match="nonsense"):
        qr(a, pivoting=True, nonsense=1)


def test_a_product_in_place_of_what_is_multiplied() -> None:
    """With `overwrite_c`, C has as many rows as the product, where these are more."""
    for pivoting in (False, True):
        for m, n in [(7, 4), (4, 7), (4, 4)]:
            a, c = random(m, n), random(m, 3, seed=1)
            options = {"mode": "left", "overwrite_c": True, "pivoting": pivoting}
            found = qr_multiply(a, c.copy("F"), **options)
            assert_same(found, scipy.linalg.qr_multiply(a, c.copy("F"), **options))


# --- ratios


def columns_of_any_size(m: int, n: int, dtype: str) -> NDArray:
    top = 300 if np.finfo(dtype).eps < 1e-10 else 36
    d = 10.0 ** np.random.default_rng(0).permutation(np.linspace(-top, top, n))
    return np.asfortranarray((random(m, n, dtype) * d).astype(dtype))


KINDS = [*(kind for kind in kinds() if kind != "wilkinson"), "svd, cond 1/eps", "columns", "zeros"]


def matrix(kind: str, m: int, n: int, dtype: str) -> NDArray:
    if kind == "columns":
        return columns_of_any_size(m, n, dtype)
    if kind == "zeros":
        return np.zeros((m, n), dtype, order="F")
    if kind.startswith("svd,"):
        return generate("svd", m, n, dtype=dtype, cond=float(1 / np.finfo(dtype).eps))
    return generate(kind, m, n, dtype=dtype)


@pytest.mark.parametrize(("kind", "dtype"), covering(KINDS, DTYPES))
def test_factors_of_every_kind_are_within_the_ratio(kind: str, dtype: str) -> None:
    for m, n in [(61, 61), (61, 23), (23, 61)]:
        a = matrix(kind, m, n, dtype)
        for nb in (NB, 61):
            q, r = qr(a, nb=nb)
            assert not np.tril(r, -1).any()
            assert qr_ratio(a, q, r) < LIMIT
            assert orthogonality_ratio(q) < LIMIT
            if kind == "columns":  # each column by its own size
                size = np.abs(a).max(axis=0)
                assert qr_ratio(a / size, q, r / size) < LIMIT


@pytest.mark.parametrize("kind", ["orthog", "gfpp", "shift", "zero-middle", "hilb", "columns"])
def test_factors_of_several_hundred_rows(kind: str, on_cluster: dict[str, Any]) -> None:
    for m, n in [(200, 200), (230, 90)]:
        a = matrix(kind, m, n, "float64")
        q, r = qr(a, mode="economic", **{**on_cluster, "nb": 32})
        assert qr_ratio(a, q, r) < LIMIT
        assert orthogonality_ratio(q) < LIMIT


# --- the object, and products with Q


@pytest.mark.parametrize(("m", "n", "dtype"), spread(covering(SIZES, DTYPES)))
def test_products_with_q(m: int, n: int, dtype: str) -> None:
    a = random(m, n, dtype)
    q, factors = qr(a, nb=NB)[0], qr_factor(a, nb=NB)
    for shape in [(m,), (m, 1), (m, 20), (m, 0)]:
        c = random(m, 20, dtype, seed=1)[:, : shape[-1]] if shape[1:] else random(m, 1, dtype)[:, 0]
        before = c.copy()
        assert_close(factors.multiply(c), q @ c)
        assert_close(factors.multiply(c, adjoint=True), q.conj().T @ c)
        assert np.array_equal(c, before)
    assert_close(
        factors.multiply(np.eye(m)), np.asarray(q, np.result_type(dtype, float)), limit=1e-4
    )


@pytest.mark.parametrize(
    ("m", "n", "dtype"), spread(covering([size for size in SIZES if min(size)], DTYPES))
)
def test_qr_multiply_is_scipy_s(m: int, n: int, dtype: str) -> None:
    a, k = random(m, n, dtype), min(m, n)
    for mode, shapes in [("right", [(m,), (3, m), (1, m)]), ("left", [(k,), (k, 3), (k, 1)])]:
        for shape in shapes:
            c = random(*(shape if shape[1:] else (*shape, 1)), dtype, seed=1).reshape(shape)
            before = c.copy()
            for conjugate in (False, True):
                options = {"mode": mode, "conjugate": conjugate}
                found = qr_multiply(a, c, nb=NB, **options)
                assert_same(found, scipy.linalg.qr_multiply(a, c, **options))
            assert np.array_equal(c, before)
    found = qr_multiply(
        a.copy("F"), random(3, m, dtype, seed=1), overwrite_a=True, overwrite_c=True
    )
    assert_same(found, scipy.linalg.qr_multiply(a, random(3, m, dtype, seed=1)))


def test_qr_multiply_of_nothing() -> None:
    for pivoting in (False, True):
        for m, n in [(0, 0), (0, 5), (5, 0)]:
            cq, r, *p = qr_multiply(np.empty((m, n)), np.ones((3, m)), pivoting=pivoting)
            assert (cq.shape, r.shape) == ((3, 0), (0, n))
            assert [x.shape for x in p] == [(n,)] * pivoting
        for m, n in [(0, 0), (0, 5), (5, 0)]:  # whose product SciPy takes for empty, too
            for mode, shape in [("left", (0, 3)), ("right", (0, m))]:
                given = np.empty((m, n)), np.ones(shape), mode
                found = qr_multiply(*given, pivoting=pivoting)
                assert_same(found, scipy.linalg.qr_multiply(*given, pivoting=pivoting))


@pytest.mark.parametrize(
    ("m", "n", "dtype"),
    spread(covering([size for size in SIZES if size[0] >= size[1] and min(size)], DTYPES)),
)
def test_the_factors_solve_by_least_squares(m: int, n: int, dtype: str) -> None:
    a = generate("dominant", m, n, dtype=dtype)
    factors = qr_factor(a, nb=NB)
    for shape in [(m,), (m, 20)]:
        b = random(m, 20, dtype, seed=1)[:, :20] if shape[1:] else random(m, 1, dtype)[:, 0]
        x = factors.solve(b)
        assert_close(x, np.linalg.lstsq(a, b)[0].astype(dtype))


def test_threads_multiply_by_the_same_q() -> None:
    a, c = random(2000, 20, "float64"), random(2000, 200, "float64")
    factors = qr_factor(a)
    expected = factors.multiply(c)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: factors.multiply(c), range(60)))
    assert all(np.allclose(x, expected) for x in found)


def test_factors_unpack_copy_and_pickle(on_cluster: dict[str, Any]) -> None:
    a, b = random(30, 20), random(30, 2, seed=1)
    factors = qr_factor(a, **on_cluster)
    packed, tau = factors
    assert packed is factors.qr is factors[0]
    assert tau is factors.tau is factors[1]
    assert "qr of a 30 x 20" in factors.plan.explain()
    assert factors.timing.seconds > 0
    assert set(factors.panels) == {"householder"}
    assert f"panels: {-(-20 // NB)} by householder" in str(factors.timing)
    for again in (copy.copy(factors), copy.deepcopy(factors), pickle.loads(pickle.dumps(factors))):
        assert isinstance(again, hetero_la.QRFactors)
        assert np.array_equal(again.qr, packed)
        assert np.array_equal(again.tau, tau)
        assert (again.info, again.plan.nb) == (0, NB)
        assert_close(again.solve(b), np.linalg.lstsq(a, b)[0])


# --- errors


def test_what_is_not_supported() -> None:
    a = random(5, 3)
    for mode in ("complete", "left", None):
        said = rf"^Mode argument should be one of \['full', .*\], not {mode!r}$"
        with pytest.raises(ValueError, match=said):
            qr(a, mode=mode)
    with pytest.raises(ValueError, match="Mode argument can only be 'left' or 'right' but not"):
        qr_multiply(a, np.ones(5), mode="full")
    with pytest.raises(ValueError, match="factors of a 3 x 5 matrix cannot solve a least-squares"):
        qr_factor(a.T).solve(np.ones(3))


def test_a_workspace_s_size_is_deprecated() -> None:
    a = random(5, 3)
    for lwork in (None, -1, 100):
        with pytest.warns(DeprecationWarning, match="lwork is not used") as caught:
            assert_same(qr(a, lwork=lwork), scipy.linalg.qr(a))
        assert [w.filename for w in caught] == [__file__]
    for lwork in (0, 5):
        with pytest.raises(ValueError, match=f"lwork should be None, -1 or > M, got {lwork}"):
            qr(a, False, lwork)


@pytest.mark.parametrize(("shape", "mode"), [((4,), "right"), ((3, 4), "right"), ((5, 3), "right"),
    ((4,), "left"), ((4, 3), "left"), ((0, 3), "left")])  # fmt: skip
def test_products_that_do_not_fit(shape: tuple[int, ...], mode: str) -> None:
    said = rf"c of shape \({', '.join(map(str, shape))},?\) does not fit a of shape \(5, 3\)"
    with pytest.raises(ValueError, match=said):
        qr_multiply(random(5, 3), np.ones(shape), mode)
    with pytest.raises(ValueError, match="does not fit factors of shape"):
        qr_factor(random(5, 3)).multiply(np.ones((7, *shape[1:])))


def test_nans_that_nobody_looked_for() -> None:
    a = random(30, 20)
    a[13, 7] = np.nan
    q, r = qr(a, check_finite=False, nb=NB)
    assert np.isfinite(r[:, :7]).all()
    assert np.isnan(r[:, 7:]).any()
    assert q.shape == (30, 30)
