"""Specification of each kernel.

A kernel is named as LAPACK names it, without the type letter.  It takes
column-major array views in the order reads, updates, writes, and works in
place.  ``SPECS`` is the one place that says what each of them computes; the
devices implement them (`hetero_la.tiles.kernels.cpu.device`,
`hetero_la.tiles.kernels.gpu.device`), and one test runs each on every device kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

#: LAPACK's letters of the element types.
LETTER = {"f": "s", "d": "d", "F": "c", "D": "z"}

Shapes = Sequence[tuple[int, ...]]
_Array = TypeVar("_Array")
#: Names of arrays of integers; others are of the matrix's type.
INTEGERS = frozenset({"ipiv", "info", "net", "perm", "method"})
#: Sizes of arrays: m x k by k x n of products; r rows and c columns of a part of the matrix; w, the
#: order of a diagonal tile, or the width of a panel.
SIZES = frozenset("mknrcw")
#: An extent: a number times the smallest of some sizes.
_EXTENT = re.compile(r"(\d*)([a-z]*)")


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
        Names of its arrays; "?" ends one that a call may leave out, "*" one that stands for any
        number of arrays, before all others.
    extents : dict of str to tuple of str
        Shape of each array that no call leaves out, in the letters of `SIZES`: ``"2w"`` is twice w,
        ``"rw"`` the smaller of r and w.
    places : tuple of tuple
        Where the shapes of a call have its sizes: each as (size, array, axis).
    timed_as : str
        Kernel that takes as long with the same sizes: itself, or one that is measured.
    operations : callable or None
        Floating-point operations (real ones, counting a complex multiply-add as LAPACK does for
        real) from its sizes; None: it computes nothing.
    moves : str
        For a kernel without operations, the product of sizes to which its time is taken as
        proportional; empty: it is so to its bytes.
    chain : bool
        Whether it is a chain of small dependent steps, which do not fill a GPU: a CPU may do
        it sooner.
    trapezoid : bool
        Whether it takes two arrays, whose rows go together, and touches only the lower
        trapezoid of the last: so that a call for adjacent tile columns does what calls for
        each from its diagonal down do.
    dominant : bool
        Whether it factors without pivoting, so that the diagonal has to dominate.
    warm : bool
        Whether a run has just written what it updates, so that caches have it.
    columnwise : bool
        Whether it moves elements column by column: its time grows with their size, and on a CPU it
        returns to the interpreter for every column.
    """

    name: str
    equation: str
    role: Role
    arrays: Accesses[str]
    extents: Mapping[str, tuple[str, ...]]
    places: tuple[tuple[str, int, int], ...]
    timed_as: str
    operations: Callable[..., float] | None = None
    moves: str = ""
    chain: bool = False
    trapezoid: bool = False
    dominant: bool = False
    warm: bool = False
    columnwise: bool = False

    @property
    def measured(self) -> bool:
        """Whether its time is measured over its sizes: it is like no other, and has work to do."""
        return self.timed_as == self.name and bool(self.operations or self.moves)

    @property
    def size_names(self) -> tuple[str, ...]:
        """The names of its sizes, in the order of the arrays."""
        return tuple(dict.fromkeys(size for size, _, _ in self.places))

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return the sizes of a call from the shapes of its arrays.

        An array may have more rows or columns than count: each size is the smallest of its places.

        Examples
        --------
        >>> SPECS["gemm_nc"].sizes([(300, 64), (80, 64), (300, 80)])
        {'m': 300, 'k': 64, 'n': 80}
        """
        found: dict[str, int] = {}
        for size, array, axis in self.places:
            extent = shapes[array][axis]
            if found.get(size, extent) >= extent:
                found[size] = extent
        return found

    def shapes(self, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Return the shapes of its arrays, without optional ones, for given sizes.

        Examples
        --------
        >>> SPECS["swap"].shapes({"w": 8, "r": 100, "c": 5})
        [(8,), (2, 16), (100, 5)]
        """
        return [
            tuple(_extent(extent, sizes) for extent in extents) for extents in self.extents.values()
        ]

    def work(self, sizes: Mapping[str, int]) -> float:
        """Return its operations, or the elements that it moves, for given sizes."""
        if self.operations:
            return self.operations(*(sizes[size] for size in self.size_names))
        return (
            float(math.prod(sizes[size] for size in self.moves.split("*"))) if self.moves else 0.0
        )

    def flops(self, shapes: Shapes) -> float:
        """Return the floating-point operations of a call from the shapes of its arrays."""
        return self.operations(*self.sizes(shapes).values()) if self.operations else 0.0

    def split(self, given: tuple[_Array, ...]) -> tuple[tuple[_Array, ...], tuple[_Array, ...]]:
        """Return which arrays of a call are only read, and which are changed.

        Examples
        --------
        >>> SPECS["compose"].split(("ipiv", "perm"))
        (('ipiv',), ('perm',))
        """
        first = len(given) - len(self.arrays.updates) - len(self.arrays.writes)
        return given[:first], given[first:]

    def accesses(self, given: tuple[_Array | None, ...]) -> Accesses[_Array]:
        """Return which of the arrays of a call are read, updated and written.

        Parameters
        ----------
        given : tuple
            One object for each array; None for an optional one that is left out.

        Examples
        --------
        >>> SPECS["trmm"].accesses(("L", "W", "B"))
        Accesses(reads=('L', 'W'), updates=('B',), writes=())
        """
        reads, updates, writes = self.arrays
        if reads and reads[0].endswith("*"):
            more = len(given) - len(updates) - len(writes) - len(reads) + 1
            reads = (*reads[:1] * more, *reads[1:])
        first = len(reads)
        second = first + len(updates)
        if len(given) != second + len(writes):
            names = ", ".join(reads + updates + writes)
            raise ValueError(f"{self.name} takes {names}, not {len(given)} arrays")
        parts: list[tuple[Any, ...]] = [given[:first], given[first:second], given[second:]]
        if None in given:
            for name, array in zip(reads + updates + writes, given, strict=True):
                if array is None and not name.endswith("?"):
                    raise ValueError(f"{self.name} needs {name}")
            parts = [tuple(array for array in part if array is not None) for part in parts]
        return Accesses(*parts)


def _extent(extent: str, sizes: Mapping[str, int]) -> int:
    factor, names = _EXTENT.fullmatch(extent).groups()  # type: ignore[union-attr]
    return int(factor or 1) * min((sizes[name] for name in names), default=1)


def _panel(r: int, w: int) -> float:
    short, long = sorted((r, w))
    return long * short**2 - short**3 / 3


def _reflectors(r: int, w: int) -> float:
    return 2 * _panel(r, w) + max(r, w) * min(r, w) ** 2  # the last term: T


def _product(m: int, k: int, n: int) -> float:
    return 2.0 * m * n * k


def _trapezoid(m: int, k: int, n: int) -> float:
    return k * (2.0 * m * n - n * (n - 1))


def _triangle(w: int) -> float:
    return w**3 / 3


def _solve(w: int, beside: int) -> float:
    return float(w**2 * beside)


PANEL, INVERSE, EXCHANGE, SOLVE, UPDATE, COPY = Role


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

#: Kernels of solves column by column, with few vectors.
VECTOR_FORMS = {name.replace("trsm", "trsv"): form for name, form in TRIANGULAR.items()}


def kernel(
    call: str, role: Role, equation: str,
    operations: Callable[..., float] | None = None, *, like: str = "", **properties: Any,
) -> KernelSpec:  # fmt: skip
    """Describe a kernel by its call: arrays with shapes that it "reads; updates; writes"."""
    name, _, arrays = call.rstrip(")").partition("(")
    parts = [[one.rstrip("]").partition("[") for one in part.split()] for part in arrays.split(";")]
    flat = [array for part in parts for array in part]
    extents: dict[str, tuple[str, ...]] = {}
    places: list[tuple[str, int, int]] = []
    for at, (array, _, shape) in enumerate(flat):
        if not array.endswith(("?", "*")):
            extents[array] = tuple(shape.split(","))
            place = at if len(extents) == at + 1 else at - len(flat)  # after an optional one
            sizes = enumerate(extents[array])
            places += [(size, place, axis) for axis, size in sizes if size in SIZES]
    accesses = Accesses(*(tuple(one for one, _, _ in part) for part in parts))
    return KernelSpec(
        name,
        equation,
        role,
        accesses,
        extents,
        tuple(places),
        like or name,
        operations,
        **properties,
    )


SPECS: dict[str, KernelSpec] = {
    s.name: s
    for s in (
        # --- LU
        # getrf(A, ipiv, info): A (r x c) is overwritten by L and U; ipiv (int32,
        # min(r, c)) gets 0-based swaps relative to A's first row; info (int32, 1)
        # gets 0 or the 1-based index of the first exactly zero pivot.
        kernel("getrf(; A[r,w]; ipiv[rw] info[1])", PANEL, "A = P^T L U", _panel, chain=True),
        # getrf_nopiv(A, info): A (r x c) is overwritten by L and U, without interchanges; info as
        # of getrf.
        kernel(
            "getrf_nopiv(; A[r,w]; info[1])", PANEL, "A = L U", _panel, chain=True, dominant=True
        ),
        # growth(P, g) or growth(P, U, g): P (r x c) holds L below its diagonal and U from it
        # on; g (float64, 2) gets the largest entries of L, and of U with the block above it.
        kernel("growth(P[r,w] U?; ; g[2])", COPY, "g = max |L|, max |U|"),
        # netperm(ipiv, net): net (int32, 2 x 2w, w = len(ipiv)) lists what all the
        # swaps together do: row net[0, i] takes the old row net[1, i]; unused
        # entries are -1 in net[0].  Rows are relative, as in ipiv.
        kernel(
            "netperm(ipiv[w]; ; net[2,2w])",
            EXCHANGE,
            "net = rows moved by P",
            moves="w",
            chain=True,
        ),
        # trtri(A, W): A (r x c, a diagonal tile), W (w x w).  W = L^-1 in full (ones
        # on the diagonal, zeros above), L the unit lower triangle of A[:w, :w].
        # Where ||L^-1||_1 exceeds the device's bound or is not finite, W[0, 0] = NaN
        # says that W must not be used.
        kernel("trtri(A[w,w]; ; W[w,w])", INVERSE, "W = L^-1", _triangle, chain=True),
        # swap(ipiv, net, A): the rows of A (r x c) are permuted in place.
        kernel("swap(ipiv[w] net[2,2w]; A[r,c];)", EXCHANGE, "A <- P A", moves="w*c"),
        # trmm(A, W, B): B (w x c) <- W B, or, where W[0, 0] is NaN, B <- L^-1 B by
        # substitution with the unit lower triangle L of A[:w, :w].
        kernel("trmm(A[w,w] W[w,w]; B[w,c];)", SOLVE, "B <- W B", _solve, warm=True),
        # compose(ipiv, perm) or compose(ipiv, after, perm): perm (int32, r entries)
        # gathers r rows, the first of them ipiv's first row, so that X[perm] has
        # ipiv's swaps applied and then, to the last len(after) rows, X[after].
        kernel("compose(ipiv[w] after?; ; perm[r])", EXCHANGE, "perm = after o P", moves="w"),
        # laswp(perm, A): A (r x c) <- A[perm] in place; perm (int32, at most r
        # entries) acts on the last len(perm) rows.
        kernel("laswp(perm[r]; A[r,c];)", EXCHANGE, "A <- A[perm]", moves="r*c", columnwise=True),
        # --- Cholesky: L is the lower triangle of a diagonal tile, its diagonal real
        # potrf(A, info): the lower triangle of A (w x w) is overwritten by L; info
        # (int32, 1) gets 0 or the order of the first leading minor that is not positive.
        kernel(
            "potrf(; A[w,w]; info[1])", PANEL, "A = L L^H", _triangle, chain=True, dominant=True
        ),
        # trtri_n(A, W): W = L^-1 in full (zeros above), L the lower triangle of A, its
        # diagonal included.  W[0, 0] = NaN as in trtri, with the bound on
        # ||L^-1||_1 ||L||_1: the diagonal of L has the matrix's own scale.
        kernel("trtri_n(A[w,w]; ; W[w,w])", INVERSE, "W = L^-1", _triangle, chain=True),
        # trmm_rc(A, W, B): B (r x w) <- B W^H, or, where W[0, 0] is NaN, B <- B L^-H by
        # substitution with the lower triangle L of A[:w, :w].
        kernel("trmm_rc(A[w,w] W[w,w]; B[r,w];)", SOLVE, "B <- B W^H", _solve, warm=True),
        # trmm_n(A, W, B): B (w x c) <- W B, or, where W[0, 0] is NaN, B <- L^-1 B.
        kernel("trmm_n(A[w,w] W[w,w]; B[w,c];)", SOLVE, "B <- W B", _solve, like="trmm"),
        # herk(P, C): of C (r x c, r >= c) the lower trapezoid <- C - P P[:c]^H; P is
        # r x k.  What is above C's diagonal stays as it is.
        kernel("herk(P[m,k]; C[m,n];)", UPDATE, "C <- C - P P^H", _trapezoid, trapezoid=True),
        # --- QR: Q = I - V T V^H, of w = len(tau) reflectors
        # geqrf(A, tau, R, T, method): the first w columns of A (r x c, w = min(r, c)) are
        # overwritten by V with its ones and zeros, so that a product with it needs no
        # triangles; R (w x w) gets the triangle that LAPACK leaves in their place, zeros
        # below; the other columns are overwritten by Q^H A; tau (w) is LAPACK's, and
        # T (w x w) upper triangular, zeros below; method (int32, 1) gets 0 where the panel
        # was factored column by column, and 1 where by CholeskyQR2.
        kernel(
            "geqrf(; A[r,w]; tau[rw] R[rw,rw] T[rw,rw] method[1])",
            PANEL,
            "A = Q R",
            _reflectors,
            chain=True,
        ),
        # larfb_c(V, T, C): C (r x c) <- Q^H C;  larfb_n(V, T, C): C <- Q C.
        # V may have more columns than T has: only its first len(T) ones count.
        # gemqrt_c(A, T, C), gemqrt_n: the same, A (r x c) having been packed by lacpy: V is
        # below its diagonal.
        *(
            kernel(
                f"{kind}_{form}({v}[m,k] T[k,k]; C[m,n];)",
                UPDATE,
                f"C <- C - V {t} V^H C",
                lambda m, k, n: 4.0 * m * n * k,
                like="larfb_c",
            )
            for kind, v in (("larfb", "V"), ("gemqrt", "A"))
            for form, t in (("c", "T^H"), ("n", "T"))
        ),
        # lacpy(R, A): the upper triangle of A[:w, :w] <- that of R (w x w).
        kernel("lacpy(R[w,w]; A[w,w];)", COPY, "A <- R", moves="w*w", columnwise=True),
        # --- common to several
        # gemm(A, B, C): C (m x n) <- C - A B, A (m x k), B (k x n); B may have rows beyond.
        kernel("gemm(A[m,k] B[k,n]; C[m,n];)", UPDATE, "C <- C - A B", _product),
        # gemm_block(A, ..., A, B, C): the same, A in parts of m rows, side by side.
        kernel(
            "gemm_block(A* B[k,n]; C[m,n];)", UPDATE, "C <- C - [A ... A] B", _product, like="gemm"
        ),
        # gemm_nc(A, B, C): C (m x n) <- C - A B^H, A (m x k), B (n x k).
        kernel("gemm_nc(A[m,k] B[n,k]; C[m,n];)", UPDATE, "C <- C - A B^H", _product, like="gemm"),
        # gemm_cn(A, B, C): C (m x n) <- C - A^H B, A (k x m), B (k x n); C may have rows
        # beyond.
        kernel("gemm_cn(A[k,m] B[k,n]; C[m,n];)", UPDATE, "C <- C - A^H B", _product, like="gemm"),
        # --- what follows from a factorization, on few vectors: see hetero_la.tiles.kernels.vectors
        # trsv(A, v, x) and its other forms: x (r x c) is v after one tile column's part in a solve.
        # The rows of its diagonal tile are solved for, and the others updated after that, or with
        # an adjoint taken into account before.  A is the column from the top to that tile where U
        # is meant, and from there down where L is.
        *(
            kernel(f"{name}(A[m,w] v[r,c]; ; x[r,c])", SOLVE, f"x = {form.equation[5:-1]}v, a part")
            for name, form in VECTOR_FORMS.items()
        ),
        # copy(A, M): M <- A.
        kernel("copy(A[r,c]; ; M[r,c])", COPY, "M <- A"),
        # sums(A, s): s (float64, c) <- the sums of the moduli of A's columns.  sums_h: the same for
        # rows and columns of a Hermitian matrix whose lower trapezoid is A: s has r entries.
        kernel("sums(A[r,c]; ; s[c])", COPY, "s = sums of |A|"),
        kernel("sums_h(A[r,c]; ; s[r])", COPY, "s = sums of |A|"),
        # largest(s, ..., s, g): g (float64, 1) <- the largest of all entries.  largest_h: that of
        # the sum of all s, whose last entries are of the same row.
        kernel("largest(s* last[c]; ; g[1])", COPY, "g = max s"),
        kernel("largest_h(s* last[c]; ; g[1])", COPY, "g = max (s + ... + s)"),
        # gather(b, perm, v) or gather(b, v): the first columns of v <- b, or b[perm].  If there are
        # two more, these are the first vectors of the estimate of an inverse's norm.
        kernel("gather(b[r,c] perm?; ; v[r,c])", COPY, "v = b[perm]"),
        # take(v, x): x <- the first columns of v;  axpy(v, x): x <- x + these.
        kernel("take(v[r,c]; ; x[r,c])", COPY, "x = v"),
        kernel("axpy(v[r,c]; x[r,c];)", COPY, "x <- x + v"),
        # signs(v, s): s (r x 2) <- y / |y|, and 1 for zeros; y the last two columns of v.
        kernel("signs(v[r,c]; ; s[r,2])", COPY, "s = y / |y|"),
        # units(z, u): u <- unit vectors at the largest moduli of z's columns.
        kernel("units(z[r,c]; ; u[r,c])", COPY, "u = e_j"),
        # invnorm(v, z, w, g): g (float64, 1) <- max(||y||_1, max |z|, ||w||_1).
        kernel("invnorm(v[r,c] z[r,2] w[r,2]; ; g[1])", COPY, "g = ||A^-1||"),
        # product(A, x, p): p (m x n) <- -A x.  product_h: the same, A being tile columns of a
        # Hermitian matrix whose lower trapezoid is given, in these columns and the rows beside.
        kernel("product(A[m,k] x[k,n]; ; p[m,n])", COPY, "p = -A x"),
        kernel("product_h(A[m,k] x[m,n]; ; p[m,n])", COPY, "p = -A x"),
        # residual(p, ..., p, b, x, norm, r, error): r <- b + p + ... + p, all p ending at the last
        # row, and error (float64, 1) <- the largest backward error of a column, for a matrix of
        # this 1-norm; then, if it is not above eps, r <- 0.
        kernel("residual(p* b[r,c] x[r,c] norm[1]; ; r[r,c] error[1])", COPY, "r = b + p"),
        # diagonal(A, d): d (w) <- the diagonal of A[:w, :w].
        kernel("diagonal(A[w,w]; ; d[w])", COPY, "d = diag(A)"),
        # --- fills and triangular solves
        # laset_0(A): A <- 0;  laset_1(A): A <- ones on the diagonal, zeros elsewhere.
        kernel("laset_0(;; A[r,c])", COPY, "A <- 0"),
        kernel("laset_1(;; A[r,c])", COPY, "A <- I"),
        # trsm(A, B): B (w x c) <- U^-1 B, U the upper triangle of A[:w, :w], w = min(A.shape);
        # B may have rows beyond.
        # trsm_uc: B <- U^-H B;  trsm_l: B <- L^-1 B, trsm_lc: B <- L^-H B, L its lower
        # triangle;  trsm_l1, trsm_lc1: the same, L with ones on its diagonal.
        *(
            kernel(f"{name}(A[w,w]; B[w,c];)", SOLVE, form.equation, _solve, like="trsm")
            for name, form in TRIANGULAR.items()
        ),
    )
}
