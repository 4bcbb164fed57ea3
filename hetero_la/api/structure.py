"""Matrices of known structure: what `assume_a` may say, and solves that need no factors."""

from __future__ import annotations

import math
from collections.abc import Collection
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import scipy.linalg
from numpy.linalg import LinAlgError

from hetero_la.checks.warnings import warn_ill_conditioned
from hetero_la.numerics.conditioning import reciprocal_condition_upper
from hetero_la.numerics.triangles import complete
from hetero_la.planning.memory import require_room
from hetero_la.tiles.arrays.transfer import (
    array_module,
    column_major_copy,
    is_device_array,
    linalg_module,
    on_device_of_arrays,
)
from hetero_la.tiles.kernels.cpu.device import available_memory


class Structure(StrEnum):
    """What is known of a matrix, by SciPy's name."""

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
#: What `assume_a` may be in `inv`, and in `solve`, where SciPy knows more.
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
#: Solved without LU: a right-hand side takes O(n^2) operations at most.
_SIMPLE = (Structure.DIAGONAL, Structure.UPPER, Structure.LOWER)
_SIMPLE_ON_HOST = (*_SIMPLE, Structure.TRIDIAGONAL, Structure.BANDED)


def structure_of(assume_a: Any, names: Collection[str] = SOLVE_NAMES) -> Structure:
    """The structure that `assume_a` names; None stands for a general matrix.

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


def refuse_complex(dtype: Any) -> None:
    """Raise what SciPy raises for a complex matrix that is to be transposed."""
    if dtype.kind == "c":
        raise NotImplementedError(
            "scipy.linalg.solve can currently not solve a^T x = b for complex matrices, and so "
            "transposed=True is refused: solve with a.T"
        )


def is_simple(structure: Structure, a: Any) -> bool:
    """Whether `solve_simple` knows what to do, where `a` is."""
    return structure in (_SIMPLE if is_device_array(a) else _SIMPLE_ON_HOST)


def solve_simple(a: Any, b: Any, structure: Structure, transposed: bool) -> Any:
    """Solve A X = B, or A^T X = B, where that takes no work worth distributing.

    Parameters
    ----------
    a : array, shape (n, n)
        The matrix, of which only what the structure names is used.
    b : array, shape (n,) or (n, nrhs)
        Right-hand sides, of the same dtype.
    structure : Structure
        One for which `is_simple` holds.
    transposed : bool
        Which of the systems.
    """
    if b.size == 0:
        return b.copy()
    if structure is Structure.DIAGONAL:
        return divide_by_diagonal(a, b)
    if not is_device_array(a):
        aligned = np.require(a, requirements="A")  # SciPy 1.17 refuses what is not
        return scipy.linalg.solve(
            aligned, b, assume_a=structure, transposed=transposed, check_finite=False
        )
    return solve_triangle(a, b, structure is Structure.LOWER, transposed)


def invert_simple(a: Any, structure: Structure) -> Any:
    """Invert a matrix for whose structure `is_simple` holds."""
    if is_device_array(a):
        identity = array_module(a).eye(len(a), dtype=a.dtype)
        return solve_simple(a, identity, structure, transposed=False)
    aligned = np.require(a, requirements="A")
    return scipy.linalg.inv(aligned, assume_a=structure, check_finite=False)


def is_number(a: Any, b: Any) -> bool:
    """Whether `a` is one number with which SciPy solves for any `b`, by division."""
    return math.prod(np.shape(a)) == 1 and (np.ndim(a) < 2 or np.shape(b)[:1] != (1,))


def divide_by_number(a: Any, b: Any) -> Any:
    """X of a X = B for an array `a` of one number; X has one dimension at least."""
    return array_module(b).atleast_1d(b) / without_zeros(a.ravel())


@on_device_of_arrays
def without_zeros(diagonal: Any) -> Any:
    """Some or all of a matrix's diagonal; raise LinAlgError if it has a zero."""
    if not diagonal.all():
        raise LinAlgError("A singular matrix detected: there is a zero on its diagonal.")
    return diagonal


def divide_by_diagonal(a: Any, b: Any) -> Any:
    """X of A X = B for a diagonal matrix."""
    diagonal = without_zeros(a.diagonal())
    size = abs(diagonal)
    warn_ill_conditioned(float(size.min() / size.max()), a.dtype)
    return b / diagonal.reshape(-1, *[1] * (b.ndim - 1))


def solve_triangle(a: Any, b: Any, lower: bool, transposed: bool) -> Any:
    """X of A X = B, or A^T X = B, for one triangle of `a`."""
    xp = array_module(a)
    if lower:  # from its last row and column, it is upper triangular
        a, b = a[::-1, ::-1], b[::-1]
    upper = xp.triu(a)
    without_zeros(upper.diagonal())
    warn_ill_conditioned(reciprocal_condition_upper(upper), a.dtype)
    x = linalg_module(a).solve_triangular(upper, b, trans=int(transposed), check_finite=False)
    return x[::-1] if lower else x


def as_general(a: Any, structure: Structure, lower: bool, in_place: bool = False) -> Any:
    """The matrix in full, made from what its structure lets one read; in one copy at most.

    In its own memory, if it may be; a tridiagonal one in a copy all the same.

    Raises
    ------
    hetero_la.tiles.arrays.errors.InsufficientMemoryError
        If there is no room for a copy.
    """
    symmetric = structure in (Structure.SYMMETRIC, Structure.HERMITIAN)
    if not symmetric and structure is not Structure.TRIDIAGONAL:
        return a
    if not in_place and not is_device_array(a):
        require_room("a completed copy", a.shape, a.dtype, -1, a.nbytes, available_memory())
    if not symmetric:
        return array_module(a).triu(array_module(a).tril(a, 1), -1)
    full = a if in_place else column_major_copy(a)
    complete(full, lower=lower, conjugate=structure is Structure.HERMITIAN)
    return full
