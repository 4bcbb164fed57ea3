"""Plots of studies, in colours that people with any common deficiency of colour vision tell apart.

Lines differ in their markers as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_la.io.outputs import replacing_file
from hetero_la.pictures.palette import SERIES
from hetero_la.studies.common.study import Rows, Study

_MARKERS = "os^Dv<>P*X"
#: Inches of a panel.
_WIDTH, _HEIGHT = 4.2, 3.2
#: Lines of a legend for which there is room inside a panel.
_INSIDE = 5


def panels(figure: Any, number: int, across: int = 2) -> list[Any]:
    """Return so many panels of a figure, which gets the size for them."""
    across = min(across, number)
    down = -(-number // across)
    figure.set_size_inches(_WIDTH * across, _HEIGHT * down)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for unused in axes[number:]:
        unused.remove()
    return axes[:number]


def style(number: int) -> dict[str, Any]:
    """Return colour and marker of the line of this number.

    Examples
    --------
    >>> style(0)["color"], style(0)["marker"] == style(7)["marker"]
    ('#0072B2', False)
    """
    marker = _MARKERS[number % len(_MARKERS)]
    return {"color": SERIES[number % len(SERIES)], "marker": marker, "ms": 4, "lw": 1.3}


def line(axes: Any, rows: Rows, x: str, y: str, label: str, number: int, **more: Any) -> None:
    """Draw entry `y` of rows over entry `x`, and the range of samples if `y` is their median."""
    shown = [row for row in rows if row.get(y) is not None]
    xs, ys = [row[x] for row in shown], [row[y] for row in shown]
    how = style(number) | more
    axes.plot(xs, ys, label=label, **how)
    if y == "seconds":
        least, most = ([row[end] for row in shown] for end in ("least", "most"))
        axes.fill_between(xs, least, most, color=how["color"], alpha=0.2, lw=0)


def bars(
    axes: Any, labels: Sequence[str], values: Sequence[float], colours: Sequence[int] | None = None,
    *, logarithmic: bool = False,
) -> None:  # fmt: skip
    """Draw a bar for each value, from top to bottom, in colours by number.

    On a logarithmic axis, which has no zero to begin at, they are dots.
    """
    places, numbers = range(len(values)), colours or [0] * len(values)
    for place, value, number in zip(places, values, numbers, strict=True):
        how = style(number)
        if logarithmic:
            axes.plot([value], [place], **how)
        else:
            axes.barh(place, value, color=how["color"])
    axes.set_yticks(places, labels, fontsize=6)
    axes.invert_yaxis()
    if logarithmic:
        axes.set_xscale("log")


def finish(
    axes: Any, title: str, x: str, y: str, *, logarithmic: str = "xy", grid: bool = True
) -> None:
    """Name a panel and its axes, of which those in `logarithmic` are so: x to the base 2.

    A legend of many lines stands beside the panel.
    """
    if "x" in logarithmic:
        axes.set_xscale("log", base=2)
    if "y" in logarithmic:
        axes.set_yscale("log")
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(which="both", labelsize=7)
    axes.grid(grid, **({"alpha": 0.3} if grid else {}))
    if lines := len(axes.get_legend_handles_labels()[0]):
        beside = {"loc": "upper left", "bbox_to_anchor": (1.01, 1)} if lines > _INSIDE else {}
        axes.legend(fontsize=7, **beside)


def shared_legend(figure: Any, columns: int) -> None:
    """Put one legend under all panels, in so many columns, in the place of theirs."""
    labelled: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            labelled.setdefault(label, handle)
        if legend := axes.get_legend():
            legend.remove()
    figure.legend(
        labelled.values(), labelled, loc="outside lower center", ncols=columns, fontsize=7
    )


def heat_map(
    figure: Any, axes: Any, values: Sequence[Sequence[float]], rows: Sequence[Any],
    columns: Sequence[Any], label: str,
) -> None:  # fmt: skip
    """Draw a matrix as colours of one hue order, light to dark, with its numbers."""
    shown = axes.imshow(values, cmap="cividis", vmin=0, aspect="auto", origin="lower")
    axes.set_xticks(range(len(columns)), columns, fontsize=7)
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    figure.colorbar(shown, ax=axes, label=label)
    middle = (shown.norm.vmin + shown.norm.vmax) / 2
    for i, line_of in enumerate(values):
        for j, value in enumerate(line_of):
            colour = "black" if value > middle else "white"
            axes.text(j, i, f"{value:.3g}", ha="center", va="center", fontsize=6, color=colour)


def write_plot(study: Study, rows: Rows, path: Path) -> None:
    """Draw the rows of a study to a file whose suffix says the format; needs Matplotlib."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    study.draw(figure, rows)
    # The same rows give the same file; letters of an SVG stay letters.
    how = {"svg.hashsalt": study.name, "svg.fonttype": "none"}
    with matplotlib.rc_context(how), replacing_file(path) as unfinished:
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(unfinished, format=path.suffix[1:], dpi=150, metadata=metadata)
