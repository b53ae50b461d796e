"""`Command`: one command of the command line, as the parser and `main` need it; and kinds of arguments."""

from __future__ import annotations

import argparse
import math
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from radixrt.errors import ConfigError


@dataclass(frozen=True)
class Command:
    """A command of `radixrt`.

    Attributes:
        help: line of the command in `radixrt --help`.
        description: first paragraph of the command's own help.
        add_arguments: adds the command's arguments to its parser. Imports nothing heavy: every command line does it.
        run: runs the command and returns its exit code; imports the modules that the command needs.
        shows_defaults: the help of each option ends with its default.
    """

    help: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    shows_defaults: bool = False


def add_server(parser: argparse.ArgumentParser, url: str | None = None) -> None:
    """Add --url and --cacert to a command that sends requests to a server.

    Args:
        url: default; None requires the flag.
    """
    default = (
        "" if url is None or parser.formatter_class is argparse.ArgumentDefaultsHelpFormatter else f" (default: {url})"
    )
    text = f"the server, with or without /v1 at the end{default}"
    parser.add_argument("--url", "--base-url", default=url, required=url is None, help=text)
    parser.add_argument("--cacert", metavar="FILE", help="PEM file of the authorities whose certificates are trusted")


def trust(cacert: str | None) -> None:
    """Have connections of this process trust the authorities of a PEM file, and no others.

    Raises:
        ConfigError: the file cannot be read, or has no certificate.
    """
    if cacert is None:
        return
    try:
        ssl.create_default_context(cafile=cacert)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--cacert {cacert} is not a PEM file of certificates: {error}") from None
    os.environ["SSL_CERT_FILE"] = cacert


def above_zero(kind: type[int] | type[float]) -> Callable[[str], float]:
    """Return the `type` of an argument whose value is a number above 0."""

    def read(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
        return value

    read.__name__ = kind.__name__  # the name that argparse prints
    return read


def seconds(text: str) -> float:
    """Read an argument that is a time in seconds, 0 or more."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, not {text}")
    return value
