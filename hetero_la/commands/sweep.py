"""``hetero-la sweep``: a tester that prints one row for every combination of options."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hetero_la.commands import rows, runs
from hetero_la.commands.factor import made
from hetero_la.files import require_place


def sweep(args: argparse.Namespace) -> int:
    """Run every combination; return 1 if any of them failed."""
    if args.routine == "solve" and args.m is not None:
        raise ValueError("--m is for lu: solve needs square matrices, and takes --n")
    if args.routine == "lu" and args.nrhs is not None:
        raise ValueError("--nrhs is for solve: lu has no right-hand sides")
    if args.csv is not None:
        require_place(args.csv)
    done: list[rows.Row] = []
    print(rows.header(), flush=True)
    with runs.setting(args) as use:
        for row in _rows(args, use):
            done.append(row)
            print(rows.formatted(row), flush=True)
            if args.csv is not None:  # after each row, so that Ctrl-C loses none
                rows.write_csv(args.csv, done)
    return 0 if all(row.passed for row in done) else 1


def _rows(args: argparse.Namespace, use: runs.Setting) -> Iterator[rows.Row]:
    """Run all problems, each of them with all tunings."""
    for dtype, kind, n, m, nrhs in itertools.product(
        args.dtype, args.kind, args.n, args.m or [None], args.nrhs or [1]
    ):
        # Every run leaves its matrix as it is, for the next one and for the error ratio.
        copies = 3 if args.ref else 2
        a = made(kind, n if m is None else m, n, dtype, args.seed, copies, args.cond)
        b = None
        if args.routine == "solve":
            b = made("rands", n, nrhs, dtype, args.seed + 1, copies)
        ref: float | None = None
        for nb, lookahead, _ in itertools.product(args.nb, args.lookahead, range(args.repeat)):
            options = {**use.options, "nb": nb, "lookahead": lookahead}
            row = _run(a, b, kind, dataclasses.replace(use, options=options), ref)
            ref = row.ref_seconds
            yield row


def _run(
    a: NDArray, b: NDArray | None, kind: str, use: runs.Setting, ref: float | None
) -> rows.Row:
    """One run; a matrix with which nothing can be solved has a row like any other."""
    if b is None:
        return runs.lu(a, kind, use, ref=ref)[0]
    try:
        return runs.solve(a, b, kind, use, ref=ref)[0]
    except np.linalg.LinAlgError:
        n, nrhs = b.shape
        return rows.Row(
            "solve", a.dtype.name, kind, n, n, nrhs, use.options["nb"],
            use.options["lookahead"], None, None, None, ref, None, "singular",
        )  # fmt: skip
