"""What recording a run costs: the same runs with and without `hetero_la.trace()`, in turn.

python benchmarks/trace_overhead.py                   the CPU: n = 2048, default tiles and nb = 64
python benchmarks/trace_overhead.py --gpu 8192        one GPU, matrix on the device
python benchmarks/trace_overhead.py --cpu 4096 --nb 128 --repeats 15

"overhead" is the median over pairs, each of one run with and the one without right before or
after it, of their times' ratio less one; "quartiles" says how far it scatters.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

from harness import Case, Row, write_json
from prediction import ROUTINES, study_parser

import hetero_la


def pairs(run: Callable[[], float], repeats: int) -> list[tuple[float, float]]:
    """Seconds without and with a trace; who goes first changes from pair to pair."""

    def traced() -> float:
        with hetero_la.trace():
            return run()

    run(), traced()
    found = []
    for repeat in range(repeats):
        if repeat % 2:
            recorded, plain = traced(), run()
        else:
            plain, recorded = run(), traced()
        found.append((plain, recorded))
    return found


def row(case: Case, n: int, on_gpu: bool) -> Row:
    """One line of the table."""
    if on_gpu:
        import cupy

        device_matrix = cupy.empty((n, n), case.dtype, order="F")

        def run() -> float:
            case.fill(device_matrix)
            return float(case.on_device(device_matrix).timing.seconds)
    else:
        host_matrix = case.host_matrix(n)

        def run() -> float:
            return float(case.benchmark.factor(host_matrix, nb=case.nb).timing.seconds)

    found = pairs(run, case.repeats)
    low, middle, high = statistics.quantiles(
        [recorded / plain - 1 for plain, recorded in found], n=4, method="inclusive"
    )
    return {
        "routine": case.benchmark.routine, "case": "1 GPU" if on_gpu else "CPU", "n": n,
        "nb": case.nb, "plain": statistics.median(plain for plain, _ in found),
        "traced": statistics.median(recorded for _, recorded in found),
        "overhead": middle, "quartiles": [low, high],
    }  # fmt: skip


def show(found: Row) -> None:
    """Print a row."""
    low, high = found["quartiles"]
    print(
        f"{found['routine']:<10}{found['case']:<7}{found['n']:>7}{found['nb'] or 'auto':>6}"
        f"{found['plain']:>10.4f}{found['traced']:>10.4f}{found['overhead']:>10.1%}"
        f"{f'{low:.1%} to {high:.1%}':>19}",
        flush=True,
    )


def main(argv: list[str] | None = None) -> int:
    """Run, print, and perhaps write JSON."""
    parser = study_parser(__doc__, repeats=21)
    parser.add_argument("--nb", type=int, nargs="+", metavar="NB")
    args = parser.parse_args(argv)
    orders = args.cpu if args.cpu is not None else [2048] * (not args.gpu)
    sizes: list[Any] = args.nb or [None, 64]
    print(
        f"{'routine':<10}{'case':<7}{'n':>7}{'nb':>6}{'plain s':>10}{'traced s':>10}"
        f"{'overhead':>10}{'quartiles':>19}"
    )
    found = []
    for name in args.routines:
        for n, on_gpu in [(n, False) for n in orders] + [(n, True) for n in args.gpu]:
            for nb in sizes:
                found.append(row(Case(ROUTINES[name], args.dtype, args.repeats, nb), n, on_gpu))
                show(found[-1])
    write_json(found, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
