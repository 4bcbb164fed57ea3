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
from hetero_la.execution.timeline import TracedRun
from hetero_la.pictures.graph.files import draw
from hetero_la.pictures.palette import contrast
from hetero_la.pictures.runs.tile_states import TileStates
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.tiles.arrays.counted import counted
from tests.pictures.browser import CHROMIUM, Page, browser
from tests.pictures.drawn import GPUS, ROUTINES, placed

in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as opened:
        yield opened


def embedded(text: str, name: str) -> Any:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text)
    assert found
    return json.loads(found[1])


def unpacked(text: str) -> dict[str, np.ndarray]:
    """The arrays of a page."""
    packed = embedded(text, "packed")
    data = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), "<i4")
    ends = np.cumsum([length for length, _ in packed["lengths"].values()])
    assert ends[-1] == len(data)
    parts = np.split(data, ends[:-1])
    types = [f"<{letter}4" for _, letter in packed["lengths"].values()]
    return {
        name: part.view(kind)
        for name, part, kind in zip(packed["lengths"], parts, types, strict=True)
    }


def test_the_page_holds_the_tasks(tmp_path: Path) -> None:
    subject = placed("solve", 6, 2, "tile")
    draw(subject, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    arrays = unpacked(text)
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
    np.testing.assert_allclose(arrays["weight"], subject.weights, rtol=1e-6)


def test_numbers_of_workers_can_be_read_on_all_their_colours(tmp_path: Path) -> None:
    gpus = [WorkerInfo(f"gpu{i}", "gpu", f"inproc://{i}", device=i) for i in range(9)]
    hetero_la.plan("lu", (400, 400), nb=20, workers=gpus).draw(tmp_path / "a.html")
    workers = embedded((tmp_path / "a.html").read_text(), "graph")["workers"]
    assert len(workers) == 9
    for worker in workers:
        assert contrast(worker["colour"], worker["ink"]) >= 4.5
        assert contrast(worker["grey"], worker["greyInk"]) >= 4.5


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
        f"((box) => [box.x + picture.cell / 2, box.y + box.high / 2])"
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


def test_the_page_of_a_plan_holds_the_predicted_run(tmp_path: Path) -> None:
    plan = hetero_la.plan("lu", (200, 200), nb=20, workers=GPUS[:2])
    plan.draw(tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    (about,) = embedded(text, "graph")["runs"]
    arrays = unpacked(text)
    run = plan.simulate()
    assert about["predicted"]
    assert about["seconds"] == pytest.approx(run.makespan)
    assert about["peak"] == run.peak_bytes.tolist()
    instructions = sum(len(program.instructions) for program in plan.programs)
    assert len(arrays["0.begin"]) == instructions + len(plan.workers)  # each has one Dask task
    box = arrays["0.taskBox"]
    assert len(box) == len(plan.graph)
    for task in plan.graph.tasks:
        at = box[task.index]
        assert arrays["0.row"][at] // 4 == plan.placement[task.index]
        assert about["kinds"][arrays["0.name"][at]]["name"] == task.kind
        assert arrays["0.first"][at] <= task.column <= arrays["0.last"][at]
        first = arrays["0.boxTask"][at]
        assert box[first] == at
    stops = np.concatenate(run.stop)
    np.testing.assert_allclose(
        np.sort(arrays["0.end"])[: -len(plan.workers)].sum(), stops.sum(), rtol=1e-2
    )


@pytest.fixture
def measured(tmp_path: Path) -> tuple[TracedRun, Path]:
    with hetero_la.Cluster(virtual_gpus=2, cpus=0) as cluster, hetero_la.trace() as t:
        a = np.random.default_rng(0).standard_normal((300, 300))
        hetero_la.lu_factor(a, nb=64, client=cluster)
    t.write(tmp_path / "a.html")
    (run,) = t.runs
    return run, tmp_path / "a.html"


@in_chromium
def test_keys_are_the_player_s_unless_a_field_or_the_list_of_keys_has_them(
    page: Page, measured: tuple[TracedRun, Path]
) -> None:
    page.open(measured[1])
    page.press("?")
    assert page.value("document.getElementById('keys').open")
    by = page.value("player.at('by').textContent")
    page.press("c")
    assert page.value("player.at('by').textContent") == by
    page.press("Escape")
    assert not page.value("document.getElementById('keys').open")
    page.value("document.querySelector('#run input[type=range]').focus()")
    page.press("c")
    assert page.value("player.at('by').textContent") != by
    assert page.errors == []


@in_chromium
def test_a_task_chosen_in_the_graph_shows_in_the_run_and_back(
    page: Page, measured: tuple[TracedRun, Path]
) -> None:
    run, path = measured
    page.open(path)
    assert (
        page.value("[...document.querySelectorAll('section')].filter((s) => !s.hidden)[0].id")
        == "run"
    )
    task = next(x for x in run.plan.graph.tasks if (x.kind, x.step, x.column) == ("gemm", 0, 4))
    page.value(f"location.hash = 'task={task.index}'")
    page.settle()
    assert "show it in the run" in page.value("document.getElementById('facts').innerText")
    page.value("document.querySelector('#facts a[href^=\"#run\"]').click()")
    page.settle()
    worker, place = run.recording.calls[task.index]
    start, stop = run.workers[worker].spans[place] - run.began
    assert start <= page.value("player.time") * (1 + 1e-6)
    assert page.value("player.time") <= stop * (1 + 1e-6)
    x, y = page.value(
        "((box) => [box.x + player.timeline.x(player.time), box.y"
        " + player.run.rows.find((row) => player.timeline.chosen < row.to).y"
        " + player.timeline.rowHigh / 2])(document.getElementById('lanes').getBoundingClientRect())"
    )
    page.press("Escape")
    assert page.value("player.timeline.chosen") is None
    page.click(x, y)
    first = run.plan.programs[worker].instructions[place]
    chosen = page.value("player.run.boxTask[player.timeline.chosen]")
    of = run.plan.graph.tasks[chosen]
    assert (of.kind, of.step, of.column) == (first.kind, first.step, first.first)
    page.value("document.querySelector('#chosen a').click()")
    page.settle()
    assert page.value("location.hash") == f"#task={chosen}"
    assert page.errors == []


@in_chromium
def test_a_measured_run_has_its_prediction_behind_it(
    page: Page, measured: tuple[TracedRun, Path]
) -> None:
    run, path = measured
    page.open(path)
    assert page.value("runs.map((run) => run.predicted)") == [False, True]
    assert page.value("player.timeline.ghost === runs[1]")
    predicted = run.plan.simulate().makespan
    assert page.value("runs[1].seconds") == pytest.approx(predicted)
    assert page.value("player.timeline.length") == pytest.approx(max(run.seconds, predicted))
    page.press("g")
    assert page.value("player.timeline.ghost") is None
    assert page.errors == []


@in_chromium
def test_tiles_show_what_is_done_to_them_at_any_time(page: Page, tmp_path: Path) -> None:
    plan = hetero_la.plan("cholesky", (1400, 1400), nb=20, workers=GPUS[:2])
    plan.draw(tmp_path / "a.html")
    page.open(tmp_path / "a.html")
    run = plan.predicted_recording()
    assert page.value("player.map.frames.length") > 1
    for share in (0.2, 0.9, 0.5, 1.0, 0.0, 0.7):
        page.value(f"player.seek({share} * player.run.seconds)")
        page.settle()
        shown = page.value("Array.from(player.map.state)")
        states = TileStates(run).at(np.float32(page.value("player.time")))
        assert np.array_equal(np.reshape(shown, states.shape[::-1]).T, states)
    # At the end all tiles on and under the diagonal are finished, the others untouched.
    page.value("player.seek(player.run.seconds); player.map.paint(1e9, 1e-9)")
    words = np.reshape(page.value("Array.from(player.map.words)"), states.shape)
    finished, empty = page.value("[player.map.finished, player.map.empty]")
    assert (words[np.tril_indices(len(words))] == finished).all()
    assert (words[np.triu_indices(len(words), 1)] == empty).all()
    assert page.errors == []


@in_chromium
def test_a_run_opens_at_work_and_plays_from_its_start(
    page: Page, measured: tuple[TracedRun, Path], tmp_path: Path
) -> None:
    # Of a small run on several workers most is spent before the first task.
    hetero_la.plan("lu", (600, 600), nb=200, workers=GPUS[:2]).draw(tmp_path / "b.html")
    for path in (measured[1], tmp_path / "b.html"):
        page.open(path)
        page.settle()
        opened = page.value("player.time")
        assert page.value("player.map.state.some((task) => task >= 0)")
        assert 0 < opened < page.value("player.map.sorted.at(-1)")
        page.value("player.speed = 0.1")
        page.press(" ")
        page.settle()
        assert page.value("player.playing")
        assert page.value("player.time") < opened
        page.press(" ")
    page.open(tmp_path / "b.html")
    page.press("ArrowRight")
    moved = page.value("player.time")
    page.press(" ")
    assert page.value("player.time") >= moved
    assert page.errors == []


@in_chromium
def test_keys_and_buttons_play_the_run(page: Page, tmp_path: Path) -> None:
    hetero_la.plan("lu", (400, 400), nb=50, workers=GPUS[:2]).draw(tmp_path / "a.html")
    page.open(tmp_path / "a.html")
    page.value("player.speed = 0.1")
    page.press(" ")
    page.settle()
    page.settle()
    assert page.value("player.playing && player.time > 0")
    page.press(" ")
    assert not page.value("player.playing")
    page.press("End")
    assert page.value("player.time === player.run.seconds")
    page.press(",")  # the last step that begins before that
    begins = page.value("Array.from(player.run.steps).filter((_, i) => i % 2 === 0)")
    assert page.value("player.time") == pytest.approx(max(begins))
    page.press("Home")
    page.press("+")
    assert page.value("player.timeline.to") < page.value("player.run.seconds")
    page.press("0")
    assert page.value("player.timeline.to") == page.value("player.timeline.length")
    page.press("c")
    assert page.value("player.map.byWorker")
    page.press("?")
    assert page.value("document.getElementById('keys').open")
    page.value("document.getElementById('keys').close()")
    page.value("document.getElementById('theme').click(); document.getElementById('theme').click()")
    assert page.value("document.documentElement.dataset.theme") == "dark"
    assert page.errors == []


@in_chromium
@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("gemm 3", lambda t, _: t.kind == "gemm" and t.step == 3),
        ("gemm 3 5", lambda t, _: (t.kind, t.step, t.column) == ("gemm", 3, 5)),
        ("gpu1 column 5", lambda t, worker: worker == 1 and t.column == 5),
        ("potato", lambda t, _: False),
    ],
)
def test_tasks_are_found(page: Page, tmp_path: Path, text: str, chosen: Any) -> None:
    subject = placed()
    draw(subject, tmp_path / "a.html")
    page.open(tmp_path / "a.html")
    expected = [t.index for t in subject.graph.tasks if chosen(t, subject.placement[t.index])]
    assert page.value(f"matching({text!r})") == expected
    page.value(f"document.getElementById('search').value = {text!r}; showMatches()")
    count = page.value("document.querySelector('#found p').innerText")
    assert count == counted(len(expected), "task")


@in_chromium
@pytest.mark.parametrize("width", [360, 800, 1600])
def test_the_page_fills_the_window_and_no_more(page: Page, tmp_path: Path, width: int) -> None:
    hetero_la.plan("lu", (400, 400), nb=50, workers=GPUS[:2]).draw(tmp_path / "a.html")
    page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
        mobile=False,
    )  # fmt: skip
    try:
        page.open(tmp_path / "a.html")
        for place in ("run", "graph", "step=1"):
            page.value(f"location.hash = {place!r}")
            page.settle()
            assert page.value("document.body.scrollWidth") <= width
        page.value("location.hash = 'run'")
        page.settle()
        box = "document.getElementById('lanes').getBoundingClientRect()"
        assert page.value(f"{box}.right") > 0.95 * width - 12
        assert page.value(f"{box}.width") > 0.5 * width
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")
    assert page.errors == []


def written(page: Page, draw: str) -> list[tuple[str, float, float]]:
    """What a call writes on the canvases of the page: texts, and where each begins and ends."""
    return [(text, left, right) for text, left, right in page.value(
        f"""(() => {{
            const [pen, texts] = [CanvasRenderingContext2D.prototype, []];
            const write = pen.fillText;
            pen.fillText = function (text, x, ...rest) {{
                const wide = this.measureText(text).width;
                const left = x - {{left: 0, center: wide / 2, right: wide}}[this.textAlign];
                texts.push([text, left, left + wide]);
                write.call(this, text, x, ...rest);
            }};
            {draw};
            pen.fillText = write;
            return texts;
        }})()"""
    )]  # fmt: skip


@in_chromium
def test_nothing_is_lost_on_a_telephone(page: Page, tmp_path: Path) -> None:
    plan = hetero_la.plan("lu", (9000, 9000), nb=250, workers=GPUS)
    plan.draw(tmp_path / "a.html")
    page.call(
        "Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1,
        mobile=True,
    )  # fmt: skip
    try:
        page.open(tmp_path / "a.html")
        page.settle()
        # The controls stay at the lower edge, and nothing shows under them.
        box = "document.getElementById('controls').getBoundingClientRect()"
        assert page.value(f"{box}.bottom") == 844
        texts = written(page, "player.timeline.stale = true; player.draw()")
        (_, _, first), (text, second, end) = (
            text for text in texts if re.match("work / workers|critical path", text[0])
        )
        assert text.startswith("critical path")
        assert first < second
        assert end <= page.value("player.timeline.wide")
        owners = [str(column % 4) for column in range(36)]
        map_pen = "document.getElementById('map').getContext('2d')"
        assert [text for text, _, _ in written(page, f"player.map.drawOwners({map_pen})")] == owners
        assert written(page, f"player.map.drawWorkers({map_pen}, player.time)")
        page.value("location.hash = 'step=0'")
        page.settle()
        assert [text for text, _, _ in written(page, "picture.draw(null)")][-36:] == owners
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")
    assert page.errors == []


@in_chromium
@pytest.mark.parametrize("around", [0.0, 0.1, 0.5, 1.0])
def test_the_names_of_bounds_keep_apart_and_inside(
    page: Page, tmp_path: Path, around: float
) -> None:
    hetero_la.plan("lu", (400, 400), nb=50, workers=GPUS[:2]).draw(tmp_path / "a.html")
    page.open(tmp_path / "a.html")
    page.value(
        f"player.run.work = {around} * player.run.seconds;"
        "player.run.path = Math.min(1.01 * player.run.work, player.run.seconds)"
    )
    texts = written(page, "player.timeline.stale = true; player.draw()")
    names = [text for text in texts if re.match("work / workers|critical path", text[0])]
    assert len(names) == 2
    assert 0 <= names[0][1] < names[0][2] < names[1][1] < names[1][2]
    assert names[1][2] <= page.value("player.timeline.wide")


@in_chromium
@pytest.mark.slow
def test_a_hundred_thousand_tasks_move_without_stalling(page: Page, tmp_path: Path) -> None:
    plan = hetero_la.plan("lu", (2560, 2560), nb=10, workers=GPUS)
    plan.draw(tmp_path / "a.html")
    page.open(tmp_path / "a.html")
    drawn = page.value(
        "(() => { const began = performance.now(); for (let i = 0; i < 20; i += 1) {"
        " player.timeline.zoom(1.1); player.time = player.run.seconds * i / 20; player.draw(); }"
        " return (performance.now() - began) / 20; })()"
    )
    assert drawn < 200  # milliseconds; 4 on two idle cores, and a frame has 16
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
