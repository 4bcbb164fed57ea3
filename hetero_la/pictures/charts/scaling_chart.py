"""Chart of the predicted scaling of a factorization, by Matplotlib."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_la.algorithms.routines import title_of
from hetero_la.io.outputs import replacing_file
from hetero_la.pictures.palette import INK, MUTED
from hetero_la.pictures.suffix import require_chart
from hetero_la.predict.forecast import Forecast
from hetero_la.scheduler.predict.path_time import PARTS

#: Okabe and Ito's colours, as in the other pictures.
_COLOURS = dict(
    zip(PARTS, ("#D55E00", "#E69F00", "#56B4E9", "#0072B2", "#009E73", "#CC79A7"), strict=True)
)
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "hetero_la"}


def draw_scaling(rows: Sequence[Forecast], path: str | os.PathLike[str]) -> None:
    """Draw rates, and the parts of the longest chain of waits, over the number of GPUs.

    Parameters
    ----------
    rows : sequence of Forecast
        Result of `hetero_la.predict.scaling.strong_scaling` or `weak_scaling`.
    path : path
        File to write; its suffix is one of `hetero_la.pictures.suffix.CHARTS`.

    Raises
    ------
    ValueError
        If there are no rows, the suffix is unknown, or Matplotlib is missing.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from hetero_la.predict.scaling import strong_scaling
    >>> rows = strong_scaling("lu", (30000, 30000), "dgx-h200", nb=512)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "lu.svg"
    ...     draw_scaling(rows, path)
    ...     "trailing update" in path.read_text(encoding="utf-8")
    True
    """
    require_chart(path)
    if not rows:
        raise ValueError("there is nothing to draw: no rows")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(11.5, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_rates(left, rows)
        _draw_parts(right, rows)
        figure.suptitle(_title(rows))
        dateless = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        suffix = Path(path).suffix
        with replacing_file(Path(path)) as unfinished:
            figure.savefig(unfinished, format=suffix[1:], dpi=150, metadata=dateless.get(suffix))


def _title(rows: Sequence[Forecast]) -> str:
    last = rows[-1]
    ends = dict.fromkeys((row.layout.m, row.layout.n) for row in (rows[0], last))
    sizes = " to ".join(f"{m:,} x {n:,}" for m, n in ends)
    return (
        f"{title_of(last.routine)} of {sizes}, {last.dtype.name}, on {last.machine.name}: predicted"
    )


def _draw_rates(axes: Any, rows: Sequence[Forecast]) -> None:
    """Plot the predicted rates, and those of matrix products alone."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    gpus = [row.gpus for row in rows]
    rates = [row.rate / 1e12 for row in rows]
    peaks = [row.gpus * row.peak / 1e12 for row in rows]
    # A single point needs a marker; it is at the top, so the legend must not be there.
    style, place = ("--", "upper left") if len(rows) > 1 else ("s", "center left")
    axes.loglog(gpus, peaks, style, color=MUTED, label="matrix products without end")
    axes.loglog(
        gpus, rates, "o-", color=_COLOURS["network"], label="predicted, and its part of these"
    )
    for x, y, row in zip(gpus, rates, rows, strict=True):
        axes.annotate(
            _percent(row.efficiency), (x, y), (4, -11),
            textcoords="offset points", ha="left", fontsize=8 if len(rows) < 9 else 6, color=INK,
        )  # fmt: skip
    axes.set_xticks(gpus, [str(count) for count in gpus], fontsize=7)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.7g}"))
    axes.minorticks_off()
    axes.margins(x=0.16, y=0.12)
    axes.grid(alpha=0.3)
    axes.set(xlabel="GPUs", ylabel="rate, Tflop/s")
    axes.legend(frameon=False, loc=place, fontsize=9)


def _percent(share: float) -> str:
    """Format a fraction as whole percents; below one, with its first digit that is not 0.

    Examples
    --------
    >>> _percent(0.782), _percent(0.0043)
    ('78 %', '0.4 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1g} %"


def _draw_parts(axes: Any, rows: Sequence[Forecast]) -> None:
    """Plot the parts of the longest chain of waits."""
    names = [str(row.gpus) for row in rows]
    bottoms = [0.0] * len(rows)
    for part in PARTS:
        shares = [100 * row.run.parts[part] / row.seconds for row in rows]
        if max(shares) < 0.1:
            continue
        axes.bar(
            names, shares, bottom=bottoms, color=_COLOURS[part], label=part, edgecolor="white",
            linewidth=0.5,
        )  # fmt: skip
        bottoms = [below + share for below, share in zip(bottoms, shares, strict=True)]
    axes.tick_params(axis="x", labelsize=7)
    axes.margins(x=0.05 if len(rows) > 1 else 1.0)  # a single bar would fill the chart
    axes.set(xlabel="GPUs", ylabel="longest chain of waits, % of the run", ylim=(0, 100))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], labels[::-1], frameon=False, loc="center left", bbox_to_anchor=(1, 0.5)
    )
