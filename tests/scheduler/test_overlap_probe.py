"""What panels and updates do to each other is found where it is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hetero_la.scheduler.machine.device import H200, Overlap
from hetero_la.scheduler.predict.sharing import PanelCall, UpdateCall, panel_spans, update_end
from hetero_la.scheduler.probe import overlap as overlap_probe
from hetero_la.scheduler.probe.device_probe import Probe
from hetero_la.scheduler.probe.overlap import fit_overlap, measure_overlap
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.kernels.device import Queue


class SharedGpu(CpuDevice):
    """Calls are counted, and their ends worked out by the simulator's rule."""

    def __init__(self, panel: float, update: float, overlap: Overlap) -> None:
        super().__init__()
        self.panel, self.update, self.overlap = panel, update, overlap
        self.given = dict.fromkeys(Queue, 0)

    def call(self, kernel: str, queue: Queue, arrays: Any, options: Any) -> None:
        self.given[queue] += 1

    def synchronize(self) -> None:
        panels, updates = self.given[Queue.PANEL], self.given[Queue.UPDATE]
        work = [PanelCall(0.0, self.panel, self.overlap)] * panels
        spans = panel_spans(work, [UpdateCall(0.0, self.update)] * updates)
        ends = update_end(0.0, self.update * updates, spans) if updates else 0.0
        self.ends = {Queue.PANEL: spans[-1].stop if spans else 0.0, Queue.UPDATE: ends}
        self.given = dict.fromkeys(Queue, 0)

    def stopwatch(self) -> Any:
        return SimpleNamespace(mark=lambda queue: queue, between=lambda _, end: self.ends[end])


@pytest.mark.parametrize("overlap", [(1.5, 0.0), (2.5, 0.2), (4.0, 0.5)])
@pytest.mark.parametrize("update", [4.0, 1.0, 0.5])  # the last ones have to be many
def test_what_they_do_to_each_other(
    overlap: tuple[float, float], update: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap_probe, "kernel_arrays", lambda *args: [])
    probe = Probe(SharedGpu(1.0, update, Overlap(*overlap)), np.dtype(float))
    found = measure_overlap(probe, ("getrf", 8192, 256), 4, ("gemm", 1024, 256, 1024))
    assert found == pytest.approx(overlap)


def test_the_model_says_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        ("getrf", 256): Overlap(1.8, 0.1), ("getrf", 1024): Overlap(2.2, 0.3),
        ("geqrf", 256): Overlap(3.6, 0.1), ("geqrf", 1024): Overlap(4.4, 0.1),
        ("potrf", 1024): Overlap(2.0, 0.4),
    }  # fmt: skip
    updates = {}

    def measured(probe: Probe, panel: Any, panels: int, update: Any) -> Overlap:
        updates[panel[0], panel[-1]] = update
        return known[panel[0], panel[-1]]

    monkeypatch.setattr(overlap_probe, "measure_overlap", measured)
    device = CpuDevice()
    monkeypatch.setattr(device, "free_bytes", lambda: 2**30)
    model = fit_overlap(Probe(device, np.dtype(float)), H200)
    for kind, columns in (("getrf", 256), ("getrf", 1024), ("geqrf", 256), ("geqrf", 1024)):
        assert model.overlap(kind, columns).slowdown == pytest.approx(known[kind, columns].slowdown)
        assert model.overlap(kind, columns).share == pytest.approx(0.2)
    assert model.overlap("potrf", 1024).share == 0.4
    assert updates["geqrf", 256] == ("larfb_c", 8192, 256, 8192)  # of 0.5 GiB, and not of 2
    assert updates["potrf", 1024] == ("herk", 1024, 8192)
