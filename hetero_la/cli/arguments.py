"""Argument parser of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.checks.inputs import DTYPES
from hetero_la.cli.commands import factor, graph, info, probe, simulate, sweep, tune
from hetero_la.cli.common import values
from hetero_la.cli.common.command import CHOICES, NAMES, Choices, takes_rhs
from hetero_la.testing.matrices import kinds
from hetero_la.testing.residuals import RATIO_LIMIT
from hetero_la.tiles.kernels.device import QR_PANELS

_TILES = "tile size; or 12x1024+512: twelve tiles of 1024, and 512 to the end"
_STATUS = f"""\
exit status:
  0    the error ratio is under {RATIO_LIMIT:.0f}, also if a warning and the status column report a
       singular or rank-deficient matrix; for a sweep: no run failed
  1    the error ratio is not under {RATIO_LIMIT:.0f}, or the run failed
  2    bad input: unreadable, of a wrong shape or dtype, not finite, too large, singular in
       solve, not positive definite, or a wrong option
  3    done, but not checked (--no-check)
  130  interrupted
"""

_COLUMNS = """\
columns: seconds is the wall time of the run, without the start of workers; ref s is the
same problem in SciPy on all cores, or in cuSOLVER if GPUs were used (without forming Q);
ratio, with 1-norms, is
  lu        ||PA-LU|| / (n ||A|| eps)
  solve     ||b-Ax|| / (||A|| ||x|| eps), the largest of all columns
  cholesky  ||LL^H-A|| / (n ||A|| eps)
  qr        the larger of ||R-Q^H A|| / (m ||A|| eps) and ||I-Q^H Q|| / (m eps)
  lstsq     ||(AX-B)^H A|| / (max(m,n,nrhs) ||A|| ||B|| eps); for m < n as for solve
"""

_DEFAULT_KIND = "default: rand; kms for positive definite matrices; dominant without pivoting"


class UsageError(ValueError):
    """Invalid arguments on the command line."""


class _Parser(argparse.ArgumentParser):
    """Argument parser that raises `UsageError` with one sentence, and leaves the exit to `main`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ({self.prog} --help lists what there is)")


def _add_run_options(parser: argparse.ArgumentParser, *, check: bool) -> None:
    """Add the options that every command with runs has."""
    tuning = parser.add_argument_group("computation")
    tuning.add_argument(
        "--coarse", type=int, metavar="NC",
        help="LU: columns, a multiple of NB, of blocks of panels that update the rest at once",
    )  # fmt: skip
    tuning.add_argument("--ib", type=int, metavar="IB", help="inner blocking of a panel")
    tuning.add_argument("--panel", choices=["auto", "cpu", "gpu"], help="device of the panels")
    tuning.add_argument(
        "--inverse-bound", type=float, metavar="X",
        help="substitute, instead of multiplying by L^-1, if its norm exceeds X",
    )  # fmt: skip
    tuning.add_argument(
        "--qr-panel", choices=QR_PANELS, help="method of a GPU for panels of QR (default: auto)"
    )
    who = parser.add_argument_group("workers")
    values.add_workers(who)
    values.add_scheduler(who)
    who.add_argument("--preset", metavar="NAME", help="named set of workers; info lists the names")
    shown = parser.add_argument_group("output")
    shown.add_argument(
        "--check", action=argparse.BooleanOptionalAction, default=check,
        help="compute the error ratio (default: %(default)s)",
    )  # fmt: skip
    shown.add_argument("--ref", action="store_true", help="time the reference as well")
    shown.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print the plan and the timing of each worker on stderr",
    )
    shown.add_argument(
        "--trace", type=Path, metavar="FILE",
        help="write a timeline: .json for Perfetto, or a chart as .svg, .png or .html",
    )  # fmt: skip


def _add_routine(commands: Any, name: str) -> None:
    """Add the command that runs one problem with one routine."""
    routine, has_rhs = ROUTINES[name], takes_rhs(name)
    parser = values.add_command(commands, name, factor.run, routine.summary, epilog=_epilog())
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="A" if has_rhs else "FILE",
        help="matrix: .npy, .npz, .mtx, .mtx.gz, .h5, .hdf5 or .zarr",
    )  # fmt: skip
    if has_rhs:
        parser.add_argument("rhs", nargs="?", type=Path, metavar="B", help="right-hand sides")
        parser.add_argument(
            "--name-b", metavar="NAME", help="name of the array in B, if it holds several"
        )
        parser.add_argument(
            "--nrhs", type=values.positive, help="with --random: columns of B (default: 1)"
        )
    parser.add_argument("--name", help="name of the array, if the file holds several")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT", help="write the result, in the same formats"
    )
    parser.add_argument("--random", type=values.size, metavar="N|MxN", help="generate a matrix")
    parser.add_argument(
        "--kind",
        choices=list(kinds()),
        metavar="KIND",
        help=f"kind of that matrix ({_DEFAULT_KIND})",
    )
    parser.add_argument("--cond", type=float, help="condition number, for kinds that have one")
    parser.add_argument("--seed", type=values.count, help="seed of random kinds (default: 0)")
    parser.add_argument("--dtype", choices=DTYPES, help="compute in this type")
    for option in routine.options:
        parser.add_argument(values.flag(option), **CHOICES[option])
    parser.add_argument("--nb", type=values.tiles, metavar="NB", help=_TILES)
    parser.add_argument("--lookahead", type=int, metavar="D", help="look-ahead depth")
    _add_run_options(parser, check=True)
    if not has_rhs:
        parser.set_defaults(rhs=None, nrhs=None)


def _add_sweep(commands: Any) -> None:
    summary = "run all combinations of sizes and options, one row each"
    parser = values.add_command(commands, "sweep", sweep.sweep, summary, epilog=_epilog())
    parser.add_argument("routine", choices=NAMES)
    kind = values.names(list(kinds()))
    lists: dict[str, Any] = {"type": values.sizes, "metavar": "LIST"}
    parser.add_argument("--n", **lists, required=True, help="columns, as in 100,200:1000:200")
    parser.add_argument("--m", **lists, help="rows (default: as many as columns)")
    parser.add_argument("--nrhs", **lists, help="right-hand sides (default: 1)")
    parser.add_argument(
        "--nb", type=values.tilings, metavar="LIST", default=[None], help=f"several times: {_TILES}"
    )
    parser.add_argument("--lookahead", **lists, default=[None], help="look-ahead depths")
    parser.add_argument("--dtype", type=values.names(DTYPES), default=["float64"], metavar="LIST")
    parser.add_argument("--kind", type=kind, metavar="LIST", help=_DEFAULT_KIND)
    parser.add_argument("--cond", type=float, help="condition number, for kinds that have one")
    parser.add_argument("--seed", type=values.count, default=0, help="seed of random kinds")
    parser.add_argument(
        "--repeat",
        type=values.positive,
        default=1,
        metavar="R",
        help="number of runs of each combination",
    )
    for option, keywords in CHOICES.items():
        parser.add_argument(values.flag(option), **keywords)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the rows to a file")
    _add_run_options(parser, check=False)


def _epilog() -> str:
    """Return the kinds of matrices, and the columns of the table."""
    width = max(map(len, kinds()))
    lines = (f"  {name.ljust(width)}  {text}" for name, text in kinds().items())
    return "kinds of matrices:\n" + "\n".join(lines) + "\n\n" + _COLUMNS


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    parser = _Parser(
        prog="hetero-la",
        description="Dense factorizations, linear systems and least squares on CPUs and GPUs.",
        epilog=_STATUS,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name in NAMES:
        _add_routine(commands, name)
    _add_sweep(commands)
    graph.add_parser(commands)
    simulate.add_parser(commands)
    probe.add_parser(commands)
    tune.add_parser(commands)
    info.add_parser(commands)
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; the result has the function to call as ``run``.

    Raises
    ------
    UsageError
        For invalid arguments, in one sentence; ``--help`` prints and exits.
    """
    args = build_parser().parse_args(argv)
    _check_workers(args)
    if args.command in NAMES:
        _check_source(args)
        args.choices = _choices(args, args.command)
    elif "routine" in args:
        _check_takers(args)
        if args.command != "simulate":
            args.choices = _choices(args, args.routine, mode="raw")
    return args


def _choices(args: argparse.Namespace, routine: str, **defaults: Any) -> Choices:
    """Collect the options that only `routine` has, of those that the command has."""
    able = [name for name in ROUTINES[routine].options if name in args]
    choices = Choices(**{**defaults, **values.given(args, *able)})
    if choices.pivot == "none" and choices.assume_a == "pos":
        raise UsageError("--pivot is for LU, and --assume-a pos solves by Cholesky")
    if routine == "solve" and choices.upper and choices.assume_a == "gen":
        raise UsageError("--upper chooses a triangle, and does nothing without --assume-a")
    return choices


def _check_workers(args: argparse.Namespace) -> None:
    """Raise UsageError for options that define workers, if the cluster that runs has them."""
    wanted = values.given(args, *values.WORKERS, "preset")
    if wanted and values.given(args, "scheduler"):
        flag = values.flag(next(iter(wanted)))
        raise UsageError(f"{flag} defines workers, and --scheduler uses those that are there")


def _check_takers(args: argparse.Namespace) -> None:
    """Raise UsageError for an option that the routine does not have."""
    for option in (*CHOICES, "nrhs", "m"):
        if getattr(args, option, None) is not None and not _has(args.routine, option):
            who = " and ".join(name for name in NAMES if _has(name, option))
            flag = values.flag(option)
            raise UsageError(f"{flag} is for {who}, and does nothing with {args.routine}")


def _has(routine: str, option: str) -> bool:
    """Return whether an option that some routines do not have is one of this routine."""
    if option == "nrhs":
        return takes_rhs(routine)
    declared = ROUTINES[routine]
    return not declared.square if option == "m" else option in declared.options


def _check_source(args: argparse.Namespace) -> None:
    """Raise UsageError unless there are files or ``--random``, with options that fit."""
    needed = ["file", "rhs"] if takes_rhs(args.command) else ["file"]
    given = [name for name in needed if getattr(args, name) is not None]
    made = args.random is not None
    if made and given:
        raise UsageError("give either files or --random, not both")
    if not made and len(given) < len(needed):
        what = "a file" if len(needed) == 1 else "two files, A and B,"
        raise UsageError(f"{args.command} needs {what} or --random N")
    for name in ("name", "name_b") if made else ("kind", "cond", "seed", "nrhs"):
        if getattr(args, name, None) is not None:
            what = "chooses an array of a file" if made else "describes what --random makes"
            with_ = "--random" if made else "a file"
            raise UsageError(f"{values.flag(name)} {what}, and does nothing with {with_}")
