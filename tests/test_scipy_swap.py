"""An import can be swapped: SciPy's own tests pass with our functions in their place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import scipy_swap

#: Not every release has all of them.
NAMES = ("test_basic", "test_decomp", "test_decomp_lu", "test_decomp_cholesky", "test_batch")
MODULES = list(filter(find_spec, (f"scipy.linalg.tests.{name}" for name in NAMES)))


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """SciPy's tests, in a process and a folder that know nothing of our own test configuration."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [
            sys.executable, "-m", "pytest", "-c", folder / "pytest.ini", "--rootdir", folder,
            "-p", "tests.scipy_swap", "-p", "no:cacheprovider", "-q", "-rfE", "--tb=short",
            "--assert=plain",
            *options, "--pyargs", *MODULES,
        ],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
             "PYTHONPATH": str(Path(__file__).parents[1])},
        cwd=folder, capture_output=True, text=True, check=False, timeout=1700,
    )  # fmt: skip


def check(done: subprocess.CompletedProcess[str], at_least: int) -> None:
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= at_least


@pytest.mark.exhaustive
def test_a_sample_of_scipy_s_tests_passes_with_our_functions(tmp_path: Path) -> None:
    check(run(tmp_path, "--swap-sample"), at_least=150)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_scipy_s_tests_pass_with_our_functions(tmp_path: Path) -> None:
    check(run(tmp_path), at_least=600)


@pytest.mark.exhaustive
def test_a_list_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    rows, listed = scipy_swap.LIST.read_text("utf-8"), tmp_path / "list.md"
    wrong = re.sub(r"^.*TestInv::test_wrong_assume_a.*$", "", rows, flags=re.M)
    wrong += "| `TestDet::test_readonly_array` | all | it passes |\n"
    listed.write_text(wrong, "utf-8")
    done = run(tmp_path, "--swap-list", str(listed), "-k", "TestDet or test_wrong_assume_a")
    assert done.returncode == 1
    assert re.search(r"FAILED .*TestInv::test_wrong_assume_a", done.stdout)
    assert re.search(r"FAILED .*TestDet::test_readonly_array", done.stdout)
    assert "[XPASS(strict)] it passes" in done.stdout
    listed.write_text(rows + "| `TestDet::test_nothing` | all | there is none |\n", "utf-8")
    done = run(tmp_path, "--swap-list", str(listed), "-k", "TestDet")
    assert "list.md lists tests that there are not: TestDet::test_nothing" in done.stderr
