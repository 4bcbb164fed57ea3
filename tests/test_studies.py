"""Studies: each runs in seconds without a GPU, and says what it leaves out."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hetero_la.studies
from hetero_la.cli.main import main
from hetero_la.studies.common import results
from hetero_la.studies.common.study import Study, load_study, study_names
from hetero_la.tiles.arrays.transfer import gpu_count
from tests.command_line import in_own_folder, refused, table  # noqa: F401  (a fixture)

NAMES = study_names()


@pytest.mark.parametrize("name", NAMES)
def test_a_study_writes_what_it_measured_or_says_what_it_left_out(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", name, "--quick", "-o", "out", "--json"]) == 0
    (document,) = json.loads(capfd.readouterr().out)["studies"]
    assert json.loads(Path(f"out/{name}.json").read_text()) == document
    assert (document["study"], document["quick"]) == (name, True)
    assert document["rows"] or document["left_out"]
    assert bool(document["rows"]) == bool(document["found"]) == Path(f"out/{name}.svg").exists()
    tables = {one.name: one for one in load_study(name).tables}
    for row in document["rows"]:
        assert any(row.get(column) is not None for column in tables[row["table"]].columns)
        if "seconds" in row:
            assert 0 < row["least"] <= row["seconds"] <= row["most"]
    if not gpu_count():
        assert any("GPU" in what for what in document["left_out"])


@pytest.mark.parametrize("name", NAMES)
def test_a_study_says_what_it_is(name: str) -> None:
    study = load_study(name)
    assert study.name == name
    assert study.question.endswith("?")
    assert study.source
    assert study.original
    assert study.sizes.keys() == study.quick.keys()
    assert len({one.name for one in study.tables}) == len(study.tables) > 0
    assert importlib.import_module(f"hetero_la.studies.{name}").__doc__


def test_studies_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["study"]) == 0
    listed = table(capfd.readouterr().out)
    assert [row["study"] for row in listed] == NAMES
    assert listed[NAMES.index("blas12")]["question"] == load_study("blas12").question


def test_a_file_of_a_study_is_a_program(tmp_path: Path) -> None:
    path = Path(next(iter(hetero_la.studies.__path__))) / "blas12.py"
    ended = subprocess.run(
        [sys.executable, path, "--quick", "-o", tmp_path / "out"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"blas12: {load_study('blas12').question}\n")
    assert (tmp_path / "out" / "blas12.svg").read_text().startswith("<?xml")


def test_an_unknown_study_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert refused(capfd, "study", "blas21") == "there is no study 'blas21': did you mean 'blas12'?"


def test_a_study_that_fails_does_not_keep_others_from_running(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    true = results.run_study

    def run(study: Study, **how: Any) -> results.StudyResult:
        if study.name == "blas12":
            raise RuntimeError("out of luck")
        return true(study, **how)

    def one_row(_: object) -> Iterator[dict[str, Any]]:
        yield {"table": "times", "n": 1}

    command = importlib.import_module("hetero_la.cli.commands.study")
    monkeypatch.setattr(command, "run_study", run)
    other = Study("other", "Why?", "", "", (), {}, {}, one_row, lambda _: [], lambda *_: None)
    loaded = {"other": other, "blas12": load_study("blas12")}
    monkeypatch.setattr(command, "load_study", loaded.__getitem__)
    assert main(["study", "blas12", "other"]) == 1
    out, err = capfd.readouterr()
    assert "hetero-la: warning: blas12 failed: RuntimeError: out of luck\n" in err
    assert out.startswith("other: Why?\n")
