"""A user's EBNF, in the notation of GBNF and xgrammar, parsed into productions.

Rules are `name ::= body`; a body is made of `"text"`, `[classes]`, `.` for any character, names, `( )`, `|`, and the
repetitions `* + ? {n} {m,} {m,n}`; `#` begins a comment, line breaks are spaces, and the rule `root` is the whole text.

Users' grammars are ambiguous in ways that only a parser of single characters decides rightly, so terminals of several
characters are made of them only where that is safe (`terminal_inference.py`). Left recursion is rewritten
(`recursion.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NoReturn

from radixrt.constrained.productions.core import EmptyLanguage, Productions
from radixrt.constrained.productions.expressions import NO_TEXT, Expr, Lit, Ref, Rep, Term, alt, seq
from radixrt.constrained.productions.recursion import Entangled, without_left_recursion, without_right_recursion
from radixrt.constrained.productions.terminal_inference import with_terminals
from radixrt.constrained.regex import CharSet, chars
from radixrt.errors import RequestError, shown

MAX_LENGTH: Final = 200_000
MAX_DEPTH: Final = 50
MAX_COUNT: Final = 1_000_000_000
ROOT: Final = "root"

_TOKEN: Final = re.compile(
    r"""(?P<space> (?: \s | \#[^\n]* )+ )
    | (?P<defined> [A-Za-z_][\w.-]* (?= (?: \s | \#[^\n]*\n )* ::= ) )
    | (?P<is> ::= )
    | (?P<name> [A-Za-z_][\w.-]* )
    | (?P<string> " )
    | (?P<class> \[ )
    | (?P<any> \. )
    | (?P<open> \( (?!=) )
    | (?P<close> \) )
    | (?P<or> \| )
    | (?P<mark> [*+?] )
    | (?P<count> \{ \s* (?P<low> \d* ) \s* (?P<comma> ,? ) \s* (?P<high> \d* ) \s* \} )
    """,
    re.VERBOSE | re.ASCII,
)
_IGNORE_CASE: Final = re.compile(r"i(?![\w.-])", re.ASCII)
_ESCAPES: Final = {
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "a": "\a",
    "e": "\x1b",
    "0": "\0",
} | {char: char for char in "\\\"'-]^[/?*+.|(){}$ "}
_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
_MARKS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse_ebnf(text: str) -> Productions:
    """The productions of an EBNF grammar: valid and pruned; a greedy lexer reads their terminals rightly.

    Raises:
        RequestError: param "ebnf"; names the line, the column and the problem.
    """
    if len(text) > MAX_LENGTH:
        raise RequestError(
            f"ebnf has {len(text)} characters; at most {MAX_LENGTH} are taken", param="ebnf", code="too_complex"
        )
    parser = _Parser(text)
    productions = Productions(parser.parse(), ROOT)
    try:
        productions = without_left_recursion(productions.prune())
    except EmptyLanguage:
        parser.fail(
            parser.defined_at[ROOT],
            f"no text satisfies the grammar: every way through {ROOT!r} goes on forever",
            code="empty_language",
        )
    except Entangled as error:
        parser.fail(parser.defined_at.get(error.rule, 0), error.message, code="too_complex")
    productions = with_terminals(without_right_recursion(productions).prune())
    productions.validate()
    return productions


@dataclass
class _Group:
    """An open parenthesis, or a rule's body.

    Attributes:
        opened: where it begins.
        options: the alternatives that are complete.
        parts: the alternative being read, each part with how deep its parentheses and repetitions nest.
    """

    opened: int
    options: list[Expr] = field(default_factory=list)
    parts: list[tuple[Expr, int]] = field(default_factory=list)
    depth: int = 0

    def end_option(self) -> None:
        self.options.append(seq(*(part for part, _ in self.parts)))
        self.depth = max([self.depth, *(depth for _, depth in self.parts)])
        self.parts = []

    def close(self) -> tuple[Expr, int]:
        self.end_option()
        return alt(*self.options), self.depth


class _Parser:
    """Reads one text.

    Attributes:
        defined_at: offset of the definition of each rule.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.defined_at: dict[str, int] = {}
        self._uses: dict[str, int] = {}

    def fail(self, at: int, message: str, *, code: str = "invalid_ebnf") -> NoReturn:
        line = self._text.count("\n", 0, at) + 1
        column = at - (self._text.rfind("\n", 0, at) + 1) + 1
        raise RequestError(f"ebnf, line {line}, column {column}: {message}", param="ebnf", code=code)

    def parse(self) -> dict[str, Expr]:
        for match in re.finditer(r"[\ud800-\udfff]", self._text):
            self.fail(match.start(), "a lone surrogate is no character")
        rules: dict[str, Expr] = {}
        while (found := self._next()) is not None:
            if found["defined"] is None:
                self.fail(found.start(), f"expected a rule, `name ::= ...`, not {shown(found[0])}")
            name = found["defined"]
            if name in rules:
                self.fail(found.start(), f"the rule {name!r} is defined twice")
            self.defined_at[name] = found.start()
            self._next()
            rules[name] = self._body(found.start(), name)
        for name, at in self._uses.items():
            if name not in rules:
                self.fail(at, f"the rule {name!r} is not defined")
        if ROOT not in rules:
            self.fail(0, f"there is no rule named {ROOT!r}, which is where the grammar starts")
        return rules

    def _next(self) -> re.Match[str] | None:
        """The next token; None at the end of the text."""
        while self._at < len(self._text):
            found = _TOKEN.match(self._text, self._at)
            if found is None:
                self._unreadable()
            self._at = found.end()
            if found["space"] is None:
                return found
        return None

    def _unreadable(self) -> NoReturn:
        rest = self._text[self._at : self._at + 20]
        if rest.startswith("(="):
            self.fail(self._at, "lookahead `(= )` is not supported; write the rule without it")
        if rest.startswith("{"):
            self.fail(self._at, "expected a repetition like {3}, {2,} or {1,4}")
        if rest.startswith("/"):
            self.fail(self._at, "regular expressions `/ /` are not supported here; write a rule, or use `regex`")
        self.fail(self._at, f"{rest[0]!r} has no meaning here")

    def _body(self, start: int, name: str) -> Expr:
        """Parse the expression after `::=`, up to the next rule or the end."""
        # The stack of open parentheses is explicit: recursion would fail for deep nesting instead of reporting it.
        groups = [_Group(start)]
        empty = True
        while True:
            before = self._at
            found = self._next()
            if found is None or found["defined"] is not None:
                if len(groups) > 1:
                    self.fail(groups[-1].opened, "this parenthesis is never closed")
                if empty:
                    self.fail(start, f'the rule {name!r} has no body; write "" for the empty text')
                self._at = before if found is not None else self._at
                return groups[0].close()[0]
            empty = False
            group, at = groups[-1], found.start()
            if found["is"] is not None:
                self.fail(at, "expected the name of a rule before `::=`")
            elif found["open"] is not None:
                groups.append(_Group(at))
                if len(groups) > MAX_DEPTH:
                    self.fail(at, f"parentheses nest more than {MAX_DEPTH} deep; give an inner part a rule of its own")
            elif found["close"] is not None:
                if len(groups) == 1:
                    self.fail(at, "there is no open parenthesis to close")
                expr, depth = groups.pop().close()
                if depth >= MAX_DEPTH:
                    self.fail(at, f"parentheses and repetitions nest more than {MAX_DEPTH} deep")
                groups[-1].parts.append((expr, depth + 1))
            elif found["or"] is not None:
                group.end_option()
            elif found["mark"] is not None or found["count"] is not None:
                self._repeat(group, found)
            else:
                group.parts.append((self._primary(found), 0))

    def _primary(self, found: re.Match[str]) -> Expr:
        if found["string"] is not None:
            return self._string(found.start())
        if found["class"] is not None:
            return self._class(found.start())
        if found["any"] is not None:
            return Term(chars(~CharSet(())))
        self._uses.setdefault(found["name"], found.start())
        return Ref(found["name"])

    def _repeat(self, group: _Group, found: re.Match[str]) -> None:
        at = found.start()
        if not group.parts:
            self.fail(at, f"there is nothing before {found[0]} to repeat")
        low, high = self._bounds(found)
        item, depth = group.parts.pop()
        if depth >= MAX_DEPTH:
            self.fail(at, f"parentheses and repetitions nest more than {MAX_DEPTH} deep")
        group.parts.append((Rep(item, low, high), depth + 1))

    def _bounds(self, found: re.Match[str]) -> tuple[int, int | None]:
        if found["mark"] is not None:
            return _MARKS[found["mark"]]
        at, low_text, high_text = found.start(), found["low"], found["high"]
        if not low_text and not (found["comma"] and high_text):
            self.fail(at, "expected a repetition like {3}, {2,} or {1,4}")
        if max(len(low_text), len(high_text)) > 10 or int(low_text or 0) > MAX_COUNT or int(high_text or 0) > MAX_COUNT:
            self.fail(at, f"a repetition goes up to {MAX_COUNT} times")
        low = int(low_text or 0)
        if not found["comma"]:
            return low, low
        high = int(high_text) if high_text else None
        if high is not None and high < low:
            self.fail(at, f"the repetition {found[0]} has its bounds in the wrong order")
        return low, high

    def _string(self, start: int) -> Expr:
        """The rest of a literal whose quote has been read."""
        found: list[str] = []
        while True:
            if self._at >= len(self._text) or self._text[self._at] == "\n":
                self.fail(start, "this string is not closed in its line")
            at = self._at
            char = self._char()
            if char == '"' and self._at == at + 1:
                break
            found.append(char)
        if _IGNORE_CASE.match(self._text, self._at):
            self.fail(start, 'a string that ignores case, "..."i, is not supported; write classes like [aA]')
        for at, char in enumerate(found):
            if "\ud800" <= char <= "\udfff":
                self.fail(start, f"character {at + 1} of the string is a lone surrogate")
        return Lit("".join(found)) if found else NO_TEXT

    def _class(self, start: int) -> Expr:
        """The rest of a class whose bracket has been read."""
        negated = self._text.startswith("^", self._at)
        self._at += negated
        pairs: list[tuple[int, int]] = []
        while True:
            first = self._class_char(start)
            if first is None:
                break
            last = first
            at = self._at
            if self._text.startswith("-", at) and not self._text.startswith("-]", at):
                self._at += 1
                last = self._class_char(start) or ""
                if last < first:
                    self.fail(at, "the range of the class has its ends in the wrong order")
            pairs.append((ord(first), ord(last)))
        charset = CharSet.ranges(pairs)
        if not negated and not charset:
            self.fail(start, 'an empty class matches no character; write "" for the empty text')
        return Term(chars(~charset if negated else charset))

    def _class_char(self, start: int) -> str | None:
        """Read a character of a class; return None for the bracket that closes the class."""
        if self._at >= len(self._text) or self._text[self._at] == "\n":
            self.fail(start, "this class is not closed in its line")
        at = self._at
        char = self._char()
        return None if char == "]" and self._at == at + 1 else char

    def _char(self) -> str:
        """Read a character or an escape. Two escapes that form a surrogate pair become a single character."""
        at = self._at
        char = self._text[at]
        self._at += 1
        if char != "\\":
            return char
        letter = self._text[at + 1 : at + 2]
        self._at += 1
        if letter in _HEX_DIGITS:
            point = self._hex(at, letter)
            if 0xD800 <= point < 0xDC00 and self._text.startswith("\\u", self._at):
                second = self._at
                self._at += 2
                low = self._hex(second, "u")
                if 0xDC00 <= low < 0xE000:
                    return chr(0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00))
                self._at = second
            return chr(point)
        if letter not in _ESCAPES or not letter:
            self.fail(at, f"the escape \\{letter} is not known; a backslash itself is written \\\\")
        return _ESCAPES[letter]

    def _hex(self, start: int, letter: str) -> int:
        digits = self._text[self._at : self._at + _HEX_DIGITS[letter]]
        if not re.fullmatch(f"[0-9a-fA-F]{{{_HEX_DIGITS[letter]}}}", digits) or int(digits, 16) > 0x10FFFF:
            self.fail(start, f"\\{letter} is followed by {_HEX_DIGITS[letter]} hexadecimal digits of a character")
        self._at += len(digits)
        return int(digits, 16)
