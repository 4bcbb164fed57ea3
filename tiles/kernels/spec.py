"""Specification of each kernel.

A kernel is named as LAPACK names it, without the type letter.  It takes
column-major array views in the order reads, updates, writes, and works in
place.  ``SPECS`` is the one place that says what each of them computes; the
devices implement them (`hetero_la.tiles.kernels.cpu.device`,
`hetero_la.tiles.kernels.gpu.device`), and one test runs each on every device kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: LAPACK's letters of the element types.
LETTER = {"f": "s", "d": "d", "F": "c", "D": "z"}


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """Name, equation, operation count and properties of a kernel.

    Parameters
    ----------
    name : str
        LAPACK's name without the type letter, where LAPACK has one.
    equation : str
        What it computes.
    flops : callable
        Floating-point operations (real ones, counting a complex
        multiply-add as LAPACK does for real) from the arrays' shapes.
    chain : bool, optional
        Whether it is a chain of small dependent steps, which do not fill a GPU: a CPU may do
        it sooner.
    trapezoid : bool, optional
        Whether it takes two arrays, whose rows go together, and touches only the lower
        trapezoid of the last: so that a call for adjacent tile columns does what calls for
        each from its diagonal down do.
    """

    name: str
    equation: str
    flops: Callable[[Sequence[tuple[int, ...]]], float]
    chain: bool = False
    trapezoid: bool = False


def _getrf_flops(shapes: Sequence[tuple[int, ...]]) -> float:
    short, long = sorted(shapes[0])
    return long * short**2 - short**3 / 3


def _gemm_flops(shapes: Sequence[tuple[int, ...]]) -> float:
    (m, k), (_, n) = shapes[0], shapes[1]
    return 2.0 * m * n * k


def _herk_flops(shapes: Sequence[tuple[int, ...]]) -> float:
    (m, k), (_, n) = shapes
    return float(k * (2 * m * n - n * (n - 1)))


def _geqrf_flops(shapes: Sequence[tuple[int, ...]]) -> float:
    short, long = sorted(shapes[0])
    return 2.0 * long * short**2 - 2 * short**3 / 3 + long * short**2  # the last term: T


def _larfb_flops(shapes: Sequence[tuple[int, ...]]) -> float:
    (m, k), _, (_, n) = shapes
    return 4.0 * m * n * k


def _trsm_flops(shapes: Sequence[tuple[int, ...]]) -> float:
    return float(min(shapes[0]) ** 2 * shapes[1][1])


def _none(shapes: Sequence[tuple[int, ...]]) -> float:
    return 0.0


class Triangular(NamedTuple):
    """A triangular solve: triangle "l" or "u", "n" or "c" (adjoint), and whether it is unit."""

    triangle: str
    trans: str = "n"
    unit: bool = False

    @property
    def equation(self) -> str:
        """The equation of the solve."""
        return f"B <- {self.triangle.upper()}^-{'H' if self.trans == 'c' else '1'} B"


TRIANGULAR = {
    "trsm": Triangular("u"),
    "trsm_uc": Triangular("u", "c"),
    "trsm_l": Triangular("l"),
    "trsm_lc": Triangular("l", "c"),
    "trsm_l1": Triangular("l", "n", True),
    "trsm_lc1": Triangular("l", "c", True),
}

SPECS: dict[str, KernelSpec] = {
    s.name: s
    for s in (
        # --- LU
        # getrf(A, ipiv, info): A (r x c) is overwritten by L and U; ipiv (int32,
        # min(r, c)) gets 0-based swaps relative to A's first row; info (int32, 1)
        # gets 0 or the 1-based index of the first exactly zero pivot.
        KernelSpec("getrf", "A = P^T L U", _getrf_flops, chain=True),
        # netperm(ipiv, net): net (int32, 2 x 2w, w = len(ipiv)) lists what all the
        # swaps together do: row net[0, i] takes the old row net[1, i]; unused
        # entries are -1 in net[0].  Rows are relative, as in ipiv.
        KernelSpec("netperm", "net = rows moved by P", _none, chain=True),
        # trtri(A, W): A (r x c, a diagonal tile), W (w x w).  W = L^-1 in full (ones
        # on the diagonal, zeros above), L the unit lower triangle of A[:w, :w].
        # Where ||L^-1||_1 exceeds the device's bound or is not finite, W[0, 0] = NaN
        # says that W must not be used.
        KernelSpec("trtri", "W = L^-1", lambda s: s[1][0] ** 3 / 3, chain=True),
        # swap(ipiv, net, A): the rows of A (r x c) are permuted in place.
        KernelSpec("swap", "A <- P A", _none),
        # trmm(A, W, B): B (w x c) <- W B, or, where W[0, 0] is NaN, B <- L^-1 B by
        # substitution with the unit lower triangle L of A[:w, :w].
        KernelSpec("trmm", "B <- W B", lambda s: float(s[1][0] ** 2 * s[2][1])),
        # compose(ipiv, perm) or compose(ipiv, after, perm): perm (int32, r entries)
        # gathers r rows, the first of them ipiv's first row, so that X[perm] has
        # ipiv's swaps applied and then, to the last len(after) rows, X[after].
        KernelSpec("compose", "perm = after o P", _none),
        # laswp(perm, A): A (r x c) <- A[perm] in place; perm (int32, at most r
        # entries) acts on the last len(perm) rows.
        KernelSpec("laswp", "A <- A[perm]", _none),
        # --- Cholesky: L is the lower triangle of a diagonal tile, its diagonal real
        # potrf(A, info): the lower triangle of A (w x w) is overwritten by L; info
        # (int32, 1) gets 0 or the order of the first leading minor that is not positive.
        KernelSpec("potrf", "A = L L^H", lambda s: s[0][0] ** 3 / 3, chain=True),
        # trtri_n(A, W): W = L^-1 in full (zeros above), L the lower triangle of A, its
        # diagonal included.  W[0, 0] = NaN as in trtri, with the bound on
        # ||L^-1||_1 ||L||_1: the diagonal of L has the matrix's own scale.
        KernelSpec("trtri_n", "W = L^-1", lambda s: s[1][0] ** 3 / 3, chain=True),
        # trmm_rc(A, W, B): B (r x w) <- B W^H, or, where W[0, 0] is NaN, B <- B L^-H by
        # substitution with the lower triangle L of A[:w, :w].
        KernelSpec("trmm_rc", "B <- B W^H", lambda s: float(s[1][0] ** 2 * s[2][0])),
        # trmm_n(A, W, B): B (w x c) <- W B, or, where W[0, 0] is NaN, B <- L^-1 B.
        KernelSpec("trmm_n", "B <- W B", lambda s: float(s[1][0] ** 2 * s[2][1])),
        # herk(P, C): of C (r x c, r >= c) the lower trapezoid <- C - P P[:c]^H; P is
        # r x k.  What is above C's diagonal stays as it is.
        KernelSpec("herk", "C <- C - P P^H", _herk_flops, trapezoid=True),
        # --- QR: Q = I - V T V^H, of w = len(tau) reflectors
        # geqrf(A, tau, R, T, method): the first w columns of A (r x c, w = min(r, c)) are
        # overwritten by V with its ones and zeros, so that a product with it needs no
        # triangles; R (w x w) gets the triangle that LAPACK leaves in their place, zeros
        # below; the other columns are overwritten by Q^H A; tau (w) is LAPACK's, and
        # T (w x w) upper triangular, zeros below; method (int32, 1) gets 0 where the panel
        # was factored column by column, and 1 where by CholeskyQR2.
        KernelSpec("geqrf", "A = Q R", _geqrf_flops, chain=True),
        # larfb_c(V, T, C): C (r x c) <- Q^H C;  larfb_n(V, T, C): C <- Q C.
        # V may have more columns than T has: only its first len(T) ones count.
        KernelSpec("larfb_c", "C <- C - V T^H V^H C", _larfb_flops),
        KernelSpec("larfb_n", "C <- C - V T V^H C", _larfb_flops),
        # gemqrt_c(A, T, C), gemqrt_n: the same, A (r x c) having been packed by lacpy: V is
        # below its diagonal.
        KernelSpec("gemqrt_c", "C <- C - V T^H V^H C", _larfb_flops),
        KernelSpec("gemqrt_n", "C <- C - V T V^H C", _larfb_flops),
        # lacpy(R, A): the upper triangle of A[:w, :w] <- that of R (w x w).
        KernelSpec("lacpy", "A <- R", _none),
        # --- common to several
        # gemm(A, B, C): C (m x n) <- C - A B, A (m x k), B (k x n); B may have rows beyond.
        KernelSpec("gemm", "C <- C - A B", _gemm_flops),
        # gemm_nc(A, B, C): C (m x n) <- C - A B^H, A (m x k), B (n x k).
        KernelSpec("gemm_nc", "C <- C - A B^H", lambda s: 2.0 * s[0][0] * s[0][1] * s[1][0]),
        # gemm_cn(A, B, C): C (m x n) <- C - A^H B, A (k x m), B (k x n); C may have rows
        # beyond.
        KernelSpec("gemm_cn", "C <- C - A^H B", lambda s: 2.0 * s[0][0] * s[0][1] * s[1][1]),
        # laset_0(A): A <- 0;  laset_1(A): A <- ones on the diagonal, zeros elsewhere.
        KernelSpec("laset_0", "A <- 0", _none),
        KernelSpec("laset_1", "A <- I", _none),
        # trsm(A, B): B (w x c) <- U^-1 B, U the upper triangle of A[:w, :w], w = min(A.shape);
        # B may have rows beyond.
        # trsm_uc: B <- U^-H B;  trsm_l: B <- L^-1 B, trsm_lc: B <- L^-H B, L its lower
        # triangle;  trsm_l1, trsm_lc1: the same, L with ones on its diagonal.
        *(KernelSpec(name, form.equation, _trsm_flops) for name, form in TRIANGULAR.items()),
    )
}
