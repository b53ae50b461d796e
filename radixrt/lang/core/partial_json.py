"""The value that the beginning of a JSON text stands for: what is certain of it while the rest is being written."""

from __future__ import annotations

import re
from typing import Any

import pydantic_core

_UNSURE = re.compile(r"-?(?:[0-9][-+0-9.eE]*)?\Z")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


class Nothing:
    """Nothing of the value is certain yet."""

    def __repr__(self) -> str:
        return "NOTHING"

    def __bool__(self) -> bool:
        return False


NOTHING = Nothing()


def partial_json(text: str) -> Any:
    """The value so far: objects and lists with the members that have come, strings with what there is of them.

    A number that ends the text may go on, and a key without a value says nothing, so both are left out. What comes
    later only adds to the value.

    Args:
        text: the beginning of a valid JSON text.

    Returns:
        Plain JSON values; NOTHING while there is none. A text that is no beginning of JSON is NOTHING too.
    """
    unsure = _UNSURE.search(text)
    if unsure is not None and '"' not in _STRING.sub("", text):
        text = text[: unsure.start()]
    try:
        return pydantic_core.from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return NOTHING
