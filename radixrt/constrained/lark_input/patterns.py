"""Regular expressions of Lark grammars, which llguidance reads as Rust's crate `regex` does, in ECMA-262's syntax."""

from __future__ import annotations

import re
from typing import Final

from radixrt.constrained.lark_input.syntax import NotTranslated
from radixrt.constrained.regex import Regex, RegexError, parse_regex

_CIRCLED: Final = r"\u24b6-\u24e9\u{1f130}-\u{1f149}\u{1f150}-\u{1f169}\u{1f170}-\u{1f189}"
_CLASSES: Final = {
    "d": r"\p{Nd}",
    "s": r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000",
    "w": rf"\p{{L}}\p{{M}}\p{{Nl}}\p{{Nd}}\p{{Pc}}\u200c\u200d{_CIRCLED}",
}
"""Members of the classes that Rust reads over all of Unicode and ECMA-262 otherwise."""
_PIECES: Final = re.compile(r"\\(.)|\(\?(?!:)|\[\[|&&|[\[\].^$]|--|~~", re.DOTALL)


def read_pattern(pattern: str, flags: str) -> Regex:
    """The texts that a pattern matches as a whole.

    Raises:
        NotTranslated: it is malformed, or has no translation.
    """
    if flags == "range":
        return parse_regex(pattern, search=False, mode="ecma")
    for flag in flags:
        if flag not in "su":
            raise NotTranslated(f"the flag {flag} of a regular expression is not translated")
    try:
        return parse_regex(_translated(pattern, "s" in flags), search=False, mode="ecma")
    except RegexError as error:
        raise NotTranslated(f"/{pattern[:80]}/: {error}") from None


def _translated(pattern: str, dot_takes_all: bool) -> str:
    made: list[str] = []
    at = 0
    in_class = False
    for found in _PIECES.finditer(pattern):
        made.append(pattern[at : found.start()])
        at = found.end()
        text, escaped = found[0], found[1]
        if escaped is not None:
            made.append(_escape(escaped, in_class))
        elif in_class and text in (".", "$", "^", "["):
            made.append("\\[" if text == "[" else text)
        elif text == "[":
            in_class = True
            made.append(text)
        elif text == "]":
            in_class = False
            made.append(text)
        elif text == ".":
            made.append(r"[\s\S]" if dot_takes_all else r"[^\n]")
        elif text in ("--", "~~", "&&") and not in_class:
            made.append(text)
        else:
            raise NotTranslated(f"{text!r} in /{pattern[:80]}/ is not translated")
    return "".join(made) + pattern[at:]


def _escape(letter: str, in_class: bool) -> str:
    if letter.lower() in _CLASSES:
        members = _CLASSES[letter.lower()]
        if letter.islower():
            return members if in_class else f"[{members}]"
        if in_class:
            raise NotTranslated(f"\\{letter} in a class is not translated")
        return f"[^{members}]"
    if letter.isalnum() and letter not in "nrtfvxup":
        raise NotTranslated(f"\\{letter} in a regular expression is not translated")
    return "/" if letter == "/" else f"\\{letter}"
