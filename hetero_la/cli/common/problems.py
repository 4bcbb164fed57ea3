"""Problems of the commands: read from files, or generated."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.checks.inputs import DTYPES
from hetero_la.cli.common.command import MatrixProblem, takes_rhs
from hetero_la.cli.common.command_table import COMMANDS
from hetero_la.io import files
from hetero_la.io.formats import require_memory
from hetero_la.testing import matrices
from hetero_la.tiles.arrays.counted import a_matrix
from hetero_la.tiles.kernels.gpu_libraries.finite import require_finite


def generate(args: argparse.Namespace, *, overwrite: bool = False) -> MatrixProblem:
    """Generate the problem that the arguments of one run describe, if there is memory for it."""
    (m, n), nrhs, dtype, seed = args.random, args.nrhs or 1, args.dtype or "float64", args.seed or 0
    routine = ROUTINES[args.choices.routine(args.command)]
    copies = _count_arrays(args, overwrite)

    def matrix(kind: str, m: int, n: int, seed: int, cond: float | None = None) -> NDArray:
        size = m * n * np.dtype(dtype).itemsize
        require_memory(copies * size, f"a run on {a_matrix(m, n, dtype)}")
        return matrices.generate(kind, m, n, dtype=dtype, seed=seed, cond=cond)

    kind, b = args.kind or routine.kind, None
    a = matrix(kind, m, n, seed, args.cond)
    if takes_rhs(args.command):
        b = matrix("rands", n if routine.tall else m, nrhs, seed + 1)
        if routine.tall:  # in the range of A, so that a solution of moderate size exists
            b = a @ b
    return MatrixProblem(args.command, args.choices, kind, a, b)


def _count_arrays(args: argparse.Namespace, overwrite: bool) -> int:
    """Count the arrays of the matrix's size that a run needs: itself, results, a reference."""
    overwrite = overwrite and not (args.check or args.ref or args.choices.report)
    return 1 + COMMANDS[args.command].made(args.choices, overwrite) + bool(args.ref)


def read_or_generate(args: argparse.Namespace) -> MatrixProblem:
    """Read or generate the problem of a single run."""
    if args.random is not None:
        return generate(args, overwrite=True)
    needed = _count_arrays(args, overwrite=True)
    a, b = _read(args.file, args.name, args.dtype, needed), None
    if a.ndim != 2:
        raise ValueError(f"{args.file} holds an array of shape {a.shape}, not a matrix")
    if args.rhs is not None:
        b = _read(args.rhs, args.name_b, args.dtype, needed)
        if b.ndim not in (1, 2):
            raise ValueError(f"{args.rhs} holds an array of shape {b.shape}, not right-hand sides")
    return MatrixProblem(args.command, args.choices, "file", a, b)


def _read(path: Path, name: str | None, dtype: str | None, needed: int) -> NDArray:
    """Read an array; errors name the file, which those of a run could not."""
    array = _as_supported_dtype(files.read_matrix(path, name, copies=needed), dtype, str(path))
    require_finite(array, str(path))
    return array


def _as_supported_dtype(a: NDArray, dtype: str | None, what: str) -> NDArray:
    """Convert `a` to the dtype asked for, or check that its own is supported."""
    if dtype is not None:
        if a.dtype.kind == "c" and np.dtype(dtype).kind != "c":
            raise ValueError(f"{what} is complex, and --dtype {dtype} would drop imaginary parts")
        return a.astype(dtype, copy=False)
    if a.dtype.kind in "biu":
        return a.astype(np.float64)
    if a.dtype.name not in DTYPES:
        raise ValueError(f"{what} has dtype {a.dtype}, which is not supported: choose a --dtype")
    return a
