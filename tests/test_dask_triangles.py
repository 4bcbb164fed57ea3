"""Triangles as Dask arrays: their blocks, and the memory that they take."""

import os
import subprocess
import sys
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.linalg import LinAlgError
from numpy.typing import NDArray

import hetero_la
from hetero_la.dask_arrays import bands, lazy_run
from tests.dask_support import NB, assert_same, chunked
from tests.support import DTYPES, covering, positive, random


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(bands, "_LEAST_HEIGHT", 1)
    with dask.config.set(scheduler="sync"):
        yield


def blocks_of(x: da.Array) -> dict[tuple[int, int], NDArray]:
    """The blocks as tasks find them: Dask's `compute` would copy."""
    (found,) = dask.compute(x.to_delayed().ravel().tolist())
    return dict(zip(np.ndindex(x.numblocks), found, strict=True))


def held(block: NDArray) -> int:
    """Bytes of the memory that a block keeps."""
    while isinstance(block.base, np.ndarray):
        block = block.base
    return block.nbytes


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("shape", "dtype"), covering([(140, 140), (300, 33), (33, 300), (150, 33)], DTYPES)
)
@pytest.mark.exhaustive
def test_triangles_in_many_blocks(
    shape: tuple[int, int], dtype: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if threads > 1:
        monkeypatch.setitem(lazy_run.INLINE_LIMIT, "cpu", 0.0)
        monkeypatch.setattr(lazy_run, "CPU_COUNT", threads)
    a = random(*shape, dtype)
    x = chunked(a, 29)
    for options in ({}, {"p_indices": True}, {"permute_l": True}):
        found = hetero_la.lu(x, nb=NB, **options)
        assert_same(dask.compute(*found), hetero_la.lu(a, nb=NB, **options))
    for mode in ("full", "economic", "r"):
        found = hetero_la.qr(x, nb=NB, mode=mode)
        assert_same(dask.compute(*found), hetero_la.qr(a, nb=NB, mode=mode))
    if shape[0] == shape[1]:
        p = positive(shape[0], dtype)
        for lower in (False, True):
            factor = hetero_la.cholesky(chunked(p, 29), lower=lower, nb=NB)
            assert min(factor.numblocks) > 2
            assert_same(factor.compute(), hetero_la.cholesky(p, lower=lower, nb=NB))


def test_only_blocks_on_the_diagonal_take_memory() -> None:
    p, lower, upper = hetero_la.lu(chunked(random(256), 100), nb=NB)
    assert lower.chunks[0] == upper.chunks[0] == (16,) * 16
    assert p.chunks == ((128, 128), (128, 128))
    for triangle, kept in ((lower, np.greater), (upper, np.less)):
        for (i, j), block in blocks_of(triangle).items():
            if i == j:
                assert held(block) == block.nbytes
                assert block.flags.writeable
            elif kept(i, j):
                assert held(block) == 256 * 256 * 8  # the run's own array
            else:
                assert block.strides == (0, 0)


def test_an_upper_triangle_is_turned_by_its_own_tasks() -> None:
    x = chunked(positive(140), 50)
    lower, upper = (hetero_la.cholesky(x, lower=lower, nb=NB) for lower in (True, False))
    turned_input = 2 * x.npartitions  # chunks that are checked, and turned
    assert len(dict(upper.dask)) == len(dict(lower.dask)) + turned_input
    assert upper.chunks == lower.chunks[::-1]


@pytest.mark.parametrize(("seconds", "most"), [(1e-4, 2), (0.09, 3), (10.0, 16)])
def test_tasks_of_a_triangle_on_a_gpu_take_a_small_part_of_the_run(
    seconds: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lazy_run.LazyRun("cholesky", chunked(positive(256), 100), nb=NB)
    assert len(run.row_chunks(256)) == 16
    monkeypatch.setattr(run, "_on_gpu", True)
    monkeypatch.setitem(run.plan.__dict__, "estimated_seconds", seconds)
    assert len(run.row_chunks(256)) == most


def test_what_is_shared_cannot_be_changed() -> None:
    def clear(block: NDArray) -> NDArray:
        block[...] = 0
        return block

    _, lower, _ = hetero_la.lu(chunked(random(140), 50), nb=NB)
    with pytest.raises(ValueError, match="read-only"):
        lower.map_blocks(clear, dtype=lower.dtype, meta=lower._meta).compute()
    result = lower.compute()
    result[...] = 0  # what a user gets is the user's


def test_a_small_part_of_a_shard_does_not_keep_it() -> None:
    a = random(400, 48)
    _, lower, upper = hetero_la.lu(chunked(a, 50), nb=NB)
    (r,) = hetero_la.qr(chunked(a, 50), mode="r", nb=NB)
    for small in (upper, r):
        assert all(held(block) <= block.nbytes for block in blocks_of(small).values())
    assert max(map(held, blocks_of(lower).values())) == a.nbytes


def test_blocks_of_zeros_wait_for_the_verdict() -> None:
    indefinite = np.diag(np.r_[np.ones(100), -np.ones(40)])
    factor = hetero_la.cholesky(chunked(indefinite, 50), lower=True, nb=NB)
    with pytest.raises(LinAlgError, match="101-th leading minor"):
        factor.blocks[0, -1].compute()


#: Prints by how many matrices a run lets a process grow that has done a small one before.
_GROWTH = """
import sys, dask, dask.array as da, numpy as np, hetero_la
def memory(what):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(what))
def run(n):
    x = da.from_array(np.random.default_rng(0).standard_normal((n, n)) + n * np.eye(n), chunks=n//8)
    x = x + x.T if sys.argv[1] == "cholesky" else x
    (x,) = dask.persist(x, scheduler="threads")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = memory("VmRSS")
    getattr(dask, sys.argv[2])(getattr(hetero_la, sys.argv[1])(x), scheduler="threads")
    return (memory("VmHWM") - before) / x.nbytes
run(512)
print(run(3072))
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("routine", "form", "limit"),
    [
        ("lu", "persist", 1.8),
        pytest.param("lu", "compute", 4.5, marks=pytest.mark.slow),
        pytest.param("lu_factor", "persist", 1.4, marks=pytest.mark.slow),
        pytest.param("lu_factor", "compute", 2.3, marks=pytest.mark.slow),
        pytest.param("cholesky", "persist", 1.5, marks=pytest.mark.slow),
    ],
)
def test_results_take_little_more_than_one_matrix(routine: str, form: str, limit: float) -> None:
    found = subprocess.run(
        [sys.executable, "-c", _GROWTH, routine, form],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert 0.9 < float(found.stdout) < limit
