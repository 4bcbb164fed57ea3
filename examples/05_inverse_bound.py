"""
What multiplying by an inverse costs
====================================

The price in accuracy, and when it is not paid.

In each step, L[k,k] X = B is solved by the multiplication X = W B with W = L[k,k]^-1, a matrix
product, which is far faster on a GPU than substitution.  Substitution leaves a residual of a few
eps; the multiplication leaves one of up to a small multiple of ``||W|| eps``.  So the product is
used only up to ``||W||_1 <= inverse_bound``; beyond it, the kernel substitutes.

Partial pivoting keeps ``||W||`` small in practice, though not in theory, where it can reach
2^(nb-1). The matrices named "grown P" are made to provoke it: A = L U with a random,
well-conditioned U, and with an L in whose diagonal tiles the first P columns hold -0.9 everywhere
below the diagonal.  So ``||W||_1`` is about (nb - P) 0.9 1.9^(P-1), for few columns nb/2 1.9^P,
and U does not grow: substitution is accurate, and the multiplication is not.

The table shows the largest ``||W||_1`` over all steps, and error ratios with the bound off
("inf": always multiply), with the default, and at 0 (always substitute): ``||PA - LU|| / (n ||A||
eps)`` of the factors, and ``||B - AX|| / (||A|| ||X|| eps)`` of `lu_solve` with these factors and
of `solve`, which refines its answer.  The script fails if a ratio with the default bound is not
under 30. ::

    python examples/05_inverse_bound.py

On the stability of methods with inverses: J. J. Du Croz and N. J. Higham, Stability of methods
for matrix inversion, IMA J. Numer. Anal. 12, 1992.
"""

# %%
# The matrices
# ------------

import warnings

import numpy as np
import scipy.linalg
from matplotlib import pyplot
from numpy.typing import NDArray

import hetero_la
from hetero_la.testing.matrices import generate
from hetero_la.testing.residuals import RATIO_LIMIT, lu_ratio, solve_ratio

N, NB, DTYPE = 512, 128, "float64"
KINDS = ("rands", "svd", "orthog", "gfpp", "wilkinson")
GROWN = (5, 10, 15, 20, 30, 40)
DEFAULT = hetero_la.Options().inverse_bound
BOUNDS = {"inf": np.inf, "default": DEFAULT, "0": 0.0}
MEASURES = ("LU", "lu_solve", "solve")


def grown(n: int, nb: int, columns: int, dtype: str) -> NDArray:
    """Return L U with ||W||_1 about nb/2 1.9^columns in each step, and no growth in U."""
    rng = np.random.default_rng(columns)
    L = np.tril(rng.uniform(-1, 1, (n, n)) / nb, -1) + np.eye(n)
    for first in range(0, n, nb):
        rows, left = np.ogrid[first : min(first + nb, n), first : min(first + columns, n)]
        L[first : first + nb, first : first + columns][rows > left] = -0.9
    U = np.triu(rng.uniform(-1, 1, (n, n)), 1) / n**0.5 + np.eye(n)
    return np.asfortranarray(L @ U, dtype)


def largest_inverse(lu: NDArray, nb: int) -> float:
    """Return the largest ||L[k,k]^-1||_1 of packed factors."""
    tiles = (lu[k : k + nb, k : k + nb] for k in range(0, len(lu), nb))
    inverses = (
        scipy.linalg.solve_triangular(tile, np.eye(len(tile)), lower=True, unit_diagonal=True)
        for tile in tiles
    )
    return max(float(np.abs(inverse).sum(axis=0).max()) for inverse in inverses)


matrices = {kind: generate(kind, N, dtype=DTYPE) for kind in KINDS}
for columns in GROWN:
    matrices[f"grown {columns}"] = grown(N, NB, columns, DTYPE)
signs = np.sign(generate("rands", N, 1, dtype=DTYPE, seed=1))

# %%
# The error ratios
# ----------------

print(f"n = {N}, nb = {NB}, {DTYPE}; default bound {DEFAULT:g}")
print(f"{'matrix':<10}{'||W||':>9}", *(f"{measure:^27}" for measure in MEASURES), sep=" |")
print(" " * 19, *["".join(f"{bound:>9}" for bound in BOUNDS)] * 3, sep=" |")
norms, ratios = {}, {}
for name, a in matrices.items():
    b = a @ signs
    for what, bound in BOUNDS.items():
        factors = hetero_la.lu_factor(a, nb=NB, inverse_bound=bound)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)  # of conditioning
            x = hetero_la.solve(a, b, nb=NB, inverse_bound=bound)
        ratios[name, "LU", what] = lu_ratio(a, *factors)
        ratios[name, "lu_solve", what] = solve_ratio(a, factors.solve(b), b)
        ratios[name, "solve", what] = solve_ratio(a, x, b)
    norms[name] = largest_inverse(factors.lu, NB)
    groups = [[ratios[name, measure, bound] for bound in BOUNDS] for measure in MEASURES]
    cells = ["".join(f"{ratio:9.2g}" for ratio in group) for group in groups]
    print(f"{name:<10}{norms[name]:9.1e}", *cells, sep=" |")

# %%
# The error ratio of the factors against the norm
# -----------------------------------------------

figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
names = sorted(norms, key=norms.__getitem__)
for what, label in (("inf", "always multiply"), ("default", "default"), ("0", "substitute")):
    axes.loglog(
        [norms[name] for name in names], [ratios[name, "LU", what] for name in names], "o-",
        label=label,
    )  # fmt: skip
axes.axhline(RATIO_LIMIT, color="0.5", ls="--")
axes.axvline(DEFAULT, color="0.8", ls=":")
axes.set(xlabel="largest norm of an inverse", ylabel="error ratio of LU")
axes.legend()

assert all(ratio < RATIO_LIMIT for (_, _, what), ratio in ratios.items() if what == "default")
print("all ratios with the default bound are under 30")
