"""`check_mistake`: refuses fields of a body that its route does not know and that are probably mistakes.

A field that the client has misspelt, put into the wrong object or taken from another route would change the answer if
it were read. Fields that other servers know and that resemble none of this route's are ignored; see `receive_json`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

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


def check_mistake(path: str, body: bytes, kind: type) -> None:
    """Refuse an unknown field that is probably a mistake.

    Args:
        path: of a field of the body that `kind`, its Struct, does not have.

    Raises:
        RequestError: names the field and the field that was meant.
    """
    outer, _, name = path.rpartition(".")
    fix = _fix(name, NativeSampling if outer == "sampling_params" else kind)
    if fix is None:
        return
    value: Any = msgspec.json.decode(body)
    for key in filter(None, (outer, name)):
        value = value[key]
    if value is None or (name, value) == ("best_of", 1):
        return  # what the field means by default
    raise RequestError(f"there is no field {shown(path)} here; {fix}", param=path, code="unknown_parameter")


def _fix(name: str, kind: type) -> str | None:
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
