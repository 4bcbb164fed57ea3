"""Structured matrices: the values of `assume_a`, and solves that need no factorization."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.linalg
from numpy.linalg import LinAlgError

from hetero_la.checks.warnings import singular_message, warn_ill_conditioned
from hetero_la.execution.one_call import takes_one_call
from hetero_la.execution.stack_runs import are_few, for_parts, solve_parts
from hetero_la.numerics.band_matrices import (
    FEW,
    BandFactors,
    bandwidths,
    bandwidths_of_all,
    gather_band,
    solve_on_gpu,
    solve_on_host,
)
from hetero_la.numerics.conditioning import reciprocal_condition_upper
from hetero_la.numerics.stack_solvers import (
    solve_bands,
    solve_diagonals,
    solve_general,
    solve_symmetric,
    solve_triangles,
    solve_tridiagonals,
)
from hetero_la.numerics.triangles import complete_from_triangle
from hetero_la.planning.band_routes import band_pays, cusparse_pays
from hetero_la.planning.decisions import Problem
from hetero_la.planning.memory import require_room
from hetero_la.tiles.arrays.transfer import (
    array_module,
    column_major_copy,
    is_device_array,
    linalg_module,
    on_device_of_arrays,
)
from hetero_la.tiles.kernels.cpu.device import available_memory, usable_cores
from hetero_la.tiles.kernels.gpu_libraries.finite import require_finite

#: Order up to which Bunch and Kaufman's factorization, by one core, beats LU by more than two.
_MOST_BY_ONE_CORE = 400


class Structure(StrEnum):
    """Structure of a matrix, by SciPy's name."""

    GENERAL = "general"
    DIAGONAL = "diagonal"
    TRIDIAGONAL = "tridiagonal"
    BANDED = "banded"
    UPPER = "upper triangular"
    LOWER = "lower triangular"
    SYMMETRIC = "symmetric"
    HERMITIAN = "hermitian"
    POSITIVE = "positive definite"


_SHORT = {
    "gen": Structure.GENERAL,
    "sym": Structure.SYMMETRIC,
    "her": Structure.HERMITIAN,
    "pos": Structure.POSITIVE,
}
#: Values of `assume_a` in `inv`, and in `solve`, for which SciPy has more.
InvAssumption = (
    Literal[
        "general", "diagonal", "upper triangular", "lower triangular", "gen", "sym", "her", "pos"
    ]
    | None
)
SolveAssumption = (
    InvAssumption | Literal["tridiagonal", "banded", "symmetric", "hermitian", "positive definite"]
)
SOLVE_NAMES = (*Structure, *_SHORT)
INV_NAMES = ("general", "diagonal", "upper triangular", "lower triangular", *_SHORT)
#: Structures solved without dense factors, in at most O(n^2) operations per right-hand side.
_BANDS = (Structure.TRIDIAGONAL, Structure.BANDED)
_SIMPLE = (Structure.DIAGONAL, Structure.UPPER, Structure.LOWER, *_BANDS)
#: Order from which a matrix is searched for structure: a smaller one takes no time to be factored.
_LEAST_SEARCHED = 128


def structure_of(assume_a: Any, names: Collection[str] = SOLVE_NAMES) -> Structure:
    """Return the structure that `assume_a` names; None stands for a general matrix.

    Raises
    ------
    ValueError
        If it is not one of `names`.

    Examples
    --------
    >>> structure_of("gen") is structure_of(None)
    True
    """
    if assume_a is None:
        return Structure.GENERAL
    if not isinstance(assume_a, str) or assume_a not in names:
        known = ", ".join(repr(str(name)) for name in names)
        raise ValueError(
            f"{assume_a} is not a recognized matrix structure: assume_a must be None or one of "
            f"{known}, not {assume_a!r}"
        )
    return _SHORT.get(assume_a) or Structure(assume_a)


class Found(NamedTuple):
    """Structure in which a matrix is solved with, and its diagonals below and above the main one.

    Their numbers are 0 where the structure does not need them.
    """

    structure: Structure
    lower: int = 0
    upper: int = 0

    @property
    def is_simple(self) -> bool:
        """Whether `solve_simple` handles this structure."""
        return self.structure in _SIMPLE


def structure_for(a: Any, b: Any, structure: Structure | None) -> Found:
    """Return the structure in which to solve with a matrix.

    Parameters
    ----------
    a : array, shape (n, n)
        The matrix.
    b : array, shape (n,) or (n, nrhs)
        Right-hand sides.
    structure : Structure or None
        That which the caller knows of; None to search the matrix, from an order of 128 on.

    Examples
    --------
    >>> structure_for(np.eye(200, k=1) + np.eye(200), np.ones(200), None)
    Found(structure=<Structure.TRIDIAGONAL: 'tridiagonal'>, lower=1, upper=1)
    >>> structure_for(np.eye(3), np.ones(3), None).structure
    <Structure.GENERAL: 'general'>
    """
    n = len(a)
    most = max(n - 1, 0)
    if structure is Structure.TRIDIAGONAL:
        return Found(structure, min(1, most), min(1, most))
    if structure not in (None, Structure.BANDED):
        return Found(structure)
    if structure is None and n < _LEAST_SEARCHED:
        return Found(Structure.GENERAL)
    widths = bandwidths(a)
    if structure is None and max(widths) == 0:
        return Found(Structure.DIAGONAL)
    if max(widths) <= 1 <= most:
        return Found(Structure.TRIDIAGONAL, 1, 1)
    if structure is None and 0 in widths:
        return Found(Structure.LOWER if widths[0] else Structure.UPPER)
    if sum(widths) < n and band_pays(a, *widths, b.size // max(n, 1)):
        return Found(Structure.BANDED, *widths)
    return Found(Structure.GENERAL)


def require_finite_band(a: Any, found: Found) -> None:
    """Raise ValueError if a matrix, of whose structure a search found the width, is not finite.

    What is not finite is no zero, so it is in the band: of a band on the host, the rest is not
    read once more.
    """
    banded = found.structure in _BANDS and not is_device_array(a)
    require_finite(gather_band(a, found.lower, found.upper) if banded else a, "a")


def refuse_complex(dtype: Any) -> None:
    """Raise NotImplementedError, as SciPy does, for a complex matrix to be transposed."""
    if dtype.kind == "c":
        raise NotImplementedError(
            "scipy.linalg.solve can currently not solve a^T x = b for complex matrices, and so "
            "transposed=True is refused: solve with a.T"
        )


def solve_simple(a: Any, b: Any, found: Found, transposed: bool) -> Any:
    """Solve A X = B or A^T X = B for a structure that is not worth distributing.

    Parameters
    ----------
    a : array, shape (n, n)
        The matrix, of which only the entries that the structure names are read.
    b : array, shape (n,) or (n, nrhs)
        Right-hand sides, of the same dtype.
    found : Found
        Its structure, a simple one.
    transposed : bool
        Whether to solve with A^T.
    """
    if b.size == 0:
        return b.copy()
    structure = found.structure
    if structure is Structure.DIAGONAL:
        return divide_by_diagonal(a, b)
    if structure in _BANDS:
        lower, upper = found.lower, found.upper
        return solve_band(a.T, b, upper, lower) if transposed else solve_band(a, b, lower, upper)
    return solve_triangle(a, b, structure is Structure.LOWER, transposed)


def as_named(a: Any, found: Found) -> Any:
    """Return a matrix as `solve_simple` sees it: with zeros where the structure has none to read.

    Examples
    --------
    >>> as_named(np.ones((3, 3)), Found(Structure.TRIDIAGONAL, 1, 1))
    array([[1., 1., 0.],
           [1., 1., 1.],
           [0., 1., 1.]])
    """
    xp, most = array_module(a), len(a)
    widths = {Structure.UPPER: (0, most), Structure.LOWER: (most, 0)}
    lower, upper = widths.get(found.structure, (found.lower, found.upper))
    return xp.tril(xp.triu(a, -lower), upper)


def invert_simple(a: Any, structure: Structure) -> Any:
    """Invert a matrix of a simple structure."""
    if structure is Structure.DIAGONAL or is_device_array(a):
        identity = array_module(a).eye(len(a), dtype=a.dtype)
        return solve_simple(a, identity, Found(structure), transposed=False)
    return scipy.linalg.inv(np.require(a, requirements="A"), assume_a=structure, check_finite=False)


def is_number(a: Any, b: Any) -> bool:
    """Return whether `a` is a single number by which SciPy's `solve` divides any `b`."""
    return math.prod(np.shape(a)) == 1 and (np.ndim(a) < 2 or np.shape(b)[:1] != (1,))


def divide_by_number(a: Any, b: Any) -> Any:
    """Solve a X = B for an array `a` of one number; X has at least one dimension."""
    return array_module(b).atleast_1d(b) / require_nonzero_diagonal(a.ravel())


@on_device_of_arrays
def require_nonzero_diagonal(diagonal: Any) -> Any:
    """Return `diagonal`; raise LinAlgError if it has a zero."""
    if not diagonal.all():
        raise LinAlgError("A singular matrix detected: there is a zero on its diagonal.")
    return diagonal


def divide_by_diagonal(a: Any, b: Any) -> Any:
    """Solve A X = B for a diagonal matrix."""
    diagonal = require_nonzero_diagonal(a.diagonal())
    size = abs(diagonal)
    warn_ill_conditioned(float(size.min() / size.max()), a.dtype)
    with np.errstate(all="ignore"):  # NaN and overflow show in the result
        return b / diagonal.reshape(-1, *[1] * (b.ndim - 1))


def solve_triangle(a: Any, b: Any, lower: bool, transposed: bool) -> Any:
    """Solve A X = B or A^T X = B for one triangle of `a`."""
    xp = array_module(a)
    if lower:  # with rows and columns reversed it is upper
        a, b = a[::-1, ::-1], b[::-1]
    upper = xp.triu(a)
    require_nonzero_diagonal(upper.diagonal())
    warn_ill_conditioned(reciprocal_condition_upper(upper), a.dtype)
    x = linalg_module(a).solve_triangular(upper, b, trans=int(transposed), check_finite=False)
    return x[::-1] if lower else x


def solve_band(a: Any, b: Any, lower: int, upper: int) -> Any:
    """Solve A X = B for a band matrix, whose band LAPACK factors on the host.

    The route is that of `hetero_la.planning.band_routes`; a tridiagonal matrix on a GPU is solved
    with there if that is predicted to be faster.
    """
    band = gather_band(a, lower, upper)
    factors = BandFactors(band, lower, upper)
    if factors.info:
        raise LinAlgError(singular_message(factors.info))
    warn_ill_conditioned(factors.reciprocal_condition(), a.dtype)
    x = None
    if is_device_array(b) and factors.tridiagonal and cusparse_pays(b):
        x = solve_on_gpu(band, b)
    return solve_on_host(factors, b) if x is None else x


def as_general(a: Any, structure: Structure, lower: bool, in_place: bool = False) -> Any:
    """Return the full matrix, completed from the part that its structure names.

    At most one copy is made; none with `in_place`.

    Raises
    ------
    hetero_la.tiles.arrays.errors.InsufficientMemoryError
        If there is not enough memory for a copy.
    """
    if structure not in (Structure.SYMMETRIC, Structure.HERMITIAN):
        return a
    if not in_place and not is_device_array(a):
        require_room("a completed copy", a.shape, a.dtype, -1, a.nbytes, available_memory())
    full = a if in_place else column_major_copy(a)
    complete_from_triangle(full, lower=lower, conjugate=structure is Structure.HERMITIAN)
    return full


def solve_stack_on_host(
    a: np.ndarray, b: np.ndarray, structure: Structure, lower: bool, transposed: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """Solve with each matrix of a stack that is not positive definite.

    Parameters
    ----------
    a : array, shape (count, n, n)
        The matrices.
    b : array, shape (count, n, nrhs)
        Right-hand sides.
    structure, lower, transposed
        As for `as_general` and `solve_simple`.

    Returns
    -------
    tuple of array, or None
        X, and reciprocal condition numbers: X is not valid where these are below eps, or NaN.  None
        if one matrix after another is better.
    """
    solver = _stack_solver(a, structure, lower, transposed, b.shape[2])
    return None if solver is None else solve_parts(solver[0], a, b, solver[1])


def solve_by_one_core(a: Any, b: Any, structure: Structure, lower: bool) -> Any:
    """Solve with a symmetric or Hermitian matrix on the host by Bunch and Kaufman's factorization.

    Returns None if another way is better: for other structures, where the matrix may be singular,
    and if it is so large that LU takes less time, with twice the operations, but on all cores.
    """
    if structure not in (Structure.SYMMETRIC, Structure.HERMITIAN):
        return None
    if not b.size or (len(a) > _MOST_BY_ONE_CORE and usable_cores() > 2):
        return None
    solved = solve_stack_on_host(a[None], b.reshape(1, len(a), -1), structure, lower, False)
    if solved is None or not solved[1][0] >= np.finfo(a.dtype).eps:
        return None
    return solved[0][0].reshape(b.shape)


def _stack_solver(
    a: np.ndarray, structure: Structure, lower: bool, transposed: bool, nrhs: int
) -> tuple[Callable[..., np.ndarray], Problem | None] | None:
    """Return what solves with a part of a stack, and a problem that takes as long for a matrix.

    There is no such problem where threads would only wait for the interpreter.
    """
    n = a.shape[1]
    if structure is Structure.DIAGONAL:
        return lambda a, b, x, _: solve_diagonals(a, x), None
    if structure in (Structure.UPPER, Structure.LOWER):
        triangle = structure is Structure.LOWER
        like = Problem("lu_solve", n, n, nrhs, a.dtype)
        return lambda a, b, x, threads: solve_triangles(a, x, triangle, transposed, threads), like
    if structure in _BANDS:
        banded = structure is Structure.BANDED
        if banded and n > FEW:
            return None
        widths = bandwidths_of_all(a) if banded else (1, 1)
        if max(widths) == 1 and n > 2:
            return lambda a, b, x, _: solve_tridiagonals(a, x, transposed), None
        if n > FEW or sum(widths) >= n or not band_pays(a[0], *widths, nrhs):
            return None
        return lambda a, b, x, _: solve_bands(a, x, *widths, transposed), None
    like = Problem("solve", n, n, nrhs, a.dtype)
    if not takes_one_call("solve", a[0], nrhs):
        return None
    if structure is Structure.GENERAL:
        if are_few(len(a)):
            return None
        return lambda a, b, x, threads: solve_general(a, b, x, transposed, threads), like
    conjugate = structure is Structure.HERMITIAN
    return lambda a, b, x, threads: solve_symmetric(a, x, lower, conjugate, threads), like


def as_general_stack(a: Any, structure: Structure, lower: bool) -> Any:
    """Return each matrix of a stack as `as_general` does, for a structure that is not simple."""
    if structure not in (Structure.SYMMETRIC, Structure.HERMITIAN):
        return a
    conjugate = structure is Structure.HERMITIAN
    if is_device_array(a):
        full = a.copy()
        complete_from_triangle(full, lower=lower, conjugate=conjugate)
        return full
    full = np.empty_like(a)

    def complete(part: slice) -> None:
        full[part] = a[part]
        complete_from_triangle(full[part], lower=lower, conjugate=conjugate)

    for_parts(complete, len(a), 0, a[0].nbytes)
    return full
