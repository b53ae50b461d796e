"""The syntax of Lark grammars, as llguidance reads them, parsed into a tree of definitions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final, NoReturn

MAX_LENGTH: Final = 200_000
MAX_DEPTH: Final = 50
MAX_COUNT: Final = 100_000
COMMON: Final = {
    "DIGIT": r"[0-9]",
    "HEXDIGIT": r"[a-fA-F0-9]",
    "INT": r"[0-9]+",
    "SIGNED_INT": r"(\+|-)?[0-9]+",
    "DECIMAL": r"([0-9]+\.([0-9]+)?)|(\.[0-9]+)",
    "_EXP": r"[eE](\+|-)?[0-9]+",
    "FLOAT": r"([0-9]+[eE](\+|-)?[0-9]+|([0-9]+\.([0-9]+)?|\.[0-9]+)([eE](\+|-)?[0-9]+)?)",
    "SIGNED_FLOAT": r"(\+|-)?([0-9]+[eE](\+|-)?[0-9]+|([0-9]+\.([0-9]+)?|\.[0-9]+)([eE](\+|-)?[0-9]+)?)",
    "NUMBER": r"(([0-9]+[eE](\+|-)?[0-9]+|([0-9]+\.([0-9]+)?|\.[0-9]+)([eE](\+|-)?[0-9]+)?)|[0-9]+)",
    "SIGNED_NUMBER": r"(\+|-)?(([0-9]+[eE](\+|-)?[0-9]+|([0-9]+\.([0-9]+)?|\.[0-9]+)([eE](\+|-)?[0-9]+)?)|[0-9]+)",
    "ESCAPED_STRING": r"\"([^\"\\]|\\.)*\"",
    "LCASE_LETTER": r"[a-z]",
    "UCASE_LETTER": r"[A-Z]",
    "LETTER": r"[A-Za-z]",
    "WORD": r"[A-Za-z]+",
    "CNAME": r"[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "C_COMMENT": r"\/\*[^*]*\*+(?:[^\/*][^*]*\*+)*\/",
    "SQL_COMMENT": r"--[^\n]*",
}
"""Terminals that a grammar may import from `common`, as regular expressions."""


class NotTranslated(Exception):
    """The grammar is malformed, or uses a construct without a translation; the message names the construct."""


@dataclass(frozen=True)
class Text:
    """A literal."""

    text: str
    ignores_case: bool = False


@dataclass(frozen=True)
class Pattern:
    """A regular expression with the letters of its flags, or a range of characters as one."""

    pattern: str
    flags: str = ""


@dataclass(frozen=True)
class Name:
    """A rule or, in upper case, a terminal."""

    name: str

    @property
    def is_terminal(self) -> bool:
        return is_terminal(self.name)


@dataclass(frozen=True)
class Token:
    """A control token of the vocabulary, by its text."""

    text: str


@dataclass(frozen=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True)
class Both:
    """Texts that all of the parts match; terminals only."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Without:
    """Texts that the part does not match; terminals only."""

    part: Node


@dataclass(frozen=True)
class Repeated:
    part: Node
    low: int
    high: int | None


Node = Text | Pattern | Name | Token | Sequence | Choice | Both | Without | Repeated


@dataclass
class Grammar:
    """Definitions by name, and the text that is ignored between terminals."""

    definitions: dict[str, Node] = field(default_factory=dict)
    ignored: list[Node] = field(default_factory=list)


_TOKEN: Final = re.compile(
    r"""(?P<comment> (?: // | \# ) [^\n]* )
    | (?P<space> [ \t\r\f]+ )
    | (?P<newline> \n )
    | (?P<string> "(?:[^"\\\n]|\\.)*" i? | '(?:[^'\\\n]|\\.)*' i? )
    | (?P<regex> /(?:[^/\\\n]|\\.)+/[imslux]* )
    | (?P<arrow> -> \s* [a-zA-Z_][\w-]* )
    | (?P<name> [!?]* _? (?: [a-z][a-z0-9_-]* | [A-Z][A-Z0-9_-]* ) )
    | (?P<token> <\|?[^<>\s\[\]]+> )
    | (?P<directive> %[a-z]+ )
    | (?P<number> \d+ )
    | (?P<mark> \.\. | [:|()\[\]{}*+?~&,.] )
    """,
    re.VERBOSE,
)
_MARKS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_END: Final = ("end", "")


def is_terminal(name: str) -> bool:
    """Return True if the name denotes a terminal."""
    return name.lstrip("_")[:1].isupper()


def parse_lark(text: str) -> Grammar:
    """Parse a grammar.

    Raises:
        NotTranslated: it is malformed, too large, or uses a directive or an option that has no translation.
    """
    if len(text) > MAX_LENGTH:
        raise NotTranslated(f"the grammar has more than {MAX_LENGTH} characters")
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        self._lines: list[int] = []
        self._at = 0
        self._depth = 0
        self._read(text)

    def _read(self, text: str) -> None:
        at, line = 0, 1
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise NotTranslated(f"line {line}: {text[at]!r} has no meaning here")
            kind = str(found.lastgroup)
            if kind not in ("comment", "space"):
                self._tokens.append((kind, found[0]))
                self._lines.append(line)
            line += found[0].count("\n")
            at = found.end()

    def parse(self) -> Grammar:
        grammar = Grammar()
        while self._peek() != _END:
            kind, text = self._next()
            if kind == "newline":
                continue
            if kind == "directive":
                self._directive(text, grammar)
                continue
            name = text.lstrip("!?")
            if self._peek() == ("mark", ".") and self._peek(1)[0] == "number":  # a priority: it only ranks parses
                self._at += 2
            if kind != "name" or self._next() != ("mark", ":"):
                self._fail(f"expected a definition, not {text!r}")
            if name in grammar.definitions:
                self._fail(f"{name!r} is defined twice")
            grammar.definitions[name] = self._choice()
            self._end_line()
        return grammar

    def _directive(self, name: str, grammar: Grammar) -> None:
        if name == "%ignore":
            grammar.ignored.append(self._choice())
        elif name == "%import":
            self._import(grammar)
        else:
            self._fail(f"{name} is not translated")
        self._end_line()

    def _import(self, grammar: Grammar) -> None:
        """Read `common.NAME`, `common.NAME -> OTHER` or `common (NAME, ...)`."""
        if self._next() != ("name", "common"):
            self._fail("only common terminals can be imported")
        _, text = self._next()
        names: list[tuple[str, str]] = []
        if text == ".":
            name = self._next()[1]
            alias = self._next()[1].removeprefix("->").strip() if self._peek()[0] == "arrow" else name
            names.append((name, alias))
        elif text == "(":
            while self._peek() != ("mark", ")"):
                name = self._next()[1]
                if name != ",":
                    names.append((name, name))
            self._next()
        for name, alias in names:
            if name not in COMMON:
                self._fail(f"common.{name} is not known")
            grammar.definitions[alias] = Pattern(COMMON[name])
        if not names:
            self._fail("%import names no terminal")

    # --- expressions ---

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"parentheses nest more than {MAX_DEPTH} deep")
        options = [self._conjunction()]
        while self._takes("|"):
            options.append(self._conjunction())
        self._depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _conjunction(self) -> Node:
        parts = [self._sequence()]
        while self._peek() == ("mark", "&"):
            self._next()
            parts.append(self._sequence())
        if self._peek()[0] == "arrow":
            self._next()
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while True:
            if self._depth > 1:
                self._skip_newlines()
            kind, text = self._peek()
            if kind in ("newline", "end", "arrow") or text in ("|", ")", "]", "&"):
                return parts[0] if len(parts) == 1 else Sequence(tuple(parts))
            parts.append(self._repeated(self._atom()))

    def _atom(self) -> Node:
        kind, text = self._next()
        if text == "~":
            return Without(self._atom())
        if text in ("(", "["):
            inner = self._choice()
            self._skip_newlines()
            if self._next()[1] != (")" if text == "(" else "]"):
                self._fail(f"{text!r} is never closed")
            return inner if text == "(" else Repeated(inner, 0, 1)
        if kind == "string":
            literal = self._literal(text)
            if self._peek() == ("mark", ".."):
                self._next()
                return self._range(literal, self._literal(self._next()[1]))
            return literal
        if kind == "regex":
            pattern, _, flags = text[1:].rpartition("/")
            return Pattern(pattern, flags)
        if kind == "name" and text[0] not in "!?":
            if self._peek() in (("mark", ":"), ("mark", ".")):
                self._fail("a definition begins in the middle of a line")
            return Name(text)
        if kind != "token":
            self._fail(f"{text!r} has no meaning here")
        return Token(text)

    def _repeated(self, part: Node) -> Node:
        while True:
            _, text = self._peek()
            if text in _MARKS:
                self._next()
                part = Repeated(part, *_MARKS[text])
            elif text == "~" and self._peek(1)[0] == "number":
                self._next()
                low = self._number()
                high = low
                if self._takes(".."):
                    high = self._number()
                part = self._counted(part, low, high)
            elif text == "{":
                self._next()
                low = self._number() if self._peek()[0] == "number" else 0
                bound: int | None = low
                if self._takes(","):
                    bound = self._number() if self._peek()[0] == "number" else None
                if self._next()[1] != "}":
                    self._fail("expected a repetition like {1,3}")
                part = self._counted(part, low, bound)
            else:
                return part

    def _counted(self, part: Node, low: int, high: int | None) -> Node:
        if high is not None and high < low:
            self._fail("a repetition has its bounds in the wrong order")
        return Repeated(part, low, high)

    def _number(self) -> int:
        kind, text = self._next()
        if kind != "number" or len(text) > 6 or int(text) > MAX_COUNT:
            self._fail(f"expected a number up to {MAX_COUNT}")
        return int(text)

    def _literal(self, text: str) -> Text:
        if text[:1] not in "\"'" or len(text) < 2:
            self._fail("expected a string")
        body, ignores_case = (text[:-1], True) if text.endswith("i") else (text, False)
        inner = body[1:-1]
        if body[0] == "'":
            inner = inner.replace("\\'", "'").replace('"', '\\"')
        inner = re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", inner)
        try:
            return Text(json.loads(f'"{inner}"'), ignores_case)
        except ValueError:
            self._fail(f"the string {text[:80]} has an escape that is not known")

    def _range(self, first: Text, last: Text) -> Pattern:
        if len(first.text) != 1 or len(last.text) != 1 or first.text > last.text:
            self._fail("a range goes from one character to a later one")
        return Pattern(f"[\\u{{{ord(first.text):x}}}-\\u{{{ord(last.text):x}}}]", "range")

    # --- tokens ---

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        place = self._at + ahead
        return self._tokens[place] if place < len(self._tokens) else _END

    def _next(self) -> tuple[str, str]:
        found = self._peek()
        self._at += 1
        return found

    def _takes(self, mark: str) -> bool:
        """Take a mark; a `|` may stand at the beginning of the next line."""
        before = self._at
        if mark == "|":
            self._skip_newlines()
        if self._peek() == ("mark", mark):
            self._next()
            return True
        self._at = before
        return False

    def _skip_newlines(self) -> None:
        while self._peek()[0] == "newline":
            self._next()

    def _end_line(self) -> None:
        kind, text = self._next()
        if kind not in ("newline", "end"):
            self._fail(f"{text!r} has no meaning here")

    def _fail(self, message: str) -> NoReturn:
        line = self._lines[min(self._at, len(self._lines)) - 1] if self._lines else 1
        raise NotTranslated(f"line {line}: {message}")
