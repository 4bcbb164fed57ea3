"""Chart of measurements: times over the order, one panel for each function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_la.bench.measuring import OURS, Measured
from hetero_la.io.outputs import replacing_file
from hetero_la.pictures.palette import SERIES

_COLUMNS = 4  #: panels side by side
_NARROW = 50.0  #: between the longest and the shortest time, below which 2 and 5 are marked, too


def draw(rows: Sequence[Measured], path: Path, title: str = "") -> None:
    """Draw measurements to a ``.svg``, ``.png`` or ``.pdf``; needs Matplotlib.

    Examples
    --------
    >>> import tempfile
    >>> rows = [Measured("host", "qr", n, OURS, (1e-9 * n**3,)) for n in (100, 200)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw(rows, Path(folder) / "qr.svg")
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    places = sorted({row.where for row in rows}, reverse=True)
    functions = list(dict.fromkeys(row.function for row in rows))
    names = list(dict.fromkeys(row.who for row in rows))
    panels = [(function, where) for function in functions for where in places]
    across = min(_COLUMNS, len(panels))
    down = -(-len(panels) // across)
    figure = Figure((1 + 3.2 * across, 1 + 2.6 * down), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for unused in axes[len(panels) :]:
        unused.remove()
    for (function, where), panel in zip(panels, axes, strict=False):
        shown = [row for row in rows if (row.function, row.where) == (function, where)]
        _draw_panel(panel, shown, names)
        of = {"host": "NumPy arrays", "device": "arrays on the GPU"}[where]
        panel.set_title(f"{function}, {of}" if len(places) > 1 else function, fontsize=9)
    legends = [panel.get_legend_handles_labels() for panel in figure.axes]
    handles = {label: line for drawn in legends for line, label in zip(*drawn, strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, fontsize=8)
    figure.suptitle(title, fontsize=10)
    # Letters of an SVG stay letters.
    with matplotlib.rc_context({"svg.fonttype": "none"}), replacing_file(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix[1:], dpi=150)


def _draw_panel(panel: Any, rows: Sequence[Measured], names: Sequence[str]) -> None:
    """Draw a line for each contender; dashed lines are where the fastest one changes."""
    from matplotlib.ticker import EngFormatter, LogLocator

    lines: dict[str, dict[int, float]] = {}
    for row in rows:
        lines.setdefault(row.who, {})[row.n] = row.median
    for name, points in lines.items():
        panel.loglog(
            points.keys(), points.values(), "o-", ms=3, label=name,
            color=SERIES[names.index(name) % len(SERIES)], lw=2.2 if name == OURS else 1.2,
        )  # fmt: skip
    orders = sorted({row.n for row in rows})
    fastest = [min((p[n], name) for name, p in lines.items() if n in p)[1] for n in orders]
    for before, n, old, new in zip(orders, orders[1:], fastest, fastest[1:], strict=False):
        if old != new:
            middle = (before * n) ** 0.5
            panel.axvline(middle, color="0.7", lw=0.8, ls="--", label="the fastest library changes")
    panel.set_xscale("log", base=2)
    panel.set_xticks(orders, [str(n) for n in orders])
    panel.minorticks_off()
    panel.set_xlabel("order n", fontsize=8)
    medians = [row.median for row in rows]
    narrow = max(medians) < _NARROW * min(medians)
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
    panel.yaxis.set_major_formatter(EngFormatter("s"))
    panel.tick_params(which="both", labelsize=7)
    panel.grid(alpha=0.3)
