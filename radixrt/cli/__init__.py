"""The command line. Each command is a `Command`. A command imports heavy modules only when it runs.

engines.py  launch, generate, bench: commands that start an engine, with a flag for each field of the config
clients.py  chat, replay, tree, replicas: clients of a running server
checks.py   doctor, schema
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from radixrt._version import __version__
from radixrt.cli.checks import DOCTOR, SCHEMA
from radixrt.cli.clients import CHAT, REPLAY, REPLICAS, TREE
from radixrt.cli.engines import BENCH, GENERATE, LAUNCH
from radixrt.errors import RadixRTError
from radixrt.suggestions import command_meant, option_meant

COMMANDS = {
    "launch": LAUNCH,
    "generate": GENERATE,
    "chat": CHAT,
    "bench": BENCH,
    "doctor": DOCTOR,
    "replay": REPLAY,
    "tree": TREE,
    "replicas": REPLICAS,
    "schema": SCHEMA,
}


class _Parser(argparse.ArgumentParser):
    """Parser that reports an error in a single line, without the long usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; the name of the command is `command` among the arguments."""
    parser = _Parser(prog="radixrt", description="An inference engine for structured, multi-call programs.")
    parser.add_argument("--version", action="version", version=f"radixrt {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        help_format = argparse.ArgumentDefaultsHelpFormatter if command.shows_defaults else argparse.HelpFormatter
        command.add_arguments(
            commands.add_parser(name, help=command.help, description=command.description, formatter_class=help_format)
        )
    return parser


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. An unknown command or flag exits with code 2 and a line that names the most similar one."""
    command = next((word for word in argv if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS and (meant := command_meant(command, COMMANDS)):
        parser.error(f"there is no command {command!r}; did you mean radixrt {meant}?")
    args, unknown = parser.parse_known_args(argv)
    if not unknown:
        return args
    flags = [word.partition("=")[0] for word in unknown if word.startswith("--")]
    if flags:
        why = "; ".join(_flag_meant(flag, args) for flag in flags)
    else:  # the first word that is left, as other engines take the model
        model = f"; did you mean --model {unknown[0]}?" if hasattr(args, "model") else ""
        why = f"unexpected {unknown[0]!r}{model}"
    prog = f"radixrt {args.command}"
    return parser.exit(2, f"{prog}: {why} (see {prog} --help)\n")


def _flag_meant(flag: str, args: argparse.Namespace) -> str:
    """Return the error text for an unknown flag, with the most similar known flag."""
    known = [name for name in vars(args) if name != "command"]
    meant = option_meant(flag.removeprefix("--").replace("-", "_"), known)
    if meant is None:
        return f"there is no option {flag}"
    option, value = meant[0].replace("_", "-"), meant[1]
    if isinstance(value, bool):
        return f"there is no option {flag}; did you mean --{option if value else f'no-{option}'}?"
    return f"there is no option {flag}; did you mean --{option}{'' if value is None else f' {value}'}?"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a mistake of the user's or a missing part is one line on stderr and exit code 2."""
    args = _parse(build_parser(), sys.argv[1:] if argv is None else argv)
    try:
        return COMMANDS[args.command].run(args)
    except RadixRTError as error:
        print(f"radixrt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the answer is gone, as in `radixrt generate ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that flushing the rest at exit does not fail again
        return 141
