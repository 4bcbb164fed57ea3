"""The page: what it holds, and that it zooms in, in a real browser where there is one."""

from __future__ import annotations

import base64
import json
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero_la
from hetero_la.pictures.graph.files import draw
from tests.pictures.browser import CHROMIUM, Page, browser
from tests.pictures.drawn import ROUTINES, placed

in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as opened:
        yield opened


def embedded(text: str, name: str) -> Any:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text)
    assert found
    return json.loads(found[1])


def test_the_page_holds_the_tasks(tmp_path: Path) -> None:
    subject = placed("solve", 6, 2, "tile")
    draw(subject, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    packed = embedded(text, "packed")
    data = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), "<i4")
    ends = np.cumsum(list(packed["lengths"].values()))
    assert ends[-1] == len(data)
    arrays = dict(zip(packed["lengths"], np.split(data, ends[:-1]), strict=True))
    graph = embedded(text, "graph")
    regions = arrays["regions"].reshape(5, -1)
    for task in subject.graph.tasks:
        at = task.index
        assert graph["kinds"][arrays["kind"][at]]["name"] == task.kind
        assert (arrays["step"][at], arrays["column"][at]) == (task.step, task.column)
        assert arrays["worker"][at] == subject.placement[at]
        before = at - arrays["before"][slice(*arrays["beforeAt"][at : at + 2])]
        assert tuple(before) == task.after
        mine = regions[:, slice(*arrays["regionAt"][at : at + 2])]
        assert [(graph["names"][name], *place) for _, name, *place in mine.T.tolist()] == [
            tuple(region) for region in task.accesses
        ]
    assert set(np.flatnonzero(arrays["critical"])) == set(subject.path)
    np.testing.assert_allclose(arrays["weight"].view(np.float32), subject.weights, rtol=1e-6)


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    draw(placed(), tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|src=|<link|@import|url\(", text)


def centre(page: Page, selector: str) -> tuple[float, float]:
    box = page.value(
        f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
        f"(document.querySelector({selector!r}).getBoundingClientRect())"
    )
    return box[0], box[1]


def task_at(page: Page, task: int) -> tuple[float, float]:
    """Where a task of the step shown is in the window."""
    left, top = page.value(
        "(({x, y}) => [x, y])(document.getElementById('tasks').getBoundingClientRect())"
    )
    x, y = page.value(
        f"((box) => [box.x + picture.cell / 2, box.y + picture.high / 2])"
        f"(picture.boxes.find((box) => box.task === {task}))"
    )
    return left + x, top + y


def colour(page: Page, canvas: str, x: float, y: float) -> list[int]:
    return list(page.value(
        f"Array.from(document.getElementById({canvas!r}).getContext('2d')"
        f".getImageData({x} * devicePixelRatio, {y} * devicePixelRatio, 1, 1).data.slice(0, 3))"
    ))  # fmt: skip


@in_chromium
def test_clicks_zoom_into_a_step_a_task_and_its_tiles(page: Page, tmp_path: Path) -> None:
    subject = placed("lu", 20, 2)
    draw(subject, tmp_path / "a.html")
    page.open(tmp_path / "a.html")
    page.click(*centre(page, '[data-link="step=5"]'))
    assert page.value("location.hash") == "#step=5"
    assert page.value("document.getElementById('whole').hidden")
    shown = page.value("picture.boxes.map((box) => box.task)")
    assert sorted(shown) == [t.index for t in subject.graph.tasks if t.step == 5]
    gemm = next(t for t in subject.graph.tasks if (t.kind, t.step, t.column) == ("gemm", 5, 9))
    page.click(*task_at(page, gemm.index))
    assert page.value("location.hash") == f"#step=5&task={gemm.index}"
    facts = page.value("document.getElementById('facts').innerText")
    assert "A[6:20, 5], A[5, 9]" in facts  # read
    assert "A[6:20, 9]" in facts  # updated
    # Tile (i, j) of the small matrix: what is read is blue, what is written red-brown.
    tile = 330 / 20
    places = {(10, 5): [0x56, 0xB4, 0xE9], (5, 9): [0x56, 0xB4, 0xE9], (3, 9): [0xF4] * 3}
    for (i, j), expected in places.items():
        assert colour(page, "tiles", 18 + (j + 0.5) * tile, 22 + (i + 0.5) * tile) == expected
    page.press("Escape")
    page.press("ArrowRight")
    assert page.value("location.hash") == "#step=6"
    page.press("Escape")
    assert not page.value("document.getElementById('whole').hidden")
    assert page.errors == []


@pytest.mark.slow
@in_chromium
@pytest.mark.parametrize("granularity", ["column", "tile"])
@pytest.mark.parametrize("routine", ROUTINES)
def test_every_step_and_task_can_be_shown(
    page: Page, tmp_path: Path, routine: str, granularity: str
) -> None:
    subject = placed(routine, 4, 4, granularity)
    draw(subject, tmp_path / "a.html")
    page.open(tmp_path / "a.html")
    for step in range(subject.steps):
        page.value(f"location.hash = 'step={step}'")
        page.settle()
        assert page.value("picture.tasks.length") == sum(
            task.step == step for task in subject.graph.tasks
        )
    for task in subject.graph.tasks:
        page.value(f"location.hash = 'task={task.index}'")
        page.settle()
        text = page.value("document.getElementById('crumbs').innerText")
        assert f"step {task.step} " in text
        assert task.kind in text
    assert page.errors == []


@in_chromium
def test_a_task_chosen_in_the_graph_shows_in_the_timeline_and_back(
    page: Page, tmp_path: Path
) -> None:
    with hetero_la.Cluster(virtual_gpus=2, cpus=0) as cluster, hetero_la.trace() as t:
        a = np.random.default_rng(0).standard_normal((300, 300))
        hetero_la.lu_factor(a, nb=64, client=cluster)
    t.write(tmp_path / "a.html")
    (run,) = t.runs
    page.open(tmp_path / "a.html")
    assert page.value("location.hash") == "#timeline"
    task = next(x for x in run.plan.graph.tasks if (x.kind, x.step, x.column) == ("gemm", 0, 4))
    page.value(f"location.hash = 'task={task.index}'")
    page.settle()
    assert "show it in the timeline" in page.value("document.getElementById('facts').innerText")
    page.value("document.querySelector('#facts a[href^=\"#timeline\"]').click()")
    page.settle()
    frame = "document.querySelector('#timeline .mark').getBBox()"
    x, y = page.value(f"(({{x, y}}) => [x, y])({frame})")
    worker, place = run.calls()[task.index]
    start = run.workers[worker].spans[place, 0] - run.began
    assert x + 3 == pytest.approx(118 + 1080 * start / run.seconds, abs=0.1)
    head = page.value(
        f"Array.from(document.querySelectorAll('#timeline rect[data-link]')).filter((r) =>"
        f" Math.abs(r.getAttribute('x') - {x + 3}) < 0.1"
        f" && Math.abs(r.getAttribute('y') - {y + 3}) < 0.1).map((r) => r.dataset.link)"
    )
    first = run.plan.programs[worker].instructions[place]
    (link,) = head
    chosen = run.plan.graph.tasks[int(link.removeprefix("task="))]
    assert (chosen.kind, chosen.step, chosen.column) == (first.kind, first.step, first.first)
    page.value(f"location.hash = '{link}'")
    page.settle()
    assert not page.value("document.getElementById('step').hidden")
    assert page.errors == []


@in_chromium
def test_nonsense_in_the_address_shows_the_whole(page: Page, tmp_path: Path) -> None:
    draw(placed(), tmp_path / "a.html")
    page.open(tmp_path / "a.html")
    for address in ("step=99", "step=-1", "task=1e9", "step=x", "%", "step="):
        page.value(f"location.hash = {address!r}")
        page.settle()
        assert not page.value("document.getElementById('whole').hidden")
    assert page.errors == []


@in_chromium
def test_a_hundred_thousand_tasks_open_without_stalling(page: Page, tmp_path: Path) -> None:
    draw(placed("lu", 256, 4), tmp_path / "a.html")
    page.requests.clear()
    began = time.perf_counter()
    page.open(tmp_path / "a.html")
    opened = time.perf_counter()
    page.click(*centre(page, '[data-link="step=40"]'))
    page.click(*task_at(page, page.value("picture.tasks[200]")))
    chosen = time.perf_counter()
    assert "&task=" in page.value("location.hash")
    assert opened - began < 10  # half a second on two idle cores
    assert chosen - opened < 5  # likewise
    assert page.requests == [(tmp_path / "a.html").as_uri()]
    assert page.errors == []
