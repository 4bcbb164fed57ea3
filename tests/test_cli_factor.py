"""What the commands for Cholesky, QR and least squares, and `solve --assume-a`, compute."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg

import hetero_la
from hetero_la.cli import arguments
from hetero_la.cli.common import problems, runs
from hetero_la.cli.common.command import NAMES
from hetero_la.cli.main import main
from hetero_la.io.files import read_matrix, write_matrix
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import qr_factors_ratio
from hetero_la.tiles.kernels.gpu_libraries import cusolver
from tests.command_line import (
    in_own_folder,  # noqa: F401  (a fixture)
    table,
)

KNOWN = ["sym", "her", "pos"]


def half(a: np.ndarray, *, upper: bool) -> np.ndarray:
    """`a` with rubbish in the triangle that is not read."""
    unread = np.tri(len(a), k=-1, dtype=bool)
    return np.where(unread if upper else unread.T, 77.0, a)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_writes_one_triangle(
    capfd: pytest.CaptureFixture[str], upper: bool, dtype: str
) -> None:
    a = generate("spd", 50, dtype=dtype, cond=100)
    write_matrix("a.npy", half(a, upper=upper))
    argv = ["cholesky", "a.npy", "-o", "f.npz", "--nb", "16", *["--upper"] * upper]
    assert main(argv) == 0
    (row,) = table(capfd.readouterr().out)
    assert (row["routine"], row["n"], row["nrhs"], row["status"]) == ("cholesky", "50", "0", "ok")
    factor = read_matrix("f.npz", "u" if upper else "l")
    assert np.allclose(factor, scipy.linalg.cholesky(a, lower=not upper), atol=1e-4)


@pytest.mark.parametrize("size", [(60, 25), (25, 60), (30, 30)])
@pytest.mark.parametrize("mode", ["economic", "full", "raw", "r"])
def test_qr_writes_what_the_mode_says(
    capfd: pytest.CaptureFixture[str], mode: str, size: tuple[int, int]
) -> None:
    a = generate("rands", *size, dtype="complex128")
    write_matrix("a.npy", a)
    assert main(["qr", "a.npy", "-o", "f.npz", "--mode", mode, "--nb", "16"]) == 0
    (row,) = table(capfd.readouterr().out)
    assert (row["routine"], row["status"]) == ("qr", "ok")
    names = {"raw": ["qr", "tau"], "r": ["r"]}.get(mode, ["q", "r"])
    with np.load("f.npz") as file:
        assert sorted(file.files) == sorted(names)
    found = [read_matrix("f.npz", name) for name in names]
    expected = scipy.linalg.qr(a, mode=mode)
    expected = expected[0] if mode == "raw" else expected
    assert [f.shape for f in found] == [e.shape for e in expected]
    assert all(np.allclose(f, e) for f, e in zip(found, expected, strict=True))
    if mode == "raw":
        assert float(row["ratio"]) == pytest.approx(qr_factors_ratio(a, *found), rel=0.01)


def test_qr_is_economic_unless_asked(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["qr", "--random", "40x10", "-o", "f.npz"]) == 0
    assert read_matrix("f.npz", "q").shape == (40, 10)
    assert main(["qr", "--random", "40x10", "-o", "r.npy", "--mode", "r"]) == 0
    assert np.array_equal(read_matrix("r.npy"), np.triu(read_matrix("r.npy")))


@pytest.mark.parametrize("size", [(60, 25), (25, 60)])
@pytest.mark.parametrize("columns", [None, 3])
def test_lstsq_writes_the_solution(
    capfd: pytest.CaptureFixture[str], size: tuple[int, int], columns: int | None
) -> None:
    a = generate("rands", *size)
    b = generate("rands", size[0], columns or 1, seed=1)
    b = b[:, 0] if columns is None else b
    write_matrix("ab.npz", {"a": a, "b": b})
    assert main(["lstsq", "ab.npz", "ab.npz", "--name", "a", "--name-b", "b", "-o", "x.npy"]) == 0
    assert np.allclose(read_matrix("x.npy"), scipy.linalg.lstsq(a, b)[0])
    (row,) = table(capfd.readouterr().out)
    assert (row["routine"], row["nrhs"], row["status"]) == ("lstsq", str(columns or 1), "ok")


def test_less_than_full_rank_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["lstsq", "--random", "40x20", "--kind", "rankdef"]
    assert main([*argv, "-o", "x.npy"]) == 0
    out, err = capfd.readouterr()
    assert table(out)[0]["status"] == "rank-def"
    assert err.startswith("hetero-la: warning: rank-deficient matrix")
    assert err.count("\n") == 2
    assert read_matrix("x.npy").shape == (20, 1)
    assert main([*argv, "--no-check"]) == 3


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("upper", [False, True])
def test_solve_reads_the_triangle_that_is_named(
    capfd: pytest.CaptureFixture[str], known: str, upper: bool, dtype: str
) -> None:
    a = generate("spd", 30, dtype=dtype, cond=100)
    a = a.real @ a.real + 1j * a.imag @ a.imag.T if known == "sym" and dtype != "float64" else a
    b = generate("rands", 30, dtype=dtype, seed=1)[:, :2]
    write_matrix("a.npy", half(a, upper=upper))
    write_matrix("b.npy", b)
    argv = ["solve", "a.npy", "b.npy", "-o", "x.npy", "--assume-a", known, *["--upper"] * upper]
    assert main([*argv, "--ref"]) == 0
    assert np.allclose(a @ read_matrix("x.npy"), b)
    (row,) = table(capfd.readouterr().out)
    assert (row["routine"], row["status"]) == ("solve", "ok")
    assert row["ref time"].endswith("s")


def test_what_is_not_positive_definite_has_a_row_in_a_sweep(
    capfd: pytest.CaptureFixture[str],
) -> None:
    kinds = ["--kind", "rands,spd", "--n", "9", "--check", "--csv", "s.csv"]
    for line in ("cholesky", "solve --assume-a pos"):
        assert main(["sweep", *line.split(), *kinds]) == 1
        printed = table(capfd.readouterr().out)
        assert [row["status"] for row in printed] == ["not pos.def.", "ok"]
        assert (printed[0]["time"], printed[0]["ratio"]) == ("-", "-")
        assert "not pos.def." in Path("s.csv").read_text()


@pytest.mark.parametrize(
    ("line", "kind", "status"),
    [
        ("lstsq --m 30", "zero-first", ["rank-def", "ok"]),
        ("lstsq --m 30", "rankdef", ["rank-def", "ok"]),
        ("solve --assume-a sym", "zero-first", ["singular", "ok"]),
        ("qr", "rankdef", ["ok", "ok"]),
        ("qr --mode full", "colscale", ["ok", "ok"]),
    ],
)
def test_a_sweep_goes_on_past_what_cannot_be_solved(
    capfd: pytest.CaptureFixture[str], line: str, kind: str, status: list[str]
) -> None:
    argv = ["sweep", *line.split(), "--n", "8", "--kind", f"{kind},kms", "--check"]
    solved = status[0] == "ok" or kind == "rankdef"
    assert main(argv) == (0 if solved else 1)
    assert [row["status"] for row in table(capfd.readouterr().out)] == status


@pytest.mark.parametrize("routine", NAMES)
def test_sweep_runs_every_routine(capfd: pytest.CaptureFixture[str], routine: str) -> None:
    argv = ["sweep", routine, "--n", "5,20", "--nb", "8", "--dtype", "float32,complex128"]
    assert main([*argv, "--check", "--ref"]) == 0
    printed = table(capfd.readouterr().out)
    assert [row["routine"] for row in printed] == [routine] * 4
    assert {row["status"] for row in printed} == {"ok"}
    assert all(row["ref time"].endswith("s") for row in printed)


def test_right_hand_sides_of_lstsq_are_in_the_range(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    lstsq = hetero_la.lstsq_with_report
    monkeypatch.setattr(
        hetero_la, "lstsq_with_report", lambda a, b, **k: seen.append((a, b)) or lstsq(a, b, **k)
    )
    assert main(["lstsq", "--random", "30x10", "--nrhs", "2"]) == 0
    ((a, b),) = seen
    assert b.shape == (30, 2)
    assert np.linalg.matrix_rank(np.hstack([a, b])) == 10


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("lu", "getrf"), ("solve", "getrf"), ("solve --assume-a sym", "getrf"),
        ("lu --pivot none", "getrf_nopiv"), ("solve --assume-a pos", "potrf"),
        ("cholesky", "potrf"), ("qr", "geqrf"), ("lstsq", "geqrf"),
    ],
)  # fmt: skip
def test_where_gpus_ran_the_reference_is_cusolver(
    monkeypatch: pytest.MonkeyPatch, line: str, asked: str
) -> None:
    calls = []
    monkeypatch.setattr(cusolver, "cusolver_seconds", lambda *given: calls.append(given) or 1.25)
    problem = problems.read_or_generate(arguments.parse([*line.split(), "--random", "12", "--ref"]))
    for kind, virtual, here in (
        ("cpu", False, 1), ("gpu", True, 1), ("gpu", False, 0), ("gpu", False, 1),
    ):  # fmt: skip
        worker = WorkerInfo("one", kind, virtual=virtual)
        monkeypatch.setattr(runs, "gpu_count", lambda count=here: count)
        seconds = runs.reference_seconds(problem, SimpleNamespace(workers=[worker]))
        assert (seconds == 1.25) == (kind == "gpu" and not virtual and here == 1)
    assert calls == [(asked, problem.a, problem.b)]


def test_nothing_is_written_of_what_failed() -> None:
    assert main(["cholesky", "--random", "9", "--kind", "rands", "-o", "f.npz"]) == 2
    assert os.listdir() == []


def test_lu_in_two_levels(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lu", "--random", "48", "--nb", "4", "--coarse", "8", "--verbose"]) == 0
    said = capfd.readouterr()
    assert [row["status"] for row in table(said.out)] == ["ok"]
    assert "12 steps; the first 6 in blocks of 2" in said.err
    message = "coarse must be a multiple of nb, one tile size, but coarse=6 and nb=4"
    assert main(["lu", "--random", "48", "--nb", "4", "--coarse", "6"]) == 2
    assert message in capfd.readouterr().err
    assert main(["qr", "--random", "48", "--nb", "4", "--coarse", "8"]) == 2
    assert (
        "--coarse is for lu, solve, sweep and graph, and does nothing with qr"
        in capfd.readouterr().err
    )
