"""The energy of factorizations: joules of the GPU and of the CPU, and operations for each.

Each contender factors for so many seconds, again and again, with a fresh copy of the matrix before
each run.  All factor in place, without a check for NaNs, and the result of the first run, which is
warm-up, is verified.  Counters are read all the while, so that copies count, too, and whatever is
idle.  Before and after the runs there is nothing to do for some seconds.  Joules are gross, all
that the counters count, and net, without the power before the runs.  The GPU's counter is NVML's,
the CPU's is that of the processor packages (RAPL), without the memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import hetero_la
from hetero_la.accuracy.energy import Meter, nvml_counters, rapl_counters
from hetero_la.cli.main import main
from hetero_la.studies.common.columns import SECONDS, WORD, number, percent, rate
from hetero_la.studies.common.plots import bars, finish, panels, style
from hetero_la.studies.common.power import Joules, PowerLog
from hetero_la.studies.common.study import (
    Row,
    Rows,
    Study,
    StudyRun,
    StudyTable,
    rows_of,
    values_of,
)
from hetero_la.studies.common.timing import spread
from hetero_la.studies.factorizations.peers import lapack_factor, seconds_of
from hetero_la.studies.factorizations.problems import FACTORIZATIONS, Factorization
from hetero_la.studies.factorizations.runs import cores_alone, free_gpus
from hetero_la.studies.factorizations.verification import verify

FACTOR, COPY = "factor", "copy"
BEFORE, AFTER = "idle before", "idle after"


def counters_of(run: StudyRun) -> dict[str, Joules]:
    """Return the counters that can be read on this machine; say which cannot."""
    packages = {key: one for key, one in rapl_counters() if key.startswith("package")}
    places = {"CPU": packages}
    if run.has_gpus(1, "energy of a GPU"):
        import cupy

        places["GPU"] = dict(nvml_counters([cupy.cuda.Device(0).pci_bus_id]))
    for place in [place for place, counters in places.items() if not counters]:
        run.leave_out(f"energy of the {place}: its counter is not readable")
        del places[place]
    return {place: Meter(counters).total for place, counters in places.items()}


class RepeatedRuns:
    """Someone who factors a matrix in place.

    Parameters
    ----------
    problem : Factorization
        What is factored.
    given, work : array
        The matrix, which stays as it is, and where it is copied to and factored.
    factor : callable
        Factors its argument; returns packed factors first.
    wait : callable, optional
        Returns once all that was enqueued has run.
    """

    def __init__(
        self, problem: Factorization, given: Any, work: Any, factor: Callable[[Any], Any],
        wait: Callable[[], Any] = lambda: None,
    ) -> None:  # fmt: skip
        self.problem, self._given, self._factor, self._wait = problem, given, factor, wait
        self._a = work
        self.begun: list[tuple[float, str]] = []  #: when each phase began

    def warm_up(self, who: str) -> None:
        """Copy and factor once, and verify the factors."""
        self._a[...] = self._given
        packed, *_ = self._factor(self._a)
        self._wait()
        verify(who, self.problem.routine, self._given, packed)

    def run(self) -> float:
        """Copy and factor once; return the seconds of the factorization."""
        self.begun.append((time.perf_counter(), COPY))
        self._a[...] = self._given
        self._wait()
        self.begun.append((time.perf_counter(), FACTOR))

        def complete() -> None:
            self._factor(self._a)
            self._wait()

        return seconds_of(complete)


def _on_cpu(
    problem: Factorization, n: int, cluster: hetero_la.Cluster | None = None
) -> dict[str, RepeatedRuns]:
    a = problem.host_matrix(n)
    work = a.copy(order="F")
    theirs = partial(lapack_factor, problem.routine, overwrite=True)
    ours = _ours(problem, client=cluster)
    return {
        "CPU, SciPy": RepeatedRuns(problem, a, work, theirs),
        "CPU, hetero_la": RepeatedRuns(problem, a, work, ours),
    }


def _ours(problem: Factorization, **options: Any) -> Callable[[Any], Any]:
    """Return the library's function, in place and without checks."""
    lower = {"lower": True} if problem.definite else {}
    return partial(problem.factor, overwrite_a=True, check_finite=False, **lower, **options)


def _on_gpu(problem: Factorization, n: int, cluster: hetero_la.Cluster) -> dict[str, RepeatedRuns]:
    import cupy

    a, work = cupy.empty((n, n), order="F"), cupy.empty((n, n), order="F")
    problem.fill(a)

    def by_cusolver(matrix: Any) -> tuple[Any]:
        problem.cusolver(matrix)
        return (matrix,)

    # The client keeps runs on the one GPU whose counter is read.
    contenders = {
        "GPU, hetero_la": _ours(problem, client=cluster, panel="gpu"),
        "GPU, cuSOLVER": by_cusolver,
        "GPU, panels on the CPU": _ours(problem, client=cluster, panel="cpu"),
    }
    wait = cupy.cuda.Device().synchronize
    return {
        who: RepeatedRuns(problem, a, work, factor, wait) for who, factor in contenders.items()
    }  # fmt: skip


def _measured(
    run: StudyRun, counters: Mapping[str, Joules], n: int, who: str, one: RepeatedRuns
) -> Row:
    """Return the row of a contender, with its power over time."""
    run.report(f"{one.problem.routine}, {who}, n = {n}")
    one.warm_up(who)
    time.sleep(run.sizes["pause"])
    before = _idle(run, counters)
    taken: list[float] = []
    with PowerLog(counters, run.sizes["interval"]) as log:
        began = time.perf_counter()
        while time.perf_counter() - began < run.sizes["seconds"]:
            taken.append(one.run())
    after = _idle(run, counters)
    idle = [
        sample
        for phase, quiet in ((BEFORE, before), (AFTER, after))
        for sample in _power(quiet, began, [(0.0, phase)])
    ]
    return {
        "table": "energy", "routine": one.problem.routine, "who": who, "n": n,
        "runs": len(taken), **spread(taken), "factoring": sum(taken) / log.seconds,
        **_energy(one.problem.flops(n), len(taken), log, before),
        "watts after": sum(after.joules.values()) / after.seconds,
        "power": list(_power(log, began, one.begun)), "idle power": idle,
    }  # fmt: skip


def _idle(run: StudyRun, counters: Mapping[str, Joules]) -> PowerLog:
    """Log the power of some seconds in which nothing is done."""
    with PowerLog(counters, run.sizes["interval"]) as log:
        time.sleep(run.sizes["idle"])
    return log


def _energy(flops: float, runs: int, log: PowerLog, before: PowerLog) -> Row:
    """Return the entries of a row for joules, gross and without the power before the runs."""
    idle = {name: value / before.seconds for name, value in before.joules.items()}
    gross = sum(log.joules.values()) / runs
    net = gross - sum(idle.values()) * log.seconds / runs
    return {
        "joules": gross, "net joules": net, "watts": gross * runs / log.seconds,
        "watts before": sum(idle.values()), "flop/s/W": flops / gross,
        "net flop/s/W": flops / net if net > 0 else None,  # a short run may drown in noise
        **{f"{name} watts": value / log.seconds for name, value in log.joules.items()},
        **{f"{name} idle": value for name, value in idle.items()},
    }  # fmt: skip


def _power(log: PowerLog, began: float, phases: list[tuple[float, str]]) -> Iterator[Row]:
    """Yield the power of each interval, with the phase in which it ends."""
    for when, watts in log.samples():
        *_, phase = (phase for start, phase in phases if start <= when)
        yield {"t": when - began, "watts": sum(watts.values()), "phase": phase}


def measure(run: StudyRun) -> Iterator[Row]:
    """Measure each contender for some seconds, where there are counters."""
    counters = counters_of(run)
    if "GPU" in counters and "CPU" not in counters:
        run.leave_out("the CPU's part of the energy of runs on a GPU: joules are of the GPU alone")
    for routine in run.sizes["routines"] if counters else ():
        problem = FACTORIZATIONS[routine]
        if "CPU" in counters:
            n = run.sizes["CPU"]
            with cores_alone(run.gpus) as cluster:
                for who, one in _on_cpu(problem, n, cluster).items():
                    yield _measured(run, counters, n, who, one)
        if "GPU" in counters:
            n = run.sizes["GPU"]
            with hetero_la.Cluster(gpus=1, cpus=1) as cluster:
                for who, one in _on_gpu(problem, n, cluster).items():
                    yield _measured(run, counters, n, who, one)
            free_gpus(1)


def find(rows: Rows) -> list[str]:
    """Say who does most for a joule, by routine."""
    found = []
    for routine in values_of(rows, "routine"):
        shown = rows_of(rows, "energy", routine=routine)
        best = max(shown, key=lambda row: row["flop/s/W"])
        others = ", ".join(
            f"{row['who']} (n = {row['n']}) {row['flop/s/W'] / best['flop/s/W']:.2f}"
            for row in shown if row != best
        )  # fmt: skip
        alone = "" if "CPU watts" in best else " of the GPU alone"
        net = best.get("net flop/s/W")
        found.append(
            f"{routine}: {best['who']} (n = {best['n']}) does {best['flop/s/W'] / 1e9:.3g} "
            f"Gflop/s/W with {best['watts']:.0f} W{alone}, copies and idle power included"
            + (f" ({net / 1e9:.3g} without idle power)" if net else "")
            + f"; others, as parts of the former: {others or 'none'}."
        )
    return found


def draw(figure: Any, rows: Rows) -> None:
    """Draw operations for a joule, and the power of each contender over time."""
    energy = rows_of(rows, "energy")
    routines = values_of(energy, "routine")
    drawn = panels(figure, 2 * len(routines))
    for axes, power, routine in zip(drawn[::2], drawn[1::2], routines, strict=True):
        shown = rows_of(energy, "energy", routine=routine)
        names = [f"{row['who']}, n = {row['n']}" for row in shown]
        bars(axes, names, [row["flop/s/W"] / 1e9 for row in shown], list(range(len(shown))))
        finish(axes, f"{routine}: operations for a joule", "Gflop/s/W", "", logarithmic="")
        for i, row in enumerate(shown):
            times, watts = ([sample[key] for sample in row["power"]] for key in ("t", "watts"))
            copies = [at for at, one in enumerate(row["power"]) if one["phase"] == COPY]
            power.plot(times, watts, label=row["who"], markevery=copies, **style(i))
            _draw_idle(power, row, style(i)["color"])
        title = f"{routine}: power; marks: while copying; dotted: idle"
        finish(power, title, "seconds", "W", logarithmic="")
        power.set_ylim(bottom=0)


def _draw_idle(axes: Any, row: Row, colour: str) -> None:
    """Draw the power before and after the runs of a row."""
    for phase in (BEFORE, AFTER):
        idle = [sample for sample in row.get("idle power", ()) if sample["phase"] == phase]
        times, watts = ([sample[key] for sample in idle] for key in ("t", "watts"))
        axes.plot(times, watts, color=colour, ls=":", lw=1.3)


_WATTS = {f"{place} {what}": number() for what in ("watts", "idle") for place in ("CPU", "GPU")}

STUDY = Study(
    name="energy",
    question="How many operations does a joule pay for, on the GPU, on the CPU, and on both?",
    source="GPU-only LU and Cholesky, 2018, Table 1, Figures 17 to 19",
    original="GPU alone does 50 % more Gflop/s/W than hybrid runs, and 6 to 7 times as many as the "
    "CPU",
    tables=(
        StudyTable(
            "energy",
            "again and again; joules of a run, with its copy: gross, and net of the power before",
            {"routine": WORD, "who": WORD, "n": number(), "runs": str, **SECONDS,
             "factoring": percent, "joules": number(), "net joules": number(),
             "flop/s/W": rate("flop/s/W"), "net flop/s/W": rate("flop/s/W"), "watts": number(),
             "watts before": number(), "watts after": number(), **_WATTS},
        ),
    ),
    sizes={
        "routines": ["lu", "cholesky", "qr"], "CPU": 8192, "GPU": 32768, "seconds": 6.0,
        "idle": 3.0, "pause": 3.0, "interval": 0.1,
    },
    quick={
        "routines": ["lu"], "CPU": 256, "GPU": 2048, "seconds": 0.3, "idle": 0.1, "pause": 0.0,
        "interval": 0.05,
    },
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
