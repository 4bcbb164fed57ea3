"""``hetero-la simulate``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hetero_la.algorithms.routines import title_of
from hetero_la.cli.main import main
from hetero_la.predict.scaling import FACTORIZATIONS
from tests.command_line import in_own_folder, refused, table  # noqa: F401  (a fixture)

SMALL = ["--n", "40000", "--nb", "1024", "--machine", "dgx-h200"]


@pytest.mark.parametrize("routine", FACTORIZATIONS)
def test_a_forecast_is_explained(routine: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", routine, *SMALL, "--gpus", "4", "--lookahead", "2"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    first, second, *_ = lines = out.splitlines()
    assert first == f"{title_of(routine)} of a 40000 x 40000 float64 matrix on 4 GPUs of DGX H200"
    assert second.endswith("look-ahead: 2 panels")
    shares = [float(line.split()[-2]) for line in lines if re.match("  [a-z]", line)]
    assert len(shares) == 6
    assert sum(shares) == pytest.approx(100, abs=0.5)


LARGE = ["--n", "200000", "--nb", "1024", "--machine", "h200"]


@pytest.mark.parametrize("more", [[], ["--scaling", "strong"], ["--scaling", "weak"]])
def test_a_matrix_that_does_not_fit_is_predicted_only_if_asked_for(
    more: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    said = refused(capfd, "simulate", "qr", *LARGE, *more)
    assert "matrix does not fit on 1 GPU of H200" in said
    assert main(["simulate", "qr", *LARGE, *more, "--anyway"]) == 0
    out, err = capfd.readouterr()
    assert "of 141 GB on the fullest GPU: it does not fit" in out
    assert ("does not fit" in out.splitlines()[-1]) == bool(more)
    assert err == ""


def test_what_does_not_fit_is_told_with_what_it_needs(capfd: pytest.CaptureFixture[str]) -> None:
    assert re.search(
        r"qr of a 200000 x 200000 float64 matrix does not fit on 1 GPU of H200: "
        r"the fullest needs \d+ GB, and has 141 GB \(--anyway predicts it\)",
        refused(capfd, "simulate", "qr", *LARGE),
    )


@pytest.mark.parametrize(("kind", "first"), [("strong", "40000"), ("weak", "14142")])
def test_scaling_is_a_table_and_a_picture(
    kind: str, first: str, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["simulate", "lu", *SMALL, "--scaling", kind, "--plot", "a.svg"]
    assert main(argv) == 0
    rows = table(capfd.readouterr().out.split("\n\n")[1])
    assert list(rows[0])[:5] == ["GPUs", "n", "nb", "time", "rate"]
    assert [row["GPUs"] for row in rows] == ["1", "2", "4", "8"]
    assert [row["n"] for row in rows][:: len(rows) - 1] == [first, "40000"]
    assert rows[0]["speed-up"] == "1.00"  # times the first row's rate
    assert ">GPUs<" in Path("a.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", ["json", "svg", "html"])
def test_the_predicted_run_is_a_timeline(suffix: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = Path(f"run.{suffix}")
    assert main(["simulate", "lu", *SMALL, "--trace", str(path)]) == 0
    out, err = capfd.readouterr()
    assert "the predicted timeline" in out + err
    text = path.read_text(encoding="utf-8")
    if suffix == "json":
        events = json.loads(text)["traceEvents"]
        [named] = [e for e in events if e["name"] == "process_name" and e["pid"] == 7]
        assert named["args"]["name"] == "gpu7"
        assert {e["name"].split()[0] for e in events} > {"getrf", "gemm", "receive", "compose"}
    else:
        assert "LU of 40000 × 40000, tiles of 1024, 8 GPUs of DGX H200" in text


def test_of_a_table_the_last_row_is_a_timeline(capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["simulate", "qr", *SMALL, "--gpus", "4", "--scaling", "strong", "--trace", "a.svg"]
    assert main(argv) == 0
    assert "4 GPUs of DGX H200" in Path("a.svg").read_text(encoding="utf-8")


def test_a_machine_of_ones_own(capfd: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text(
        'name = "mine"\n[gpu]\nmodel = "H200"\nmemory = 1e11\n'
        "[node]\ngpus = 2\nlatency = 1e-6\nbandwidth = 1e11\n"
        "[network]\nnodes = 3\nlatency = 1e-6\nbandwidth = 1e10\n"
    )
    assert main(["simulate", "lu", "--n", "9000", "--nb", "500", "--machine", "mine.toml"]) == 0
    assert "on 6 GPUs of mine" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["lu", *SMALL, "--gpus", "9"], "DGX H200 has 8 GPUs, not 9"),
        (["lu", "--n", "100"], "--machine"),
        (
            ["lu", "--n", "100", "--machine", "no.toml"],
            "there is no file or machine 'no.toml'; there are dgx-h200",
        ),
        (["cholesky", *SMALL, "--m", "100"], "--m is for"),
        (["solve", *SMALL], "ROUTINE: there is no 'solve'; there are lu"),
        (["lu", *SMALL, "--plot", "a.svg"], "--plot draws a table"),
        (["lu", *SMALL, "--trace", "a.pdf"], "must end in one of"),
        (["lu", *SMALL, "--trace", "no/a.svg"], "there is no folder"),
        (
            ["lu", "--n", "500000", "--machine", "dgx-h200-x128", "--trace", "a.svg"],
            "a timeline has room for 128 GPUs, not for 1024",
        ),
        (["lu", *SMALL, "--scaling", "weak", "--plot", "a.html"], "must end in one of .svg"),
        (["lu", *SMALL, "--scaling", "weak", "--plot", "no/a.svg"], "there is no folder"),
        (["lu", "--n", "1000000", "--machine", "h200", "--scaling", "strong"], "does not fit on"),
    ],
)
def test_what_cannot_be_predicted_is_refused_at_once(
    capfd: pytest.CaptureFixture[str], argv: list[str], sentence: str
) -> None:
    assert sentence in refused(capfd, "simulate", *argv)


def test_rows_are_for_all_that_are_not_square(capfd: pytest.CaptureFixture[str]) -> None:
    for routine in ("lu", "lu_nopivot", "qr"):
        assert main(["simulate", routine, *SMALL, "--m", "50000"]) == 0
    capfd.readouterr()
    assert "--m is for" in refused(capfd, "simulate", "cholesky", *SMALL, "--m", "50000")
