"""What recording or watching a run costs: the same runs with and without it, in turn.

python benchmarks/trace_overhead.py                   the CPU: n = 2048, default tiles and nb = 64
python benchmarks/trace_overhead.py --gpu 8192        one GPU, matrix on the device
python benchmarks/trace_overhead.py --cpu 4096 --nb 128 --repeats 15
python benchmarks/trace_overhead.py --watched         runs that somebody looks at twice a second

By default the runs are recorded by `hetero_la.trace()`.

"overhead" is the median over pairs, each of one run with and the one without right before or
after it, of their times' ratio less one; "quartiles" says how far it scatters.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from harness import Case, Row, write_json
from prediction import study_parser

import hetero_la
from hetero_la.scheduler.run.watched import look_around, runs_of
from hetero_la.studies.factorizations.problems import FACTORIZATIONS

Context = Callable[[], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Look at the runs of the block as the page of runs does, and once in each, however short."""
    over = threading.Event()

    def look() -> None:
        while True:
            runs_of(look_around())
            if over.wait(0.5):
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def pairs(run: Callable[[], float], within: Context, repeats: int) -> list[tuple[float, float]]:
    """Seconds without and with a context; who goes first changes from pair to pair."""

    def seen() -> float:
        with within():
            return run()

    run(), seen()
    found = []
    for repeat in range(repeats):
        if repeat % 2:
            recorded, plain = seen(), run()
        else:
            plain, recorded = run(), seen()
        found.append((plain, recorded))
    return found


def row(case: Case, n: int, on_gpu: bool, within: Context) -> Row:
    """One line of the table."""
    if on_gpu:
        import cupy

        device_matrix = cupy.empty((n, n), case.dtype, order="F")

        def run() -> float:
            case.benchmark.fill(device_matrix)
            return float(case.on_device(device_matrix).timing.seconds)
    else:
        host_matrix = case.benchmark.host_matrix(n, case.dtype)

        def run() -> float:
            return float(case.benchmark.factor(host_matrix, nb=case.nb).timing.seconds)

    found = pairs(run, within, case.repeats)
    low, middle, high = statistics.quantiles(
        [recorded / plain - 1 for plain, recorded in found], n=4, method="inclusive"
    )
    return {
        "routine": case.benchmark.routine, "case": "1 GPU" if on_gpu else "CPU", "n": n,
        "nb": case.nb, "plain": statistics.median(plain for plain, _ in found),
        "seen": statistics.median(recorded for _, recorded in found),
        "overhead": middle, "quartiles": [low, high],
    }  # fmt: skip


def show(found: Row) -> None:
    """Print a row."""
    low, high = found["quartiles"]
    print(
        f"{found['routine']:<10}{found['case']:<7}{found['n']:>7}{found['nb'] or 'auto':>6}"
        f"{found['plain']:>10.4f}{found['seen']:>10.4f}{found['overhead']:>10.1%}"
        f"{f'{low:.1%} to {high:.1%}':>19}",
        flush=True,
    )


def main(argv: list[str] | None = None) -> int:
    """Run, print, and perhaps write JSON."""
    parser = study_parser(__doc__, repeats=21)
    parser.add_argument("--nb", type=int, nargs="+", metavar="NB")
    parser.add_argument("--watched", action="store_true", help="watched instead of recorded")
    args = parser.parse_args(argv)
    within: Context = watched if args.watched else hetero_la.trace
    orders = args.cpu if args.cpu is not None else [2048] * (not args.gpu)
    sizes: list[Any] = args.nb or [None, 64]
    seen = "watched s" if args.watched else "traced s"
    print(
        f"{'routine':<10}{'case':<7}{'n':>7}{'nb':>6}{'plain s':>10}{seen:>10}"
        f"{'overhead':>10}{'quartiles':>19}"
    )
    found = []
    for name in args.routines:
        for n, on_gpu in [(n, False) for n in orders] + [(n, True) for n in args.gpu]:
            for nb in sizes:
                found.append(
                    row(Case(FACTORIZATIONS[name], args.dtype, args.repeats, nb), n, on_gpu, within)
                )
                show(found[-1])
    write_json(found, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
