"""What objects show of themselves: one line in a terminal, HTML in a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import dask.array as da
import numpy as np
import pytest
from scipy.linalg import LinAlgWarning

import hetero_la
from hetero_la.algorithms.lu import lu_tasks
from hetero_la.execution.report import UnplannedReport
from hetero_la.execution.timeline import predicted_run
from hetero_la.pictures.html import MOST_ROWS, Table, html
from hetero_la.planning.decisions import Problem
from hetero_la.predict.scaling import strong_scaling
from hetero_la.predict.tile_search import Candidate
from hetero_la.scheduler.machine.device import CORE
from hetero_la.scheduler.machine.profile import MeasuredDevice, Profile, Tuning
from hetero_la.scheduler.machine.rate_tables import KernelRates, RateTable
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.tiles.arrays.displayed import LONGEST
from hetero_la.tiles.storage.layout import TileLayout
from tests.pictures.browser import CHROMIUM, browser

RNG = np.random.default_rng(5)
A = RNG.standard_normal((90, 90))
SPD = A @ A.T + 90 * np.eye(90)
#: Bytes of HTML that no object here may exceed.
SMALL = 200_000


def gpus(count: int) -> tuple[WorkerInfo, ...]:
    return tuple(WorkerInfo(f"gpu{i}", "gpu", f"inproc://{i}", device=i) for i in range(count))


def profile() -> Profile:
    rates = KernelRates((RateTable("potrf", ((100, 200),), (1e-4, 4e-4), (0.0, 0.0)),))
    measured = MeasuredDevice("", 2, 1, CORE.__class__(rates=rates), {"launch_seconds": 1e-6})
    tuning = Tuning("lu", "2 cpu x 1 threads", "float64", 9, 8, 1, (4, 3, 2), 1, 0.1)
    machine = {"cpu": "a <fast> & old one", "cores": 2, "gpus": []}
    links = {"host_to_gpu": hetero_la.plan("lu", (9, 9)).model.host_link}
    return Profile(machine, "2026-01-02T03:04:05", (measured,), links, tunings=(tuning,))


@pytest.fixture(scope="module")
def shown() -> Iterator[dict[str, Any]]:
    """One object of each kind that users get, most of them of runs on two virtual GPUs."""
    with hetero_la.Cluster(cpus=1, virtual_gpus=2, blas_threads=1) as cluster:
        with hetero_la.trace() as trace:
            lu = hetero_la.lu_factor(A, client=cluster, nb=20)
            qr = hetero_la.qr_factor(A, client=cluster, nb=20)
        with pytest.warns(LinAlgWarning, match="Diagonal number 1 is exactly zero"):
            singular = hetero_la.lu_factor(np.zeros((3, 3)), nb=2)
        forecast = strong_scaling("lu", (20000, 20000), "dgx-h200", nb=1000)[-1]
        cholesky = hetero_la.cho_factor(SPD)
        yield {
            "cluster": cluster, "lu": lu, "qr": qr, "cholesky": cholesky, "plan": lu.plan,
            "graph": lu.plan.graph, "placed graph": lu.plan.graph.placed(),
            "graph without workers": lu_tasks(TileLayout(6, 6, 2)), "timing": qr.timing,
            "report": hetero_la.solve_with_report(A, A[0])[1],
            "report of a cluster": hetero_la.solve_with_report(A, A[0], client=cluster, nb=30)[1],
            "accuracy": hetero_la.solve(A, A[0], report=True)[1],
            "trace": trace, "empty trace": hetero_la.Trace(), "run": trace.runs[0],
            "comparison": trace.compare(), "simulation": lu.plan.simulate(),
            "options": hetero_la.Options(nb=range(9, 99), panel="cpu"), "worker": gpus(1)[0],
            "model": lu.plan.model, "device": lu.plan.model.devices[0], "profile": profile(),
            "forecast": forecast, "machine": forecast.machine,
            "lazy lu": hetero_la.lu_factor(da.from_array(A, chunks=30)),
            "lazy cholesky": hetero_la.cho_factor(da.from_array(SPD, chunks=30)),
            "candidate": Candidate((64,) * 9 + (32,), 1, 0.01, 128),
            "singular": singular,
            "nan": hetero_la.lu_factor(np.full((3, 3), np.nan), check_finite=False),
            "without pivoting": hetero_la.lu_factor(SPD, pivot="none"),
            "empty": hetero_la.lu_factor(np.zeros((0, 0))),
            "empty plan": hetero_la.plan("lu", (0, 0)),
            "empty graph": hetero_la.plan("lu", (0, 0)).graph,
            "wide": hetero_la.qr_factor(A[:20].astype(np.complex64)),
            "huge plan": hetero_la.plan("lu", (2000, 2000), nb=10, workers=gpus(2)),
            "huge graph": hetero_la.plan("lu", (2000, 2000), nb=10, workers=gpus(2)).graph,
        }  # fmt: skip


def reached(root: Any) -> Iterator[Any]:
    """All objects of the package that public attributes lead to from here, lists included."""
    seen: dict[int, Any] = {}
    front = [root]
    while front:
        what = front.pop()
        inside = isinstance(what, list | tuple) or type(what) is dict
        if id(what) in seen or not (inside or type(what).__module__.startswith("hetero_la.")):
            continue
        seen[id(what)] = what
        if type(what).__module__.startswith("hetero_la."):
            yield what
        if not inside and not isinstance(what, hetero_la.Cluster):  # whose attributes are Dask's
            names = [*dir(type(what)), *getattr(what, "__dict__", {})]
            front += [getattr(what, name, None) for name in names if name[0] != "_"]
        if inside:
            front += list(what.values() if isinstance(what, dict) else what)[:4]


def test_every_object_is_one_short_line(shown: dict[str, Any]) -> None:
    kinds = set()
    for what in shown.values():
        for one in reached(what):
            kinds.add(type(one).__name__)
            line = repr(one)
            assert "\n" not in line, line
            assert len(line) <= LONGEST, line
    assert {"Plan", "LUFactors", "WorkerTiming", "Program", "Task", "Compared", "Tuning"} <= kinds
    assert len(kinds) > 40


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cluster", r"Cluster\(2 virtual GPUs and 1 CPU worker, 1 BLAS thread each, running\)"),
        ("lu", r"LUFactors\(90 x 90 float64 on the host, also held by 2 virtual GPUs.*, \S+ .?s\)"),
        ("cholesky", r"CholeskyFactors\(90 x 90 float64 on the host, \S+ .?s\)"),
        ("wide", r"QRFactors\(20 x 90 complex64 on the host, \S+ .?s\)"),
        ("singular", r"LUFactors\(3 x 3 float64 on the host, \S+ .?s, info = 1\)"),
        ("plan", r"Plan\(lu of a 90 x 90 float64 matrix, nb = 20, 2 virtual GPUs\)"),
        ("graph", r"TaskGraph\(51 tasks, 5 x 5 tiles of 20\)"),
        ("report", r"Report\(solve of a 90 x 90 float64 matrix, \S+ .?s\)"),
        ("trace", r"Trace\(2 runs\)"),
        ("worker", r"WorkerInfo\(gpu0, GPU 0, process 0\)"),
        ("options", r"Options\(nb='9\+10\+11.*\.\.\.\)"),
        ("candidate", r"Candidate\(nb = 9x64\+32, blocks of 128, look-ahead 1, 10 ms\)"),
        ("lazy lu", r"LazyLUFactors\(90 x 90 float64 in 1 block of NumPy arrays\)"),
        ("forecast", r"Forecast\(lu of a 20000 x .* on \d GPUs of DGX H200, .* Tflop/s\)"),
        ("profile", r"Profile\(measured 2026-01-02T03:04:05, 1 device, 1 link, 1 tuning\)"),
    ],
)
def test_the_line_says_what_is_known(shown: dict[str, Any], name: str, line: str) -> None:
    assert re.fullmatch(line, repr(shown[name])), repr(shown[name])


def test_notebooks_get_small_well_formed_html(shown: dict[str, Any]) -> None:
    without = {"candidate"}  # in lists, which notebooks show as text
    for name, what in shown.items():
        if name in without:
            continue
        text = what._repr_html_()
        assert ElementTree.fromstring(text).tag == "div", name
        assert len(text) < SMALL, name
        assert "<script" not in text, name
        assert set(re.findall(r"https?://[^\"\s<]+", text)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_it_fits_any_window_and_takes_the_colours_of_the_page(
    shown: dict[str, Any], tmp_path: Path
) -> None:
    parts = [what._repr_html_() for name, what in shown.items() if name != "candidate"]
    style = "background: #111; color: #eee"
    head = f'<!doctype html><meta charset="utf-8"><body data-ready="yes" style="{style}">'
    (tmp_path / "a.html").write_text(head + "".join(parts), encoding="utf-8")
    size = {"height": 800, "deviceScaleFactor": 1, "mobile": False}
    with browser() as page:
        for width in (360, 1400):
            page.call("Emulation.setDeviceMetricsOverride", width=width, **size)
            page.open(tmp_path / "a.html")
            assert page.value("document.documentElement.scrollWidth") <= width
        cells = "[...document.querySelectorAll('.hetero-la td')]"
        colours = f"[...new Set({cells}.map((cell) => getComputedStyle(cell).color))]"
        assert page.value(colours) == ["rgb(238, 238, 238)"]
        assert page.errors == []
        assert all(url.startswith("file:") for url in page.requests)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(
    ("tiles", "width", "sideways"),
    [(6, 1000, False), (6, 600, False), (6, 360, True), (9, 600, True)],
)
def test_a_graph_is_seen_whole_if_it_can_be_read(
    tmp_path: Path, tiles: int, width: int, sideways: bool
) -> None:
    graph = hetero_la.plan("lu", (10 * tiles, 10 * tiles), nb=10).graph
    head = '<!doctype html><meta charset="utf-8"><body data-ready="yes" style="margin: 0">'
    (tmp_path / "a.html").write_text(head + graph._repr_html_(), encoding="utf-8")
    with browser() as page:
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1,
            mobile=False,
        )  # fmt: skip
        page.open(tmp_path / "a.html")
        page.value("box = document.querySelector('.hetero-la .picture')")
        assert page.value("box.scrollHeight === box.clientHeight")
        assert page.value("box.scrollWidth > box.clientWidth") == sideways


@pytest.mark.parametrize("name", ["plan", "graph", "trace", "run", "graph without workers"])
def test_what_pictures_tell_better_is_drawn(shown: dict[str, Any], name: str) -> None:
    drawn = ElementTree.fromstring(shown[name]._repr_html_())
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}rect")) > 10


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lu", "rcond is about"), ("lu", "also held by 2 virtual GPUs"), ("qr", "5 by householder"),
        ("singular", "1: pivot 1 is zero"), ("without pivoting", "growth"),
        ("plan", "critical path: "), ("plan", "predicted"),
        ("profile", "a &lt;fast&gt; &amp; old one"), ("huge plan", "print(plan) simulates"),
        ("options", "cpu"), ("comparison", "gpu0 idle"), ("forecast", "longest chain of waits"),
        ("empty plan", "0 tasks"), ("lazy lu", "persist() keeps them"),
        ("machine", "8 GPUs"), ("accuracy", "forward error bound"), ("accuracy", "pivots"),
        ("lazy cholesky", "<td>90</td>"),
    ],
)  # fmt: skip
def test_the_html_says(shown: dict[str, Any], name: str, said: str) -> None:
    assert said in shown[name]._repr_html_()


def test_each_public_class_shows_itself() -> None:
    public = [getattr(hetero_la, name) for name in hetero_la.__all__]
    classes = [found for found in public if isinstance(found, type)]
    assert len(classes) >= 9
    for found in classes:
        if found is not hetero_la.SlogdetResult:  # two numbers, which NumPy shows as such, too
            assert callable(found._repr_html_), found
            assert found.__repr__.__module__.startswith("hetero_la."), found


def test_factors_still_are_tuples(shown: dict[str, Any]) -> None:
    packed, piv = shown["lu"]
    assert packed.shape == (90, 90)
    assert piv.shape == (90,)
    assert str(shown["lu"]) == repr(shown["lu"])


def test_print_explains_plans_and_forecasts(shown: dict[str, Any]) -> None:
    for name in ("plan", "empty plan", "forecast"):
        assert str(shown[name]) == shown[name].explain()
        assert len(str(shown[name]).splitlines()) > 3


def test_a_repr_computes_nothing() -> None:
    def wait() -> float:
        raise AssertionError("the GPU was waited for")

    report = UnplannedReport(Problem("lu", 5, 5, 0, np.float64), "in place", wait, 0)
    assert repr(report) == "Report(lu of a 5 x 5 float64 matrix)"
    plan = hetero_la.plan("lu", (50, 50), nb=10)
    before = set(vars(plan))
    assert repr(plan)
    assert set(vars(plan)) == before


def test_released_factors_and_closed_clusters_show_what_is_left() -> None:
    with hetero_la.Cluster(cpus=0, virtual_gpus=2, blas_threads=1) as cluster:
        kept = hetero_la.lu_factor(A, client=cluster, nb=30)
        released = hetero_la.lu_factor(A, client=cluster, nb=30)
        released.release()
        assert "also held by 2 virtual GPUs" in repr(kept)
        assert "on the host, " in repr(released)
        assert "held" not in repr(released) + released._repr_html_()
    assert repr(cluster) == "Cluster(2 virtual GPUs, 1 BLAS thread each, closed)"
    assert "<td>closed</td>" in cluster._repr_html_()
    assert "held" not in repr(kept) + kept._repr_html_()


def test_the_timeline_of_many_calls_is_drawn_in_few_boxes() -> None:
    apart = [replace(gpu, pid=1 + i, gpu=gpu.name, host="a") for i, gpu in enumerate(gpus(16))]
    plan = hetero_la.plan("lu", (1800, 1800), nb=10, workers=apart)
    calls = sum(len(program.instructions) for program in plan.programs)
    assert calls > 10_000
    text = hetero_la.Trace([predicted_run(plan, plan.simulate())])._repr_html_()
    assert 500 < text.count("<rect") < 0.3 * calls
    assert len(text) < 500_000


def test_the_predicted_run_adds_up_to_the_simulation() -> None:
    plan = hetero_la.plan("cholesky", (2000, 2000), nb=250, workers=gpus(2))
    simulated = plan.simulate()
    run = predicted_run(plan, simulated)
    assert run.predicted
    for worker, parts in enumerate(run.parts()):
        assert sum(parts.values()) == pytest.approx(simulated.makespan)
        assert parts["computing"] == pytest.approx(simulated.computing[worker])


def test_a_long_table_says_how_much_is_left_out() -> None:
    rows = [(str(row), "1") for row in range(MOST_ROWS + 7)]
    text = html("<title>", {"none": ""}, Table(("row", "figure"), rows))
    assert "<b>&lt;title&gt;</b>" in text
    assert "and 7 more" in text
    assert "none" not in text
    assert len(ElementTree.fromstring(text).findall(".//tr")) == MOST_ROWS + 2
