"""Parsers of option values: numbers, sizes, lists."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any

from hetero_la.checks.inputs import DTYPES
from hetero_la.cli.common.output import Output
from hetero_la.tiles.arrays.names import unknown_name
from hetero_la.tiles.storage.tile_sizes import TileSizes, tile_sizes

#: Maximum length of a list of numbers.
_MOST = 10_000


#: Options that define the workers.
WORKERS = ("cpus", "gpus", "virtual_gpus", "blas_threads")


def _whole_number(least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers of at least `least`."""

    def number(text: str) -> int:
        value: int | None
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return value

    return number


count, positive = _whole_number(0), _whole_number(1)


def size(text: str) -> tuple[int, int]:
    """Parse ``"N"`` or ``"MxN"`` into rows and columns.

    Examples
    --------
    >>> size("30x40"), size("30")
    ((30, 40), (30, 30))
    """
    numbers = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if numbers is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 2000 or 3000x200")
    return int(numbers[1]), int(numbers[2] or numbers[1])


def sizes(text: str) -> list[int]:
    """Parse a list of numbers and ranges; the end of a range is included.

    Examples
    --------
    >>> sizes("100,200:1000:400")
    [100, 200, 600, 1000]
    """
    found: list[int] = []
    for part in text.split(","):
        if not re.fullmatch(r"\d+(:\d+){0,2}", part):
            raise argparse.ArgumentTypeError(f"{part!r} is neither a number nor START:STOP:STEP")
        start, *rest = map(int, part.split(":"))
        stop, step = (*rest, 1)[:2] if rest else (start, 1)
        if stop < start or step < 1:
            raise argparse.ArgumentTypeError(f"{part!r} is not a range that rises")
        if len(found) + (stop - start) // step >= _MOST:
            raise argparse.ArgumentTypeError(f"{text!r} lists more than {_MOST} numbers")
        found += range(start, stop + 1, step)
    return found


def tiles(text: str) -> TileSizes:
    """Parse one tile size, or the sizes of all tiles.

    Examples
    --------
    >>> tiles("128"), tiles("2x128+64")
    (128, (128, 128, 64))
    """
    try:
        return tile_sizes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def tilings(text: str) -> list[TileSizes]:
    """Parse a list of tile sizes, as `tiles` reads them, or of ranges of sizes.

    Examples
    --------
    >>> tilings("2x128+64,100:300:100")
    [(128, 128, 64), 100, 200, 300]
    """
    found: list[TileSizes] = []
    for part in text.split(","):
        found += sizes(part) if ":" in part else [tiles(part)]
    return found


def names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a parser of lists of names, all of which must be in `known`."""

    def listed(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(unknown_name("", unknown[0], known))
        return found

    return listed


def add_workers(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options that define the workers."""
    parser.add_argument("--cpus", type=count, metavar="N", help="CPU workers")
    parser.add_argument("--gpus", type=count, metavar="N", help="GPU workers")
    parser.add_argument(
        "--virtual-gpus",
        type=count,
        metavar="N",
        help="CPU workers in the role of GPUs, for tests: as slow as CPUs, and no GPU is used",
    )
    parser.add_argument(
        "--blas-threads", type=positive, metavar="N", help="BLAS threads of a CPU worker"
    )


def add_scheduler(parser: argparse.ArgumentParser | argparse._ActionsContainer) -> None:
    """Add the option that names a running cluster."""
    parser.add_argument(
        "--scheduler", metavar="ADDRESS",
        help="use the workers of the Dask cluster with this scheduler, such as "
        "tcp://10.0.0.1:8786",
    )  # fmt: skip


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return those of some options that the command has and that are given, by their names."""
    found = {name: getattr(args, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def flag(name: str) -> str:
    """Return the option that sets an attribute of the parsed arguments.

    Examples
    --------
    >>> flag("assume_a")
    '--assume-a'
    """
    return "--" + name.replace("_", "-")


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], summary: str, *,
    usage: str, examples: Sequence[str], notes: str = "",
) -> argparse.ArgumentParser:  # fmt: skip
    """Add a subcommand that calls `run`; return its parser.

    `usage` and `examples` are what follows the name of the subcommand; the help ends with `notes`.
    """
    lines = "\n".join(f"  hetero-la {name} {example}".rstrip() for example in examples)
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.",
        usage=f"hetero-la {name} {usage}", epilog=f"examples:\n{lines}\n\n{notes}".rstrip(),
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true",
        help="print one JSON document on stdout, and no text (docs/reference/command_line.md)",
    )  # fmt: skip
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print only results, warnings and errors"
    )
    parser.set_defaults(run=run)
    return parser


def add_routine(parser: argparse.ArgumentParser, routines: Sequence[str]) -> None:
    """Add the routine that a command is about."""
    parser.add_argument("routine", choices=routines, metavar="ROUTINE", help=", ".join(routines))


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Add the element type."""
    parser.add_argument(
        "--dtype", choices=DTYPES, metavar="TYPE",
        help=f"element type: {', '.join(DTYPES)} (default: float64)",
    )  # fmt: skip


def output_of(args: argparse.Namespace) -> Output:
    """Return where the results and messages of a command go."""
    return Output(args.command, args.json, args.quiet)
