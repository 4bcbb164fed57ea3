"""Draw the charts of docs/performance/index.md, and write its tables, from the figures beside it.

    python docs/performance/draw.py
    python benchmarks/crossover.py --orders 2500 3000 3500 4096 --json here.json
    python docs/performance/draw.py two_cores here.json         # takes these figures first

A file of figures has two lists of values in each row: ours, and a peer's.  Figures are times,
unless the file says `ours_over_peer`.  Where only ratios are known, the peer's are 1 and the file
says `relative`: its table shows the ratio alone.  Figures of other benchmarks are changed there.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
IMAGES = HERE.parent / "images"
PAGE = HERE / "index.md"
#: What the README shows, a panel for each.
SHOWN = ("one_gpu", "several_gpus", "two_cores", "dask_arrays")
#: What crossovers call some functions.
FUNCTIONS = {"qr, economic": "qr", "solve, positive definite": "solve positive"}


def read(name: str) -> dict[str, Any]:
    """Read a file of figures."""
    return json.loads((HERE / "figures" / f"{name}.json").read_text(encoding="utf-8"))


def take(name: str, measured: Path) -> None:
    """Write the medians of a crossover, of NumPy arrays or at another place, into a file."""
    figures = read(name)
    units = {"µs": 1e6, "ms": 1e3}[figures["unit"]] / figures.get("matrices", 1)
    place = figures.get("place", "host")
    times: dict[tuple[str, int], dict[str, float]] = {}
    for row in json.loads(measured.read_text(encoding="utf-8")):
        if row["where"] == place:
            contenders = times.setdefault((row["function"], row["n"]), {})
            contenders[row["who"]] = float(f"{median(row['seconds']) * units:.4g}")
    for row, (at, n) in itertools.product(figures["rows"], enumerate(figures["orders"])):
        contenders = times.get((FUNCTIONS.get(row["what"], row["what"]), n), {})
        if len(contenders) > 1:
            ours, peers = row["values"]
            ours[at] = contenders["hetero_la"]
            peers[at] = min(time for who, time in contenders.items() if who != "hetero_la")
    path = HERE / "figures" / f"{name}.json"
    path.write_text(_as_json(figures), encoding="utf-8")


def _as_json(figures: dict[str, Any]) -> str:
    """Return figures as text, with a row on each line."""
    rows = ",\n".join(f"  {json.dumps(row)}" for row in figures["rows"])
    head = json.dumps({**figures, "rows": []}, indent=1)
    return head.replace('"rows": []', f'"rows": [\n{rows}\n ]') + "\n"


def ratios(figures: dict[str, Any], row: dict[str, Any]) -> list[float | None]:
    """Return the ratio of the chart, at each order that was measured."""
    turned = -1 if figures.get("ours_over_peer") else 1
    return [
        None if ours is None else (peer / ours) ** turned
        for ours, peer in zip(*row["values"], strict=True)
    ]


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def table(figures: dict[str, Any]) -> str:
    """Return a table: ours / the peer's and in brackets the ratio of the chart, or that alone."""
    head, alone = " / ".join(figures["names"]), figures.get("relative", False)
    lines = [
        f"| {head}, {figures['unit']} | " + " | ".join(map(str, figures["orders"])) + " |",
        "|---" * (1 + len(figures["orders"])) + "|",
    ]
    for row in figures["rows"]:
        cells = [
            "" if ratio is None
            else f"{ratio:.2f}" if alone
            else f"{_number(ours)} / {_number(peer)} ({ratio:.2f})"
            for ours, peer, ratio in zip(*row["values"], ratios(figures, row), strict=True)
        ]  # fmt: skip
        lines.append(f"| {row['what']} | " + " | ".join(cells) + " |")
    where, chart = figures["where"], figures["chart"]
    what = f"{chart[0].upper()}{chart[1:]}" if alone else f"In brackets: {chart}"
    return (
        "\n".join(lines)
        + f"\n\n{where[0].upper()}{where[1:]}.  {what}.\n\n"
        + f"```bash\n{figures['command']}\n```\n"
    )


def with_tables(page: str) -> str:
    """Return the text of the page with its tables written anew."""

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        chart = read(name)["chart"]
        picture = f"![Chart of the table: {chart}](../images/speed_{name}.svg)"
        return f"<!-- {name} -->\n\n{picture}\n\n{table(read(name))}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", replaced, page, flags=re.DOTALL)


def _panel(axes: Any, figures: dict[str, Any]) -> None:
    """Draw a line for each row; above one, we are faster."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for row in figures["rows"]:
        found = zip(figures["orders"], ratios(figures, row), strict=True)
        points = [(order, ratio) for order, ratio in found if ratio is not None]
        axes.plot(*zip(*points, strict=True), "o-", ms=4, label=row["what"])
    axes.axhline(1, color="0.3", lw=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.8), max(high, 2.2))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xticks(figures["orders"], figures["orders"], fontsize=7)
    axes.tick_params(axis="y", labelsize=8)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(figures["along"], fontsize=8)
    axes.set_title(figures["chart"], fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def draw(names: Sequence[str], path: Path) -> None:
    """Draw a panel for each file of figures."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure((2.5 * len(names) if names[1:] else 6.5, 2.9), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)
    for axes, name in zip(panels.flat, names, strict=True):
        _panel(axes, read(name))
    # The same figures give the same file.
    with matplotlib.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Draw all charts, and write the tables."""
    if sys.argv[1:]:
        take(sys.argv[1], Path(sys.argv[2]))
    for path in sorted((HERE / "figures").glob("*.json")):
        draw([path.stem], IMAGES / f"speed_{path.stem}.svg")
    draw(SHOWN, IMAGES / "speed.svg")
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
