"""Forecasts for machines that are not there: their files, memory, scaling, pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hetero_la
from hetero_la.configs import available_machines, load_machine
from hetero_la.pictures.charts.scaling_chart import draw_scaling
from hetero_la.planning.memory import kernel_elements
from hetero_la.predict.forecast import Forecast
from hetero_la.predict.scaling import (
    FACTORIZATIONS,
    TILE_SIZES,
    forecast,
    read_machine,
    strong_scaling,
    weak_scaling,
)
from hetero_la.scheduler.machine.cluster_model import Broadcast, ClusterModel, Fabric
from hetero_la.scheduler.machine.device import H200, Chain
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.predict.simulate import simulate
from hetero_la.tiles.storage.layout import TileLayout

GPUS = tuple(WorkerInfo(f"gpu{i}", "gpu", f"inproc://{i}", device=i) for i in range(4))
MACHINE = """
name = "small"

[gpu]
model = "H200"
memory = 80e9
gemm_rate = 20e12
panel.column = 5e-6

[node]
gpus = 4
latency = 2e-6
bandwidth = 100e9
broadcast = "tree"
"""


DOCUMENTED = Path(__file__).resolve().parents[1] / "docs" / "how_to" / "scaling.md"


@pytest.mark.skipif(not DOCUMENTED.is_file(), reason="looks at the whole checkout")
def test_the_documented_file_can_be_read(tmp_path: Path) -> None:
    text = DOCUMENTED.read_text(encoding="utf-8")
    (tmp_path / "four.toml").write_text(text.split("```toml\n")[1].split("```")[0])
    machine = read_machine(tmp_path / "four.toml")
    assert (machine.gpus, machine.gpu.gemm_rate, machine.network.links) == (32, 50e12, 8)
    assert machine.network.broadcast is Broadcast.PIPELINE
    for rule in Broadcast:
        assert f"| `{rule}`" in text


@pytest.mark.parametrize("name", available_machines())
def test_known_machines_can_be_read(name: str) -> None:
    machine = read_machine(name)
    assert machine.name == load_machine(name)["name"]
    assert machine.gpu == H200
    assert forecast("lu", (20000, 20000), machine, 1, nb=1024).seconds > 0


def test_a_file_changes_the_figures_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(MACHINE)
    machine = read_machine(path)
    panel = Chain(5e-6, H200.panel.element)
    assert machine.gpu == replace(H200, gemm_rate=20e12, panel=panel)
    assert (machine.name, machine.gpus, machine.memory) == ("small", 4, 80e9)
    assert machine.node == Fabric(2e-6, 100e9, broadcast=Broadcast.TREE)
    slow, fast = (
        forecast("qr", (30000, 30000), m, 2, nb=512).seconds for m in (machine, "dgx-h200")
    )
    assert slow > 2 * fast


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('model = "H200"', 'model = "A1"', r"model in \[gpu\] must be one of H200, not 'A1'"),
        ("memory = 80e9", "", r"memory in \[gpu\] must be a number, above 0, not None"),
        ("memory = 80e9", "memory = true", r"must be a number, above 0, not True"),
        ("gemm_rate = 20e12", "gem_rate = 1", r"'gem_rate' in \[gpu\] is none of"),
        ("gemm_rate = 20e12", "gemm_rate = -1", r"gemm_rate in \[gpu\] must be a number, above"),
        ("gemm_rate = 20e12", "gemm_rate = 0", r"gemm_rate in \[gpu\] must be a number, above"),
        ("gemm_rate = 20e12", "tile_share = 1.5", r"tile_share must be 0 or more and below 1, not"),
        ("panel.column = 5e-6", "panel.row = 5e-6", r"'row' in \[gpu.panel\] is none of column"),
        ("panel.column = 5e-6", 'panel.column = "x"', r"column in \[gpu.panel\] must be a number"),
        ("panel.column = 5e-6", "panel = 5e-6", r"needs a table \[panel\]"),
        ("gpus = 4", "gpus = 0", r"gpus in \[node\] must be a whole number above 0, not 0"),
        ("gpus = 4", "", r"gpus in \[node\] must be a whole number above 0, not None"),
        ("latency = 2e-6", "latency = -1", r"latency in \[node\] must be a number, 0 or more"),
        ("latency = 2e-6", "", r"latency in \[node\] must be a number, 0 or more, not None"),
        ("bandwidth = 100e9", "bandwidth = 0", r"bandwidth in \[node\] must be a number, above"),
        ("bandwidth = 100e9", 'bandwidth = "x"', r"bandwidth in \[node\] must be a number"),
        ('"tree"', '"smoke"', "must be one of independent, direct, first, tree, .* not 'smoke'"),
        ("[node]", "[knot]", r"'knot' in a machine is none of gpu, name, network, node"),
        ('name = "small"', "name =", "cannot read the machine"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_in_a_sentence(
    tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    path = tmp_path / "machine.toml"
    assert old in MACHINE
    path.write_text(MACHINE.replace(old, new))
    with pytest.raises(ValueError, match=sentence) as caught:
        read_machine(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_links_must_carry_something() -> None:
    with pytest.raises(ValueError, match="bandwidth must be above 0, not 0"):
        Fabric(1e-5, 0.0)
    with pytest.raises(ValueError, match="latency must be 0 s or more, not nan"):
        Fabric(float("nan"), 1e9)


def test_a_machine_without_gpus_in_its_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(ValueError, match=r"needs a table \[gpu\]"):
        read_machine(tmp_path / "empty.toml")
    with pytest.raises(ValueError, match="no file or machine 'nowhere'; there are dgx"):
        read_machine("nowhere")
    with pytest.raises(ValueError, match="no machine 'nowhere'; there are dgx-h200"):
        load_machine("nowhere")


@pytest.mark.parametrize("routine", FACTORIZATIONS)
@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize(("n", "nb"), [(10000, 512), (20480, 512), (10000, "256+512+1024")])
def test_memory_is_that_of_the_plan(routine: str, gpus: int, n: int, nb: int | str) -> None:
    plan = hetero_la.plan(routine, (n, n), nb=nb, lookahead=2, workers=GPUS[:gpus])
    found = forecast(routine, (n, n), "dgx-h200", gpus, nb=nb, lookahead=2)
    # The tallest panel may be the fullest GPU's own.
    assert 0.999 < found.memory / max(plan.bytes_needed()) < 1.05
    assert found.layout == plan.layout
    assert found.flops == plan.flops


@pytest.mark.parametrize(
    ("layout", "width", "solved", "panel"),
    [(TileLayout(1000, 1000, 100), 1000, 100 * 900, 2000 * 100),
     (TileLayout(1000, 1000, 100), 200, 100 * 200, 2000 * 100),
     (TileLayout(1000, 1000, (100, 300, 600)), 1000, 300 * 600, 6600 * 600),
     (TileLayout(1000, 1000, 1000), 1000, 0, 11000 * 1000),
     (TileLayout(1000, 1000, 1000, nrhs=50), 1050, 1000 * 50, 11000 * 1000)],
)  # fmt: skip
def test_kernels_have_room_for_their_largest_step(
    layout: TileLayout, width: int, solved: int, panel: int
) -> None:
    assert kernel_elements(layout, width, cholesky_qr=False) == 2 * solved
    assert kernel_elements(layout, width, cholesky_qr=True) == 2 * solved + panel


@pytest.mark.parametrize("routine", FACTORIZATIONS)
def test_time_is_that_of_the_plan(routine: str) -> None:
    plan = hetero_la.plan(routine, (32768, 32768), nb=1024, workers=GPUS)
    link = Fabric(plan.model.peer_link.latency, plan.model.peer_link.bandwidth,
                  broadcast=Broadcast.INDEPENDENT)  # fmt: skip
    node = ClusterModel("plan's", plan.model.devices[0], 141e9, 4, 1, link, link)
    found = forecast(routine, (32768, 32768), node, nb=1024)
    alone = simulate(plan.programs, plan.traffic, plan.graph, plan.model, plan.dtype)
    assert found.seconds == pytest.approx(alone.makespan, rel=0.02)  # without Dask's tasks


def test_the_fastest_tile_size_that_fits_is_taken() -> None:
    sizes = [forecast("lu", (50000, 50000), "dgx-h200", nb=nb) for nb in TILE_SIZES]
    best = forecast("lu", (50000, 50000), "dgx-h200")
    assert best.seconds == min(found.seconds for found in sizes)
    tight = replace(read_machine("dgx-h200"), memory=max(sizes[0].memory, 1))
    assert not sizes[-1].memory <= tight.memory
    assert forecast("lu", (50000, 50000), tight).layout.nb == TILE_SIZES[0]


def test_by_default_no_tile_size_makes_too_many_steps() -> None:
    assert forecast("lu", (6_000_000, 1000), "h200").layout.nb in TILE_SIZES
    with pytest.raises(ValueError, match="nb = 1024 makes 29297 steps"):
        forecast("lu", (30_000_000, 30_000_000), "h200")


def test_efficiency_is_of_the_rate_in_the_element_type() -> None:
    for dtype in ("float32", "float64", "complex64", "complex128"):
        found = forecast("lu", (60000, 60000), "h200", dtype=dtype, nb=1024)
        assert 0.6 < found.efficiency < 1
        assert found.efficiency < found.busy <= 1.0


def test_one_matrix_on_more_and_more_gpus() -> None:
    rows = strong_scaling("cholesky", (250_000, 250_000), "dgx-h200-x128", 48, nb=1024)
    assert [row.gpus for row in rows] == [4, 8, 16, 32, 48]  # 500 GB do not fit on two
    assert {row.layout.n for row in rows} == {250_000}
    assert all(row.fits for row in rows)
    efficiencies = [row.efficiency for row in rows]
    assert efficiencies == sorted(efficiencies, reverse=True)
    with pytest.raises(ValueError, match="does not fit on 2 GPUs of 128 x DGX H200 with 141 GB"):
        strong_scaling("cholesky", (250_000, 250_000), "dgx-h200-x128", 2, nb=1024)


def test_a_matrix_that_grows_with_the_gpus() -> None:
    rows = weak_scaling("qr", (90000, 45000), "dgx-h200", nb=512)
    assert [(row.gpus, row.layout.m) for row in rows] == [
        (1, 31820), (2, 45000), (4, 63640), (8, 90000),
    ]  # fmt: skip
    needed = [row.memory for row in rows[1:]]
    assert max(needed) < 1.5 * min(needed)
    rates = [row.flops / row.seconds for row in rows]
    assert rates == sorted(rates)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"routine": "solve"}, "'solve' is none of lu, lu_nopivot, cholesky, qr"),
        ({"shape": (0, 5)}, r"must have rows and columns, not shape \(0, 5\)"),
        ({"routine": "cholesky", "shape": (5, 4)}, "cholesky needs a square matrix"),
        ({"dtype": "float16"}, "dtype float16 is not one of"),
        ({"gpus": 9}, "DGX H200 has 8 GPUs, not 9"),
        ({"gpus": 0}, "DGX H200 has 8 GPUs, not 0"),
        ({"nb": 0}, "nb must be a positive integer, .*, not 0"),
        ({"nb": []}, "there must be at least one tile size"),
        ({"lookahead": -1}, "lookahead"),
        ({"shape": (10**6, 10**6), "nb": 8}, "nb = 8 makes 125000 steps, and no more than 20000"),
    ],
)
def test_what_cannot_be_predicted_is_refused(change: dict[str, Any], sentence: str) -> None:
    arguments = {"routine": "lu", "shape": (100, 100), "gpus": 2, "nb": 10} | change
    routine, shape, gpus = (arguments.pop(name) for name in ("routine", "shape", "gpus"))
    with pytest.raises(ValueError, match=sentence):
        forecast(routine, shape, "dgx-h200", gpus, **arguments)


@pytest.fixture(scope="module")
def rows() -> list[Forecast]:
    return weak_scaling("lu", (60000, 60000), "dgx-h200", nb=1024)


@pytest.mark.parametrize(
    ("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")]
)
def test_a_chart_is_drawn_the_same_each_time(
    tmp_path: Path, rows: list[Forecast], suffix: str, start: bytes
) -> None:
    for name in ("a", "b"):
        draw_scaling(rows, tmp_path / (name + suffix))
    first, second = ((tmp_path / (name + suffix)).read_bytes() for name in ("a", "b"))
    assert first.startswith(start)
    assert first == second


def test_a_chart_says_what_is_in_it(tmp_path: Path, rows: list[Forecast]) -> None:
    draw_scaling(rows, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for words in (
        "lu of 21,213 x 21,213 to 60,000 x 60,000, float64, on DGX H200: predicted",
        "rate, Tflop/s", "longest chain of waits, % of the run", "trailing update",
        "links in a node", f"{round(100 * rows[-1].efficiency)} %",
    ):  # fmt: skip
        assert f">{words}<" in text
    assert ">network<" not in text  # one node has none


def test_small_rates_and_single_points_are_seen(tmp_path: Path) -> None:
    draw_scaling([forecast("lu", (1000, 1000), "h200")], tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert ">0.3<" in text
    assert ">0.5 %<" in text
    assert ">0 %<" not in text
    assert "stroke-dasharray: 5" not in text  # no dashed line, which one point does not show


def test_a_chart_that_fails_midway_leaves_the_old_one(
    tmp_path: Path, rows: list[Forecast], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, target: Path, **_: object) -> None:
        target.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", broken)
    (tmp_path / "a.svg").write_text("old")
    with pytest.raises(OSError, match=r"cannot write .*a\.svg: No space left on device"):
        draw_scaling(rows, tmp_path / "a.svg")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.svg", "old")]


def test_a_chart_needs_rows_and_a_known_suffix(tmp_path: Path, rows: list[Forecast]) -> None:
    with pytest.raises(ValueError, match=r"must end in one of .svg, .png, .pdf"):
        draw_scaling(rows, tmp_path / "a.html")
    with pytest.raises(ValueError, match="no rows"):
        draw_scaling([], tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())
