"""What the examples say of themselves; they run when the site is built, and as notebooks."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

examples = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


@examples
def test_an_example_says_what_it_is_and_how_to_run_it(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text
    title, line, *_ = text.splitlines()
    assert line == "=" * len(title)
    assert f"::\n\n    python examples/{path.name}" in text


@examples
def test_an_example_fails_if_its_answer_is_wrong(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert any(isinstance(node, ast.Assert) for node in ast.walk(tree))


@pytest.mark.gpu
def test_the_hybrid_runs_on_real_gpus() -> None:
    pytest.importorskip("matplotlib")
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "02_cpu_and_gpu.py")],
        cwd=ROOT, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "all three agree" in ended.stdout
    assert "virtual" not in ended.stdout
