"""Named character classes of ECMA-262 patterns: backslash classes, Unicode general categories, letter case."""

from __future__ import annotations

import unicodedata
from functools import cache, lru_cache
from itertools import groupby
from typing import Final

from radixrt.constrained.regex.charset import DIGITS, EVERY, NONE, CharSet

WORD: Final = CharSet.ranges([(48, 57), (65, 90), (95, 95), (97, 122)])
LINE_TERMINATORS: Final = CharSet.of("\n\r\u2028\u2029")
SPACE: Final = CharSet.of("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff") | CharSet.span(0x2000, 0x200A)
DOT: Final = EVERY - LINE_TERMINATORS
BACKSLASH: Final = {
    "d": DIGITS,
    "D": EVERY - DIGITS,
    "w": WORD,
    "W": EVERY - WORD,
    "s": SPACE,
    "S": EVERY - SPACE,
}

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
_UNASSIGNED_PLANES: Final = (0x40000, 0xDFFFF)
_PRIVATE_PLANES: Final = [(0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)]


@cache
def _categories() -> dict[str, CharSet]:
    """The set of each two-letter general category, from the tables of Python's `unicodedata`."""
    ranges: dict[str, list[tuple[int, int]]] = {"Cn": [_UNASSIGNED_PLANES], "Co": list(_PRIVATE_PLANES)}
    for first, last in ((0, 0xD7FF), (0xE000, _UNASSIGNED_PLANES[0] - 1), (_UNASSIGNED_PLANES[1] + 1, 0xEFFFF)):
        at = first
        for category, run in groupby(map(unicodedata.category, map(chr, range(first, last + 1)))):
            size = sum(1 for _ in run)
            ranges.setdefault(category, []).append((at, at + size - 1))
            at += size
    ranges["Cn"] += [(0xFFFFE, 0xFFFFF), (0x10FFFE, 0x10FFFF)]
    return {category: CharSet.ranges(pairs) for category, pairs in ranges.items()}


@lru_cache(maxsize=256)
def unicode_property(expression: str) -> CharSet | None:
    """What `\\p{expression}` stands for, or None if that is not a general category or another name known here."""
    name, equals, value = expression.partition("=")
    if equals:
        if name not in ("General_Category", "gc"):
            return None
        name = value
    elif name in ("Any", "ASCII", "Assigned", "ASCII_Hex_Digit", "AHex", "White_Space", "space"):
        return _binary_property(name)
    short = _LONG_NAMES.get(name, name)
    if short == "LC":
        return _categories()["Lu"] | _categories()["Ll"] | _categories()["Lt"]
    joined = NONE
    for category, charset in _categories().items():
        if category == short or (len(short) == 1 and category[0] == short):
            joined = joined | charset
    return joined if joined.edges else None


def _binary_property(name: str) -> CharSet:
    if name == "Any":
        return EVERY
    if name == "ASCII":
        return CharSet.span(0, 127)
    if name == "Assigned":
        return EVERY - _categories()["Cn"]
    if name in ("White_Space", "space"):
        return (SPACE - CharSet.of("\ufeff")) | CharSet.of("\u0085")
    return DIGITS | CharSet.of("abcdefABCDEF")


@cache
def _case_groups() -> dict[int, CharSet]:
    """For each cased character, the characters that are the same but for case (simple case folding)."""
    groups: dict[str, list[int]] = {}
    for point in range(0x1EA00):
        char = chr(point)
        folded = char.casefold()
        if len(folded) > 1:
            folded = char.lower()
        if len(folded) == 1 and folded != char:
            groups.setdefault(folded, [ord(folded)]).append(point)
    return {
        point: CharSet.ranges((member, member) for member in members)
        for members in groups.values()
        for point in members
    }


@lru_cache(maxsize=1024)
def ignoring_case(charset: CharSet) -> CharSet:
    """The set with the other cases of its characters, as ECMA-262's flags i and u together have it."""
    widened = charset
    for point, group in _case_groups().items():
        if point in charset:
            widened = widened | group
    return widened
