"""Factorizations of matrices in files, which may be larger than memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.linalg import LinAlgError

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.checks.warnings import not_positive_message, warn, zero_pivot_message
from hetero_la.execution.report import Report
from hetero_la.in_files.checkpoint_folder import CheckpointFolder
from hetero_la.in_files.stored_matrix import READABLE, WRITABLE, factors_file, opened, suffix_of
from hetero_la.in_files.stored_runs import StoredRun
from hetero_la.io.files import require_writable
from hetero_la.io.outputs import errors_naming_file
from hetero_la.numerics.lapack_vectors import StepValues
from hetero_la.planning.decisions import Problem
from hetero_la.scheduler.machine.atomic_files import atomic_replacement
from hetero_la.tiles.arrays.displayed import as_html, one_line
from hetero_la.tiles.kernels.device import Products, QRPanel

#: Name of the matrix in a file of factors, and of the vectors beside it.
_NAMES = {"lu": ("lu", ("piv",)), "cholesky": ("l", ()), "qr": ("qr", ("tau",))}


class FileOptions(TypedDict, total=False):
    """The fields of `Options` that a run on files takes."""

    nb: int | Sequence[int] | str | None
    ib: int | None
    lookahead: int | None
    inverse_bound: float | None
    qr_panel: QRPanel | None
    products: Products | None
    memory: int | str | None


@dataclass(frozen=True, repr=False)
class FileFactors:
    """Factors in a file.

    Attributes
    ----------
    path : Path
        The file.
    names : tuple of str
        Names of its arrays: ``lu`` and ``piv``, ``l``, or ``qr`` and ``tau``.
    info : int
        LAPACK's: 0, or the 1-based index of the first pivot that is exactly zero.
    report : Report
        How the run was planned, and how long it took.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> import hetero_la
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "a.npy"
    ...     np.save(path, np.eye(3))
    ...     hetero_la.factor_file("qr", path, path.with_name("factors.h5"))
    FileFactors(qr, tau in factors.h5)
    """

    path: Path
    names: tuple[str, ...]
    info: int
    report: Report

    _repr_html_ = as_html

    def __repr__(self) -> str:
        return one_line(type(self).__name__, f"{', '.join(self.names)} in {self.path.name}")


def factor_file(
    routine: Literal["lu", "cholesky", "qr"],
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    name: str | None = None,
    checkpoint: bool = False,
    resume: bool = False,
    **options: Unpack[FileOptions],
) -> FileFactors:
    """Factor a matrix in a file, which may be larger than memory, into another file.

    Only some columns of it are in memory at a time.  On a GPU, if that is predicted to be faster,
    and else on the host's cores.

    Parameters
    ----------
    routine : {"lu", "cholesky", "qr"}
        The factorization: with partial pivoting; of the lower triangle; by Householder's method.
    source : path-like
        The m x n matrix: ``.npy``, ``.h5``, ``.hdf5`` or ``.zarr``, float32, float64, complex64 or
        complex128.  It is only read.
    target : path-like
        The factors, as LAPACK packs them: ``.h5``, ``.hdf5`` or ``.zarr``.  What is there is
        replaced once the factors are complete.
    name : str, optional
        Name of the matrix, if its file holds several.
    checkpoint : bool, optional
        Whether to save the state of the run after each group of columns, in a folder beside the
        target, ``NAME.checkpoint``, with the columns in ``NAME.partial``.
    resume : bool, optional
        Whether to go on from there, if it is there, and to save further.
    **options
        See `Options`; `memory` bounds what is used, which is half of what is free by default.

    Returns
    -------
    FileFactors

    Raises
    ------
    ValueError, OSError
        If a file cannot be read or written, or the saved state is of another run.  What has been
        saved stays.
    numpy.linalg.LinAlgError
        If a matrix is not positive definite (Cholesky).

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> import hetero_la
    >>> from hetero_la.io.files import read_matrix
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     a, b = pathlib.Path(folder) / "a.npy", pathlib.Path(folder) / "lu.h5"
    ...     np.save(a, np.array([[1.0, 2.0], [4.0, 4.0]]))
    ...     factors = hetero_la.factor_file("lu", a, b, memory="1 MB")
    ...     read_matrix(b, "lu"), read_matrix(b, "piv")
    (array([[4.  , 4.  ],
           [0.25, 1.  ]]), array([1, 1], dtype=int32))

    Notes
    -----
    The left-looking order, by groups of columns: see the how-to guide on matrices larger than
    memory.
    """
    if routine not in _NAMES:
        raise ValueError(f"routine must be one of {', '.join(_NAMES)}, not {routine!r}")
    source, target = Path(source), Path(target)
    matrix, vectors = _NAMES[routine]
    suffix_of(source, READABLE, "read")
    suffix = suffix_of(target, WRITABLE, "write")
    require_writable(target, 1 + len(vectors))
    with opened(source, name) as given:
        m, n = (int(size) for size in given.shape)
        ROUTINES[routine].require_shape(routine, m, n)
        run = StoredRun.choose(Problem(routine, m, n, 0, np.dtype(given.dtype)), options)
        folder = None
        if checkpoint or resume:
            folder = CheckpointFolder(target.with_name(f"{target.name}.checkpoint"))
        partial = target.with_name(f"{target.name}.partial")
        old = resume and folder is not None and folder.read() is not None and partial.exists()
        if folder is not None and not old:
            folder.begin()
        with (
            _placed(partial, target, folder) as path,
            factors_file(path, suffix, matrix, (m, n), given.dtype, old=old) as file,
        ):
            known = run.resume(folder, file.matrix) if folder is not None and old else {}
            with errors_naming_file("factor", source):
                values, report = run.execute(given, file.matrix, file.flush, folder, known)
            info = _require_factored(routine, values)
            file.write({name: _vector(values, name) for name in vectors})
    if info and routine == "lu":
        warn(zero_pivot_message(info))
    return FileFactors(target, (matrix, *vectors), info, report)


@contextlib.contextmanager
def _placed(partial: Path, target: Path, folder: CheckpointFolder | None) -> Any:
    """Yield the path to write to, whose file then replaces the target."""
    if folder is None:
        with atomic_replacement(target) as unfinished:
            yield unfinished
        return
    yield partial
    with atomic_replacement(target) as unfinished:
        partial.rename(unfinished)
    folder.remove()


def _vector(values: StepValues, name: str) -> np.ndarray:
    return values.piv if name == "piv" else values.vector(name)


def _require_factored(routine: str, values: StepValues) -> int:
    """Return LAPACK's info; raise an error if a matrix is not positive definite."""
    if routine == "qr":
        return 0
    info = values.info
    if routine == "cholesky" and info:
        raise LinAlgError(not_positive_message(info))
    return info
