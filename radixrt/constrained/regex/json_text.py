"""The JSON texts of a language of string values.

Each value has one spelling: its code points unchanged, except that the quote and the backslash are escaped by a
backslash, and control characters below U+0020 by their short escape if JSON has one, otherwise by `\\u00xx` in lower
case. The spelling of a character is never the beginning of another's, so the image of an intersection is the
intersection of the images, and of a complement the valid strings that are not in the image.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from radixrt.constrained.regex.algebra import alternate, chars, concat, literal, literals, repeat
from radixrt.constrained.regex.charset import EVERY, CharSet
from radixrt.constrained.regex.derivatives import both, without
from radixrt.constrained.regex.interning import ANY
from radixrt.constrained.regex.nodes import (
    Alternate,
    Chars,
    Complement,
    Concat,
    Intersect,
    Regex,
    Repeat,
    Words,
    subterms,
)

_SHORT: Final = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_ESCAPED: Final = CharSet.span(0, 31) | CharSet.of('"\\')
UNESCAPED: Final = EVERY - _ESCAPED
"""Characters that a JSON string holds as they are."""
_SPELLINGS: Final = {ord(char): "\\" + _SHORT[char] if char in _SHORT else f"\\u00{ord(char):02x}" for char in _ESCAPED}
_QUOTE: Final = literal('"')


@lru_cache(maxsize=1024)
def json_string(value: Regex, following: str = "") -> Regex:
    """The JSON texts, quotes included, of the strings that are in value.

    Args:
        following: text after each string, such as the colon after a name.
    """
    if value is ANY:
        return _any_string(following)
    if isinstance(value, Intersect | Complement):
        positive, negative = _signed(value)
        texts = [json_string(item, following) for item in positive] or [_any_string(following)]
        return both(*texts, *[without(json_string(item, following)) for item in negative])
    return concat(_QUOTE, _body(value), literal('"' + following))


@lru_cache(maxsize=16)
def _any_string(following: str) -> Regex:
    return concat(_QUOTE, _ANY_BODY, literal('"' + following))


def without_following(texts: Regex, following: str) -> Regex | None:
    """Return the JSON texts without the text after them; None if the language is no result of `json_string`."""
    if isinstance(texts, Words) or texts.text is not None:
        words = texts.words if isinstance(texts, Words) else (texts.text or "",)
        if not all(word.endswith(following) for word in words):
            return None
        return literals([word.removesuffix(following) for word in words])
    if isinstance(texts, Concat):
        *front, last = texts.chain()
        end = without_following(last, following)
        return None if end is None else concat(*front, end)
    if isinstance(texts, Intersect):
        positive, negative = _signed(texts)
        kept = [without_following(item, following) for item in positive]
        excluded = [without_following(item, following) for item in negative]
        if kept and None not in kept and None not in excluded:
            return both(
                *[item for item in kept if item is not None], *[without(item) for item in excluded if item is not None]
            )
    return None


def _body(value: Regex) -> Regex:
    if not value.parts():
        return _spelled(value, {})
    images: dict[Regex, Regex] = {}
    for part in subterms(value):
        images[part] = _spelled(part, images)
    return images[value]


def _spelled(node: Regex, images: dict[Regex, Regex]) -> Regex:
    if isinstance(node, Chars):
        return spelled_chars(node.charset)
    if isinstance(node, Words):
        return literals([word.translate(_SPELLINGS) for word in node.words])
    if isinstance(node, Concat):
        return concat(images[node.head], images[node.tail])
    if isinstance(node, Alternate):
        return alternate(*[images[option] for option in node.options])
    if isinstance(node, Repeat):
        return repeat(images[node.item], node.low, node.high)
    if isinstance(node, Intersect | Complement):
        positive, negative = _signed(node)
        texts = [images[item] for item in positive] or [_ANY_BODY]
        return both(*texts, *[without(images[item]) for item in negative])
    return node


def _signed(node: Intersect | Complement) -> tuple[list[Regex], list[Regex]]:
    """Return the intersected languages, and the languages whose complements are intersected."""
    items = node.items if isinstance(node, Intersect) else (node,)
    positive = [item for item in items if not isinstance(item, Complement)]
    return positive, [item.item for item in items if isinstance(item, Complement)]


@lru_cache(maxsize=2048)
def spelled_chars(charset: CharSet) -> Regex:
    """The spellings of the characters of a set."""
    special = charset & _ESCAPED
    if not special.edges:
        return chars(charset)
    short = CharSet.of(_SHORT[char] for char in special if char in _SHORT)
    controls = [char for char in special if char not in _SHORT]
    codes = [
        concat(
            literal(f"u00{high}"),
            chars(CharSet.of(f"{ord(char):02x}"[1] for char in controls if ord(char) >> 4 == high)),
        )
        for high in (0, 1)
    ]
    return alternate(chars(charset - _ESCAPED), concat(literal("\\"), alternate(chars(short), *codes)))


_ANY_BODY: Final = repeat(spelled_chars(EVERY))
