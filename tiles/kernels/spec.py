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
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

#: LAPACK's letters of the element types.
LETTER = {"f": "s", "d": "d", "F": "c", "D": "z"}

Shapes = Sequence[tuple[int, ...]]
_Array = TypeVar("_Array")
#: Names of arrays of integers; others are of the matrix's type.
_INTEGERS = frozenset({"ipiv", "info", "net", "perm", "method"})


class Role(Enum):
    """The part that a kernel plays in a factorization."""

    PANEL = "panel"
    INVERSE = "inverse of a diagonal tile"
    EXCHANGE = "row exchange"
    SOLVE = "triangular solve"
    UPDATE = "update"
    COPY = "copy, fill"


class Accesses(NamedTuple, Generic[_Array]):
    """Arrays that a kernel only reads, updates, and writes without reading, in their order."""

    reads: tuple[_Array, ...]
    updates: tuple[_Array, ...]
    writes: tuple[_Array, ...]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """Name, equation, operation count and properties of a kernel.

    Parameters
    ----------
    name : str
        LAPACK's name without the type letter, where LAPACK has one.
    equation : str
        What it computes.
    role : Role
        Part that it plays in a factorization.
    arrays : Accesses of str
        Names of its arrays; "?" ends one that a call may leave out.
    flops : callable
        Floating-point operations (real ones, counting a complex
        multiply-add as LAPACK does for real) from the arrays' shapes.
    chain : bool
        Whether it is a chain of small dependent steps, which do not fill a GPU: a CPU may do
        it sooner.
    trapezoid : bool
        Whether it takes two arrays, whose rows go together, and touches only the lower
        trapezoid of the last: so that a call for adjacent tile columns does what calls for
        each from its diagonal down do.
    timed_as : str
        Kernel that takes as long with the same sizes: itself, or one that is measured.
    """

    name: str
    equation: str
    role: Role
    arrays: Accesses[str]
    flops: Callable[[Shapes], float]
    chain: bool
    trapezoid: bool
    timed_as: str

    @property
    def index_places(self) -> tuple[int, ...]:
        """Places of the integer arrays among its arrays, without optional ones."""
        names = [name for part in self.arrays for name in part if not name.endswith("?")]
        return tuple(place for place, name in enumerate(names) if name in _INTEGERS)

    def accesses(self, given: Sequence[_Array | None]) -> Accesses[_Array]:
        """Return which of the arrays of a call are read, updated and written.

        Parameters
        ----------
        given : sequence
            One object for each array; None for an optional one that is left out.

        Examples
        --------
        >>> SPECS["trmm"].accesses(["L", "W", "B"])
        Accesses(reads=('L', 'W'), updates=('B',), writes=())
        """
        names = [name for part in self.arrays for name in part]
        if len(given) != len(names):
            raise ValueError(f"{self.name} takes {', '.join(names)}, not {len(given)} arrays")
        for name, array in zip(names, given, strict=True):
            if array is None and not name.endswith("?"):
                raise ValueError(f"{self.name} needs {name}")
        rest = iter(given)
        parts = ([next(rest) for _ in part] for part in self.arrays)
        return Accesses(*(tuple(a for a in part if a is not None) for part in parts))


def _getrf_flops(shapes: Shapes) -> float:
    short, long = sorted(shapes[0])
    return long * short**2 - short**3 / 3


def _gemm_flops(shapes: Shapes) -> float:
    (m, k), (_, n) = shapes[0], shapes[1]
    return 2.0 * m * n * k


def _gemm_nc_flops(shapes: Shapes) -> float:
    return _gemm_flops([shapes[0], shapes[1][::-1]])


def _solve_flops(shapes: Shapes) -> float:
    return float(shapes[1][0] ** 2 * shapes[2][1])


def _inverse_flops(shapes: Shapes) -> float:
    return shapes[1][0] ** 3 / 3


def _herk_flops(shapes: Shapes) -> float:
    (m, k), (_, n) = shapes
    return float(k * (2 * m * n - n * (n - 1)))


def _geqrf_flops(shapes: Shapes) -> float:
    short, long = sorted(shapes[0])
    return 2.0 * long * short**2 - 2 * short**3 / 3 + long * short**2  # the last term: T


def _larfb_flops(shapes: Shapes) -> float:
    (m, k), _, (_, n) = shapes
    return 4.0 * m * n * k


def _trsm_flops(shapes: Shapes) -> float:
    return float(min(shapes[0]) ** 2 * shapes[1][1])


def _none(shapes: Shapes) -> float:
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


def _kernel(
    name: str, role: Role, equation: str, arrays: str,
    flops: Callable[[Shapes], float] = _none, *, chain: bool = False, trapezoid: bool = False,
    like: str = "",
) -> KernelSpec:  # fmt: skip
    """Describe a kernel by the names of the arrays that it "reads; updates; writes"."""
    reads, updates, writes = (tuple(names.split()) for names in arrays.split(";"))
    found = Accesses(reads, updates, writes)
    return KernelSpec(name, equation, role, found, flops, chain, trapezoid, like or name)


SPECS: dict[str, KernelSpec] = {
    s.name: s
    for s in (
        # --- LU
        # getrf(A, ipiv, info): A (r x c) is overwritten by L and U; ipiv (int32,
        # min(r, c)) gets 0-based swaps relative to A's first row; info (int32, 1)
        # gets 0 or the 1-based index of the first exactly zero pivot.
        _kernel("getrf", Role.PANEL, "A = P^T L U", "; A; ipiv info", _getrf_flops, chain=True),
        # getrf_nopiv(A, info): A (r x c) is overwritten by L and U, without interchanges; info as
        # of getrf.
        _kernel("getrf_nopiv", Role.PANEL, "A = L U", "; A; info", _getrf_flops, chain=True),
        # growth(P, g) or growth(P, U, g): P (r x c) holds L below its diagonal and U from it
        # on; g (float64, 2) gets the largest entries of L, and of U with the block above it.
        _kernel("growth", Role.COPY, "g = max |L|, max |U|", "P U?; ; g"),
        # netperm(ipiv, net): net (int32, 2 x 2w, w = len(ipiv)) lists what all the
        # swaps together do: row net[0, i] takes the old row net[1, i]; unused
        # entries are -1 in net[0].  Rows are relative, as in ipiv.
        _kernel("netperm", Role.EXCHANGE, "net = rows moved by P", "ipiv; ; net", chain=True),
        # trtri(A, W): A (r x c, a diagonal tile), W (w x w).  W = L^-1 in full (ones
        # on the diagonal, zeros above), L the unit lower triangle of A[:w, :w].
        # Where ||L^-1||_1 exceeds the device's bound or is not finite, W[0, 0] = NaN
        # says that W must not be used.
        _kernel("trtri", Role.INVERSE, "W = L^-1", "A; ; W", _inverse_flops, chain=True),
        # swap(ipiv, net, A): the rows of A (r x c) are permuted in place.
        _kernel("swap", Role.EXCHANGE, "A <- P A", "ipiv net; A;"),
        # trmm(A, W, B): B (w x c) <- W B, or, where W[0, 0] is NaN, B <- L^-1 B by
        # substitution with the unit lower triangle L of A[:w, :w].
        _kernel("trmm", Role.SOLVE, "B <- W B", "A W; B;", _solve_flops),
        # compose(ipiv, perm) or compose(ipiv, after, perm): perm (int32, r entries)
        # gathers r rows, the first of them ipiv's first row, so that X[perm] has
        # ipiv's swaps applied and then, to the last len(after) rows, X[after].
        _kernel("compose", Role.EXCHANGE, "perm = after o P", "ipiv after?; ; perm"),
        # laswp(perm, A): A (r x c) <- A[perm] in place; perm (int32, at most r
        # entries) acts on the last len(perm) rows.
        _kernel("laswp", Role.EXCHANGE, "A <- A[perm]", "perm; A;"),
        # --- Cholesky: L is the lower triangle of a diagonal tile, its diagonal real
        # potrf(A, info): the lower triangle of A (w x w) is overwritten by L; info
        # (int32, 1) gets 0 or the order of the first leading minor that is not positive.
        _kernel(
            "potrf", Role.PANEL, "A = L L^H", "; A; info", lambda s: s[0][0] ** 3 / 3, chain=True
        ),
        # trtri_n(A, W): W = L^-1 in full (zeros above), L the lower triangle of A, its
        # diagonal included.  W[0, 0] = NaN as in trtri, with the bound on
        # ||L^-1||_1 ||L||_1: the diagonal of L has the matrix's own scale.
        _kernel("trtri_n", Role.INVERSE, "W = L^-1", "A; ; W", _inverse_flops, chain=True),
        # trmm_rc(A, W, B): B (r x w) <- B W^H, or, where W[0, 0] is NaN, B <- B L^-H by
        # substitution with the lower triangle L of A[:w, :w].
        _kernel(
            "trmm_rc", Role.SOLVE, "B <- B W^H", "A W; B;", lambda s: float(s[1][0] ** 2 * s[2][0])
        ),
        # trmm_n(A, W, B): B (w x c) <- W B, or, where W[0, 0] is NaN, B <- L^-1 B.
        _kernel("trmm_n", Role.SOLVE, "B <- W B", "A W; B;", _solve_flops, like="trmm"),
        # herk(P, C): of C (r x c, r >= c) the lower trapezoid <- C - P P[:c]^H; P is
        # r x k.  What is above C's diagonal stays as it is.
        _kernel("herk", Role.UPDATE, "C <- C - P P^H", "P; C;", _herk_flops, trapezoid=True),
        # --- QR: Q = I - V T V^H, of w = len(tau) reflectors
        # geqrf(A, tau, R, T, method): the first w columns of A (r x c, w = min(r, c)) are
        # overwritten by V with its ones and zeros, so that a product with it needs no
        # triangles; R (w x w) gets the triangle that LAPACK leaves in their place, zeros
        # below; the other columns are overwritten by Q^H A; tau (w) is LAPACK's, and
        # T (w x w) upper triangular, zeros below; method (int32, 1) gets 0 where the panel
        # was factored column by column, and 1 where by CholeskyQR2.
        _kernel("geqrf", Role.PANEL, "A = Q R", "; A; tau R T method", _geqrf_flops, chain=True),
        # larfb_c(V, T, C): C (r x c) <- Q^H C;  larfb_n(V, T, C): C <- Q C.
        # V may have more columns than T has: only its first len(T) ones count.
        _kernel("larfb_c", Role.UPDATE, "C <- C - V T^H V^H C", "V T; C;", _larfb_flops),
        _kernel(
            "larfb_n", Role.UPDATE, "C <- C - V T V^H C", "V T; C;", _larfb_flops, like="larfb_c"
        ),
        # gemqrt_c(A, T, C), gemqrt_n: the same, A (r x c) having been packed by lacpy: V is
        # below its diagonal.
        _kernel("gemqrt_c", Role.UPDATE, "C <- C - V T^H V^H C", "A T; C;", _larfb_flops),
        _kernel("gemqrt_n", Role.UPDATE, "C <- C - V T V^H C", "A T; C;", _larfb_flops),
        # lacpy(R, A): the upper triangle of A[:w, :w] <- that of R (w x w).
        _kernel("lacpy", Role.COPY, "A <- R", "R; A;"),
        # --- common to several
        # gemm(A, B, C): C (m x n) <- C - A B, A (m x k), B (k x n); B may have rows beyond.
        _kernel("gemm", Role.UPDATE, "C <- C - A B", "A B; C;", _gemm_flops),
        # gemm_nc(A, B, C): C (m x n) <- C - A B^H, A (m x k), B (n x k).
        _kernel("gemm_nc", Role.UPDATE, "C <- C - A B^H", "A B; C;", _gemm_nc_flops, like="gemm"),
        # gemm_cn(A, B, C): C (m x n) <- C - A^H B, A (k x m), B (k x n); C may have rows
        # beyond.
        _kernel("gemm_cn", Role.UPDATE, "C <- C - A^H B", "A B; C;", _gemm_flops, like="gemm"),
        # laset_0(A): A <- 0;  laset_1(A): A <- ones on the diagonal, zeros elsewhere.
        _kernel("laset_0", Role.COPY, "A <- 0", ";; A"),
        _kernel("laset_1", Role.COPY, "A <- I", ";; A"),
        # trsm(A, B): B (w x c) <- U^-1 B, U the upper triangle of A[:w, :w], w = min(A.shape);
        # B may have rows beyond.
        # trsm_uc: B <- U^-H B;  trsm_l: B <- L^-1 B, trsm_lc: B <- L^-H B, L its lower
        # triangle;  trsm_l1, trsm_lc1: the same, L with ones on its diagonal.
        *(
            _kernel(name, Role.SOLVE, form.equation, "A; B;", _trsm_flops, like="trsm")
            for name, form in TRIANGULAR.items()
        ),
    )
}
