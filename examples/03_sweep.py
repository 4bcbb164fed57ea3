"""A sweep over sizes, tile sizes and look-ahead: which tile size is best here?

Small tiles make many small products, large ones make long panels that nothing hides; the
best size lies between and depends on the machine.  Look-ahead pays where a panel and an
update can run at the same time: with GPUs, or with several workers.

Every combination is run several times; a row holds the fastest run, and the error ratio
||PA - LU|| / (n ||A|| eps) as LAPACK's tests define it.  The program names the best tile
size for each order, and fails if a ratio is not under 30.

    python examples/03_sweep.py
    python examples/03_sweep.py --n 2000 4000 --nb 128 192 256 384 --lookahead 0 1 2

`hetero-la sweep` does the same from the command line, with more columns and a CSV file.
"""

from __future__ import annotations

import argparse
import itertools

import hetero_la
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import RATIO_LIMIT, lu_ratio


def main() -> int:
    parser = argparse.ArgumentParser(description="Which tile size is best here?")
    parser.add_argument("--n", type=int, nargs="+", default=[1000, 2000], help="orders")
    parser.add_argument("--nb", type=int, nargs="+", default=[64, 128, 256], help="tile sizes")
    parser.add_argument("--lookahead", type=int, nargs="+", default=[0, 1], help="depths")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each combination")
    args = parser.parse_args()

    print(f"{'n':>7}{'nb':>6}{'look-ahead':>12}{'seconds':>10}{'Gflop/s':>10}{'ratio':>10}  status")
    all_passed = True
    for n in args.n:
        a = generate("rands", n)
        best: tuple[float, int, int] | None = None
        for nb, lookahead in itertools.product(args.nb, args.lookahead):
            runs = [hetero_la.lu_factor(a, nb=nb, lookahead=lookahead) for _ in range(args.repeat)]
            factors = min(runs, key=lambda run: run.timing.seconds)
            seconds, ratio = factors.timing.seconds, lu_ratio(a, *factors)
            passed = ratio < RATIO_LIMIT
            all_passed &= passed
            best = min(best or (seconds, nb, lookahead), (seconds, nb, lookahead))
            print(
                f"{n:>7}{nb:>6}{lookahead:>12}{seconds:>10.4f}"
                f"{factors.plan.flops / seconds / 1e9:>10.1f}{ratio:>10.3g}"
                f"  {'ok' if passed else 'FAILED'}",
                flush=True,
            )
        if best is not None:
            print(f"best for n = {n}: nb = {best[1]}, look-ahead {best[2]}")
    return 0 if all_passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
