"""Rates of panels and products over their sizes (Volkov and Demmel's Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_la.io.outputs import replacing_file
from hetero_la.pictures.palette import SERIES
from hetero_la.scheduler.machine.profile import MeasuredDevice
from hetero_la.scheduler.machine.rate_tables import RateTable, work

_PANELS = {"getrf": "LU panel", "geqrf": "QR panel"}
#: Markers, which distinguish widths without colours.
_MARKERS = "os^Dv<>"


def write_rates(devices: Sequence[MeasuredDevice], path: Path) -> None:
    """Draw a row for each device: LU and QR panels by height, products by inner size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((15, 3.6 * len(devices)), layout="constrained")
    FigureCanvasAgg(figure)
    for row, device in zip(figure.subplots(len(devices), 3, squeeze=False), devices, strict=True):
        tables = device.model.rates.by_kind
        for axes, (kind, title) in zip(row, _PANELS.items(), strict=False):
            _panel(axes, tables[kind])
            axes.set_title(f"{title} ({kind}), {_label(device)}", fontsize=9)
        _products(row[2], tables["gemm"])
        row[2].set_title(f"m x k times k x n (gemm), {_label(device)}", fontsize=9)
    with replacing_file(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix[1:])


def _label(device: MeasuredDevice) -> str:
    of = device.name or f"{device.beside} x {device.threads} CPU threads"
    return f"{of}, {device.model.dtype}"


def _panel(axes: Any, table: RateTable) -> None:
    """Plot Gflop/s over the height, one line for each width."""
    heights, widths = table.axes
    for width in widths:
        rates = [_rate(table, height, width) for height in heights]
        _line(axes, heights, rates, f"{width} columns")
    _finish(axes, "height of the panel, rows")


def _products(axes: Any, table: RateTable) -> None:
    """Plot Gflop/s over k, one line for each height, for the largest n."""
    heights, inner, (*_, n) = table.axes
    for m in heights:
        _line(axes, inner, [_rate(table, m, k, n) for k in inner], f"m = {m}, n = {n}")
    _finish(axes, "inner size k, columns")


def _rate(table: RateTable, *sizes: int) -> float:
    """Return the Gflop/s at some sizes."""
    return work(table.kind, sizes) / table.estimate(sizes) / 1e9


def _line(axes: Any, x: Sequence[float], y: Sequence[float], label: str) -> None:
    number = len(axes.lines)
    axes.plot(
        x, y, label=label, color=SERIES[number % len(SERIES)], linewidth=1.2,
        marker=_MARKERS[number % len(_MARKERS)], markersize=4,
    )  # fmt: skip


def _finish(axes: Any, xlabel: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    # Matplotlib's own margin is relative to the range of the lines, which may be almost 0.
    axes.set_ylim(0, 1.05 * axes.dataLim.ymax)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("Gflop/s")
    axes.grid(color="0.9", linewidth=0.6)
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
