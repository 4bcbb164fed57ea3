"""Right-looking and left-looking runs of one matrix that fits in memory, in turns.

python benchmarks/orders.py 1024 2048              the CPU, matrix in memory
python benchmarks/orders.py --gpu 4096 32768       one GPU, matrix on the device

Both orders run the same tasks; "left" is the seconds of the left-looking run over those of the
right-looking one, as a median over turns of what the two took in the same one.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

from harness import Row, write_json

from hetero_la.studies.factorizations.problems import FACTORIZATIONS, Factorization
from hetero_la.studies.factorizations.runs import ResidentRuns, free_gpus, seconds_in_turns

RATIOS = ("left", "least", "most")


def measure(problem: Factorization, n: int, gpu: bool, turns: int) -> Row:
    """Run both orders in turns."""
    runs = ResidentRuns(problem, n, gpu)
    plans = {order: runs.plan(order=order) for order in ("right", "left")}
    taken = seconds_in_turns(
        {order: partial(runs.seconds, plan) for order, plan in plans.items()}, turns
    )
    ratios = [left / right for right, left in zip(taken["right"], taken["left"], strict=True)]
    return {
        "routine": problem.routine, "n": n, "seconds": statistics.median(taken["right"]),
        "left": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("n", nargs="*", type=int, default=[1024, 2048])
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    print(f"| routine | n | right-looking ms | {' | '.join(RATIOS)} |\n|---|---|---|---|---|---|")
    rows = []
    for order in args.n:
        for problem in FACTORIZATIONS.values():
            rows.append(row := measure(problem, order, args.gpu, args.turns))
            cells = [f"{row['seconds'] * 1e3:.2f}", *(f"{row[k]:.2f}" for k in RATIOS)]
            print(f"| {problem.routine} | {order} | {' | '.join(cells)} |")
            free_gpus(int(args.gpu))
    write_json(rows, args.json)
