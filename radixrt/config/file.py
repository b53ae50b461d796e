"""Options in a TOML file (`--config`): the names of the command line, flat or in tables named as the sections."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

from radixrt.config.sections import SECTIONS
from radixrt.config.validation import make_config
from radixrt.errors import ConfigError


def read_config_file(path: str) -> dict[str, Any]:
    """Return the options of a file, each of which is checked.

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
        make_config(**options)
    except ConfigError as error:
        raise ConfigError(f"--config {path}: {error}") from None
    return options


def _section(path: str, title: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a table, which must belong to the section of its name."""
    if title not in SECTIONS:
        raise ConfigError(f"--config {path}: there is no section [{title}]; the sections are {', '.join(SECTIONS)}")
    homes = {field.name: name for name, section in SECTIONS.items() for field in dataclasses.fields(section)}
    given = {key.replace("-", "_"): value for key, value in table.items()}
    for name in given:
        if (home := homes.get(name, title)) != title:
            raise ConfigError(f"--config {path}: {name} belongs to the section [{home}], not [{title}]")
    return given
