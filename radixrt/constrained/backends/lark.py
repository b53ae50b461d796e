"""Productions in the Lark dialect of llguidance.

llguidance splits the text into terminals before parsing: at each position the lexer follows all terminals that the
parser accepts there, and ends a terminal only where no terminal can continue. The grammar therefore has the sentences
of the productions where the maximal-munch rule holds (`productions.maximal_munch`). Literals that would violate it are
cut (`lark_terminals`). The author of productions is responsible for their terms: terms of JSON satisfy the rule because
of the punctuation, and terms of a user's EBNF are joined until the rule is satisfied
(`productions.terminal_inference`).

Limits of the dialect are handled here: nesting (rules are split), the depth of calls from rule to rule (the
compiler recurses through them; see `_visited_first`), the number of symbols, and `~`, which also matches bytes that
are not UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Final

from radixrt.constrained.backends.lark_any_order import AnyOrderRules
from radixrt.constrained.backends.lark_terminals import cut_literals, with_linear_rules
from radixrt.constrained.productions import (
    AnyOrder,
    Expr,
    Lit,
    NotExpressible,
    Productions,
    Ref,
    Rep,
    Seq,
    Special,
    Term,
)
from radixrt.constrained.regex import ANY, concat
from radixrt.constrained.regex.automaton import Dfa
from radixrt.constrained.regex.charset import EVERY, CharSet
from radixrt.constrained.regex.nodes import (
    EMPTY,
    EPSILON,
    Alternate,
    Chars,
    Complement,
    Concat,
    Intersect,
    Regex,
    RegexTooComplex,
    Remainder,
    Repeat,
    Words,
)
from radixrt.errors import InvariantError

MAX_SYMBOLS: Final = 20_000
MAX_OPTIONS: Final = 1_900
"""Each option is an item of a row of llguidance's parser, which has 2,000 items at most."""
MAX_COUNT: Final = 2**31 - 1
_MAX_NESTING: Final = 6
_MAX_REPEATED: Final = 12
"""Maximum length of an expression that is written out at each use. A longer expression becomes a rule."""
_MAX_CALL_DEPTH: Final = 400
_MAX_STATES: Final = 24
_MAX_ELIMINATED: Final = 1500
_NO_NAME: Final = re.compile(r"[^a-z0-9]+")
_ANY_UTF8: Final = "/(?s:.*)/"
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_RULE: Final = re.compile(r"\b[a-z][a-z0-9_]*")


def to_lark(productions: Productions, special_ids: Mapping[str, int]) -> str:
    """The grammar for `LLMatcher.grammar_from_lark`.

    Args:
        productions: pruned; every `Term` satisfies the maximal-munch rule.
        special_ids: token id of each control token that the productions mention.

    Raises:
        NotExpressible: the grammar has more symbols than llguidance can number, a terminal with a remainder that is
            too large an automaton, or more parts in any order than llguidance can count.
    """
    try:
        return _Writer(with_linear_rules(productions, _is_terminal), special_ids).write()
    except RegexTooComplex as error:
        raise NotExpressible(str(error)) from None


_ATOM: Final = 0
_REPEATED: Final = 1
_SEQUENCE: Final = 2
_CHOICE: Final = 3


_Text = tuple[str, int, int]
"""(text of an expression; its outermost form in order of binding strength: atom, repetition, sequence or choice;
nesting depth of its parentheses)."""


class _Writer:
    """Writes a grammar in Lark notation: a line for each rule, and the terminals shared by the rules."""

    def __init__(self, productions: Productions, special_ids: Mapping[str, int]) -> None:
        self._productions = productions
        self._special_ids = special_ids
        self._pieces = cut_literals(productions)
        self._numbers: dict[str, int] = {"start": 0}
        self._names = {rule: self.new_name(rule) for rule in productions.rules}
        self._lines: dict[str, str] = {}
        self._parametric: set[str] = set()
        self._terminals: dict[Regex, str] = {}
        self._terminal_lines: list[str] = []
        self._bytes_lines: list[str] = []  # terminals for `_excluded`

    def write(self) -> str:
        # Write all expressions, children first. A long expression with several uses becomes a rule.
        layout = self._productions.layout
        texts: list[_Text] = []
        uses = [0] * len(layout.order)
        for below in layout.below:
            for one in below:
                uses[one] += 1
        for expr, below, used in zip(layout.order, layout.below, uses):
            written = self._expression(expr, [texts[one] for one in below])
            if used > 1 and below and len(written[0]) > _MAX_REPEATED:
                written = self._as_rule(written)
            texts.append(written)
        for rule, row in layout.distinct(self._productions.start).items():
            self._lines[self._names[rule]] = texts[row][0]
        symbols = len(self._lines) + len(self._terminal_lines)
        if symbols > MAX_SYMBOLS:
            raise NotExpressible(f"the grammar has {symbols} rules and terminals; llguidance takes {MAX_SYMBOLS}")
        # The rule `start` gets the body of the root, unless other rules call the root or rules must be visited first.
        root = self._names[self._productions.start]
        warm = _visited_first(self._lines, root)
        is_called = any(rule == self._productions.start for _, rule in layout.calls)
        first = root if is_called or warm else self._lines.pop(root)
        parametric = self._parametric
        lines = [f"{name}{'::_' if name in parametric else ''}: {body}" for name, body in self._lines.items()]
        if warm:
            lines = [f"start: NEVER {' '.join(warm)} | {first}", *lines, 'NEVER: "a" & "b"']
        else:
            lines = [f"start: {first}", *lines]
        return "\n".join([*lines, *self._terminal_lines, *self._bytes_lines]) + "\n"

    def new_name(self, wanted: str) -> str:
        """Return an unused rule name in lower case that resembles `wanted`."""
        is_plain = wanted.isascii() and wanted.isalnum() and wanted.islower()
        plain = wanted if is_plain else _NO_NAME.sub("_", wanted.lower()).strip("_")
        base = name = plain if plain[:1].isalpha() else f"r_{plain}"
        while name in self._numbers:
            self._numbers[base] += 1
            name = f"{base}_{self._numbers[base]}"
        self._numbers[name] = 0
        return name

    def _expression(self, expr: Expr, below: list[_Text]) -> _Text:
        if isinstance(expr, Lit):
            pieces = self._pieces.get(expr.text)
            if pieces is None:
                return quoted(expr.text), _ATOM, 0
            return " ".join(map(quoted, pieces)), _SEQUENCE, 0
        if isinstance(expr, Seq):
            return self._joined(below, " ", _SEQUENCE) if below else ('""', _ATOM, 0)
        if isinstance(expr, Rep):
            item, _, depth = self._within(below[0], _ATOM)
            most = expr.low if expr.high is None else expr.high
            if most > MAX_COUNT:
                raise NotExpressible(f"a repetition of {most} times; llguidance counts to {MAX_COUNT}")
            return item + written_count(expr.low, expr.high), _REPEATED, depth
        if isinstance(expr, Ref):
            return self._names[expr.rule], _ATOM, 0
        if isinstance(expr, Term):
            return self.terminal(expr.regex), _ATOM, 0
        if isinstance(expr, Special):
            token_id = self._special_ids.get(expr.text)
            if token_id is None:
                raise InvariantError(f"{expr.text!r} is no control token of the vocabulary")
            return f"<[{token_id}]>", _ATOM, 0
        if isinstance(expr, AnyOrder):
            texts = [self._within(one, _SEQUENCE)[0] for one in below]
            rules = AnyOrderRules(expr, list(zip(texts[::2], texts[1::2], strict=True)), self)
            return rules.write(), _CHOICE, 1
        if not below:
            raise InvariantError("productions that derive nothing must be pruned before they are written")
        if len(below) > MAX_OPTIONS:
            raise NotExpressible(f"a choice among {len(below)} options; llguidance takes {MAX_OPTIONS}")
        return self._joined(below, " | ", _CHOICE)

    def _joined(self, below: list[_Text], by: str, binds: int) -> _Text:
        if len(below) == 1:
            return below[0]
        deepest = 0
        texts: list[str] = []
        for one in below:
            text, _, depth = one if one[1] <= binds else self._within(one, binds)
            texts.append(text)
            deepest = max(deepest, depth)
        return by.join(texts), binds, deepest

    def _within(self, written: _Text, binds: int) -> _Text:
        """Return the text as an operand of an operator with binding strength `binds`: in parentheses if the text binds
        less. Parentheses cost llguidance microseconds each, so deeply nested ones become a rule."""
        text, outside, depth = written
        if outside <= binds:
            return written
        if depth + 1 < _MAX_NESTING:
            return f"({text})", _ATOM, depth + 1
        return self._as_rule(written)

    def _as_rule(self, written: _Text) -> _Text:
        """Return the name of a new rule with this text."""
        name = self.new_name("part")
        self._lines[name] = written[0]
        return name, _ATOM, 0

    def set_rule(self, name: str, body: str, *, parametric: bool) -> None:
        """Set the body of a rule whose name `new_name` returned."""
        self._lines[name] = body
        if parametric:
            self._parametric.add(name)

    def terminal(self, regex: Regex) -> str:
        """Return the name of the terminal for a regular language. Each language is written once."""
        known = self._terminals.get(regex)
        if known is None:
            text = self._terminal_text(regex)
            known = self._terminals[regex] = f"T{len(self._terminals)}"
            self._terminal_lines.append(f"{known}: {text}")
        return known

    def _terminal_text(self, regex: Regex) -> str:
        if not regex.has_boolean:
            return f"/{to_rust(regex)}/"
        if isinstance(regex, Intersect):
            return self._intersection(regex)
        if isinstance(regex, Complement):
            return f"{_ANY_UTF8} & ~{self.terminal(regex.item)}"
        if isinstance(regex, Repeat):
            return self.terminal(regex.item) + written_count(regex.low, regex.high)
        if isinstance(regex, Concat):
            return " ".join(self.terminal(part) for part in regex.chain())
        if isinstance(regex, Alternate):
            return " | ".join(self.terminal(part) for part in regex.options)
        plain = _eliminated(regex)
        if plain is None:
            raise InvariantError(f"no terminal for {regex!r}")
        return f"/{to_rust(plain)}/"

    def _intersection(self, regex: Intersect) -> str:
        kept = [self.terminal(item) for item in regex.items if not isinstance(item, Complement)]
        excluded = [self._excluded(item.item) for item in regex.items if isinstance(item, Complement)]
        return " & ".join([*(kept or [_ANY_UTF8]), *(f"~{text}" for text in excluded)])

    def _excluded(self, regex: Regex) -> str:
        """The set of names that an object declares is mostly excluded once, and then written in place."""
        if regex.has_boolean:
            return self.terminal(regex)
        options = regex.options if isinstance(regex, Alternate) else (regex,)
        if not any(_is_anywhere(option) for option in options):
            return f"/{to_rust(regex)}/"
        if not self._bytes_lines:
            self._bytes_lines = ['NO_BYTES: "a" & "b"', "BYTES: ~NO_BYTES"]
        name = f"X{len(self._bytes_lines)}"
        self._bytes_lines.append(f"{name}: {' | '.join(map(_with_any_bytes, options))}")
        return name


def quoted(text: str) -> str:
    """Return a string literal. The dialect reads JSON's escapes and refuses raw control characters."""
    return encode_basestring_ascii(text).replace("\x7f", "\\u007f")


def _is_anywhere(regex: Regex) -> bool:
    """Return whether the texts of a language are recognized by a part of them, after or before which all is allowed."""
    chain = regex.chain() if isinstance(regex, Concat) else ()
    return len(chain) > 1 and (chain[0] is ANY or chain[-1] is ANY) and not all(part is ANY for part in chain)


def _with_any_bytes(regex: Regex) -> str:
    """Return the texts of an excluded language with any bytes in place of any text at the ends.

    Of texts that are UTF-8, both exclude the same texts, because no part of UTF-8 begins within a character. That
    nothing is left after the excluded part llguidance then sees at once, and finds out by a search otherwise, which
    takes milliseconds and, if lengths are counted as well, fails.
    """
    if not _is_anywhere(regex):
        return f"/{to_rust(regex)}/"
    assert isinstance(regex, Concat)
    parts = list(regex.chain())
    before = ["BYTES"] if parts[0] is ANY else []
    after = ["BYTES"] if parts[-1] is ANY else []
    inner = concat(*parts[len(before) : len(parts) - len(after)])
    return " ".join([*before, f"/{to_rust(inner)}/", *after])


def written_count(low: int, high: int | None) -> str:
    """Return the suffix for a repetition, as Lark and EBNF have it."""
    if high is None:
        return "*" if low == 0 else "+" if low == 1 else f"{{{low},}}"
    return "?" if (low, high) == (0, 1) else f"{{{low},{high}}}"


def _is_terminal(regex: Regex) -> bool:
    """Return True if `_Writer.terminal` can write `regex`: every remainder in it is a plain expression."""
    if isinstance(regex, Remainder):
        return _eliminated(regex) is not None
    return not regex.has_boolean or all(map(_is_terminal, regex.parts()))


@lru_cache(maxsize=256)
def _eliminated(regex: Regex) -> Regex | None:
    """Return the language as an expression without intersections and complements, if that has a reasonable size."""
    try:
        dfa = Dfa.of(regex, _MAX_STATES)
        return None if dfa is None else dfa.eliminate(_MAX_ELIMINATED)
    except RegexTooComplex:
        return None


def _visited_first(lines: Mapping[str, str], root: str) -> list[str]:
    """Return rules that must be visited before the root, deepest first, so that no walk along calls is too deep.

    llguidance compiles rules in depth-first order by recursion, and crashes the process on chains of thousands of
    calls. An option of the root that is never taken, and calls the returned rules in order, cuts such chains.

    Raises:
        NotExpressible: thousands of rules call one another in a circle, which cannot be cut.
    """
    if len(lines) <= _MAX_CALL_DEPTH:
        return []
    calls = {
        name: [one for one in _RULE.findall(_STRING.sub("", body)) if one in lines] for name, body in lines.items()
    }
    cuts: list[str] = []
    for depth, name in _walk(calls, [root]):
        if depth and depth % _MAX_CALL_DEPTH == 0:
            cuts.append(name)
    warm = cuts[::-1]
    if warm and max(depth for depth, _ in _walk(calls, [*warm, root])) > 3 * _MAX_CALL_DEPTH:
        raise NotExpressible("too many rules call one another in a circle")
    return warm


def _walk(calls: Mapping[str, list[str]], roots: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the rules in depth-first order, each with the depth of the call at which the walk first meets the rule."""
    visited: set[str] = set()
    for root in roots:
        path = [iter([root])]
        while path:
            name = next(path[-1], None)
            if name is None:
                path.pop()
            elif name not in visited:
                visited.add(name)
                yield len(path) - 1, name
                path.append(iter(calls[name]))


# --- terminals in the syntax of Rust's regex crate ---


MAX_REGEX_COUNT: Final = 2**32 - 1
MAX_TEXT: Final = 4_000_000
_SPECIAL: Final = re.compile(r"[^a-zA-Z0-9 _\"',:;=@%!]")
_NOTHING: Final = r"[^\x00-\x{10FFFF}]"


@lru_cache(maxsize=1024)
def to_rust(node: Regex) -> str:
    """The expression for `/.../`: no slash, no line break, no abbreviated class and no flag is in it.

    Raises:
        ValueError: the expression has an intersection, complement or remainder.
        RegexTooComplex: a count exceeds MAX_REGEX_COUNT, or the text is longer than MAX_TEXT characters.
    """
    if node.has_boolean:
        raise ValueError("an intersection, complement or remainder cannot be written as one regular expression")
    texts: dict[Regex, tuple[str, int]] = {}
    for part in sorted(_written(node), key=lambda part: part.serial):
        length = sum(len(texts[inner][0]) for inner in _inside(part))
        if length > MAX_TEXT:
            raise RegexTooComplex(f"an expression is more than {MAX_TEXT} characters long when it is written out")
        texts[part] = _write(part, texts)
    return texts[node][0]


def _written(node: Regex) -> set[Regex]:
    """Return the node and the subexpressions that are written separately. The tails of a sequence are not, because a
    sequence is written as a whole."""
    found = {node}
    pending = [node]
    while pending:
        whole = pending.pop()
        for part in _inside(whole):
            if part not in found:
                found.add(part)
                pending.append(part)
    return found


def _inside(node: Regex) -> Sequence[Regex]:
    return node.chain() if isinstance(node, Concat) else node.parts()


def _write(node: Regex, texts: dict[Regex, tuple[str, int]]) -> tuple[str, int]:
    """The text of a node whose parts are written already, and how strongly it holds together."""
    if isinstance(node, Chars):
        return _class(node.charset), _ATOM
    if isinstance(node, Words):
        if node.text is not None:
            return _escape(node.text), _SEQUENCE
        return "|".join(map(_escape, node.words)), _CHOICE
    if isinstance(node, Concat):
        return "".join(_grouped(texts[part], _SEQUENCE) for part in node.chain()), _SEQUENCE
    if isinstance(node, Alternate):
        return "|".join(texts[option][0] for option in node.options), _CHOICE
    if isinstance(node, Repeat):
        return _grouped(texts[node.item], _ATOM) + _counts(node.low, node.high), _SEQUENCE
    return (_NOTHING, _ATOM) if node is EMPTY else ("(?:)" if node is EPSILON else "", _ATOM)


def _grouped(written: tuple[str, int], needed: int) -> str:
    text, strength = written
    return f"(?:{text})" if strength > needed else text


def _counts(low: int, high: int | None) -> str:
    if max(low, high or 0) > MAX_REGEX_COUNT:
        raise RegexTooComplex("an expression repeats something more than four billion times")
    return f"{{{low}}}" if low == high else written_count(low, high)


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda found: _code(ord(found[0])), text)


def _code(point: int) -> str:
    return f"\\x{point:02X}" if point < 128 else f"\\x{{{point:X}}}"


@lru_cache(maxsize=4096)
def _class(charset: CharSet) -> str:
    pairs = charset.pairs()
    if len(pairs) == 1 and pairs[0][0] == pairs[0][1]:
        return _escape(chr(pairs[0][0]))
    outside = (EVERY - charset).pairs()
    if outside and len(outside) < len(pairs):
        return "[^" + "".join(_range(first, last) for first, last in outside) + "]"
    return "[" + "".join(_range(first, last) for first, last in pairs) + "]"


def _range(first: int, last: int) -> str:
    left, right = _class_char(first), _class_char(last)
    return left if first == last else left + right if last == first + 1 else f"{left}-{right}"


def _class_char(point: int) -> str:
    char = chr(point)
    return char if char.isascii() and char.isalnum() else _code(point)
