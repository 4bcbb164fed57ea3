"""Draw the picture of the README: the task graph of an LU factorization beside its timeline.

python docs/images/draw_run.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import hetero_la
from hetero_la.pictures.charts.gantt import draw_small
from hetero_la.pictures.graph.every_task import draw_every_task
from hetero_la.pictures.scene import Rect, Scene
from hetero_la.pictures.svg import svg

N, NB = 1500, 500
REPEATS = 7
WIDTH = 830  # about as wide as a page shows it, so that the text is legible
TIMELINE = 420  # pixels of the run


def side_by_side(scenes: list[Scene]) -> str:
    """Return one SVG with scenes in a row, in one scale."""
    parts, right = [], 0.0
    for scene in scenes:
        parts.append(svg(scene).replace("<svg", f'<svg x="{right:.0f}"', 1))
        right += scene.width
    size = f'viewBox="0 0 {right:.0f} {max(scene.height for scene in scenes):.0f}" width="{WIDTH}"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, background, *parts, "</svg>\n"])


def main() -> None:
    """Run it a few times, and draw the fastest run."""
    a = np.random.default_rng(0).standard_normal((N, N))
    runs = []
    with hetero_la.Cluster(cpus=0, virtual_gpus=2) as cluster:
        for _ in range(REPEATS):
            with hetero_la.trace() as trace:
                hetero_la.lu_factor(a, nb=NB, client=cluster)
            runs += trace.runs
    best = min(runs, key=lambda run: run.seconds)
    graph = draw_every_task(best.plan.graph.placed())
    tasks = [shape for shape in graph.shapes if isinstance(shape, Rect) and shape.tip]
    graph.height = max(task.y + task.height for task in tasks) + 12  # one legend is enough
    graph.width = 20 + max(task.x + task.width for task in tasks)
    text = side_by_side([graph, draw_small([best], TIMELINE)])
    (Path(__file__).parent / "run.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
