"""What all commands print: JSON, quiet runs, help, and ``hetero-la bench``."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import hetero_la
from hetero_la.bench import chart, measuring
from hetero_la.bench.contenders import FUNCTIONS, on_host, random_problem
from hetero_la.bench.measuring import OURS, Contest, Measured
from hetero_la.cli import arguments
from hetero_la.cli.commands import bench
from hetero_la.cli.common import output
from hetero_la.cli.main import main
from hetero_la.pictures import suffix
from hetero_la.scheduler.machine.this_machine import profile_path
from tests.command_line import in_own_folder, refused, table  # noqa: F401  (a fixture)
from tests.machine import kept

SIMULATED = "simulate lu --n 9000 --nb 500 --machine dgx-h200 --scaling strong"
#: Commands, and the entries of their documents beside those of all.
DOCUMENTS = {
    "lu --random 20 -o f.npz": ["rows"],
    "sweep solve --n 5,6 --check": ["rows"],
    "graph qr --n 90 --nb 30 --mode economic -o g.svg": ["graph", "plan"],
    SIMULATED: ["forecasts"],
    "info": ["devices", "libraries", "runs"],
    "completion bash": ["shell", "script"],
    "tune lu --n 60 --nb 20,60": ["candidates", "best"],
    "bench --seconds 1 --first 8 --functions solve -o b.svg": ["machine", "versions", "rows"],
}


@pytest.fixture(autouse=True)
def own_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that write a profile leave none to other tests."""
    monkeypatch.setenv("HETERO_LA_PROFILE", str(tmp_path / "profile.json"))


def document(capfd: pytest.CaptureFixture[str], line: str) -> dict[str, Any]:
    assert main([*line.split(), "--json"]) == 0
    found: dict[str, Any] = json.loads(
        capfd.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )
    return found


@pytest.mark.parametrize("line", DOCUMENTS)
def test_json_is_one_document_on_stdout(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    if "tune" in line:
        kept()
    found = document(capfd, line)
    head, tail = ["command", "version", "status"], ["warnings", "wrote"]
    assert [*found] == [*head, *DOCUMENTS[line], *tail]
    assert found["command"] == line.split()[0]
    assert (found["version"], found["status"], found["warnings"]) == (hetero_la.__version__, 0, [])
    for one in found["wrote"]:
        assert Path(one["path"]).stat().st_size == one["bytes"]
    written = [line.split()[-1]] if "-o" in line else [str(profile_path())] * ("tune" in line)
    written += ["b-table.md"] * ("bench" in line)
    assert [one["path"] for one in found["wrote"]] == written


def test_a_document_holds_figures_not_texts(capfd: pytest.CaptureFixture[str]) -> None:
    (row,) = document(capfd, "lu --random 20 --nb 8")["rows"]
    assert row.keys() >= {"m", "n", "nb", "seconds", "gflops", "ratio", "status"}
    assert isinstance(row["seconds"], float)
    assert (row["m"], row["nb"], row["ref_seconds"]) == (20, "8", None)
    rows = document(capfd, SIMULATED)["forecasts"]
    assert [row["gpus"] for row in rows] == [1, 2, 4, 8]
    parts = sum(rows[0]["seconds_by_part"].values())
    assert parts == pytest.approx(rows[0]["predicted_seconds"])
    kept()
    found = document(capfd, "tune lu --n 60 --nb 20,60")
    seconds = [one["seconds"] for one in found["candidates"]]
    assert seconds == sorted(seconds)
    assert found["best"] == found["candidates"][0]


def test_what_is_not_a_number_is_null_and_warnings_are_kept(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hetero_la.testing.residuals.lu_ratio", lambda *_: float("nan"))
    assert main(["lu", "--random", "9", "--kind", "zero-last", "--json"]) == 1
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert (found["status"], found["rows"][0]["ratio"]) == (1, None)
    assert found["rows"][0]["status"] == "FAILED"
    assert err == f"hetero-la: warning: {found['warnings'][0]}\n"


def test_an_error_leaves_stdout_empty(capfd: pytest.CaptureFixture[str]) -> None:
    assert "cannot read none.npy" in refused(capfd, "lu", "none.npy", "--json")


@pytest.mark.parametrize(
    ("line", "lines"),
    [("lu --random 20 -o f.npz", 2), ("graph lu --n 90 --nb 30 -o g.svg", 0),
     ("tune lu --n 60 --nb 20,60", 1), ("sweep lu --n 5,6 --csv s.csv", 3)],
)  # fmt: skip
def test_quiet_prints_results_or_nothing(
    line: str, lines: int, capfd: pytest.CaptureFixture[str]
) -> None:
    if "tune" in line:
        kept()
    assert main([*line.split(), "-q"]) == 0
    out, err = capfd.readouterr()
    assert (len(out.splitlines()), err) == (lines, "")


def test_tune_lists_the_best_first(capfd: pytest.CaptureFixture[str]) -> None:
    kept()
    assert main(["tune", "lu", "--n", "60", "--nb", "20,30,60", "--lookahead", "1"]) == 0
    out, err = capfd.readouterr()
    *rows, best = out.splitlines()
    found = table("\n".join(rows))
    assert found[0]["beside the best"] == "best"
    assert all(row["beside the best"].startswith("+") for row in found[1:])
    assert best.startswith(f"best: nb = {found[0]['nb']}, look-ahead 1, ")
    assert err.startswith(f"wrote {profile_path()}, ")


@pytest.mark.parametrize(
    ("argv", "said"),
    [("qr --random 9 --qr-panel cholesky", "--qr-panel did nothing: it is for GPUs, of which none"),
     ("lu --random 9 --ib 8", "--ib did nothing: it is for GPUs, of which none took part"),
     ("lu --random 9 --lookahead 3", "--lookahead did nothing: there is one step only"),
     ("lu --random 61 --nb 4 --coarse 8 --memory 32000", "--coarse did nothing: only some columns"),
     ("lu --random 9 --lookahead 3 --nb 4", ""),
     ("solve --random 9 --nb 9 --inverse-bound 1", "")],
)  # fmt: skip
def test_what_did_nothing_is_said(argv: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(argv.split()) == 0
    err = capfd.readouterr().err
    assert err.startswith(said)
    assert ("did nothing" in err) == bool(said)


# --- help, from which the reference is made


PARSER = arguments.build_parser()


@pytest.mark.parametrize("name", PARSER.commands)
def test_every_command_has_examples_and_every_option_help(name: str) -> None:
    parser = PARSER.commands[name]
    lines = (parser.epilog or "").splitlines()
    examples = [line for line in lines if line.startswith(f"  hetero-la {name}")]
    assert examples
    for line in examples:
        words = shlex.split(line.partition(">")[0])[1:]
        assert arguments.parse(words).run
    for action in parser._actions:
        assert action.help
        assert action.help != argparse.SUPPRESS


def test_numbers_of_a_table_are_never_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "console", lambda stream: Console(file=stream, width=12))
    cells = ("100000", "1.52 Pflop/s", "0.0346")
    output.print_table(output.new_table(["n", "rate", "ratio"], [cells]))
    assert "  ".join(cells) in capsys.readouterr().out


@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize("name", PARSER.commands)
def test_help_fits_the_terminal(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, PARSER.commands[name].format_help().splitlines())) <= columns


def test_help_goes_on_below_the_second_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = PARSER.format_help().splitlines()
    begin = lines.index("exit status:") + 1
    heads = [line[2:7].strip() for line in lines[begin:]]
    assert [head for head in heads if head] == ["0", "1", "2", "3", "130"]
    assert heads.count("") >= 2  # lines that go on


# --- bench


def test_bench_measures_what_is_installed(capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "--seconds", "1", "--first", "8", "--functions", "solve,qr"]
    assert main(argv) == 0
    out, err = capfd.readouterr()
    title, rows = out.split("\n\n")
    assert title.startswith(f"hetero_la {hetero_la.__version__} beside SciPy ")
    found = table(rows)
    assert {row["function"] for row in found} == {"solve", "qr"}
    assert found[0]["n"] == "8"
    assert all(row["SciPy"].endswith("s") and row["speed-up"].endswith(" x") for row in found)
    assert err.startswith("wrote hetero-la-bench.png, ")
    assert Path("hetero-la-bench.png").read_bytes().startswith(b"\x89PNG")
    shared = Path("hetero-la-bench-table.md").read_text(encoding="utf-8")
    assert shared.startswith(f"{title}\n\n| function | n |")
    assert shared.count("\n| ") == 1 + len(found)


def test_bench_needs_no_matplotlib(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suffix.importlib.util, "find_spec", lambda name: None)
    argv = ["bench", "--seconds", "1", "--first", "8", "--functions", "inv"]
    assert main(argv) == 0
    assert capfd.readouterr().err.startswith("there will be no picture: a chart needs")
    assert [path.name for path in Path().iterdir()] == ["hetero-la-bench-table.md"]
    assert "a chart needs the matplotlib" in refused(capfd, *argv, "-o", "b.png")


def test_an_interrupted_bench_shows_what_it_has_measured(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_for(*_: object) -> Iterator[list[Measured]]:
        yield [Measured("host", "solve", 8, who, (1e-3,)) for who in ("SciPy", OURS)]
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "measure_for", measure_for)
    assert main(["bench", "--functions", "solve"]) == 130
    out, err = capfd.readouterr()
    assert [row["n"] for row in table(out.split("\n\n")[1])] == ["8"]
    assert err.endswith("that table, to be shared\nhetero-la: interrupted\n")
    assert [path.name for path in Path().iterdir()] == ["hetero-la-bench-table.md"]


def test_bench_stops_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Slow(Contest):
        def measure(self, n: int, series: int = 5) -> list[Measured]:
            nonlocal now
            now += n
            self.next_seconds = 8.0 * n
            return [Measured(self.where, self.function, n, OURS, (float(n),))]

    monkeypatch.setattr(measuring, "Contest", Slow)
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: now)
    found = [
        rows[0].n for rows in measuring.measure_for(18, ["solve"], ["host"], False, str, first=1)
    ]
    assert found == [1, 2]  # 4 is expected to take 16 s, from second 3 on
    assert now == 3


def test_what_is_done_once_is_not_expected_to_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are loaded at a first call; the next order has eight times the work in each call."""
    now, loaded = 0.0, False

    def call() -> None:
        nonlocal now, loaded
        now += 0.5 if loaded else 30.0
        loaded = True

    monkeypatch.setattr(measuring.time, "perf_counter", lambda: now)
    contest = Contest("host", "solve", lambda n: {OURS: call})
    (row,) = contest.measure(8, series=2)
    assert row.median == 0.5
    assert contest.next_seconds == pytest.approx(30.5 + 4 * 8 * 0.5)


@pytest.mark.parametrize("busy", [True, False])
def test_turns_begin_when_no_thread_computes(monkeypatch: pytest.MonkeyPatch, busy: bool) -> None:
    now = used = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now, used
        now += seconds
        used += seconds * busy

    for name, function in (
        ("perf_counter", lambda: now), ("process_time", lambda: used), ("sleep", sleep),
    ):  # fmt: skip
        monkeypatch.setattr(measuring.time, name, function)
    measuring.take_turns({"a": int, "b": list}, 3, print, rest=0.1)
    assert now == pytest.approx(6 * 0.1 if busy else 6 * 0.005, abs=0.01 * 6)
    assert (now > 0.5) == busy


def test_who_fails_or_is_hopeless_is_left_out_later() -> None:
    said: list[str] = []
    calls: list[str] = []

    def contenders(n: int) -> dict[str, Any]:
        def failing() -> None:
            calls.append("failing")
            raise MemoryError("no room")

        return {OURS: lambda: calls.append(OURS), "failing": failing}

    contest = Contest("host", "solve", contenders, said.append)
    assert [row.who for row in contest.measure(8, series=1)] == [OURS]
    assert [row.who for row in contest.measure(16, series=1)] == [OURS]
    assert (calls.count("failing"), said) == (1, ["failing: no room"])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_contenders_compute_the_same(function: str) -> None:
    m, b = random_problem(function, 12)
    theirs, ours = (call() for call in on_host(function, m, b, gpu=False).values())
    first, second = (found[0] if isinstance(found, tuple) else found for found in (theirs, ours))
    if function == "cho_factor":  # the other triangle is not part of the factor
        first, second = np.tril(first), np.tril(second)
    assert np.allclose(first, second)


def test_the_chart_has_a_panel_for_each_function(tmp_path: Path) -> None:
    rows = [
        Measured(where, function, n, who, (1e-9 * n**3,))
        for where in ("host", "device")
        for function in ("lu_factor", "qr", "inv")
        for n in (64, 128)
        for who in (OURS, "CuPy")
    ]
    chart.draw(rows, tmp_path / "a.svg", "a machine")
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.count(">qr, NumPy arrays<") == 1
    assert drawn.count(", arrays on the GPU<") == 3
    assert "the fastest library changes" not in drawn
    rows.append(Measured("host", "qr", 256, OURS, (0.5,)))
    rows.append(Measured("host", "qr", 256, "CuPy", (1.0,)))
    chart.draw(rows, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text().count(">the fastest library changes<") == 1
    places = {row.where for row in rows}
    assert len(places) == 2
    groups = [[row for row in rows if (row.function, row.where) == ("qr", w)] for w in places]
    head, _ = bench._cells(groups)
    assert head[:3] == ["function", "arrays", "n"]
