"""The public functions on arrays of both kinds, and on real GPUs.

What needs no GPU runs everywhere, with NumPy arrays and virtual GPUs: the same lines
then run with CuPy arrays, and on one and all of the GPUs that there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning

from hetero_la import (
    Cluster,
    cho_factor,
    cho_solve,
    cholesky,
    det,
    inv,
    lstsq,
    lu,
    lu_factor,
    lu_solve,
    qr,
    qr_factor,
    qr_multiply,
    slogdet,
    solve,
)
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import RATIO_LIMIT, lu_ratio, solve_ratio
from hetero_la.tiles.arrays.transfer import gpu_count, pinned_empty
from tests.support import (
    DTYPES,
    LIMIT,
    assert_close,
    cholesky_ratio,
    covering,
    host,
    lstsq_ratio,
    orthogonality_ratio,
    positive,
    qr_ratio,
    random,
)

NB = 16
SIZES = [(0, 0), (0, 3), (3, 0), (1, 1), (9, 9), (16, 16), (99, 99), (99, 40), (40, 99)]
#: Factored on clusters with one type each, two of them for each look-ahead.
ON_CLUSTERS = list(zip([(99, 99), (99, 40), (40, 99), (1, 1)], DTYPES, strict=True))
KINDS = ["orthog", "gfpp", "shift", "zero-first", "zero-middle", "zero-last", "kms", "moler",
         "hilb", "svd", "near-underflow", "near-overflow"]  # fmt: skip
QR_KINDS = ["orthog", "gfpp", "shift", "zero-middle", "hilb", "svd", "near-underflow",
            "near-overflow", "columns"]  # fmt: skip


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request: pytest.FixtureRequest) -> ModuleType:
    return pytest.importorskip(request.param)


@pytest.fixture(
    scope="module",
    params=["virtual", *(pytest.param(n, marks=pytest.mark.gpu) for n in ("one", "all"))],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    gpus = {"virtual": 0, "one": 1, "all": gpu_count()}[request.param]
    with Cluster(cpus=1, gpus=gpus, virtual_gpus=0 if gpus else 2, blas_threads=1) as running:
        yield running


def same_kind(xp: ModuleType, *arrays: Any) -> None:
    """What comes out is of the kind that went in."""
    assert all(type(a) is xp.ndarray for a in arrays)


def check_factors(xp: ModuleType, a: NDArray, factors: Any) -> None:
    packed, piv = factors
    same_kind(xp, packed, piv)
    assert (packed.shape, packed.dtype) == (a.shape, a.dtype)
    assert packed.flags.f_contiguous
    assert (piv.shape, piv.dtype) == ((min(a.shape),), np.int32)
    assert lu_ratio(a, *host(packed, piv)) < RATIO_LIMIT
    if a.size:
        assert np.array_equal(host(piv), scipy.linalg.lu_factor(a)[1])


# --- in the calling thread, on the host or on the GPU that holds the array


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), SIZES)
def test_lu_factor_is_scipy_s_in_place_and_kind(xp: ModuleType, m: int, n: int, dtype: str) -> None:
    a = random(m, n, dtype)
    given = xp.asarray(a)
    check_factors(xp, a, lu_factor(given, nb=NB))
    assert np.array_equal(host(given), a)


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize(("kind", "dtype"), covering(KINDS, DTYPES))
def test_lu_of_every_kind_is_within_the_ratio(xp: ModuleType, kind: str, dtype: str) -> None:
    a = generate(kind, 90, dtype=dtype)
    packed, piv = host(*lu_factor(xp.asarray(a), nb=NB))
    assert lu_ratio(a, packed, piv) < RATIO_LIMIT
    limit = (1 if a.dtype.kind == "f" else 2**0.5) * (1 + 20 * np.finfo(dtype).eps)
    assert np.abs(np.tril(packed, -1)).max() <= limit


@pytest.mark.parametrize("order", ["C", "F", "strided", "part"])
def test_orders_and_overwriting(xp: ModuleType, order: str) -> None:
    a = random(40)
    given = {
        "C": xp.array(a, order="C"),
        "F": xp.array(a, order="F"),
        "strided": xp.asarray(np.repeat(np.repeat(a, 2, axis=0), 3, axis=1))[::2, ::3],
        "part": xp.asfortranarray(xp.asarray(np.pad(a, 3)))[3:-3, 3:-3],
    }[order]
    check_factors(xp, a, lu_factor(given, nb=NB))
    assert np.array_equal(host(given), a)
    factors = lu_factor(given, overwrite_a=True, nb=NB)
    check_factors(xp, a, factors)
    assert bool(xp.may_share_memory(given, factors.lu)) == (order == "F")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nrhs", [None, 0, 1, 40])
def test_solve_is_scipy_s_in_place_and_kind(xp: ModuleType, nrhs: int | None, dtype: str) -> None:
    a = random(50, dtype=dtype)
    b = random(50, 1 if nrhs is None else nrhs, dtype, seed=1)
    b = b[:, 0] if nrhs is None else b
    given = xp.asarray(a), xp.asarray(b)
    for trans, matrix in enumerate((a, a.T, a.conj().T)):
        x = lu_solve(lu_factor(given[0], nb=NB), given[1], trans=trans)
        same_kind(xp, x)
        assert (x.shape, x.dtype) == (b.shape, b.dtype)
        assert solve_ratio(matrix, host(x), b) < RATIO_LIMIT
    x = solve(*given, nb=NB)
    same_kind(xp, x)
    assert (x.shape, x.dtype) == (b.shape, b.dtype)
    assert solve_ratio(a, host(x), b) < RATIO_LIMIT
    assert np.array_equal(host(given[1]), b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_right_hand_sides_are_refined_where_they_need_it(xp: ModuleType, dtype: str) -> None:
    a = generate("rands", 400, dtype=dtype)
    given = xp.asarray(a)
    x = solve(given, given)
    same_kind(xp, x)
    assert solve_ratio(a, host(x), a) < RATIO_LIMIT


@pytest.mark.parametrize("dtype", DTYPES)
def test_lu_inv_and_determinants(xp: ModuleType, dtype: str) -> None:
    a = random(40, dtype=dtype)
    given = xp.asarray(a)
    p, lower, upper = lu(given, nb=NB)
    same_kind(xp, p, lower, upper)
    exact = 1e-4 if np.finfo(dtype).eps > 1e-10 else 1e-12
    assert np.allclose(host(p) @ host(lower) @ host(upper), a, atol=exact)
    x = inv(given, nb=NB)
    same_kind(xp, x)
    assert solve_ratio(a, host(x), np.eye(40, dtype=dtype)) < RATIO_LIMIT
    assert complex(det(given, nb=NB)) == pytest.approx(complex(scipy.linalg.det(a)), rel=1e-2)
    sign, logabs = slogdet(given, nb=NB)
    assert complex(sign) == pytest.approx(complex(np.linalg.slogdet(a).sign), abs=1e-2)
    assert float(logabs) == pytest.approx(float(np.linalg.slogdet(a).logabsdet), rel=1e-4)
    up = float(np.finfo(dtype).max) / 8  # U overflows
    _, more = slogdet(given * a.dtype.type(up), nb=NB)
    assert float(more) == pytest.approx(float(logabs) + 40 * np.log(up), rel=1e-5)


# --- Cholesky and QR, likewise


def check_cholesky(xp: ModuleType, a: NDArray, **options: Any) -> None:
    """Factors of both triangles, the other one being full of NaN, and solutions."""
    b = random(len(a), 3, a.dtype, seed=1)
    for lower in (False, True):
        unnamed = np.triu(np.ones(a.shape, bool), 1)
        unnamed = unnamed if lower else unnamed.T
        given = xp.asarray(np.asfortranarray(np.where(unnamed, np.nan, a).astype(a.dtype)))
        c = cholesky(given, lower=lower, check_finite=False, **options)
        factors = cho_factor(given, lower=lower, check_finite=False, **options)
        x = solve(given, xp.asarray(b), lower=lower, assume_a="pos", check_finite=False, **options)
        y = cho_solve(factors, xp.asarray(b), check_finite=False)
        z = cho_factor(xp.asarray(a), lower=lower, **options).solve(xp.asarray(b[:, 0]))
        same_kind(xp, c, factors.c, x, y, z)
        assert (c.shape, c.dtype, x.shape, x.dtype) == (a.shape, a.dtype, b.shape, b.dtype)
        assert not host(c)[unnamed].any()
        assert np.isnan(host(factors.c)[unnamed]).all()
        assert np.array_equal(host(factors.c)[~unnamed], host(c)[~unnamed])
        low = host(c) if lower else host(c).conj().T
        assert cholesky_ratio(a, low) < LIMIT
        assert solve_ratio(a, host(x), b) < RATIO_LIMIT
        assert solve_ratio(a, host(y), b) < RATIO_LIMIT
        assert_close(z, host(y)[:, 0])
        assert np.array_equal(np.isnan(host(given)), unnamed)


def check_qr(xp: ModuleType, a: NDArray, **options: Any) -> None:
    """All modes, by LAPACK's ratios and SciPy's shapes and signs."""
    given = xp.asarray(a)
    for mode in ("full", "economic"):
        q, r = qr(given, mode=mode, **options)
        same_kind(xp, q, r)
        theirs = scipy.linalg.qr(a, mode=mode)
        assert [(x.shape, x.dtype) for x in (q, r)] == [(x.shape, x.dtype) for x in theirs]
        assert qr_ratio(a, *host(q, r)) < LIMIT
        assert orthogonality_ratio(host(q)) < LIMIT
        assert not np.tril(host(r), -1).any()
        assert (host(r).diagonal().real * theirs[1].diagonal().real >= 0).all()
    (packed, tau), r = qr(given, mode="raw", **options)
    same_kind(xp, packed, tau, r, *qr(given, mode="r", **options))
    expected, scalars = scipy.linalg.qr(a, mode="raw")[0]
    assert_close(packed, expected, limit=2e-2 if a.dtype.name in DTYPES[::2] else 1e-9)
    assert_close(tau, scalars, limit=2e-2 if a.dtype.name in DTYPES[::2] else 1e-9)
    factors = qr_factor(given, **options)
    same_kind(xp, *factors, factors.r)
    c = random(len(a), 3, a.dtype, seed=1)
    product = factors.multiply(factors.multiply(xp.asarray(c)), adjoint=True)
    same_kind(xp, product)
    assert_close(product, c)
    assert np.array_equal(host(given), a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 9, 16, 99])
def test_cholesky_of_any_size_is_within_the_ratio(xp: ModuleType, n: int, dtype: str) -> None:
    check_cholesky(xp, positive(n, dtype, seed=n), nb=NB)


@pytest.mark.parametrize(("size", "dtype"), covering(SIZES, DTYPES))
def test_qr_of_any_size_is_within_the_ratio(
    xp: ModuleType, size: tuple[int, int], dtype: str
) -> None:
    check_qr(xp, random(*size, dtype), nb=NB)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("size", "dtype"), covering([(300, 40), (700, 99), (99, 99), (40, 99)], DTYPES)
)
def test_qr_by_cholesky(size: tuple[int, int], dtype: str) -> None:
    import cupy

    a = random(*size, dtype)
    check_qr(cupy, a, nb=NB, qr_panel="cholesky")
    factors = qr_factor(cupy.asarray(a), nb=NB, qr_panel="cholesky")
    assert len(factors.panels) == -(-min(size) // NB)
    assert factors.panels[0] == "cholesky"
    if size[0] > 3 * size[1]:
        assert set(factors.panels) == {"cholesky"}


@pytest.mark.gpu
def test_one_ill_conditioned_panel_falls_back() -> None:
    import cupy

    a = random(500, 64, "float64")
    a[:, 20:24] = a[:, 20:21]
    factors = qr_factor(cupy.asarray(a), nb=NB, qr_panel="cholesky")
    assert factors.panels == ("cholesky", "householder", "cholesky", "cholesky")
    assert "3 by cholesky, 1 by householder" in str(factors.timing)
    check_qr(cupy, np.delete(a, [21, 22, 23], axis=1), nb=NB, qr_panel="cholesky")


@pytest.mark.gpu
def test_q_is_applied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    from hetero_la.tiles.kernels.gpu_libraries import cusolver

    a, c = random(300, 100, "complex128"), cupy.asarray(random(300, 3, "complex128", seed=1))
    factors = qr_factor(cupy.asarray(a))
    whole = [factors.multiply(c, adjoint=adjoint) for adjoint in (False, True)]
    monkeypatch.setattr(cusolver, "_MOST", 300 * 17)
    for adjoint, expected in zip((False, True), whole, strict=True):
        assert_close(factors.multiply(c, adjoint=adjoint), host(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(60, 60), (60, 20), (20, 60)])
def test_lstsq_of_numbers_near_the_ends_of_the_range(
    xp: ModuleType, m: int, n: int, dtype: str
) -> None:
    a, b = generate("svd", m, n, dtype=dtype, cond=10.0), random(m, 3, dtype, seed=1)
    expected, squares, *_ = scipy.linalg.lstsq(a, b)
    info = np.finfo(dtype)
    low, high = info.minexp, info.maxexp - 4
    if xp is not np and info.bits == 32:  # CuPy takes subnormal ones for zeros
        low += info.nmant - 3
    for up, rhs_up in ((low, low), (high, high), (low, -8), (high, 24), (0, low), (0, high - 8)):
        x, residues, rank, _ = lstsq(xp.asarray(a * 2.0**up), xp.asarray(b * 2.0**rhs_up), nb=NB)
        same_kind(xp, x)
        assert rank == min(m, n)
        assert_close(x, expected * 2.0 ** (rhs_up - up))
        if m > n and abs(rhs_up) < 25:
            assert_close(residues, np.asarray(squares, dtype) * 4.0**rhs_up, limit=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(1, 1), (99, 99), (99, 40), (40, 99)])
def test_lstsq_is_scipy_s_in_place_and_kind(xp: ModuleType, m: int, n: int, dtype: str) -> None:
    a = generate("svd", m, n, dtype=dtype, cond=10.0)
    for b in (random(m, 20, dtype, seed=1), random(m, 1, dtype, seed=2)[:, 0]):
        x, residues, rank, _ = lstsq(xp.asarray(a), xp.asarray(b), nb=NB)
        same_kind(xp, x, xp.asarray(residues))
        expected, squares, full, _ = scipy.linalg.lstsq(a, b)
        assert_close(x, expected)
        assert rank == full
        if m > n:
            assert_close(residues, np.asarray(squares, dtype), limit=1e-2)
            assert lstsq_ratio(a, host(x), b) < LIMIT
        assert_close(
            qr_factor(xp.asarray(a), nb=NB).solve(xp.asarray(b)) if m >= n else x, expected
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(99, 40), (40, 99)])
def test_qr_multiply_is_scipy_s(xp: ModuleType, m: int, n: int, dtype: str) -> None:
    a, k = random(m, n, dtype), min(m, n)
    for mode, shape in [("right", (m,)), ("right", (3, m)), ("left", (k,)), ("left", (k, 3))]:
        c = random(*(shape if shape[1:] else (*shape, 1)), dtype, seed=1).reshape(shape)
        for conjugate in (False, True):
            found = qr_multiply(xp.asarray(a), xp.asarray(c), mode, conjugate=conjugate, nb=NB)
            same_kind(xp, *found)
            for one, other in zip(
                found, scipy.linalg.qr_multiply(a, c, mode, conjugate=conjugate), strict=True
            ):
                assert_close(one, other)


@pytest.mark.parametrize(("kind", "dtype"), covering(QR_KINDS, DTYPES))
def test_qr_of_every_kind_is_within_the_ratio(xp: ModuleType, kind: str, dtype: str) -> None:
    for m, n in [(90, 90), (90, 50)]:
        if kind == "columns":
            top = 300 if np.finfo(dtype).eps < 1e-10 else 36
            d = 10.0 ** np.random.default_rng(0).permutation(np.linspace(-top, top, n))
            a = np.asfortranarray((random(m, n, dtype) * d).astype(dtype))
        else:
            a = generate(kind, m, n, dtype=dtype)
        q, r = host(*qr(xp.asarray(a), nb=NB))
        assert qr_ratio(a, q, r) < LIMIT
        assert orthogonality_ratio(q) < LIMIT


@pytest.mark.parametrize(
    ("scale", "dtype"),
    covering(["one", "underflow", "overflow", "columns", "kms", "moler"], DTYPES),
)
def test_cholesky_of_kinds(xp: ModuleType, scale: str, dtype: str) -> None:
    info = np.finfo(dtype)
    a = positive(90, dtype)
    if scale in ("kms", "moler"):
        a = generate(scale, 90, dtype=dtype)
        a += 400 * info.eps * np.abs(a).sum(axis=0).max() * np.eye(90, dtype=dtype)
    elif scale == "columns":
        top = 0.47 * float(np.log10(info.max))
        d = 10.0 ** np.random.default_rng(0).permutation(np.linspace(-top, top, 90))
        a = np.asfortranarray((d[:, None] * a * d).astype(dtype))
    elif scale != "one":
        least = float(info.tiny) / float(info.eps)
        a = (a * (least if scale == "underflow" else 1e-3 / least)).astype(dtype)
    for options in ({}, {"inverse_bound": 0.0}):
        low = host(cholesky(xp.asarray(a), lower=True, nb=NB, **options))
        assert cholesky_ratio(a, low) < LIMIT


@pytest.mark.parametrize("order", ["C", "F", "strided", "part"])
def test_overwriting_by_cholesky_and_qr(xp: ModuleType, order: str) -> None:
    a = positive(40)
    for overwrite, lower in [(False, True), (True, False), (True, True)]:
        for function in (cholesky, cho_factor, qr_factor):
            given = {
                "C": xp.array(a, order="C"),
                "F": xp.array(a, order="F"),
                "strided": xp.asarray(np.repeat(np.repeat(a, 2, axis=0), 3, axis=1))[::2, ::3],
                "part": xp.asfortranarray(xp.asarray(np.pad(a, 3)))[3:-3, 3:-3],
            }[order]
            kind = {} if function is qr_factor else {"lower": lower}
            found = function(given, overwrite_a=overwrite, nb=NB, **kind)
            c = found if function is cholesky else found[0]
            in_place = overwrite and order in (("F",) if function is qr_factor else ("C", "F"))
            assert bool(xp.may_share_memory(given, c)) == in_place
            assert np.array_equal(host(given), host(c) if in_place else a)


@pytest.mark.parametrize("at", [0, 15, 16, 70, 98])
def test_not_positive_definite(xp: ModuleType, at: int, cluster: Cluster) -> None:
    a = positive(99)
    a[at, at] = -1
    given = xp.asarray(a)
    for options in ({}, {"client": cluster, "panel": "gpu"}, {"client": cluster, "panel": "cpu"}):
        for lower in (False, True):
            with pytest.raises(np.linalg.LinAlgError, match=rf"^{at + 1}-th leading minor"):
                cholesky(given, lower=lower, nb=NB, **options)
        with pytest.raises(np.linalg.LinAlgError, match=rf"^{at + 1}-th leading minor"):
            solve(given, xp.ones(99), assume_a="pos", nb=NB, **options)
        if at == 70:  # the next run is good again
            check_cholesky(xp, positive(99), nb=NB, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("driver", ["gelsd", "gelss", "gelsy"])
@pytest.mark.parametrize(("m", "n"), [(60, 40), (40, 60), (40, 40), (0, 3), (3, 0)])
def test_lstsq_of_any_rank(xp: ModuleType, m: int, n: int, driver: str, dtype: str) -> None:
    cond = float(np.finfo(dtype).eps) ** 0.75
    full, low = random(m, n, dtype), random(m, 5, dtype) @ random(5, n, dtype, seed=1)
    for a in (full, low, np.zeros((m, n), dtype)):
        for b in (random(m, 20, dtype, seed=1), random(m, 1, dtype, seed=2)[:, 0]):
            found = lstsq(xp.asarray(a), xp.asarray(b), cond, lapack_driver=driver, nb=NB)
            expected = lstsq(a, b, cond, lapack_driver=driver, nb=NB)
            assert found[2] == expected[2]
            for i in (0, 1, 3):
                assert (found[i] is None) == (expected[i] is None)
                if found[i] is not None:
                    same_kind(xp, found[i])
                    assert (found[i].shape, found[i].dtype) == (
                        expected[i].shape,
                        expected[i].dtype,
                    )
                    assert np.allclose(host(found[i]), expected[i], atol=5e-3, equal_nan=True)
    given = xp.asarray(np.stack([low, full])[:, :, : min(m, n)])
    assert lstsq(given, xp.ones(m, dtype), cond, lapack_driver=driver)[2].tolist() == [
        min(5, m, n), min(m, n)
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(40, 40), (60, 20), (20, 60), (3, 0)])
def test_qr_with_pivoting(xp: ModuleType, m: int, n: int, dtype: str) -> None:
    a, c = random(m, n, dtype), random(m, 3, dtype, seed=1)
    for mode in ("full", "economic", "r", "raw"):
        found = qr(xp.asarray(a), mode=mode, pivoting=True)
        expected = scipy.linalg.qr(a, mode=mode, pivoting=True)
        pairs = zip(found, expected, strict=True)
        if mode == "raw":
            pairs = zip((*found[0], *found[1:]), (*expected[0], *expected[1:]), strict=True)
        for one, other in pairs:
            same_kind(xp, one)
            assert np.array_equal(host(one), other)
    found = qr_multiply(xp.asarray(a), xp.asarray(c.T), pivoting=True)
    expected = qr_multiply(a, c.T, pivoting=True)
    for one, other in zip(found, expected, strict=True):
        same_kind(xp, one)
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert np.allclose(host(one), other, atol=1e-3)


def test_rank_deficient_least_squares_warn(xp: ModuleType) -> None:
    a = random(60, 40)
    a[:, 30] = a[:, 3]
    with pytest.warns(
        LinAlgWarning, match="rank-deficient matrix: its rank is about 39 and not 40"
    ):
        assert lstsq(xp.asarray(a), xp.ones(60), lapack_driver="gels", nb=NB)[2] == 39
    a[:, 20] = 0
    for given in (xp.asarray(a), xp.asarray(a.T)):
        with pytest.raises(np.linalg.LinAlgError, match="diagonal number 21 of R is exactly zero"):
            lstsq(given, xp.ones(len(given)), lapack_driver="gels", nb=NB)


def test_singular_and_ill_conditioned(xp: ModuleType) -> None:
    a = random(40)
    a[:, 20] = 0
    with pytest.warns(LinAlgWarning, match="Diagonal number 21 is exactly zero"):
        assert lu_factor(xp.asarray(a), nb=NB).info == 21
    with pytest.raises(np.linalg.LinAlgError, match="diagonal number 21 of U"):
        solve(xp.asarray(a), xp.ones(40), nb=NB)
    with pytest.warns(LinAlgWarning, match="ill-conditioned"):
        solve(xp.asarray(generate("hilb", 30)), xp.ones(30), nb=NB)


def test_not_finite(xp: ModuleType) -> None:
    for bad in (np.nan, np.inf):
        a = random(20)
        a[13, 7] = bad
        with pytest.raises(ValueError, match="must not contain infs or NaNs"):
            lu_factor(xp.asarray(a))
        assert not np.isfinite(host(lu_factor(xp.asarray(a), check_finite=False, nb=8).lu)).all()


@pytest.mark.gpu
def test_arrays_in_two_places_are_refused() -> None:
    cupy = pytest.importorskip("cupy")
    with pytest.raises(TypeError, match="a on GPU 0 and b on the host must be on the same device"):
        solve(cupy.eye(3), np.ones(3))
    with pytest.raises(
        TypeError, match="factors on the host and b on GPU 0 must be on the same device"
    ):
        lu_solve(lu_factor(np.eye(3)), cupy.ones(3))
    with pytest.raises(TypeError, match="a on the host and c on GPU 0 must be on the same device"):
        qr_multiply(np.eye(3), cupy.ones((3, 2)))


# --- on a cluster


@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize("lookahead", [0, 1, 2])
def test_lu_on_a_cluster_is_scipy_s(
    xp: ModuleType, cluster: Cluster, lookahead: int, panel: str
) -> None:
    for (m, n), dtype in ON_CLUSTERS:
        a = random(m, n, dtype)
        for given in (xp.asarray(a), xp.ascontiguousarray(xp.asarray(a))):
            factors = lu_factor(given, nb=NB, client=cluster, lookahead=lookahead, panel=panel)
            check_factors(xp, a, factors)


@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize("lookahead", [0, 1, 2])
@pytest.mark.parametrize("nb", [1, 8])
def test_lu_in_two_levels_is_scipy_s(
    xp: ModuleType, cluster: Cluster, nb: int, lookahead: int, panel: str
) -> None:
    options = {"nb": nb, "coarse": 3 * nb, "lookahead": lookahead}
    for (m, n), dtype in ON_CLUSTERS:
        a = random(m, n, dtype)
        given = xp.asarray(a)
        check_factors(xp, a, lu_factor(given, **options))
        check_factors(xp, a, lu_factor(given, client=cluster, panel=panel, **options))


@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize("nrhs", [1, 40])
def test_solve_on_a_cluster_is_within_the_ratio(
    xp: ModuleType, cluster: Cluster, nrhs: int, panel: str
) -> None:
    for dtype in DTYPES:
        a, b = random(99, dtype=dtype), random(99, nrhs, dtype, seed=1)
        x = solve(xp.asarray(a), xp.asarray(b), nb=NB, client=cluster, panel=panel)
        same_kind(xp, x)
        assert solve_ratio(a, host(x), b) < RATIO_LIMIT


@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize("lookahead", [0, 1, 2])
def test_cholesky_and_qr_on_a_cluster(
    xp: ModuleType, cluster: Cluster, lookahead: int, panel: str
) -> None:
    options = {"nb": NB, "client": cluster, "lookahead": lookahead, "panel": panel}
    for (m, n), dtype in ON_CLUSTERS[lookahead : lookahead + 2]:
        check_qr(xp, random(m, n, dtype), **options)
        check_cholesky(xp, positive(n, dtype), **options)
        a, b = generate("svd", m, n, dtype=dtype, cond=10.0), random(m, 20, dtype, seed=1)
        x = lstsq(xp.asarray(a), xp.asarray(b), **options)[0]
        same_kind(xp, x)
        assert_close(x, scipy.linalg.lstsq(a, b)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["pageable", "pinned"])
def test_large_matrices_from_the_host_give_the_results_of_the_device(where: str) -> None:
    """Columns arrive late, results leave early, into pages that threads touch before."""
    n = 4096
    with Cluster(gpus=1, cpus=1) as running:
        options = {"nb": 128, "client": running, "check_finite": False}
        for factor, names in ((lu_factor, "lu piv"), (qr_factor, "qr tau"), (cho_factor, "c")):
            a = random(n, n) + (n * np.eye(n) if factor is cho_factor else 0)
            given = np.asfortranarray(a)
            if where == "pinned":
                given = pinned_empty((n, n), "f8")
                given[...] = a
            there = pytest.importorskip("cupy").asarray(a)
            expected = factor(there, **options)
            found = factor(given, overwrite_a=where == "pinned", **options)
            named = np.triu if factor is cho_factor else np.asarray
            for name in names.split():
                assert_close(named(getattr(found, name)), named(host(getattr(expected, name))))


@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize("kind", ["orthog", "shift", "gfpp"])
def test_lu_of_kinds_on_a_cluster_is_within_the_ratio(
    xp: ModuleType, cluster: Cluster, kind: str, panel: str
) -> None:
    a = generate(kind, 300)
    factors = lu_factor(xp.asarray(a), nb=32, client=cluster, panel=panel)
    assert lu_ratio(a, *host(*factors)) < RATIO_LIMIT


def test_run_after_run(xp: ModuleType, cluster: Cluster) -> None:
    """What one run leaves behind does not reach the next."""
    for seed in range(5):
        a = random(99, seed=seed)
        check_factors(xp, a, lu_factor(xp.asarray(a), nb=NB, client=cluster))


@pytest.mark.gpu
@pytest.mark.parametrize("panel", ["cpu", "gpu", "auto"])
def test_lu_of_several_thousand_rows_is_within_the_ratio(
    xp: ModuleType, cluster: Cluster, panel: str
) -> None:
    a = generate("orthog", 3000)
    factors = lu_factor(xp.asarray(a), client=cluster, panel=panel)
    assert lu_ratio(a, *host(*factors)) < RATIO_LIMIT


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize(("m", "dtype"), covering([70_000, 131_077], DTYPES))
def test_lu_of_panels_taller_than_registers(m: int, dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    a = random(m, 90, dtype)
    check_factors(cupy, a, lu_factor(cupy.asarray(a), nb=64))
    a[:, 20] = a[:, 70] = 0
    with pytest.warns(LinAlgWarning, match="Diagonal number 21 is exactly zero"):
        factors = lu_factor(cupy.asarray(a), nb=64)
    check_factors(cupy, a, factors)
    assert factors.info == 21
    a[m - 1, 80] = np.nan
    assert np.isnan(host(lu_factor(cupy.asarray(a), check_finite=False, nb=64).lu)).any()


@pytest.mark.gpu
@pytest.mark.parametrize("panel", ["cpu", "gpu", "auto"])
def test_cholesky_and_qr_of_several_thousand_rows(
    xp: ModuleType, cluster: Cluster, panel: str
) -> None:
    a = positive(3000)
    low = cholesky(xp.asarray(a), lower=True, client=cluster, panel=panel)
    assert cholesky_ratio(a, host(low)) < LIMIT
    a = generate("orthog", 3000, 2000)
    q, r = host(*qr(xp.asarray(a), mode="economic", client=cluster, panel=panel))
    assert qr_ratio(a, q, r) < LIMIT
    assert orthogonality_ratio(q) < LIMIT


@pytest.mark.gpu
@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("n", [600, 1500])
def test_ill_conditioned_diagonal_blocks(n: int, on_host: bool) -> None:
    """Inverses of such blocks lose all digits, and are not used then."""
    import cupy

    rows = np.arange(n)
    a = np.exp(-(((rows[:, None] - rows) / n * 10) ** 2)) + 1e-10 * np.eye(n)
    b, there = a @ np.ones((n, 2)), np.asarray if on_host else cupy.asarray
    eps, anorm = np.finfo(float).eps, np.abs(a).sum(axis=0).max()

    def ratio(x: Any, right: Any) -> float:
        x = host(x)
        errors = np.abs(right - a @ x).sum(axis=0) / np.abs(x).sum(axis=0)
        return float(errors.max() / (anorm * eps))

    assert ratio(solve(there(a), there(b)), b) < RATIO_LIMIT
    assert ratio(solve(there(a), there(b), assume_a="pos"), b) < RATIO_LIMIT
    assert ratio(cho_factor(there(a)).solve(there(b)), b) < RATIO_LIMIT
    assert ratio(lu_factor(there(a)).solve(there(b)), b) < RATIO_LIMIT
    assert ratio(inv(there(a)), np.eye(n)) < RATIO_LIMIT
