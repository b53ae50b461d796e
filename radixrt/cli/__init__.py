"""The command line. Each command is a `Command`. A command imports heavy modules only when it runs.

engines.py  launch, generate, bench: commands that start an engine, with a flag for each field of the config
clients.py  chat, replay, tree, replicas, calibrate: clients of a running server
checks.py   doctor, schema
cache.py    cache
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from radixrt._version import __version__
from radixrt.cli.cache import CACHE
from radixrt.cli.checks import DOCTOR, SCHEMA
from radixrt.cli.clients import CALIBRATE, CHAT, REPLAY, REPLICAS, TREE
from radixrt.cli.command import trust
from radixrt.cli.engines import BENCH, GENERATE, LAUNCH
from radixrt.config.file import read_config_file
from radixrt.errors import ConfigError, RadixRTError
from radixrt.peer_options import SHORT_OPTIONS, full_name
from radixrt.suggestions import about_option, command_meant

COMMANDS = {
    "launch": LAUNCH,
    "generate": GENERATE,
    "chat": CHAT,
    "bench": BENCH,
    "doctor": DOCTOR,
    "replay": REPLAY,
    "tree": TREE,
    "replicas": REPLICAS,
    "calibrate": CALIBRATE,
    "schema": SCHEMA,
    "cache": CACHE,
}


ALIASES = {"serve": "launch"}
FLAG = re.compile(r"--?[A-Za-z]")


@dataclass
class _Mistake(Exception):
    """A command line that argparse refuses, and the parser of the command."""

    parser: argparse.ArgumentParser
    message: str


class _Parser(argparse.ArgumentParser):
    """Parser that raises `_Mistake`, so that the error can name all mistakes in a single line."""

    def error(self, message: str) -> NoReturn:
        raise _Mistake(self, message)


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
    """Parse a command line. A mistake exits with code 2 and a line that names each unknown flag and what it is here."""
    at, command = next(((i, word) for i, word in enumerate(argv) if not word.startswith("-")), (0, None))
    argv = [_spelled_out(word) for word in argv]
    if command in ALIASES:
        argv[at] = ALIASES[command]
    elif command is not None and command not in COMMANDS and (meant := command_meant(command, COMMANDS)):
        return _refuse(parser, [f"there is no command {command!r}; did you mean radixrt {meant}?"])
    try:
        args, unknown = parser.parse_known_args(argv)
    except _Mistake as mistake:
        flags = [word for word in argv if _flag(word) and _flag(word) not in mistake.parser._option_string_actions]
        hints = [] if mistake.parser is parser else _about_flags(flags, mistake.parser)
        return _refuse(mistake.parser, [mistake.message, *hints])
    if not unknown:
        return args if getattr(args, "config", None) is None else _parse_with_file(parser, argv, args)
    flags = [word for word in unknown if _flag(word)]
    if flags:
        said = _about_flags(flags, _chosen(parser, args))
    elif args.command == "launch":
        said = [f"unexpected {unknown[0]!r}; one MODEL is served, and {args.named_model!r} is given already"]
    else:  # the first word that is left, as other engines take the model
        model = f"; did you mean --model {unknown[0]}?" if hasattr(args, "model") else ""
        said = [f"unexpected {unknown[0]!r}{model}"]
    return _refuse(parser, said, f"radixrt {args.command}")


def _parse_with_file(
    parser: argparse.ArgumentParser, argv: Sequence[str], args: argparse.Namespace
) -> argparse.Namespace:
    """Parse a command line again, with the options of its --config as defaults."""
    try:
        options = read_config_file(args.config)
    except ConfigError as error:
        return _refuse(parser, [str(error)], f"radixrt {args.command}")
    if args.named_model is not None:
        options.pop("model", None)
    _chosen(parser, args).set_defaults(**options)
    return parser.parse_args(argv)


def _chosen(parser: argparse.ArgumentParser, args: argparse.Namespace) -> argparse.ArgumentParser:
    """Return the parser of the command, and of the command's own command, that a command line names."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return _chosen(action.choices[getattr(args, action.dest)], args)
    return parser


def _refuse(parser: argparse.ArgumentParser, said: Sequence[str], prog: str = "") -> NoReturn:
    prog = prog or parser.prog
    parser.exit(2, f"{prog}: {'; '.join(said)} (see {prog} --help)\n")


def _flag(word: str) -> str:
    """Return the flag that a word of the command line is, without its value; "" for other words."""
    return word.partition("=")[0] if FLAG.match(word) else ""


def _spelled_out(word: str) -> str:
    """Return a word of the command line, with the long name of an option that vLLM spells with one dash, e.g. -tp."""
    flag, equals, value = word.partition("=")
    option = SHORT_OPTIONS.get(flag[1:]) if flag[:1] == "-" else None
    return word if option is None else f"--{option}{equals}{value}"


def _about_flags(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return an error text for each flag that the parser of a command does not know."""
    known = {action.dest for action in parser._option_string_actions.values()}
    flags = list(dict.fromkeys(map(_flag, words)))
    return [f"there is no option {flag}{about_option(full_name(flag), known, _as_flag)}" for flag in flags]


def _as_flag(option: str, value: object) -> str:
    flag = option.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}" if value is None else f"--{flag} {value}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a mistake of the user's or a missing part is one line on stderr and exit code 2."""
    args = _parse(build_parser(), sys.argv[1:] if argv is None else argv)
    try:
        trust(getattr(args, "cacert", None))  # an argument of the clients of servers
        return COMMANDS[args.command].run(args)
    except RadixRTError as error:
        print(f"radixrt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the answer is gone, as in `radixrt generate ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that flushing the rest at exit does not fail again
        return 141
