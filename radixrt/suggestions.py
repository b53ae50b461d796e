"""The name that a user probably meant: other engines' names for an option or a command, and names spelled alike."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection

from radixrt.peer_options import SAME_OPTIONS, sentence

ALIKE = 0.7
TYPING_MISTAKE = 0.93
"""Ratios of difflib, from 0 to 1: names that may be meant, and names that differ by a letter or two."""

PEER_COMMANDS = {
    "server": "launch",
    "start": "launch",
    "launch_server": "launch",
    "run": "generate",
    "complete": "generate",
    "check": "doctor",
    "env": "doctor",
}
"""Commands of vLLM, SGLang, Ollama and their like, with the command that does the same here."""


def similar(name: str, known: Collection[str], cutoff: float = ALIKE) -> str | None:
    """Return the known name that is spelled most like `name`; None if none is alike."""
    found = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return found[0] if found else None


def command_meant(name: str, known: Collection[str]) -> str | None:
    """Return the command that a user who wrote `name` probably meant; None if nothing is alike."""
    peer = PEER_COMMANDS.get(name.replace("-", "_"))
    return peer if peer in known else similar(name, known)


def option_meant(name: str, known: Collection[str]) -> tuple[str, object] | None:
    """Return the option that a user who wrote `name` probably meant, and the value if the name implies a value.

    Args:
        name: with underscores, e.g. "max_model_len".
        known: the options that there are, spelled likewise.
    """
    peer = SAME_OPTIONS.get(name)
    return peer if peer is not None and peer[0] in known else _alike(name, known, ALIKE)


def about_option(name: str, known: Collection[str], spelled: Callable[[str, object], str]) -> str:
    """Return the rest of a sentence that begins with "there is no option NAME": the option that was meant, or why there
    is none. It is empty where nothing is known about the name.

    Args:
        name, known: as for `option_meant`.
        spelled: returns an option, with a value or None, as the user writes it.
    """
    meant = SAME_OPTIONS.get(name) or _alike(name, known, TYPING_MISTAKE)
    if meant is None or meant[0] not in known:
        text = sentence(name)
        named = set() if text is None else set(re.findall(r"{(\w+)}", text))
        if text is not None and named <= set(known):
            return f": {text.format(**{each: spelled(each, None) for each in named})}"
        meant = option_meant(name, known)
    return "" if meant is None else f"; did you mean {spelled(*meant)}?"


def _alike(name: str, known: Collection[str], cutoff: float) -> tuple[str, object] | None:
    peers = (each for each, (ours, _) in SAME_OPTIONS.items() if ours in known)
    alike = similar(name, [*known, *peers], cutoff)
    if alike is None:
        return None
    return (alike, None) if alike in known else SAME_OPTIONS[alike]
