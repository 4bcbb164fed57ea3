"""Argument parser of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hetero_la
from hetero_la.algorithms.routines import ROUTINES
from hetero_la.checks.inputs import DTYPES
from hetero_la.cli.commands import (
    bench,
    completion,
    factor,
    graph,
    info,
    probe,
    simulate,
    study,
    sweep,
    tune,
)
from hetero_la.cli.commands.factor_parts import IN_PARTS
from hetero_la.cli.common import values
from hetero_la.cli.common.command import CHOICES, NAMES, PARTICULAR, Choices, takes, takes_rhs
from hetero_la.cli.parser import Parser, UsageError
from hetero_la.testing.kinds import KINDS
from hetero_la.testing.residuals import RATIO_LIMIT
from hetero_la.tiles.arrays.names import listed
from hetero_la.tiles.kernels.device import PRODUCTS, QR_PANELS

_TILES = "tile size; or 12x1024+512: twelve tiles of 1024, and 512 to the end"
_STATUS = f"""\
exit status:
  0    the error ratio is under {RATIO_LIMIT:.0f} (even when a warning \
reports a singular or rank-deficient matrix); for a sweep: no run failed
  1    the error ratio is not under {RATIO_LIMIT:.0f}, or the run failed
  2    bad input: unreadable, of a wrong shape or dtype, not finite, too large, singular in solve, \
not positive definite, or a wrong option
  3    done, but not checked (--no-check, or a file factored in parts)
  130  interrupted
"""

_COLUMNS = """\
columns: time is that of the run, without the start of workers, and rate counts LAPACK's \
operations; ref time (--ref) is that of the same problem in SciPy on all cores, or in cuSOLVER if \
GPUs were used (without forming Q); virtual-gpu counts CPU workers in the role of GPUs. A \
terminal shows only the columns that fit. The error ratio, with 1-norms, is
  lu        ||PA-LU|| / (n ||A|| eps)
  solve     ||b-Ax|| / (||A|| ||x|| eps), the largest of all columns
  cholesky  ||LL^H-A|| / (n ||A|| eps)
  qr        the larger of ||R-Q^H A|| / (m ||A|| eps) and ||I-Q^H Q|| / (m eps)
  lstsq     ||(AX-B)^H A|| / (max(m,n,nrhs) ||A|| ||B|| eps); for m < n as for solve
"""

_DEFAULT_KIND = "default: rand; kms for positive definite matrices; dominant without pivoting"


#: Examples of commands that run a routine.
_EXAMPLES = {
    "lu": (
        "--random 2000 --ref",
        "A.npy -o factors.npz",
        "big.zarr -o factors.zarr --memory '8 GB'",
        "--random 4000 --trace run.html",
    ),
    "solve": ("A.npy b.npy -o x.npy", "--random 2000 --nrhs 10 --assume-a pos"),
    "cholesky": ("A.npy -o L.npy", "--random 2000 --upper"),
    "qr": ("A.npy -o QR.npz", "--random 5000x200 --mode r"),
    "lstsq": ("A.npy b.npy -o x.npy", "--random 5000x200"),
}


def _add_run_options(parser: argparse.ArgumentParser, names: Sequence[str], *, check: bool) -> None:
    """Add the options that every command with runs has, and those that its routines have."""
    tuning = parser.add_argument_group("computation")
    some: dict[str, dict[str, Any]] = {
        "coarse": {
            "type": int, "metavar": "NC",
            "help": "LU: width (a multiple of NB) of a block of panels whose updates are merged",
        },
        "inverse_bound": {
            "type": float, "metavar": "X",
            "help": "substitute, instead of multiplying by L^-1, if its norm exceeds X",
        },
        "qr_panel": {
            "choices": QR_PANELS, "metavar": "METHOD",
            "help": f"method of a GPU for panels of QR: {', '.join(QR_PANELS)} (default: auto)",
        },
        "products": {
            "choices": PRODUCTS, "metavar": "METHOD",
            "help": "large products of a GPU: native (default), split (single precision, by three "
            "products in half precision), or 3m (complex, by three real products)",
        },
    }  # fmt: skip
    for option, keywords in some.items():
        if any(takes(name, option) for name in names):
            tuning.add_argument(values.flag(option), **keywords)
    tuning.add_argument("--ib", type=int, metavar="IB", help="inner blocking of a panel")
    tuning.add_argument(
        "--order", choices=["right", "left"],
        help="update all columns to the right of a panel (default), or each before it is factored",
    )  # fmt: skip
    tuning.add_argument("--panel", choices=["auto", "cpu", "gpu"], help="device of the panels")
    _add_who(parser)
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
        help="write a timeline: .json for Perfetto, a chart as .svg or .png, a page that plays the "
        "run as .html, or an animation as .gif",
    )  # fmt: skip


def _add_who(parser: argparse.ArgumentParser) -> None:
    """Add the options that say who computes, and in how much memory."""
    who = parser.add_argument_group("workers")
    values.add_workers(who)
    values.add_scheduler(who)
    who.add_argument(
        "--memory", "--gpu-memory", dest="memory", metavar="SIZE",
        help="bytes that a run may use on each GPU, or on the host if no GPU takes part, such as "
        "'40 GB'; of a larger matrix only some columns are in memory at a time (default: all that "
        "is free)",
    )  # fmt: skip
    who.add_argument(
        "--dashboard-address", metavar="ADDRESS",
        help="show the runs of these workers, live, in a browser, at an address such as "
        "127.0.0.1:8787",
    )  # fmt: skip
    who.add_argument("--preset", metavar="NAME", help="named set of workers; info lists the names")


def _add_parts(parser: argparse.ArgumentParser) -> None:
    """Add the options of files that do not fit into memory."""
    parser.add_argument(
        "--checkpoint", action="store_true",
        help="read FILE and write OUT in parts, as if they did not fit into memory, and save what "
        "is done beside OUT, for --resume",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true", help="go on with a run that was saved and interrupted"
    )


def _add_matrices(parser: argparse.ArgumentParser, has_rhs: bool) -> None:
    """Add the arguments that name or generate a matrix and right-hand sides, and the output."""
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
            "--nrhs", type=values.positive, metavar="K",
            help="with --random: columns of B (default: 1)",
        )  # fmt: skip
    parser.add_argument("--name", help="name of the array, if the file holds several")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT", help="write the result, in the same formats"
    )
    parser.add_argument("--random", type=values.size, metavar="N|MxN", help="generate a matrix")
    parser.add_argument(
        "--kind", choices=list(KINDS), metavar="KIND",
        help=f"kind of that matrix, see below ({_DEFAULT_KIND})",
    )  # fmt: skip
    parser.add_argument(
        "--cond", type=float, metavar="X", help="condition number, for kinds that have one"
    )
    parser.add_argument(
        "--seed", type=values.count, metavar="S", help="seed of random kinds (default: 0)"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, metavar="TYPE",
        help=f"compute in this type: {', '.join(DTYPES)} (default: the file's, or float64)",
    )  # fmt: skip


def _add_routine(commands: Any, name: str) -> None:
    """Add the command that runs one problem with one routine."""
    routine, has_rhs = ROUTINES[name], takes_rhs(name)
    parser = values.add_command(
        commands, name, factor.run, routine.summary, usage=f"[options] {_source(has_rhs)}",
        examples=_EXAMPLES[name], notes=_short_notes(),
    )  # fmt: skip
    _add_matrices(parser, has_rhs)
    if name in IN_PARTS:
        _add_parts(parser)
    for option in routine.options:
        parser.add_argument(values.flag(option), **CHOICES[option])
    parser.add_argument("--nb", type=values.tiles, metavar="NB", help=_TILES)
    parser.add_argument("--lookahead", type=int, metavar="D", help="look-ahead depth")
    _add_run_options(parser, [name], check=True)
    parser.add_argument(
        "--report", dest="judged", action="store_true",
        help="print what the result is worth: errors, condition number, growth factor and others",
    )  # fmt: skip
    if name not in IN_PARTS:
        parser.set_defaults(checkpoint=False, resume=False)
    if not has_rhs:
        parser.set_defaults(rhs=None, nrhs=None)


def _add_sweep(commands: Any) -> None:
    summary = "run all combinations of sizes and options, one row each"
    parser = values.add_command(
        commands, "sweep", sweep.sweep, summary, usage="[options] ROUTINE --n LIST",
        examples=(
            "lu --n 500:4000:500 --ref", "qr --n 2000 --nb 128,256,512 --check --csv qr.csv",
        ),
        notes=_notes(),
    )  # fmt: skip
    values.add_routine(parser, NAMES)
    kind = values.names(list(KINDS))
    lists: dict[str, Any] = {"type": values.sizes, "metavar": "LIST"}
    parser.add_argument("--n", **lists, required=True, help="columns, as in 100,200:1000:200")
    parser.add_argument("--m", **lists, help="rows (default: as many as columns)")
    parser.add_argument("--nrhs", **lists, help="right-hand sides (default: 1)")
    parser.add_argument(
        "--nb", type=values.tilings, metavar="LIST", default=[None],
        help=f"tile sizes, each of them: {_TILES}",
    )  # fmt: skip
    parser.add_argument("--lookahead", **lists, default=[None], help="look-ahead depths")
    parser.add_argument(
        "--dtype", type=values.names(DTYPES), default=["float64"], metavar="LIST",
        help=f"element types: {', '.join(DTYPES)} (default: float64)",
    )  # fmt: skip
    parser.add_argument("--kind", type=kind, metavar="LIST", help=_DEFAULT_KIND)
    parser.add_argument(
        "--cond", type=float, metavar="X", help="condition number, for kinds that have one"
    )
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
    _add_run_options(parser, NAMES, check=False)


def _source(has_rhs: bool) -> str:
    return f"({'A B' if has_rhs else 'FILE'} | --random N)"


def _notes() -> str:
    """Return the kinds of matrices, and the columns of the table."""
    width = max(map(len, KINDS))
    lines = (f"  {name.ljust(width)}  {kind.description}" for name, kind in KINDS.items())
    return "kinds of matrices:\n" + "\n".join(lines) + "\n\n" + _COLUMNS


def _short_notes() -> str:
    """Return the names of the kinds of matrices, and where more is said."""
    names = ", ".join(KINDS)
    return (
        f"kinds of matrices:\n  {names}\n\n"
        "'hetero-la sweep --help' describes them, and the columns of the table."
    )


def build_parser() -> Parser:
    """Build the parser of all commands, from which their reference can be made as well."""
    parser = Parser(
        prog="hetero-la",
        description="Dense factorizations, linear systems and least squares on CPUs and GPUs.",
        usage="hetero-la COMMAND [options]",
        epilog=_STATUS,
    )
    version = f"hetero-la {hetero_la.__version__}"
    parser.add_argument(
        "-V", "--version", action="version", version=version, help="print the version"
    )
    commands = parser.add_subparsers(
        required=True, metavar="COMMAND", dest="command", title="commands", prog="hetero-la"
    )
    for name in NAMES:
        _add_routine(commands, name)
    _add_sweep(commands)
    for command in (graph, simulate, probe, tune, bench, study, info, completion):
        command.add_parser(commands)
    for one in (parser, *commands.choices.values()):
        one.commands = commands.choices
    commands.choices["completion"].set_defaults(parser=parser)
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; the result has the function to call as ``run``.

    Raises
    ------
    UsageError
        For invalid arguments, in one sentence; ``--help`` prints and exits.
    """
    args = build_parser().parse_args(argv)
    if args.quiet and getattr(args, "verbose", False):
        raise UsageError("--quiet leaves out what --verbose prints: give one of them")
    args.report = values.output_of(args)
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
    judged = getattr(args, "judged", False)
    choices = Choices(report=judged, **{**defaults, **values.given(args, *able)})
    if choices.pivot == "none" and choices.assume_a == "pos":
        raise UsageError("--pivot is for LU, and --assume-a pos solves by Cholesky")
    if routine == "solve" and choices.upper and choices.assume_a == "gen":
        raise UsageError("--upper chooses a triangle, and does nothing without --assume-a")
    return choices


def _check_workers(args: argparse.Namespace) -> None:
    """Raise UsageError for options that define workers, if the cluster that runs has them."""
    wanted = values.given(args, *values.WORKERS, "preset", "dashboard_address")
    if wanted and values.given(args, "scheduler"):
        flag = values.flag(next(iter(wanted)))
        raise UsageError(f"{flag} starts workers, and --scheduler uses those of a running cluster")


def _check_takers(args: argparse.Namespace) -> None:
    """Raise UsageError for an option that the routine does not have."""
    for option in PARTICULAR:
        if getattr(args, option, None) is not None and not takes(args.routine, option):
            who = listed(name for name in NAMES if takes(name, option))
            flag = values.flag(option)
            raise UsageError(f"{flag} is for {who}, and does nothing with {args.routine}")


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
    for name in ("checkpoint", "resume"):
        if made and getattr(args, name):
            raise UsageError(f"--{name} is for a file that is factored in parts, not for --random")
    for name in ("name", "name_b") if made else ("kind", "cond", "seed", "nrhs"):
        if getattr(args, name, None) is not None:
            what = "chooses an array of a file" if made else "describes what --random makes"
            with_ = "--random" if made else "a file"
            raise UsageError(f"{values.flag(name)} {what}, and does nothing with {with_}")
    kind = args.kind or ROUTINES[args.command].kind
    if made and args.seed is not None and not KINDS[kind].random and not takes_rhs(args.command):
        raise UsageError(f"--seed does nothing with matrices of kind {kind}, which is not random")
