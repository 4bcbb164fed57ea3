"""``hetero-la lu`` and ``hetero-la solve``: one problem, from a file or made."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hetero_la import files, matrices
from hetero_la.commands import rows, runs
from hetero_la.inputs import require_finite


def lu(args: argparse.Namespace) -> int:
    """Factor a matrix; return the exit status."""
    if args.output is not None:
        files.require_writable(args.output, arrays=2)
    a, kind = _matrix(args)
    with runs.setting(args) as use:
        row, (factors, piv) = runs.lu(a, kind, use, overwrite=True)
    return _finish(row, args.output, {"lu": factors, "piv": piv})


def solve(args: argparse.Namespace) -> int:
    """Solve a system of equations; return the exit status."""
    if args.output is not None:
        files.require_writable(args.output)
    a, kind = _matrix(args)
    b = _right_hand_sides(args, a)
    with runs.setting(args) as use:
        row, x = runs.solve(a, b, kind, use)
    return _finish(row, args.output, {"x": x})


def _finish(row: rows.Row, output: Path | None, results: dict[str, NDArray]) -> int:
    """Write the results, then print the row: what is printed has happened."""
    if output is not None:
        files.write_matrix(output, results)
    print(rows.header(), rows.formatted(row), sep="\n", flush=True)
    return 0 if row.passed else 1


def _copies(args: argparse.Namespace) -> int:
    """How many arrays of the matrix's size there will be: itself, a result, a reference."""
    if args.command == "lu" and not (args.check or args.ref):
        return 1  # it is factored in its own place
    return 3 if args.ref else 2


def _matrix(args: argparse.Namespace) -> tuple[NDArray, str]:
    """The matrix, and what kind it is of."""
    if args.random is None:
        a = _read(args, args.file, args.name)
        if a.ndim != 2:
            raise ValueError(f"{args.file} holds an array of shape {a.shape}, not a matrix")
        return a, "file"
    kind = args.kind or "rand"
    m, n = args.random
    return made(kind, m, n, args.dtype, args.seed or 0, _copies(args), args.cond), kind


def _right_hand_sides(args: argparse.Namespace, a: NDArray) -> NDArray:
    if args.random is not None:
        nrhs, seed = args.nrhs or 1, (args.seed or 0) + 1
        return made("rands", a.shape[0], nrhs, args.dtype, seed, _copies(args))
    b = _read(args, args.rhs, args.name_b)
    if b.ndim not in (1, 2):
        raise ValueError(f"{args.rhs} holds an array of shape {b.shape}, not right-hand sides")
    return b


def _read(args: argparse.Namespace, path: Path, name: str | None) -> NDArray:
    """What a file holds; its errors name it, which those of a run cannot."""
    read = files.read_matrix(path, name, copies=_copies(args))
    array = runs.supported(read, args.dtype, str(path))
    require_finite(array, str(path))
    return array


def made(
    kind: str, m: int, n: int, dtype: str | None, seed: int, copies: int, cond: float | None = None
) -> NDArray:
    """A test matrix, if there is memory for `copies` of it."""
    dtype = dtype or "float64"
    size = m * n * np.dtype(dtype).itemsize
    files.require_memory(copies * size, f"a run on a {m} x {n} {dtype} matrix")
    return matrices.generate(kind, m, n, dtype=dtype, seed=seed, cond=cond)
