"""A run beside its prediction."""

from __future__ import annotations

import numpy as np
import pytest

import hetero_la
from hetero_la.scheduler.program.instructions import CallKernel


@pytest.fixture(scope="module")
def traced() -> hetero_la.Trace:
    a = np.random.default_rng(0).standard_normal((400, 400))
    with (
        hetero_la.Cluster(cpus=0, virtual_gpus=2) as cluster,
        cluster.get_client() as client,
        hetero_la.trace() as trace,
    ):
        hetero_la.lu_factor(a, nb=100, client=client)
        hetero_la.qr(a, mode="r", nb=100, client=client)
    return trace


def test_kernels_add_up_to_the_workers(traced: hetero_la.Trace) -> None:
    run = traced.runs[0]
    found = traced.compare(run.plan)
    assert found.run.name == "lu, the run"
    assert found.run.measured == run.seconds
    assert found.run.predicted == run.plan.predicted_seconds
    assert found.run.ratio == found.run.predicted / found.run.measured
    calls = {"load", "store", "receive"}
    of_kernels = [row for row in found.kernels if row.name not in calls]
    assert {row.name for row in of_kernels} == {
        "getrf", "netperm", "trtri", "swap", "trmm", "gemm", "compose", "laswp"
    }  # fmt: skip
    programs = run.plan.programs
    assert sum(row.calls for row in of_kernels) == sum(row.calls for row in found.workers)
    assert sum(row.calls for row in found.workers) == sum(
        len(program.select(CallKernel)) for program in programs
    )
    for kind in ("predicted", "measured"):
        total = sum(getattr(row, kind) for row in of_kernels)
        assert sum(getattr(row, kind) for row in found.workers) == pytest.approx(total, rel=1e-6)
        for busy, idle in zip(found.workers, found.idle, strict=True):
            whole = getattr(busy, kind) + getattr(idle, kind)
            assert whole == pytest.approx(getattr(found.run, kind))
    longest = [max(row.predicted, row.measured) for row in found.kernels]
    assert longest == sorted(longest, reverse=True)


def test_a_prediction_of_other_tiles_for_the_same_problem(traced: hetero_la.Trace) -> None:
    workers = traced.runs[1].plan.workers
    plan = hetero_la.plan("qr", (400, 400), nb=80, workers=workers)
    found = traced.compare(plan)
    assert found.run.predicted == plan.predicted_seconds
    assert found.run.measured == traced.runs[1].seconds
    assert {row.name: row.calls for row in found.kernels}["geqrf"] == 4


def test_as_text_it_is_a_table(traced: hetero_la.Trace) -> None:
    longest = max(traced.runs, key=lambda run: run.seconds)
    head, first, *rows = str(traced.compare()).splitlines()
    assert head.split() == ["calls", "predicted", "measured", "ratio"]
    assert first.startswith(f"{longest.plan.routine}, the run")
    assert len({len(row) for row in (head, first, *rows)}) == 1
    assert [row[:22].strip() for row in rows[-4:]] == [
        "gpu0 computing", "gpu0 idle", "gpu1 computing", "gpu1 idle"
    ]  # fmt: skip


def test_what_was_not_traced_is_not_compared(traced: hetero_la.Trace) -> None:
    with pytest.raises(ValueError, match="no run was traced"):
        hetero_la.Trace().compare()
    with pytest.raises(ValueError) as caught:
        traced.compare(hetero_la.plan("lu", (500, 400)))
    assert str(caught.value) == (
        "the plan is for lu of 500 x 400 + 0 in float64 on 1 worker, and what was traced is "
        "lu of 400 x 400 + 0 in float64 on 2 workers, qr of 400 x 400 + 0 in float64 on 2 workers"
    )


def test_calls_are_those_of_kernels_where_an_instruction_makes_several() -> None:
    with hetero_la.Cluster(cpus=0, virtual_gpus=2) as cluster, hetero_la.trace() as trace:
        factors = hetero_la.cho_factor(np.eye(200), nb=10, client=cluster)
    assert any(i.stretches for program in factors.plan.programs for i in program.select(CallKernel))
    found = trace.compare()
    # Columns that are dealt out one by one have no neighbours in the matrix.
    tasks = sum(task.kind == "herk" for task in factors.plan.graph.tasks)
    assert {row.name: row.calls for row in found.kernels}["herk"] == tasks
    assert [row.calls for row in found.workers] == [row.calls for row in factors.timing.workers]
    assert sum(row.calls for row in found.workers) == sum(
        call.times for program in factors.plan.programs for call in program.select(CallKernel)
    )
