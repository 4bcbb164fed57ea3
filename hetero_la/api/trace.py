"""Recording of timelines, their comparison with predictions, and export."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from hetero_la.algorithms.routines import title_of
from hetero_la.execution.comparison import Comparison, compare
from hetero_la.execution.timeline import RunRecorder
from hetero_la.pictures.charts.files import require_suffix, write_runs
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.run.trace import PARTS
from hetero_la.tiles.arrays.counted import counted, in_seconds
from hetero_la.tiles.arrays.displayed import as_html, one_line


class Trace(RunRecorder):
    """Timelines of the runs within ``with hetero_la.trace() as t:``.

    Parameters
    ----------
    runs : sequence of TracedRun, optional
        Initial runs.

    Examples
    --------
    >>> import numpy as np
    >>> import hetero_la
    >>> with hetero_la.trace() as trace:
    ...     factors = hetero_la.lu_factor(np.eye(300), nb=100)
    >>> (run,) = trace.runs
    >>> parts = run.parts()[0]  # of the first worker's time
    >>> bool(np.isclose(sum(parts.values()), run.seconds))
    True
    """

    _repr_html_ = as_html

    def __repr__(self) -> str:
        return one_line("Trace", counted(len(self), "run"))

    def __str__(self) -> str:
        widths = [max(len(part), 8) + 2 for part in PARTS]
        head = f"{'worker':<10}" + "".join(map(str.rjust, PARTS, widths))
        lines = []
        for run in self.runs:
            lines += [f"{title_of(run.plan.routine)}, {in_seconds(run.seconds)}", head]
            for worker, parts in zip(run.plan.workers, run.parts(), strict=True):
                spent = (in_seconds(parts[part]) for part in PARTS)
                lines.append(f"{worker.name:<10}" + "".join(map(str.rjust, spent, widths)))
        return "\n".join(lines) or "no run was traced"

    def compare(self, plan: Plan | None = None) -> Comparison:
        """Compare the predicted times of a run with those measured.

        Parameters
        ----------
        plan : Plan, optional
            A plan for the same problem and number of workers as a recorded run; of several such
            runs the last is compared.  By default, the longest run and its own plan.

        Returns
        -------
        Comparison
            Times per kernel, per worker and of the whole run; as text, a table.

        Raises
        ------
        ValueError
            If no such run was traced.

        Examples
        --------
        >>> import numpy as np
        >>> import hetero_la
        >>> with hetero_la.trace() as t:
        ...     _ = hetero_la.lu_factor(np.random.default_rng(0).random((300, 300)), nb=100)
        >>> [row.name for row in t.compare().workers]
        ['caller']
        """
        if not self.runs:
            raise ValueError("no run was traced: there is nothing to compare")
        if plan is None:
            run = max(self.runs, key=lambda run: run.seconds)
            return compare(run, run.plan)
        fitting = [run for run in self.runs if _problem(run.plan) == _problem(plan)]
        if not fitting:
            of = ", ".join(dict.fromkeys(_problem(run.plan) for run in self.runs))
            raise ValueError(f"the plan is for {_problem(plan)}, and what was traced is {of}")
        return compare(fitting[-1], plan)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline, in the format that the suffix names.

        Parameters
        ----------
        path : path
            ``.json`` for Perfetto and Chrome's tracing page, with arrows where messages
            travel; ``.svg`` or ``.png`` for a chart; ``.html`` for a page that plays the runs;
            ``.gif`` for an animation of the longest one.  ``.png`` and ``.gif`` need the extra
            `viz`.

        Raises
        ------
        ValueError
            For another suffix, for ``.png`` and ``.gif`` where Matplotlib is missing, and if no
            run was traced.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> import hetero_la
        >>> with hetero_la.trace() as t:
        ...     _ = hetero_la.lu_factor(np.random.default_rng(0).random((300, 300)), nb=100)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "run.html"
        ...     t.write(path)
        ...     path.read_text().startswith("<!DOCTYPE html>")
        True
        """
        require_suffix(path)
        if not self.runs:
            raise ValueError("no run was traced: there is nothing to write")
        write_runs(self.runs, path)


def _problem(plan: Plan) -> str:
    layout = plan.layout
    size = f"{layout.m} x {layout.n} + {layout.nrhs}"
    workers = counted(len(plan.workers), "worker")
    return f"{title_of(plan.routine)} of {size} in {plan.dtype.name} on {workers}"


@contextlib.contextmanager
def trace() -> Iterator[Trace]:
    """Record timelines of the runs within the block.

    Times are measured on the worker's thread on a CPU, and by CUDA events on a GPU's queues, all on
    one clock.  Runs of other threads of this process are also recorded.

    Yields
    ------
    Trace
        Filled as the runs end.

    Examples
    --------
    >>> import numpy as np
    >>> import hetero_la
    >>> with hetero_la.trace() as t:
    ...     _ = hetero_la.lu_factor(np.random.default_rng(0).random((200, 200)), nb=50)
    >>> parts = t.runs[0].parts()[0]
    >>> abs(sum(parts.values()) - t.runs[0].seconds) < 1e-9
    True
    """
    opened = Trace()
    with opened.recording():
        yield opened
