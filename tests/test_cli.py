from __future__ import annotations

import csv
import importlib.util
import os
import re
import shlex
import threading
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

import hetero_la
from hetero_la.cli import arguments, interrupt
from hetero_la.cli.common.command import NAMES
from hetero_la.cli.main import main
from hetero_la.io.files import read_matrix, write_matrix
from hetero_la.testing import residuals
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import lu_ratio
from hetero_la.tiles.arrays.counted import in_bytes
from tests.command_line import (
    HEADINGS,
    in_own_folder,  # noqa: F401  (a fixture)
    table,
)

# --- results ----------------------------------------------------------------------------


def test_lu_writes_factors_that_scipy_can_use(capfd: pytest.CaptureFixture[str]) -> None:
    a = generate("orthog", 60)
    write_matrix("a.npy", a)
    assert main(["lu", "a.npy", "-o", "f.npz", "--nb", "16", "--lookahead", "2"]) == 0
    lu, piv = read_matrix("f.npz", "lu"), read_matrix("f.npz", "piv")
    x = scipy.linalg.lu_solve((lu, piv), np.ones(60))
    assert np.allclose(a @ x, 1)
    (row,) = table(capfd.readouterr().out)
    assert (row["routine"], row["kind"], row["m"], row["n"]) == ("lu", "file", "60", "60")
    assert (row["nb"], row["look-ahead"], row["status"]) == ("16", "2", "ok")
    assert float(row["ratio"]) == pytest.approx(lu_ratio(a, lu, piv), rel=0.01)


def test_solve_writes_the_solution(capfd: pytest.CaptureFixture[str]) -> None:
    a, x = generate("dominant", 40), generate("rands", 40, 3, seed=5)
    write_matrix("a.mtx", a)
    write_matrix("b.npy", a @ x)
    assert main(["solve", "a.mtx", "b.npy", "-o", "x.mtx.gz"]) == 0
    assert np.allclose(read_matrix("x.mtx.gz"), x)
    (row,) = table(capfd.readouterr().out)
    assert (row["routine"], row["nrhs"], row["ref time"], row["status"]) == (
        "solve",
        "3",
        "-",
        "ok",
    )


@pytest.mark.parametrize("routine", NAMES)
def test_headings_are_the_same_for_all(capfd: pytest.CaptureFixture[str], routine: str) -> None:
    for argv in ([routine, "--random", "9"], ["sweep", routine, "--n", "9"]):
        assert main(argv) == 0
        head = capfd.readouterr().out.splitlines()[0]
        assert re.split(r"\s{2,}", head) == HEADINGS


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("size", ["0", "1", "7x30", "30x7"])
def test_random_matrices_of_all_types(
    capfd: pytest.CaptureFixture[str], dtype: str, size: str
) -> None:
    assert main(["lu", "--random", size, "--dtype", dtype, "--nb", "8"]) == 0
    (row,) = table(capfd.readouterr().out)
    assert row["dtype"] == dtype
    assert f"{row['m']}x{row['n']}" == (size if "x" in size else f"{size}x{size}")


def test_integers_are_factored_in_double_precision(capfd: pytest.CaptureFixture[str]) -> None:
    write_matrix("i.npy", np.array([[2, 1], [4, 3]]))
    assert main(["lu", "i.npy", "-o", "f.npz"]) == 0
    assert read_matrix("f.npz", "lu").tolist() == [[4.0, 3.0], [0.5, -0.5]]
    assert read_matrix("f.npz", "piv").tolist() == [1, 1]


def test_a_singular_matrix_is_reported_and_has_factors(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lu", "--random", "20", "--kind", "zero-middle", "-o", "f.npz"]) == 0
    out, err = capfd.readouterr()
    assert table(out)[0]["status"] == "singular"
    assert err.startswith("hetero-la: warning: ")
    assert err.count("\n") == 2
    assert err.splitlines()[1].startswith("wrote f.npz, ")
    assert read_matrix("f.npz", "lu")[10, 10] == 0


def test_what_is_in_a_file_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lu", "--random", "90", "-o", "f.npz", "--trace", "run.html"]) == 0
    size = round(os.path.getsize("run.html") / 1000)
    assert re.fullmatch(
        rf"wrote run\.html, ({size}|{size - 1}\.\d|{size}\.\d) kB: the timeline of 1 run\n"
        r"wrote f\.npz, 65\.\d kB: lu \(90 x 90 float64\), piv \(90 int32\)\n",
        capfd.readouterr().err,
    )
    assert main(["sweep", "lu", "--n", "5,6", "--csv", "rows.csv"]) == 0
    out, err = capfd.readouterr()
    assert err == f"wrote rows.csv, {os.path.getsize('rows.csv')} bytes: 2 rows\n"
    assert len(table(out)) == 2
    assert main(["graph", "lu", "--n", "90", "--nb", "30", "-o", "g.dot"]) == 0
    said = r"wrote g\.dot, [\d.]+ kB: the task graph, 20 tasks; critical path .*\n"
    assert re.fullmatch(said, capfd.readouterr().err)


@pytest.mark.skipif(importlib.util.find_spec("zarr") is None, reason="needs zarr")
def test_the_size_of_a_folder_is_that_of_its_files(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["qr", "--random", "300x40", "--mode", "r", "-o", "r.zarr"]) == 0
    files = [path for path in Path("r.zarr").rglob("*") if path.is_file()]
    size = in_bytes(sum(path.stat().st_size for path in files))
    assert capfd.readouterr().err == f"wrote r.zarr, {size}: r (300 x 40 float64)\n"


@pytest.mark.parametrize(
    ("line", "ratio"),
    [
        ("lu", "lu_ratio"), ("solve", "solve_ratio"), ("solve --assume-a pos", "solve_ratio"),
        ("cholesky", "cholesky_ratio"), ("qr", "qr_ratio"), ("qr", "orthogonality_ratio"),
        ("qr --mode raw", "qr_factors_ratio"), ("lstsq", "lstsq_ratio"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [30.0, float("inf")])
def test_a_bad_ratio_is_status_1(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    ratio: str,
    value: float,
) -> None:
    monkeypatch.setattr(residuals, ratio, lambda *_, **__: value)
    assert main([*line.split(), "--random", "9"]) == 1
    assert table(capfd.readouterr().out)[0]["status"] == "FAILED"
    if line == "lu":
        assert main(["sweep", "lu", "--n", "5,6", "--check"]) == 1
        assert [row["status"] for row in table(capfd.readouterr().out)] == ["FAILED", "FAILED"]


@pytest.mark.parametrize("routine", NAMES)
def test_unchecked_is_not_ok(capfd: pytest.CaptureFixture[str], routine: str) -> None:
    assert main([routine, "--random", "9", "--no-check", "-o", "out.npz"]) == 3
    (row,) = table(capfd.readouterr().out)
    assert (row["ratio"], row["status"]) == ("-", "unchecked")
    assert os.listdir() == ["out.npz"]
    assert main(["sweep", routine, "--n", "9"]) == 0
    assert table(capfd.readouterr().out)[0]["status"] == "unchecked"


def test_a_singular_matrix_that_is_not_checked_is_status_3(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["lu", "--random", "9", "--kind", "zero-last", "--no-check"]) == 3
    assert table(capfd.readouterr().out)[0]["status"] == "singular"


def test_verbose_shows_plan_and_workers_beside_the_row(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lu", "--random", "50", "-v"]) == 0
    out, err = capfd.readouterr()
    assert len(table(out)) == 1
    assert "look-ahead" in err
    assert "busy" in err


def test_workers_are_those_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lu", "--random", "64", "--nb", "16", "--cpus", "1", "--blas-threads", "1"]) == 0
    assert table(capfd.readouterr().out)[0]["workers"] == "1cpu"


# --- sweep ------------------------------------------------------------------------------


def test_sweep_runs_every_combination(capfd: pytest.CaptureFixture[str]) -> None:
    argv = "sweep lu --n 5,10:20:10 --m 8 --nb 4,8 --lookahead 1,2 --dtype float32,complex128"
    assert main([*argv.split(), "--kind", "rand,hilb", "--check", "--ref", "--csv", "s.csv"]) == 0
    printed = table(capfd.readouterr().out)
    assert len(printed) == 3 * 2 * 2 * 2 * 2
    assert len({tuple(row.values())[:8] for row in printed}) == len(printed)
    assert {row["n"] for row in printed} == {"5", "10", "20"}
    assert {row["status"] for row in printed} == {"ok"}
    with open("s.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["n"] for row in written] == [row["n"] for row in printed]
    assert all(float(row["ref_seconds"]) > 0 for row in written)
    assert all(float(row["seconds"]) > 0 for row in written)


def test_sweep_repeats_on_an_unchanged_matrix(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    lu_factor = hetero_la.lu_factor

    def spy(a: np.ndarray, **options: object) -> object:
        seen.append(a.copy())
        return lu_factor(a, **options)

    monkeypatch.setattr(hetero_la, "lu_factor", spy)
    assert main(["sweep", "lu", "--n", "12", "--repeat", "3"]) == 0
    assert len(table(capfd.readouterr().out)) == 3
    assert all(np.array_equal(a, generate("rand", 12)) for a in seen)


def test_sweep_goes_on_past_a_singular_system(capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["sweep", "solve", "--n", "8", "--kind", "zero-last,rand", "--nrhs", "1,2", "--check"]
    assert main(argv) == 1
    printed = table(capfd.readouterr().out)
    assert [row["status"] for row in printed] == ["singular", "singular", "ok", "ok"]


def test_csv_holds_what_was_done_before_ctrl_c(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lu_factor = hetero_la.lu_factor

    def stopped(a: np.ndarray, **options: object) -> object:
        if a.shape == (7, 7):
            raise KeyboardInterrupt
        return lu_factor(a, **options)

    monkeypatch.setattr(hetero_la, "lu_factor", stopped)
    monkeypatch.setattr(interrupt, "_announced", threading.Lock())
    assert main(["sweep", "lu", "--n", "5,6,7,8", "--csv", "s.csv"]) == 130
    assert capfd.readouterr().err == "hetero-la: interrupted\n"
    assert [line.split(",")[4] for line in Path("s.csv").read_text().splitlines()[1:]] == ["5", "6"]
    assert os.listdir() == ["s.csv"]


# --- what the README says ---------------------------------------------------------------

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.fixture
def readme() -> str:
    if not README.exists():
        pytest.skip("the README is not beside the tests")
    return README.read_text(encoding="utf-8")


def test_command_lines_in_the_readme_are_understood(readme: str) -> None:
    lines = re.findall(r"^(?:.*/)?hetero-la (.*)$", readme, re.MULTILINE)
    assert len(lines) >= 4
    for line in lines:
        assert arguments.parse(shlex.split(line, comments=True)).run


def test_python_in_the_readme_runs(
    readme: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where it draws
    (block,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    names: dict[str, object] = {}
    exec(block, names)
    a, b, x, y, piv = (np.asarray(names[key]) for key in ("a", "b", "x", "y", "piv"))
    assert np.allclose(a @ x, b)
    assert np.allclose(a @ y, 2 * b)
    assert piv.shape == (2000,)
    assert (tmp_path / "lu.html").exists()
    assert "busy" in capfd.readouterr().out
