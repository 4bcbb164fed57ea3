"""Pictures of graphs: what they show, and that it can be read."""

from __future__ import annotations

import itertools
import pickle
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import networkx
import pytest

import hetero_la
from hetero_la.pictures.graph.collapsed import (
    collapse,
    draw_collapsed,
    group_flows,
    steps_per_mark,
)
from hetero_la.pictures.graph.every_task import data_edges, draw_every_task
from hetero_la.pictures.graph.files import draw
from hetero_la.pictures.palette import FAMILIES, contrast, family, text_on
from hetero_la.pictures.scene import Line, Rect, Scene, Text, text_width
from hetero_la.pictures.svg import svg
from hetero_la.tiles.arrays.counted import in_seconds
from hetero_la.tiles.kernels.spec import SPECS, Role
from tests.pictures.drawn import ROUTINES, placed, shapes, texts
from tests.support import covering


def boxes(scene: Scene) -> dict[str, Rect]:
    return {s.link: s for s in scene.shapes if isinstance(s, Rect) and s.link}


def overlap(a: Rect, b: Rect) -> bool:
    wide = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
    high = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
    return wide > 1e-6 and high > 1e-6


def extent(text: Text) -> Rect:
    """About where a text is, letters only."""
    wide = 0.9 * text_width(text.text, text.size, text.bold)
    left = text.x - wide * {"start": 0, "middle": 0.5, "end": 1}[text.anchor]
    return Rect(left, text.y - 0.7 * text.size, wide, 0.7 * text.size)


@pytest.mark.parametrize("granularity", ["column", "tile"])
@pytest.mark.parametrize("routine", ROUTINES)
def test_every_task_is_there_and_none_hides_another(routine: str, granularity: str) -> None:
    subject = placed(routine, 4, 2, granularity)
    scene = draw_every_task(subject)
    found = boxes(scene)
    assert set(found) == {f"task={task.index}" for task in subject.graph.tasks}
    assert not any(overlap(a, b) for a, b in itertools.combinations(found.values(), 2))
    for task in subject.graph.tasks:
        assert found[f"task={task.index}"].fill == family(task.kind).colour
    kinds = [t for t in texts(svg(scene)) if t in SPECS]
    assert sorted(kinds) == sorted(task.kind for task in subject.graph.tasks)


@pytest.mark.parametrize(
    ("routine", "tiles", "workers"), covering(ROUTINES, [3, 8, 30, 60], [0, 1, 2, 4])
)
def test_no_text_lies_on_another_or_outside(routine: str, tiles: int, workers: int) -> None:
    subject = placed(routine, tiles, workers)
    scene = (draw_every_task if tiles < 10 else draw_collapsed)(subject)
    extents = [extent(s) for s in scene.shapes if isinstance(s, Text)]
    for a in extents:
        assert a.x >= 0
        assert a.y >= 0
        assert a.x + a.width <= scene.width
        assert a.y + a.height <= scene.height
    assert not [(a, b) for a, b in itertools.combinations(extents, 2) if overlap(a, b)]


def test_the_critical_path_is_marked_and_only_it() -> None:
    subject = placed()
    scene = draw_every_task(subject)
    found = boxes(scene)
    thick = {
        (s.x, s.y) for s in scene.shapes
        if isinstance(s, Rect) and s.thickness > 1 and s.width == found["task=0"].width
    }  # fmt: skip
    assert thick == {(found[f"task={i}"].x, found[f"task={i}"].y) for i in subject.path}
    arrows = [s for s in scene.shapes if isinstance(s, Line) and s.arrow and s.thickness > 1]
    assert len(arrows) == len(subject.path) - 1


def test_arrows_are_the_data_that_no_other_arrow_implies() -> None:
    subject = placed("lu", 5)
    flows = networkx.DiGraph()
    for task in subject.graph.tasks:
        flows.add_edges_from((w, task.index) for w, _ in task.flows if w >= 0)
    drawn = networkx.DiGraph(data_edges(subject))
    assert set(drawn.edges) < set(flows.edges)
    for first, second in flows.edges:
        assert networkx.has_path(drawn, first, second)
    for edge in list(drawn.edges):
        drawn.remove_edge(*edge)
        assert not networkx.has_path(drawn, *edge)
        drawn.add_edge(*edge)


@pytest.mark.parametrize("routine", ROUTINES)
def test_arrows_from_different_tasks_never_run_on_top_of_each_other(routine: str) -> None:
    """Upright parts at one place would read as one arrow."""
    scene = draw_every_task(placed(routine, 6, 2, "tile"))
    upright: dict[float, list[tuple[float, float, float]]] = {}
    for shape in scene.shapes:
        if isinstance(shape, Line) and shape.arrow and len(shape.points) == 4:
            (_, y0), (x, _), (_, y1), (end, _) = shape.points
            if end > x and shape.points[0][0] > x:  # in the gutter of its own step
                upright.setdefault(x, []).append((min(y0, y1), max(y0, y1), y0))
    assert upright
    for parts in upright.values():
        for (a, b, source), (c, d, other) in itertools.combinations(parts, 2):
            assert source == other or b < c or d < a


def test_groups_hold_all_tasks() -> None:
    subject = placed("lu", 30, 4)
    for together in (1, 7):
        groups = collapse(subject, together)
        assert sum(group.tasks for group in groups.values()) == len(subject.graph)
        assert sum(g.weight for g in groups.values()) == pytest.approx(subject.weights.sum())
        assert {step % together for step, _, _ in groups} == {0}
    gemms = sum(g.tasks for (step, kind, _), g in collapse(subject).items()
                if (step, kind) == (3, "gemm"))  # fmt: skip
    assert gemms == 30 - 4
    critical = {key for key, group in collapse(subject).items() if group.critical}
    tasks = subject.graph.tasks
    assert critical == {(tasks[i].step, tasks[i].kind, subject.placement[i]) for i in subject.path}


def test_heights_of_a_collapsed_graph_are_times() -> None:
    subject = placed("lu", 30, 2)
    bars = {s.tip.split(":")[0]: s for s in draw_collapsed(subject).shapes
            if isinstance(s, Rect) and s.tip}  # fmt: skip
    groups = collapse(subject)
    longest = max(group.weight for group in groups.values())
    highest = max(bar.height for bar in bars.values())
    assert len(bars) == len(groups)
    for (step, kind, worker), group in groups.items():
        bar = bars[f"{kind}, step {step}, {subject.workers[worker]}"]
        assert bar.height == pytest.approx(max(group.weight / longest * highest, 1.5))


def test_arrows_of_a_collapsed_graph_lead_to_other_workers_and_the_next_step() -> None:
    subject = placed("cholesky", 30, 2)
    scene = draw_collapsed(subject)
    arrows = [s for s in scene.shapes if isinstance(s, Line) and s.arrow]
    lefts = sorted({round(bar.x, 3) for bar in boxes(scene).values()})
    ends = {round(arrow.points[-1][0], 3) for arrow in arrows}
    assert ends <= set(lefts)
    assert set(lefts[1:]) <= ends  # each step needs something of the one before
    pairs = set(group_flows(subject))
    assert all(first != second for first, second in pairs)
    of = [(t.step, t.kind, subject.placement[t.index]) for t in subject.graph.tasks]
    flows = {(of[w], of[t.index]) for t in subject.graph.tasks for w, _ in t.flows if w >= 0}
    assert pairs == {(first, second) for first, second in flows if first != second}


def test_of_many_steps_some_have_arrows_and_the_legend_says_which() -> None:
    scene = draw_collapsed(placed("lu", 60, 2))
    lefts = sorted({bar.x for bar in boxes(scene).values()})
    ends = {line.points[-1][0] for line in scene.shapes if isinstance(line, Line) and line.arrow}
    assert ends == set(lefts[::5])
    assert any(
        "every 5th column of bars" in text.text for text in scene.shapes if isinstance(text, Text)
    )


@pytest.mark.slow
def test_steps_become_one_mark_only_where_there_are_very_many() -> None:
    assert steps_per_mark(placed("qr", 200)) == 1
    assert steps_per_mark(placed("qr", 300)) == 2
    marks = boxes(draw_collapsed(placed("qr", 300)))
    assert set(marks) == {f"step={step}" for step in range(0, 301, 2)}


def test_small_graphs_are_drawn_in_full_and_large_ones_collapsed(tmp_path: Path) -> None:
    for tiles, link in ((8, "task="), (30, "step=")):
        draw(placed("lu", tiles), tmp_path / "a.svg")
        text = (tmp_path / "a.svg").read_text()
        assert f'data-link="{link}' in text
    draw(placed("lu", 8), tmp_path / "a.svg", collapse=True)
    assert 'data-link="step=' in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize("routine", ROUTINES)
def test_svg_is_well_formed_and_names_kernels_and_workers(routine: str) -> None:
    for tiles in (1, 5, 20):
        for drawing in (draw_every_task, draw_collapsed):
            text = svg(drawing(placed(routine, tiles, 2)))
            assert shapes(text, "rect")
            assert {"gpu0", "gpu1"} <= set(texts(text)) or tiles == 1


def test_an_empty_graph_is_a_picture_too(tmp_path: Path) -> None:
    plan = hetero_la.plan("lu", (0, 0))
    for suffix in ("svg", "dot", "html"):
        for collapsed in (True, False):
            plan.draw(tmp_path / f"empty.{suffix}", collapse=collapsed)
            assert "0 tasks" in (tmp_path / f"empty.{suffix}").read_text()


@pytest.mark.parametrize("collapsed", [False, True])
def test_dot_has_the_tasks_or_groups_and_the_edges(collapsed: bool, tmp_path: Path) -> None:
    subject = placed("lu", 6)
    draw(subject, tmp_path / "a.dot", collapse=collapsed)
    text = (tmp_path / "a.dot").read_text()
    nodes = re.findall(r"^  (\w+) \[label", text, re.MULTILINE)
    edges = re.findall(r"^  (\w+) -> (\w+)", text, re.MULTILINE)
    assert len(nodes) == len(collapse(subject) if collapsed else subject.graph.tasks)
    assert {name for edge in edges for name in edge} == set(nodes)
    assert networkx.is_directed_acyclic_graph(networkx.DiGraph(edges))


def test_png_is_drawn_by_matplotlib(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    path = tmp_path / "a.png"
    draw(placed("lu", 3), path)
    pixels = image.imread(path)
    scene = draw_every_task(placed("lu", 3))
    assert pixels.shape[:2] == pytest.approx((2 * scene.height, 2 * scene.width), abs=2)
    box = boxes(scene)["task=0"]
    middle = pixels[int(2 * box.y + 8), int(2 * (box.x + box.width - 6))]
    assert [round(255 * c) for c in middle[:3]] == [0xD5, 0x5E, 0x00]


def test_png_without_matplotlib_is_refused_before_planning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ValueError, match=r"matplotlib library .*hetero-la\[viz\]"):
        hetero_la.plan("lu", (40, 40), nb=10).draw(tmp_path / "a.png")


@pytest.mark.parametrize("granularity", ["column", "tile"])
def test_a_plan_and_its_graph_draw_the_same(tmp_path: Path, granularity: str) -> None:
    plan = hetero_la.plan("cholesky", (400, 400), "complex64", nb=100)
    plan.draw(tmp_path / "a.svg", granularity=granularity)  # type: ignore[arg-type]
    plan.graph.draw(tmp_path / "b.svg", granularity=granularity)  # type: ignore[arg-type]
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "complex64" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_a_planned_graph_knows_its_workers_and_can_be_pickled() -> None:
    plan = hetero_la.plan("lu", (400, 400), "complex64", nb=100, lookahead=2)
    copy = pickle.loads(pickle.dumps(plan.graph))
    assert copy.tasks == plan.graph.tasks
    assert copy.placement == plan.placement == [0] * len(plan.graph)
    assert (copy.seconds == plan.task_seconds).all()
    nodes, doubles = (plan.graph.to_networkx(dtype).nodes for dtype in (None, "complex128"))
    assert nodes[0]["owner"] == 0
    assert 1.9 * nodes[0]["bytes"] < doubles[0]["bytes"] < 2 * nodes[0]["bytes"]


def test_bad_input_is_refused(tmp_path: Path) -> None:
    plan = hetero_la.plan("lu", (40, 40), nb=10)
    with pytest.raises(ValueError, match=r"'a.pdf' must end in one of .svg, .png, .dot, .html"):
        plan.draw("a.pdf")
    with pytest.raises(ValueError, match="granularity must be 'column' or 'tile', not 'row'"):
        plan.draw(tmp_path / "a.svg", granularity="row")  # type: ignore[arg-type]


def test_every_kernel_has_a_colour_and_names_on_it_are_legible() -> None:
    assert [f.role for f in FAMILIES] == list(Role)
    assert all(family(kind).role is spec.role for kind, spec in SPECS.items())
    for f in FAMILIES:
        assert contrast(f.colour, text_on(f.colour)) >= 4.5  # WCAG 2, level AA


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1 s"), (0.0123, "12.3 ms"), (3e-5, "30 µs"), (2e-9, "2 ns"), (5e3, "5000 s")],
)
def test_times_are_written_with_their_prefix(value: float, text: str) -> None:
    assert in_seconds(value) == text


@pytest.mark.exhaustive
def test_a_hundred_thousand_tasks_are_drawn_in_seconds(tmp_path: Path) -> None:
    subject = placed("lu", 256, 4)
    assert len(subject.graph) > 99_000
    began = time.perf_counter()
    for suffix in ("svg", "html", "dot"):
        draw(subject, tmp_path / f"large.{suffix}")
    assert time.perf_counter() - began < 30  # 3 s on two idle cores
    assert (tmp_path / "large.html").stat().st_size < 4e6


def test_a_title_may_hold_any_characters(tmp_path: Path) -> None:
    subject = replace(placed("qr", 4), title='QR <of> & "anything"')
    draw(subject, tmp_path / "a.svg")
    assert 'QR <of> & "anything"' in texts((tmp_path / "a.svg").read_text())


@pytest.mark.parametrize("name", ["a.svg", "a.dot", "a.html", "a.png"])
def test_a_picture_that_fails_midway_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def broken(self: object, target: Path, *_: object, **__: object) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    (tmp_path / name).write_bytes(b"old")
    if name.endswith(".png"):
        figure = pytest.importorskip("matplotlib.figure")
        monkeypatch.setattr(figure.Figure, "savefig", broken)
    else:
        monkeypatch.setattr(Path, "write_text", lambda self, text, **_: broken(None, self))
    with pytest.raises(OSError, match=f"cannot write .*{name}: No space left on device"):
        draw(placed("lu", 3), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"old"
