"""Every example runs, at a small size, and says what it must."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples"

#: Arguments, and a line that the output must hold.
EXAMPLES = {
    "01_boundary_elements": (["--panels", "320"], "the potential agrees with the known answer"),
    "02_cpu_and_gpu": (["--n", "300", "--nb", "64", "--gpus", "0"], "all three agree"),
    "03_sweep": (["--n", "200", "--nb", "32", "64", "--repeat", "1"], "best for n = 200: nb ="),
    "04_cluster": (["--n", "300"], "the same answer"),
    "05_inverse_bound": (
        ["--n", "256", "--nb", "64"], "all ratios with the default bound are under 30"
    ),
    "06_gaussian_process": ([], "the forecast agrees with the record, and with SciPy"),
    "07_least_squares": (["--nb", "32"], "certified values and SciPy agree"),
    "08_dask_pipeline": (["--n", "800"], "the interpolant agrees with Franke's function"),
    "09_lost_worker": (["--n", "1500"], "the right answer"),
    "10_pictures": (["--n", "300", "--nb", "64"], "of every worker's time add up to the run's"),
    "11_thousand_gpus": (["--n", "60000", "--gpus", "16"], "both predictions agree"),
}  # fmt: skip


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=150,
    )  # fmt: skip


def test_every_example_has_an_entry() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name[:2] in ("01", "03", "05") else pytest.mark.exhaustive)
     for name in EXAMPLES],
)  # fmt: skip
def test_an_example_runs(name: str) -> None:
    arguments, line = EXAMPLES[name]
    ended = run(name, *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert line in ended.stdout
    assert "Traceback" not in ended.stderr


def test_the_forecast_of_carbon_dioxide_is_close() -> None:
    ended = run("06_gaussian_process")
    found = re.search(r"root mean square error of the forecast: ([\d.]+) ppm", ended.stdout)
    assert found, ended.stdout + ended.stderr
    assert float(found[1]) < 1  # of 371 ppm, four years ahead


@pytest.mark.gpu
def test_the_hybrid_runs_on_real_gpus() -> None:
    ended = run("02_cpu_and_gpu", "--n", "2000")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "all three agree" in ended.stdout
    assert "virtual" not in ended.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_what_it_is_and_how_to_run_it(name: str) -> None:
    text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8")))
    assert text
    assert f"python examples/{name}.py" in text


def test_the_matrix_of_the_first_example_can_be_saved_and_factored(tmp_path: Path) -> None:
    saved = tmp_path / "spheroid.npy"
    assert run("01_boundary_elements", "--panels", "320", "--save", str(saved)).returncode == 0
    matrix = np.load(saved)
    assert matrix.shape == (320, 320)
    # Half of all directions lie behind a flat panel of a closed surface.
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-12)
    assert not np.allclose(matrix, matrix.T)
    ended = subprocess.run(
        [sys.executable, "-m", "hetero_la", "lu", str(saved)],
        cwd=ROOT, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split()[-1] == "ok"
