"""Studies of whole factorizations: what they find and draw of GPUs, from made-up rows."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero_la import Cluster
from hetero_la.algorithms.cholesky import cholesky_tasks
from hetero_la.studies import (
    cholesky_variants,
    crossover,
    energy,
    hybrid,
    layouts,
    panels,
    scaling,
    two_level,
    unpivoted,
    what_it_is_worth,
    where_time_goes,
)
from hetero_la.studies.common.plots import write_plot
from hetero_la.studies.common.study import StudyRun
from hetero_la.studies.factorizations import ablation, panel_leaf, panel_runs, processes
from hetero_la.studies.factorizations.problems import CHOLESKY, FACTORIZATIONS, LU, QR
from hetero_la.studies.factorizations.runs import ResidentRuns
from hetero_la.testing.residuals import lu_ratio
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from hetero_la.tiles.storage.layout import TileLayout


def timed(seconds: float) -> dict[str, Any]:
    return {"seconds": seconds, "least": 0.9 * seconds, "most": 1.2 * seconds, "samples": 3}


# --- parts of runs


@pytest.mark.parametrize("change", [ablation.with_left_swaps_at_every_step, None])
def test_a_run_without_an_optimization_gives_the_same_factors(change: Any) -> None:
    runs = ResidentRuns(LU, 90, gpu=False)
    plan = runs.plan(nb=20)
    packed, outcome = runs.factors(plan)
    if change is None:
        with ablation.solves_by_trsm("cpu"):
            other, found = runs.factors(plan)
    else:
        other, found = runs.factors(change(plan))
    np.testing.assert_allclose(other, packed, rtol=0, atol=1e-10)
    steps = range(plan.layout.kt)
    for k in steps:
        assert (found.values["ipiv", k] == outcome.values["ipiv", k]).all()
    piv = np.concatenate([outcome.values["ipiv", k] + plan.layout.row(k) for k in steps])
    assert lu_ratio(runs.given, packed, piv) < 30


def test_shares_of_a_run_add_up_to_it() -> None:
    runs = ResidentRuns(QR, 100, gpu=False)
    found = where_time_goes.divided(runs.timeline(runs.plan(nb=25)))
    hidden = found.pop("hidden")
    assert sum(found.values()) == pytest.approx(1)
    assert hidden == pytest.approx(0, abs=1e-9)  # there is one queue
    assert found["panel"] > 0 < found["update"]


@pytest.mark.parametrize("variant", cholesky_variants.VARIANTS)
def test_orders_of_cholesky_are_topological(variant: Any) -> None:
    _, granularity, place = variant
    graph = cholesky_tasks(TileLayout(50, 50, 10), granularity)
    assert graph.is_topological(cholesky_variants.order_of(graph, place))


def test_a_wrong_factor_is_noticed() -> None:
    with pytest.raises(AssertionError, match="off by"):
        cholesky_variants._check(np.eye(3), 1.1 * np.eye(3))


@pytest.mark.parametrize("shape", [(60, 8), (8, 8)])
@pytest.mark.parametrize("routine", panels.ROUTINES)
def test_a_panel_is_factored_as_lapack_does(routine: str, shape: tuple[int, int]) -> None:
    given = panel_runs.random_panel(routine, *shape)
    panel = panel_runs.PanelRuns(routine, CpuDevice(), given)
    assert panel.seconds() > 0
    found, wanted = panel.factors(), panel_runs.by_lapack(routine, given)
    panel_runs.check(routine, "LAPACK", given, found, wanted)
    for name, place in (
        (panel_runs.PACKED, (0, 0)), (panel_runs.PACKED, (-1, 0)), (panel_runs.PIVOTS, -1),
        (panel_runs.T, (0, -1)), (panel_runs.T, (1, 0)),
    ):  # fmt: skip
        if name in found:
            wrong = found[name].copy()
            wrong[place] += 1
            with pytest.raises(AssertionError, match="by someone is wrong"):
                panel_runs.check(routine, "someone", given, {**found, name: wrong}, wanted)


def test_lapack_is_held_to_the_equations() -> None:
    given = panel_runs.random_panel("cholesky", 30, 5)
    lower = np.tril(panel_runs.by_lapack("cholesky", given)[panel_runs.PACKED])
    symmetric = np.tril(given[:5]) + np.tril(given[:5], -1).T
    np.testing.assert_allclose(lower @ lower[:5].T, np.vstack([symmetric, given[5:]]), atol=1e-12)


def test_a_model_tells_what_another_machine_would_do() -> None:
    rows = [
        {"routine": "lu", "n": n, "width": w, "seconds": 1e-6 * w + 1e-9 * 16 * n * w}
        for n in (100, 1000) for w in (32, 64)
    ]  # fmt: skip
    model, *curves = panels._model("lu", "someone", rows)
    assert model["worst error"] < 1e-6
    for curve in curves:
        columns = 1e-6 * curve["width"]
        assert curve["model"] == pytest.approx(curve["measured"])
        assert curve["ten times a column"] == pytest.approx(curve["measured"] + 9 * columns)
        halved = (curve["measured"] + columns) / 2
        assert curve["twice the bandwidth"] == pytest.approx(halved)


def test_shares_of_phases_add_up_to_a_column() -> None:
    traced = np.random.default_rng(0).random((panel_leaf.COLUMNS, len(panel_leaf.PHASES)))
    rows = list(panels._phases("lazy", 1024, traced))
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert sum(row["per column"] for row in rows) == pytest.approx(traced.sum(axis=1).mean())


@pytest.mark.parametrize("way", [layouts.PAIRS, layouts.NET, layouts.ROW_MAJOR])
def test_each_way_to_swap_rows_is_checked(way: str) -> None:
    place, pivots = layouts.ArraysPlace(gpu=False), np.array([5, 5, 2, 7, 4], np.int32)
    moving, ways = layouts._ways(place, 8, pivots)
    (swaps,) = (one for one in ways if one.way == way)
    assert moving == 5
    layouts.check_swaps(place, swaps, pivots)
    with pytest.raises(AssertionError, match=way):
        layouts.check_swaps(place, swaps, pivots[::-1])


def test_the_share_of_swaps_is_of_the_whole_run() -> None:
    runs = ResidentRuns(LU, 200, gpu=False)
    parts = [layouts.swapped(runs.timeline(runs.plan(nb=nb))) for nb in (20, 200)]
    assert 0 < parts[0] < 1
    assert parts[1] == 0


def test_what_row_major_swaps_would_take_is_read_off() -> None:
    (found, *_) = layouts.find(rows_of_layouts())
    assert "40 % of LU (pair after pair) and 12 % of LU (net permutation)" in found
    assert found.endswith("would take 8 % of that time.")


def test_the_dynamic_program_cuts_the_whole_matrix() -> None:
    sizes = two_level.programmed("cholesky", 300, False, [32, 64])
    assert set(TileLayout(300, 300, sizes).column_widths[:-1]) <= {32, 64}


def test_energy_is_of_all_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {name: partial(_watts, watts) for name, watts in (("CPU", 40), ("GPU", 60))}
    (one, *_) = energy._on_cpu(CHOLESKY, 64).values()
    row = energy._measured(StudyRun(energy.STUDY.quick, 0), counters, 64, "someone", one)
    assert row["watts"] == pytest.approx(100, rel=0.05)
    assert row["CPU idle"] == pytest.approx(40, rel=0.05)
    assert row["flop/s/W"] == pytest.approx(CHOLESKY.flops(64) / row["joules"])
    assert {sample["phase"] for sample in row["power"]} <= {energy.COPY, energy.FACTOR}


def _watts(watts: float) -> float:
    return watts * time.perf_counter()


def _no_memory(block: Any) -> Any:
    raise MemoryError(f"none for {block.shape}")


def test_a_run_that_fails_leaves_nothing_with_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        processes.LAZY, "lu",
        lambda x, check_finite, client: x.map_blocks(_no_memory, meta=x._meta),
    )  # fmt: skip
    with Cluster(cpus=1, gpus=0) as cluster, cluster.get_client() as client:
        with pytest.raises(MemoryError, match=r"none for \(64, 16\)"):
            processes.lazily(client, "lu", processes.blocks(client, "lu", 64, 4))
        processes.wait_until_gone(client)


# --- what is found and drawn of GPUs


def rows_of_scaling() -> list[dict[str, Any]]:
    return [
        scaling._row(mode, "GPU", way, problem, n * workers, workers, [1.0 / workers])
        | {"speed-up": 1.7, "efficiency": 0.85}
        for mode in ("strong", "weak") for way in ("threads", "processes")
        for problem in FACTORIZATIONS.values() for n in (1024,) for workers in (1, 2)
    ]  # fmt: skip


def rows_of_shares() -> list[dict[str, Any]]:
    parts = dict.fromkeys([*where_time_goes.WORK, where_time_goes.IDLE, "hidden"], 0.1)
    return [
        {"table": "shares", "place": place, "routine": "lu", "n": n, **timed(1.0), "flop/s": 1e12,
         **parts} for place in ("CPU", "1 GPU, resident") for n in (448, 1024)
    ]  # fmt: skip


def rows_of_worth() -> list[dict[str, Any]]:
    return [
        {"table": "worth", "place": "1 GPU", "routine": "lu", "n": n, "without": without,
         **timed(1.0), "over all": 1.2}
        for without in (what_it_is_worth.ALL, "look-ahead", "net swaps") for n in (512, 1024)
    ]  # fmt: skip


def rows_of_tiles() -> list[dict[str, Any]]:
    ways = (two_level.ONE, two_level.HALF, two_level.TWO, two_level.PROGRAMMING, two_level.DEFAULT)
    return [
        {"table": "best", "place": "1 GPU", "routine": "lu", "n": n, "way": way, "tiles": "nb = 8",
         **timed(1.0), "gain": 0.05} for way in ways for n in (4096, 8192)
    ]  # fmt: skip


def rows_of_crossover() -> list[dict[str, Any]]:
    seconds = {"SciPy": 3, "hetero_la, on the GPU": 2, "hetero_la, 2 GPUs": 2.5}
    rows = [
        {"table": "times", "function": "qr", "n": n, "who": who, **timed(n**exponent * 1e-6)}
        for who, exponent in seconds.items() for n in (64, 128)
    ]  # fmt: skip
    return [*rows, *crossover._crossovers("qr", rows)]


def rows_of_layouts() -> list[dict[str, Any]]:
    common = {"place": "GPU", "n": 512, **timed(1e-3)}
    ways = [("swaps", way) for way in (layouts.PAIRS, layouts.NET, layouts.ROW_MAJOR)]
    ways += [("transposing", way) for way in (layouts.COPIED, layouts.TRANSPOSED)]
    rows = [
        {"table": table, "way": way, **common, "bytes/s": 1e12 * (i + 1), "of pins": 0.3}
        for i, (table, way) in enumerate(ways)
    ]
    rows += [
        {"table": "shares", "way": way, **common, "swaps": part}
        for way, part in ((layouts.PAIRS, 0.4), (layouts.NET, 0.12))
    ]
    rows += [
        {"table": "padding", "what": what, "padding": padding, **common}
        for what in ("update", "LU") for padding in (0, 8)
    ]  # fmt: skip
    orders = ("column-major", "row-major")
    return rows + [{"table": "inputs", "order": order, **common} for order in orders]


def rows_of_panels() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    back = [f"{panels.BACK}, {threads}" for threads in ("1 thread", "4 threads")]
    for routine in panels.ROUTINES:
        for i, who in enumerate(("CPU, 1 thread", *back, panels.CUSOLVER, panels.OURS)):
            of_one = [
                {"table": "panels", "routine": routine, "width": width, "n": n, "who": who,
                 **timed((5 - i) * (1e-6 * width + 1e-11 * n * width)), "flop/s": 1e10,
                 "per column": 1e-6, "bound": 1e-7, "of bound": 0.1}
                for width in (32, 64) for n in (256, 1024, 4096)
            ]  # fmt: skip
            rows += [*of_one, *panels._model(routine, who, of_one)]
    traced = np.ones((panel_leaf.COLUMNS, len(panel_leaf.PHASES)))
    for order in panel_leaf.ORDERS:
        rows += [
            {"table": "orders", "order": order, "n": n, **timed(1e-4), "per column": 3e-6}
            for n in (256, 1024)
        ]  # fmt: skip
        rows += panels._phases(order, 1024, traced)
    return rows


def test_who_is_best_and_how_many_threads_are() -> None:
    _, best, *_, orders = panels.find(rows_of_panels())
    assert "the CPU, there and back, is best nowhere" in best
    assert "take 0.50 of cuSOLVER's time" in best
    assert best.endswith("and the CPU takes least with 4 threads.")
    assert "25 % update, 25 % search, 25 % exchange, 25 % pivot row" in orders


def rows_of_hybrid() -> list[dict[str, Any]]:
    updates = [{"table": "updates", "threads": 1, "CPU": 1e10, "GPU": 5e13, "both": 5.001e13}]
    pairs = [(hybrid.HOST, panel) for panel in hybrid.PANELS]
    pairs += [(hybrid.RESIDENT, "gpu"), (hybrid.RESIDENT, "cpu"), (hybrid.SCIPY, "cpu")]
    return updates + [
        {"table": "runs", "routine": "lu", "n": 1024, "threads": 1, "where": where,
         "panels": panel, **timed(1.0), "flop/s": 1e12, "CPU columns": 0.1, "of both updates": 0.8}
        for where, panel in pairs
    ]  # fmt: skip


def rows_of_unpivoted() -> list[dict[str, Any]]:
    rates = [
        {"table": "rates", "place": "GPU", "n": n, "who": who, **timed(1.0), "flop/s": 1e12,
         "partial over it": 2.0}
        for who in (*unpivoted.PIVOTS, unpivoted.CUSOLVER) for n in (1024, 2048)
    ]  # fmt: skip
    return [
        *rates,
        {"table": "kinds", "kind": "kms", "n": 64, "pivot": "none", "growth": 1.0, "error": 0.1},
        {"table": "kinds", "kind": "svd", "n": 64, "pivot": "none", "growth": 1e6, "error": 99.0},
        {"table": "kinds", "kind": "shift", "n": 64, "pivot": "none", "refused": "a pivot is 0"},
    ]


def rows_of_variants() -> list[dict[str, Any]]:
    variants = [(name, granularity) for name, granularity, _ in cholesky_variants.VARIANTS]
    variants += [(cholesky_variants.PROGRAM, "wide"), (cholesky_variants.LIBRARY, "")]
    variants.append((cholesky_variants.FUSED, ""))
    return [
        {"table": "variants", "place": "GPU", "n": n, "variant": name, "tasks": tasks or None,
         **timed(1.0), "flop/s": 1e13} for name, tasks in variants for n in (2048, 4096)
    ]  # fmt: skip


def rows_of_energy() -> list[dict[str, Any]]:
    return [
        {"table": "energy", "routine": "lu", "who": who, "n": 1024, "runs": 3, **timed(1.0),
         "flop/s": 1e12, "joules": 100.0, "watts": 500.0, "flop/s/W": per, "GPU watts": 400.0,
         "power": [{"t": t, "watts": 500.0, "phase": energy.COPY} for t in (0.1, 0.2)]}
        for who, per in (("GPU, hetero_la", 5e10), ("CPU, SciPy", 1e10))
    ]  # fmt: skip


MADE_UP = {
    scaling: rows_of_scaling, where_time_goes: rows_of_shares, what_it_is_worth: rows_of_worth,
    two_level: rows_of_tiles, crossover: rows_of_crossover, layouts: rows_of_layouts,
    panels: rows_of_panels, hybrid: rows_of_hybrid, unpivoted: rows_of_unpivoted,
    cholesky_variants: rows_of_variants, energy: rows_of_energy,
}  # fmt: skip


@pytest.mark.parametrize("module", MADE_UP, ids=lambda module: module.__name__.rpartition(".")[2])
def test_rows_of_a_gpu_are_understood_and_drawn(module: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = MADE_UP[module]()
    sentences = module.STUDY.find(rows)
    assert sentences
    assert all(sentence.endswith(".") for sentence in sentences)
    write_plot(module.STUDY, rows, tmp_path / "plot.svg")
    assert "</svg>" in (tmp_path / "plot.svg").read_text()


def test_where_lines_cross_is_read_off() -> None:
    _, several = (row for row in rows_of_crossover() if row["table"] == "crossover")
    assert several["from n"] == 64
    assert (
        "from n = 64 on, the least measured (hetero_la, 2 GPUs)"
        in crossover.find(rows_of_crossover())[0]
    )
