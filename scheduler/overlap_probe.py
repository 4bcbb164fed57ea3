"""How much panels and updates that share a GPU's multiprocessors delay each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hetero_la.scheduler.device_model import SLOWED_COLUMNS, DeviceModel, Overlap
from hetero_la.scheduler.kernel_cases import kernel_arrays
from hetero_la.scheduler.probes import Probe
from hetero_la.tiles.kernels.spec import Event, Queue

#: Rows of the panels, edge of the updates, and columns of both.
_ROWS, _EDGE, _COLUMNS = 8192, 16384, (256, 1024)
#: Order of a tile of Cholesky.
_TILE = 1024
#: Panels, tiles and updates that run beside each other; of updates, there are certainly enough.
_PANELS, _TILES, _UPDATES = 4, 16, 8
#: A kernel and its sizes.
Call = tuple[Any, ...]


def fit_overlap(probe: Probe, model: DeviceModel) -> DeviceModel:
    """A GPU's model with what narrow and wide panels tell; the GPU has to be the current one."""
    found = [
        _measure(probe, ("getrf", _ROWS, w), _PANELS, ("gemm", _EDGE, w, _EDGE)) for w in _COLUMNS
    ]
    reflectors = [
        _measure(probe, ("geqrf", _ROWS, w), _PANELS, ("larfb_c", _EDGE, w, _EDGE))
        for w in _COLUMNS
    ]
    tile = _measure(probe, ("potrf", _TILE), _TILES, ("herk", _TILE, _EDGE))
    if any(math.isnan(overlap.slowdown) for overlap in (*found, *reflectors, tile)):
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
        tile_share=tile.share,
    )


def _measure(probe: Probe, panel: Call, panels: int, update: Call) -> Overlap:
    """Of so many panels in a row; not a number where they went on alone at the end."""
    calls = {
        queue: (call[0], kernel_arrays(probe, *call))
        for queue, call in ((Queue.PANEL, panel), (Queue.UPDATE, update))
    }
    device, watch = probe.device, probe.device.stopwatch()
    assert watch is not None  # a GPU has one

    def seconds(queue: Queue, repeats: int, begin: Event) -> Callable[[], float]:
        kernel, arrays = calls[queue]
        for _ in range(repeats):
            device.call(kernel, queue, arrays, probe.options)
        end = watch.mark(queue)
        return lambda: watch.seconds(end) - watch.seconds(begin)

    def run(some: int, updates: int) -> tuple[float, float]:
        begin = watch.mark(Queue.UPDATE)
        ends = seconds(Queue.UPDATE, updates, begin), seconds(Queue.PANEL, some, begin)
        device.synchronize()
        return ends[0](), ends[1]()

    run(1, 1)
    update_alone, panels_alone = run(0, _UPDATES)[0], run(panels, 0)[1]
    beside_panels, beside_update = run(panels, _UPDATES)
    if beside_update >= beside_panels:
        return Overlap(math.nan, math.nan)
    share = (beside_panels - update_alone) / beside_update
    return Overlap(max(beside_update / panels_alone, 1.0), min(max(share, 0.0), 0.9))
