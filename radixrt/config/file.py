"""Options in a TOML file (`--config`): the names of the command line, flat or in tables named as the sections."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from radixrt.config.sections import HOMES, SECTIONS
from radixrt.config.validation import checked_options
from radixrt.errors import ConfigError


def read_config_file(path: str) -> dict[str, Any]:
    """Return the options of a file, each of which is checked by itself: the command line may change those beside it.

    Raises:
        ConfigError: the file cannot be read, or an option is not valid; names the file and the option.
    """
    try:
        with Path(path).expanduser().open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} is not TOML: {error}") from None
    options: dict[str, Any] = {}
    for key, value in found.items():
        given = _section(path, key, value) if isinstance(value, dict) else {key.replace("-", "_"): value}
        if twice := sorted(options.keys() & given.keys()):
            raise ConfigError(f"--config {path}: {twice[0]} is set twice")
        options |= given
    try:
        checked_options(options)
    except ConfigError as error:
        raise ConfigError(f"--config {path}: {error}") from None
    return options


def _section(path: str, title: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a table, which must belong to the section of its name."""
    if title not in SECTIONS:
        raise ConfigError(f"--config {path}: there is no section [{title}]; the sections are {', '.join(SECTIONS)}")
    given = {key.replace("-", "_"): value for key, value in table.items()}
    for name in given:
        if (home := HOMES.get(name, title)) != title:
            raise ConfigError(f"--config {path}: {name} belongs to the section [{home}], not [{title}]")
    return given
