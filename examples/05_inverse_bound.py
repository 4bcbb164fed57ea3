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

The table shows, for each matrix, the largest ||W||_1 over all steps and the error ratios
||PA - LU|| / (n ||A|| eps) and ||B - AX|| / (||A|| ||X|| eps) with the bound off (always
multiply), with the default, and at 0 (always substitute).  The program fails if a ratio with
the default bound is not under 30.

    python examples/05_inverse_bound.py
    python examples/05_inverse_bound.py --n 1024 --nb 256 --dtype float32

On the stability of methods with inverses: J. J. Du Croz and N. J. Higham, Stability of
methods for matrix inversion, IMA J. Numer. Anal. 12, 1992.
"""

from __future__ import annotations

import argparse

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

import hetero_la
from hetero_la.matrices import DTYPES, generate
from hetero_la.residuals import RATIO_LIMIT, lu_ratio, solve_ratio

KINDS = ("rands", "svd", "orthog", "gfpp", "wilkinson")
GROWN = (5, 10, 15, 20, 30, 40)
DEFAULT = hetero_la.Options().inverse_bound


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

    print(f"n = {args.n}, nb = {args.nb}, {args.dtype}, ratios; default bound {DEFAULT:g}")
    print(f"{'matrix':<10} {'||W||':>8} | {'LU, inf':>8} {'default':>8} {'0':>8} | "
          f"{'solve, inf':>10} {'default':>8} {'0':>8}")  # fmt: skip
    all_passed = True
    for name, a in matrices.items():
        b, ratios = a @ signs, []
        for bound in (np.inf, DEFAULT, 0):
            factors = hetero_la.lu_factor(a, nb=args.nb, inverse_bound=bound)
            x = hetero_la.solve(a, b, nb=args.nb, inverse_bound=bound)
            ratios.append((lu_ratio(a, *factors), solve_ratio(a, x, b)))
        (lu_inf, x_inf), (lu_default, x_default), (lu_zero, x_zero) = ratios
        w = largest_inverse(factors.lu, args.nb)
        print(f"{name:<10} {w:8.1e} | {lu_inf:8.2g} {lu_default:8.2g} {lu_zero:8.2g} | "
              f"{x_inf:10.2g} {x_default:8.2g} {x_zero:8.2g}")  # fmt: skip
        all_passed &= lu_default < RATIO_LIMIT and x_default < RATIO_LIMIT
    print("all ratios with the default bound are under 30" if all_passed else "FAILED")
    return 0 if all_passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
