"""Engine options from the command line of a benchmark."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from radixrt.config import SECTIONS, field_type


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Engine options from "name=value" texts, each as its option's type; true and false for flags, none for None.

    Raises:
        SystemExit: a text without "=", an unknown option or a value of another type.
    """
    homes = {f.name: section for section in SECTIONS.values() for f in dataclasses.fields(section)}
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in homes:
            raise SystemExit(f"--set {pair}: say it as option=value; the options are {', '.join(sorted(homes))}")
        kind, optional = field_type(homes[name], name)
        options[name] = _value(name, text, kind, optional)
    return options


def _value(name: str, text: str, kind: type, optional: bool) -> Any:
    if optional and text.lower() == "none":
        return None
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise SystemExit(f"--set {name}: true or false, not {text!r}")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        raise SystemExit(f"--set {name}: must be of type {kind.__name__}, not {text!r}") from None
