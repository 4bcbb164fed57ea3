"""Tiles of several sizes: all public functions, on all kinds of workers, and what shows them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.linalg
from dask.distributed import Client
from scipy.linalg import LinAlgWarning

import hetero_la
from hetero_la.cli.main import main
from hetero_la.planning.planner import follow_up
from hetero_la.tiles.storage.tile_sizes import tile_sizes
from tests.command_line import refused, table
from tests.dask_support import Case, any_shape_cases, assert_same, chunked, square_cases
from tests.scheduler.recovery import die_at, local_cluster, wait_for_workers
from tests.support import DTYPES, assert_close, random

SIZES = {"growing": "3+5+9+21", "shrinking": "21+9+5", "in turns": "4+11+4+11+4+11", "one": "90"}
#: All of them where that is quick, and elsewhere one.
FEW = [
    pytest.param(text, marks=[] if name == "growing" else [pytest.mark.slow], id=name)
    for name, text in SIZES.items()
]
TEAMS: dict[str, dict[str, Any]] = {
    "threads": {"cpus": 2},
    "virtual GPU": {"cpus": 0, "virtual_gpus": 1},
    "virtual GPUs and a CPU": {"cpus": 1, "virtual_gpus": 2},
    "GPU": {"cpus": 0, "gpus": 1},
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(t, marks=[pytest.mark.gpu] if t == "GPU" else []) for t in TEAMS],
)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    wanted = {"gpus": 0, "blas_threads": 1} | TEAMS[request.param]
    with hetero_la.Cluster(**wanted) as cluster, cluster.get_client() as client:
        yield client


@pytest.fixture(scope="module")
def processes() -> Iterator[Client]:
    with local_cluster(2) as client:
        yield client


def cases(dtype: str) -> list[Case]:
    return [
        *any_shape_cases(53, 31, dtype),
        *any_shape_cases(31, 53, dtype),
        *square_cases(43, dtype),
        *square_cases(1, dtype),
    ]


def plain(result: Any) -> Any:
    return tuple(result) if isinstance(result, tuple) else result


def check(dtype: str, nb: Any, **options: Any) -> None:
    """The same as with tiles of one size, which other tests compare with SciPy's."""
    for case in cases(dtype):
        found = plain(case.call(nb=nb, **options))
        assert_same(found, plain(case.call(nb=16)), dtype)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_functions_in_the_calling_thread(dtype: str, sizes: str) -> None:
    check(dtype, sizes)


@pytest.mark.parametrize("sizes", FEW)
@pytest.mark.parametrize("dtype", ["complex64", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.exhaustive
def test_all_functions_on_a_cluster_give_the_same_result(
    client: Client, dtype: str, sizes: str
) -> None:
    check(dtype, sizes, client=client)


@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize(
    "lookahead", [*(pytest.param(k, marks=pytest.mark.slow) for k in (0, 1)), 3]
)
@pytest.mark.exhaustive
def test_any_panel_and_look_ahead_give_the_same_result(panel: str, lookahead: int) -> None:
    with hetero_la.Cluster(cpus=1, gpus=0, virtual_gpus=2, blas_threads=1) as cluster:
        check("float64", "4+11+4+11+6", client=cluster, panel=panel, lookahead=lookahead)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["21+9+5", "3+5+9+21"])
def test_all_functions_over_processes_give_the_same_result(processes: Client, sizes: str) -> None:
    check("float64", sizes, client=processes)


@pytest.mark.parametrize("checkpoint", [None, 3])
def test_a_lost_worker_does_not_change_the_result(
    processes: Client, checkpoint: int | None, tmp_path: Path
) -> None:
    wait_for_workers(processes, 2)
    a = random(160)
    address = next(iter(processes.scheduler_info()["workers"]))
    processes.run(die_at, "getrf", 6, workers=[address])
    factors = hetero_la.lu_factor(a, nb="4x8+3x20+10", client=processes, checkpoint=checkpoint)
    lu, piv = scipy.linalg.lu_factor(a)
    assert np.array_equal(factors.piv, piv)
    assert_close(factors.lu, lu)
    (loss,) = factors.timing.losses
    # Of 14 panels it was about the 11th: not from scratch where there are checkpoints.
    assert loss.step in ((3, 6, 9) if checkpoint else (0,))
    assert {task.step for task in factors.plan.graph.tasks} == set(range(loss.step, 15))
    wait_for_workers(processes, 2)


@pytest.mark.parametrize("sizes", FEW)
@pytest.mark.parametrize("chunks", [(17, 23), pytest.param((5, -1), marks=pytest.mark.slow)])
def test_dask_arrays_in_any_tiles_give_the_same_result(sizes: str, chunks: tuple[int, int]) -> None:
    for case in cases("float64"):
        result = case.call(lambda a: chunked(a, chunks if a.ndim == 2 else 13), nb=sizes)
        # Not on the cluster of the tests above, whose client is the current one.
        with warnings.catch_warnings(), dask.config.set(scheduler="threads"):
            warnings.simplefilter("error", LinAlgWarning)
            (found,) = dask.compute(result)
        assert_same(found, plain(case.call(nb=16)))


@pytest.mark.slow
def test_dask_arrays_on_a_cluster_give_the_same_result(client: Client) -> None:
    made = [c.call(lambda a: chunked(a, 13), nb="3+5+9+21", client=client) for c in cases("f8")]
    for case, found in zip(cases("f8"), dask.compute(*made), strict=True):
        assert_same(found, plain(case.call(nb=16)))


def test_factors_in_dask_arrays_are_used_as_they_are_cut() -> None:
    packed, piv = hetero_la.lu_factor(chunked(random(50), 13), nb="2x16+6")
    assert packed.chunks == ((50,), (16, 16, 6, 6, 6))
    x = hetero_la.lu_solve((packed, piv), chunked(np.ones((50, 2)), 13))
    assert_close(x.compute(), scipy.linalg.solve(random(50), np.ones((50, 2))))


# --- what is planned


def test_sizes_are_in_one_form_and_none_is_beyond_the_matrix() -> None:
    def planned(nb: Any, n: int = 100, nrhs: int = 0) -> Any:
        return hetero_la.plan("solve" if nrhs else "lu", (n, n), nrhs=nrhs, nb=nb).nb

    assert planned([40, 30, 30]) == planned("40+30") == planned(np.array([40, 30])) == (40, 30)
    assert planned("2x50+10") == 50  # two tiles are all of it
    assert planned("30+500") == (30, 100)
    assert planned("30+500", nrhs=700) == (30, 500)
    assert planned("4x25", n=0) == 1
    preset = hetero_la.Options.choose({}, {"nb": [64, 64, 32]})
    assert preset.nb == (64, 64, 32)


def test_what_uses_factors_has_their_tiles() -> None:
    plan = hetero_la.plan("lu", (100, 100), nb="40+25")
    later = follow_up(plan, "lu_solve", 90)
    assert later.layout.column_widths == [40, 25, 25, 10, 40, 25, 25]


def test_a_tail_is_for_tiles_of_one_size() -> None:
    gpus = [hetero_la.scheduler.placement.workers.WorkerInfo("gpu0", "gpu", device=0)]
    assert hetero_la.plan("cholesky", (1000, 1000), nb=100, workers=gpus).layout.tail == 4
    assert hetero_la.plan("cholesky", (1000, 1000), nb="2x100+400", workers=gpus).layout.tail == 1


def test_plans_and_pictures_name_the_sizes(tmp_path: Path) -> None:
    plan = hetero_la.plan("qr", (1000, 1000), nb="2x200+100")
    assert "tiles: nb = 2x200+100, 8 x 8 tiles, 8 steps" in plan.explain()
    plan.draw(tmp_path / "graph.svg")
    assert "tiles of 2x200+100" in (tmp_path / "graph.svg").read_text()
    assert plan.simulate().makespan > 0


# --- the command line


def test_the_command_line_reads_and_prints_them(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["lu", "--random", "60x50", "--nb", "2x16+6"]) == 0
    (row,) = table(capfd.readouterr().out)
    assert (row["nb"], row["status"]) == ("2x16+6", "ok")
    file = tmp_path / "rows.csv"
    argv = ["sweep", "qr", "--n", "40", "--nb", "2x16+6,8:12:4,30", "--check", "--csv", str(file)]
    assert main(argv) == 0
    rows = table(capfd.readouterr().out)
    assert [row["nb"] for row in rows] == ["2x16+6", "8", "12", "30"]
    assert {row["status"] for row in rows} == {"ok"}
    assert [line.split(",")[6] for line in file.read_text().splitlines()[1:]] == [
        "2x16+6", "8", "12", "30"
    ]  # fmt: skip
    assert main(["graph", "lu", "--n", "90", "--nb", "2x16+6", "-o", str(tmp_path / "a.svg")]) == 0
    assert "nb = 2x16+6" in capfd.readouterr().out
    argv = ["simulate", "lu", "--n", "30000", "--machine", "dgx-h200", "--scaling", "strong"]
    assert main([*argv, "--nb", "12x1024+512"]) == 0
    out = capfd.readouterr().out
    assert "nb = 12x1024+512, " in out
    assert all("  12x1024+512  " in line for line in out.splitlines()[-4:])


@pytest.mark.parametrize("text", ["2x16+0", "2x", "16+", "axb", "2*16", "16x2x3"])
def test_what_is_no_size_is_refused(capfd: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(ValueError, match="nb must be a positive integer, a list of them, text as"):
        tile_sizes(text)
    sentence = refused(capfd, "lu", "--random", "9", "--nb", text)
    assert "nb must be a positive integer, a list of them, text as '12x1024+512'" in sentence
    assert "nb must be" in refused(capfd, "sweep", "lu", "--n", "9", "--nb", f"8,{text}")


@pytest.mark.parametrize(
    "given",
    [b"64", {8: 1, 4: 2}, {8, 4}, [8.0], [[8, 4]], [True], np.ones((2, 2), int), np.array([8.5]),
     (8, -1), [], np.array(0)],
)  # fmt: skip
def test_what_is_no_list_of_sizes_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="nb must be a positive integer, a list of them, text as"):
        hetero_la.lu_factor(np.eye(3), nb=given)


def test_arrays_are_lists_of_sizes() -> None:
    assert tile_sizes(np.array(8)) == tile_sizes(np.array([8, 8])) == 8
    assert tile_sizes(np.array([16, 8])) == tile_sizes(range(16, 7, -8)) == (16, 8)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1000000000000", "the numbers in nb must be below 10000000000, not '1000000000000'"),
        ("8" * 5000, "the numbers in nb must be below 10000000000, not '8888"),
        ("2x64+" + "9" * 5000, "the numbers in nb must be below 10000000000, not '2x64"),
        ("100001x64", "nb must be at most 100000 tile sizes, not '100001x64'"),
    ],
)
def test_the_limits_of_sizes_in_text_are_said(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        tile_sizes(text)
