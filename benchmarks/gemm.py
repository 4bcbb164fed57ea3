"""The rate of the trailing update C <- C - A B on one GPU, sustained and in a burst.

python benchmarks/gemm.py                        k = 512 and 1024, all types
python benchmarks/gemm.py --dtype float64 --k 512 --n 16384

On random data: zeros switch fewer transistors, and a GPU that they keep cool reads 5 to 10 %
faster.  "Sustained" is the rate over a second and more without a pause, as in a long run; "burst"
is the median of single products, each after a pause.
"""

from __future__ import annotations

import argparse
import sys

import harness

from hetero_la.studies.factorizations.update_rate import update_rate
from hetero_la.tiles.arrays.transfer import gpu_count
from hetero_la.tiles.kernels.gpu.device import GpuDevice, gpu_descriptions

DTYPES = ("float32", "float64", "complex64", "complex128")


def main(argv: list[str] | None = None) -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dtype", choices=DTYPES, nargs="+", default=DTYPES)
    parser.add_argument("--n", type=int, default=16384)
    parser.add_argument("--k", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    if not gpu_count():
        print("there is no GPU here", file=sys.stderr)
        return 1
    print(f"{gpu_descriptions()[0]}, C {args.n} x {args.n}, Tflop/s")
    print(f"{'dtype':<12}{'k':>6}{'sustained':>11}{'burst':>8}")
    rows = []
    for dtype in args.dtype:
        for k in args.k:
            rate = update_rate(GpuDevice(0), dtype, args.n, k)
            print(f"{dtype:<12}{k:>6}{rate.sustained / 1e12:>11.1f}{rate.burst / 1e12:>8.1f}")
            rows.append({"dtype": dtype, "n": args.n, "k": k, **rate._asdict()})
    harness.write_json(rows, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
