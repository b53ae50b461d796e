"""Unicode properties of ECMA-262's `\\p{...}`: general categories, scripts and binary properties.

`unicode.bin` holds the sets, which `tests/constrained/regex/unicode_tables.py` makes.
"""

from __future__ import annotations

import json
import zlib
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from radixrt.constrained.regex.charset import EVERY, NONE, CharSet

_TABLES: Final = Path(__file__).with_name("unicode.bin")
_LONG_NAMES: Final = {
    "Letter": "L", "Cased_Letter": "LC", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M", "Combining_Mark": "M", "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc", "Enclosing_Mark": "Me", "Number": "N", "Decimal_Number": "Nd", "digit": "Nd",
    "Letter_Number": "Nl", "Other_Number": "No", "Punctuation": "P", "punct": "P", "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd", "Open_Punctuation": "Ps", "Close_Punctuation": "Pe", "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf", "Other_Punctuation": "Po", "Symbol": "S", "Math_Symbol": "Sm", "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk", "Other_Symbol": "So", "Separator": "Z", "Space_Separator": "Zs", "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp", "Other": "C", "Control": "Cc", "cntrl": "Cc", "Format": "Cf", "Private_Use": "Co",
    "Unassigned": "Cn",
}  # fmt: skip
_KINDS: Final = {
    "General_Category": "gc", "gc": "gc", "Script": "sc", "sc": "sc", "Script_Extensions": "scx", "scx": "scx",
}  # fmt: skip
_OWN: Final = ("Stable", "PythonWord", "RustWord", "AnyWord")
"""Sets of the file that are no properties."""
_CATEGORY_CLASSES: Final = "LMNPSZC"


@cache
def _tables() -> tuple[dict[str, int], list[str]]:
    """The number of each property's set, and of each set the differences between its edges, as text."""
    tables = json.loads(zlib.decompress(_TABLES.read_bytes()))
    return tables["names"], tables["deltas"]


@lru_cache(maxsize=256)
def _stored(name: str) -> CharSet | None:
    """The set under a name of the file."""
    names, deltas = _tables()
    number = names.get(name)
    if number is None:
        return None
    edges: list[int] = []
    at = 0
    for delta in deltas[number].split():
        at += int(delta)
        edges.append(at)
    return CharSet.ranges((first, last - 1) for first, last in zip(edges[::2], edges[1::2]))


@lru_cache(maxsize=256)
def unicode_property(expression: str) -> CharSet | None:
    """Return the set of `\\p{expression}`, or None if ECMA-262 has no such property."""
    name, equals, value = expression.partition("=")
    if equals:
        kind = _KINDS.get(name)
        if kind is None:
            return None
        return _category(value) if kind == "gc" else _stored(f"{kind}={value}")
    if name == "Any":
        return EVERY
    if name == "ASCII":
        return CharSet.span(0, 127)
    if name == "Assigned":
        return EVERY - category("Cn")
    found = _category(name)
    return _stored(name) if found is None and name not in _OWN else found


def _category(name: str) -> CharSet | None:
    """The set of a general category by its short or long name."""
    short = _LONG_NAMES.get(name, name)
    if short == "LC":
        return category("Lu") | category("Ll") | category("Lt")
    if len(short) == 1 and short in _CATEGORY_CLASSES:
        return category(short)
    return _stored(f"gc={short}")


@cache
def category(short: str) -> CharSet:
    """Return the set of a general category, such as Nd, or of a class of them, such as L."""
    names, _ = _tables()
    joined = NONE
    for name in names:
        if name.startswith("gc=" + short):
            found = _stored(name)
            assert found is not None
            joined = joined | found
    return joined


@cache
def binary(name: str) -> CharSet:
    """Return the set of a binary property, or another set of the file, that certainly exists."""
    found = _stored(name)
    assert found is not None
    return found


@cache
def recent() -> CharSet:
    """Return the characters that older tables of Unicode do not know, those that are not assigned included."""
    return EVERY - binary("Stable")
