"""Tile sizes and look-ahead chosen by prediction, and kept."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numpy as np
import pytest

import hetero_la
from hetero_la.cli import main
from hetero_la.scheduler.known_machine import current_profile
from hetero_la.scheduler.profile import Tuning
from hetero_la.scheduler.profile_file import write_profile
from hetero_la.scheduler.workers import WorkerInfo, calling_thread
from hetero_la.search import Candidate, search, tuning_of
from hetero_la.tuning import Problem, recall, team_name
from tests.machine import kept, profile

CPUS = [
    WorkerInfo(f"cpu{i}", "cpu", f"inproc://{i}", pid=os.getpid(), host=platform.node())
    for i in range(2)
]
LU = Problem("lu", 1000, 1000, 0, np.dtype("float64"))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HETERO_LA_PROFILE", str(tmp_path / "profile.json"))
    return tmp_path / "profile.json"


def tuned(nb: int, lookahead: int = 1, n: int = 1000, **other: str) -> Tuning:
    return Tuning("lu", team_name(CPUS), "float64", n, n, 0, nb, lookahead, 1.0)._replace(**other)


def test_the_search_finds_the_shortest_of_its_predictions() -> None:
    kept()
    told = []
    found = search(LU, CPUS, sizes=[50, 125, 500], depths=[0, 1], told=told.append)
    assert sorted(found) == sorted(told)
    assert len(found) == 6
    assert [c.seconds for c in found] == sorted(c.seconds for c in found)
    for nb, depth, seconds in found:
        plan = hetero_la.plan("lu", (1000, 1000), nb=nb, lookahead=depth, workers=CPUS)
        assert plan.predicted_seconds == seconds
    # Two workers share two columns badly.
    assert max(found, key=lambda c: c.seconds).nb == 500


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr", "solve"])
def test_the_search_has_sizes_of_its_own(routine: str) -> None:
    kept()
    found = search(LU._replace(routine=routine, nrhs=3 * (routine == "solve")), CPUS)
    assert {c.lookahead for c in found} == {0, 1, 2}
    assert 4 <= len({c.nb for c in found}) <= 8
    assert all(64 <= c.nb <= 512 for c in found)


def test_a_matrix_smaller_than_all_tile_sizes_is_one_tile() -> None:
    kept()
    assert {c.nb for c in search(LU._replace(m=40, n=40), CPUS)} == {40}


def test_nobody_searches_by_nominal_figures() -> None:
    with pytest.raises(ValueError, match="knows 2 cpu x 1 threads: run 'hetero-la probe' first"):
        search(LU, CPUS)


def test_a_tuning_is_used_where_no_tile_size_is_given(place: Path) -> None:
    kept()
    default = hetero_la.plan("lu", (1000, 1000), workers=CPUS)
    write_profile(profile().with_tuning(tuned(80, 2)), place)
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
    known = profile().with_tuning(tuned(80)).with_tuning(tuned(96, n=2000))
    found = recall(known, problem, owners)
    assert (found and found.nb) == nb
    assert recall(None, problem, owners) is None


def test_tunings_of_a_team_are_those_of_its_owners() -> None:
    gpus = [WorkerInfo(f"gpu{i}", "gpu", device=i) for i in range(2)]
    best = Candidate(512, 2, 0.1)
    assert tuning_of(LU, [*gpus, *CPUS], best).workers == "2 gpu"
    assert tuning_of(LU, CPUS, best)[6:] == (512, 2, 0.1)
    assert team_name([calling_thread()]).startswith("1 cpu x ")


def test_the_command_prints_the_candidates_and_keeps_the_best(
    capfd: pytest.CaptureFixture[str],
) -> None:
    kept()
    argv = ["tune", "qr", "--n", "900", "--m", "1200", "--cpus", "2", "--blas-threads", "1"]
    assert main([*argv, "--nb", "100,300", "--lookahead", "0:1"]) == 0
    head, *rows, last = capfd.readouterr().out.splitlines()
    assert head.split() == ["nb", "look-ahead", "predicted", "s"]
    found = {tuple(map(float, row.split())) for row in rows}
    assert {(nb, depth) for nb, depth, _ in found} == {(100, 0), (100, 1), (300, 0), (300, 1)}
    nb, depth, _ = min(found, key=lambda row: row[2])
    assert last.startswith(f"best: nb = {nb:.0f}, look-ahead {depth:.0f}, ")
    (kept_one,) = current_profile().tunings
    assert kept_one[:8] == ("qr", "2 cpu x 1 threads", "float64", 1200, 900, 0, nb, depth)
    plan = hetero_la.plan("qr", (1200, 900), workers=CPUS)
    assert (plan.nb, plan.lookahead) == (nb, depth)


def test_a_small_problem_is_tuned_for_the_calling_thread() -> None:
    kept()
    assert main(["tune", "lu", "--n", "60", "--nb", "20,60"]) == 0
    (kept_one,) = current_profile().tunings
    assert kept_one.workers == team_name([calling_thread()])
    a = np.random.default_rng(0).random((60, 60))
    assert hetero_la.lu_factor(a).plan.nb == kept_one.nb


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [(["lu", "--n", "100"], "there is no profile of this machine: run 'hetero-la probe' first"),
     (["lu", "--n", "0"], "invalid whole number value: '0'"),
     (["lu"], "the following arguments are required: --n"),
     (["cholesky", "--n", "100", "--m", "5"], "--m is for"),
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
