"""Packages of the extras of pyproject.toml, for errors that name a command which installs them."""

from __future__ import annotations

import importlib.metadata
import re


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra.

    The command names these packages and not radixrt itself, so that it works wherever radixrt was installed from.
    """
    try:
        required = importlib.metadata.requires("radixrt") or []
    except importlib.metadata.PackageNotFoundError:  # run from its source folder
        required = []
    found = [each.partition(";") for each in required]
    names = [name.strip() for name, _, marker in found if re.search(rf"extra == ['\"]{extra}['\"]", marker)]
    if not names:
        return f"pip install '.[{extra}]' in the folder of radixrt's source"
    return f"pip install {' '.join(repr(name) for name in names)}"
