"""`check_mistake`: refuses fields of a body that its route does not know and that are probably mistakes.

A field that the client has misspelt, put into the wrong object or taken from another route would change the answer if
it were read. Fields that other servers know and that resemble none of this route's are ignored; see `receive_json`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple

from radixrt.errors import RequestError, shown
from radixrt.server.protocol.fields import ChatRequest, NativeRequest, NativeSampling
from radixrt.suggestions import similar

RENAMED = {
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "num_predict": "max_tokens",
    "n_predict": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_sequences": "stop",
    "stop": "stop_sequences",
    "sampling_seed": "seed",
    "thinking_budget": "thinking_token_budget",
}
"""Names of fields on other routes and other servers, and the names here, on routes that have a field of that name."""

NO_MISTAKES = frozenset(("images", "models", "return_tokens"))
"""Fields of other servers that resemble one of ours by chance."""

CLOSE = 0.88
"""Least similarity (`difflib`) of a misspelt name."""


MAX_NAME_CHARS = 64
"""Longer names resemble none of ours, and comparing names takes a time that grows with their lengths."""

DEFAULTS = {"best_of": (b"1", b"1.0", b"true")}
"""Values with which an unknown field changes nothing, as JSON; null is another one, for every field."""


class UnknownField(NamedTuple):
    """Field of a body that its route does not know.

    Attributes:
        path: of the field in the body.
        owner: Struct of the object that has the field.
        value: JSON of the value.
    """

    path: str
    name: str
    owner: type
    value: bytes


def check_mistake(field: UnknownField) -> None:
    """Refuse an unknown field that is probably a mistake.

    Raises:
        RequestError: names the field and the field that was meant.
    """
    if field.value == b"null" or field.value in DEFAULTS.get(field.name, ()) or len(field.name) > MAX_NAME_CHARS:
        return
    fix = _fix(field.name, field.owner)
    if fix is not None:
        message = f"there is no field {shown(field.path)} here; {fix}"
        raise RequestError(message, param=field.path, code="unknown_parameter")


@lru_cache(1024)
def _fix(name: str, kind: type) -> str | None:
    """Return what to write in place of a name; None if it resembles none. Clients repeat the names of their fields."""
    known = _names(kind)
    if kind is ChatRequest and name == "best_of":
        return "best_of is a field of /v1/completions; n asks for several answers, all of which are returned"
    if kind is NativeRequest and name in _names(NativeSampling):
        return f"{name} is a field of the object sampling_params"
    if (renamed := RENAMED.get(name)) in known:
        return f"it is called {renamed}"
    if name in NO_MISTAKES or len(name) < 4:
        return None
    plain = {_plain(each): each for each in known}
    meant = plain.get(_plain(name)) or similar(name, known, cutoff=CLOSE)
    if meant is None and kind is NativeRequest:
        meant = similar(name, _names(NativeSampling), cutoff=CLOSE)
        meant = None if meant is None else f"sampling_params.{meant}"
    return None if meant is None else f"did you mean {meant}?"


def _plain(name: str) -> str:
    """Return a name without the differences between snake_case, camelCase and the like."""
    return "".join(char for char in name.lower() if char.isalnum())


def _names(kind: Any) -> Collection[str]:
    names: tuple[str, ...] = kind.__struct_fields__
    return names
