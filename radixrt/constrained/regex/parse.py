"""ECMA-262 patterns, as the flag u reads them, parsed into regular languages.

Groups are kept on an explicit stack, so that deep nesting meets a limit and causes no crash. The standard refuses some
forms that engines without the flag accept and many patterns contain (a brace that counts nothing, `\\-` outside of a
class); there the character is read literally.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from radixrt.constrained.regex.algebra import chars, literal, repeat
from radixrt.constrained.regex.assertions import End, Look, Loop, RegexError, Start, Tree, choice, resolve, sequence
from radixrt.constrained.regex.charset import (
    BACKSLASH,
    DOT,
    EVERY,
    NONE,
    WORD,
    CharSet,
    ignoring_case,
    unicode_property,
)
from radixrt.constrained.regex.nodes import MAX_DEPTH, Regex, RegexTooComplex

MAX_PATTERN: Final = 10_000
MAX_GROUP_DEPTH: Final = 200
MAX_COUNT: Final = 10**9


@lru_cache(maxsize=512)
def parse_regex(pattern: str, *, search: bool) -> Regex:
    """Return the texts that a pattern matches, according to ECMA-262 with the flag u.

    Args:
        pattern: at most 10,000 characters.
        search: True: texts in which the pattern is found somewhere (the `pattern` of JSON Schema); False: texts that
            it matches as a whole.

    Raises:
        RegexError: the pattern cannot be parsed or is not regular; names the position.
    """
    if len(pattern) > MAX_PATTERN:
        raise RegexError(f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN} are taken", MAX_PATTERN)
    try:
        return read_pattern(pattern, search=search)
    except RegexTooComplex as error:
        raise RegexError(str(error), 0) from None


def read_pattern(pattern: str, *, search: bool) -> Regex:
    """`parse_regex` for a pattern of any length."""
    made = resolve(_Parser(pattern).parse(), search=search)
    if made.depth > MAX_DEPTH // 2:
        raise RegexError("repetitions and alternatives are nested too deep", 0)
    return made


@dataclass(slots=True)
class _Group:
    """A group that is still open: its alternatives so far and the sequence being read."""

    opened_at: int
    kind: str
    ignore_case: bool
    dot: CharSet
    options: list[Tree] = field(default_factory=list)
    parts: list[Tree] = field(default_factory=list)

    def end_option(self) -> None:
        self.options.append(sequence(self.parts))
        self.parts = []


class _Parser:
    """Parses one pattern, once."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.groups = [_Group(0, "", False, DOT)]

    def parse(self) -> Tree:
        pattern = self.pattern
        while self.at < len(pattern):
            char = pattern[self.at]
            group = self.groups[-1]
            if char == "|":
                self.at += 1
                group.end_option()
            elif char == "(":
                self._open_group()
            elif char == ")":
                self._close_group()
            elif char == "^":
                self.at += 1
                group.parts.append(Start())
            elif char == "$":
                self.at += 1
                group.parts.append(End())
            else:
                start = self.at
                atom = self._atom(char, group)
                group.parts.append(self._quantified(atom, start))
        if len(self.groups) > 1:
            raise RegexError("this group is never closed; add a ')'", self.groups[-1].opened_at)
        group = self.groups[0]
        group.end_option()
        return choice(group.options)

    def _open_group(self) -> None:
        pattern, at = self.pattern, self.at
        outer = self.groups[-1]
        if len(self.groups) > MAX_GROUP_DEPTH:
            raise RegexError(f"groups are nested more than {MAX_GROUP_DEPTH} deep", at)
        group = _Group(at, "(", outer.ignore_case, outer.dot)
        self.at += 1
        if pattern.startswith("?", self.at):
            self._group_kind(group)
            if not group.kind:
                return
        self.groups.append(group)

    def _group_kind(self, group: _Group) -> None:
        """Read the kind of a group after `(?`. A group of kind "" only sets flags and has no content."""
        pattern, at = self.pattern, self.at
        for opening, kind in (("?:", "("), ("?=", "="), ("?!", "!")):
            if pattern.startswith(opening, at):
                group.kind = kind
                self.at = at + len(opening)
                return
        if pattern.startswith(("?<=", "?<!"), at):
            raise RegexError("lookbehind is not supported; say what precedes as part of the pattern", group.opened_at)
        name_at = at + 3 if pattern.startswith("?P<", at) else at + 2 if pattern.startswith("?<", at) else 0
        if name_at:
            end = pattern.find(">", name_at)
            if end < 0 or not pattern[name_at:end].isidentifier():
                raise RegexError("a group name must be a word that ends in '>'", name_at)
            self.at = end + 1
            return
        self._flags(group)

    def _flags(self, group: _Group) -> None:
        """`(?i:...)` and, at the very start, `(?i)`: flags i and s, which may also be switched off."""
        pattern, opened_at = self.pattern, group.opened_at
        end = self.at + 1
        on = True
        while end < len(pattern) and pattern[end] in "is-":
            if pattern[end] == "-":
                on = False
            elif pattern[end] == "i":
                group.ignore_case = on
            else:
                group.dot = EVERY if on else DOT
            end += 1
        closing = pattern[end : end + 1]
        if closing == ":":
            self.at = end + 1
        elif closing == ")" and opened_at == 0 and end > self.at + 1:
            self.groups[0].ignore_case, self.groups[0].dot = group.ignore_case, group.dot
            group.kind = ""
            self.at = end + 1
        else:
            raise RegexError("this kind of group is not supported; use (...), (?:...), (?=...), (?!...)", opened_at)

    def _close_group(self) -> None:
        if len(self.groups) == 1:
            raise RegexError("there is no group to close here; write '\\)' for a parenthesis", self.at)
        group = self.groups.pop()
        group.end_option()
        self.at += 1
        inner = choice(group.options)
        outer = self.groups[-1].parts
        if group.kind == "(":
            outer.append(self._quantified(inner, group.opened_at))
        else:
            outer.append(Look(inner, group.kind == "!", group.opened_at))
            if self._quantifier() is not None:
                raise RegexError("a lookahead cannot be repeated", group.opened_at)

    def _quantified(self, item: Tree, position: int) -> Tree:
        counts = self._quantifier()
        if counts is None:
            return item
        low, high = counts
        if self._quantifier() is not None:
            raise RegexError("two repetition marks in a row; use a group", self.at - 1)
        return repeat(item, low, high) if isinstance(item, Regex) else Loop(item, low, high, position)

    def _quantifier(self) -> tuple[int, int | None] | None:
        """Read `*`, `+`, `?` or `{m,n}`. A `?` after the quantifier (lazy) is skipped, because the matched texts are
        the same."""
        pattern, at = self.pattern, self.at
        mark = pattern[at : at + 1]
        if mark == "{":
            counts = self._counts()
            if counts is None:
                return None
        elif mark and mark in "*+?":
            self.at += 1
            counts = (1 if mark == "+" else 0, 1 if mark == "?" else None)
        else:
            return None
        if pattern.startswith("?", self.at):
            self.at += 1
        return counts

    def _counts(self) -> tuple[int, int | None] | None:
        """`{m}`, `{m,}` or `{m,n}`; None where the brace is a character."""
        pattern, at = self.pattern, self.at
        end = pattern.find("}", at, at + 64)
        low, comma, high = pattern[at + 1 : end].partition(",") if end > 0 else ("", "", "")
        if comma and not low and (not high or _is_number(high)):
            raise RegexError(f"write {{0,{high}}}: a repetition without a lower bound means different things", at)
        if not _is_number(low) or (high and not _is_number(high)):
            return None
        self.at = end + 1
        fewest = int(low)
        most = None if comma and not high else int(high or low)
        if most is not None and most < fewest:
            raise RegexError("the bounds of this repetition are out of order", at)
        if max(fewest, most or 0) > MAX_COUNT:
            raise RegexError(f"a repetition of more than {MAX_COUNT} times is not supported", at)
        return fewest, most

    def _atom(self, char: str, group: _Group) -> Regex:
        at = self.at
        if char in "*+?" or (char == "{" and self._counts() is not None):
            raise RegexError("there is nothing to repeat here; write a backslash before it for the character", at)
        self.at += 1
        if char == ".":
            return chars(group.dot)
        if char == "[":
            return chars(self._class(group.ignore_case))
        if char == "\\":
            found = self._escape(group.ignore_case, in_class=False)
        elif "\ud800" <= char <= "\udfff":
            found = NONE
        elif group.ignore_case:
            found = CharSet.of(char)
        else:
            return literal(char)
        return chars(ignoring_case(found) if group.ignore_case else found)

    def _class(self, ignore_case: bool) -> CharSet:
        """`[...]`, read from behind its bracket."""
        pattern, opened_at = self.pattern, self.at - 1
        negative = pattern.startswith("^", self.at)
        self.at += negative
        pairs: list[tuple[int, int]] = []
        while True:
            if self.at >= len(pattern):
                raise RegexError("this character class is never closed; add a ']'", opened_at)
            if pattern[self.at] == "]":
                break
            start = self.at
            left = self._class_atom(ignore_case)
            if pattern.startswith("-", self.at) and self.at + 1 < len(pattern) and pattern[self.at + 1] != "]":
                after_dash = self.at
                self.at += 1
                right = self._class_atom(ignore_case)
                if len(left) == 1 and len(right) == 1:
                    first, last = left.edges[0], right.edges[0]
                    if first > last:
                        raise RegexError("the range in this character class is out of order", start)
                    pairs.append((first, last))
                    continue
                self.at = after_dash + 1
                pairs.append((45, 45))
            pairs += left.pairs()
        self.at += 1
        joined = CharSet.ranges(pairs)
        if ignore_case:
            joined = ignoring_case(joined)
        return EVERY - joined if negative else joined

    def _class_atom(self, ignore_case: bool) -> CharSet:
        char = self.pattern[self.at]
        self.at += 1
        if char == "\\":
            return self._escape(ignore_case, in_class=True)
        return NONE if "\ud800" <= char <= "\udfff" else CharSet.of(char)

    def _escape(self, ignore_case: bool, *, in_class: bool) -> CharSet:
        """The characters that a backslash escape stands for."""
        pattern, at = self.pattern, self.at - 1
        char = pattern[self.at : self.at + 1]
        self.at += 1
        if char == "W" and ignore_case:
            return EVERY - ignoring_case(WORD)
        if char in BACKSLASH:
            return BACKSLASH[char]
        simple = _CONTROL.get(char)
        if simple is not None:
            return CharSet.of(simple)
        if char in "xu" and char:
            return self._code_point(char, at)
        if char in "pP" and char:
            return self._property(char == "P", at)
        if char == "c" and pattern[self.at : self.at + 1].isascii() and pattern[self.at : self.at + 1].isalpha():
            self.at += 1
            return CharSet.of(chr(ord(pattern[self.at - 1]) % 32))
        if char == "0" and not pattern[self.at : self.at + 1].isdigit():
            return CharSet.of("\0")
        if char == "b" and in_class:
            return CharSet.of("\b")
        _check_escaped(char, at, in_class)
        return CharSet.of(char)

    def _code_point(self, kind: str, at: int) -> CharSet:
        """`\\xHH`, `\\uHHHH`, `\\u{H...}` and surrogate pairs; a lone surrogate is in no text."""
        if kind == "u" and self.pattern.startswith("{", self.at):
            end = self.pattern.find("}", self.at)
            point = _hexadecimal(self.pattern[self.at + 1 : end], at) if end > 0 else -1
            self.at = end + 1
        else:
            size = 2 if kind == "x" else 4
            digits = self.pattern[self.at : self.at + size]
            point = _hexadecimal(digits, at) if len(digits) == size else -1
            self.at += size
            if 0xD800 <= point < 0xDC00 and self.pattern.startswith("\\u", self.at):
                low = self.pattern[self.at + 2 : self.at + 6]
                if len(low) == 4 and 0xDC00 <= _hexadecimal(low, at) <= 0xDFFF:
                    self.at += 6
                    point = 0x10000 + ((point - 0xD800) << 10) + int(low, 16) - 0xDC00
        if not 0 <= point <= 0x10FFFF:
            raise RegexError("this escape needs the hexadecimal digits of a code point", at)
        return CharSet.ranges([(point, point)])

    def _property(self, negative: bool, at: int) -> CharSet:
        end = self.pattern.find("}", self.at)
        if not self.pattern.startswith("{", self.at) or end < 0:
            raise RegexError("write the property in braces, as in \\p{L}", at)
        found = unicode_property(self.pattern[self.at + 1 : end])
        if found is None:
            raise RegexError("this Unicode property is not supported; general categories such as \\p{Lu} are", at)
        self.at = end + 1
        return EVERY - found if negative else found


_CONTROL: Final = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}


def _check_escaped(char: str, position: int, in_class: bool) -> None:
    """Refuse a backslash before a letter or digit if the escape has no meaning, or a meaning that is not regular."""
    if not char:
        raise RegexError("the pattern ends in a single backslash", position)
    if char.isascii() and char.isalnum():
        if char in "bB" and not in_class:
            raise RegexError("word boundaries are not supported; say which characters may stand there", position)
        if char in "123456789k":
            raise RegexError("references to groups are not supported: no regular language has them", position)
        if char in "AzZ":
            raise RegexError(f"\\{char} is not an anchor of ECMA-262; use ^ and $", position)
        raise RegexError(f"\\{char} is not an escape of ECMA-262", position)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _hexadecimal(digits: str, position: int) -> int:
    if not digits or len(digits) > 8 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
        raise RegexError("this escape needs the hexadecimal digits of a code point", position)
    return int(digits, 16)
