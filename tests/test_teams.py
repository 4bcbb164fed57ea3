"""Teams: who owns columns, who factors panels, and who is left out because he is too slow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from threadpoolctl import threadpool_limits

import hetero_la
from hetero_la.execution.execute import execute
from hetero_la.planning import teams
from hetero_la.planning.decisions import Problem, team_name
from hetero_la.planning.given import Given
from hetero_la.planning.options import Options
from hetero_la.planning.plan import Plan
from hetero_la.planning.planner import follow_up, make_plan, resume
from hetero_la.planning.teams import with_all_cores
from hetero_la.scheduler.cluster.cluster import Cluster
from hetero_la.scheduler.machine.device import H200, DeviceModel, cores
from hetero_la.scheduler.machine.model import LinkModel
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.probe.quick import measure_device
from hetero_la.tiles.storage.layout import TileLayout
from tests.dask_support import chunked
from tests.slow_gpus import (
    MEASURED,
    SlowGpu,
    cluster_of,
    everybody_owns_columns,
    known,
    slower,
)
from tests.support import DTYPES, assert_close, covering, positive, problem, random

HERE = {"pid": os.getpid()}
GPUS = tuple(WorkerInfo(f"gpu{i}", "gpu", f"inproc://{i}", device=i, **HERE) for i in range(4))
CPU = WorkerInfo("cpu0", "cpu", "inproc://c", blas_threads=8, **HERE)
#: As measured: a large GPU, one of a laptop with few units for float64, and eight cores of it.
LARGE, WEAK = replace(H200, gemm_rate=56e12), replace(H200, gemm_rate=3e11)
CORES = replace(cores(8), gemm_rate=3.2e11)
LAPTOP = {"gpu0": WEAK, "cpu0": CORES}
PCIE = LinkModel(1e-5, 20e9)


def planned(
    devices: dict[str, DeviceModel], n: int = 8192, routine: str = "lu", on_host: bool = True,
    workers: tuple[WorkerInfo, ...] = (), **options: Any,
) -> Plan:  # fmt: skip
    """The plan for workers of which these models are known, by default those of one process."""
    if not workers:
        workers = tuple(worker for worker in (*GPUS, CPU) if worker.name in devices)
    nrhs = n if routine == "inverse" else 0
    asked = Problem(routine, n, n, nrhs, np.dtype("float64"))
    with known(devices, host_link=PCIE):
        return make_plan(asked, Options(**options), workers, Given(on_host, "column-major"))


def columns(plan: Plan) -> dict[str, int]:
    """How many columns each worker of the team owns."""
    return {
        worker.name: len(program.columns)
        for worker, program in zip(plan.workers, plan.programs, strict=True)
    }


# --- decisions


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
@pytest.mark.parametrize("n", [1000, 8192])
def test_beside_a_gpu_that_is_much_faster_cores_own_nothing(routine: str, n: int) -> None:
    plan = planned({"gpu0": LARGE, "cpu0": CORES}, n, routine)
    assert [worker.name for worker in plan.workers] == ["gpu0"]
    assert plan.panel == "gpu"


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
@pytest.mark.parametrize("n", [8192, 16384])
def test_a_laptop_gains_from_its_cores(routine: str, n: int) -> None:
    together = planned(LAPTOP, n, routine)
    assert set(columns(together)) == {"gpu0", "cpu0"}
    seconds = together._simulated(()).makespan
    assert seconds < 0.7 * planned(LAPTOP, n, routine, panel="gpu")._simulated(()).makespan
    cores_alone = planned(LAPTOP, n, routine, workers=(CPU,))
    assert seconds < 0.8 * cores_alone._simulated(()).makespan


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr", "inverse"])
def test_cores_own_columns_beside_a_gpu_as_slow_as_they_are(routine: str) -> None:
    plan = planned(LAPTOP, 8192, routine, nb=256)
    found = columns(plan)
    assert set(found) == {"gpu0", "cpu0"}
    assert plan.speeds[1] / plan.speeds[0] == pytest.approx(found["cpu0"] / found["gpu0"], rel=0.2)
    assert (plan.panel_worker, plan.panel) == (None, "gpu and cpu")
    alone = planned(LAPTOP, 8192, routine, nb=256, panel="gpu")
    assert plan._simulated(()).makespan < 0.8 * alone._simulated(()).makespan
    assert "panels on the gpu and cpu" in plan.explain()
    assert f"cpu0 (cpu): {found['cpu0']} tile columns" in plan.explain()


def test_columns_follow_the_speeds() -> None:
    speeds = {"gpu0": 1.0, "gpu1": 2.0, "gpu2": 1.0, "gpu3": 1.5}
    plan = planned({name: slower(WEAK, 1 / speed) for name, speed in speeds.items()}, nb=64)
    found = columns(plan)
    for name, speed in speeds.items():
        assert found[name] == pytest.approx(speed / 5.5 * plan.layout.nt, abs=2)


@pytest.mark.parametrize("panel", ["auto", "gpu"])
def test_a_gpu_that_is_twenty_times_slower_gets_no_columns(panel: str) -> None:
    devices = {f"gpu{i}": WEAK for i in range(3)} | {"gpu1": slower(WEAK, 20)}
    assert set(columns(planned(devices, panel=panel))) == {"gpu0", "gpu2"}
    devices |= {"cpu0": CORES}
    assert "gpu1" not in columns(planned(devices, panel=panel))


def test_a_gpu_that_is_twenty_times_slower_than_the_cores_gets_no_columns() -> None:
    plan = planned({"gpu0": slower(CORES, 20), "cpu0": CORES})
    assert [worker.name for worker in plan.workers] == ["cpu0"]
    assert (plan.panel, plan.host_arrays, plan.shared) == ("cpu", False, [0])


def test_one_core_does_not_hold_up_those_with_many() -> None:
    """Nominal models know how many threads a worker has."""
    workers = tuple(
        WorkerInfo(f"cpu{i}", "cpu", f"tcp://{i}", pid=i, blas_threads=threads)
        for i, threads in enumerate([16, 1, 16], 1)
    )
    assert set(columns(planned({}, 4096, workers=workers))) == {"cpu1", "cpu3"}


@pytest.mark.parametrize("devices", [{}, {"gpu0": WEAK}, {"cpu0": slower(CORES, 0.01)}])
def test_what_was_not_measured_is_not_mixed(devices: dict[str, DeviceModel]) -> None:
    plan = planned(devices, workers=(GPUS[0], CPU))
    assert not plan.programs[-1].columns or len(plan.workers) == 1
    assert plan.programs[0].columns
    assert plan.workers[0] == replace(GPUS[0])


@pytest.mark.parametrize("panel", ["gpu", "cpu"])
def test_the_panel_option_leaves_columns_to_gpus(panel: str) -> None:
    plan = planned(LAPTOP, panel=panel)
    assert columns(plan) == {"gpu0": plan.layout.nt} | ({"cpu0": 0} if panel == "cpu" else {})
    assert plan.panel == panel


def test_a_matrix_on_a_gpu_stays_with_gpus() -> None:
    assert not columns(planned(LAPTOP, on_host=False)).get("cpu0")


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
def test_estimates_of_unequal_owners_are_near_the_simulation(routine: str, ratio: float) -> None:
    devices = {"gpu0": WEAK, "gpu1": slower(WEAK, ratio), "cpu0": CORES}
    with everybody_owns_columns():
        plan = planned(devices, 8192, routine, nb=128)
    assert len(plan.workers) == 3
    simulated = plan._simulated(()).makespan
    assert plan.stages().seconds() == pytest.approx(simulated, rel=0.25)


def test_equal_gpus_need_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "Stages", None)
    assert len(planned({f"gpu{i}": LARGE for i in range(4)}).workers) == 4


def test_those_without_a_part_leave_their_cores_to_the_one_who_factors_panels() -> None:
    others = tuple(replace(CPU, name=f"cpu{i}", blas_threads=3) for i in range(4))
    apart = replace(others[0], name="apart", pid=1)
    assert with_all_cores(others[0], (*GPUS, *others, apart)).blas_threads == 12
    assert with_all_cores(apart, (*GPUS, *others, apart)).blas_threads == 3
    virtual = replace(GPUS[0], virtual=True, device=-1)
    assert with_all_cores(others[0], (virtual, *others)).blas_threads == 3
    plan = planned({}, workers=(*GPUS[:1], *others), panel="cpu")
    assert plan.workers[plan.panel_worker].blas_threads == 12
    assert plan.model.devices[plan.panel_worker] == cores(12)


def test_teams_of_two_kinds_have_a_name_of_their_own() -> None:
    assert team_name(GPUS) == "4 gpu"
    assert team_name((*GPUS[:2], CPU)) == "2 gpu and 1 cpu x 8 threads"


def test_who_is_left_goes_on_together() -> None:
    plan = planned(LAPTOP, 2048, nb=64, workers=(*GPUS[:1], CPU))
    with known(LAPTOP, host_link=PCIE):
        for left in ((GPUS[0],), (CPU,), (GPUS[0], CPU)):
            again = resume(plan, left, 5)
            assert set(columns(again)) <= {worker.name for worker in left}
            assert again.host_arrays == (again.workers[0].kind == "gpu")
            assert again.simulate().makespan > 0


def test_a_run_on_factors_that_stay_has_the_columns_where_they_are() -> None:
    """Also where the solve itself would divide them in another way."""
    plan = planned({"gpu0": WEAK, "gpu1": slower(WEAK, 1.7)}, 2048, "solve", nb=64)
    after = follow_up(plan, "lu_solve", 3)
    assert after.distribution.owners[: plan.layout.nt] == plan.distribution.owners[: plan.layout.nt]


# --- runs


@pytest.fixture(scope="module")
def mixed() -> Iterator[Cluster]:
    """A CPU worker, a virtual GPU that is as fast, and one that takes twice as long."""
    with cluster_of([1.0, 2.0]) as cluster, everybody_owns_columns():
        yield cluster


#: Rows, columns and right-hand sides.
RUNS = {
    "lu": (130, 130, 0), "solve": (130, 130, 5), "cholesky": (130, 130, 0),
    "solve_positive": (130, 130, 5), "qr": (150, 110, 0), "explicit_q": (150, 110, 110),
    "lstsq": (150, 110, 5), "minimum_norm": (150, 110, 5), "inverse": (130, 130, 130),
}  # fmt: skip


@pytest.mark.parametrize(("routine", "dtype"), covering(RUNS, DTYPES))
@pytest.mark.parametrize("order", "CF")
def test_runs_of_mixed_owners_give_scipy_s_result(
    mixed: Cluster, routine: str, dtype: str, order: Any
) -> None:
    m, n, nrhs = RUNS[routine]
    given = problem(routine, TileLayout(m, n, 16, nrhs), dtype)
    before = given.a.copy()
    result = execute(
        routine, given.a.copy(order=order), given.b, nb=16, client=mixed,
        columns=nrhs if given.b is None else 0,
    )  # fmt: skip
    found = columns(result.report.plan)
    assert set(found) == {"gpu0", "gpu1", "cpu0"}
    assert found["cpu0"] == pytest.approx(found["gpu0"], abs=1)
    assert found["gpu1"] == pytest.approx(found["gpu0"] / 2, abs=1)
    assert np.array_equal(given.a, before)
    small = np.finfo(given.a.dtype).eps > 1e-9
    assert_close(result.array, given.expected, limit=2e-2 if small else 1e-9)
    timing = {row.name: row.calls for row in result.report.timing.workers}
    assert all(timing.values())


def test_public_functions_with_mixed_owners(mixed: Cluster) -> None:
    a, s, b = random(130), positive(130), random(130, 5, seed=3)
    options = {"nb": 16, "client": mixed}
    assert_close(hetero_la.solve(a, b, **options), np.linalg.solve(a, b), limit=1e-8)
    assert_close(hetero_la.solve(s, b, assume_a="pos", **options), np.linalg.solve(s, b))
    assert_close(hetero_la.inv(a, **options), np.linalg.inv(a), limit=1e-8)
    factors = hetero_la.lu_factor(a, **options)
    assert set(columns(factors.plan)) == {"gpu0", "gpu1", "cpu0"}
    assert_close(factors.solve(b), np.linalg.solve(a, b), limit=1e-8)
    x = hetero_la.lstsq(a[:, :90], b, **options)[0]
    assert_close(x, scipy.linalg.lstsq(a[:, :90], b)[0], limit=1e-8)


def test_mixed_owners_may_work_in_the_place_of_the_matrix(mixed: Cluster) -> None:
    a = random(130)
    given = a.copy(order="F")
    factors = hetero_la.lu_factor(given, overwrite_a=True, nb=16, client=mixed)
    assert np.shares_memory(factors.lu, given)
    assert_close(factors.lu, scipy.linalg.lu_factor(a)[0])


def test_a_timeline_shows_all_owners(mixed: Cluster) -> None:
    with hetero_la.trace() as trace:
        hetero_la.lu_factor(random(130), nb=16, client=mixed)
    text = str(trace)
    assert all(name in text for name in ("gpu0", "gpu1", "cpu0"))


def test_dask_arrays_of_mixed_owners(mixed: Cluster) -> None:
    a = random(130)
    lazy = hetero_la.lu_factor(chunked(a, 40), nb=16, client=mixed)
    client = mixed.private_client()
    lu, piv = (future.result(60) for future in client.compute(list(lazy)))
    expected = scipy.linalg.lu_factor(a)
    assert_close(lu, expected[0])
    assert np.array_equal(piv, expected[1])


@pytest.mark.gpu
@pytest.mark.parametrize(("routine", "dtype"), covering(RUNS, DTYPES))
def test_gpus_and_cores_give_scipy_s_result(routine: str, dtype: str) -> None:
    """With models by which they are about as fast."""
    m, n, nrhs = (8 * size for size in RUNS[routine])
    given = problem(routine, TileLayout(m, n, 64, nrhs), dtype)
    with Cluster(cpus=1) as cluster, everybody_owns_columns():
        gpus = {f"gpu{i}": replace(H200, gemm_rate=50e9) for i in range(cluster.size.gpus)}
        with known({**gpus, "cpu0": MEASURED}):
            result = execute(
                routine, given.a, given.b, nb=64, client=cluster,
                columns=nrhs if given.b is None else 0,
            )  # fmt: skip
    assert set(columns(result.report.plan)) == {*gpus, "cpu0"}
    assert all(columns(result.report.plan).values())
    assert_close(result.array, given.expected, limit=2e-2 if dtype in DTYPES[::2] else 1e-8)


@pytest.mark.slow
def test_what_was_probed_is_known() -> None:
    """A GPU that is slow on purpose, measured as the planner measures workers."""
    with threadpool_limits(1, "blas"):
        slow = measure_device(SlowGpu("slow", 40.0))
    plan = planned({"gpu0": MEASURED, "gpu1": slow, "gpu2": MEASURED}, nb=256)
    assert set(columns(plan)) == {"gpu0", "gpu2"}


def test_a_slow_gpu_of_a_cluster_gets_no_columns() -> None:
    a = random(700)
    with cluster_of([1.0, 20.0, 1.0]) as cluster:
        factors = hetero_la.lu_factor(a, nb=32, client=cluster)
    assert "gpu1" not in columns(factors.plan)
    assert_close(factors.lu, scipy.linalg.lu_factor(a)[0], limit=1e-8)


def test_a_gpu_as_slow_as_the_cpu_works_beside_it() -> None:
    """`benchmarks/unequal.py` has the times."""
    with cluster_of([1.0]) as cluster:
        plan = hetero_la.lu_factor(random(900), nb=64, client=cluster).plan
        alone = hetero_la.lu_factor(random(900), nb=64, client=cluster, panel="gpu").plan
    assert columns(plan) == {"gpu0": 8, "cpu0": 7}
    assert plan._simulated(()).makespan < 0.75 * alone._simulated(()).makespan
