"""Readers of files with a JSON object, such as config.json, and of single fields of config.json. Each raises a
ModelLoadError that names the file or the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radixrt.errors import ModelLoadError


def read_json_object(path: Path) -> dict[str, Any]:
    """Parse a file that holds one JSON object.

    Raises:
        ModelLoadError: the file is missing, unreadable, or holds something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return data


def positive_int(config: Mapping[str, Any], name: str, default: int | None = None, *, low: int = 1) -> int:
    """Return an integer of at least `low`; without a default, the field must be there and not null."""
    value = config.get(name)
    if value is None:
        if default is None:
            raise ModelLoadError(f"config.json: {name} is missing")
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ModelLoadError(f"config.json: {name} must be an integer of at least {low}, not {value!r}")
    return value


def optional_int(config: Mapping[str, Any], name: str) -> int | None:
    """Return an integer of at least 0; None where the field is missing or null."""
    return None if config.get(name) is None else positive_int(config, name, low=0)


def positive_float(config: Mapping[str, Any], name: str) -> float:
    """Return a number above 0, which must be there."""
    value = config.get(name)
    if value is None:
        raise ModelLoadError(f"config.json: {name} is missing")
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
        raise ModelLoadError(f"config.json: {name} must be a positive number, not {value!r}")
    return float(value)


def flag(config: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Return a boolean; the default where the field is missing."""
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise ModelLoadError(f"config.json: {name} must be true or false, not {value!r}")
    return value
