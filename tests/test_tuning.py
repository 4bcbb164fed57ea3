"""Tile sizes and look-ahead chosen by prediction, and kept."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero_la
from hetero_la.cli.commands import tune
from hetero_la.cli.main import main
from hetero_la.planning.decisions import Problem, default_nb, find_tuning, team_name
from hetero_la.predict.tile_search import (
    Candidate,
    _best_uniform_sizes,
    _candidates,
    _coarsened,
    _stages,
    search,
    tunings_of,
)
from hetero_la.scheduler.machine import this_machine
from hetero_la.scheduler.machine.device import H200
from hetero_la.scheduler.machine.profile import MeasuredDevice, Tuning
from hetero_la.scheduler.machine.profile_file import read_profile, write_profile
from hetero_la.scheduler.machine.rate_tables import KernelRates
from hetero_la.scheduler.machine.this_machine import current_profile
from hetero_la.scheduler.placement.workers import WorkerInfo, calling_thread
from hetero_la.scheduler.predict.simulate import simulate
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.tile_sizes import TileSizes
from tests.command_line import table as printed
from tests.machine import kept, measured, profile, table

CPUS = [
    WorkerInfo(f"cpu{i}", "cpu", f"inproc://{i}", pid=os.getpid(), host=platform.node())
    for i in range(2)
]
LU = Problem("lu", 1000, 1000, 0, np.dtype("float64"))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HETERO_LA_PROFILE", str(tmp_path / "profile.json"))
    return tmp_path / "profile.json"


def tuned(nb: TileSizes, lookahead: int = 1, n: int = 1000, **other: Any) -> Tuning:
    return Tuning("lu", team_name(CPUS), "float64", n, n, 0, nb, lookahead, 1.0)._replace(**other)


def test_the_search_finds_the_shortest_of_its_predictions() -> None:
    kept()
    told = []
    found = search(LU, CPUS, sizes=[50, 125, 500], depths=[0, 1], report=told.append)
    assert sorted(found) == sorted(told)
    assert len(found) == 6
    assert [c.seconds for c in found] == sorted(c.seconds for c in found)
    for nb, depth, seconds, _ in found:
        plan = hetero_la.plan("lu", (1000, 1000), nb=nb, lookahead=depth, workers=CPUS)
        assert plan.predicted_seconds == seconds
    # Two workers share two columns badly.
    assert max(found, key=lambda c: c.seconds).nb == 500


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr", "solve"])
def test_the_search_has_sizes_of_its_own(routine: str) -> None:
    kept()
    found = search(LU._replace(routine=routine, nrhs=3 * (routine == "solve")), CPUS)
    assert {c.lookahead for c in found} == {0, 1, 2}
    uniform = {c.nb for c in found if isinstance(c.nb, int)}
    assert 4 <= len(uniform) <= 9  # the eight most promising, and the default
    assert all(64 <= nb <= 512 for nb in uniform)
    cuts = [c for c in found if not isinstance(c.nb, int)]
    # At a rate that does not depend on the sizes, nothing beats the smallest ones in QR.
    assert {c.lookahead for c in cuts} == (set() if routine == "qr" else {0, 1, 2})
    for nb, depth, seconds, _ in cuts:
        assert all(size % 32 == 0 for size in nb[:-1])
        plan = hetero_la.plan(
            routine, (1000, 1000), nrhs=3 * (routine == "solve"), nb=nb, lookahead=depth,
            workers=CPUS,
        )  # fmt: skip
        assert plan.predicted_seconds == seconds


def test_the_search_tries_two_levels_of_lu() -> None:
    kept()
    found = [c for c in search(LU._replace(m=2000, n=2000), CPUS) if c.coarse is not None]
    assert len({(c.nb, c.coarse) for c in found}) == 4
    for nb, depth, seconds, coarse in found:
        assert coarse in (2 * nb, 4 * nb)
        options = {"nb": nb, "coarse": coarse, "lookahead": depth}
        plan = hetero_la.plan("lu", (2000, 2000), workers=CPUS, **options)
        assert plan.layout.blocked
        assert plan.predicted_seconds == seconds


def test_a_tuning_may_have_two_levels(place: Path) -> None:
    kept()
    write_profile(profile().with_tunings([tuned(50, coarse=100)]), place)
    plan = hetero_la.plan("lu", (1000, 1000), workers=CPUS)
    assert (plan.nb, plan.layout.per_block) == (50, 2)
    assert hetero_la.plan("lu", (1000, 1000), workers=CPUS, nb=50).layout.per_block == 1
    place.write_text(place.read_text().replace('"coarse": 100', '"coarse": "wide"'))
    with pytest.raises(ValueError, match="a tuning has blocks of 'wide' columns, with nb = 50"):
        read_profile(place)


def test_a_matrix_smaller_than_all_tile_sizes_is_one_tile() -> None:
    kept()
    assert {c.nb for c in search(LU._replace(m=40, n=40), CPUS)} == {40}


def test_nobody_searches_by_nominal_figures() -> None:
    with pytest.raises(ValueError, match="knows 2 cpu x 1 threads: run 'hetero-la probe' first"):
        search(LU, CPUS)


def test_a_tuning_is_used_where_no_tile_size_is_given(place: Path) -> None:
    kept()
    default = hetero_la.plan("lu", (1000, 1000), workers=CPUS)
    write_profile(profile().with_tunings([tuned(80, 2)]), place)
    plan = hetero_la.plan("lu", (1000, 1000), workers=CPUS)
    assert (plan.nb, plan.lookahead) == (80, 2) != (default.nb, default.lookahead)
    given = hetero_la.plan("lu", (1000, 1000), workers=CPUS, nb=100)
    assert (given.nb, given.lookahead) == (100, default.lookahead)
    depth = hetero_la.plan("lu", (1000, 1000), workers=CPUS, lookahead=0)
    assert (depth.nb, depth.lookahead) == (80, 0)


@pytest.mark.parametrize(
    ("problem", "owners", "nb"),
    [(LU, CPUS, 80), (LU._replace(n=1100), CPUS, 80), (LU._replace(n=1900, m=1900), CPUS, 96),
     (LU._replace(n=1400, m=1400), CPUS, None), (LU._replace(n=100), CPUS, None),
     (LU._replace(routine="qr"), CPUS, None), (LU._replace(dtype=np.dtype("f4")), CPUS, None),
     (LU, CPUS[:1], None), (LU._replace(m=0, n=0), CPUS, None)],
)  # fmt: skip
def test_a_tuning_holds_near_its_own_size(
    problem: Problem, owners: list[WorkerInfo], nb: int | None
) -> None:
    known = profile().with_tunings([tuned(80), tuned(96, n=2000)])
    found = find_tuning(known, problem, owners)
    assert (found and found.nb) == nb
    assert find_tuning(None, problem, owners) is None


def test_tunings_of_a_team_are_those_of_its_owners() -> None:
    gpus = [WorkerInfo(f"gpu{i}", "gpu", device=i) for i in range(2)]
    best = Candidate(512, 2, 0.1)
    (kept_one,) = tunings_of(LU, [*gpus, *CPUS], [best, Candidate((512, 256), 1, 0.2)])
    assert kept_one.workers == "2 gpu"
    assert kept_one[6:] == (512, 2, 0.1, None)
    assert team_name([calling_thread()]).startswith("1 cpu x ")


def test_several_sizes_hold_for_their_own_size_only(place: Path) -> None:
    cuts = (Candidate((96, 96, 64), 1, 0.1), Candidate((128, 64), 1, 0.2), Candidate(80, 2, 0.3))
    kept_ones = tunings_of(LU, CPUS, cuts)
    assert [(t.nb, t.lookahead, t.seconds, t.coarse) for t in kept_ones] == [cuts[0], cuts[2]]
    assert len(tunings_of(LU, CPUS, cuts[:2])) == 1
    known = profile().with_tunings(kept_ones)
    for size, nb in [(1000, (96, 96, 64)), (999, 80), (1001, 80), (1100, 80), (1400, None)]:
        found = find_tuning(known, LU._replace(m=size, n=size), CPUS)
        assert (found and found.nb) == nb
    found = find_tuning(known, LU._replace(nrhs=1), CPUS)
    assert found is not None
    assert found.nb == 80
    write_profile(known, place)
    plan = hetero_la.plan("lu", (1000, 1000), workers=CPUS)
    assert (plan.nb, plan.lookahead) == ((96, 96, 64), 1)
    assert "nb = 2x96+64, " in plan.explain()
    near = hetero_la.plan("lu", (1010, 1010), workers=CPUS)
    assert (near.nb, near.lookahead) == (80, 2)


def test_the_most_promising_sizes_are_as_good_as_all() -> None:
    kept()
    sizes = range(64, 513, 32)
    for routine in ("lu", "qr", "cholesky"):
        problem = LU._replace(routine=routine)
        seconds = {c.nb: c.seconds for c in search(problem, CPUS, sizes=sizes, depths=[1])}
        found = _best_uniform_sizes(problem, _stages(problem, CPUS), sizes)
        assert len(found) == 8
        assert min(seconds[nb] for nb in found) <= 1.02 * min(seconds.values())


def test_only_graphs_that_are_small_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    kept()

    def cuts() -> list[TileSizes]:
        return [c.nb for c in search(LU, CPUS, depths=[1]) if isinstance(c.nb, tuple)]

    steps = min(TileLayout(1000, 1000, nb).kt for nb in cuts())
    monkeypatch.setattr("hetero_la.predict.tile_search._MOST_TASKS", 3 * steps**2 // 2)
    assert cuts() == []


@pytest.mark.parametrize("routine", ["lu", "solve"])
def test_stages_know_what_workers_with_shared_memory_merge(routine: str, place: Path) -> None:
    """Where each product takes some time of its own, the number of calls counts."""
    product = table("gemm")
    product = replace(product, seconds=tuple(seconds + 0.05 for seconds in product.seconds))
    core, rates = measured(), KernelRates((product, table("getrf"), table("geqrf")))
    write_profile(profile(core._replace(model=replace(core.model, rates=rates))), place)
    problem = LU._replace(routine=routine, nrhs=1000 * (routine == "solve"))
    plan = hetero_la.plan(routine, (1000, 1000), nrhs=problem.nrhs, nb=64, workers=CPUS)
    run = simulate(plan.programs, plan.traffic, plan.graph, plan.model, source="in place")
    stages = _stages(problem, CPUS)
    estimate = stages.seconds(plan.layout.column_widths[: plan.layout.kt])
    assert estimate == pytest.approx(run.makespan, rel=0.1)


@pytest.mark.parametrize(("routine", "m", "n"), [("lu", 700, 3000), ("qr", 3000, 700)])
def test_what_is_not_square_has_no_small_tiles_beyond(routine: str, m: int, n: int) -> None:
    kept()
    for found in search(LU._replace(routine=routine, m=m, n=n), CPUS):
        layout = TileLayout(m, n, found.nb)
        assert max(layout.mt, layout.nt) <= 3000 // 64 + 1


def test_a_large_matrix_has_a_coarse_grid() -> None:
    kept()
    assert _coarsened(range(64, 513, 32), 8192) == range(64, 513, 32)
    assert _coarsened(range(64, 513, 32), 8193) == list(range(64, 513, 64))
    assert _coarsened(range(128, 2049, 128), 10**7) == [512, 1024, 1536, 2048]


def test_the_command_prints_the_candidates_and_keeps_the_best(
    capfd: pytest.CaptureFixture[str],
) -> None:
    kept()
    argv = ["tune", "qr", "--n", "900", "--m", "1200", "--cpus", "2", "--blas-threads", "1"]
    assert main([*argv, "--nb", "100,300", "--lookahead", "0:1"]) == 0
    *rows, last = capfd.readouterr().out.splitlines()
    found = [(int(row["nb"]), int(row["look-ahead"])) for row in printed("\n".join(rows))]
    assert sorted(found) == [(100, 0), (100, 1), (300, 0), (300, 1)]
    nb, depth = found[0]
    assert last.startswith(f"best: nb = {nb}, look-ahead {depth}, ")
    (kept_one,) = current_profile().tunings
    assert kept_one[:8] == ("qr", "2 cpu x 1 threads", "float64", 1200, 900, 0, nb, depth)
    plan = hetero_la.plan("qr", (1200, 900), workers=CPUS)
    assert (plan.nb, plan.lookahead) == (nb, depth)


def test_the_command_finds_and_keeps_several_sizes(capfd: pytest.CaptureFixture[str]) -> None:
    kept()
    argv = ["tune", "cholesky", "--n", "900", "--cpus", "2", "--blas-threads", "1"]
    assert main([*argv, "--nb", "2x200+100,300"]) == 0
    assert "\n2x200+100  " in capfd.readouterr().out
    assert main(argv) == 0
    *rows, last = capfd.readouterr().out.splitlines()
    found = printed("\n".join(rows))
    assert any("+" in row["nb"] for row in found)
    least = found[0]
    assert last.startswith(f"best: nb = {least['nb']}, look-ahead {least['look-ahead']}, ")
    plan = hetero_la.plan("cholesky", (900, 900), workers=CPUS)
    assert plan.layout.nb_text == least["nb"]


def test_a_small_problem_is_tuned_for_the_calling_thread() -> None:
    kept()
    assert main(["tune", "lu", "--n", "60", "--nb", "20,60"]) == 0
    (kept_one,) = current_profile().tunings
    assert kept_one.workers == team_name([calling_thread()])
    a = np.random.default_rng(0).random((60, 60))
    assert hetero_la.lu_factor(a).plan.nb == kept_one.nb


@pytest.mark.parametrize(
    ("command", "choice", "row"),
    [("qr", ["--mode", "economic"], ("explicit_q", 60, 40, 40)),
     ("qr", ["--mode", "full"], ("explicit_q", 60, 40, 60)),
     ("qr", ["--mode", "raw"], ("qr", 60, 40, 0)),
     ("solve", ["--assume-a", "sym"], ("solve", 40, 40, 1)),
     ("solve", ["--assume-a", "pos"], ("solve_positive", 40, 40, 1))],
)  # fmt: skip
def test_a_run_takes_the_tuning_of_its_own_choice(
    command: str, choice: list[str], row: tuple[Any, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    kept()
    routine, m, n, nrhs = row
    sizes = ["--n", f"{n}", *(["--m", f"{m}"] if command == "qr" else [])]
    assert main(["tune", command, *sizes, *choice, "--nb", "7"]) == 0
    (kept_one,) = current_profile().tunings
    assert (kept_one.routine, kept_one.m, kept_one.n, kept_one.nrhs) == (routine, m, n, nrhs)
    assert main([command, "--random", f"{m}x{n}", *choice, "-v"]) == 0
    assert "tiles: nb = 7, " in capfd.readouterr().err


def test_least_squares_of_a_wide_matrix_are_tuned() -> None:
    kept()
    assert main(["tune", "lstsq", "--n", "60", "--m", "40", "--nrhs", "2", "--nb", "16,40"]) == 0
    (kept_one,) = current_profile().tunings
    a, b = np.random.default_rng(0).random((40, 60)), np.ones((40, 2))
    with hetero_la.trace() as t:  # otherwise LAPACK alone does so small a problem
        hetero_la.lstsq(a, b, lapack_driver="gels")
    assert t.runs[0].plan.nb == kept_one.nb
    assert (kept_one.routine, kept_one.m, kept_one.n) == ("minimum_norm", 60, 40)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [(["lu", "--n", "100"], "there is no profile of this machine: run 'hetero-la probe' first"),
     (["lu", "--n", "0"], "'0' is not a whole number of at least 1"),
     (["lu"], "the following arguments are required: --n"),
     (["cholesky", "--n", "100", "--m", "5"], "--m is for"),
     (["lu", "--n", "100", "--mode", "raw"], "--mode is for qr"),
     (["qr", "--n", "100", "--assume-a", "pos"], "--assume-a is for solve"),
     (["qr", "--n", "100", "--nrhs", "5"], "--nrhs is for")],
)  # fmt: skip
def test_what_cannot_be_tuned_is_refused(
    argv: list[str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *argv]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def test_runs_at_the_same_time_keep_the_results_of_both(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept()
    theirs = Tuning("qr", "2 cpu x 1 threads", "float64", 700, 700, 0, 64, 1, 0.5)

    def meanwhile(*args: Any, **options: Any) -> list[Candidate]:
        write_profile(read_profile(place).with_tunings([theirs]), place)
        return search(*args, **options)

    monkeypatch.setattr(tune, "search", meanwhile)
    assert main(["tune", "lu", "--n", "60", "--nb", "20,60"]) == 0
    assert {tuning.routine for tuning in read_profile(place).tunings} == {"qr", "lu"}


@pytest.mark.parametrize("more", [[], ["--nb", "64,500"]])
def test_too_many_tasks_are_not_simulated(
    more: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    kept()
    argv = ["tune", "lu", "--n", "10000000", "--cpus", "2", "--blas-threads", "1", *more]
    assert main(argv) == 2
    assert "tasks, of which at most 2e+06 are simulated" in capfd.readouterr().err


@pytest.fixture
def known_gpu(place: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerInfo:
    """One whose profile says that LU's panels are best with ib = 16, and QR's with 8."""
    machine = {**this_machine.machine_identity(), "gpus": ["a GPU"]}
    monkeypatch.setattr(this_machine, "machine_identity", lambda: machine)
    gpu = MeasuredDevice("a GPU", 0, 1, H200, {"getrf_ib": 16.0, "geqrf_ib": 8.0})
    write_profile(replace(profile(gpu), machine=machine), place)
    return WorkerInfo("gpu0", "gpu", device=0)


@pytest.mark.parametrize(("routine", "ib"), [("lu", 16), ("solve", 16), ("qr", 8), ("lstsq", 8)])
def test_inner_blocking_is_what_the_profile_found_best(
    routine: str, ib: int, known_gpu: WorkerInfo
) -> None:
    def planned(dtype: str = "float64", **options: Any) -> hetero_la.Plan:
        return hetero_la.plan(routine, (900, 900), dtype, workers=[known_gpu], **options)

    assert planned().options.ib == planned().job().options.ib == ib
    assert f", {ib} columns by one kernel" in planned().explain()
    assert planned(ib=4).options.ib == 4
    # A kernel's registers hold other numbers of columns of other types.
    assert planned("float32").options.ib is None
    assert "by one kernel" not in planned("float32").explain()


@pytest.mark.exhaustive
def test_default_tiles_are_candidates_where_their_graph_is_small() -> None:
    kept()
    sizes = {nb for nb, *_ in _candidates(LU, CPUS, None, None)}
    assert default_nb("lu", 1000, 1000, CPUS) in sizes
    huge = LU._replace(m=200_000, n=200_000)
    default = default_nb("lu", huge.m, huge.n, CPUS)
    assert default not in {nb for nb, *_ in _candidates(huge, CPUS, None, None)}


def test_other_workers_have_no_inner_blocking(known_gpu: WorkerInfo) -> None:
    elsewhere = replace(known_gpu, host="another host")
    virtual = WorkerInfo("gpu0", "gpu")
    for worker in (elsewhere, virtual, *CPUS):
        assert hetero_la.plan("lu", (900, 900), workers=[worker]).options.ib is None
    assert hetero_la.plan("cholesky", (900, 900), workers=[known_gpu]).options.ib is None
