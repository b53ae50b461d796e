"""ECMA-262 patterns, as the flag u reads them, parsed into regular languages.

Where Python's re or Rust's regex read a pattern otherwise, the language has the texts that all of them take, or, with
mode "wide", the texts that any of them takes (`readings`). A pattern of which the readings have nothing to do with one
another, such as `[[:alpha:]]`, is refused. A reader to which a pattern is an error does not count.

Groups are kept on an explicit stack, so that deep nesting meets a limit and causes no crash. The standard refuses some
forms that engines without the flag accept and many patterns contain (a brace that counts nothing, `\\-` outside of a
class); there the character is read literally.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from radixrt.constrained.regex.algebra import chars, concat, literal, repeat
from radixrt.constrained.regex.assertions import (
    Behind,
    End,
    Group,
    Look,
    Loop,
    Reference,
    RegexError,
    Start,
    Tree,
    choice,
    sequence,
)
from radixrt.constrained.regex.charset import EVERY, NONE, CharSet
from radixrt.constrained.regex.interning import ANY_CHAR
from radixrt.constrained.regex.nodes import MAX_DEPTH, Regex, RegexTooComplex
from radixrt.constrained.regex.readings import (
    Mode,
    Sets,
    agreed,
    backslash,
    dot,
    inverted,
    joined,
    prop,
    same,
    taken,
    without_case,
)
from radixrt.constrained.regex.references import without_references
from radixrt.constrained.regex.resolution import resolve

MAX_PATTERN: Final = 10_000
MAX_GROUP_DEPTH: Final = 200
MAX_COUNT: Final = 10**9


@lru_cache(maxsize=1024)
def parse_regex(pattern: str, *, search: bool, mode: Mode = "narrow") -> Regex:
    """Return the texts that a pattern matches.

    Args:
        pattern: at most 10,000 characters.
        mode: "narrow": the texts that it matches for ECMA-262 with the flag u, Python's re and Rust's regex; "wide":
            for any of them; "ecma": for ECMA-262 alone.
        search: True: texts in which the pattern is found somewhere (the `pattern` of JSON Schema); False: texts that
            it matches as a whole.

    Raises:
        RegexError: the pattern cannot be parsed or is not regular; names the position.
    """
    if len(pattern) > MAX_PATTERN:
        raise RegexError(f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN} are taken", MAX_PATTERN)
    try:
        return read_pattern(pattern, search=search, mode=mode)
    except RegexTooComplex as error:
        raise RegexError(str(error), 0) from None


def read_pattern(pattern: str, *, search: bool, mode: Mode = "ecma") -> Regex:
    """`parse_regex` for a pattern of any length."""
    parser = _Parser(pattern, mode)
    tree = parser.parse()
    made = resolve(without_references(tree) if parser.refers else tree, search=search)
    if made.depth > MAX_DEPTH // 2:
        raise RegexError("repetitions and alternatives are nested too deep", 0)
    return made


@dataclass(slots=True)
class _Group:
    """A group that is still open: its alternatives so far and the sequence being read.

    Attributes:
        kind: "(", or for a lookaround "=", "!", "<=" or "<!"; "" sets flags only.
        ignore_case, dot_all: the flags i and s.
        mode: the mode of the parser, inverted inside of a negative lookaround.
        number: of a group that can be referred to; else 0.
    """

    opened_at: int
    kind: str
    ignore_case: bool
    dot_all: bool
    mode: Mode
    number: int = 0
    options: list[Tree] = field(default_factory=list)
    parts: list[Tree] = field(default_factory=list)

    def end_option(self) -> None:
        self.options.append(sequence(self.parts))
        self.parts = []


class _Parser:
    """Parses one pattern, once.

    Attributes:
        refers: the pattern may have references to groups.
    """

    def __init__(self, pattern: str, mode: Mode) -> None:
        self.pattern = pattern
        self.at = 0
        self.groups = [_Group(0, "", False, False, mode)]
        self.refers = _MAY_REFER.search(pattern) is not None
        self._num_groups = 0
        self._names: dict[str, int] = {}
        self._ended: set[int] = set()

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
                group.parts.append(End(newline=group.mode == "wide"))
            elif char == "\\" and pattern[self.at + 1 : self.at + 2] in _ASSERTIONS:
                self._assertion(group)
            elif char == "\\" and (found := _REFERENCE.match(pattern, self.at)) is not None and not self._is_octal():
                start, self.at = self.at, found.end()
                self._refer(group, found[1] or found[2], start)
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
        group = _Group(at, "(", outer.ignore_case, outer.dot_all, outer.mode)
        self.at += 1
        if pattern.startswith("?P=", self.at):
            end = pattern.find(")", self.at)
            name, self.at = pattern[self.at + 3 : max(end, self.at)], max(end, self.at) + 1
            self._refer(outer, name, at)
            return
        if not pattern.startswith("?", self.at):
            self._number(group)
        else:
            self._group_kind(group)
            if not group.kind:
                return
        self.groups.append(group)

    def _group_kind(self, group: _Group) -> None:
        """Read the kind of a group after `(?`. A group of kind "" only sets flags and has no content."""
        pattern, at = self.pattern, self.at
        for opening, kind in (("?:", "("), ("?=", "="), ("?!", "!"), ("?<=", "<="), ("?<!", "<!")):
            if pattern.startswith(opening, at):
                group.kind = kind
                self.at = at + len(opening)
                if kind in ("!", "<!"):
                    group.mode = _OPPOSITE[group.mode]
                return
        name_at = at + 3 if pattern.startswith("?P<", at) else at + 2 if pattern.startswith("?<", at) else 0
        if name_at:
            end = pattern.find(">", name_at)
            if end < 0 or not pattern[name_at:end].isidentifier():
                raise RegexError("a group name must be a word that ends in '>'", name_at)
            if self.refers and pattern[name_at:end] in self._names:
                raise RegexError(f"there are two groups of the name {pattern[name_at:end]!r}", name_at)
            self._number(group)
            self._names[pattern[name_at:end]] = group.number
            self.at = end + 1
            return
        self._flags(group)

    def _number(self, group: _Group) -> None:
        self._num_groups += 1
        group.number = self._num_groups

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
                group.dot_all = on
            end += 1
        closing = pattern[end : end + 1]
        if closing == ":":
            self.at = end + 1
        elif closing == ")" and opened_at == 0 and end > self.at + 1:
            self.groups[0].ignore_case, self.groups[0].dot_all = group.ignore_case, group.dot_all
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
            if self.refers and group.number:
                inner = Group(inner, group.number, group.opened_at)
                self._ended.add(group.number)
            outer.append(self._quantified(inner, group.opened_at))
        else:
            look = Behind if group.kind.startswith("<") else Look
            outer.append(look(inner, group.kind.endswith("!"), group.opened_at))
            if self._quantifier() is not None:
                raise RegexError("a lookahead or lookbehind cannot be repeated", group.opened_at)

    def _is_octal(self) -> bool:
        return bool(_octal(self.pattern, self.at + 1, False))

    def _refer(self, group: _Group, name: str, at: int) -> None:
        """Add a reference to a group, given by its number or name, that begins at an index."""
        number = int(name) if _is_number(name) else self._names.get(name, 0)
        if not 0 < number <= self._num_groups:
            raise RegexError(f"there is no group {name} before the reference to it", at)
        if number not in self._ended:
            reason = f"the group {name} has not ended where it is referred to: some programs take no text there"
            raise RegexError(reason, at)
        ignore_case, mode = group.ignore_case, group.mode

        def spelled(text: str) -> Regex:
            if not ignore_case:
                return literal(text)
            return concat(*[chars(taken(without_case(same(CharSet.of(char), mode)), mode)) for char in text])

        group.parts.append(self._quantified(Reference(number, at, spelled), at))

    def _assertion(self, group: _Group) -> None:
        """`\\b`, `\\B`, `\\A`, `\\Z` and `\\z`. The last two mean the very end in Rust and in Python; programs to which
        `\\Z` may stand before a last line break take such texts too."""
        at, kind = self.at, self.pattern[self.at + 1]
        self.at += 2
        if kind in "bB":
            group.parts.append(self._boundary(group, at, inside=kind == "B"))
        else:
            group.parts.append(Start() if kind == "A" else End(newline=False))
        if self._quantifier() is not None:
            raise RegexError("an anchor cannot be repeated", at)

    def _boundary(self, group: _Group, at: int, *, inside: bool) -> Tree:
        """Return a word boundary, or no word boundary, as lookarounds of one character."""
        words = backslash("w", group.mode)
        assert words is not None
        if group.ignore_case:
            words = without_case(words)
        word, other = chars(taken(words, group.mode)), chars(taken(words, _OPPOSITE[group.mode]))
        option: list[Tree] = [Behind(word, False, at), Look(word if inside else other, not inside, at)]
        more: list[Tree] = [Behind(other, True, at), Look(other if inside else word, inside, at)]
        if inside and group.mode == "narrow":  # in the empty text, Python before 3.14 finds no \\B
            more.append(choice([Behind(ANY_CHAR, False, at), Look(ANY_CHAR, False, at)]))
        return choice([sequence(option), sequence(more)])

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
        mode = group.mode
        if char == ".":
            return chars(EVERY if group.dot_all else taken(dot(mode), mode))
        if char == "[":
            return chars(self._class(group))
        if char == "\\":
            narrow = self._agreed(group)
            return chars(taken(self._escape(group, in_class=False), mode) if narrow is None else narrow)
        if "\ud800" <= char <= "\udfff":
            return chars(NONE)
        if group.ignore_case:
            return chars(taken(without_case(same(CharSet.of(char), mode)), mode))
        return literal(char)

    def _class(self, group: _Group) -> CharSet:
        """`[...]`, read from behind its bracket."""
        pattern, opened_at = self.pattern, self.at - 1
        mode = group.mode
        if mode != "ecma":
            _check_class(pattern, opened_at)
        negative = pattern.startswith("^", self.at)
        self.at += negative
        pairs: list[tuple[int, int]] = []
        named: list[Sets] = []
        is_plain = not negative and _NAMED_INVERSES.search(pattern, self.at, _class_end(pattern, self.at)) is None
        while True:
            if self.at >= len(pattern):
                raise RegexError("this character class is never closed; add a ']'", opened_at)
            if pattern[self.at] == "]":
                break
            start = self.at
            left = self._class_atom(group, is_plain)
            if pattern.startswith("-", self.at) and self.at + 1 < len(pattern) and pattern[self.at + 1] != "]":
                after_dash = self.at
                self.at += 1
                right = self._class_atom(group, is_plain)
                if isinstance(left, CharSet) and isinstance(right, CharSet) and len(left) == len(right) == 1:
                    first, last = left.edges[0], right.edges[0]
                    if first > last:
                        raise RegexError("the range in this character class is out of order", start)
                    pairs.append((first, last))
                    continue
                self.at = after_dash + 1
                pairs.append((45, 45))
            if isinstance(left, CharSet):
                pairs += left.pairs()
            else:
                named.append(left)
        self.at += 1
        listed = CharSet.ranges(pairs)
        if not named and not group.ignore_case:  # all readers agree
            return EVERY - listed if negative else listed
        found = same(listed, mode)
        if group.ignore_case:
            found = without_case(found)
        found = joined([found, *named], mode)
        return taken(inverted(found) if negative else found, mode)

    def _agreed(self, group: _Group) -> CharSet | None:
        """Read `\\d`, `\\s` or `\\w`, from behind the backslash, where the characters on which readers agree count."""
        if group.mode != "narrow" or group.ignore_case:
            return None
        found = agreed(self.pattern[self.at : self.at + 1])
        self.at += found is not None
        return found

    def _class_atom(self, group: _Group, is_plain: bool) -> CharSet | Sets:
        """Return characters on which all readers agree as a set, and a named set as its readings."""
        char = self.pattern[self.at]
        self.at += 1
        if char == "\\":
            narrow = self._agreed(group) if is_plain else None
            if narrow is not None:
                return narrow
            found = self._escape(group, in_class=True)
            return found[0] if len(found[0]) <= 1 and len(set(found)) == 1 else found
        return NONE if "\ud800" <= char <= "\udfff" else CharSet.of(char)

    def _escape(self, group: _Group, *, in_class: bool) -> Sets:
        """The characters that a backslash escape stands for, for each reader."""
        at = self.at - 1
        char = self.pattern[self.at : self.at + 1]
        named = backslash(char, group.mode)
        if named is not None:
            self.at += 1
            if not group.ignore_case:
                return named
            return inverted(without_case(inverted(named))) if char == "W" else without_case(named)
        if char and char in "pP":
            self.at += 1
            found = self._property(group.mode, at)
            found = without_case(found) if group.ignore_case else found
            return inverted(found) if char == "P" else found
        single = same(self._single(in_class), group.mode)
        return without_case(single) if group.ignore_case and not in_class else single

    def _single(self, in_class: bool) -> CharSet:
        """The character that a backslash escape stands for, read from behind the backslash."""
        pattern, at = self.pattern, self.at - 1
        char = pattern[self.at : self.at + 1]
        self.at += 1
        simple = _CONTROL.get(char)
        if simple is not None:
            return CharSet.of(simple)
        if char in "xu" and char:
            return self._code_point(char, at, in_class)
        if char == "U":
            return self._long_code_point(at)
        if char == "c" and pattern[self.at : self.at + 1].isascii() and pattern[self.at : self.at + 1].isalpha():
            self.at += 1
            return CharSet.of(chr(ord(pattern[self.at - 1]) % 32))
        octal = _octal(pattern, self.at - 1, in_class)
        if octal:
            self.at += len(octal) - 1
            return CharSet.ranges([(int(octal, 8), int(octal, 8))])
        if char == "b" and in_class:
            return CharSet.of("\b")
        _check_escaped(char, at, in_class)
        return CharSet.of(char)

    def _long_code_point(self, at: int) -> CharSet:
        """`\\UHHHHHHHH`, which Python and Rust have."""
        digits = self.pattern[self.at : self.at + 8]
        point = _hexadecimal(digits, at) if len(digits) == 8 else -1
        self.at += 8
        if not 0 <= point <= 0x10FFFF:
            raise RegexError("this escape needs the eight hexadecimal digits of a code point", at)
        return CharSet.ranges([(point, point)])

    def _code_point(self, kind: str, at: int, in_class: bool) -> CharSet:
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
                    if self.groups[-1].mode != "ecma" and not in_class:
                        raise RegexError(
                            "Python's re reads the two halves of a surrogate pair as two characters, which no text "
                            f"has; write the character itself, or \\u{{{point:X}}}",
                            at,
                        )
        if not 0 <= point <= 0x10FFFF:
            raise RegexError("this escape needs the hexadecimal digits of a code point", at)
        return CharSet.ranges([(point, point)])

    def _property(self, mode: Mode, at: int) -> Sets:
        end = self.pattern.find("}", self.at)
        if not self.pattern.startswith("{", self.at) or end < 0:
            raise RegexError("write the property in braces, as in \\p{L}", at)
        found = prop(self.pattern[self.at + 1 : end], mode)
        if found is None:
            raise RegexError(
                "ECMA-262 has no such Unicode property; it has categories (\\p{Lu}), scripts (\\p{Script=Greek}) and "
                "binary properties (\\p{Emoji})",
                at,
            )
        self.at = end + 1
        return found


_ASSERTIONS: Final = frozenset("bBAZz")
_OPPOSITE: Final[dict[Mode, Mode]] = {"ecma": "ecma", "narrow": "wide", "wide": "narrow"}
_CONTROL: Final = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}


def _check_escaped(char: str, position: int, in_class: bool) -> None:
    """Refuse a backslash before a letter or digit if the escape has no meaning, or a meaning that is not regular."""
    if not char:
        raise RegexError("the pattern ends in a single backslash", position)
    if char.isascii() and char.isalnum():
        if char in "123456789k":
            raise RegexError("a reference to a group is no character", position)
        raise RegexError(f"\\{char} is not an escape of ECMA-262", position)
    if char in "<>" and not in_class:
        reason = f"\\{char} is a word boundary in Rust's regex and a character elsewhere; write {char}"
        raise RegexError(reason, position)


_MAY_REFER: Final = re.compile(r"\\[1-9k]|\(\?P=")
_REFERENCE: Final = re.compile(r"\\(?:([1-9][0-9]?)|k<([^>]*)>)")
_OCTAL: Final = re.compile(r"[0-3]?[0-7]{1,2}")


def _octal(pattern: str, at: int, in_class: bool) -> str:
    """Return the octal digits of a character that begin here; "" where the digits are a reference to a group.

    ECMA-262 without the flag u and Python read `\\0`, `\\012` and `\\101` alike; in a class, also `\\7` and `\\12`.
    """
    found = _OCTAL.match(pattern, at)
    if found is None or not (in_class or found[0].startswith("0") or len(found[0]) == 3):
        return ""
    if pattern[found.end() : found.end() + 1].isdigit() and (in_class or len(found[0]) < 3):
        return ""
    return found[0]


_NAMED_INVERSES: Final = re.compile(r"\\[DSWpP]")


def _class_end(pattern: str, at: int) -> int:
    """Return the index of the bracket that closes a class, of whose inside `at` is the beginning."""
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at


def _check_class(pattern: str, opened_at: int) -> None:
    """Refuse a class, whose bracket is at `opened_at`, that readers divide differently.

    Rust has classes in classes, `[:alpha:]`, `&&`, `--` and `~~`; in Rust and in Python a `]` that comes first is a
    character. Where the class has no end for such a reader, the pattern is an error there, so that the reading does not
    count.
    """
    first = opened_at + 1 + pattern.startswith("^", opened_at + 1)
    if pattern.startswith("]", first):
        if pattern.find("]", first + 1) >= 0:
            raise RegexError(
                "a ']' that comes first in a class ends it in ECMA-262, and is a character in Python's re and Rust's "
                "regex; write \\] for the character, [\\s\\S] for any",
                opened_at,
            )
        return
    at = first
    depth = 1
    nested = -1
    while at < len(pattern) and depth:
        char = pattern[at]
        if char == "\\":
            at += 2
            continue
        if depth == 1 and nested < 0 and pattern[at : at + 2] in ("&&", "--", "~~") and at > first:
            raise RegexError(
                f"{pattern[at : at + 2]} in a class is an operation in Rust's regex, and characters in ECMA-262 and in "
                f"Python's re; write \\{char} for the character, or list what the class holds",
                at,
            )
        if char == "[":
            nested = at if nested < 0 else nested
            depth += 1
        elif char == "]":
            if nested >= 0 and depth > 1 and nested == at - 1:
                at += 1  # Rust reads a ']' that comes first as a character
                continue
            depth -= 1
        at += 1
    if nested >= 0 and not depth:
        raise RegexError(
            "a '[' in a class begins a class in Rust's regex, such as [:alpha:], and is a character in ECMA-262 and in "
            "Python's re; write \\[ for the character, A-Za-z for letters",
            nested,
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _hexadecimal(digits: str, position: int) -> int:
    if not digits or len(digits) > 8 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
        raise RegexError("this escape needs the hexadecimal digits of a code point", position)
    return int(digits, 16)
