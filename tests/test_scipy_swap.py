"""An import can be swapped: SciPy's own tests pass with our functions in their place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

MODULES = ("test_basic", "test_decomp", "test_decomp_lu", "test_decomp_cholesky", "test_batch")


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """SciPy's tests, in a process that knows nothing of our own test configuration."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [
            sys.executable, "-m", "pytest", "-c", folder / "pytest.ini", "--rootdir", folder,
            "-p", "tests.scipy_swap", "-p", "no:cacheprovider", "-q", "-rfE", "--tb=short",
            *options, "--pyargs", *(f"scipy.linalg.tests.{name}" for name in MODULES),
        ],
        cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False, timeout=1700,
    )  # fmt: skip


def check(done: subprocess.CompletedProcess[str], at_least: int) -> None:
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= at_least


def test_a_few_of_scipy_s_tests(tmp_path: Path) -> None:
    check(run(tmp_path, "--swap-sample"), at_least=200)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_scipy_s_tests(tmp_path: Path) -> None:
    check(run(tmp_path), at_least=1500)
