"""Commands ``lu``, ``cholesky`` and ``qr`` on files that do not fit into memory."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import hetero_la
from hetero_la.cli.common import rows
from hetero_la.cli.common.runs import in_parts_options
from hetero_la.in_files.stored_matrix import READABLE, opened
from hetero_la.tiles.kernels.cpu.device import available_memory

#: Routines that factor a file into another one.
IN_PARTS = ("lu", "cholesky", "qr")
#: Arrays of the matrix's size that a run in memory needs: itself, and what checks take.
_COPIES = 2


def takes_parts(args: argparse.Namespace) -> bool:
    """Return whether a command's file is to be read in parts: it was asked for, or has to be."""
    if args.command not in IN_PARTS or args.file is None:
        return False
    if args.checkpoint or args.resume:
        if args.output is None:
            raise ValueError("--checkpoint and --resume need a file for the result: -o OUT")
        return True
    if args.output is None or args.file.suffix.lower() not in READABLE or not args.file.exists():
        return False
    with contextlib.suppress(ValueError, OSError), opened(args.file, args.name) as matrix:
        m, n = matrix.shape
        return _COPIES * int(m) * int(n) * matrix.dtype.itemsize > available_memory()
    return False  # whoever reads it whole says what is wrong


def factor_parts(args: argparse.Namespace) -> rows.Row:
    """Factor a file into another one; return the row of the table."""
    routine: Any = args.command
    factors = hetero_la.factor_file(
        routine, args.file, args.output, name=args.name, checkpoint=args.checkpoint,
        resume=args.resume, **in_parts_options(args),
    )  # fmt: skip
    plan, timing = factors.report.plan, factors.report.timing
    args.report.wrote(args.output, ", ".join(factors.names))
    args.report.note("the factors were not checked: the matrix was read in parts")
    return rows.Row(
        routine, plan.dtype.name, "file", plan.layout.m, plan.layout.n, 0, plan.layout.nb_text,
        plan.lookahead, rows.workers_text(plan.workers), timing.seconds,
        plan.flops / timing.seconds / 1e9 if timing.seconds > 0 else 0.0,
        status=rows.status(trouble="singular" if factors.info else "", ratio=None),
    )  # fmt: skip
