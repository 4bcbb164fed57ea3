"""Profiles: they come back from their file as they were, and only where they fit."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hetero_la
from hetero_la.cli.commands.probe import report
from hetero_la.scheduler.machine import this_machine
from hetero_la.scheduler.machine.device import CORE, cores
from hetero_la.scheduler.machine.model import DaskCosts, MachineModel
from hetero_la.scheduler.machine.profile import MeasuredDevice, Profile, Tuning
from hetero_la.scheduler.machine.profile_file import read_profile, write_profile
from hetero_la.scheduler.machine.this_machine import (
    ProfileWarning,
    current_profile,
    profile_path,
    with_profile,
)
from hetero_la.scheduler.placement.workers import WorkerInfo
from tests.machine import RATE, kept, measured, profile

HERE = WorkerInfo("cpu0", "cpu", "inproc://0", pid=os.getpid(), host=platform.node())
TUNING = Tuning("lu", "2 cpu x 1 threads", "float64", 1000, 1000, 0, 64, 2, 0.5)
SEVERAL = TUNING._replace(nb=(128, 128, 64), seconds=0.4)


BAD_TUNING = json.dumps(TUNING._asdict() | {"nb": "64x"})


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HETERO_LA_PROFILE", str(tmp_path / "profile.json"))
    return tmp_path / "profile.json"


def test_what_is_written_is_read(place: Path) -> None:
    gpu = MeasuredDevice("NVIDIA H200, 140 GiB", 0, 1, CORE, {"launch_seconds": 1e-5})
    written = profile(measured(), gpu).with_tunings([TUNING, SEVERAL])
    write_profile(written, place)
    found = read_profile(place)
    for field in dataclasses.fields(Profile):
        assert getattr(found, field.name) == getattr(written, field.name)
    assert os.listdir(place.parent) == [place.name]


def test_without_a_profile_there_is_none_and_nothing_is_said() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert current_profile() is None
    assert "nominal figures; 'hetero-la probe'" in hetero_la.plan("lu", (100, 100)).explain()


def test_the_profile_is_kept_under_a_name_of_the_hardware(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HETERO_LA_PROFILE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = profile_path()
    assert here.parent == tmp_path / "hetero-la"
    other = {**this_machine.machine_identity(), "cores": 77}
    monkeypatch.setattr(this_machine, "machine_identity", lambda: other)
    assert profile_path().parent == here.parent
    assert profile_path() != here


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"cores": 999}, "it is of another machine: cores 999, here "),
     ({"gpus": ["NVIDIA H200"]}, "it is of another machine: gpus ['NVIDIA H200'], here "),
     ({"hetero-la": "0.0.0"}, "it is of another version: hetero-la '0.0.0', here "),
     ({"blas": []}, "it is of another version: blas [], here ")],
)  # fmt: skip
def test_a_foreign_or_stale_profile_is_noticed_once(
    place: Path, change: dict[str, object], reason: str
) -> None:
    whole = profile()
    write_profile(replace(whole, machine={**whole.machine, **change}), place)
    with pytest.warns(ProfileWarning) as caught:
        assert current_profile() is None
    assert f"the profile {place} is not used: {reason}" in str(caught[0].message)
    assert str(caught[0].message).endswith("'hetero-la probe' makes a new one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert current_profile() is None
        assert hetero_la.plan("lu", (100, 100)).model.measured == ""


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[: len(text) // 2], lambda text: "[]", lambda text: "{}",
     lambda text: text.replace('"format": 5', '"format": 4'),
     lambda text: text.replace('"tunings": []', '"tunings": [' + BAD_TUNING + "]"),
     lambda text: text.replace('"devices": [', '"devices": [3, '),
     lambda text: text.replace('"gemm_rate"', '"gemm_speed"'),
     lambda text: text.replace('"tile_share": 0.0,', ""),
     lambda text: text.replace('"tile_share": 0.0', '"tile_share": 1.0'),
     lambda text: text.replace('"kernel": "gemm"', '"kernel": "nonsense"')],
    ids=["half of it", "a list", "nothing", "an older format", "a bad tuning", "a number as device",
         "an unknown field", "a missing field", "a share of 1", "an unknown kernel"],
)  # fmt: skip
def test_a_damaged_profile_is_noticed(place: Path, damage) -> None:
    text = kept().read_text()
    assert damage(text) != text
    place.write_text(damage(text))
    with pytest.raises(ValueError, match="not a profile"):
        read_profile(place)
    with pytest.warns(ProfileWarning, match="not a profile"):
        assert current_profile() is None


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [(lambda text: "{}", "it has no 'format'"),
     (lambda text: "[" * 200_000, "nested too deeply"),
     (lambda text: text.replace('"start": 0.5', '"start": null'), "start of dask is None"),
     (lambda text: text.replace('"kind": "cpu"', '"kind": "tpu"'), "neither cpu nor gpu"),
     (lambda text: text.replace('"bandwidth": 5', '"bandwidth": -5'), "not positive"),
     (lambda text: text.replace('"gemm_rate": 5', '"gemm_rate": 0.0, "old": 5'), "not positive"),
     (lambda text: text.replace('"gemm_half": ', '"gemm_half": 1e999, "old": '), "is inf"),
     (lambda text: text.replace('"lookahead": 2', '"lookahead": -2'), "look-ahead .* is -2"),
     (lambda text: text.replace('"lookahead": 2', '"lookahead": 2.5'), "look-ahead .* is 2.5")],
    ids=["nothing", "deep nesting", "start of null", "kind of tpu", "negative bandwidth",
         "rate of 0", "infinite half", "negative look-ahead", "broken look-ahead"],
)  # fmt: skip
def test_figures_that_cannot_be_are_noticed(place: Path, damage, sentence: str) -> None:
    write_profile(profile().with_tunings([TUNING]), place)
    text = place.read_text()
    place.write_text(damage(text))
    assert place.read_text() != text
    with pytest.warns(ProfileWarning, match=f"not a profile.*: .*{sentence}"):
        assert current_profile() is None


def test_a_pipe_is_no_profile_and_stays_one(place: Path) -> None:
    os.mkfifo(place)
    with pytest.warns(ProfileWarning, match=f"{place} is not a regular file"):
        assert current_profile() is None
    with pytest.raises(OSError, match=f"{place} is not a regular file"):
        write_profile(profile(), place)
    assert place.is_fifo()
    assert os.listdir(place.parent) == [place.name]


def test_plans_use_the_profile_as_soon_as_it_is_there() -> None:
    def planned() -> hetero_la.Plan:
        return hetero_la.plan("lu", (1000, 1000), nb=250, workers=[HERE])

    before = planned().predicted_seconds
    kept()
    plan = planned()
    gemm = plan.model.devices[0].kernel_seconds("gemm", [(750, 250), (250, 500), (750, 500)], "f8")
    assert gemm == pytest.approx(2 * 750 * 250 * 500 / RATE)
    assert plan.predicted_seconds > plan.flops / RATE / 2 > before
    assert "model: this machine's profile, measured 2026-01-02" in plan.explain()
    # What Dask takes, and what the worker takes to issue the first instruction.
    assert plan.simulate().start[0][0] == pytest.approx(0.5 + CORE.issue_seconds)


def test_which_workers_a_profile_knows() -> None:
    kept()
    team = [
        HERE, replace(HERE, host="elsewhere"), replace(HERE, blas_threads=3),
        replace(HERE, kind="gpu", virtual=True), replace(HERE, kind="gpu", device=0),
        replace(HERE, host="", pid=0),
    ]  # fmt: skip
    nominal = MachineModel.nominal(team)
    model, known = with_profile(nominal, team, np.float64)
    assert known == [True, False, False, True, False, True]
    assert [d.rates.tables != () for d in model.devices] == known
    assert [d.by_reference for d in model.devices] == [d.by_reference for d in nominal.devices]
    assert model.devices[2] == cores(3)
    assert model.host_link.bandwidth == 5e10
    assert model.peer_link == nominal.peer_link


def test_a_plan_says_which_of_its_workers_nobody_has_measured() -> None:
    kept()
    team = [HERE, replace(HERE, name="cpu1", blas_threads=3)]
    text = hetero_la.plan("lu", (500, 500), nb=100, workers=team).explain()
    assert "measured 2026-01-02T03:04:05+00:00; nominal figures for cpu1\n" in text


def test_windows_follow_what_a_task_costs_dask(place: Path) -> None:
    def window() -> int:
        team = [HERE, replace(HERE, name="cpu1")]
        return hetero_la.plan("lu", (4000, 4000), nb=100, workers=team).window

    kept()
    dear = window()
    write_profile(replace(profile(), dask=DaskCosts(0.5, 1e-3)), place)
    assert 1 <= window() < dear


def test_a_type_that_was_not_measured_is_scaled_from_one_that_was() -> None:
    single = measured(replace(CORE, dtype="float32"))
    whole = profile(measured(), single)
    assert whole.device("", 1, "float32").dtype == "float32"
    assert whole.device("", 1, "complex128").dtype == "float64"
    assert whole.device("", 2, "float64") is None


def test_a_later_probe_replaces_what_it_measured_and_voids_tunings() -> None:
    older = profile(measured(), measured(threads=4)).with_tunings([TUNING])
    newer = profile(measured(replace(CORE, gemm_rate=1.0)))
    both = older.merged(newer)
    assert [(d.threads, d.model.gemm_rate) for d in both.devices] == [
        (1, 1.0), (4, CORE.gemm_rate),
    ]  # fmt: skip
    assert both.tunings == ()


def test_what_was_measured_on_a_busy_machine_makes_no_choices() -> None:
    busy, quiet = measured(replace(CORE, gemm_rate=1.0), spread=1.2), measured()
    assert (busy.model.rates.spread, busy.disturbed, quiet.disturbed) == (1.2, True, False)
    assert not MeasuredDevice("", 1, 1, CORE, {}).disturbed  # without rates nobody knows
    assert profile(busy).device("", 1, "float64") is None
    assert profile(busy, measured(threads=4)).device("", 4, "float64") is not None
    # It replaces nothing that is better, and is replaced by anything.
    for older, newer, left in ((quiet, busy, quiet), (busy, quiet, quiet), (busy, busy, busy)):
        (device,) = profile(older).merged(profile(newer)).devices
        assert device.disturbed == left.disturbed
    busy, quiet = busy._replace(figures={}), quiet._replace(figures={})
    lines = list(report(profile(busy)))
    said = [line for line in lines if isinstance(line, str)]  # the others are tables
    assert any("the machine was busy, so that samples differ by 120%" in line for line in said)
    assert not any("busy" in str(line) for line in report(profile(quiet)))


def test_new_tunings_for_a_problem_replace_all_older_ones() -> None:
    whole = profile().with_tunings([TUNING, SEVERAL]).with_tunings([TUNING._replace(n=2000)])
    whole = whole.with_tunings([TUNING._replace(nb=96, seconds=0.1)])
    assert [(t.n, t.nb) for t in whole.tunings] == [(2000, 64), (1000, 96)]


def test_sequences_of_sizes_are_kept_as_words(place: Path) -> None:
    write_profile(profile().with_tunings([SEVERAL]), place)
    assert json.loads(place.read_text())["tunings"][0]["nb"] == "2x128+64"


def test_the_file_is_json_with_the_names_that_are_documented(place: Path) -> None:
    content = json.loads(kept().read_text())
    assert list(content) == [
        "format", "machine", "measured", "devices", "links", "dask", "cluster_dask", "tunings"
    ]  # fmt: skip
    assert list(content["devices"][0]["kernels"][0]) == [
        "kernel", "sizes", "axes", "seconds", "spreads"
    ]  # fmt: skip
