from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

import hetero_la
from hetero_la import _formats, matrices
from hetero_la.cli import main
from hetero_la.commands import arguments, interrupt, progress, runs
from hetero_la.files import read_matrix, write_matrix
from hetero_la.matrices import generate, kinds
from hetero_la.residuals import lu_ratio

HEADINGS = [
    "routine", "dtype", "kind", "m", "n", "nrhs", "nb", "look-ahead", "workers", "seconds",
    "Gflop/s", "ref s", "ratio", "status",
]  # fmt: skip
COMMAND = [sys.executable, "-m", "hetero_la"]


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def table(text: str) -> list[dict[str, str]]:
    """Rows of printed output by heading; columns are at least two blanks apart."""
    head, *lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines]


def refused(capfd: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one sentence with which `argv` is refused, with nothing half written."""
    before = sorted(os.listdir())
    assert main(argv) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("hetero-la: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert sorted(os.listdir()) == before
    return err.removeprefix("hetero-la: ").strip()


# --- results ---------------------------------------------------------------------------


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
    assert (row["routine"], row["nrhs"], row["ref s"], row["status"]) == ("solve", "3", "-", "ok")


def test_headings_are_the_same_for_all(capfd: pytest.CaptureFixture[str]) -> None:
    for argv in (["lu", "--random", "9"], ["solve", "--random", "9"], ["sweep", "lu", "--n", "9"]):
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
    assert err.count("\n") == 1
    assert read_matrix("f.npz", "lu")[10, 10] == 0


def test_a_bad_ratio_is_status_1(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs.residuals, "lu_ratio", lambda *_: 30.0)
    monkeypatch.setattr(runs.residuals, "solve_ratio", lambda *_: float("inf"))
    for argv in (["lu", "--random", "9"], ["solve", "--random", "9"]):
        assert main(argv) == 1
        assert table(capfd.readouterr().out)[0]["status"] == "FAILED"
    assert main(["sweep", "lu", "--n", "5,6", "--check"]) == 1
    assert [row["status"] for row in table(capfd.readouterr().out)] == ["FAILED", "FAILED"]


def test_unchecked_is_not_ok(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lu", "--random", "9", "--no-check"]) == 0
    (row,) = table(capfd.readouterr().out)
    assert (row["ratio"], row["status"]) == ("-", "unchecked")


def test_verbose_shows_plan_and_workers_beside_the_row(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lu", "--random", "50", "-v"]) == 0
    out, err = capfd.readouterr()
    assert len(table(out)) == 1
    assert "look-ahead" in err
    assert "busy" in err


def test_workers_are_those_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lu", "--random", "64", "--nb", "16", "--cpus", "1", "--blas-threads", "1"]) == 0
    assert table(capfd.readouterr().out)[0]["workers"] == "1cpu"


# --- sweep -----------------------------------------------------------------------------


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


# --- bad input -------------------------------------------------------------------------


def prepared() -> None:
    write_matrix("square.npy", generate("rand", 6))
    write_matrix("tall.npy", generate("rand", 6, 4))
    write_matrix("vector.npy", np.ones(5))
    write_matrix("stack.npy", np.ones((2, 3, 3)))
    write_matrix("complex.npy", generate("rand", 6, dtype="complex128"))
    write_matrix("half.npy", np.ones((4, 4), np.float16))
    write_matrix("two.npz", {"a": np.eye(3), "b": np.ones(3)})
    write_matrix("nan.npy", np.where(np.eye(6) == 1, np.nan, 1.0))
    write_matrix("inf.npy", np.where(np.eye(6) == 1, np.inf, 1.0))
    Path("text.npy").write_text("1 2 3\n")
    Path("folder").mkdir()
    with open("lies.npy", "wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**7, 10**7)}
        np.lib.format.write_array_header_1_0(file, header)
    if (zarr := _optional("zarr")) is not None:
        zarr.save_array("bare.zarr", np.eye(3))
        write_matrix("group.zarr", np.eye(3))


def _optional(name: str) -> types.ModuleType | None:
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


BAD = {
    "lu none.npy": "cannot read none.npy: No such file",
    "lu text.npy": "cannot read text.npy: it is not a .npy file",
    "lu square.csv": "cannot read square.csv: its suffix is none of .npy",
    "lu two.npz": "holds 2 arrays (a, b): choose one by its name",
    "lu two.npz --name c": "it has no array 'c'; it has a, b",
    "lu two.npz --name b": "two.npz holds an array of shape (3,), not a matrix",
    "lu stack.npy": "stack.npy holds an array of shape (2, 3, 3), not a matrix",
    "lu half.npy": "half.npy has dtype float16, which is not supported",
    "lu complex.npy --dtype float64": "would drop imaginary parts",
    "lu nan.npy": "nan.npy must not contain infs or NaNs",
    "lu inf.npy": "inf.npy must not contain infs or NaNs",
    "solve square.npy nan.npy": "nan.npy must not contain infs or NaNs",
    "lu lies.npy": "cannot read lies.npy: it should hold 800000000000000 bytes for its shape",
    "lu square.npy --kind rand": "--kind describes what --random makes",
    "lu square.npy -o f.npy": "cannot write f.npy: it cannot hold 2 arrays, which .npz",
    "lu square.npy -o none/f.npz": "there is no folder",
    "lu square.npy --nb 0": "nb",
    "lu square.npy --nb -3": "nb",
    "lu square.npy --lookahead -1": "lookahead",
    "lu square.npy --gpus 4096": "4096",
    "lu square.npy --preset nonsense": "there is no preset 'nonsense'; there are",
    "lu square.npy --panel left": "--panel: invalid choice: 'left'",
    "lu square.npy --colour red": "unrecognized arguments: --colour",
    "lu square.npy --no-chec": "unrecognized arguments: --no-chec",
    "lu square.npy --random 5": "either files or --random",
    "lu square.npy --seed 3": "--seed describes what --random makes, and does nothing with a file",
    "lu square.npy --cond 3": "--cond describes what --random makes",
    "solve square.npy vector.npy --nrhs 3": "--nrhs describes what --random makes",
    "lu square.npy --name a": "cannot read square.npy: it holds one array, which has no name",
    "solve square.npy square.npy --name-b a": "it holds one array, which has no name",
    "lu --random 9 --name a": "--name chooses an array of a file, and does nothing with --random",
    "solve --random 9 --name-b a": "--name-b chooses an array of a file",
    "lu bare.zarr --name b": "cannot read bare.zarr: it holds one array, which has no name",
    "lu group.zarr --name b": "cannot read group.zarr: it has no array 'b'; it has a",
    "lu": "lu needs a file or --random N",
    "lu --random x": "--random: invalid size value: 'x'",
    "lu --random 3x": "--random: invalid size value: '3x'",
    "lu --random x3": "--random: invalid size value: 'x3'",
    "lu --random 3x4x5": "--random: invalid size value: '3x4x5'",
    "lu --random -1": "--random",
    "lu --random 9 --kind nonsense": "--kind: invalid choice: 'nonsense'",
    "lu --random 9 --cond 10": "cond=10.0 needs kind 'svd'",
    "lu --random 9 --dtype float16": "--dtype: invalid choice: 'float16'",
    "lu --random 9x4 --kind wilkinson": "'wilkinson' is square only, but 9 x 4",
    "lu --random 3000000": "3000000 x 3000000 float64 matrix needs 144000.0 GB of memory, and",
    "solve square.npy": "solve needs two files, A and B, or --random N",
    "solve tall.npy vector.npy": "",
    "solve square.npy vector.npy": "",
    "solve square.npy stack.npy": "stack.npy holds an array of shape (2, 3, 3)",
    "solve --random 9 --kind zero-first": "",
    "solve --random 9x8": "",
    "sweep lu --n a": "--n: invalid list of numbers value: 'a'",
    "sweep lu --n 9:3": "--n: invalid list of numbers value: '9:3'",
    "sweep lu --n 9 --kind rand,foo": "'foo' is none of rand",
    "sweep lu --n 1:2:3:4": "--n: invalid list of numbers value: '1:2:3:4'",
    "sweep lu --n 1:9:0": "--n: invalid list of numbers value: '1:9:0'",
    "sweep lu --n 9,7:3": "--n: invalid list of numbers value: '9,7:3'",
    "sweep lu --n 0:99999999999": "--n: '0:99999999999' lists more than 10000 numbers",
    "sweep lu --n 0:9999999999999999999999": "lists more than 10000 numbers",
    "sweep lu --n 9 --csv none/s.csv": "cannot write none/s.csv: there is no folder",
    "sweep lu --n 9 --csv folder": "cannot write folder: it is a folder",
    "sweep lu --n 9 --csv /proc/s.csv": "cannot write /proc/s.csv: ",
    "lu square.npy -o /proc/f.npz": "cannot write /proc/f.npz: ",
    "sweep lu --n 9 --nrhs 2": "--nrhs is for solve",
    "sweep solve --n 9 --m 2": "--m is for lu",
    "nonsense": "invalid choice: 'nonsense'",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_sentence(capfd: pytest.CaptureFixture[str], line: str) -> None:
    prepared()
    if ".zarr" in line:
        pytest.importorskip("zarr")
    assert BAD[line] in refused(capfd, *line.split())


@pytest.mark.parametrize(
    ("argv", "copies"),
    [
        ("lu --no-check", 1), ("lu", 2), ("lu --ref", 3), ("solve", 2), ("solve --ref", 3),
        ("sweep lu --n 9", 2), ("sweep lu --n 9 --ref", 3), ("sweep solve --n 9", 2),
    ],
)  # fmt: skip
def test_memory_for_the_run_is_required_before_the_matrix_is_made(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: str, copies: int
) -> None:
    there = 9 * 9 * 8 * copies - 1
    monkeypatch.setattr(_formats, "available_memory", lambda: there)
    monkeypatch.setattr(matrices, "generate", lambda *_, **__: pytest.fail("it is made"))
    assert main([*argv.split(), *([] if "sweep" in argv else ["--random", "9"])]) == 2
    assert "a run on a 9 x 9 float64 matrix needs" in capfd.readouterr().err


def test_memory_for_the_run_is_required_before_a_file_is_read(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_matrix("a.npy", np.eye(9))
    monkeypatch.setattr(_formats, "available_memory", lambda: 2 * 9 * 9 * 8 - 1)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it is read"))
    assert refused(capfd, "lu", "a.npy").startswith("cannot read a.npy: it needs")


@pytest.mark.parametrize("name", ["nan.npy", "inf.npy"])
def test_what_is_not_finite_is_refused_by_that_name(
    capfd: pytest.CaptureFixture[str], name: str
) -> None:
    prepared()
    assert re.search(r"nan|inf|finite", refused(capfd, "lu", name), re.IGNORECASE)


@pytest.mark.parametrize("line", ["solve tall.npy vector.npy", "solve square.npy vector.npy"])
def test_shapes_that_do_not_fit_are_named(capfd: pytest.CaptureFixture[str], line: str) -> None:
    prepared()
    sentence = refused(capfd, *line.split())
    assert ("(6, 4)" if "tall" in line else "(5,)") in sentence


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("the first\n  line and more"), 2),
        (MemoryError("no room"), 2),
        (np.linalg.LinAlgError("singular"), 2),
        (hetero_la.tiles.errors.RunAbortedError("a worker died"), 1),
    ],
)
def test_an_error_of_a_run_is_one_sentence(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    expected: int,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(hetero_la, "lu_factor", broken)
    assert main(["lu", "--random", "5", "-o", "f.npz"]) == expected
    assert capfd.readouterr() == ("", f"hetero-la: {' '.join(str(error).split())}\n")
    assert os.listdir() == []


def test_a_bug_is_not_taken_for_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(hetero_la, "lu_factor", broken)
    with pytest.raises(KeyError):
        main(["lu", "--random", "5"])


# --- progress --------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_appears_after_two_seconds_and_goes() -> None:
    now = 0.0
    stream = Terminal()
    bar = progress.Bar("lu", stream, clock=lambda: now)
    now = 1.9
    bar.update(1, 10)
    assert stream.getvalue() == ""
    now = 3.0
    bar.update(5, 10)
    assert f"lu [{'#' * 15}{'.' * 15}]  50%, 3 s, 3 s left" in stream.getvalue()
    drawn = stream.getvalue()
    now = 3.1
    bar.update(6, 10)
    assert stream.getvalue() == drawn
    bar.clear()
    now = 9.0
    bar.update(9, 10)
    assert stream.getvalue() == drawn + "\r\x1b[K"


def test_the_bar_watches_runs_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[Callable[[float, float], None]] = []

    @contextlib.contextmanager
    def observe(callback: Callable[[float, float], None]) -> Iterator[None]:
        watched.append(callback)
        yield

    monkeypatch.setattr(progress, "observe", observe)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.shown("lu"):
        assert watched == []
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "_DELAY", -1.0)
    with progress.shown("lu"):
        watched[0](1.0, 4.0)
        assert "25%" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().endswith("\r\x1b[K")


# --- the process -----------------------------------------------------------------------


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *argv], capture_output=True, text=True, timeout=120)


def test_the_command_runs_on_dask_and_ends() -> None:
    ended = run("lu", "--random", "200", "--nb", "64", "--virtual-gpus", "2", "--panel", "cpu")
    assert ended.stderr == ""
    assert ended.returncode == 0
    assert table(ended.stdout)[0]["status"] == "ok"


def test_the_command_refuses_in_one_line() -> None:
    ended = run("lu", "--random", "200", "--gpus", "4096")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert re.fullmatch(r"hetero-la: .*4096.*\n", ended.stderr)


def test_help_lists_kinds_and_exit_status() -> None:
    assert "130  interrupted" in run("--help").stdout
    shown = run("lu", "--help").stdout
    assert all(f"  {name} " in shown for name in kinds())


def test_info_names_devices_and_libraries() -> None:
    ended = run("info")
    assert ended.returncode == 0
    assert f"numpy          {np.__version__}" in ended.stdout
    for word in ("cpu cores", "gpus", "workers by default", "presets", "laptop"):
        assert word in ended.stdout


@pytest.mark.parametrize("where", ["run", "blocked call"])
def test_ctrl_c_ends_the_process_within_seconds(where: str, tmp_path: Path) -> None:
    """Also inside one long call of a library, which no Python exception can leave."""
    program = "import sys; from hetero_la.cli import main; sys.exit(main())"
    if where == "blocked call":
        # A call that holds on until it is done, as LAPACK's do, while a write has begun.
        program = (
            "import ctypes, sys, hetero_la\n"
            "from hetero_la import files\n"
            "from hetero_la.cli import main\n"
            "def hang(*_, **__):\n"
            "    with files.replacing(files.Path('f.npz')) as begun:\n"
            "        begun.write_bytes(b'half')\n"
            "        libc = ctypes.CDLL(None)\n"
            "        lock = ctypes.create_string_buffer(64)\n"
            "        libc.pthread_mutex_lock(lock)\n"
            "        libc.pthread_mutex_lock(lock)\n"
            "hetero_la.lu_factor = hang\n"
            "sys.exit(main())"
        )
    argv = ["sweep", "lu", "--n", "900", "--repeat", "100000"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program, *argv],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()  # the headings: the runs begin
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - start < 10
    assert process.returncode == 130
    assert err == "hetero-la: interrupted\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("line", ["lu --random 50", "solve --random 50", "lu --random 50 -v"])
@pytest.mark.parametrize("closed", ["2>&-", "0<&- 2>&-"])
def test_a_closed_stderr_does_no_harm(line: str, closed: str) -> None:
    shell = f"exec {shlex.join([*COMMAND, *line.split()])} {closed}"
    ended = subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 0
    assert table(ended.stdout)[0]["status"] == "ok"


def test_a_closed_stderr_is_nobody_elses(tmp_path: Path) -> None:
    """What opens a pipe or a file must not get the number 2."""
    program = (
        "import os\n"
        "from hetero_la.commands import interrupt\n"
        "interrupt.stop_within_seconds()\n"
        "interrupt.announce()\n"
        "print(os.readlink('/proc/self/fd/2'))"
    )
    shell = f"exec {shlex.join([sys.executable, '-c', program])} 2>&-"
    ended = subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, text=True, timeout=60)
    assert ended.stdout == "/dev/null\n"


def interrupted(program: str, *argv: str, pauses: Sequence[float]) -> tuple[int, str]:
    """Exit status and stderr of a program that prints "ready" and has a Ctrl-C after each pause."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program, *argv],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    for pause in pauses:
        time.sleep(pause)
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    return process.returncode, err


@pytest.mark.parametrize("pause", [0.0, 0.005, 0.02, 0.05, 0.1, 0.3])
def test_several_ctrl_c_are_as_one(pause: float, tmp_path: Path) -> None:
    program = "import sys; from hetero_la.cli import main; sys.exit(main())"
    argv = ["sweep", "lu", "--n", "400", "--repeat", "9999", "--cpus", "1", "--csv", "s.csv"]
    ended = interrupted(program, *argv, pauses=[0.5, pause, pause, pause])
    assert ended == (130, "hetero-la: interrupted\n")
    assert set(os.listdir(tmp_path)) <= {"s.csv"}


def test_ctrl_c_while_libraries_are_imported_is_one_line() -> None:
    """The package's own imports come before any of its code, and are left out here."""
    program = (
        "import sys, types\n"
        f"package = types.ModuleType('hetero_la')\n"
        f"package.__path__ = {list(hetero_la.__path__)}\n"
        "sys.modules['hetero_la'] = package\n"
        "from hetero_la.cli import main\n"
        "assert not {'numpy', 'scipy', 'dask'} & set(sys.modules)\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'numpy':\n"
        "            print('ready')\n"
        "            import time\n"
        "            time.sleep(20)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "sys.exit(main())"
    )
    ended = interrupted(program, "lu", "--random", "9", pauses=[0.1, 0.01, 0.01])
    assert ended == (130, "hetero-la: interrupted\n")


@pytest.mark.parametrize("stage", ["atexit", "destructor"])
def test_ctrl_c_while_python_ends_is_at_most_one_line(stage: str) -> None:
    program = (
        "import atexit, sys, time\n"
        "from hetero_la.cli import main\n"
        "def late():\n"
        "    print('ready')\n"
        "    time.sleep(0.5)\n"
        "class Late:\n"
        "    __del__ = lambda self, late=late: late()\n"
        "status = main()\n"
        "if sys.argv[-1] == '--check':\n"
        "    atexit.register(late)\n"
        "else:\n"
        "    sys.late = Late()\n"
        "sys.stdout.flush()\n"
        "sys.exit(status)"
    )
    argv = ["lu", "--random", "9"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program, *argv, *["--check"] * (stage == "atexit")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    while process.stdout.readline() not in ("ready\n", ""):
        pass
    for _ in range(3):
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    # Once Python has dropped its handlers the run is over, and has been reported.
    expected = (130, "hetero-la: interrupted\n") if stage == "atexit" else (0, "")
    assert (process.returncode, err) == expected


@pytest.mark.parametrize("pause", [0.0, 0.05, 0.2])
def test_ctrl_c_while_a_store_is_written_leaves_nothing(pause: float, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    program = (
        "import sys, time, hetero_la._formats as formats\n"
        "from hetero_la.cli import main\n"
        "write = formats._write_zarr\n"
        "def ready(path, arrays):\n"
        "    print('ready')\n"
        "    write(path, arrays)\n"
        "    time.sleep(30)\n"  # a fast disk must not be done before the signal
        "old = formats.FORMATS['.zarr']\n"
        "formats.FORMATS['.zarr'] = formats.Format(old.read, ready, True, 'zarr')\n"
        "sys.exit(main())"
    )
    argv = ["lu", "--random", "3000", "--no-check", "-o", "out.zarr"]
    ended = interrupted(program, *argv, pauses=[pause, 0.02])
    assert ended == (130, "hetero-la: interrupted\n")
    assert os.listdir(tmp_path) == []


# --- what the README says --------------------------------------------------------------

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.fixture
def readme() -> str:
    if not README.exists():
        pytest.skip("the README is not beside the tests")
    return README.read_text(encoding="utf-8")


def test_command_lines_in_the_readme_are_understood(readme: str) -> None:
    lines = re.findall(r"^(?:.*/)?hetero-la (.*)$", readme, re.MULTILINE)
    assert len(lines) >= 6
    for line in lines:
        assert arguments.parse(shlex.split(line, comments=True)).run


def test_python_in_the_readme_runs(readme: str, capfd: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    a, b, x, factors = (np.asarray(names[key]) for key in ("a", "b", "x", "piv"))
    assert np.allclose(a @ x, b)
    assert factors.shape == (2000,)
    assert "busy" in capfd.readouterr().out
