"""A notebook is executed, as Jupyter does it, and its outputs have the right kinds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

SETUP = """
import numpy as np
import hetero_la
cluster = hetero_la.Cluster(cpus=0, virtual_gpus=2, blas_threads=1)
a = np.eye(60) + np.ones((60, 60))
with hetero_la.trace() as trace:
    factors = hetero_la.lu_factor(a, client=cluster, nb=20)
x, report = hetero_la.solve_with_report(a, a[0])
"""
SHOWN = {
    "factors": "LUFactors(60 x 60 float64", "factors.plan": "Plan(lu of a 60 x 60 float64 matrix",
    "factors.plan.graph": "TaskGraph(", "factors.timing": "Timing(", "trace": "Trace(1 run)",
    "report": "Report(solve of a 60 x 60", "cluster": "Cluster(2 virtual GPUs",
}  # fmt: skip


def test_a_notebook_shows_each_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    last = "print(factors.plan)\ncluster.close()"
    cells = [nbformat.v4.new_code_cell(text) for text in (SETUP, *SHOWN, last)]
    book = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(book, timeout=60, kernel_name="python3").execute()
    assert book.cells[0].outputs == []
    for cell, line in zip(book.cells[1:-1], SHOWN.values(), strict=True):
        (output,) = cell.outputs
        assert set(output.data) == {"text/plain", "text/html"}, cell.source
        assert output.data["text/plain"].startswith(line)
        assert output.data["text/html"].startswith('<div class="hetero-la">')
        drawn = "<svg" in output.data["text/html"]
        assert drawn == (cell.source in ("factors.plan", "factors.plan.graph", "trace"))
    (printed,) = book.cells[-1].outputs
    assert printed.text.startswith("lu of a 60 x 60 float64 matrix\ntiles: nb = 20")


PROGRESS = """
import time
from hetero_la.execution import progress
from hetero_la.tiles.kernels.cpu.device import CpuDevice
progress._DELAY = progress._INTERVAL = 0.05
call = CpuDevice.call
def slowly(*args):
    time.sleep(0.01)
    call(*args)
CpuDevice.call = slowly
with hetero_la.progress(cluster):
    hetero_la.lu_factor(a, client=cluster, nb=10)
cluster.close()
"""


def test_a_notebook_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    cells = [nbformat.v4.new_code_cell(text) for text in (SETUP, PROGRESS)]
    book, shown = nbformat.v4.new_notebook(cells=cells), list[str]()

    class Watching(NotebookClient):  # type: ignore[misc]
        def process_message(self, message: Any, *args: Any) -> Any:
            if "text/html" in message["content"].get("data", ()):
                shown.append(message["content"]["data"]["text/html"])
            return super().process_message(message, *args)

    Watching(book, timeout=60, kernel_name="python3").execute()
    *bars, last = [re.sub("<[^>]*>", "", text) for text in shown]
    assert last == ""  # it has gone
    assert all(
        re.search(r"lu of a 60 x 60 float64 ━+.* \d+% .*flop/s 0:00:0\d left", b) for b in bars
    )
    assert len(bars) > 2
    assert [output.data["text/html"] for output in book.cells[1].outputs] == [""]
