"""See it: the task graph before a run, and the timeline after it.

    python examples/10_pictures.py
    python examples/10_pictures.py --n 2000 --nb 250 --gpus 2 --out pictures

Draws the tasks of an LU factorization on two workers: a small graph task by task, a large
one collapsed, and as a page that plays the predicted run, and zooms in from the whole into the
tiles of one task.  Then it runs the factorization, and draws who did what when, as a chart, a
page and an animation (if there is Matplotlib).  Open the .html files in a browser, and the .json
in https://ui.perfetto.dev.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path

import numpy as np
from distributed import Client

import hetero_la
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.graph.analysis import average_parallelism, critical_path, total_work, width


def draw_graphs(client: Client, folder: Path) -> None:
    """Before a run: what it is made of, and how much of it can go on at once."""
    workers = worker_infos(client)
    small = hetero_la.plan("lu", (500, 500), nb=100, workers=workers)
    large = hetero_la.plan("lu", (3000, 3000), nb=100, workers=workers)
    small.draw(folder / "graph.svg")
    large.draw(folder / "large.svg")
    large.draw(folder / "large.html")  # plays the predicted run

    seconds = large.task_seconds
    path = critical_path(large.graph, seconds)
    on_path = [large.graph.tasks[index].kind for index in path]
    print(f"{len(large.graph)} tasks, {total_work(large.graph, seconds):.3g} s of work")
    print(f"critical path: {len(path)} tasks, {on_path.count('getrf')} of them panels")
    print(f"parallelism: {average_parallelism(large.graph, seconds):.3g} on average, "
          f"at most {width(large.graph, seconds).tasks.max()}")  # fmt: skip


def draw_run(client: Client, n: int, nb: int, folder: Path) -> None:
    """After a run: who did what when, and what the rest of the time went to."""
    a = np.random.default_rng(0).standard_normal((n, n))
    hetero_la.lu_factor(a, nb=nb, client=client)  # the first run loads libraries
    with hetero_la.trace() as trace:
        hetero_la.lu_factor(a, nb=nb, client=client)
    animated = ["gif"] if importlib.util.find_spec("matplotlib") else []
    for suffix in ("svg", "html", "json", *animated):
        trace.write(folder / f"timeline.{suffix}")

    (run,) = trace.runs
    for worker, parts in zip(run.plan.workers, run.parts(), strict=True):
        shares = ", ".join(f"{part} {t / run.seconds:.0%}" for part, t in parts.items())
        print(f"{worker.name}: {shares}")
        assert abs(sum(parts.values()) - run.seconds) < 1e-9
    print(f"the parts of every worker's time add up to the run's {run.seconds:.3f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description="The task graph and the timeline.")
    parser.add_argument("--n", type=int, default=1200, help="order of the matrix that is run")
    parser.add_argument("--nb", type=int, default=128, help="its tile size")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs; without, two virtual ones")
    parser.add_argument("--out", type=Path, help="folder to write to (default: a new one)")
    arguments = parser.parse_args()
    folder = arguments.out or Path(tempfile.mkdtemp(prefix="hetero-la-pictures-"))
    folder.mkdir(parents=True, exist_ok=True)
    workers = {"gpus": arguments.gpus} if arguments.gpus else {"virtual_gpus": 2, "gpus": 0}
    with hetero_la.Cluster(cpus=0, **workers) as cluster, cluster.get_client() as client:
        draw_graphs(client, folder)
        draw_run(client, arguments.n, arguments.nb, folder)
    print(f"written to {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
