"""Result objects: factors that know where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hetero_la.plan import Plan
from hetero_la.scheduler.runner import LogEntry


class WorkerTiming(NamedTuple):
    """What one worker did.

    Attributes
    ----------
    name, kind : str
        The worker.
    calls : int
        Kernel calls, adjacent columns counted once.
    flops : float
        Real floating-point operations.
    busy : float
        Seconds in kernel calls; on a GPU, in issuing them.
    moving : float
        Seconds in loads, stores, and waiting for panels.
    """

    name: str
    kind: str
    calls: int
    flops: float
    busy: float
    moving: float


@dataclass(frozen=True)
class Timing:
    """Where the time of a run went, in seconds.

    Attributes
    ----------
    seconds : float
        The whole run.
    load, factor, store : float
        Filling the shards, factoring, and returning the results; loads and stores
        that overlap with factoring are counted where the slowest worker waited.
    workers : list of WorkerTiming
        Who did what.
    """

    seconds: float
    load: float
    factor: float
    store: float
    workers: list[WorkerTiming]

    @classmethod
    def from_logs(cls, seconds: float, plan: Plan, logs: Mapping[int, list[LogEntry]]) -> Timing:
        """Sum up the logs of a run's workers."""
        rows, loads, stores = [], [0.0], [0.0]
        for index, log in sorted(logs.items()):
            spent: dict[str, float] = {}
            instructions = plan.programs[index].instructions
            for entry in log:
                op = instructions[entry.place].op
                spent[op] = spent.get(op, 0.0) + entry.stop - entry.start
            calls = [i for i in instructions if i.op == "call"]
            busy = spent.pop("call", 0.0)
            loads.append(spent.get("load", 0.0))
            stores.append(spent.get("store", 0.0))
            worker = plan.workers[index]
            flops = sum(i.flops for i in calls) * (4 if plan.dtype.kind == "c" else 1)
            rows.append(
                WorkerTiming(worker.name, worker.kind, len(calls), flops, busy, sum(spent.values()))
            )
        load, store = max(loads), max(stores)
        return cls(seconds, load, max(seconds - load - store, 0.0), store, rows)

    def __str__(self) -> str:
        lines = [
            f"{'worker':<10}{'kind':<6}{'calls':>7}{'Gflop':>12}{'busy s':>10}{'moving s':>10}"
        ]
        lines += [
            f"{w.name:<10}{w.kind:<6}{w.calls:>7}{w.flops / 1e9:>12.3f}{w.busy:>10.3f}"
            f"{w.moving:>10.3f}"
            for w in self.workers
        ]
        return "\n".join(lines)


class Report(NamedTuple):
    """How a run was planned and how it went."""

    plan: Plan
    timing: Timing


class LUFactors(tuple[Any, Any]):
    """P A = L U; unpacks as SciPy's ``(lu, piv)``.

    Attributes
    ----------
    lu : array, shape (m, n)
        U in the upper triangle, L below the diagonal; column-major.
    piv : array of int32, shape (min(m, n),)
        Row i of the matrix was interchanged with row ``piv[i]``, 0-based.
    info : int
        LAPACK's: 0, or the 1-based index of the first exactly zero pivot.
    plan : Plan
        How the run was planned.
    timing : Timing
        How it went.
    """

    info: int
    plan: Plan
    timing: Timing

    def __new__(cls, lu: Any, piv: Any, info: int, report: Report) -> LUFactors:
        """Bundle the factors with what is known of the run."""
        self = super().__new__(cls, (lu, piv))
        self.info, (self.plan, self.timing) = info, report
        return self

    def __getnewargs__(self) -> tuple[Any, Any, int, Report]:
        """What a copy, or a pickle, is made from."""
        return self[0], self[1], self.info, Report(self.plan, self.timing)

    @property
    def lu(self) -> Any:
        """Packed L and U."""
        return self[0]

    @property
    def piv(self) -> Any:
        """Row interchanges."""
        return self[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return self[0].shape

    @property
    def dtype(self) -> Any:
        """Element type."""
        return self[0].dtype

    def solve(self, b: Any, trans: int = 0) -> Any:
        """Solve A X = B, A^T X = B (`trans` = 1) or A^H X = B (`trans` = 2).

        Parameters
        ----------
        b : array, shape (n,) or (n, nrhs)
            Right-hand sides.
        trans : {0, 1, 2}, optional
            Which system.

        Returns
        -------
        array
            X, in the shape of `b`.

        Examples
        --------
        >>> import numpy as np, hetero_la
        >>> hetero_la.lu_factor(np.array([[2.0, 1.0], [0.0, 4.0]])).solve([3.0, 4.0])
        array([1., 1.])
        """
        from hetero_la.linalg import lu_solve

        return lu_solve(self, b, trans=trans)
