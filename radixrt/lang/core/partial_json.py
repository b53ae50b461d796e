"""Values of incomplete JSON texts, for streaming."""

from __future__ import annotations

import re
from typing import Any

import pydantic_core

_UNSURE = re.compile(r"-?(?:[0-9][-+0-9.eE]*)?\Z")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


class Nothing:
    """Type of NOTHING: no part of the value is certain yet."""

    def __repr__(self) -> str:
        return "NOTHING"

    def __bool__(self) -> bool:
        return False


NOTHING = Nothing()


def partial_json(text: str) -> Any:
    """Parse the beginning of a JSON text: objects and lists with their complete members, strings as far as they are.

    A number at the end of the text may be incomplete, and a key may lack its value, so both are left out. Later text
    only adds to the value.

    Args:
        text: the beginning of a valid JSON text.

    Returns:
        Plain JSON values; NOTHING while there is none, or if the text is not the beginning of JSON.
    """
    unsure = _UNSURE.search(text)
    if unsure is not None and '"' not in _STRING.sub("", text):
        text = text[: unsure.start()]
    try:
        return pydantic_core.from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return NOTHING
