"""How much panels and updates that share a GPU's multiprocessors delay each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from hetero_la.scheduler.device_model import SLOWED_COLUMNS, DeviceModel
from hetero_la.scheduler.kernel_cases import kernel_arrays
from hetero_la.scheduler.probes import Probe
from hetero_la.tiles.kernels.spec import Event, Queue

#: Rows of the panels, edge of the updates, and columns of both.
_ROWS, _EDGE, _COLUMNS = 8192, 16384, (256, 1024)
#: Panels, and what updates with them.
_UPDATE_OF = {"getrf": "gemm", "geqrf": "larfb_c"}
#: Panels and updates that run beside each other; of updates, there are certainly enough.
_PANELS, _UPDATES = 4, 8


class Overlap(NamedTuple):
    """How many times as long panels take beside updates, which lose a share of their speed."""

    slowdown: float
    share: float


def fit_overlap(probe: Probe, model: DeviceModel) -> DeviceModel:
    """A GPU's model with what narrow and wide panels tell; the GPU has to be the current one."""
    found = [_measure(probe, "getrf", columns) for columns in _COLUMNS]
    reflectors = [_measure(probe, "geqrf", columns) for columns in _COLUMNS]
    if any(math.isnan(overlap.slowdown) for overlap in found + reflectors):
        return model
    narrow, wide = (overlap.slowdown for overlap in found)
    growth = math.log(wide / narrow) / math.log(_COLUMNS[1] / _COLUMNS[0])
    more = math.prod(overlap.slowdown for overlap in reflectors) / (narrow * wide)
    return replace(
        model,
        panel_slowdown=narrow * (SLOWED_COLUMNS / _COLUMNS[0]) ** growth,
        panel_growth=growth,
        panel_share=sum(overlap.share for overlap in found) / len(found),
        reflector_slowdown=math.sqrt(more),
    )


def _measure(probe: Probe, panel: str, columns: int) -> Overlap:
    """Of panels with so many columns; not a number where they went on alone at the end."""
    update = _UPDATE_OF[panel]
    calls = {
        Queue.PANEL: (panel, kernel_arrays(probe, panel, _ROWS, columns)),
        Queue.UPDATE: (update, kernel_arrays(probe, update, _EDGE, columns, _EDGE)),
    }
    device, watch = probe.device, probe.device.stopwatch()
    assert watch is not None  # a GPU has one

    def seconds(queue: Queue, repeats: int, begin: Event) -> Callable[[], float]:
        kernel, arrays = calls[queue]
        for _ in range(repeats):
            device.call(kernel, queue, arrays, probe.options)
        end = watch.mark(queue)
        return lambda: watch.seconds(end) - watch.seconds(begin)

    def run(panels: int, updates: int) -> tuple[float, float]:
        begin = watch.mark(Queue.UPDATE)
        ends = seconds(Queue.UPDATE, updates, begin), seconds(Queue.PANEL, panels, begin)
        device.synchronize()
        return ends[0](), ends[1]()

    run(1, 1)
    alone, panels = run(0, _UPDATES)[0], run(_PANELS, 0)[1]
    beside_update, beside_panels = run(_PANELS, _UPDATES)
    if beside_panels >= beside_update:
        return Overlap(math.nan, math.nan)
    share = (beside_update - alone) / beside_panels
    return Overlap(max(beside_panels / panels, 1.0), min(max(share, 0.0), 0.9))
