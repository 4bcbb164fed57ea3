"""Parser of arguments whose errors are one sentence, and say what was probably meant."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from hetero_la.tiles.arrays.names import listed, unknown_name

#: Most columns of a line of help, which wider terminals do not make easier to read.
_MOST_COLUMNS = 100
#: First column of a line of a list.
_ITEM = re.compile(r" +\S+ {2,}")
#: Which words are options, and not negative numbers or files.
_OPTION = re.compile(r"--|-[A-Za-z]")


class UsageError(ValueError):
    """Invalid arguments on the command line."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, in which the lines of descriptions stay lines."""

    def __init__(self, prog: str, **kwargs: Any) -> None:
        width = min(shutil.get_terminal_size().columns, _MOST_COLUMNS) - 2
        super().__init__(prog, max_help_position=26, width=width, **kwargs)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Break lines that are too long, below their second column where they are of a list."""
        return "\n".join(_filled(line, width, indent) for line in text.splitlines())


def _filled(line: str, width: int, indent: str) -> str:
    item = _ITEM.match(line)
    below = " " * item.end() if item else "  " * line.startswith(" ")
    return textwrap.fill(
        line, width, break_on_hyphens=False, initial_indent=indent, subsequent_indent=indent + below
    )


class Parser(argparse.ArgumentParser):
    """Parser that raises `UsageError` with one sentence, and leaves the exit to `main`.

    `commands` are the parsers of all subcommands, of which another may have an option that this
    one has not.
    """

    commands: Mapping[str, Parser]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Help, **kwargs)
        self.commands = {}

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with a message."""
        raise UsageError(f"{message} ({self.prog} --help lists what there is)")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; first, and before what is missing, complain of options that there are not."""
        words = sys.argv[1:] if args is None else list(args)
        if self._subparsers and not words:
            self.error("name a command")
        for word in words:
            if word == "--" or (self._subparsers and not word.startswith("-")):
                break  # positional arguments, or those of the subcommand, follow
            option = word.partition("=")[0] if word.startswith("--") else word[:2]
            if _OPTION.match(option) and option not in self._option_string_actions:
                self.error(self._no_option(option))
        return super().parse_known_args(words, namespace)

    def _no_option(self, option: str) -> str:
        having = [name for name, one in self.commands.items() if one.has(option)]
        if self._subparsers and having:
            return f"{option} follows the command, as in {self.prog} {having[0]} {option}"
        if having:
            command = self.prog.split()[-1]
            return f"{option} is for {listed(having)}, and does nothing with {command}"
        if not option.startswith("--"):
            return f"there is no option {option!r}"
        known = (name for name in self._option_string_actions if name.startswith("--"))
        return unknown_name("option ", option, known)

    def has(self, option: str) -> bool:
        """Return whether it has an option, as ``"--nb"``."""
        return option in self._option_string_actions

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Complain of a value that is none of the choices."""
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            if isinstance(action.choices, Mapping):
                self.error(unknown_name("command ", value, choices))
            raise argparse.ArgumentError(action, unknown_name("", str(value), choices))
