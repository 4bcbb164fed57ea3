"""Probe of the slowdown of panels and updates that share a GPU's multiprocessors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hetero_la.scheduler.machine.device import SLOWED_COLUMNS, DeviceModel, Overlap
from hetero_la.scheduler.probe.device_probe import Probe
from hetero_la.scheduler.probe.kernel_cases import kernel_arrays
from hetero_la.tiles.kernels.device import Event, Queue

#: Rows of the panels, largest order of the updates, and columns of the panels.
_ROWS, _EDGE, _COLUMNS = 8192, 16384, (256, 1024)
#: Order of a tile of Cholesky.
_TILE = 1024
#: Panels, or tiles, in a row, and numbers of updates to try: some must still run at their end.
_PANELS, _TILES, _UPDATES = 4, 16, (8, 16, 32, 64)
#: Largest fraction of its speed that an update is taken to lose.
_MOST = 0.9
#: A kernel and its sizes.
KernelAndSizes = tuple[Any, ...]


def fit_overlap(probe: Probe, model: DeviceModel) -> DeviceModel:
    """Fit a GPU's slowdowns to narrow and wide panels and to tiles of Cholesky, beside updates.

    A panel of QR takes as much speed from an update as one of LU, and a tile is slowed down as
    much as a panel of as many columns: both hold within the scatter of measurements.  The GPU
    has to be the current one.
    """
    edge = _EDGE
    while 2 * edge**2 * probe.dtype.itemsize > probe.device.free_bytes():
        edge //= 2
    lu, qr = (
        [
            measure_overlap(probe, (panel, _ROWS, w), _PANELS, (update, edge, w, edge))
            for w in _COLUMNS
        ]
        for panel, update in (("getrf", "gemm"), ("geqrf", "larfb_c"))
    )
    tile = measure_overlap(probe, ("potrf", _TILE), _TILES, ("herk", _TILE, edge))
    narrow, wide = (overlap.slowdown for overlap in lu)
    growth = math.log(wide / narrow) / math.log(_COLUMNS[1] / _COLUMNS[0])
    more = math.prod(overlap.slowdown for overlap in qr) / (narrow * wide)
    return replace(
        model,
        panel_slowdown=narrow * (SLOWED_COLUMNS / _COLUMNS[0]) ** growth,
        panel_growth=growth,
        panel_share=sum(overlap.share for overlap in lu) / len(lu),
        reflector_slowdown=math.sqrt(more),
        tile_share=tile.share,
    )


def measure_overlap(
    probe: Probe, panel: KernelAndSizes, panels: int, update: KernelAndSizes
) -> Overlap:
    """Measure how `panels` panels in a row and updates slow each other on a GPU."""
    calls = {
        queue: (call[0], kernel_arrays(probe, *call))
        for queue, call in ((Queue.PANEL, panel), (Queue.UPDATE, update))
    }
    device, watch = probe.device, probe.device.stopwatch()
    assert watch is not None  # a GPU has one

    def seconds(queue: Queue, count: int, begin: Event) -> Callable[[], float]:
        kernel, arrays = calls[queue]
        for _ in range(count):
            device.call(kernel, queue, arrays, probe.options)
        end = watch.mark(queue)
        return lambda: watch.between(begin, end)

    def run(count: int, updates: int) -> tuple[float, float]:
        begin = watch.mark(Queue.UPDATE)
        ends = seconds(Queue.UPDATE, updates, begin), seconds(Queue.PANEL, count, begin)
        device.synchronize()
        return ends[0](), ends[1]()

    run(1, 1)
    _, panels_alone = run(panels, 0)
    for updates in _UPDATES:
        updates_alone, _ = run(0, updates)
        updates_beside, panels_beside = run(panels, updates)
        if panels_beside < updates_beside:
            break
    share = (updates_beside - updates_alone) / panels_beside
    slowdown = max(panels_beside / panels_alone, 1.0)
    return Overlap(slowdown, min(max(share, 0.0), _MOST))
