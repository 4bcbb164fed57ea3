"""What steps call, told from a graph of a few tiles: exactly what the whole graph has."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.scheduler.graph.step_kernels import Call, StepKernels, Tile
from hetero_la.scheduler.machine.device import DeviceModel
from hetero_la.scheduler.machine.model import MachineModel
from hetero_la.scheduler.predict.estimate import Stages
from hetero_la.tiles.kernels.spec import SPECS
from hetero_la.tiles.storage.layout import TileLayout

#: One tile, one ragged one, several, tall, wide, cut inside a tile row, several sizes.
SHAPES = [(1, 1), (5, 5), (8, 8), (40, 40), (61, 61), (75, 40), (75, 43), (75, 5), (40, 75),
          (43, 75), (5, 75)]  # fmt: skip
SIZES = [8, (9, 4, 7)]


def layouts(name: str) -> Iterator[TileLayout]:
    """Layouts that a routine takes, with right-hand sides of several widths."""
    routine, given = ROUTINES[name], (0, 1, 21)
    for (m, n), nb in itertools.product(SHAPES, SIZES):
        if (m == n or not routine.square) and (m >= n or not routine.tall):
            for nrhs in (m,) if name in ("inverse", "inverse_positive", "explicit_q") else given:
                yield TileLayout(m, n, nb, nrhs)


def told(layout: TileLayout, steps: StepKernels) -> Iterator[Call]:
    """All calls, column by column."""
    right = layout.column_widths[layout.nt :]
    for k in range(layout.kt):
        tile = Tile.of(layout, k)
        yield from steps.panel(tile, right_hand_sides=layout.nrhs > 0)
        for j in range(k + 1, layout.nt):
            above = layout.row(j) - layout.row(k + 1)
            yield from steps.update(tile, layout.column_width(j), above)
        for calls in steps.closing(tile):
            yield from calls
        for t, width in enumerate(right):
            yield from steps.beside(tile, width)
            if t >= k or not steps.begins_late(tile):
                yield from steps.substitution(tile, width)


def counted(calls: Iterator[Call]) -> Counter[Any]:
    return Counter((kind, tuple(shapes)) for kind, shapes in calls)


@pytest.mark.parametrize("routine", ROUTINES)
def test_steps_call_what_the_graph_has(routine: str) -> None:
    build = ROUTINES[routine].tasks
    for layout in layouts(routine):
        graph = build(layout)
        written = (
            Call(task.kind, [graph.shape(region) for region in task.accesses])
            for task in graph.tasks
            if not task.kind.startswith("laset")  # made for all steps, by none of them
        )
        assert counted(told(layout, StepKernels.of(build))) == counted(written), layout


class Calls(DeviceModel):
    """A device that takes a second for each call."""

    def kernel_seconds(self, kind: str, shapes: Sequence[tuple[int, ...]], dtype: Any) -> float:
        return 1.0


class Flops(DeviceModel):
    """A device that takes a second for each operation."""

    def kernel_seconds(self, kind: str, shapes: Sequence[tuple[int, ...]], dtype: Any) -> float:
        return SPECS[kind].flops(shapes)


MODEL = MachineModel((Flops(issue_seconds=0.0),))


@pytest.mark.parametrize("routine", ROUTINES)
def test_estimates_count_each_operation_once(routine: str) -> None:
    build = ROUTINES[routine].tasks
    for layout in layouts(routine):
        graph, tiles = build(layout), [Tile.of(layout, k) for k in range(layout.kt)]
        stages = Stages(build, layout, MODEL, [0], None, "float64")
        panels = [stages.panel(tile) for tile in tiles]
        updates = [stages.trailing(tile) for tile in tiles]
        found = sum(p.factor + p.finish + p.closing for p in panels)
        found += sum(update.seconds for update in updates)
        assert found == pytest.approx(sum(map(graph.flops, graph.tasks)), rel=1e-12), layout
        if ROUTINES[routine].factored:
            continue
        assert all(update.seconds == pytest.approx(update.flops) for update in updates)
        for k, (before, panel) in enumerate(zip([None, *updates], panels, strict=False)):
            places = {(k - 1, k), (k, k)}  # the column is brought up to date, and factored
            own = [task for task in graph.tasks if (task.step, task.column) in places]
            # The rest of the update takes no time.
            chain = stages.stage(before and before._replace(seconds=0.0), panel).without
            expected = sum(map(graph.flops, own)) + panel.closing
            assert chain == pytest.approx(expected, rel=1e-12), (layout, k)


@pytest.mark.parametrize("routine", [r for r in ROUTINES if not ROUTINES[r].factored])
def test_stages_end_with_every_call_after_the_last_step(routine: str) -> None:
    build, layout = ROUTINES[routine].tasks, TileLayout(75, 75, 9)
    model = MachineModel((Calls(issue_seconds=0.0),))
    stages = Stages(build, layout, model, [0], None, "float64")
    calls = sum(stages.panel(Tile.of(layout, k)).closing for k in range(layout.kt))
    assert calls == sum(task.step >= layout.kt for task in build(layout).tasks)


@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
def test_values_that_panels_leave_are_counted_once(routine: str) -> None:
    build, layout = ROUTINES[routine].tasks, TileLayout(75, 75, (9, 4, 7))
    graph, steps = build(layout), StepKernels.of(build)
    for k in range(layout.kt):
        left = {
            region: math.prod(graph.shape(region))
            for task in graph.tasks
            if task.step == task.column == k
            for region in task.writes
            if graph.values[region.name].dtype is None
        }
        assert steps.kept_elements(Tile.of(layout, k)) == sum(left.values())
