"""Problems of the commands: read from files, or generated."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hetero_la.checks.inputs import DTYPES
from hetero_la.cli.common.command import Choices, MatrixProblem, RightHandSides, routine_key
from hetero_la.cli.common.command_table import COMMANDS
from hetero_la.io import files
from hetero_la.io.formats import require_memory
from hetero_la.testing import matrices
from hetero_la.tiles.arrays.finite import require_finite


@dataclass(frozen=True, slots=True)
class ProblemGenerator:
    """Sizes and kind of a problem to be generated.

    Parameters
    ----------
    command : str
        Command that uses the problem.
    choices : Choices
        Options of its routine.
    m, n, nrhs : int
        Rows, columns and right-hand sides.
    kind : str or None
        Kind of matrix; None for the routine's own.
    dtype : str
        Element type.
    seed : int
        Seed of random kinds.
    cond : float or None
        Condition number, for kinds that take one.
    """

    command: str
    choices: Choices
    m: int
    n: int
    nrhs: int
    kind: str | None
    dtype: str
    seed: int
    cond: float | None

    def generate(self, copies: int) -> MatrixProblem:
        """Generate the problem, if there is memory for `copies` arrays of its size."""
        command = COMMANDS[routine_key(self.command, self.choices)]
        kind = self.kind or command.routine.kind
        a = self._matrix(kind, self.m, self.n, self.seed, copies, self.cond)
        b: NDArray | None = None
        if command.rhs is RightHandSides.ANY:
            b = self._matrix("rands", self.m, self.nrhs, self.seed + 1, copies)
        elif command.rhs is RightHandSides.IN_RANGE:
            b = a @ self._matrix("rands", self.n, self.nrhs, self.seed + 1, copies)
        return MatrixProblem(self.command, self.choices, kind, a, b)

    def _matrix(
        self, kind: str, m: int, n: int, seed: int, copies: int, cond: float | None = None
    ) -> NDArray:
        size = m * n * np.dtype(self.dtype).itemsize
        require_memory(copies * size, f"a run on a {m} x {n} {self.dtype} matrix")
        return matrices.generate(kind, m, n, dtype=self.dtype, seed=seed, cond=cond)


def count_arrays(
    args: argparse.Namespace, command: str, choices: Choices, *, overwrite: bool
) -> int:
    """Count the arrays of the matrix's size that a run needs: itself, results, a reference."""
    overwrite = overwrite and not (args.check or args.ref)
    made = COMMANDS[routine_key(command, choices)].made(choices, overwrite)
    return 1 + made + bool(args.ref)


def read_or_generate(args: argparse.Namespace) -> MatrixProblem:
    """Read or generate the problem of a single run."""
    needed = count_arrays(args, args.command, args.choices, overwrite=True)
    if args.random is not None:
        m, n = args.random
        generator = ProblemGenerator(
            args.command, args.choices, m, n, args.nrhs or 1, args.kind, args.dtype or "float64",
            args.seed or 0, args.cond,
        )  # fmt: skip
        return generator.generate(needed)
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
