from __future__ import annotations

import os
import re

import numpy as np
import pytest

import hetero_la
from hetero_la.cli.main import main
from hetero_la.io import formats
from hetero_la.io.files import write_matrix
from hetero_la.testing import matrices
from tests.command_line import (
    in_own_folder,  # noqa: F401  (a fixture)
    prepared,
    refused,
)

BAD = {
    "lu none.npy": "cannot read none.npy: No such file",
    "lu text.npy": "cannot read text.npy: it is not a .npy file",
    "lu square.csv": "cannot read square.csv: its suffix is none of .npy",
    "lu two.npz": "holds 2 arrays (a, b): choose one by the option 'name'",
    "lu two.npz --name c": "it has no array 'c'; it has a, b",
    "lu two.npz --name b": "two.npz holds an array of shape (3,), not a matrix",
    "lu stack.npy": "stack.npy holds an array of shape (2, 3, 3), not a matrix",
    "lu half.npy": "half.npy has dtype float16, which is not supported",
    "lu complex.npy --dtype float64": "would drop imaginary parts",
    "lu nan.npy": "nan.npy: array must not contain infs or NaNs",
    "lu inf.npy": "inf.npy: array must not contain infs or NaNs",
    "solve square.npy nan.npy": "nan.npy: array must not contain infs or NaNs",
    "lu lies.npy": "cannot read lies.npy: it should hold 800000000000000 bytes for its shape",
    "lu square.npy --kind rand": "--kind describes what --random makes",
    "lu square.npy -o f.npy": "cannot write f.npy: it cannot hold 2 arrays, which .npz",
    "lu square.npy -o none/f.npz": "there is no folder",
    "lu square.npy --nb 0": "nb",
    "lu square.npy --nb -3": "nb",
    "lu square.npy --lookahead -1": "lookahead",
    "lu square.npy --gpus 4096": "4096",
    "lu square.npy --preset nonsense": "there is no preset 'nonsense'; there are",
    "lu square.npy --panel left": "--panel: there is no 'left'; there are auto, cpu, gpu",
    "lu square.npy --colour red": "there is no option '--colour': did you mean '--coarse'?",
    "lu square.npy --no-chec": "there is no option '--no-chec': did you mean '--no-check'?",
    "lu square.npy -z 3": "there is no option '-z' (hetero-la lu --help lists what there is)",
    "simulate lu --n 9 -o a.html": "study, and does nothing with simulate (hetero-la simulate",
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
    "lu --random x": "--random: 'x' is not a size such as 2000",
    "lu --random 3x": "--random: '3x' is not a size such as 2000",
    "lu --random x3": "--random: 'x3' is not a size such as 2000",
    "lu --random 3x4x5": "--random: '3x4x5' is not a size such as 2000 or 3000x200",
    "lu --random -1": "--random: '-1' is not a size",
    "cholesky --random 9 --seed 3": "--seed does nothing with matrices of kind kms, which",
    "lu --random 9 --kind hilb --seed 3": "--seed does nothing with matrices of kind hilb",
    "lu --random 9 --kind nonsense": "--kind: there is no 'nonsense'; there are rand, ",
    "lu --random 9 --kind orthgo": "--kind: there is no 'orthgo': did you mean 'orthog'?",
    "lu --random 9 --cond 10": "cond=10.0 needs one of the kinds svd, ",
    "lu --random 9 --dtype float16": "--dtype: there is no 'float16': did you mean 'float64'?",
    "lu --random 9x4 --kind wilkinson": "'wilkinson' is square only, but 9 x 4",
    "lu --random 3000000": "3000000 x 3000000 float64 matrix needs 144 TB of memory, and",
    "solve square.npy": "solve needs two files, A and B, or --random N",
    "lstsq square.npy": "lstsq needs two files, A and B, or --random N",
    "lstsq square.npy vector.npy": "b has shape (5,), which does not fit a of shape (6, 6)",
    "lstsq tall.npy vector.npy": "b has shape (5,), which does not fit a of shape (6, 4)",
    "lstsq square.npy stack.npy": "stack.npy holds an array of shape (2, 3, 3)",
    "lstsq nan.npy square.npy": "nan.npy: array must not contain infs or NaNs",
    "lstsq square.npy inf.npy -o x.npy": "inf.npy: array must not contain infs or NaNs",
    "lstsq --random 9 --kind zero-first -o x.npy": "diagonal number 1 of R is exactly zero",
    "lstsq square.npy square.npy --assume-a pos": "--assume-a is for solve, sweep",
    "cholesky tall.npy -o l.npy": "must be square, and a has shape (6, 4)",
    "cholesky nan.npy": "nan.npy: array must not contain infs or NaNs",
    "cholesky square.npy -o l.npy": "leading minor of the array is not positive definite",
    "cholesky square.npy -o none/l.npy": "there is no folder",
    "cholesky square.npy square.npy": "unrecognized arguments: square.npy",
    "cholesky --random 9x8": "must be square, and a has shape (9, 8)",
    "cholesky --random 9 --mode raw": "--mode is for qr, sweep, graph",
    "qr inf.npy": "inf.npy: array must not contain infs or NaNs",
    "qr stack.npy": "stack.npy holds an array of shape (2, 3, 3), not a matrix",
    "qr square.npy -o f.npy": "cannot write f.npy: it cannot hold 2 arrays, which .npz",
    "qr square.npy --mode complete": "--mode: there is no 'complete'; there are economic, r",
    "qr square.npy --nrhs 2": "--nrhs is for solve, lstsq, sweep",
    "qr": "qr needs a file or --random N",
    "solve square.npy square.npy --assume-a banded": "--assume-a: there is no 'banded'; ",
    "solve square.npy square.npy --upper": "--upper chooses a triangle, and does nothing without",
    "solve square.npy square.npy --assume-a pos": "is not positive definite",
    "solve --random 9x8 --assume-a pos": "",
    "solve tall.npy vector.npy": "",
    "solve square.npy vector.npy": "",
    "solve square.npy stack.npy": "stack.npy holds an array of shape (2, 3, 3)",
    "solve --random 9 --kind zero-first": "",
    "lu --random 9 --checkpoint": "--checkpoint is for a file that is factored in parts, not for",
    "qr --random 9 --resume": "--resume is for a file that is factored in parts, not for",
    "solve --random 9x8": "",
    "sweep lu --n a": "--n: 'a' is neither a number nor START:STOP:STEP",
    "sweep lu --n 9 --csv a.svg --trace a.svg": "two outputs cannot both be written to a.svg",
    "sweep lu --n 9:3": "--n: '9:3' is not a range that rises",
    "sweep lu --n 9 --kind rand,foo": "--kind: there is no 'foo'; there are rand",
    "sweep lu --n 1:2:3:4": "--n: '1:2:3:4' is neither a number nor",
    "sweep lu --n 1:9:0": "--n: '1:9:0' is not a range",
    "sweep lu --n 9,7:3": "--n: '7:3' is not a range",
    "sweep lu --n 0:99999999999": "--n: '0:99999999999' lists more than 10000 numbers",
    "sweep lu --n 0:9999999999999999999999": "lists more than 10000 numbers",
    "sweep lu --n 9 --csv none/s.csv": "cannot write none/s.csv: there is no folder",
    "sweep lu --n 9 --csv folder": "cannot write folder: it is a folder",
    "sweep lu --n 9 --csv /proc/s.csv": "cannot write /proc/s.csv: ",
    "lu square.npy -o /proc/f.npz": "cannot write /proc/f.npz: ",
    "sweep lu --n 9 --nrhs 2": "--nrhs is for solve and lstsq, and does nothing with lu",
    "sweep solve --n 9 --m 2": "--m is for lu, qr and lstsq, and does nothing with solve",
    "sweep cholesky --n 9 --m 2": "--m is for lu, qr and lstsq",
    "sweep lu --n 9 --upper": "--upper is for solve and cholesky, and does nothing with lu",
    "sweep lstsq --n 9 --mode raw": "--mode is for qr, and does nothing with lstsq",
    "sweep inverse --n 9": "there is no 'inverse'; there are lu, solve",
    "nonsense": "there is no command 'nonsense'; there are lu, solve, ",
    "solv square.npy square.npy": "there is no command 'solv': did you mean 'solve'?",
    "--json info": "--json follows the command, as in hetero-la lu --json",
    "lu --random 9 --qr-panel cholesky": "--qr-panel is for qr, lstsq and sweep, and does nothing",
    "sweep qr --n 9 --coarse 8": "--coarse is for lu and solve, and does nothing with qr",
    "lu --random 9 -q -v": "--quiet leaves out what --verbose prints",
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
        ("solve --assume-a her", 5), ("solve --assume-a pos", 2), ("cholesky --no-check", 1),
        ("cholesky --no-check --upper", 2), ("qr", 4), ("qr --mode raw --no-check", 1),
        ("qr --mode r", 3), ("lstsq --ref", 3), ("sweep qr --n 9", 2),
        ("sweep lu --n 9", 2), ("sweep lu --n 9 --ref", 3), ("sweep solve --n 9", 2),
    ],
)  # fmt: skip
def test_memory_for_the_run_is_required_before_the_matrix_is_made(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: str, copies: int
) -> None:
    there = 9 * 9 * 8 * copies - 1
    monkeypatch.setattr(formats, "available_memory", lambda: there)
    monkeypatch.setattr(matrices, "generate", lambda *_, **__: pytest.fail("it is made"))
    assert main([*argv.split(), *([] if "sweep" in argv else ["--random", "9"])]) == 2
    assert "a run on a 9 x 9 float64 matrix needs" in capfd.readouterr().err


def test_memory_for_the_run_is_required_before_a_file_is_read(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_matrix("a.npy", np.eye(9))
    monkeypatch.setattr(formats, "available_memory", lambda: 2 * 9 * 9 * 8 - 1)
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
        (hetero_la.tiles.arrays.errors.RunAbortedError("a worker died"), 1),
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
