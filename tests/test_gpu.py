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

from hetero_la import Cluster, det, inv, lu, lu_factor, lu_solve, slogdet, solve
from hetero_la.matrices import generate
from hetero_la.residuals import RATIO_LIMIT, lu_ratio, solve_ratio
from hetero_la.tiles.kernels.gpu import gpu_count
from tests.support import DTYPES, host, random

NB = 16
SIZES = [(0, 0), (0, 3), (3, 0), (1, 1), (9, 9), (16, 16), (99, 99), (99, 40), (40, 99)]


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
def test_lu_factor(xp: ModuleType, m: int, n: int, dtype: str) -> None:
    a = random(m, n, dtype)
    given = xp.asarray(a)
    check_factors(xp, a, lu_factor(given, nb=NB))
    assert np.array_equal(host(given), a)


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "kind", ["orthog", "gfpp", "shift", "zero-first", "zero-middle", "zero-last", "kms", "moler",
             "hilb", "svd", "near-underflow", "near-overflow"],
)  # fmt: skip
def test_kinds(xp: ModuleType, kind: str, dtype: str) -> None:
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
def test_solve(xp: ModuleType, nrhs: int | None, dtype: str) -> None:
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


def test_singular_and_ill_conditioned(xp: ModuleType) -> None:
    a = random(40)
    a[:, 20] = 0
    with pytest.warns(LinAlgWarning, match="diagonal number 21 of U"):
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
def test_arrays_in_two_places() -> None:
    cupy = pytest.importorskip("cupy")
    with pytest.raises(TypeError, match="both be NumPy arrays or both be CuPy arrays"):
        solve(cupy.eye(3), np.ones(3))


# --- on a cluster


@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize("lookahead", [0, 1, 2])
def test_lu_on_a_cluster(xp: ModuleType, cluster: Cluster, lookahead: int, panel: str) -> None:
    for (m, n), dtype in zip([(99, 99), (99, 40), (40, 99), (1, 1)], DTYPES, strict=True):
        a = random(m, n, dtype)
        for given in (xp.asarray(a), xp.ascontiguousarray(xp.asarray(a))):
            factors = lu_factor(given, nb=NB, client=cluster, lookahead=lookahead, panel=panel)
            check_factors(xp, a, factors)


@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize("nrhs", [1, 40])
def test_solve_on_a_cluster(xp: ModuleType, cluster: Cluster, nrhs: int, panel: str) -> None:
    for dtype in DTYPES:
        a, b = random(99, dtype=dtype), random(99, nrhs, dtype, seed=1)
        x = solve(xp.asarray(a), xp.asarray(b), nb=NB, client=cluster, panel=panel)
        same_kind(xp, x)
        assert solve_ratio(a, host(x), b) < RATIO_LIMIT


@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize("kind", ["orthog", "shift", "gfpp"])
def test_kinds_on_a_cluster(xp: ModuleType, cluster: Cluster, kind: str, panel: str) -> None:
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
def test_several_thousand_rows(xp: ModuleType, cluster: Cluster, panel: str) -> None:
    a = generate("orthog", 3000)
    factors = lu_factor(xp.asarray(a), client=cluster, panel=panel)
    assert lu_ratio(a, *host(*factors)) < RATIO_LIMIT
