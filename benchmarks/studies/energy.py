"""The energy of factorizations: joules of the GPU and of the CPU, and operations for each.

Each contender factors for so many seconds, again and again, with a fresh copy of the matrix before
each run.  Counters are read all the while, so that copies count, too, and the host's idle cores;
the power before that, with nothing to do, stands beside it.  The GPU's counter is NVML's, the CPU's
is that of the processor packages (RAPL), without the memory.
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
from hetero_la.studies.common.columns import SECONDS, WORD, number, rate
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
from hetero_la.studies.factorizations.peers import seconds_of
from hetero_la.studies.factorizations.problems import FACTORIZATIONS, Factorization
from hetero_la.studies.factorizations.runs import free_gpus

FACTOR, COPY = "factor", "copy"


def counters_of(run: StudyRun) -> dict[str, Joules]:
    """Return the counters that this machine has; say which it has not."""
    places = {"CPU": dict(rapl_counters())}
    if run.has_gpus(1, "energy of a GPU"):
        import cupy

        places["GPU"] = dict(nvml_counters([cupy.cuda.Device(0).pci_bus_id]))
    for place in [place for place, counters in places.items() if not counters]:
        run.leave_out(f"energy of the {place}: no counter can be read")
        del places[place]
    return {place: Meter(counters).total for place, counters in places.items()}


class RepeatedRuns:
    """Someone who factors a matrix in place.

    Parameters
    ----------
    problem : Factorization
        What is factored.
    given : array
        The matrix, which stays as it is.
    factor : callable
        Factors its argument.
    wait : callable, optional
        Returns once all that was enqueued has run.
    """

    def __init__(
        self, problem: Factorization, given: Any, factor: Callable[[Any], Any],
        wait: Callable[[], Any] = lambda: None,
    ) -> None:  # fmt: skip
        self.problem, self._given, self._factor, self._wait = problem, given, factor, wait
        self._a = given.copy(order="F")
        self.begun: list[tuple[float, str]] = []  #: when each phase began

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


def _on_cpu(problem: Factorization, n: int) -> dict[str, RepeatedRuns]:
    a = problem.host_matrix(n)
    ours = partial(problem.factor, overwrite_a=True, check_finite=False)
    return {
        "CPU, SciPy": RepeatedRuns(problem, a, problem.scipy),
        "CPU, hetero_la": RepeatedRuns(problem, a, ours),
    }


def _on_gpu(problem: Factorization, n: int, cluster: hetero_la.Cluster) -> dict[str, RepeatedRuns]:
    import cupy

    a = cupy.empty((n, n), order="F")
    problem.fill(a)
    wait = cupy.cuda.Device().synchronize
    lower = {"lower": True} if problem.definite else {}
    ours = partial(problem.factor, overwrite_a=True, check_finite=False, **lower)
    hybrid = partial(ours, client=cluster, panel="cpu")
    return {
        "GPU, hetero_la": RepeatedRuns(problem, a, ours, wait),
        "GPU, cuSOLVER": RepeatedRuns(problem, a, problem.cusolver, wait),
        "GPU, panels on the CPU": RepeatedRuns(problem, a, hybrid, wait),
    }


def _measured(
    run: StudyRun, counters: Mapping[str, Joules], n: int, who: str, one: RepeatedRuns
) -> Row:
    """Return the row of a contender, with its power over time."""
    run.report(f"{one.problem.routine}, {who}, n = {n}")
    one.run()
    one.begun.clear()
    time.sleep(run.sizes["pause"])
    with PowerLog(counters, run.sizes["interval"]) as before:
        time.sleep(run.sizes["idle"])
    taken: list[float] = []
    with PowerLog(counters, run.sizes["interval"]) as log:
        began = time.perf_counter()
        while time.perf_counter() - began < run.sizes["seconds"]:
            taken.append(one.run())
    joules, flops = sum(log.joules.values()), one.problem.flops(n)
    return {
        "table": "energy", "routine": one.problem.routine, "who": who, "n": n,
        "runs": len(taken), **spread(taken), "flop/s": flops * len(taken) / sum(taken),
        "joules": joules / len(taken), "watts": joules / log.seconds,
        "flop/s/W": flops * len(taken) / joules,
        **{f"{name} watts": value / log.seconds for name, value in log.joules.items()},
        **{f"{name} idle": value / before.seconds for name, value in before.joules.items()},
        "power": list(_power(log, began, one.begun)),
    }  # fmt: skip


def _power(log: PowerLog, began: float, phases: list[tuple[float, str]]) -> Iterator[Row]:
    """Yield the power of each interval, with the phase in which it ends."""
    for when, watts in log.samples():
        *_, phase = (phase for start, phase in phases if start <= when)
        yield {"t": when - began, "watts": sum(watts.values()), "phase": phase}


def measure(run: StudyRun) -> Iterator[Row]:
    """Measure each contender for some seconds, where there are counters."""
    counters = counters_of(run)
    for routine in run.sizes["routines"] if counters else ():
        problem = FACTORIZATIONS[routine]
        n = run.sizes["CPU"]
        if "CPU" in counters:
            for who, one in _on_cpu(problem, n).items():
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
            f"{row['who']} {row['flop/s/W'] / best['flop/s/W']:.2f}" for row in shown if row != best
        )  # fmt: skip
        found.append(
            f"{routine}: {best['who']} does {best['flop/s/W'] / 1e9:.3g} Gflop/s/W with "
            f"{best['watts']:.0f} W{'' if 'CPU watts' in best else ' of the GPU alone'}; others, "
            f"as parts of that: {others or 'none'}."
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
        finish(power, f"{routine}: power; marks: while copying", "seconds", "W", logarithmic="")
        power.set_ylim(bottom=0)


_WATTS = {name: number() for name in ("CPU watts", "GPU watts", "CPU idle", "GPU idle")}

STUDY = Study(
    name="energy",
    question="How many operations does a joule pay for, on the GPU, on the CPU, and on both?",
    source="GPU-only LU and Cholesky, 2018, Table 1, Figures 17 to 19",
    original="GPU alone does 50 % more Gflop/s/W than hybrid runs, and 6 to 7 times as many as the "
    "CPU",
    tables=(
        StudyTable(
            "energy", "again and again, copies included; joules of a run",
            {"routine": WORD, "who": WORD, "n": number(), "runs": str, **SECONDS,
             "flop/s": rate("flop/s"), "joules": number(), "watts": number(),
             "flop/s/W": rate("flop/s/W"), **_WATTS},
        ),
    ),
    sizes={
        "routines": ["lu", "cholesky", "qr"], "CPU": 8192, "GPU": 32768, "seconds": 6.0,
        "idle": 2.0, "pause": 1.0, "interval": 0.1,
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
