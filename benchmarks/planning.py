"""What planning costs, beside the run that it is for.

python benchmarks/planning.py                         LU, Cholesky and QR, one and four GPUs
python benchmarks/planning.py --routines lu --n 65536 --gpus 4 --repeats 9

python benchmarks/planning.py --cpus 1                a CPU worker beside them, matrices on the host

No GPU is needed: the workers are described, and nothing runs.  The time is that from the call
of `make_plan` until the executors could begin (programs, windows and memory decided), the
least of the repeats, each with an empty cache of plans; one small plan warms up the imports.
The predicted time is the plan's own, without `--cpus` for matrices that are on their GPUs.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np
from harness import write_json

from hetero_la.planning import planner
from hetero_la.planning.decisions import Problem
from hetero_la.planning.given import Given
from hetero_la.planning.options import Options
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.placement.workers import WorkerInfo


def team(gpus: int, cpus: int) -> tuple[WorkerInfo, ...]:
    """GPUs and CPU workers of this process, as a cluster would describe them."""
    here = os.getpid()
    return (
        *(WorkerInfo(f"gpu{i}", "gpu", f"inproc://{i}", here, device=i) for i in range(gpus)),
        *(WorkerInfo(f"cpu{i}", "cpu", f"inproc://c{i}", here) for i in range(cpus)),
    )


def planned(routine: str, n: int, gpus: int, cpus: int = 0) -> tuple[float, Plan]:
    """Seconds that a new plan takes, and the plan."""
    planner._cached_plan.cache_clear()
    workers, dtype = team(gpus, cpus), np.dtype("float64")
    began = time.perf_counter()
    problem = Problem(routine, n, n, 0, dtype)
    plan = planner.make_plan(problem, Options(), workers, Given(cpus > 0))
    plan.bytes_needed()
    plan.job()
    return time.perf_counter() - began, plan


def row(routine: str, n: int, gpus: int, cpus: int, repeats: int) -> dict[str, Any]:
    """One line of the table."""
    runs = [planned(routine, n, gpus, cpus) for _ in range(repeats)]
    least, plan = min(seconds for seconds, _ in runs), runs[-1][1]
    return {
        "routine": routine, "n": n, "gpus": gpus, "nb": plan.layout.nb_text,
        "tasks": len(plan.graph),
        "instructions": sum(len(program.instructions) for program in plan.programs),
        "planning": least, "predicted": plan.predicted_seconds,
        "share": least / plan.predicted_seconds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--routines", nargs="+", default=["lu", "cholesky", "qr"])
    parser.add_argument("--n", nargs="+", type=int, default=[8192, 16384, 32768, 65536])
    parser.add_argument("--gpus", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--cpus", type=int, default=0, help="CPU workers beside the GPUs")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", help="file for the rows")
    args = parser.parse_args()
    planned("lu", 2048, 1)
    rows = []
    print("| routine | n | GPUs | nb | tasks | instructions | planning | predicted run | share |")
    print("|---|---|---|---|---|---|---|---|---|")
    for routine in args.routines:
        for gpus in args.gpus:
            for n in args.n:
                found = row(routine, n, gpus, args.cpus, args.repeats)
                rows.append(found)
                print(
                    f"| {routine} | {n} | {gpus} | {found['nb']} | {found['tasks']} "
                    f"| {found['instructions']} | {1e3 * found['planning']:.1f} ms "
                    f"| {1e3 * found['predicted']:.0f} ms | {found['share']:.1%} |"
                )
    write_json(rows, args.json)


if __name__ == "__main__":
    main()
