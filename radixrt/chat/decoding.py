"""Errors of JSON decoding as `RequestError`s that name the field at fault."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import msgspec
import msgspec.inspect

from radixrt.chat.json_limits import check_json
from radixrt.errors import RequestError

DECODING_ERRORS = (ValueError, RecursionError)
"""Errors of msgspec decoders; a ValueError is also Python's error for an integer of too many digits."""

MAX_PATH_CHARS = 200
MAX_MESSAGE_CHARS = 500

_PATH = re.compile(r"`\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_NO_MEMBER = "Invalid enum value "
_STEP = re.compile(r"\.?([^.\[\]]+)|\[[^\]]*\]")
_UNKNOWN = re.compile(r"contains unknown field `([^`]*)`")


def decode_text(text: str, field: str) -> Any:
    """Decode the JSON text that a field holds as a string.

    Raises:
        RequestError: it is not JSON, or is beyond the limits of JSON; names the field.
    """
    try:
        check_json(text.encode())
        return msgspec.json.decode(text)
    except RequestError as error:
        raise RequestError(f"{field}: {error.message}", param=field, code=error.code) from None
    except DECODING_ERRORS as error:
        raise RequestError(f"{field} is not JSON: {error}", param=field, code="invalid_json") from None


def decoding_error(body: bytes, error: Exception, wanted: Any = Any) -> RequestError:
    """The error for a body that a msgspec decoder refused.

    Args:
        error: one of `DECODING_ERRORS`, as the decoder raised it.
        wanted: the decoder's type, whose fields of few allowed values are named with these.

    Returns:
        An error with status 400, whose `param` is the path of the field, e.g. "messages[2].content".
    """
    if isinstance(error, msgspec.ValidationError):
        return _wrong_type(str(error), wanted)
    if isinstance(error, RecursionError):
        return RequestError("the body is nested too deeply", code="invalid_json")
    if isinstance(error, UnicodeDecodeError):
        return RequestError(f"the body is not valid UTF-8: {error.reason}", code="invalid_utf8")
    return _malformed(body, str(error))


def _wrong_type(message: str, wanted: Any) -> RequestError:
    if len(message) > MAX_MESSAGE_CHARS:  # it repeats a value
        message = f"{message[:MAX_MESSAGE_CHARS]}... {message[-MAX_PATH_CHARS:]}"
    found = _PATH.search(message)
    param = found.group(1) if found else ""
    missing = _MISSING.search(message)
    if missing:
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return RequestError(f"{param} is required", param=param, code="missing_field")
    unknown = _UNKNOWN.search(message)
    if unknown:
        name = f"{param}.{unknown.group(1)}"[:MAX_PATH_CHARS] if param else unknown.group(1)[:MAX_PATH_CHARS]
        return RequestError(f"{name} is not a known field; leave it out", param=name, code="unknown_field")
    what = message.split(" - at ")[0].replace("`", "")
    if not param:
        return RequestError(f"the body: {what}", code="invalid_type")
    if what.startswith(_NO_MEMBER) and (allowed := allowed_values(wanted, param)):
        what = f"must be {' or '.join(json.dumps(value) for value in allowed)}, not {what.removeprefix(_NO_MEMBER)}"
        return RequestError(f"{param} {what}", param=param, code="invalid_type")
    return RequestError(f"{param}: {what}", param=param, code="invalid_type")


def allowed_values(wanted: Any, path: str) -> list[str | int]:
    """Return the values that a field of few allowed values may have, in order; empty for any other field.

    Args:
        wanted: a type that msgspec decodes.
        path: of the field, as in msgspec's messages, e.g. "messages[...].role".
    """
    types = [_type_info(wanted)]
    for step in _STEP.finditer(path):
        types = [inner for each in types for inner in _inside(each, step.group(1))]
    values = {value for each in types if isinstance(each, msgspec.inspect.LiteralType) for value in each.values}
    return sorted((value for value in values if value is not None), key=str)


@functools.lru_cache(maxsize=64)
def _type_info(wanted: Any) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(wanted)


def _inside(outer: msgspec.inspect.Type, name: str | None) -> list[msgspec.inspect.Type]:
    """Return the types that a field of an object, or with None the items of an array, may have."""
    found: list[msgspec.inspect.Type] = []
    if isinstance(outer, msgspec.inspect.UnionType):
        return [inner for each in outer.types for inner in _inside(each, name)]
    if isinstance(outer, msgspec.inspect.StructType):
        found = [field.type for field in outer.fields if field.encode_name == name]
    elif isinstance(outer, msgspec.inspect.ListType) and name is None:
        found = [outer.item_type]
    return [
        each for inner in found for each in (inner.types if isinstance(inner, msgspec.inspect.UnionType) else (inner,))
    ]


class _NonFinite:
    def __init__(self, literal: str) -> None:
        self.literal = literal


def _malformed(body: bytes, message: str) -> RequestError:
    """Explain why msgspec refused the body. Python's slower parser accepts NaN, Infinity and halves of surrogate pairs,
    none of which is JSON in UTF-8, and so finds the field that holds one."""
    try:
        value = json.loads(body.decode(), parse_constant=_NonFinite)
    except UnicodeDecodeError as error:
        return RequestError(f"the body is not valid UTF-8: {error.reason}", code="invalid_utf8")
    except RecursionError:
        return RequestError("the body is nested too deeply", code="invalid_json")
    except ValueError as error:
        return RequestError(f"the body is not valid JSON: {error}", code="invalid_json")
    found = _find_refused(value)
    if found is None:
        return RequestError(f"the body is not valid JSON: {message}", code="invalid_json")
    path, why = found
    return RequestError(f"{path or 'the body'}: {why}", param=path or None, code="invalid_json")


_SURROGATE = re.compile("[\ud800-\udfff]")

_Place = tuple["_Place", str | int] | None
"""Place of a value: the place of the enclosing object or array, and the key of the value in it; None for the whole
body."""


def _find_refused(value: Any) -> tuple[str, str] | None:
    """The path of a value that is no JSON, and the reason; None if there is none."""
    stack: list[tuple[_Place, Any]] = [(None, value)]
    while stack:
        place, item = stack.pop()
        if isinstance(item, _NonFinite):
            return _path(place), f"{item.literal} is not a JSON number"
        if isinstance(item, str) and (half := _SURROGATE.search(item)) is not None:
            return _path(place), (
                f"\\u{ord(half[0]):04x} is half of a surrogate pair and no character; texts that were cut between the "
                "two halves have one (replace it with U+FFFD or leave it out)"
            )
        if isinstance(item, dict):
            stack.extend(((place, key), child) for key, child in item.items() if _is_suspect(child))
        elif isinstance(item, list):
            stack.extend(((place, i), child) for i, child in enumerate(item) if _is_suspect(child))
    return None


def _is_suspect(value: Any) -> bool:
    return isinstance(value, (_NonFinite, dict, list)) or (isinstance(value, str) and bool(_SURROGATE.search(value)))


def _path(place: _Place) -> str:
    """The path of a place, of which the end is left out if it is long."""
    keys: list[str] = []
    while place is not None:
        place, key = place
        keys.append(f"[{key}]" if isinstance(key, int) else f".{key[:MAX_PATH_CHARS]}")
    path = "".join(reversed(keys)).removeprefix(".")
    return path if len(path) <= MAX_PATH_CHARS else path[:MAX_PATH_CHARS] + "..."
