"""What notebooks show of runs: factors, reports, timings, traces, comparisons."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_la.accuracy.histogram import draw_histograms
from hetero_la.accuracy.report import AccuracyReport
from hetero_la.algorithms.routines import title_of
from hetero_la.api.cholesky import CholeskyFactors
from hetero_la.api.factors import Factors
from hetero_la.api.lu import LUFactors
from hetero_la.api.trace import Trace
from hetero_la.execution.comparison import Comparison
from hetero_la.execution.report import Report, Timing
from hetero_la.execution.timeline import TracedRun
from hetero_la.in_files.factor_file import FileFactors
from hetero_la.pictures.charts.gantt import draw_small
from hetero_la.pictures.html import Table, html
from hetero_la.pictures.scene import Scene
from hetero_la.planning.plan import Plan
from hetero_la.scheduler.placement.workers import workers_text
from hetero_la.scheduler.run.trace import PARTS
from hetero_la.tiles.arrays.counted import counted, in_seconds
from hetero_la.tiles.arrays.displayed import display
from hetero_la.tiles.arrays.transfer import is_device_array, to_host

#: Most runs of a trace that are drawn, the longest ones, and most workers of a run.
_MOST_RUNS, _MOST_WORKERS = 4, 32
#: Order up to which the condition of factors on the host is estimated, in some milliseconds.
_ESTIMATED = 2048


def _timing_facts(plan: Plan, timing: Timing) -> dict[str, str]:
    layout = plan.layout
    gflops = plan.flops / max(timing.seconds, 1e-12) / 1e9
    parts = ((name, getattr(timing, name)) for name in ("load", "factor", "store"))
    spent = ", ".join(f"{name} {in_seconds(seconds)}" for name, seconds in parts)
    return {
        "took": f"{in_seconds(timing.seconds)}, {gflops:.3g} Gflop/s",
        "of which": spent,
        "by": workers_text(plan.workers),
        "tiles": f"nb = {layout.tiles_text}, {layout.mt} x {layout.nt} tiles",
        "panels": timing.panels_text(),
        "losses": "; ".join(timing.losses_text()),
    }


def _workers(timing: Timing) -> Table:
    rows = [
        (
            worker.name, worker.kind, str(worker.calls), f"{worker.flops / 1e9:.3g}",
            in_seconds(worker.busy), in_seconds(worker.moving),
        )
        for worker in timing.workers
    ]  # fmt: skip
    return Table(("worker", "kind", "calls", "Gflop", "busy", "moving"), rows)


@display.register
def _(factors: FileFactors) -> str:
    facts = {"file": str(factors.path), "arrays": ", ".join(factors.names)}
    facts |= {"info": str(factors.info)} if factors.info else {}
    plan, timing = factors.report.plan, factors.report.timing
    facts |= _timing_facts(plan, timing) if plan and timing else {}
    return html(repr(factors), facts)


@display.register
def _(timing: Timing) -> str:
    return html("Timing", _timing_facts(timing.plan, timing), _workers(timing))


@display.register
def _(report: Report) -> str:
    facts = _timing_facts(report.plan, report.timing)
    return html(f"Report: {report.title}", facts, _workers(report.timing))


@display.register
def _(report: AccuracyReport) -> str:
    drawn = [draw_histograms("", shown)] if (shown := report.distributions()) else []
    return html(report.title, report.facts(), *drawn)


@display.register
def _(factors: Factors) -> str:
    m, n = factors.shape
    facts = {
        "where": f"on {factors.place}",
        "info": f"{factors.info}: pivot {factors.info} is zero" if factors.info else "",
        "growth": _growth_text(factors) if isinstance(factors, LUFactors) else "",
        "error": _error_text(factors),
    }
    facts |= _timing_facts(factors.plan, factors.timing)
    title = f"{type(factors).__name__}: {m} x {n} {factors.dtype.name}"
    return html(title, facts, _workers(factors.timing))


def _growth_text(factors: LUFactors[Any]) -> str:
    if factors.growth is None:
        return ""
    error = max(factors.shape) * float(np.finfo(factors.dtype).eps) * factors.growth
    return f"{factors.growth:.3g} without pivoting, so the backward error is about {error:.1g}"


def _error_text(factors: Any) -> str:
    """Say how ill-conditioned the matrix is: by an estimate if that is quick, or the diagonal."""
    diagonal = np.abs(to_host(factors[0].diagonal()))
    if not diagonal.size or not np.isfinite(diagonal).all():
        return ""
    most = float(diagonal.max())
    ratio = float(diagonal.min()) / most if most else 0.0
    if isinstance(factors, CholeskyFactors):
        ratio **= 2  # the matrix is the product of two factors
    if not ratio:
        return "there is a zero on the diagonal: the matrix is singular"
    quick = max(factors.shape) <= _ESTIMATED and not is_device_array(factors[0])
    rcond = factors.report().rcond if quick else None
    if rcond:
        error = float(np.finfo(factors.dtype).eps) / rcond
        return f"about {error:.1g} in a solution, relatively: rcond is about {rcond:.1g}"
    more = "" if quick else "; report() estimates it"
    return f"rcond is at most about {ratio:.1g}, by the diagonal alone{more}"


@display.register
def _(run: TracedRun) -> str:
    return html("Timeline", {}, *_timelines([run]), _parts(run))


@display.register
def _(trace: Trace) -> str:
    runs = [run for run in trace.runs if run.seconds]
    longest = sorted(runs, key=lambda run: -run.seconds)[:_MOST_RUNS]
    drawn = [run for run in runs if run in longest]
    which = f", of which the longest {len(drawn)} are drawn" if len(drawn) < len(runs) else ""
    seconds = in_seconds(sum(run.seconds for run in runs))
    facts = {"runs": f"{len(trace)}{which}", "together": seconds if runs else ""}
    tables = [_parts(run) for run in drawn]
    return html("Trace", facts, *_timelines(drawn), *tables)


def _timelines(runs: list[TracedRun]) -> list[Scene]:
    few = [run for run in runs if len(run.workers) <= _MOST_WORKERS]
    return [draw_small(few)] if few else []


def _parts(run: TracedRun) -> Table:
    rows = [
        (worker.name, *(in_seconds(parts[part]) for part in PARTS))
        for worker, parts in zip(run.plan.workers, run.parts(), strict=True)
    ]
    return Table((f"{title_of(run.plan.routine)}, {in_seconds(run.seconds)}", *PARTS), rows)


@display.register
def _(comparison: Comparison) -> str:
    rows = [
        (
            name, str(row.calls), in_seconds(row.predicted), in_seconds(row.measured),
            "-" if np.isnan(row.ratio) else f"{row.ratio:.3f}",
        )
        for name, row in comparison.rows()
    ]  # fmt: skip
    title = f"Comparison: {comparison.run.name}, {counted(len(comparison.workers), 'worker')}"
    return html(title, {}, Table(("", "calls", "predicted", "measured", "ratio"), rows))
