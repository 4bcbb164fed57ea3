"""``hetero-la graph``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hetero_la
from hetero_la.cli.main import main
from tests.command_line import in_own_folder, refused  # noqa: F401  (a fixture)


@pytest.mark.parametrize(
    ("argv", "path", "found"),
    [
        (["lu", "--n", "400", "--nb", "100"], "a.svg", ">getrf<"),
        (["lu", "--n", "400", "--m", "100", "--nb", "100"], "a.dot", "getrf\\nstep 0 column 0"),
        (["qr", "--n", "4000", "--nb", "100", "--cpus", "2"], "a.html", ">cpu1<"),
        (["solve", "--n", "300", "--nrhs", "200", "--nb", "100"], "a.svg", ">rhs 1<"),
        (["cholesky", "--n", "300", "--nb", "100", "--granularity", "tile"], "a.svg", ">gemm_nc<"),
        (["lu", "--n", "0", "--nb", "100"], "a.html", "0 tasks"),
    ],
)
def test_a_graph_is_drawn_and_its_plan_shown(
    argv: list[str], path: str, found: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["graph", *argv, "-o", path]) == 0
    assert found in Path(path).read_text()
    out, err = capfd.readouterr()
    assert out.lower().startswith(f"{argv[0]} of ")
    assert err.startswith(f"wrote {path}, ")
    if path.endswith((".svg", ".html")):  # the count of the picture is that of the text
        (drawn,) = set(re.findall(r">(\d+ tasks?); critical path", Path(path).read_text()))
        assert f"graph, {drawn}; critical path" in err
        assert drawn in out
        if path.endswith(".svg"):  # small enough for a box of each task
            boxes = Path(path).read_text().count('data-link="task=')
            assert drawn.startswith(f"{boxes} task")


@pytest.mark.parametrize(
    ("argv", "start", "heading"),
    [(["qr", "--mode", "economic"], "qr with Q of a 400 x 400 float64 matrix with 400 columns",
      "QR with Q of 400 × 400, tiles of 100, "),
     (["qr"], "qr of a 400 x 400 ", "QR of 400 × 400, tiles of 100, "),
     (["solve", "--assume-a", "pos"], "solve by Cholesky of a 400 x 400 ",
      "Solve by Cholesky of 400 × 400 with 1 column beside it, tiles of 100, ")],
)  # fmt: skip
def test_what_is_drawn_is_what_those_options_run(
    argv: list[str], start: str, heading: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["graph", *argv, "--n", "400", "--nb", "100", "-o", "a.svg"]) == 0
    assert capfd.readouterr().out.startswith(start)
    assert f"<title>{heading}" in Path("a.svg").read_text(encoding="utf-8")


def test_least_squares_of_a_wide_matrix_are_the_shortest_solution(
    capfd: pytest.CaptureFixture[str],
) -> None:
    argv = ["graph", "lstsq", "--n", "400", "--m", "100", "--nb", "100", "-o", "a.svg"]
    assert main(argv) == 0
    assert ">geqrf<" in Path("a.svg").read_text()
    assert capfd.readouterr().out.startswith("minimum-norm lstsq of a 100 x 400 float64 matrix")


def test_panels_may_go_to_a_cpu_beside_gpus_that_are_not_there() -> None:
    argv = ["graph", "lu", "--n", "400", "--nb", "100", "--gpus", "2", "--cpus", "1"]
    assert main([*argv, "--panel", "cpu", "-o", "a.dot"]) == 0
    lines = Path("a.dot").read_text().splitlines()
    workers = {
        kind: {line.split("\\n")[2].split('"')[0] for line in lines if f'"{kind}\\n' in line}
        for kind in ("getrf", "gemm")
    }
    assert workers == {"getrf": {"cpu0"}, "gemm": {"gpu0", "gpu1"}}


def test_no_picture_is_left_where_the_plan_cannot_be_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(self: hetero_la.Plan) -> str:
        raise ValueError("it cannot be explained")

    monkeypatch.setattr(hetero_la.Plan, "explain", broken)
    argv = ["graph", "lu", "--n", "400", "--nb", "100", "-o", "a.svg"]
    assert refused(capfd, *argv) == "it cannot be explained"


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["lu", "--n", "400", "--nb", "100", "-o", "a.pdf"], "must end in one of .svg, .png"),
        (["lu", "--n", "400", "--nb", "100", "-o", "no/a.svg"], "there is no folder"),
        (["lu", "--n", "1000000", "--nb", "64", "-o", "a.svg"], "15625 x 15625 tiles make about"),
        (["lu", "--n", "40000", "--nb", "100", "--granularity", "tile", "-o", "a.svg"],
         "tiles make about"),
        (["lu", "--n", "400", "--nb", "100", "--gpus", "100000", "-o", "a.svg"],
         "gpus must be at most 1024, not 100000"),
        (["lu", "--n", "40", "--nb", "9", "--granularity", "tile", "--lookahead", "2",
          "-o", "a.svg"],
         "--lookahead orders columns, and does nothing with --granularity tile"),
        (["lu", "--n", "400", "--nb", "0", "-o", "a.svg"], "--nb"),
        (["lu", "--n", "400", "--nb", "100"], "required"),
        (["cholesky", "--n", "400", "--m", "3", "--nb", "100", "-o", "a.svg"], "--m is for"),
        (["qr", "--n", "400", "--nrhs", "3", "--nb", "100", "-o", "a.svg"], "--nrhs is for"),
        (["lu", "--n", "400", "--nb", "100", "--panel", "gpu", "--cpus", "1", "-o", "a.svg"],
         "needs a GPU worker"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_at_once(
    capfd: pytest.CaptureFixture[str], argv: list[str], sentence: str
) -> None:
    assert sentence in refused(capfd, "graph", *argv)


def test_contradictory_options_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    argv = "graph solve --n 40 --nb 10 --assume-a pos --pivot none -o a.svg"
    assert "--pivot is for LU" in refused(capfd, *argv.split())
