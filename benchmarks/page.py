"""Frames a second of the page of a run while it scrolls, zooms, pans and plays, in Chromium.

    python benchmarks/page.py --tiles 256 --gpus 4

Needs Chromium.  Without a screen it draws 60 frames a second at most; the time of a frame is that
of the page's own drawing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import hetero_la
from hetero_la.scheduler.placement.workers import WorkerInfo
from tests.pictures.browser import Page, browser

_FRAMES = 180
#: Moves, by name: what is done before each frame; n counts the frames.
_MOVES = {
    "scroll": "document.getElementById('scroller').scrollTop = 3 * (n % 90)",
    "zoom": "player.timeline.zoom(1 + 0.1 * Math.sin(n / 10)); player.redraw()",
    "pan": "if (n === 0) { player.timeline.zoom(8); } player.timeline.pan(3); player.redraw()",
    "play": "if (n === 0) { player.seek(0); player.toggle(); player.redraw(); }",
    "scroll the graph": "if (n === 0) { location.hash = 'graph'; } "
    "document.querySelector('main').scrollTop = 5 * (n % 90)",
}


def frames(page: Page, move: str) -> tuple[float, float]:
    """Frames a second, and the longest time from one frame to the next in milliseconds."""
    return tuple(page.value(f"""new Promise((done) => {{
        const times = [];
        let n = 0;
        const frame = (now) => {{
            times.push(now);
            {move};
            n += 1;
            if (n < {_FRAMES}) {{ requestAnimationFrame(frame); return; }}
            const between = times.slice(10).map((t, at) => t - times[at + 9]);
            const mean = between.reduce((a, b) => a + b, 0) / between.length;
            done([1e3 / mean, Math.max(...between)]);
        }};
        requestAnimationFrame(frame); }})"""))  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", type=int, default=256, help="tiles along a side")
    parser.add_argument("--gpus", type=int, default=4)
    arguments = parser.parse_args()
    gpus = [
        WorkerInfo(f"gpu{at}", "gpu", f"inproc://{at}", device=at) for at in range(arguments.gpus)
    ]
    n = 10 * arguments.tiles
    plan = hetero_la.plan("lu", (n, n), nb=10, workers=gpus)
    with tempfile.TemporaryDirectory() as folder, browser() as page:
        path = Path(folder) / "lu.html"
        began = time.perf_counter()
        plan.draw(path)
        drawn = time.perf_counter()
        page.open(path)
        opened = time.perf_counter() - drawn
        print(f"{len(plan.graph)} tasks: drawn in {drawn - began:.1f} s, "
              f"{path.stat().st_size / 1e6:.1f} MB, opened in {opened:.2f} s")  # fmt: skip
        for name, move in _MOVES.items():
            rate, longest = frames(page, move)
            print(f"{name:<18}{rate:6.1f} frames a second, longest {longest:5.1f} ms")
        assert page.errors == []
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
