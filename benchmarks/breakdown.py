"""Where the time of one run on one GPU goes, and what each optimization is worth.

python benchmarks/breakdown.py lu 8192 16384 32768
python benchmarks/breakdown.py cholesky 32768 --plot FILE.svg --json FILE.json

The first table is Volkov and Demmel's Figure 10 (SC 2008): every moment of the run belongs
to one kind of work, the first in the order of the columns that is running then, so a row
adds up to the run ("idle" is the rest: before the first kernel, too, and after the last one);
"under" is panel time hidden under the update.  The second is their Figure 11: the run without
one of its optimizations, over the run with all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness import Case
from prediction import ROUTINES

import hetero_la
from hetero_la.scheduler.cluster.clients import worker_infos
from hetero_la.scheduler.run.inline import run_inline
from hetero_la.scheduler.run.runner import Runner
from hetero_la.studies.factorizations import ablation
from hetero_la.studies.factorizations.peers import seconds_of
from hetero_la.tiles.kernels.device import Queue
from hetero_la.tiles.kernels.gpu.device import GpuDevice

#: Kinds of work, the most useful first, and the kernels that do them.
WORK = {
    "update": ("gemm", "gemm_block", "gemm_nc", "herk", "larfb_c"),
    "solve": ("trmm", "trmm_rc"),
    "row swaps": ("swap",),
    "panel": ("getrf", "netperm", "trtri", "potrf", "trtri_n", "geqrf", "lacpy"),
    "left swaps": ("compose", "laswp"),
}
OF_KERNEL = {kernel: work for work, kernels in WORK.items() for kernel in kernels}


class Span(NamedTuple):
    """A kernel call's time on the GPU, in ms since the first."""

    work: str
    start: float
    stop: float


class TimedGpu(GpuDevice):
    """A GPU that brackets every call with events."""

    def __init__(self, index: int, name: str) -> None:
        super().__init__(index, name)
        self._calls: list[tuple[str, Any, Any]] = []

    def call(self, kernel: str, queue: Queue, arrays: Any, options: Any) -> None:
        """Enqueue `kernel` between two events."""
        start, stop = self._event(queue), None
        super().call(kernel, queue, arrays, options)
        stop = self._event(queue)
        self._calls.append((kernel, start, stop))

    def _event(self, queue: Queue) -> Any:
        import cupy

        event = cupy.cuda.Event()
        event.record(self._queues[queue].stream)
        return event

    def spans(self) -> list[Span]:
        """What the calls since the last time took; after `synchronize`."""
        import cupy

        first = self._calls[0][1]
        calls, self._calls = self._calls, []
        return [
            Span(
                OF_KERNEL.get(kernel, kernel),
                cupy.cuda.get_elapsed_time(first, start),
                cupy.cuda.get_elapsed_time(first, stop),
            )
            for kernel, start, stop in calls
        ]


def shares(spans: list[Span], ms: float) -> dict[str, float]:
    """Milliseconds of each kind of work; what is left of the run's `ms` is "idle".

    Where several kinds run at once, the moment belongs to the first in `WORK`.
    """
    order = [*WORK, *sorted({span.work for span in spans} - set(WORK))]
    found = dict.fromkeys(order, 0.0)
    changes = sorted(
        [(span.start, span.work, 1) for span in spans]
        + [(span.stop, span.work, -1) for span in spans]
    )
    running, before = dict.fromkeys(order, 0), 0.0
    for when, work, change in changes:
        current = next((kind for kind in order if running[kind]), None)
        if current is not None:
            found[current] += when - before
        running[work] += change
        before = when
    return {**found, "idle": ms - sum(found.values())}


def busy(spans: list[Span], work: str) -> float:
    """Milliseconds that calls of one kind of work take, hidden or not."""
    return sum(span.stop - span.start for span in spans if span.work == work)


@dataclass
class Bench:
    """One routine on one GPU."""

    case: Case
    client: Any

    def plan(self, n: int, routine: str | None = None, **options: Any) -> Any:
        workers = [w for w in worker_infos(self.client) if w.kind == "gpu"]
        routine = routine or self.case.benchmark.routine
        return hetero_la.plan(routine, (n, n), self.case.dtype, workers=workers, **options)

    def inline(self, plan: Any, device: GpuDevice) -> float:
        """Seconds of a run in this thread."""
        job, storage = plan.job(), self.case.storage(plan)
        with device.activate():
            return seconds_of(lambda: run_inline(Runner(job, 0, device, storage)))

    def breakdown(self, n: int) -> dict[str, Any]:
        """Shares of a run of order n; of the repeats, the one of median time."""
        plan = self.plan(n)
        device = TimedGpu(0, plan.workers[0].name)
        runs = []
        for _ in range(self.case.repeats + 1):
            seconds = self.inline(plan, device)
            runs.append((seconds, device.spans()))
        seconds, spans = sorted(runs[1:], key=lambda run: run[0])[self.case.repeats // 2]
        found = shares(spans, 1e3 * seconds)
        hidden = busy(spans, "panel") - found["panel"]
        flops = plan.flops / seconds / 1e12
        return {"n": n, "ms": 1e3 * seconds, "tflops": flops, "under": hidden, **found}

    def without(self, n: int) -> dict[str, float]:
        """Seconds with all optimizations, and without each; in turn, medians."""
        plan = self.plan(n)
        name = plan.workers[0].name
        plain, single = GpuDevice(0, name), ablation.SingleQueueGpu(0, name)
        cases: dict[str, Callable[[], float]] = {
            "all": lambda: self.inline(plan, plain),
            "no look-ahead": lambda: self.inline(self.plan(n, lookahead=0), plain),
            "no overlap of queues": lambda: self.inline(plan, single),
        }
        if self.case.benchmark.routine == "lu":
            cases |= self._without_for_lu(n, plain)
        cases |= {
            "all, on Dask": lambda: self.case.on_dask(self.client, plan),
            "on Dask, a task a step": lambda: self.case.on_dask(self.client, plan, window=1),
        }
        seconds = self.case.measure(cases)
        return {case: statistics.median(taken) for case, taken in seconds.items()}

    def _without_for_lu(self, n: int, device: GpuDevice) -> dict[str, Callable[[], float]]:
        def serial_swaps() -> float:
            with ablation.swaps_one_by_one():
                return self.inline(self.plan(n), device)

        def trsm() -> float:
            with ablation.solves_by_trsm():
                return self.inline(self.plan(n), device)

        return {
            "triangular solve by cuBLAS's trsm": trsm,
            "swaps one by one": serial_swaps,
            "left swaps at every step": lambda: self.inline(
                self.plan(n, ablation.EAGER_LU), device
            ),
        }


@contextmanager
def cluster() -> Iterator[Any]:
    """A cluster of this machine's first GPU, with its client."""
    with hetero_la.Cluster(gpus=1, cpus=0) as running:
        yield running.private_client()


def show(rows: list[dict[str, Any]], missing: dict[int, dict[str, float]]) -> None:
    """Print both tables."""
    works = [key for key in rows[0] if key not in ("n", "ms", "tflops")]
    print(f"{'n':>7}{'ms':>10}{'TFLOP/s':>9}" + "".join(f"{work:>12}" for work in works))
    for row in rows:
        parts = "".join(f"{100 * row.get(work, 0) / row['ms']:>11.1f}%" for work in works)
        print(f"{row['n']:>7}{row['ms']:>10.2f}{row['tflops']:>9.2f}{parts}")
    for n, cases in missing.items():
        print(f"\nn = {n}{'ms':>38}{'x all':>9}")
        for case, seconds in cases.items():
            print(f"  {case:<36}{1e3 * seconds:>8.2f}{seconds / cases['all']:>9.3f}")


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and write what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("routine", choices=ROUTINES)
    parser.add_argument("n", type=int, nargs="+")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE", help="needs matplotlib")
    args = parser.parse_args(argv)
    with cluster() as client:
        bench = Bench(Case(ROUTINES[args.routine], "float64", args.repeats, None), client)
        rows = [bench.breakdown(n) for n in args.n]
        missing = {n: bench.without(n) for n in args.n}
    show(rows, missing)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"routine": args.routine, "shares": rows, "without": missing}, file, indent=1)
    if args.plot:
        from breakdown_plot import draw

        draw(args.routine, rows, missing, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
