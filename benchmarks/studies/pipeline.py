"""How long an arithmetic instruction takes, and how few warps keep the units busy.

Each thread runs several chains of dependent instructions side by side.  One warp with one chain
shows the latency; the map over warps and chains shows the parallelism that hides it, of whichever
kind: Volkov's point was that chains do as well as warps.  All operands are in registers: a kernel
that keeps some of them in memory is refused, since it would measure that.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hetero_la.cli.main import main
from hetero_la.studies.common.columns import SECONDS, WORD, number, percent, rate
from hetero_la.studies.common.cuda import (
    capability,
    cuda_source,
    launch,
    multiprocessors,
    peak,
    tensor_peak,
)  # fmt: skip
from hetero_la.studies.common.plots import finish, heat_map, panels
from hetero_la.studies.common.study import (
    Row,
    Rows,
    Study,
    StudyRun,
    StudyTable,
    rows_of,
    values_of,
)  # fmt: skip
from hetero_la.studies.common.timing import gpu_clock, samples, spread
from hetero_la.tiles.arrays.counted import counted, in_units
from hetero_la.tiles.kernels.gpu.sources import Source, module

_STEPS = 16  #: of a round, in the source
CHAINS = (1, 2, 4, 8)


class Operation(NamedTuple):
    """An instruction: its number in the source, flops of a warp's, and what it needs.

    `fixed` is where a chain ends that begins anywhere; None where every step adds 1 to each of
    `sums` numbers.  Blocks have at most `threads`, each of which runs one of `chains`.
    """

    number: int
    flops: int
    capability: int
    fixed: float | None
    sums: int = 1
    chains: tuple[int, ...] = CHAINS
    threads: int = 1024

    def source(self, chains: int) -> Source:
        """Return the kernel's source for so many chains."""
        macros = f"CHAINS={chains} THREADS={self.threads} OPERATION={self.number}"
        return cuda_source("pipeline", *macros.split())


_FMA, _TENSOR = "FMA, ", "tensor, "
OPERATIONS = {
    f"{_FMA}float32": Operation(0, 64, 50, 2.0),
    f"{_FMA}float64": Operation(1, 64, 50, 2.0),
    "rsqrt, float32": Operation(2, 32, 50, 1.0),
    "tensor, float64, 8 x 8 x 4": Operation(3, 512, 80, None, 2),
    "tensor, TF32, 16 x 8 x 8": Operation(4, 2048, 80, None, 4),
    # Its operands and eight chains are more than the registers of a thread, and four are more than
    # those of a thread among 1024.
    "tensor, float64, 16 x 8 x 16": Operation(5, 4096, 90, None, 4, CHAINS[:-1], 256),
}
SOURCES = tuple(
    operation.source(chains) for operation in OPERATIONS.values() for chains in operation.chains
)


def _peaks(name: str) -> dict[str, float | None]:
    """Return the peak of an instruction's units, under a name of its own for tensor cores.

    Some of these reach it by other instructions only; ordinary units that do not are throttled.
    """
    if name.startswith(_FMA):
        return {"peak": peak(name.removeprefix(_FMA))}
    if name.startswith(_TENSOR):
        return {"tensor peak": tensor_peak(name.split(", ")[1])}
    return {}


def ends(operation: Operation, chains: int, rounds: int) -> float:
    """Return the sum of a thread's chains after so many rounds.

    Examples
    --------
    >>> ends(OPERATIONS["FMA, float64"], 4, 10), ends(OPERATIONS["tensor, TF32, 16 x 8 x 8"], 2, 1)
    (8.0, 132.0)
    """
    if operation.fixed is not None:
        return chains * operation.fixed
    return float(sum(operation.sums * (seed + _STEPS * rounds) for seed in range(chains)))


def measure(run: StudyRun) -> Iterator[Row]:
    """Time chains by instruction, number of chains and number of warps."""
    if not run.has_gpus(1, "chains of instructions"):
        return
    for name, operation in OPERATIONS.items():
        if capability() < operation.capability:
            run.leave_out(f"{name}: the GPU has no such instruction")
            continue
        rows = []
        for chains in operation.chains:
            for warps in (w for w in run.sizes["warps"] if 32 * w <= operation.threads):
                run.report(f"{name}: {chains} chains, {warps} warps")
                rows.append(_timed(name, operation, chains, warps, run.sizes["rounds"]))
        best = max(row["flop/s"] for row in rows)
        yield from ({**row, "of best": row["flop/s"] / best} for row in rows)
        yield _summary(name, rows, best, _peaks(name))


def _timed(name: str, operation: Operation, chains: int, warps: int, rounds: int) -> Row:
    """Time one kernel on all multiprocessors, of which each has so many warps."""
    import cupy

    blocks = multiprocessors()
    compiled = module(operation.source(chains)).get_function("chains")
    if compiled.local_size_bytes:
        raise AssertionError(f"{name}: {counted(chains, 'chain')} are not in registers alone")
    function = compiled.kernel
    out = cupy.zeros(blocks * 32 * warps)
    cycles = cupy.zeros(blocks, np.int64)
    launch(function, blocks, 32 * warps, out, rounds, cycles)
    np.testing.assert_allclose(out.get(), ends(operation, chains, rounds), rtol=1e-6)
    taken = spread(
        samples(lambda: launch(function, blocks, 32 * warps, out, rounds, cycles), gpu_clock)
    )
    instructions = _STEPS * rounds * chains
    flops = blocks * warps * instructions * operation.flops
    each = statistics.median(cycles.get().tolist()) / instructions
    return {
        "table": "map", "instruction": name, "chains": chains, "warps": warps, **taken,
        "cycles": each, "flop/s": flops / taken["seconds"],
    }  # fmt: skip


def _summary(name: str, rows: Rows, best: float, peaks: dict[str, float | None]) -> Row:
    """Return latency, best rate, and the fewest warps that come close to it."""
    (alone,) = (row for row in rows if (row["chains"], row["warps"]) == (1, 1))
    most = max(row["chains"] for row in rows)
    fewest = {
        chains: min(
            (r["warps"] for r in rows if r["chains"] == chains and r["flop/s"] >= 0.9 * best),
            default=None,
        )
        for chains in (1, most)
    }
    of_peak = [best / known for known in peaks.values() if known]
    return {
        "table": "instructions", "instruction": name, "latency": alone["cycles"], "best": best,
        **peaks, "of peak": of_peak[0] if of_peak else None, "warps, 1 chain": fewest[1],
        "most chains": most, "warps, most chains": fewest[most],
    }  # fmt: skip


def find(rows: Rows) -> list[str]:
    """Say what latency and rate instructions have, and what it takes to reach it."""
    found = []
    for row in rows_of(rows, "instructions"):
        text = (
            f"{row['instruction']}: {row['latency']:.1f} cycles from one to the next that needs "
            f"it, and {in_units(row['best'], 'flop/s')} at best"
        )
        if row["of peak"]:
            text += f", {percent(row['of peak'])} of the peak"
        if few := row["warps, most chains"]:
            text += f"; 90 % of that takes {counted(few, 'warp')} of {row['most chains']} chains"
        found.append(text + ".")
    return found


def draw(figure: Any, rows: Rows) -> None:
    """Draw a map of each instruction: percent of its best rate, by warps and chains."""
    names = values_of(rows_of(rows, "map"), "instruction")
    for axes, name in zip(panels(figure, len(names)), names, strict=True):
        shown = rows_of(rows, "map", instruction=name)
        warps, chains = values_of(shown, "warps"), values_of(shown, "chains")
        rates = {(row["chains"], row["warps"]): 100 * row["of best"] for row in shown}
        values = [[rates[c, w] for w in warps] for c in chains]
        heat_map(figure, axes, values, chains, warps, "% of the best")
        finish(
            axes,
            name,
            "warps of a multiprocessor",
            "chains of a thread",
            logarithmic="",
            grid=False,
        )


STUDY = Study(
    name="pipeline",
    question="How long does an instruction take, and how few warps keep the units busy?",
    source="Volkov and Demmel 2008, 3.4 and 3.6",
    original="20 to 28 cycles; 98 % of the peak with 64 elements of a vector",
    tables=(
        StudyTable(
            "instructions", "cycles from one instruction to the next that needs it; fewest warps "
            "of a multiprocessor with 90 % of the best rate; peaks at the highest clock",
            {"instruction": WORD, "latency": number(), "best": rate("flop/s"),
             "peak": rate("flop/s"), "tensor peak": rate("flop/s"), "of peak": percent,
             "warps, 1 chain": str, "most chains": str, "warps, most chains": str},
        ),
        StudyTable(
            "map", "all",
            {"instruction": WORD, "chains": str, "warps": str, **SECONDS, "cycles": number(),
             "flop/s": rate("flop/s"), "of best": percent},
        ),
    ),
    sizes={"warps": [1, 2, 4, 6, 8, 12, 16, 24, 32], "rounds": 2000},
    quick={"warps": [1, 4, 16], "rounds": 200},
    measure=measure,
    find=find,
    draw=draw,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(["study", Path(__file__).stem, *sys.argv[1:]]))
