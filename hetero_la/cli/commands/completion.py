"""Command ``completion``: a script with which a shell completes this command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hetero_la.cli.commands.study import ALL
from hetero_la.cli.common import values
from hetero_la.configs import available_machines, available_presets
from hetero_la.studies.common.study import study_names

_SHELLS = ("bash", "zsh", "fish")


def add_parser(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    parser = values.add_command(
        commands, "completion", completion, "print a script that lets a shell complete commands",
        usage="SHELL",
        examples=(
            "bash > ~/.hetero-la.bash",
            "zsh > ~/.zfunc/_hetero-la",
            "fish > ~/.config/fish/completions/hetero-la.fish",
        ),
        notes="For bash, put 'source ~/.hetero-la.bash' into ~/.bashrc.  For zsh, "
        "'fpath+=~/.zfunc' must stand before 'compinit' in ~/.zshrc.",
    )  # fmt: skip
    parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=", ".join(_SHELLS))


def completion(args: argparse.Namespace) -> int:
    """Print the script for a shell; return the exit status."""
    import shtab

    names = {
        "preset": available_presets(),
        "machine": available_machines(),
        "names": [*study_names(), ALL],
    }
    for command in args.parser.commands.values():
        for action in command._actions:
            if action.type is Path:
                action.complete = shtab.FILE
            elif action.dest in names:
                action.choices = names[action.dest]
    script = shtab.complete(args.parser, args.shell)
    args.report.show(script)
    args.report.record(shell=args.shell, script=script)
    return 0
