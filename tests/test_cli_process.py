from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero_la
from hetero_la.cli.common.command import NAMES
from hetero_la.cli.main import main
from hetero_la.execution import progress
from hetero_la.scheduler.run.job import this_process
from hetero_la.testing.matrices import kinds
from tests.command_line import (
    in_own_folder,  # noqa: F401  (a fixture)
    table,
)

COMMAND = [sys.executable, "-m", "hetero_la"]


# --- progress ---------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A wide terminal, which is made stderr."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "xterm")
    return stream


def drawn(stream: Terminal) -> str:
    """What was drawn, without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", stream.getvalue())


def run_at(
    share: float, title: str = "lu of a 9 x 9 float64 matrix", **more: Any
) -> dict[str, Any]:
    """What is seen of a run of this process."""
    return {
        "title": title, "owner": this_process(), "share": share, "seconds": 2.4, "ago": 0.0,
        "rate": 2e9, "left": 61.0, **more,
    }  # fmt: skip


def test_a_bar_appears_after_two_seconds_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = wide_terminal(monkeypatch)
    now = 100.0
    with progress.ProgressBar(progress._Terminal(), clock=lambda: now) as bar:
        now += 1.9
        bar.show([run_at(0.1, seconds=1.0)])
        assert terminal.getvalue() == ""
        now += 0.6
        bar.show([run_at(0.1, "another's", owner="process 1 of elsewhere"), run_at(0.5)])
        bar.show([run_at(0.9, "an earlier one", seconds=2.0, ago=60.0)])
    shown = terminal.getvalue()
    assert re.search(
        r"lu of a 9 x 9 float64 ━+.* +50% 2 Gflop/s 0:00:02 left: 0:01:01", drawn(terminal)
    )
    assert "another's" not in shown
    assert "earlier" not in shown
    assert shown.endswith("\x1b[2K")  # the line is empty again
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")  # and the cursor is there


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_rate_and_time_left_stay_where_a_terminal_is_narrow(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    terminal = wide_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(columns))
    with progress.ProgressBar(progress._Terminal(), clock=iter([0.0, 9.0, 9.0]).__next__) as bar:
        bar.show([run_at(0.5)])
    assert "50% 2 Gflop/s 0:00:02 left: 0:01:01" in drawn(terminal)


def test_there_is_a_bar_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_DELAY", -1.0)
    lu = ["lu", "--random", "60", "--nb", "16"]
    for quiet, shown in (([], True), (["-q"], False)):
        terminal = wide_terminal(monkeypatch)
        assert main([*lu, *quiet]) == 0
        assert ("100%" in drawn(terminal)) is shown
    monkeypatch.setattr(sys, "stderr", plain := io.StringIO())
    with hetero_la.progress():
        hetero_la.lu_factor(np.eye(60), nb=16)
    assert plain.getvalue() == ""


@pytest.mark.parametrize("routine", NAMES)
def test_every_routine_moves_the_bar(monkeypatch: pytest.MonkeyPatch, routine: str) -> None:
    terminal = wide_terminal(monkeypatch)
    monkeypatch.setattr(progress, "_DELAY", -1.0)
    assert main([routine, "--random", "60", "--nb", "16"]) == 0
    assert re.search(r" ━+ +100% [\d.]+ [kMG]?flop/s 0:00:00 left: 0:00:00", drawn(terminal))


# --- terminals and pipes


def on_terminal(columns: int, *argv: str, **variables: str) -> tuple[int, str]:
    """Exit status and output of the command on a terminal of so many columns."""
    receiving, sending = os.openpty()
    fcntl.ioctl(sending, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    env |= {"TERM": "xterm-256color", **variables}
    process = subprocess.Popen([*COMMAND, *argv], stdout=sending, stderr=sending, env=env)
    os.close(sending)
    shown = b""
    with contextlib.suppress(OSError):  # how the end of a terminal reads
        while part := os.read(receiving, 65536):
            shown += part
    os.close(receiving)
    return process.wait(timeout=60), shown.decode().replace("\r\n", "\n")


COLOURS = re.compile(r"\x1b\[[\d;]*m")


@pytest.mark.parametrize(("columns", "least"), [(80, 8), (140, 13), (200, 14)])
@pytest.mark.exhaustive
def test_a_table_fits_the_terminal(columns: int, least: int) -> None:
    status, shown = on_terminal(columns, "lu", "--random", "30")
    assert status == 0
    plain = COLOURS.sub("", shown)
    assert max(map(len, plain.splitlines())) <= columns
    (row,) = table(plain)
    assert (row["n"], row["status"], len(row)) == ("30", "ok", least)


@pytest.mark.exhaustive
def test_a_narrow_table_of_a_sweep_shows_what_varies() -> None:
    sweep = ["sweep", "lu", "--n", "30", "--nb", "10", "--lookahead", "0,1"]
    _, shown = on_terminal(80, *sweep, "--dtype", "float32,float64")
    rows = table(COLOURS.sub("", shown))
    assert len({(row["dtype"], row["look-ahead"]) for row in rows}) == 4


@pytest.mark.exhaustive
def test_colours_are_for_terminals_that_want_them() -> None:
    assert "\x1b[32mok" in on_terminal(120, "lu", "--random", "9")[1]
    assert "\x1b[32m" not in on_terminal(120, "lu", "--random", "9", NO_COLOR="1")[1]
    status, shown = on_terminal(80, "luu")
    assert (status, COLOURS.sub("", shown)[:12]) == (2, "hetero-la: t")
    assert shown.startswith("\x1b[1;31mhetero-la:\x1b[0m there is no command 'luu'")
    ended = run("sweep", "lu", "--n", "9,10")
    assert "\x1b" not in ended.stdout + ended.stderr
    assert all(line == line.rstrip() for line in ended.stdout.splitlines())


def test_the_version_is_that_of_the_package() -> None:
    ended = run("--version")
    assert (ended.returncode, ended.stdout) == (0, f"hetero-la {hetero_la.__version__}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.exhaustive
def test_a_shell_gets_commands_and_options(shell: str) -> None:
    ended = run("completion", shell)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert all(word in ended.stdout for word in ("cholesky", "virtual-gpus", "near-underflow"))
    if (program := shutil.which(shell)) is not None:
        read = subprocess.run([program, "-n"], input=ended.stdout, text=True, timeout=60)
        assert read.returncode == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [(["cho"], ["cholesky"]), (["lu", "--virt"], ["--virtual-gpus"]),
     (["lu", "--kind", "hil"], ["hilb"]), (["lu", "--preset", "one"], ["one-gpu"]),
     (["simulate", "--machine", "h2"], ["h200"]), (["study", "pip"], ["pipeline"])],
)  # fmt: skip
@pytest.mark.exhaustive
def test_bash_completes(words: list[str], found: list[str]) -> None:
    line = " ".join(f"'{word}'" for word in ["hetero-la", *words])
    program = (
        f"{run('completion', 'bash').stdout}\n"
        f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _shtab_hetero_la\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    ended = subprocess.run(["bash"], input=program, capture_output=True, text=True, timeout=60)
    assert [word.strip() for word in ended.stdout.split()] == found


# --- the process ------------------------------------------------------------------------


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *argv], capture_output=True, text=True, timeout=120)


def test_the_command_runs_on_dask_and_ends() -> None:
    ended = run("lu", "--random", "200", "--nb", "64", "--virtual-gpus", "2", "--panel", "cpu")
    assert ended.stderr == ""
    assert ended.returncode == 0
    assert table(ended.stdout)[0]["status"] == "ok"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device")
def test_a_full_disk_is_said_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*COMMAND, "lu", "--random", "9"], stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=120,
        )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr == ("hetero-la: the output cannot be written: No space left on device\n")


def test_the_command_refuses_in_one_line() -> None:
    ended = run("lu", "--random", "200", "--gpus", "4096")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert re.fullmatch(r"hetero-la: .*4096.*\n", ended.stderr)


@pytest.mark.parametrize("more", [[], ["--verbose"]])
def test_the_status_is_the_same_where_nobody_reads_the_error(more: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    argv = [*COMMAND, "lu", "nofile.npy", *more]
    ended = subprocess.run(argv, stdout=subprocess.PIPE, stderr=writer, timeout=120)
    os.close(writer)
    assert ended.returncode == 2
    assert ended.stdout == b""


@pytest.mark.exhaustive
def test_help_lists_kinds_and_exit_status() -> None:
    assert "130  interrupted" in run("--help").stdout
    shown = run("sweep", "--help").stdout
    assert all(f"  {name} " in shown for name in kinds())
    assert len(run("lu", "--help").stdout.splitlines()) < 100


def test_info_names_devices_and_libraries() -> None:
    ended = run("info")
    assert ended.returncode == 0
    assert f"numpy          {np.__version__}" in ended.stdout
    for word in ("cpu cores", "gpus", "workers by default", "presets", "laptop"):
        assert word in ended.stdout


@pytest.mark.parametrize("where", ["run", "blocked call"])
def test_ctrl_c_ends_the_process_within_seconds(where: str, tmp_path: Path) -> None:
    """Also inside one long call of a library, which no Python exception can leave."""
    program = "import sys; from hetero_la.cli.main import main; sys.exit(main())"
    if where == "blocked call":
        # A call that holds on until it is done, as LAPACK's do, while a write has begun.
        program = (
            "import ctypes, sys, hetero_la\n"
            "from hetero_la.io import outputs\n"
            "from hetero_la.cli.main import main\n"
            "def hang(*_, **__):\n"
            "    with outputs.replacing_file(outputs.Path('f.npz')) as begun:\n"
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


@pytest.mark.parametrize(
    ("line", "closed"),
    [("lu --random 50", "2>&-"), ("solve --random 50", "0<&- 2>&-"), ("lu --random 50 -v", "2>&-"),
     pytest.param("lu --random 50", "0<&- 2>&-", marks=pytest.mark.exhaustive)],
)  # fmt: skip
@pytest.mark.exhaustive
def test_a_closed_stderr_does_no_harm(line: str, closed: str) -> None:
    shell = f"exec {shlex.join([*COMMAND, *line.split()])} {closed}"
    ended = subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 0
    assert table(ended.stdout)[0]["status"] == "ok"


def test_a_closed_stderr_is_nobody_elses(tmp_path: Path) -> None:
    """What opens a pipe or a file must not get the number 2."""
    program = (
        "import os\n"
        "from hetero_la.cli import interrupt\n"
        "interrupt.install_handler()\n"
        "interrupt.announce()\n"
        "print(os.readlink('/proc/self/fd/2'))"
    )
    shell = f"exec {shlex.join([sys.executable, '-c', program])} 2>&-"
    ended = subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, text=True, timeout=60)
    assert ended.stdout == "/dev/null\n"


def interrupted(program: str, *argv: str, pauses: Sequence[float]) -> tuple[int, str]:
    """Exit status and stderr of a program that prints "ready" and has a Ctrl-C after each pause."""
    return interrupted_process([sys.executable, "-u", "-c", program, *argv], pauses)


def interrupted_process(argv: Sequence[str], pauses: Sequence[float]) -> tuple[int, str]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    for pause in pauses:
        time.sleep(pause)
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    return process.returncode, err


@pytest.mark.parametrize(
    "pause",
    [0.0, 0.3, pytest.param(0.02, marks=pytest.mark.exhaustive),
     *(pytest.param(x, marks=pytest.mark.slow) for x in (0.005, 0.05, 0.1))],
)  # fmt: skip
@pytest.mark.exhaustive
def test_several_ctrl_c_are_as_one(pause: float, tmp_path: Path) -> None:
    program = "import sys; from hetero_la.cli.main import main; sys.exit(main())"
    argv = ["sweep", "lu", "--n", "400", "--repeat", "9999", "--cpus", "1", "--csv", "s.csv"]
    ended = interrupted(program, *argv, pauses=[0.5, pause, pause, pause])
    assert ended == (130, "hetero-la: interrupted\n")
    assert set(os.listdir(tmp_path)) <= {"s.csv"}


#: What the console script of an installed package says, and what Python makes of ``-m``.
SCRIPT = "import sys\nfrom hetero_la.cli.main import main\nsys.exit(main())\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize("library", ["numpy", "dask", "scipy"])
@pytest.mark.parametrize("how", ["-m", "script", "program"])
def test_ctrl_c_while_libraries_are_imported_is_one_line(
    how: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the package itself imports among them; a user's program has its own handler."""
    root = Path(hetero_la.__file__).resolve().parents[1]
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / f"{library}.py").write_text(
        "import os, time\nprint('ready')\ntime.sleep(20)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "slow"), str(root)]))
    for name in ("hetero-la", "program.py"):
        (tmp_path / name).write_text(SCRIPT)
    started = {"-m": ["-m", "hetero_la"], "script": ["hetero-la"], "program": ["program.py"]}[how]
    status, err = interrupted_process(
        [sys.executable, "-u", *started, "lu", "--random", "9"], pauses=[0.1, 0.01, 0.01]
    )
    if how == "program":
        last, _, _ = err.splitlines()[-1].partition(":")  # Python may be interrupted as it says so
        assert (status, last) == (-signal.SIGINT, "KeyboardInterrupt")
    else:
        assert (status, err) == (130, "hetero-la: interrupted\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize("stage", ["atexit", "destructor"])
def test_ctrl_c_while_python_ends_is_at_most_one_line(stage: str) -> None:
    program = (
        "import atexit, sys, time\n"
        "from hetero_la.cli.main import main\n"
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


@pytest.mark.parametrize(
    "pause", [0.05, *(pytest.param(x, marks=pytest.mark.exhaustive) for x in (0.0, 0.2))]
)
def test_ctrl_c_while_a_store_is_written_leaves_nothing(pause: float, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    program = (
        "import sys, time, hetero_la.io.formats as formats\n"
        "from hetero_la.cli.main import main\n"
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
