"""A CPU worker beside a slow GPU: both own columns, or one of them alone, in turns.

PYTHONPATH=. python benchmarks/unequal.py                    both four times as slow as a core
PYTHONPATH=. python benchmarks/unequal.py --gpu 4 --cpu 8    the CPU worker twice as slow as the GPU
PYTHONPATH=. python benchmarks/unequal.py --gpu 1 --cpu 1    a core each, on a machine at rest

No GPU is needed: a virtual one computes on a core, and after each kernel both sleep for as long as
their slowdowns say.  They are measured as the planner measures workers, with one BLAS thread.
The contenders take turns; times are medians, with the fastest run beside them.  `predicted` is
the plan's simulation, `columns` those of each worker of its team.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
from harness import write_json
from threadpoolctl import threadpool_limits

from hetero_la.execution.execute import execute
from hetero_la.scheduler.probe.quick import measure_device
from hetero_la.testing.matrices import generate
from tests.slow_gpus import SlowCpu, SlowGpu, cluster_of, known


def compared(
    routine: str, a: np.ndarray, repeats: int, contenders: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Lines of the table, one a contender; these take turns."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    plans = {}
    for repeat in range(repeats + 1):
        for name, options in contenders.items():
            report = execute(routine, a, **options).report
            plans[name] = report.plan
            if repeat:  # the first run plans
                times[name].append(report.timing.seconds)
    rows = []
    for name, plan in plans.items():
        columns = [str(len(program.columns)) for program in plan.programs]
        median, least = statistics.median(times[name]), min(times[name])
        predicted = plan.simulate().makespan
        rows.append({
            "routine": routine, "n": len(a), "team": name, "columns": columns,
            "predicted": predicted, "median": median, "fastest": least,
        })  # fmt: skip
        print(
            f"| {routine} | {len(a)} | {name} | {' + '.join(columns)} | {1e3 * predicted:.0f} ms "
            f"| {1e3 * median:.0f} ms | {1e3 * least:.0f} ms |", flush=True,
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--routines", nargs="+", default=["lu", "cholesky", "qr"])
    parser.add_argument("--n", nargs="+", type=int, default=[1536, 2048])
    parser.add_argument("--nb", type=int, default=128)
    parser.add_argument("--gpu", type=float, default=4.0, help="slowdown of the GPU")
    parser.add_argument("--cpu", type=float, default=4.0, help="slowdown of the CPU worker")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", help="file for the rows")
    args = parser.parse_args()
    with threadpool_limits(1, "blas"):
        gpu = measure_device(SlowGpu("gpu0", args.gpu))
        cpu = measure_device(SlowCpu("cpu0", args.cpu))
    rows = []
    print("| routine | n | team | columns | predicted | median | fastest |")
    print("|---|---|---|---|---|---|---|")
    with (
        cluster_of([args.gpu], args.cpu) as both,
        cluster_of([], args.cpu) as one,
        known({"gpu0": replace(gpu, by_reference=False), "cpu0": cpu}),
    ):
        common = {"nb": args.nb, "client": both}
        contenders = {
            "both": common, "GPU": {**common, "panel": "gpu"},
            "GPU, panels on CPU": {**common, "panel": "cpu"}, "CPU": {**common, "client": one},
        }  # fmt: skip
        for routine in args.routines:
            for n in args.n:
                a = generate("rands", n)
                if routine == "cholesky":
                    a = a @ a.T + n * np.eye(n)
                a = np.asfortranarray(a)
                rows += compared(routine, a, args.repeats, contenders)
    write_json(rows, args.json)


if __name__ == "__main__":
    main()
