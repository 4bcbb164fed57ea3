"""Test matrices by name: kinds on which factorizations are known to fail.

Random matrices do not reveal missing pivoting; a factorization is tested on matrices whose
structure makes a particular error visible.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hetero_la.checks.inputs import DTYPES
from hetero_la.testing import kinds_spectral  # noqa: F401  (it registers kinds)
from hetero_la.testing.kinds import KINDS, KindArguments, with_complex_phases
from hetero_la.tiles.arrays.names import unknown_name

__all__ = ["generate", "kinds"]


def kinds() -> dict[str, str]:
    """Return the names that `generate` accepts, each with one line of description.

    Returns
    -------
    dict of str to str
        Name to description.

    Examples
    --------
    >>> from hetero_la.testing.matrices import kinds
    >>> kinds()["hilb"]
    "Hilbert's matrix 1/(i+j-1): extremely ill-conditioned"
    """
    return {name: kind.description for name, kind in KINDS.items()}


def generate(
    kind: str,
    m: int,
    n: int | None = None,
    *,
    dtype: DTypeLike = "float64",
    seed: int = 0,
    cond: float | None = None,
) -> NDArray[Any]:
    """Generate a test matrix.

    Parameters
    ----------
    kind : str
        A name from `kinds`.
    m : int
        Rows.
    n : int, optional
        Columns; as many as rows if not given.
    dtype : data-type, optional
        float32, float64, complex64 or complex128.
    seed : int, optional
        Seed of the random kinds.
    cond : float, optional
        Condition number of the kinds made from singular values or eigenvalues, at
        least 1.  If not given it is 1 over the dtype's eps for ``"svd-eps"``, and the
        square root of that for the others.

    Returns
    -------
    ndarray
        `m` x `n`, column-major.

    Raises
    ------
    ValueError
        For an unknown kind, an unsupported dtype, a negative size, a kind that must be square
        with ``m != n``, or `cond` with a kind of fixed condition number.

    Notes
    -----
    Complex matrices of the random kinds have independent real and imaginary
    parts.  Those of the other kinds have their columns multiplied by numbers of
    modulus one, which keeps magnitudes, singular values and pivots; symmetric
    ones also have their rows multiplied by the conjugates, and are Hermitian.  So are
    the complex ones of the ``spd`` kinds.

    ``gfpp`` is built for growth ``2^(n-1)`` as long as that is at most ``4 n``,
    and for growth ``4 n`` beyond: here the error ratio of every LU with partial pivoting,
    LAPACK's included, is about the growth divided by ``n``, and correct factors must pass
    the test.

    References
    ----------
    ``orthog``, ``gfpp``, ``kms``, ``moler``, ``hilb`` and ``wilkinson`` are those of
    N. J. Higham, "The Test Matrix Toolbox for MATLAB", 1995 (MATLAB's `gallery`);
    ``gfpp`` is from N. J. Higham and D. J. Higham, "Large growth factors in Gaussian
    elimination with pivoting", SIAM J. Matrix Anal. Appl. 10, 1989.  The columns of
    zeros and the scales near under- and overflow are those of LAPACK's test suite
    (`xLATB4`), ``rand``, ``rands``, ``randn``, ``svd``, ``spd`` and ``dominant`` those of
    SLATE's.

    Examples
    --------
    >>> from hetero_la.testing.matrices import generate
    >>> generate("moler", 3)
    array([[ 1., -1., -1.],
           [-1.,  2.,  0.],
           [-1.,  0.,  3.]])
    >>> generate("rand", 4, 2, dtype="complex64", seed=7).shape
    (4, 2)
    """
    n = m if n is None else n
    if kind not in KINDS:
        raise ValueError(unknown_name("kind of matrix ", kind, KINDS))
    chosen = KINDS[kind]
    resolved = np.dtype(dtype)
    if resolved.name not in DTYPES:
        raise ValueError(f"dtype {resolved.name} is not one of {', '.join(DTYPES)}")
    if m < 0 or n < 0:
        raise ValueError(f"a matrix cannot be {m} x {n}")
    if chosen.square and m != n:
        raise ValueError(f"kind {kind!r} is square only, but {m} x {n} was asked for")
    cond = _condition(kind, cond, resolved)
    a = chosen.build(KindArguments(m, n, resolved, np.random.default_rng(seed), cond))
    if resolved.kind == "c" and a.dtype.kind != "c":
        a = with_complex_phases(a, chosen.turn)
    return np.asfortranarray(a, dtype=resolved)


def _condition(kind: str, cond: float | None, dtype: np.dtype) -> float:
    """Return the condition number asked for, or the default of the kind."""
    power = KINDS[kind].cond
    if cond is None:
        return float(np.finfo(dtype).eps) ** -(power or 0.0)
    if power is None or not 1 <= cond < math.inf:
        able = ", ".join(name for name, known in KINDS.items() if known.cond is not None)
        raise ValueError(
            f"cond={cond} needs one of the kinds {able}, and a finite value of at least 1"
        )
    return cond
