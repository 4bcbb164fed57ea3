"""Chunks that are not what their Dask array declares, and chunks on several GPUs and the host."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

import hetero_la
from hetero_la import Cluster
from hetero_la.tiles.arrays.transfer import gpu_count
from tests.dask_support import Case, any_shape_cases, assert_same, on_host, square_cases
from tests.support import DTYPES, random

NB = 16
CASES = [*any_shape_cases(50, 33, "float64"), *any_shape_cases(33, 50, "float64"),
         *square_cases(40, "float64")]  # fmt: skip

#: What a mapped function may return by mistake, of a chunk of any dimensions.
MISTAKES: dict[str, Callable[[NDArray], Any]] = {
    "fewer rows": lambda x: x[:-1],
    "one row": lambda x: x[:1],
    "fewer dimensions": lambda x: x[0],
    "number": lambda x: x.flat[0],
    "masked": lambda x: np.ma.masked_array(x),
    "complex": lambda x: x * 1j,
}
#: Of two dimensions only.
MATRIX_MISTAKES: dict[str, Callable[[NDArray], Any]] = {
    "transposed": lambda x: x.T.copy(),
    "sparse": scipy.sparse.csr_array,
}
ALL_MISTAKES = MISTAKES | MATRIX_MISTAKES


def mistaken(a: NDArray, mistake: Callable[[NDArray], Any]) -> da.Array:
    """An array that declares what it has not."""
    x = da.from_array(a.copy(), chunks=(20, 10)[: a.ndim])
    return da.map_blocks(mistake, x, dtype=a.dtype, meta=np.empty((0,) * a.ndim, a.dtype))


#: One mistake in all calls, and all of them in one call of each function.
REFUSED = [
    *((mistake, list({case.name: case for case in CASES}.values())) for mistake in ALL_MISTAKES),
    *(pytest.param(mistake, CASES, marks=[] if mistake == "one row" else pytest.mark.exhaustive)
      for mistake in ALL_MISTAKES),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mistake", "cases"), REFUSED, ids=lambda given: given if isinstance(given, str) else len(given)
)
def test_chunks_that_are_not_as_declared_are_refused(mistake: str, cases: list[Case]) -> None:
    change = ALL_MISTAKES[mistake]
    for case in cases:
        for place, a in enumerate(case.arrays):
            if a.ndim == 1 and mistake in MATRIX_MISTAKES:
                continue
            given = [mistaken(x, change) if i == place else x for i, x in enumerate(case.arrays)]
            with (
                pytest.raises(ValueError, match=r"chunk \(.*\) of .* Dask array declares"),
                dask.config.set(scheduler="sync"),
            ):
                dask.compute(case._replace(arrays=tuple(given)).call(as_dask_array, nb=NB))


def as_dask_array(a: Any) -> da.Array:
    return a if isinstance(a, da.Array) else da.from_array(a, chunks=(20, 10)[: a.ndim])


@pytest.mark.parametrize("check_finite", [True, False])
@pytest.mark.parametrize("function", ["lu", "qr", "inv", "cholesky"])
def test_the_error_names_chunk_and_shapes(function: str, check_finite: bool) -> None:
    x = da.from_array(random(40), chunks=(20, 10)).map_blocks(
        lambda x, block_id: x[:7] if block_id == (1, 2) else x, dtype="f8"
    )
    with pytest.raises(
        ValueError,
        match=r"chunk \(1, 2\) of a has shape \(7, 10\), where the Dask array declares "
        r"a dense array of shape \(20, 10\)",
    ):
        dask.compute(getattr(hetero_la, function)(x, check_finite=check_finite))


def test_chunks_on_a_cluster_that_are_not_as_declared() -> None:
    a = random(100)
    with Cluster(cpus=1, virtual_gpus=2) as cluster, cluster.get_client() as client:
        for change in (MATRIX_MISTAKES["transposed"], MISTAKES["one row"]):
            with pytest.raises(ValueError, match=r"chunk \(\d, \d\) of a has shape"):
                hetero_la.lu_factor(mistaken(a, change), client=client, nb=NB)[0].compute()
        x = da.from_array(a, chunks=(20, 10))  # the cluster has taken no harm
        assert np.isfinite(hetero_la.inv(x, client=client, nb=NB).compute()).all()


def test_arrays_that_say_that_their_chunks_are_sparse() -> None:
    x = da.from_array(random(20), chunks=10).map_blocks(scipy.sparse.csr_matrix)
    with pytest.raises(ValueError, match="a has chunks of type csr_matrix: they must be dense"):
        hetero_la.lu_factor(x)


# --- on GPUs

#: Where a chunk may lie: on the GPU of the worker that makes it, on the first or the last one,
#: on the host, or each elsewhere than its neighbours.
WHERE = ["worker", "first", "last", "host", "mixed"]
COMBINATIONS = [
    (cpus, where, dtype, "CF"[(i + j) % 2], bool((i + j // 2) % 2))
    for cpus in (0, 1)
    for (i, where), (j, dtype) in itertools.product(enumerate(WHERE), enumerate(DTYPES))
    if not cpus or i % len(DTYPES) == j
]


def on_gpus(a: NDArray, where: str, order: str, chunks: int = 13) -> da.Array:
    """A Dask array that declares CuPy chunks, which lie where they are said to."""
    import cupy

    places = {"worker": [None], "first": [0], "last": [-1], "host": ["host"]}
    choice = places.get(where, [0, -1, "host", None])

    def move(block: NDArray, block_id: tuple[int, ...]) -> Any:
        place: Any = choice[sum(block_id) % len(choice)]
        if place == "host":
            return np.array(block, order=order)
        index = cupy.cuda.runtime.getDevice() if place is None else place % gpu_count()
        with cupy.cuda.Device(index):
            return cupy.array(block, order=order)

    x = da.from_array(a.copy(), chunks=chunks)
    return x.map_blocks(move, dtype=a.dtype, meta=cupy.empty((0,) * a.ndim, a.dtype))


def plain(found: Any) -> Any:
    return tuple(found) if isinstance(found, tuple) else found


@pytest.fixture(scope="module", params=[0, 1], ids=["gpus", "gpus and a cpu"])
def gpu_cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    pytest.importorskip("cupy")
    with Cluster(gpus=gpu_count(), cpus=request.param) as cluster, cluster.get_client() as client:
        yield client


def check_everywhere(cases: list[Case], where: str, order: str, persist: bool, client: Any) -> None:
    def given(a: NDArray) -> da.Array:
        x = on_gpus(a, where, order)
        return x.persist() if persist else x

    made = [case.call(given, nb=NB, client=client) for case in cases]
    for case, found in zip(cases, dask.compute(*made), strict=True):
        expected = plain(case.call(nb=NB))
        assert_same(on_host(plain(found)), expected, case.arrays[0].dtype.name)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("gpu_cluster", "where", "dtype", "order", "persist"), COMBINATIONS, indirect=["gpu_cluster"]
)
def test_chunks_may_lie_anywhere(
    gpu_cluster: Any, where: str, dtype: str, order: str, persist: bool
) -> None:
    cases = [*any_shape_cases(50, 33, dtype), *any_shape_cases(33, 50, dtype)]
    check_everywhere([*cases, *square_cases(40, dtype)], where, order, persist, gpu_cluster)


@pytest.mark.gpu
@pytest.mark.parametrize("where", WHERE)
def test_numbers_that_are_not_finite_are_found_anywhere(gpu_cluster: Any, where: str) -> None:
    a = random(60)
    a[50, 17] = np.nan
    with pytest.raises(ValueError, match="a: array must not contain infs or NaNs"):
        hetero_la.lu_factor(on_gpus(a, where, "C"), client=gpu_cluster, nb=NB)[0].compute()
    short = on_gpus(a, where, "C").map_blocks(lambda x: x[:1], dtype=a.dtype)
    with pytest.raises(ValueError, match=r"chunk .* of a has shape"):
        hetero_la.lu_factor(short, client=gpu_cluster, nb=NB)[0].compute()


@pytest.mark.gpu
@pytest.mark.parametrize("n", [2000, 3000])
@pytest.mark.parametrize("where", ["worker", "mixed"])
def test_large_arrays_of_cupy_chunks(gpu_cluster: Any, n: int, where: str) -> None:
    cupy = pytest.importorskip("cupy")
    a, b = random(n), random(n, 3, seed=1)

    def given(x: NDArray) -> da.Array:
        if where == "mixed":
            return on_gpus(x, where, "C", 500)
        whole = da.from_array(x, chunks=500)
        return whole.map_blocks(cupy.asarray, dtype="d", meta=cupy.empty((0, 0)))

    packed, piv = dask.compute(*hetero_la.lu_factor(given(a)))
    expected = hetero_la.lu_factor(a)
    assert np.array_equal(piv.get(), expected.piv)
    assert np.abs(packed.get() - expected.lu).max() < 1e-8
    x = hetero_la.solve(given(a), given(b)).compute().get()
    assert np.abs(a @ x - b).max() < 1e-8 * np.abs(x).max() * n


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_on_another_gpu_than_the_current_one(dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    last = gpu_count() - 1

    def there(a: NDArray) -> Any:
        with cupy.cuda.Device(last):
            return cupy.asarray(a)

    def devices(found: Any) -> set[int]:
        if isinstance(found, tuple):
            return set().union(*map(devices, found))
        return {found.device.id} if isinstance(found, cupy.ndarray) else set()

    for case in [*any_shape_cases(50, 33, dtype), *square_cases(40, dtype)]:
        with cupy.cuda.Device(0):
            found = case.call(there, nb=NB)
            assert devices(plain(found)) <= {last}, str(case)
            assert_same(on_host(plain(found)), plain(case.call(nb=NB)), dtype)
            assert cupy.cuda.runtime.getDevice() == 0
    with cupy.cuda.Device(0):
        factors = hetero_la.qr_factor(there(random(50, 33, dtype)), nb=NB)
        assert devices((factors.r, factors.solve(there(random(50, 2, dtype))))) == {last}
