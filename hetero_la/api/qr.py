"""QR factorization, and products with Q."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, Unpack, overload

import scipy.linalg

from hetero_la.api.host_arrays import Work
from hetero_la.api.qr_factors import QRFactors, apply_q
from hetero_la.api.stacks import array_function, unless
from hetero_la.checks.array_types import Eager, Numbers, Same
from hetero_la.checks.inputs import as_array, as_matrix, as_stack, is_writable, require_same_device
from hetero_la.checks.warnings import warn
from hetero_la.execution.execute import execute
from hetero_la.execution.executor_choice import require_options
from hetero_la.execution.resident_factors import Residency
from hetero_la.execution.stack_runs import Stack, run_for_each
from hetero_la.numerics.triangles import upper_triangle, zero_upper_triangle
from hetero_la.planning.options import RunOptions
from hetero_la.scheduler.cluster.clients import ClientLike
from hetero_la.tiles.arrays.transfer import array_module, to_host
from hetero_la.tiles.kernels.gpu_libraries.finite import require_finite

#: "qr" is SciPy's other name for "full".
WithQ = Literal["full", "qr", "economic"]
Mode = WithQ | Literal["r", "raw"]
Side = Literal["left", "right"]
_MODES: tuple[Mode, ...] = ("full", "qr", "r", "raw", "economic")
NOT_GIVEN = object()


def _factorization(arguments: dict[str, Any], m: int, n: int) -> Work | None:
    mode = arguments.get("mode", "full")
    if arguments.get("pivoting") or mode not in _MODES:
        return None
    columns = {"full": m, "qr": m, "economic": min(m, n)}.get(mode, 0)
    return Work("explicit_q" if columns else "qr", columns, m * columns + m * n, unread=True)


def _factors(arguments: dict[str, Any], m: int, n: int) -> Work:
    return Work("qr", 0, m * n, unread=True)


def _factor_stack(
    a: Any, overwrite_a: bool = False, lwork: Any = NOT_GIVEN, mode: str = "full",
    pivoting: bool = False, check_finite: bool = True, **how: Any,
) -> Any:  # fmt: skip
    """Compute `qr` of a stack, without pivoting."""
    a = as_stack(a, finite=check_finite)
    if a is None or mode not in _MODES or pivoting or lwork is not NOT_GIVEN:
        return None
    mode, (_, m, n) = canonical_mode(mode), a.shape
    k = min(m, n)
    columns = {"full": m, "economic": k}.get(mode, 0)

    def split(part: Stack, place: slice) -> tuple[Any, ...]:
        r = part.factors if mode in ("full", "r") else part.factors[:, :k]
        if mode == "raw":  # the reflectors are also returned
            return (upper_triangle(r),)
        zero_upper_triangle(r.swapaxes(1, 2))
        return ()

    done = run_for_each("explicit_q" if columns else "qr", a, columns=columns, then=split, **how)
    if done is None:
        return None
    r = done.factors[:, : columns or m]
    found: tuple[Any, ...] = (done.beside, r) if columns else (r,)
    if mode == "raw":
        found = (done.factors, done.vectors["tau"]), *done.found
    return unless(done.vectors.get("info", 0), found)


@overload
def qr(
    a: Same | Numbers, overwrite_a: bool = False, lwork: int | None = ..., mode: WithQ = "full",
    pivoting: Literal[False] = False,
    check_finite: bool = True, *, client: ClientLike = None, **options: Unpack[RunOptions],
) -> tuple[Same, Same]: ...  # fmt: skip
@overload
def qr(
    a: Same | Numbers, overwrite_a: bool = False, lwork: int | None = ..., *, mode: Literal["r"],
    pivoting: Literal[False] = False,
    check_finite: bool = True, client: ClientLike = None, **options: Unpack[RunOptions],
) -> tuple[Same]: ...  # fmt: skip
@overload
def qr(
    a: Same | Numbers, overwrite_a: bool = False, lwork: int | None = ..., *, mode: Literal["raw"],
    pivoting: Literal[False] = False,
    check_finite: bool = True, client: ClientLike = None, **options: Unpack[RunOptions],
) -> tuple[tuple[Same, Same], Same]: ...  # fmt: skip
@overload
def qr(
    a: Same | Numbers, overwrite_a: bool = False, lwork: int | None = ..., mode: WithQ = "full",
    *, pivoting: Literal[True],
    check_finite: bool = True, client: ClientLike = None, **options: Unpack[RunOptions],
) -> tuple[Same, Same, Same]: ...  # fmt: skip
@overload
def qr(
    a: Same | Numbers, overwrite_a: bool = False, lwork: int | None = ..., mode: Mode = "full",
    pivoting: bool = False,
    check_finite: bool = True, *, client: ClientLike = None, **options: Unpack[RunOptions],
) -> tuple[Any, ...]: ...  # fmt: skip
@array_function(_factor_stack, _factorization, a=2)
def qr(
    a: Any, overwrite_a: bool = False, lwork: Any = NOT_GIVEN, mode: str = "full",
    pivoting: bool = False, check_finite: bool = True, *, client: ClientLike = None,
    **options: Unpack[RunOptions],
) -> Any:  # fmt: skip
    """Factor A = Q R, or A[:, p] = Q R, Q with orthonormal columns and R upper triangular.

    Parameters
    ----------
    a : array_like, shape (..., m, n)
        NumPy or CuPy array or stack, as for `lu_factor`.
    overwrite_a : bool, optional
        Whether the factors may take the place of `a` (where it is column-major, and Q is
        not asked for).
    lwork : int, optional
        Deprecated, as in SciPy; workspace is found otherwise.
    mode : {"full", "r", "economic", "raw"}, optional
        Which factors to return; "qr" is an old name of "full".
    pivoting : bool, optional
        Whether columns are exchanged, so that the diagonal of R does not increase.  This is done
        on the host in the calling thread, by LAPACK's ``xGEQP3``: half of its operations are
        matrix-vector products, which a task graph does not speed up.  A CuPy array is copied to
        the host, and the factors back.
    check_finite : bool, optional
        Whether to refuse NaNs and infinities.
    client, **options
        As for `lu_factor`.

    Returns
    -------
    q : array, shape (m, m), or (m, k) for "economic"
        Q; k = min(m, n).  Not for "r".  It is a view of an array that also holds the packed
        factors; copy it to free their memory.  For "raw", the tuple ``(qr, tau)`` of LAPACK, which
        `qr_factor` returns as an object.
    r : array, shape (m, n), or (k, n) for "economic" and "raw"
        R.  For "r" it is the first entry of the tuple.
    p : array of int32, shape (n,)
        Number of the column of `a` in each place; only for `pivoting`.

    Raises
    ------
    ValueError
        If `a` has fewer than two dimensions, is of another dtype, or is not finite, or for an
        unknown mode, or for `lwork` up to m.
    Others
        As for `lu_factor`.

    Warns
    -----
    DeprecationWarning
        If `lwork` is given.

    Notes
    -----
    Householder's method by blocks of reflectors I - V T V^H (LAPACK, ``xGEQRF``), R's
    diagonal with the signs that LAPACK gives it.  Panels are factored recursively [1]_;
    a GPU factors tall ones that are well conditioned by CholeskyQR2 [2]_, and reconstructs
    their reflectors [3]_: see `Options`, ``qr_panel``.

    References
    ----------
    .. [1] E. Elmroth and F. Gustavson, Applying recursion to serial and parallel QR
       factorization leads to better performance, IBM J. Res. Dev. 44, 2000.
    .. [2] T. Fukaya, Y. Nakatsukasa, Y. Yanagisawa and Y. Yamamoto, CholeskyQR2: a simple and
       communication-avoiding algorithm for computing a tall-skinny QR factorization on a
       large-scale parallel system, ScalA 2014.
    .. [3] G. Ballard, J. Demmel, L. Grigori, M. Jacquelin, H. D. Nguyen and E. Solomonik,
       Reconstructing Householder vectors from tall-skinny QR, IPDPS 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import qr
    >>> a = np.array([[3.0, 1.0], [4.0, 2.0]])
    >>> q, r = qr(a)
    >>> np.round(r, 12)
    array([[-5. , -2.2],
           [ 0. ,  0.4]])
    >>> np.allclose(q @ r, a)
    True
    >>> q, r, p = qr(a[:, ::-1], pivoting=True)
    >>> np.allclose(q @ r, a[:, ::-1][:, p]), p
    (True, array([1, 0], dtype=int32))
    """
    mode = canonical_mode(mode)
    a = as_matrix(a, finite=check_finite)
    m, n = a.shape
    check_lwork(lwork, m)
    if pivoting:
        require_options(options, client)
        return _pivoted(a, mode, overwrite_a)
    columns = {"full": m, "economic": min(m, n)}.get(mode, 0)
    result = execute(
        "explicit_q" if columns else "qr", a, columns=columns, overwrite_a=overwrite_a,
        client=client, **options,
    )  # fmt: skip
    xp, packed = array_module(a), result.array[:, :n]
    if mode == "r":  # the reflectors are not returned
        zero_upper_triangle(packed.T)
        return (packed,)
    r = upper_triangle(packed if mode == "full" or m < n else packed[:n])
    if mode == "raw":
        return (packed, xp.asarray(result.vector("tau"))), r
    return result.array[:, n:], r


def canonical_mode(mode: Any) -> Mode:
    """Return the name that SciPy prefers for `mode`; raise ValueError for an unknown one."""
    if mode not in _MODES:
        raise ValueError(f"Mode argument should be one of {list(_MODES)}, not {mode!r}")
    return "full" if mode == "qr" else mode


def check_lwork(lwork: Any, m: int) -> None:
    """Warn if `lwork` is given; raise ValueError if it is too small, as SciPy does."""
    if lwork is NOT_GIVEN:
        return
    if lwork not in (None, -1) and lwork <= m:
        raise ValueError(f"lwork should be None, -1 or > M, got {lwork} for M = {m}")
    warn("lwork is not used, and deprecated as in SciPy 1.18", DeprecationWarning)


def _pivoted(a: Any, mode: str, overwrite_a: bool) -> tuple[Any, ...]:
    """Factor A[:, p] = Q R on the host; return the results on the device of `a`."""
    found = scipy.linalg.qr(
        to_host(a), overwrite_a=overwrite_a and is_writable(a), mode=mode, pivoting=True,
        check_finite=False,
    )  # fmt: skip
    there = array_module(a).asarray
    return tuple(
        tuple(map(there, part)) if isinstance(part, tuple) else there(part) for part in found
    )


@array_function(None, _factors, a=2)
def qr_factor(
    a: Eager | Numbers, overwrite_a: bool = False, check_finite: bool = True, *,
    client: ClientLike = None, **options: Unpack[RunOptions],
) -> QRFactors[Eager]:  # fmt: skip
    """Factor A = Q R and keep Q as reflectors, for products with Q and for least squares.

    Parameters
    ----------
    a, overwrite_a, check_finite, client, **options
        As for `qr`.

    Returns
    -------
    QRFactors
        Unpacks as LAPACK's ``(qr, tau)``.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import qr_factor
    >>> factors = qr_factor(np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]))
    >>> np.round(factors.solve(np.array([1.0, 2.0, 3.0])), 12)
    array([1., 1.])
    """
    result = execute(
        "qr", as_matrix(a, finite=check_finite), overwrite_a=overwrite_a,
        residency=Residency.BOTH, client=client, **options,
    )  # fmt: skip
    tau = array_module(result.array).asarray(result.vector("tau"))
    return QRFactors(result.array, tau, 0, result.report, result.kept)


@overload
def qr_multiply(
    a: Eager | Numbers, c: Eager | Numbers, mode: Side = "right",
    pivoting: Literal[False] = False, conjugate: bool = False, overwrite_a: bool = False,
    overwrite_c: bool = False, *, client: ClientLike = None, **options: Unpack[RunOptions],
) -> tuple[Eager, Eager]: ...  # fmt: skip
@overload
def qr_multiply(
    a: Eager | Numbers, c: Eager | Numbers, mode: Side = "right", pivoting: bool = False,
    conjugate: bool = False, overwrite_a: bool = False, overwrite_c: bool = False, *,
    client: ClientLike = None, **options: Unpack[RunOptions],
) -> tuple[Eager, ...]: ...  # fmt: skip
@array_function(a=2, c="1|2")
def qr_multiply(
    a: Any, c: Any, mode: str = "right", pivoting: bool = False, conjugate: bool = False,
    overwrite_a: bool = False, overwrite_c: bool = False, *, client: ClientLike = None,
    **options: Unpack[RunOptions],
) -> tuple[Any, ...]:  # fmt: skip
    """Factor A = Q R, and multiply by Q without forming it.

    Parameters
    ----------
    a : array_like, shape (..., m, n)
        As for `qr`; always checked for NaNs and infinities, and so is `c`.
    c : array_like
        The matrix to multiply: for "left" with min(m, n) rows (with `overwrite_c`, m rows as the
        product has), for "right" with m columns.  A vector is a row or a column; leading
        dimensions are broadcast.
    mode : {"left", "right"}, optional
        Q C or C Q.
    pivoting : bool, optional
        Whether columns are exchanged, as by `qr`.
    conjugate : bool, optional
        Multiply by the conjugate of Q.
    overwrite_a, overwrite_c : bool, optional
        As in SciPy.
    client, **options
        As for `lu_factor`.

    Returns
    -------
    cq : array
        The product, with economic Q: min(m, n) columns for "right", m rows for "left".  As in
        SciPy, an empty `c` gives an empty array of its shape.
    r : array, shape (..., min(m, n), n)
        R.
    p : array of int32, shape (..., n)
        Number of the column of `a` in each place; only for `pivoting`.

    Raises
    ------
    ValueError
        If shapes, dtypes or values are invalid, or for an unknown mode.
    Others
        As for `lu_factor`.

    Examples
    --------
    >>> import numpy as np
    >>> from hetero_la import qr_multiply
    >>> cq, r = qr_multiply(np.array([[3.0], [4.0]]), np.array([3.0, 4.0]))
    >>> np.round(cq, 12), np.round(r, 12)
    (array([-5.]), array([[-5.]]))
    """
    if mode not in ("left", "right"):
        raise ValueError(f"Mode argument can only be 'left' or 'right' but not {mode!r}")
    a, c = as_matrix(a), as_array(c, "c", (1, 2))
    require_same_device(a, c, "a", "c")
    require_finite(c, "c")
    (m, n), k, xp = a.shape, min(a.shape), array_module(a)
    given = c
    c = xp.atleast_2d(c) if mode == "right" else (c[:, None] if c.ndim == 1 else c)
    rows = c.shape[1] if mode == "right" else c.shape[0]
    if rows != (m if mode == "right" or (overwrite_c and m > n) else k):
        raise ValueError(f"c of shape {given.shape} does not fit a of shape {a.shape}")
    multiply, *rest = _product_with_q(a, pivoting, overwrite_a, client=client, **options)
    if not c.size:  # of the shape of c, not of the product, as in SciPy
        return xp.empty_like(c), *rest
    turn = xp.conj if conjugate else xp.asarray
    if mode == "right":  # C Q = (Q^H C^H)^H
        product = turn(multiply(turn(c).T.conj(), adjoint=True).T.conj())[:, :k]
    else:
        product = turn(multiply(turn(pad_with_zero_rows(c, m)), adjoint=False))
    return (product.ravel() if given.ndim == 1 else product), *rest


def pad_with_zero_rows(b: Any, rows: int) -> Any:
    """Return `b` with rows of zeros below it, which the product with Q overwrites."""
    padded = array_module(b).zeros((rows, b.shape[1]), b.dtype)
    padded[: len(b)] = b
    return padded


def _product_with_q(a: Any, pivoting: bool, overwrite_a: bool, **how: Any) -> tuple[Any, ...]:
    """Factor A; return a function that multiplies by Q, then R, and with `pivoting` p."""
    if not pivoting:
        factors = qr_factor(a, overwrite_a, **how)
        return factors.multiply, factors.r
    (packed, tau), *rest = qr(a, overwrite_a, mode="raw", pivoting=True, **how)
    return partial(apply_q, packed, tau), *rest
