"""Errors of JSON decoding as `RequestError`s that name the field at fault."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from radixrt.errors import RequestError

DECODING_ERRORS = (ValueError, RecursionError)
"""Errors of msgspec decoders; a ValueError is also Python's error for an integer of too many digits."""

_PATH = re.compile(r"`\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")


def decoding_error(body: bytes, error: Exception) -> RequestError:
    """The error for a body that a msgspec decoder refused.

    Args:
        error: one of `DECODING_ERRORS`, as the decoder raised it.

    Returns:
        An error with status 400, whose `param` is the path of the field, e.g. "messages[2].content".
    """
    if isinstance(error, msgspec.ValidationError):
        return _wrong_type(str(error))
    if isinstance(error, RecursionError):
        return RequestError("the body is nested too deeply", code="invalid_json")
    if isinstance(error, UnicodeDecodeError):
        return RequestError(f"the body is not valid UTF-8: {error.reason}", code="invalid_utf8")
    return _malformed(body, str(error))


def _wrong_type(message: str) -> RequestError:
    found = _PATH.search(message)
    param = found.group(1) if found else ""
    missing = _MISSING.search(message)
    if missing:
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return RequestError(f"{param} is required", param=param, code="missing_field")
    what = message.split(" - at ")[0].replace("`", "")
    if not param:
        return RequestError(f"the body: {what}", code="invalid_type")
    return RequestError(f"{param}: {what}", param=param, code="invalid_type")


class _NonFinite:
    def __init__(self, literal: str) -> None:
        self.literal = literal


def _malformed(body: bytes, message: str) -> RequestError:
    """Explain why msgspec refused the body. Python's slower parser accepts NaN and Infinity, which are not JSON,
    and so finds the field that holds one."""
    try:
        value = json.loads(body.decode(), parse_constant=_NonFinite)
    except UnicodeDecodeError as error:
        return RequestError(f"the body is not valid UTF-8: {error.reason}", code="invalid_utf8")
    except RecursionError:
        return RequestError("the body is nested too deeply", code="invalid_json")
    except ValueError as error:
        return RequestError(f"the body is not valid JSON: {error}", code="invalid_json")
    found = _find_non_finite(value)
    if found is None:
        return RequestError(f"the body is not valid JSON: {message}", code="invalid_json")
    path, literal = found
    return RequestError(f"{path}: {literal} is not a JSON number", param=path, code="invalid_json")


def _find_non_finite(value: Any) -> tuple[str, str] | None:
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, _NonFinite):
            return path, item.literal
        if isinstance(item, dict):
            stack.extend((f"{path}.{key}" if path else str(key), child) for key, child in item.items())
        elif isinstance(item, list):
            stack.extend((f"{path}[{i}]", child) for i, child in enumerate(item))
    return None
