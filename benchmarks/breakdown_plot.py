"""The tables of breakdown.py as a picture."""

from __future__ import annotations

from typing import Any

#: Okabe and Ito's colours, which colour-blind readers tell apart.
COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#F0E442", "#CC79A7", "#D55E00")


def draw(
    routine: str,
    rows: list[dict[str, Any]],
    missing: dict[int, dict[str, float]],
    path: str,
) -> None:
    """Write stacked shares of the time, and the slow-down without each optimization."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    works = [key for key in rows[0] if key not in ("n", "ms", "tflops", "under")]
    bottoms, labels = [0.0] * len(rows), [str(row["n"]) for row in rows]
    for work, colour in zip(works, [*COLOURS, *COLOURS], strict=False):
        heights = [100 * row.get(work, 0) / row["ms"] for row in rows]
        if max(heights) < 0.5:
            continue
        left.bar(labels, heights, bottom=bottoms, color="#BBBBBB" if work == "idle" else colour,
                 label=work, edgecolor="white", linewidth=0.5)  # fmt: skip
        bottoms = [b + h for b, h in zip(bottoms, heights, strict=True)]
    left.set(xlabel="order n", ylabel="share of the run, %", title=f"{routine}: one GPU, FP64")
    left.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    cases = [case for case in next(iter(missing.values())) if case != "all"]
    height = 0.8 / len(missing)
    for place, (n, seconds) in enumerate(missing.items()):
        at = [i + place * height for i in range(len(cases))]
        lost = [100 * (seconds[case] / seconds["all"] - 1) for case in cases]
        bars = right.barh(at, lost, height, color=COLOURS[place % len(COLOURS)], label=f"n = {n}")
        right.bar_label(bars, fmt="%.1f", padding=2, fontsize=8)
    middle = height * (len(missing) - 1) / 2
    right.set_yticks([i + middle for i in range(len(cases))], cases)
    right.invert_yaxis()
    right.margins(x=0.15)
    right.axvline(0, color="black", linewidth=0.8)
    right.set(xlabel="longer than with all of them, %", title="without one optimization")
    right.legend(frameon=False)
    figure.savefig(path, dpi=150)
