"""The factorizations on NVIDIA GPUs beside NVIDIA's libraries: every case by one command.

python benchmarks/nvidia.py                       all cases that the GPUs here allow
python benchmarks/nvidia.py --only lu --gpus 1    LU on one GPU
python benchmarks/nvidia.py --json rows.json      the table as JSON, too

Each case is measured beside its peer in the same run, and checked by its error ratio.  "x GEMM"
is the rate over that of the update C <- C - A B, A of 512 columns, of the same type and as many
GPUs, on random data and sustained (gemm.py), measured at the beginning.  "must" is the ratio to
the peer that a case is meant to reach, and "Dask" the share of a run on Dask that the same
programs take less where threads drive them; a public function asks Dask only where that is worth
it, and "hetero_la" is what it takes then.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from dataclasses import dataclass, replace

import harness
import numpy as np

import hetero_la
from hetero_la.scheduler.run.threads import run_in_threads
from hetero_la.studies.factorizations import peers
from hetero_la.studies.factorizations.problems import FACTORIZATIONS, LU
from hetero_la.studies.factorizations.update_rate import update_rate
from hetero_la.testing.residuals import solve_ratio
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.gpu.device import GpuDevice, gpu_descriptions
from hetero_la.tiles.storage.shard import ArrayStorage


@dataclass(frozen=True)
class Wanted:
    """A case, and the ratio to its peer that it is meant to reach."""

    routine: str
    gpus: int
    n: int
    must: float
    dtype: str = "float64"


#: The case that is measured from host to host, too: its peer is then the run on the device.
ALSO_FROM_HOST, MUST_FROM_HOST = Wanted("lu", 1, 32768, 1.25), 1 / 1.3
CASES = [
    Wanted("lu", 1, 8192, 1.2),
    Wanted("lu", 1, 16384, 1.35),
    ALSO_FROM_HOST,
    Wanted("cholesky", 1, 32768, 1.03),
    Wanted("qr", 1, 32768, 1.35),
    *(
        Wanted(routine, 1, n, 1.0, dtype)
        for dtype in ("float32", "complex128")
        for routine in FACTORIZATIONS
        for n in (16384, 32768)
    ),
    Wanted("lu", 4, 32768, 1.4),
    Wanted("lu", 4, 65536, 1.45),
    Wanted("cholesky", 4, 65536, 1.8),
]


def peers_found() -> dict[str, str]:
    """The libraries to be beaten: what was found of them."""
    found = {"cuSOLVER": "through CuPy", "cuSOLVERMg": peers.cusolvermg_library()}
    jaxmg = importlib.util.find_spec("jaxmg")
    found["JAXMg"] = "it solves, and gives no factors: not timed" if jaxmg else None
    return {name: where or "not installed" for name, where in found.items()}


def host_to_host(n: int, repeats: int, on_device: float) -> list[harness.Row]:
    """LU in place of a matrix in pinned host memory; one on the device takes `on_device` s."""
    import cupyx

    source = (np.random.default_rng(0).random((n, n)) - 0.5).T  # as quick to copy as it can be
    a, device = cupyx.empty_pinned((n, n), order="F"), GpuDevice(0)
    case, made = harness.Case(LU, "float64", repeats, None), []
    with hetero_la.Cluster(gpus=1, cpus=0) as cluster:

        def ours() -> float:
            a[...] = source
            made[:] = [hetero_la.lu_factor(a, overwrite_a=True, check_finite=False, client=cluster)]
            made[0].release()  # they are at home, too
            return float(made[0].timing.seconds)

        def threads() -> float:
            a[...] = source
            job, storage = made[0].plan.job(), ArrayStorage(a, a)
            return peers.seconds_of(lambda: run_in_threads(job, storage, [device]))

        seconds = case.measure({harness.ON_DASK: ours, harness.IN_THREADS: threads})
    b = source[:, :1]
    ratio = solve_ratio(source, made[0].solve(b), b) / n  # as those of factors are scaled
    seconds["on the device"] = [on_device]
    return case.rows("host", n, seconds, "on the device", ratio)


def measure(wanted: Wanted, repeats: int) -> list[harness.Row]:
    """The rows of one case."""
    case = harness.Case(FACTORIZATIONS[wanted.routine], wanted.dtype, repeats, None)
    if wanted.gpus > 1:
        return case.several_gpus(wanted.gpus, wanted.n)
    return case.one_gpu(wanted.n)


def judge(wanted: Wanted, rows: list[harness.Row], gemm: float) -> list[harness.Row]:
    """Say of each row how it stands to GEMM, and of ours whether the case is reached."""
    seconds = {row["who"]: row["seconds"] for row in rows}
    ours = harness.OURS if harness.OURS in seconds else harness.ON_DASK
    for row in rows:
        row["dtype"], row["times GEMM"] = wanted.dtype, 1e9 * row["gflops"] / (gemm * wanted.gpus)
        if row["who"] == ours:
            row["must"] = wanted.must
            reached = row["times the peer's rate"]
            row["reached"] = None if reached is None else reached >= wanted.must
        if row["who"] == harness.ON_DASK:
            row["Dask's share"] = 1 - seconds[harness.IN_THREADS] / row["seconds"]
    return rows


def show(rows: list[harness.Row]) -> None:
    """Print rows of one case."""
    for row in rows:
        peer, must, share, residual = (
            row.get(key) for key in ("times the peer's rate", "must", "Dask's share", "residual")
        )
        print(
            f"{row['routine']:<9}{row['dtype']:<11}{row['case']:<7}{row['n']:>6}  {row['who']:<23}"
            f"{row['seconds']:>9.4f}{row['gflops'] / 1e3:>8.1f}{row['times GEMM']:>8.2f}"
            f"{'-' if peer is None else format(peer, '.2f'):>8}"
            f"{'' if must is None else format(must, '.2f'):>7}"
            f"{'' if share is None else format(share, '.1%'):>7}"
            f"{'' if residual is None else format(residual, '.3f'):>10}",
            flush=True,
        )


def main(argv: list[str] | None = None) -> int:
    """Measure the cases that the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=FACTORIZATIONS)
    parser.add_argument("--dtype", choices=["float32", "float64", "complex128"])
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--most", type=int, metavar="N", help="largest order")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    if not gpu_count():
        print("there is no GPU here", file=sys.stderr)
        return 1
    print("GPUs:", "; ".join(gpu_descriptions()))
    print("peers:", "; ".join(f"{name}: {where}" for name, where in peers_found().items()))
    cases = [
        case
        for case in CASES
        if case.gpus <= gpu_count()
        and args.only in (None, case.routine)
        and args.dtype in (None, case.dtype)
        and args.gpus in (None, case.gpus)
        and (args.most is None or case.n <= args.most)
    ]
    dtypes = dict.fromkeys(case.dtype for case in cases)
    gemm = {dtype: update_rate(GpuDevice(0), dtype).sustained for dtype in dtypes}
    print("GEMM, Tflop/s:", ", ".join(f"{name} {rate / 1e12:.1f}" for name, rate in gemm.items()))
    print(
        f"{'routine':<9}{'dtype':<11}{'case':<7}{'n':>6}  {'who':<23}{'median s':>9}{'Tflop/s':>8}"
        f"{'x GEMM':>8}{'x peer':>8}{'must':>7}{'Dask':>7}{'residual':>10}"
    )
    rows = []
    for case in cases:
        found = judge(case, measure(case, args.repeats), gemm[case.dtype])
        show(found)
        rows += found
        if case is ALSO_FROM_HOST:
            on_device = next(row["seconds"] for row in found if row["who"] == harness.OURS)
            found = host_to_host(case.n, args.repeats, on_device)
            found = judge(replace(case, must=MUST_FROM_HOST), found, gemm[case.dtype])
            show(found)
            rows += found
    harness.write_json({"gemm flops": gemm, "rows": rows}, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
