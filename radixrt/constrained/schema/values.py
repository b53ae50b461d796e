"""JSON values: types as bits, equality as JSON Schema defines it, exact decimals, and canonical text."""

from __future__ import annotations

import math
from collections.abc import Hashable
from decimal import Decimal
from json import JSONEncoder
from json.encoder import encode_basestring
from typing import Any

NULL, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT = 1, 2, 4, 8, 16, 32
ALL = NULL | BOOLEAN | NUMBER | STRING | ARRAY | OBJECT

TYPE_BITS = {
    "null": NULL,
    "boolean": BOOLEAN,
    "number": NUMBER,
    "integer": NUMBER,
    "string": STRING,
    "array": ARRAY,
    "object": OBJECT,
}
_ENCODER = JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_BY_CLASS = {
    type(None): NULL,
    bool: BOOLEAN,
    int: NUMBER,
    float: NUMBER,
    str: STRING,
    list: ARRAY,
    dict: OBJECT,
}


def type_of(value: Any) -> int:
    """Return the type bit of a JSON value."""
    return _BY_CLASS[type(value)]


def is_number(value: Any) -> bool:
    """Return whether the value is a finite JSON number, which a Python bool is not."""
    kind = type(value)
    return kind is int or (kind is float and math.isfinite(value))


def is_integer(value: Any) -> bool:
    """Return whether the value is a JSON number without a fractional part, such as 1 or 1.0."""
    kind = type(value)
    return kind is int or (kind is float and value.is_integer())


def decimal_of(number: int | float) -> Decimal:
    """Return the exact decimal of a number; a float stands for its shortest decimal form."""
    return Decimal(number) if type(number) is int else Decimal(repr(number))


def key(value: Any) -> Hashable:
    """Return a key that is equal for two values exactly if JSON Schema calls them equal: 1 and 1.0, not 1 and true.

    Raises:
        TypeError: the value is not JSON.
    """
    kind = type(value)
    if kind is str or value is None:
        return value  # type: ignore[no-any-return]
    if kind is bool:
        return ("bool", value)
    if kind is int:
        return ("number", value)
    if kind is float:
        return ("number", int(value) if value.is_integer() else value)
    if kind is list:
        return ("array", tuple(key(item) for item in value))
    if kind is not dict:
        raise TypeError(f"{kind} is no JSON type")
    return ("object", frozenset((name, key(member)) for name, member in value.items()))


def text_of(value: Any) -> str:
    """Return the compact JSON text of a value, with strings escaped as the grammars escape them."""
    return encode_basestring(value) if type(value) is str else _ENCODER.encode(value)


def number_texts(number: int | float) -> list[str]:
    """Return every text that a grammar generates for a number: Python's repr and the plain decimal."""
    if type(number) is int:
        return [str(number)]
    written = repr(number)
    plain = format(Decimal(written), "f")
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".")
    if plain == "-0":
        return ["0"]
    return [plain] if plain == written else [plain, written]


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can encode the text, that is, whether it has no lone surrogate."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True
