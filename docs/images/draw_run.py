"""Draw the picture of the README: the task graph of an LU factorization beside its timeline.

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
HEIGHT = 520  # of both halves
SIZE = re.compile(r'<svg[^>]*? width="([\d.]+)[a-z]*" height="([\d.]+)[a-z]*"')


def side_by_side(pictures: list[str]) -> str:
    """Return one SVG with others in a row, of one height."""
    parts, right = [], 0.0
    for picture in pictures:
        size = SIZE.search(picture)
        assert size is not None
        width, height = map(float, size.groups())
        width *= HEIGHT / height
        inner = picture[picture.index("<svg") :].replace("<svg", f'<svg x="{right:.0f}"', 1)
        scaled = f' width="{width:.0f}" height="{HEIGHT}"'
        parts.append(re.sub(r' width="[^"]*" height="[^"]*"', scaled, inner, count=1))
        right += width
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right:.0f} {HEIGHT}">\n'
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
        text = side_by_side([file.read_text(encoding="utf-8") for file in files])
    (Path(__file__).parent / "run.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
