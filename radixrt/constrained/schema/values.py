"""JSON values: their types as bits, equality as JSON Schema has it, exact numbers, and their one spelling as text."""

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
    """The type bit of a JSON value."""
    return _BY_CLASS[type(value)]


def is_number(value: Any) -> bool:
    """A finite JSON number (a Python bool is none)."""
    kind = type(value)
    return kind is int or (kind is float and math.isfinite(value))


def is_integer(value: Any) -> bool:
    """A JSON number without a fractional part, however it is written."""
    kind = type(value)
    return kind is int or (kind is float and value.is_integer())


def decimal_of(number: int | float) -> Decimal:
    """The number as it was written: a float stands for its shortest decimal form, an int is exact."""
    return Decimal(number) if type(number) is int else Decimal(repr(number))


def key(value: Any) -> Hashable:
    """Equal for two values exactly if JSON Schema calls them equal (1 and 1.0 are, 1 and true are not).

    Raises:
        TypeError: it is not JSON.
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
    """The compact text of a value; strings in the one spelling that this package generates."""
    return encode_basestring(value) if type(value) is str else _ENCODER.encode(value)


def number_texts(number: int | float) -> list[str]:
    """Every spelling of a number that is generated for it: as Python writes it, and the plain decimal."""
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
    """Whether UTF-8 can write it, that is, whether it has no lone surrogate."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True
