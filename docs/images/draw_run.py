"""Draw the picture of the README: the task graph of an LU factorization, and below it its timeline.

python docs/images/draw_run.py
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import numpy as np

import hetero_la

N, NB = 1200, 300
REPEATS = 7
WIDTH = 1000  # of the picture; wider ones are scaled down
SIZE = re.compile(r'<svg[^>]*? width="([\d.]+)[a-z]*" height="([\d.]+)[a-z]*"')


def stacked(pictures: list[str]) -> str:
    """Return one SVG with others below each other."""
    parts, below = [], 0.0
    for picture in pictures:
        size = SIZE.search(picture)
        assert size is not None
        width, height = map(float, size.groups())
        inner = picture[picture.index("<svg") :].replace("<svg", f'<svg y="{below:.0f}"', 1)
        scale = min(1.0, WIDTH / width)
        scaled = f' width="{scale * width:.0f}" height="{scale * height:.0f}"'
        parts.append(re.sub(r' width="[^"]*" height="[^"]*"', scaled, inner, count=1))
        below += scale * height + 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {below:.0f}">\n'
    background = '<rect width="100%" height="100%" fill="white"/>\n'
    return head + background + "\n".join(parts) + "</svg>\n"


def main() -> None:
    """Run it a few times, and draw the fastest run."""
    a = np.random.default_rng(0).standard_normal((N, N))
    with (
        hetero_la.Cluster(cpus=0, virtual_gpus=2) as cluster,
        tempfile.TemporaryDirectory() as path,
    ):
        traces = []
        for _ in range(REPEATS):
            with hetero_la.trace() as trace:
                factors = hetero_la.lu_factor(a, nb=NB, client=cluster)
            traces.append(trace)
        best = min(traces, key=lambda trace: trace.runs[0].seconds)
        files = [Path(path) / "graph.svg", Path(path) / "timeline.svg"]
        factors.plan.draw(files[0])
        best.write(files[1])
        text = stacked([file.read_text(encoding="utf-8") for file in files])
    (Path(__file__).parent / "run.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
