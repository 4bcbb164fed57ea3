"""What the multiplication with an inverse costs in accuracy, and when it is given up.

In each step, L[k,k] X = B is solved by the multiplication X = W B with W = L[k,k]^-1, which
is a matrix product and so far faster on a GPU than substitution.  Substitution leaves a
residual of a few eps; the multiplication leaves one of up to a small multiple of ||W|| eps.
So the product is used only up to ||W||_1 <= `inverse_bound`; beyond it the kernel
substitutes.

Partial pivoting keeps ||W|| small in practice, though not in theory, where it can reach
2^(nb-1).  The matrices named "grown P" below are made to provoke it: A = L U with a random,
well-conditioned U, and with an L in whose diagonal tiles the first P columns hold -0.9
everywhere below the diagonal.  So ||W|| is about 1.9^P, and U does not grow: substitution is
accurate, and the multiplication is not.

The table shows, for each matrix, the largest ||W||_1 over all steps, and error ratios with
the bound off ("inf": always multiply), with the default, and at 0 (always substitute):
||PA - LU|| / (n ||A|| eps) of the factors, and ||B - AX|| / (||A|| ||X|| eps) of `lu_solve`
with these factors and of `solve`, which refines its answer.  The program fails if a ratio
with the default bound is not under 30.

    python examples/05_inverse_bound.py
    python examples/05_inverse_bound.py --n 1024 --nb 256 --dtype float32

On the stability of methods with inverses: J. J. Du Croz and N. J. Higham, Stability of
methods for matrix inversion, IMA J. Numer. Anal. 12, 1992.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

import hetero_la
from hetero_la.testing.matrices import DTYPES, generate
from hetero_la.testing.residuals import RATIO_LIMIT, lu_ratio, solve_ratio

KINDS = ("rands", "svd", "orthog", "gfpp", "wilkinson")
GROWN = (5, 10, 15, 20, 30, 40)
DEFAULT = hetero_la.Options().inverse_bound
BOUNDS = {"inf": np.inf, "default": DEFAULT, "0": 0.0}
MEASURES = ("LU", "lu_solve", "solve")


def grown(n: int, nb: int, columns: int, dtype: str) -> NDArray:
    """L U with ||W|| about 1.9^columns in each step, and no growth in U."""
    rng = np.random.default_rng(columns)
    L = np.tril(rng.uniform(-1, 1, (n, n)) / nb, -1) + np.eye(n)
    for first in range(0, n, nb):
        rows, left = np.ogrid[first : min(first + nb, n), first : min(first + columns, n)]
        L[first : first + nb, first : first + columns][rows > left] = -0.9
    U = np.triu(rng.uniform(-1, 1, (n, n)), 1) / n**0.5 + np.eye(n)
    return np.asfortranarray(L @ U, dtype)


def largest_inverse(lu: NDArray, nb: int) -> float:
    """The largest ||L[k,k]^-1||_1 of packed factors."""
    tiles = (lu[k : k + nb, k : k + nb] for k in range(0, len(lu), nb))
    inverses = (
        scipy.linalg.solve_triangular(tile, np.eye(len(tile)), lower=True, unit_diagonal=True)
        for tile in tiles
    )
    return max(float(np.abs(inverse).sum(axis=0).max()) for inverse in inverses)


def main() -> int:
    parser = argparse.ArgumentParser(description="Accuracy and the inverse bound.")
    parser.add_argument("--n", type=int, default=1024, help="order of the matrices")
    parser.add_argument("--nb", type=int, default=256, help="tile size")
    parser.add_argument("--dtype", choices=DTYPES, default="float64")
    args = parser.parse_args()
    matrices = {kind: generate(kind, args.n, dtype=args.dtype) for kind in KINDS}
    for columns in GROWN:
        matrices[f"grown {columns}"] = grown(args.n, args.nb, columns, args.dtype)
    signs = np.sign(generate("rands", args.n, 1, dtype=args.dtype, seed=1))

    print(f"n = {args.n}, nb = {args.nb}, {args.dtype}; default bound {DEFAULT:g}")
    print(f"{'matrix':<10}{'||W||':>9}", *(f"{measure:^27}" for measure in MEASURES), sep=" |")
    print(" " * 19, *["".join(f"{bound:>9}" for bound in BOUNDS)] * 3, sep=" |")
    all_passed = True
    for name, a in matrices.items():
        b, ratios = a @ signs, {}
        for what, bound in BOUNDS.items():
            factors = hetero_la.lu_factor(a, nb=args.nb, inverse_bound=bound)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)  # of conditioning
                x = hetero_la.solve(a, b, nb=args.nb, inverse_bound=bound)
            ratios["LU", what] = lu_ratio(a, *factors)
            ratios["lu_solve", what] = solve_ratio(a, factors.solve(b), b)
            ratios["solve", what] = solve_ratio(a, x, b)
        w = largest_inverse(factors.lu, args.nb)
        groups = [[ratios[measure, bound] for bound in BOUNDS] for measure in MEASURES]
        cells = ["".join(f"{ratio:9.2g}" for ratio in group) for group in groups]
        print(f"{name:<10}{w:9.1e}", *cells, sep=" |", flush=True)
        all_passed &= all(r < RATIO_LIMIT for (_, what), r in ratios.items() if what == "default")
    print("all ratios with the default bound are under 30" if all_passed else "FAILED")
    return 0 if all_passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
