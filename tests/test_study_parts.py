"""What studies compute from what they measure, and references that their kernels are held to."""

from __future__ import annotations

import sys
import time
import weakref
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import hetero_la
from hetero_la.studies import (
    bandwidth,
    barrier,
    blas12,
    cholesky_variants,
    complex3m,
    crossover,
    energy,
    gemm_kernel,
    hybrid,
    launch,
    matvec,
    memory,
    pipeline,
    scaling,
    transfers,
    two_level,
    ulps,
    unblocked_lu,
    unpivoted,
    what_it_is_worth,
    where_time_goes,
)
from hetero_la.studies.common import caches
from hetero_la.studies.common.double_double import DoubleDouble
from hetero_la.studies.common.plots import write_plot
from hetero_la.studies.common.reference import lu_by_columns
from hetero_la.studies.common.study import StudyRun
from hetero_la.studies.common.symptoms import symptoms
from hetero_la.studies.factorizations.problems import FACTORIZATIONS
from hetero_la.studies.factorizations.runs import ClusterRuns, ResidentRuns
from hetero_la.studies.factorizations.verification import verify
from hetero_la.testing.matrices import generate


def test_steps_of_a_pointer_chase_are_levels_of_memory() -> None:
    sizes = [2**k for k in range(12, 30)]
    true = [(2**17, 20.0), (2**25, 150.0), (np.inf, 400.0)]
    noise = np.random.default_rng(0).uniform(0.98, 1.02, len(sizes))
    seen = [next(t for most, t in true if s <= most) * x for s, x in zip(sizes, noise, strict=True)]
    found = memory.levels(sizes, seen)
    assert [level.capacity for level in found] == [most for most, _ in true]
    np.testing.assert_allclose([level.latency for level in found], [t for _, t in true], rtol=0.03)


def test_a_pointer_chase_visits_every_place_once() -> None:
    pointers, places = memory.ring(4096, 64)
    seen, at = set(), 0
    for _ in range(places):
        seen.add(at)
        at = int(pointers[at])
    assert at == 0
    assert seen == set(range(0, 4096 // 8, 8))


def test_all_last_caches_count(tmp_path: Path) -> None:
    for cpu, index, level, shared_by, size in (
        (0, 0, 1, "0", "48K"), (0, 3, 3, "0-1", "32768K"), (1, 3, 3, "0-1", "32768K"),
        (2, 3, 3, "2", "32768K"),
    ):  # fmt: skip
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", str(level)), ("shared_cpu_list", shared_by), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert caches._of_cpus(tmp_path) == 2 * 2**25
    assert caches._of_cpus(tmp_path / "nowhere") == caches._UNKNOWN


@pytest.mark.parametrize("operation", blas12.OPERATIONS)
def test_each_copy_of_operands_is_used_and_checked(operation: str) -> None:
    operands = blas12._operands(operation, 7, "float64")
    calls = blas12._calls("CPU", operation, operands, 3)
    for call in calls:
        blas12._check(operation, call, operands)
    with pytest.raises(AssertionError):
        blas12._check(operation, calls[0], operands)  # y has changed


def test_columns_one_by_one_give_lu() -> None:
    a = generate("dominant", 40)
    packed = lu_by_columns(a)
    product = (np.tril(packed, -1) + np.eye(40)) @ np.triu(packed)
    np.testing.assert_allclose(product, a, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_three_real_products_are_a_complex_one(dtype: str) -> None:
    rng = np.random.default_rng(0)
    a, b = ((rng.standard_normal((9, 9)) + 1j * rng.standard_normal((9, 9))) for _ in range(2))
    found = complex3m.three_products(a.astype(dtype), b.astype(dtype))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, a @ b, atol=100 * np.finfo(dtype).eps)


def test_an_error_of_one_ulp_is_one() -> None:
    a = np.array([1.5, 2.5], np.float32)
    off = np.nextafter(a + a, np.float32(np.inf))
    assert ulps.errors_in_ulps("a + b", off, [a, a, a]).tolist() == [1.0, 1.0]
    assert ulps.largest_in_ulps(off, DoubleDouble.of(a + a)) == 1.0
    # A quarter of an ulp of float64 is seen as well, which float64 itself does not have.
    true = DoubleDouble.of(np.array([1.0, 2.0])) - DoubleDouble.of(np.array([0.0, -(2.0**-53)]))
    assert ulps.largest_in_ulps(np.array([1.0, 2.0]), true) == 0.25


def test_lu_in_double_double_has_twice_the_digits() -> None:
    n = 8
    a = generate("dominant", n)
    wide: Any = DoubleDouble.of(a)
    found: Any = lu_by_columns(wide)
    exact = [[Fraction(x) for x in row] for row in a.tolist()]
    for k in range(n):
        for i in range(k + 1, n):
            exact[i][k] /= exact[k][k]
            for j in range(k + 1, n):
                exact[i][j] -= exact[i][k] * exact[k][j]
    for i in range(n):
        for j in range(n):
            error = Fraction(found.high[i, j]) + Fraction(found.low[i, j]) - exact[i][j]
            assert abs(error) < Fraction(2) ** -100 * abs(exact[i][j])


def test_points_of_the_template_can_be_compiled() -> None:
    for itemsize in (4, 8):
        assert len(set(gemm_kernel.points(itemsize))) == 100
        for blocks in gemm_kernel.points(itemsize):
            assert blocks.bm % blocks.tm == blocks.bn % blocks.tn == 0
            assert blocks.threads % 32 == 0
            assert blocks.shared(itemsize) <= 48 * 1024


def test_a_wrong_product_is_noticed() -> None:
    a, b = (np.random.default_rng(i).standard_normal((9, 9)).astype(np.float32) for i in (0, 1))
    gemm_kernel.compare("someone", a @ b, a, b)
    for wrong in (1e-3, np.nan):
        found = a @ b
        found[8, 0] += wrong
        with pytest.raises(AssertionError, match="someone"):
            gemm_kernel.compare("someone", found, a, b)


def test_a_wrong_product_with_a_vector_is_noticed() -> None:
    with pytest.raises(AssertionError, match="someone"):
        matvec._checked("someone", lambda: np.ones(3), np.array([1.0, 1.0, 1.1]))


def test_the_band_that_is_solved_is_the_one_that_is_multiplied() -> None:
    (kind, band, exact, _), *_ = (case for case in matvec.cases([], 60))
    assert kind == matvec.BANDED
    x = np.random.default_rng(0).standard_normal(60)
    solved = scipy.linalg.solve_banded((matvec.LOWER, matvec.UPPER), band, exact @ x)
    np.testing.assert_allclose(solved, x, rtol=0, atol=1e-6)
    (product,) = matvec.on_cpu(kind, band, x).values()
    np.testing.assert_allclose(product(), exact @ x, rtol=0, atol=1e-12)


def test_products_are_with_several_copies_and_count_the_operations_in_the_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matvec, "last_caches", lambda place: 10**8)
    rows = [row for row in rows_of_matvec() if row["table"] == "products"]
    assert all(row["copies"] > 1 for row in rows)
    banded = next(row for row in rows if row["kind"] == matvec.BANDED)
    entries = 64 * 17 - 2 * sum(range(1, 9))
    assert banded["flop/s"] * banded["seconds"] == pytest.approx(2 * entries)


def test_a_fit_is_judged_by_its_worst_error() -> None:
    rows = [{"bytes": n, "seconds": 1e-5 + n / 1e10} for n in (1e3, 1e5, 1e7)]
    good = transfers._fitted("copy", rows)
    assert good["beta"] == pytest.approx(1e10)
    assert good["worst error"] < 1e-9
    assert transfers._fitted("copy", [*rows, {"bytes": 1e8, "seconds": 1.0}])["worst error"] > 0.5


def test_a_copy_that_does_not_arrive_is_noticed() -> None:
    target, source = (np.ones(8, np.uint8) for _ in range(2))
    transfers.check_copy("there", lambda: np.copyto(target, source), target, source)
    with pytest.raises(AssertionError, match="the copy nowhere does not give"):
        transfers.check_copy("nowhere", lambda: None, target, source)


def test_arrays_live_as_long_as_a_copy_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(ptr=0)
    cuda = SimpleNamespace(get_current_stream=lambda: stream)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    arrays = [np.ones(8, np.uint8), np.zeros(8, np.uint8)]
    call, alive = transfers.enqueued(*arrays), [weakref.ref(a) for a in arrays]
    arrays.clear()
    assert all(reference() is not None for reference in alive)
    del call
    assert all(reference() is None for reference in alive)


def test_alpha_of_copies_in_a_row_is_told_from_that_of_single_ones() -> None:
    first, *_ = transfers.find(rows_of_transfers())
    assert first.startswith("Host to GPU, pinned: 1 ms + ")
    assert "; in a row, alpha is 2 µs." in first


@pytest.mark.parametrize("problem", FACTORIZATIONS.values(), ids=FACTORIZATIONS)
def test_all_factor_in_place_and_wrong_factors_are_noticed(problem: Any) -> None:
    for who, one in energy._on_cpu(problem, 60).items():
        one.warm_up(who)
        verify(who, problem.routine, one._given, one._a)
        one._a[50, 40] += 1e-3  # no part of U or R
        one._a[40, 50] += 1e-3  # no part of L
        with pytest.raises(AssertionError, match=who):
            verify(who, problem.routine, one._given, one._a)


def test_net_joules_are_without_the_power_before_the_runs() -> None:
    (one, *_) = energy._on_cpu(FACTORIZATIONS["lu"], 64).values()
    joules = {"CPU": lambda: time.perf_counter() * 40 + 200 * busy()}

    def busy() -> float:  # seconds since the runs have begun
        return time.perf_counter() - one.begun[0][0] if one.begun else 0.0

    row = energy._measured(StudyRun(energy.STUDY.quick, 0), joules, 64, "someone", one)
    assert row["net joules"] == pytest.approx(row["joules"] * 200 / 240, rel=0.1)
    assert row["watts before"] == pytest.approx(40, rel=0.05)
    first, *_, last = row["idle power"]
    assert (first["phase"], last["phase"]) == (energy.BEFORE, energy.AFTER)
    assert first["t"] < row["power"][0]["t"] <= row["power"][-1]["t"] < last["t"]


def test_stages_are_measured_of_each_pair_of_tiles_and_add_up() -> None:
    runs = ResidentRuns(FACTORIZATIONS["lu"], 96, gpu=False)
    run = runs.timeline(runs.plan(nb=two_level.by_turns(96, 32, 16)))
    before, sizes, starts, seconds = zip(*two_level.stages_of(run), strict=True)
    assert (before, sizes, starts) == ((0, 32, 16, 32), (32, 16, 32, 16), (0, 32, 48, 80))
    assert min(seconds) > 0
    assert sum(seconds) < run.seconds
    triples = two_level.measured_triples(runs, [16, 32], 1)
    assert triples.keys() >= {(0, 32), (0, 16), (32, 32), (32, 16), (16, 16)}
    assert list(triples[32, 16]) == [32, 80]


def test_gains_are_of_times_that_chose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []

    def in_turns(runs: Any, plans: dict[Any, Any], turns: int) -> dict[Any, list[float]]:
        called.append(len(plans))
        # In the first round each is faster than the one before; then all are alike.
        return {key: [1.0 / (i if len(called) == 1 else 1)] for i, key in enumerate(plans, 1)}

    monkeypatch.setattr(two_level, "_in_turns", in_turns)
    runs = ResidentRuns(FACTORIZATIONS["lu"], 64, gpu=False)
    rows = list(two_level._rows(StudyRun(two_level.STUDY.quick, 0), runs, {"n": 64}, [8, 16]))
    best = [row for row in rows if row["table"] == "best"]
    assert called == [len(rows) - len(best), len(best)]
    assert [row["gain"] for row in best] == [0.0] * len(best)
    assert best[0]["tiles"] == "nb = 16"


#: Seconds of panels on the GPU, on the CPU and by choice; with luck once, after a warm-up.
LUCK = ((9.0, 2.0, 9.0, 2.0), (9.0, 1.0, 9.0, 2.5), (9.0, 3.0))


def test_who_took_least_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with hetero_la.Cluster(gpus=0, virtual_gpus=1, cpus=1) as cluster:
        problem = FACTORIZATIONS["cholesky"]
        a = problem.host_matrix(64)
        ways = hybrid._contenders(problem, a, False, cluster)
        lucky = {way.panel: iter(times) for way, times in zip(ways, LUCK, strict=True)}

        def seconds(way: hybrid.HybridWay) -> float:
            way.plan = way.factor().plan
            return next(lucky[way.panel])

        monkeypatch.setattr(hybrid.HybridWay, "seconds", seconds)
        run = StudyRun({"small": 64, "turns": 1}, gpus=0)
        rows = list(hybrid._rows(run, problem, a, 1, ways, 1e9))
    assert [row["seconds"] for row in rows[:2]] == [2.0, 1.0]
    assert [row["panels on"] for row in rows[:2]] == ["gpu", "cpu"]
    assert (rows[3]["where"], rows[3]["panels"]) == (hybrid.SCIPY, "cpu")
    again = rows[-1]
    assert (again["table"], again["panels"], again["other"]) == ("again", "cpu", "gpu")
    assert (again["seconds"], again["other over it"]) == (2.5, 0.8)
    found, *_ = hybrid.find(rows)
    assert "timed again: 1 thread: panel='cpu' with " in found
    assert found.endswith("Panels on the CPU take 0.50 times as long as panels on the GPU.")


def test_panels_on_the_gpu_stand_beside_the_next_if_they_took_least() -> None:
    ways = [hybrid.HybridWay(hybrid.HOST, panel, lambda: None) for panel in hybrid.PANELS]
    taken = {way.name: [seconds] for way, seconds in zip(ways, (1.0, 3.0, 2.0), strict=True)}
    best, other = hybrid._best_and_other(ways, taken)
    assert (best.panel, other.panel) == ("gpu", "auto")


def test_scaling_times_the_planning_of_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Runs:
        planned = 0

        def plan(self) -> str:
            self.planned += 1
            time.sleep(0.02)
            return "plan"

        def seconds(self, plan: str) -> float:
            return {"plan": 1.0}[plan]

    runs: Any = Runs()
    assert [1.02 < scaling._planned(runs) < 2 for _ in range(2)] == [True, True]
    assert runs.planned == 2


def test_one_worker_is_not_said_to_be_several() -> None:
    rows = [
        scaling._row(mode, "GPU", "threads", FACTORIZATIONS["lu"], 64, 1, [1.0])
        | {"speed-up": 1.0, "efficiency": 1.0}
        for mode in ("strong", "weak")
    ]
    (found,) = scaling.find(rows)
    assert found.startswith("lu by threads: one GPU has 175 kflop/s at n = 64; there is no other.")


@pytest.mark.parametrize("function", crossover.STUDY.sizes["functions"])
def test_contenders_on_the_host_and_a_client_solve_the_same(function: str) -> None:
    with hetero_la.Cluster(gpus=0, virtual_gpus=2, cpus=0) as cluster:
        calls = crossover._on_host(function, {}, 50)
        m, b = crossover.random_problem(function, 50)
        library = crossover._With(hetero_la, client=cluster)
        calls["client"] = lambda: crossover.FUNCTIONS[function](library, m, b)
        for who, call in calls.items():
            crossover.verify(who, function, 50, call())
    first, *more = crossover._parts(calls[crossover.SCIPY]())
    with pytest.raises(AssertionError, match="someone"):
        crossover.verify("someone", function, 50, (1.001 * first, *more))


def test_several_gpus_are_held_against_one() -> None:
    seconds = {"SciPy": 3.0, crossover.ONE_GPU: 2.0, "hetero_la, 4 GPUs": 1.5}
    rows = [
        {"table": "times", "function": "qr", "n": n, "who": who, **timed(n**exponent * scale)}
        for (who, exponent), scale in zip(seconds.items(), (1e-8, 1e-6, 1e-5), strict=True)
        for n in (64, 128, 256)
    ]  # fmt: skip
    (several,) = crossover._several("qr", rows)
    assert several["from n"] == pytest.approx(100)  # where n^2 / 10 is n^1.5
    assert several["one over several"] == pytest.approx(1.6)
    found = crossover.find([*rows, *crossover._crossovers("qr", rows), several])
    assert found[-1] == (
        "qr from host to host by hetero_la, 4 GPUs is faster than by one from n = 100 on; "
        "at n = 256 one GPU takes 1.60 of their time."
    )


def test_a_call_is_divided_into_its_run_and_what_is_outside() -> None:
    a = where_time_goes.random_matrix(300)
    assert -0.5 <= a.min() < -0.4 < 0.4 < a.max() < 0.5
    assert (a[0] != a[256]).all()  # made by another thread
    with hetero_la.Cluster(gpus=0, virtual_gpus=2, cpus=0, blas_threads=1) as cluster:
        call = where_time_goes._traced(FACTORIZATIONS["lu"], a, client=cluster, nb=50)
        runs = ClusterRuns(cluster, FACTORIZATIONS["qr"], 100)
        resident = where_time_goes._of_resident(runs, runs.plan(nb=25))
    for one in (call, resident):
        parts = one.divided()
        del parts["hidden"]  # beside others
        assert sum(parts.values()) == pytest.approx(1)
        assert parts["update"] > 0
    assert call.divided()["outside"] > 0 == resident.divided()["outside"]


def test_what_memory_does_not_hold_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where_time_goes, "memory_limit", lambda: 10**6)
    run = StudyRun(where_time_goes.STUDY.quick, 0)
    assert where_time_goes._fits(run, "CPU", 200, host=2.5)
    assert not where_time_goes._fits(run, "CPU", 300, host=2.5)
    assert run.left_out == [
        "CPU, n = 300: it takes 1.8 MB of the memory of the host, which has 1 MB"
    ]  # fmt: skip


def test_what_turning_costs_is_said() -> None:
    parts = dict.fromkeys([*where_time_goes.WORK, where_time_goes.IDLE], 0.1)
    rows = [
        {"table": "shares", "place": f"1 GPU, {order}", "routine": "lu", "n": 64, **parts,
         "seconds": seconds}
        for order, seconds in ((where_time_goes.ROWS, 3.0), (where_time_goes.COLUMNS, 2.0))
    ]  # fmt: skip
    *_, found = where_time_goes.find(rows)
    assert found.endswith("n = 64: times over those of a column-major one are 1.50 (lu).")


def test_a_part_is_left_out_of_the_run_that_has_it() -> None:
    seconds = {
        what_it_is_worth.ALL: 2.0, "look-ahead": 3.0, what_it_is_worth.TWO_LEVELS: 1.0,
        what_it_is_worth.COLUMNS: 4.0, what_it_is_worth.ROWS: 6.0,
    }  # fmt: skip
    timed_ = {name: iter([9.0, one, one]) for name, one in seconds.items()}
    contenders = {name: partial(next, times) for name, times in timed_.items()}
    rows = what_it_is_worth._rows("CPU", FACTORIZATIONS["lu"], 64, contenders, 2)
    assert {row["without"]: (row["seconds"], row["over all"]) for row in rows} == {
        what_it_is_worth.ALL: (2.0, 1.0), "look-ahead": (3.0, 1.5),
        what_it_is_worth.TWO_LEVELS: (2.0, 2.0), what_it_is_worth.COLUMNS: (6.0, 1.5),
    }  # fmt: skip


def test_factors_without_a_part_are_compared() -> None:
    contenders = what_it_is_worth.Contenders(ResidentRuns(FACTORIZATIONS["lu"], 96, gpu=False), 16)
    timed_ = contenders.timed()
    assert {what_it_is_worth.TWO_LEVELS, what_it_is_worth.ROWS, "wide calls"} <= timed_.keys()
    assert all(seconds() > 0 for seconds in timed_.values())
    contenders._reference[40, 50] += 1
    with pytest.raises(AssertionError, match="factors are off by"):
        timed_["swaps at the end"]()


@pytest.mark.parametrize("who", ["program", "library"])
def test_the_program_and_the_library_are_checked_for_their_factors(who: str) -> None:
    runs = ResidentRuns(FACTORIZATIONS["cholesky"], 60, gpu=False)
    reference = cholesky_variants._reference(runs)
    check = partial(cholesky_variants._check, reference=reference)
    run: Any = partial(cholesky_variants._by_library, runs, reference)
    if who == "program":
        run = partial(runs.seconds, runs.plan(nb=20), matrix_of=runs.plan(), check=check)
    assert run() > 0
    reference[50, 3] += 1e-3
    with pytest.raises(AssertionError, match="factors are off by"):
        run()


def test_all_who_factor_in_place_agree_whether_rows_are_shuffled_or_not() -> None:
    contenders = unpivoted._on_cpu(70)
    assert contenders.keys() == {"partial", unpivoted.UNMOVED, "none", unpivoted.SCIPY}
    assert all(run() > 0 for run in contenders.values())
    runs = unpivoted.InPlace(generate("dominant", 9).copy(order="F"), lambda: None, lambda a: 0.0)
    assert (runs.shuffled != runs.given).any()
    assert (np.sort(runs.shuffled, axis=0) == np.sort(runs.given, axis=0)).all()
    with pytest.raises(AssertionError, match="factors by someone are off by"):
        runs.timed("someone", lambda a: 1.0, shuffled=True)()


def test_what_partial_pivoting_does_not_cure_is_said() -> None:
    rates = {"table": "rates", "place": "CPU", "n": 64, "flop/s": 1e9, "partial over it": 1.25}
    kind = {"table": "kinds", "kind": "gfpp", "n": 64, "growth": 1e99}
    rows = [
        {**rates, "who": "none"}, {**rates, "who": unpivoted.UNMOVED, "partial over it": 1.1},
        {**kind, "pivot": "partial", "error": 1e9}, {**kind, "pivot": "none", "error": 1e9},
    ]  # fmt: skip
    first, last = unpivoted.find(rows)
    assert "1.25 (n = 64); at n = 64, 1.10 over those with nothing to swap." in first
    assert last.endswith("With partial pivoting, they stay small for all kinds but gfpp.")


# --- what looks sick


def sick(**rows: list[dict[str, Any]]) -> list[str]:
    return symptoms(rows, {})


def test_a_healthy_machine_has_no_symptoms() -> None:
    fit = [
        {"table": "fit", "what": what, "beta": 55e9}
        for what in ("host to GPU, pinned", "GPU to host, pinned")
    ]
    slot = {"table": "slot", "lanes": 16, "most lanes": 16, "bytes/s": 64e9}
    copies = {"table": "copies", "place": "GPU", "bytes/s": 3.0e12, **timed(1e-3)}
    pins = {"table": "pins", "place": "GPU", "bytes/s": 3.35e12}
    assert sick(transfers=[*fit, slot], memory=rows_of_memory(), bandwidth=[copies, pins]) == []
    assert symptoms({}, {"NVIDIA H200": 0.93}) == []


def test_a_slow_link_is_noticed() -> None:
    up = {"table": "fit", "what": "host to GPU, pinned", "beta": 12e9}
    down = {"table": "fit", "what": "GPU to host, pinned", "beta": 50e9}
    slot = {"table": "slot", "lanes": 8, "most lanes": 16, "bytes/s": 64e9}
    assert sick(transfers=[up, down, slot]) == [
        "the GPU's slot uses 8 of 16 lanes",
        "the link host to GPU, pinned, has 12 GB/s, and its slot 64 GB/s",
        "the link host to GPU, pinned, has 12 GB/s, less than half of the way back",
    ]
    pairs = [
        {"table": "pairs", "from": i, "to": j, "bytes/s": 4e10 if (i, j) == (0, 2) else 2e11}
        for i in range(3) for j in range(3) if i != j
    ]  # fmt: skip
    assert sick(transfers=pairs) == ["GPU 0 to GPU 2 has 40 GB/s, and others 200 GB/s"]


def test_a_small_cache_a_slow_memory_and_a_low_clock_are_noticed() -> None:
    said = memory.beside_what_is_said(rows_of_memory(), 2**27)
    (cache,) = sick(memory=[*rows_of_memory(), said])
    assert cache == "the second cache of the GPU holds 33.6 MB, and CUDA says 134 MB"
    copies = {"table": "copies", "place": "GPU", "bytes/s": 1e12, **timed(1e-3)}
    (slow,) = sick(bandwidth=[copies, {"table": "pins", "bytes/s": 3e12}])
    assert slow == "copies in the GPU's memory have 1 TB/s, and its pins 3 TB/s"
    rate = {"table": "instructions", "instruction": "FMA, float32", "best": 30e12, "peak": 60e12}
    (low,) = sick(pipeline=[rate])
    assert low.startswith("FMA, float32 has 30 Tflop/s, and 60 Tflop/s at the highest clock")


def test_slow_launches_and_a_busy_machine_are_noticed() -> None:
    row = {"table": "times", "place": "GPU", "way": "driver", "what": "synchronized"}
    assert sick(launch=[row | timed(1e-4)]) == [
        "a launch takes 100 µs, with the wait for its end"
    ]  # fmt: skip
    (busy,) = sick(blas12=[{**timed(1.0), "most": 2.5}, timed(1.0)])
    assert busy.startswith("the machine is busy: of 2 measurements 1 have a sample")


def test_a_slot_is_read_from_the_system(tmp_path: Path) -> None:
    folder = tmp_path / "0000:1a:00.0"
    folder.mkdir()
    said = {"current_link_width": "8", "max_link_width": "16", "max_link_speed": "32.0 GT/s PCIe"}
    for name, text in said.items():
        (folder / name).write_text(text + "\n")
    found = transfers.slot("0000:1A:00.0", tmp_path)
    assert found == {"table": "slot", "lanes": 8, "most lanes": 16, "bytes/s": 64e9}
    assert transfers.slot("0000:1B:00.0", tmp_path) is None


# --- what is found and drawn of a GPU, from made-up rows


def timed(seconds: float) -> dict[str, Any]:
    return {"seconds": seconds, "least": 0.9 * seconds, "most": 1.2 * seconds, "samples": 3}


def rows_of_pipeline() -> list[dict[str, Any]]:
    name = "FMA, float32"
    rows = [
        {"table": "map", "instruction": name, "chains": c, "warps": w, **timed(1e-3),
         "cycles": 4.0, "flop/s": 1e12 * min(c * w, 16)}
        for c in pipeline.CHAINS for w in (1, 2, 4, 8)
    ]  # fmt: skip
    best = 16e12
    return [
        *({**row, "of best": row["flop/s"] / best} for row in rows),
        pipeline._summary(name, rows, best, {"peak": 20e12}),
    ]


def test_the_fewest_warps_that_fill_a_pipeline() -> None:
    rows = rows_of_pipeline()
    summary = rows[-1]
    assert (summary["most chains"], summary["warps, most chains"]) == (8, 2)
    assert summary["warps, 1 chain"] is None
    assert summary["of peak"] == pytest.approx(0.8)
    (found,) = pipeline.find(rows)
    assert "80 % of the peak; 90 % of that takes 2 warps of 8 chains" in found


def rows_of_barrier() -> list[dict[str, Any]]:
    times = dict.fromkeys(barrier.KINDS, 1.5e-06)
    times |= {barrier._CLUSTER: 0.2e-6, barrier._LAUNCH: 6e-6, barrier._GRAPH: 3e-6}
    return [
        {"table": "barriers", "kind": kind, "blocks": blocks, **timed(seconds)}
        for kind, seconds in times.items() for blocks in (2, 8)
    ]  # fmt: skip


def rows_of_lu() -> list[dict[str, Any]]:
    rows = []
    for n in (128, 256):
        for variant in unblocked_lu.VARIANTS:
            rows.append(unblocked_lu._row("GPU", variant.way, variant, n, [1e-6 * n, 2e-6 * n]))
        for way in ("NumPy, a column at a time", "LAPACK, with pivoting"):
            rows.append(unblocked_lu._row("CPU", way, None, n, [1e-5 * n]))
        rows.append(unblocked_lu._row("GPU", "cuSOLVER, with pivoting", None, n, [1e-5 * n]))
    return rows


def rows_of_gemm() -> list[dict[str, Any]]:
    rows = []
    for dtype in gemm_kernel.DTYPES:
        for who in ("cuBLAS", "Volkov's", "MAGMA's", "fastest"):
            row = gemm_kernel._row("products", "GPU", who, "NN", dtype, 512, timed(1e-3))
            rows.append(row | {"parameters": str(gemm_kernel.MAGMA), "of peak": 0.125})
        rows.append(gemm_kernel._row("tuning", "GPU", "one", "NN", dtype, 512, timed(1e-3)))
        rows += [
            {"table": "peak", "type": dtype, "units": units, "flop/s": most}
            for units, most in ((gemm_kernel.ORDINARY, 3e13), (gemm_kernel.TENSOR_CORES, 6e13))
        ]
    return rows


def test_products_are_held_to_the_peak() -> None:
    found, _ = gemm_kernel.find(rows_of_gemm())
    assert "and of that Volkov's kernel 100 % (12 % of the peak)," in found


def rows_of_memory() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"table": "gather", "bytes": n, **timed(1e-9)} for n in (8, 16)]

    def latency(space: str, size: int, stride: int, cycles: float) -> None:
        found = timed(cycles * 5e-10)
        rows.append(
            {"table": "latency", "space": space, "bytes": size, "stride": stride,
             "cycles": cycles, **found}
        )  # fmt: skip

    for space, first in ((memory.CACHED, 2**18), (memory.SECOND, 0)):
        for size in (2**k for k in range(14, 30)):
            latency(space, size, 128, 30 if size <= first else 200 if size <= 2**25 else 700)
        for size in (2**k for k in range(26, 34)):
            latency(space, size, 2**21, 700 if size <= 2**30 else 1000)
    for size in (2**k for k in range(12, 20)):
        latency(memory.LOCAL, size, 128, 32 if size < 2**18 else 200)
    latency(memory.SHARED, 2**14, 4, 25)
    for space, length in ((memory.CACHED, 32), (memory.SECOND, 64)):
        for stride in (8, 16, 32, 64, 128):
            found = timed((200 + min(stride, length) / length * 400) * 5e-10)
            rows.append({"table": "lines", "space": space, "stride": stride, "cycles": 1, **found})
    for stride in (2**k for k in range(14, 24)):
        seconds = 1e-7 * (1 + 2 * min(stride, 2**21) / 2**21)
        rows.append({"table": "pages", "stride": stride, "cycles": 1, **timed(seconds)})
    return [*rows, *memory.read_off(rows)]


def test_caches_and_lines_are_read_off() -> None:
    rows = rows_of_memory()
    said = memory.beside_what_is_said(rows, 2**26)
    assert memory.find([*rows, said]) == [
        "Through all caches: 15 ns up to 262 kB, 100 ns up to 33.6 MB, 350 ns beyond.",
        "Past the first cache: 100 ns up to 33.6 MB, 350 ns beyond.",
        "Local memory: 16 ns up to 131 kB, 100 ns beyond.",
        "Gathers on the CPU: 1 ns beyond.",
        "50 % of the 67.1 MB that CUDA says the second cache has are seen by one thread.",
        "With one place in 2.1 MB, past the first cache: 350 ns up to 1.07 GB, 500 ns beyond.",
        "The first cache fetches 32 bytes at a time.",
        "The second cache fetches 64 bytes at a time.",
        "Addresses are looked up by pages of 2.1 MB.",
    ]


def test_loads_that_all_take_as_long_show_no_lines() -> None:
    rows = [
        {"table": "lines", "space": memory.SECOND, "stride": stride, **timed(1e-7)}
        for stride in (8, 16, 32, 64)
    ]
    assert list(memory.read_off(rows)) == []


def rows_of_blas12() -> list[dict[str, Any]]:
    rows = []
    for operation in blas12.OPERATIONS:
        for dtype in blas12.DTYPES:
            for used, pins in ((blas12.IN_TURN, 3e12), (blas12.SAME, None)):
                orders = (64, 1024, 4096, 16384)
                moved = [blas12.moved_bytes(operation, n, dtype) for n in orders]
                times = [
                    {"table": "times", "place": "GPU", "operation": operation, "type": dtype,
                     "operands": used, "n": n, "bytes": nbytes, **timed(3e-6 + nbytes / 1.5e12),
                     "bytes/s": nbytes / (3e-6 + nbytes / 1.5e12)}
                    for n, nbytes in zip(orders, moved, strict=True)
                ]  # fmt: skip
                rows += blas12._with_model(times, pins)
    return rows


def test_the_rate_of_vectors_is_beside_the_pins() -> None:
    first, *_ = blas12.find(rows_of_blas12())
    assert first.startswith(
        "axpy in float32 on the GPU takes 3 µs + bytes / (1.5 TB/s), beta 50 % of the pins"
    )


@pytest.mark.parametrize(
    ("join", "form", "half"), [(sum, blas12.SUM, 1e6), (max, blas12.LARGER, 5e5)]
)
def test_the_form_of_the_model_is_that_of_the_times(join: Any, form: str, half: float) -> None:
    moved = [1e3, 1e5, 1e6, 1e7, 1e8]
    model = blas12.fit(moved, [join((2e-6, nbytes / 5e11)) for nbytes in moved])
    assert model.form == form
    assert model.t0 == pytest.approx(2e-6)
    assert model.beta == pytest.approx(5e11)
    assert model.half_order("axpy", "float64") == pytest.approx(half / 24, rel=1e-3)


def rows_of_bandwidth() -> list[dict[str, Any]]:
    rates = [
        (bandwidth.ALIGNED, 1, 3e12), (bandwidth.MISALIGNED, 1, 2e12), (bandwidth.STRIDED, 1, 2e12),
        (bandwidth.STRIDED, 64, 4e11), ("rows, row-major", 1, 2.4e12),
        ("rows, column-major", 1, 2e11),
    ]  # fmt: skip
    rows = [
        {"table": "copies", "place": "GPU", "what": what, "word": 8, "stride": stride,
         **timed(1e-3), "bytes/s": rate}
        for what, stride, rate in rates
    ]  # fmt: skip
    return list(bandwidth.beside_limits(rows, 4e12))


def test_the_least_of_copies_is_said_of_each_kind() -> None:
    assert bandwidth.find(rows_of_bandwidth()) == [
        "On the GPU copies reach 3 TB/s (aligned, words of 8 bytes, 75 % of the pins). The slowest "
        "of each kind have, of the pins: aligned 75 %; off by a word 50 %; strided 10 %; rows, "
        "row-major 60 %; rows, column-major 5 %."
    ]


def rows_of_ulps() -> list[dict[str, Any]]:
    rows = [
        ulps._errors("GPU", operation, dtype, mode, np.array([0.5 * (1 + number)]))
        for (mode, dtype), (number, operations) in ulps.MODES.items()
        for operation in operations
    ]
    rows += [
        {"table": "factors", "who": "hetero_la, GPU", "type": dtype, "step": step, "L": 1.0,
         "U": float(step)}
        for dtype in ("float32", "float64") for step in (1, 7)
    ]  # fmt: skip
    return rows


def rows_of_launch() -> list[dict[str, Any]]:
    graph = f"graph of {launch._GRAPH}, each"
    rows = [
        {"table": "times", "place": "GPU", "way": way, "what": what, **timed(4e-6)}
        for way in ("CuPy, Function", "driver", graph)
        for what in ("enqueued", "in a row", "synchronized")
    ]  # fmt: skip
    rows.append({"table": "times", "place": "CPU", "way": "a thread, and back", "what": "and back",
                 **timed(2e-5)})  # fmt: skip
    return [*rows, launch._histogram("GPU", "driver", lambda: None, 10)]


def rows_of_transfers() -> list[dict[str, Any]]:
    rows = [
        transfers._timed(what, nbytes, lambda: None, lambda call, calls: 1e-3 * calls)
        for what in ("host to GPU, pinned", "allocate on the GPU") for nbytes in (2**10, 2**20)
    ]  # fmt: skip
    rows += [
        {"table": "worth", "what": what, "n": 64, **timed(1e-3), "per byte": 1e-11}
        for what in ("up", "sum of two", "product of two", "down")
    ]
    rows += [
        {"table": "pairs", "from": i, "to": 1 - i, **timed(1e-3), "bytes/s": 1e11} for i in (0, 1)
    ]
    name = "host to GPU, pinned"
    rows.append(transfers._fitted(name, rows[:2]))
    in_a_row = {"table": "fit", "what": name + transfers.IN_A_ROW, "alpha": 2e-6, "beta": 5e10,
                "worst error": 0.1}  # fmt: skip
    return [*rows, in_a_row]


def rows_of_complex() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for dtype in complex3m.DTYPES:
        for who in (complex3m.NATIVE, complex3m.OURS):
            rows.append(
                {"table": "products", "place": "GPU", "who": who, "type": dtype, "n": 64,
                 **timed(1e-3), "rate over complex": 1.2, "rate over real": 1.1, "real": 1.0,
                 "imag": 2.0}
            )  # fmt: skip
            rows.append(
                {"table": "factorizations", "routine": "lu", "who": who, "type": dtype, "n": 64,
                 **timed(1e-3), "rate over complex": 1.1}
            )  # fmt: skip
    return rows


def rows_of_matvec() -> list[dict[str, Any]]:
    sizes = {
        "orders": [8], "rows": 64, "caches": 1e-3, "copied": 2**12, "solved": 32, "solves": 1,
    }  # fmt: skip
    run = StudyRun(sizes, gpus=0)
    rows = [*matvec._products(run), *matvec._systems(run)]
    rows += [{**row, "place": "GPU", "of pins": 0.9} for row in rows if "place" in row]
    rows += [{"table": "moves", "what": what, "n": 64, **timed(1e-3)} for what in ("up", "down")]
    pays = {"table": "pays", "n": 64, "products": 3.25, "there": 2e11, "with transfers": 5e9}
    return [*rows, pays]


MADE_UP = {
    pipeline: rows_of_pipeline, barrier: rows_of_barrier, unblocked_lu: rows_of_lu,
    gemm_kernel: rows_of_gemm, memory: rows_of_memory, launch: rows_of_launch,
    transfers: rows_of_transfers, complex3m: rows_of_complex, matvec: rows_of_matvec,
    blas12: rows_of_blas12, bandwidth: rows_of_bandwidth, ulps: rows_of_ulps,
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
