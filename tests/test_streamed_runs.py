"""Matrices larger than the memory that a run may use."""

from __future__ import annotations

import math
import os
import platform
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from scipy.linalg import LinAlgWarning

import hetero_la
import hetero_la.execution.execute as execute
import hetero_la.execution.executor_choice as executor_choice
from hetero_la import factor_file
from hetero_la.io.files import read_matrix
from hetero_la.pictures.runs.tracks import memory
from hetero_la.planning.decisions import Problem
from hetero_la.planning.given import Given
from hetero_la.planning.options import Options
from hetero_la.planning.planner import make_plan
from hetero_la.scheduler.machine.model import Source
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.program.instructions import CallKernel
from hetero_la.scheduler.run.threads import run_in_threads
from hetero_la.testing.residuals import cholesky_ratio, explicit_qr_ratio, lu_ratio, solve_ratio
from hetero_la.tiles.arrays.errors import InsufficientMemoryError
from hetero_la.tiles.arrays.transfer import gpu_count, pinned_empty
from hetero_la.tiles.kernels.cpu.device import VirtualGpu
from hetero_la.tiles.storage.shard import ArrayStorage
from tests.dask_support import chunked
from tests.support import assert_close

N, NB = 600, 30
#: Bytes: of the matrix there are 2.88 MB.
LITTLE = 1_500_000


@pytest.fixture(
    scope="module",
    params=[
        (kind, count)
        if kind == "virtual_gpus"
        else pytest.param((kind, count), marks=pytest.mark.gpu)
        for kind in ("virtual_gpus", "gpus")
        for count in (1, 2)
    ],
    ids=lambda param: f"{param[1]} {param[0]}",
)
def gpus(request: pytest.FixtureRequest) -> Iterator[hetero_la.Cluster]:
    kind, count = request.param
    if kind == "gpus" and gpu_count() < count:
        pytest.skip(f"needs {count} GPUs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hetero_la.planning.plan.CHUNKS", 0)  # more than these matrices
        with hetero_la.Cluster(cpus=1, gpu_memory=LITTLE, **{kind: count}) as cluster:
            yield cluster


def random(m: int, n: int, dtype: Any = float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, n)) + (1j * rng.standard_normal((m, n)) if dtype is complex else 0)
    return a.astype(dtype)


def assert_streamed(plan: hetero_la.Plan, limit: int = LITTLE) -> None:
    assert plan.groups is not None
    assert plan.groups.count > 1
    assert max(plan.bytes_needed()) <= limit
    assert re.search(r"streamed: columns in \d+ groups", plan.explain())


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_lu(gpus: hetero_la.Cluster, dtype: str, order: str) -> None:
    a = np.asarray(random(N, N, complex if dtype == "complex64" else float), dtype, order=order)
    given = a.copy()
    factors = hetero_la.lu_factor(a, nb=NB, client=gpus)
    assert_streamed(factors.plan)
    assert np.array_equal(a, given)
    assert np.array_equal(factors.piv, scipy.linalg.lu_factor(a)[1])
    assert lu_ratio(a, factors.lu, factors.piv) < 30
    b = random(N, 3).astype(dtype)
    assert solve_ratio(a, factors.solve(b), b) < 30


@pytest.mark.parametrize(
    "shape",
    [(901, 533), (600, 800), *(pytest.param(s, marks=pytest.mark.exhaustive) for s in [(N, N)])],
)
def test_qr_and_lu_of_every_shape(gpus: hetero_la.Cluster, shape: tuple[int, int]) -> None:
    a = random(*shape)
    memory = 13 * 20 * shape[0] * 8  # for four columns, and buffers
    qr = hetero_la.qr_factor(a, nb=20, client=gpus, memory=memory)
    assert_streamed(qr.plan, memory)
    q, r = hetero_la.qr(a, mode="economic", nb=20, client=gpus, memory=2 * memory)
    assert explicit_qr_ratio(a, q, r) < 30
    lu = hetero_la.lu_factor(a, nb=20, client=gpus, memory=memory)
    assert lu_ratio(a, lu.lu, lu.piv) < 30


def test_what_follows_from_a_factorization(gpus: hetero_la.Cluster) -> None:
    a, b = random(N, N), random(N, 40, seed=1)
    positive = a @ a.T + N * np.eye(N)
    how: dict[str, Any] = {"nb": NB, "client": gpus, "memory": 2_000_000}
    assert solve_ratio(a, hetero_la.solve(a, b, **how), b) < 30
    assert solve_ratio(positive, hetero_la.solve(positive, b, assume_a="pos", **how), b) < 30
    factors = hetero_la.cho_factor(positive, nb=NB, client=gpus)
    assert_streamed(factors.plan)
    assert cholesky_ratio(positive, factors.c) < 30
    assert np.linalg.norm(hetero_la.inv(a, **how) @ a - np.eye(N)) < 1e-8
    tall = a[:, :200]
    x = hetero_la.lstsq(tall, b, **how)[0]
    assert np.allclose(x, np.linalg.lstsq(tall, b)[0])


def test_overwritten_input(gpus: hetero_la.Cluster) -> None:
    a = np.asfortranarray(random(N, N))
    expected = scipy.linalg.lu_factor(a)
    factors = hetero_la.lu_factor(a, overwrite_a=True, nb=NB, client=gpus)
    assert_streamed(factors.plan)
    assert factors.lu is a
    assert np.allclose(a, expected[0])


def test_singular_and_not_finite(gpus: hetero_la.Cluster) -> None:
    a = random(N, N)
    a[:, 400] = 0
    with pytest.warns(LinAlgWarning, match="Diagonal number 401 is exactly zero"):
        factors = hetero_la.lu_factor(a, nb=NB, client=gpus)
    assert factors.info == 401
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        hetero_la.solve(a, a[0], nb=NB, client=gpus, memory=2_000_000)
    a[3, 3] = np.nan
    with pytest.raises(ValueError, match="infs or NaNs"):
        hetero_la.lu_factor(a, nb=NB, client=gpus)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LinAlgWarning)  # whether NaN hides the zeros is left open
        assert np.isnan(hetero_la.lu_factor(a, nb=NB, client=gpus, check_finite=False).lu).any()


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 2])
def test_a_matrix_that_a_gpu_may_not_hold(count: int) -> None:
    if gpu_count() < count:
        pytest.skip(f"needs {count} GPUs")
    a, memory = random(7000, 7000), 350 * 10**6 // count
    with hetero_la.Cluster(gpus=count, gpu_memory=memory) as cluster:
        factors = hetero_la.lu_factor(a, client=cluster)
        assert_streamed(factors.plan, memory)
        assert lu_ratio(a, factors.lu, factors.piv) < 30
        pinned = pinned_empty(a.shape, a.dtype)
        pinned[:] = a
        again = hetero_la.lu_factor(pinned, client=cluster, overwrite_a=True)
        assert np.allclose(again.lu, factors.lu)


def test_tiles_are_made_smaller_where_they_would_not_fit() -> None:
    plan = hetero_la.plan("lu", (2000, 2000), memory=6_000_000)
    assert_streamed(plan, 6_000_000)
    assert max(plan.layout.column_widths) < max(
        hetero_la.plan("lu", (2000, 2000)).layout.column_widths
    )
    with pytest.raises(InsufficientMemoryError, match=r"lu of a 2000 x 2000 .* needs [\d,]+ bytes"):
        hetero_la.plan("lu", (2000, 2000), memory=100_000)
    with pytest.raises(InsufficientMemoryError, match="which has 6,000,000"):
        hetero_la.plan("lu", (2000, 2000), memory=6_000_000, nb=256)


def test_all_columns_are_in_memory_where_they_fit() -> None:
    assert hetero_la.plan("qr", (300, 300), memory="1 GB").groups is None
    assert hetero_la.plan("qr", (300, 300)).groups is None


@pytest.mark.parametrize("workers", [{"cpus": 1}, {"virtual_gpus": 1}, {"virtual_gpus": 2}])
def test_a_dask_array_is_in_memory_as_a_whole(workers: dict[str, int]) -> None:
    a = random(200, 200)
    said = "needs [0-9,]+ bytes on a worker, where memory allows 160,000: a Dask array"
    with hetero_la.Cluster(**{"cpus": 0, "gpus": 0, **workers}) as cluster:
        for client in (cluster, None):
            with pytest.raises(InsufficientMemoryError, match=said):
                hetero_la.lu_factor(chunked(a, 50), nb=20, memory=160_000, client=client)
            lu, _ = hetero_la.lu_factor(chunked(a, 50), nb=20, memory=1_000_000, client=client)
            assert_close(lu.compute(), scipy.linalg.lu_factor(a)[0])


@pytest.mark.parametrize("nb", [2, 4, 8])
def test_columns_in_turn_have_one_level(nb: int) -> None:
    a, b = random(61, 61), random(61, 3)
    options: dict[str, Any] = {"nb": nb, "coarse": 2 * nb, "memory": 32_000}
    factors = hetero_la.lu_factor(a, **options)
    assert factors.plan.programs[0].streamed
    assert factors.plan.layout.per_block == 1
    assert lu_ratio(a, *factors) < 1
    assert solve_ratio(a, hetero_la.solve(a, b, **options), b) < 1


def planned(
    routine: str, source: Source, share: float | None = None, n: int = 16000, *,
    mapped: bool = False, virtual: bool = False,
) -> hetero_la.Plan:  # fmt: skip
    """Plan a run on a GPU with memory for a share of the matrix, which is on the host."""
    here = {"host": platform.node(), "pid": os.getpid()}
    gpu = (WorkerInfo("gpu0", "gpu", "inproc://0", device=0, virtual=virtual, **here),)
    problem = Problem(routine, n, n, 0, np.dtype(float))
    options = Options(memory=None if share is None else int(share * 8 * n * n))
    return make_plan(problem, options, gpu, Given(True, source, mapped=mapped))


def test_predictions_know_what_travels() -> None:
    plain, streamed = planned("lu", "pinned"), planned("lu", "pinned", 1 / 4)
    assert_streamed(streamed, 2 * 16000**2)
    assert streamed.predicted_seconds > plain.predicted_seconds
    assert streamed.simulate().bytes_host.sum() > 2 * plain.simulate().bytes_host.sum()


def test_memory_is_pinned_where_that_pays() -> None:
    pinned, in_place = (planned("lu", source, 1 / 4) for source in ("pinned", "in place"))
    copied = planned("lu", "row-major", 1 / 8)
    mapped = planned("lu", "in place", 1 / 4, mapped=True)
    assert [plan.pins for plan in (pinned, in_place, copied, mapped)] == [False, True, True, False]
    # Once it is pinned, the GPU copies all of it as it does pinned memory.
    assert in_place.simulate().makespan == pinned.predicted_seconds
    assert in_place.predicted_seconds - pinned.predicted_seconds == pytest.approx(
        in_place.model.pinning.seconds(8 * 16000**2)
    )
    assert "to pin memory for that" in in_place.explain()
    assert copied.pinning_seconds > 2 * in_place.pinning_seconds
    assert copied.pinning_seconds - in_place.pinning_seconds == pytest.approx(
        copied.model.pinning_new.seconds(8 * 16000**2)
    )
    assert mapped.predicted_seconds > in_place.predicted_seconds  # by the host's threads
    assert mapped.predicted_seconds > mapped.simulate().bytes_host.sum() / 30e9
    assert "pin memory" not in mapped.explain()
    assert not planned("lu", "in place").pins
    assert not planned("cholesky", "row-major", 0.9).pins  # little travels more than once
    assert not planned("lu", "in place", 1 / 4, virtual=True).pins


@pytest.mark.parametrize(
    ("memory", "said"),
    [(0, "not 0"), (-5, "not -5"), ("much", "not 'much'"), (True, "not True"), (1.5, "not 1.5")],
)
def test_memory_has_to_be_a_number_of_bytes(memory: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"memory must be a positive number of bytes.*{said}"):
        Options(memory=memory)
    with pytest.raises(ValueError, match=f"gpu_memory must be a positive number.*{said}"):
        hetero_la.Cluster(virtual_gpus=1, gpu_memory=memory)


def test_memory_is_given_in_units() -> None:
    assert Options(memory="40 GB").memory == 40 * 10**9
    with pytest.raises(ValueError, match="needs GPUs, and the cluster has none"):
        hetero_la.Cluster(cpus=1, gpu_memory="1 GB")


def test_gpus_with_little_free_memory_get_columns_in_turn(
    gpus: hetero_la.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a bound, it is what they have free."""
    if gpus.size.gpus:
        pytest.skip("says how much real GPUs have free")
    found = executor_choice.worker_infos

    def little(*args: Any, **kwargs: Any) -> list[WorkerInfo]:
        return [
            replace(one, memory=LITTLE, virtual=False, device=int(one.name[3:]))
            if one.kind == "gpu"
            else one
            for one in found(*args, **kwargs)
        ]

    a = random(N, N)
    options = gpus.options
    monkeypatch.setattr(executor_choice, "worker_infos", little)
    monkeypatch.setattr(gpus, "options", {k: v for k, v in options.items() if k != "memory"})
    monkeypatch.setattr(executor_choice, "_MEMORY_UNIT", 1)
    factors = hetero_la.lu_factor(a, nb=NB, client=gpus)
    assert factors.plan.groups is not None
    assert lu_ratio(a, factors.lu, factors.piv) < 30


class TestMappedFiles:
    """Matrices in files that are mapped into memory."""

    @pytest.mark.parametrize("order", ["C", "F"])
    def test_the_factors_take_the_matrix_s_place(self, tmp_path: Path, order: Any) -> None:
        a = np.asarray(random(N, N), order=order)
        np.save(tmp_path / "a.npy", a)
        mapped = np.load(tmp_path / "a.npy", mmap_mode="r+")
        factors = hetero_la.lu_factor(mapped, overwrite_a=True, memory=LITTLE, nb=NB)
        assert_streamed(factors.plan)
        assert np.shares_memory(factors.lu, mapped)
        mapped.flush()
        found = np.load(tmp_path / "a.npy")
        assert np.allclose(found, scipy.linalg.lu_factor(a)[0])

    @pytest.mark.parametrize("mode", ["r", "c", "r+"])
    def test_a_file_that_is_not_to_be_overwritten_stays(self, tmp_path: Path, mode: Any) -> None:
        a = random(N, N)
        np.save(tmp_path / "a.npy", a)
        mapped = np.load(tmp_path / "a.npy", mmap_mode=mode)
        factors = hetero_la.cho_factor(mapped @ mapped.T + N * np.eye(N), memory=LITTLE, nb=NB)
        assert_streamed(factors.plan)
        lu = hetero_la.lu_factor(mapped, overwrite_a=mode == "r", memory=LITTLE, nb=NB)
        assert np.array_equal(np.load(tmp_path / "a.npy"), a)
        assert lu_ratio(a, lu.lu, lu.piv) < 30

    @pytest.mark.parametrize("order", ["C", "F"])
    def test_small_files(self, tmp_path: Path, order: Any) -> None:
        a = np.asarray(random(50, 40), order=order)
        np.save(tmp_path / "a.npy", a)
        mapped = np.load(tmp_path / "a.npy", mmap_mode="r+")
        factors = hetero_la.lu_factor(mapped, overwrite_a=True)
        assert factors.plan.groups is None
        assert np.allclose(np.load(tmp_path / "a.npy"), scipy.linalg.lu_factor(a)[0])

    def test_a_note_stays_beside_a_file_that_is_incomplete(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a, path, note = random(N, N), tmp_path / "a.npy", tmp_path / "a.npy.incomplete"
        np.save(path, a)

        def interrupted(*args: Any) -> Any:
            assert note.exists()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(execute, "_run", interrupted)
            for mode in ("c", "r+"):  # what is copied on write is not the file
                assert not note.exists()
                with pytest.raises(KeyboardInterrupt if mode == "r+" else AssertionError):
                    hetero_la.lu_factor(np.load(path, mmap_mode=mode), overwrite_a=True, nb=NB)
        told = "a.npy may hold neither its matrix nor the result: lu of a .* matrix, which over"
        for read in (read_matrix, lambda path: factor_file("lu", path, tmp_path / "f.h5")):
            with pytest.raises(ValueError, match=f"{told}.*; delete a.npy.incomplete to use it"):
                read(path)
        hetero_la.lu_factor(np.load(path, mmap_mode="r+"), overwrite_a=True, nb=NB)
        assert not note.exists()
        assert np.allclose(read_matrix(path), scipy.linalg.lu_factor(a)[0])


def test_pictures_show_what_is_in_memory(gpus: hetero_la.Cluster) -> None:
    with hetero_la.trace() as trace:
        plan = hetero_la.lu_factor(random(N, N), nb=NB, client=gpus).plan
    for run in (plan.predicted_recording(), trace.runs[0].recording):
        for worker, program in enumerate(plan.programs):
            used = memory(run, worker).values
            assert used.max() <= plan.bytes_needed()[worker]
            assert used.max() > used.min() + plan.shard_bytes(program) / 2


@pytest.mark.parametrize("function", ["lu_factor", "cho_factor", "qr_factor"])
def test_the_left_looking_order_gives_the_same_factors(function: str) -> None:
    a = random(300, 300)
    a = a @ a.T + 300 * np.eye(300)
    factor = getattr(hetero_la, function)
    left = factor(a, nb=50, order="left")
    assert "order: left-looking" in left.plan.explain()
    assert np.allclose(left[0], factor(a, nb=50, order="right")[0])
    calls = [(i.kind, i.step, i.first) for i in left.plan.programs[0].select(CallKernel)]
    update = {"lu_factor": "gemm", "cho_factor": "herk", "qr_factor": "larfb_c"}[function]
    assert [step for kind, step, column in calls if (kind, column) == (update, 4)] == [0, 1, 2, 3]
    panel = {"lu_factor": "getrf", "cho_factor": "potrf", "qr_factor": "geqrf"}[function]
    steps = [(kind, step) for kind, step, _ in calls if kind in (update, panel)]
    assert steps.index((panel, 2)) < steps.index((update, 0), steps.index((panel, 2)))


def test_the_left_looking_order_is_one_worker_s() -> None:
    with (
        hetero_la.Cluster(cpus=1, virtual_gpus=2) as cluster,
        pytest.raises(ValueError, match="order='left' is for one worker, not for"),
    ):
        hetero_la.lu_factor(random(900, 900), order="left", client=cluster, panel="gpu")
    with pytest.raises(ValueError, match="order must be one of right, left, not 'up'"):
        Options(order="up")  # type: ignore[arg-type]


class CountingGpu(VirtualGpu):
    """A virtual GPU that counts the bytes that it has allocated."""

    allocated = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        self.allocated += math.prod(shape) * np.dtype(dtype).itemsize
        return super().empty(shape, dtype)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
def test_no_more_is_allocated_than_the_bound_allows(routine: str, workers: int) -> None:
    here = {"host": platform.node(), "pid": os.getpid()}
    infos = [WorkerInfo(f"gpu{w}", "gpu", "", virtual=True, **here) for w in range(workers)]
    plan = hetero_la.plan(routine, (N, N), nb=20, workers=infos, memory=1_100_000)
    assert_streamed(plan, 1_100_000)
    a = random(N, N)
    a = a @ a.T + N * np.eye(N)
    devices = [CountingGpu(info.name) for info in infos]
    run_in_threads(plan.job(), ArrayStorage(a, np.empty_like(a, order="F")), devices)
    for device, needed in zip(devices, plan.bytes_needed(), strict=True):
        assert needed / 2 < device.allocated <= needed
