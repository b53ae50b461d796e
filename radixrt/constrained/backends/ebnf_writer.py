"""Productions in the EBNF of xgrammar.

xgrammar parses single characters, so any productions keep their language here; what differs is speed. A star over
alternatives that begin alike takes milliseconds for one mask, the same language as rules that call themselves last
takes microseconds. So regular terminals are written as the right-linear rules of their automaton, and a star over
anything but a character class becomes a rule of its own that ends in itself. The root only calls a rule: a root that
is called from inside gives masks in which tokens are missing.
"""

from __future__ import annotations

import re
from typing import Final

from radixrt.constrained.productions import (
    Expr,
    Lit,
    NotExpressible,
    Productions,
    Ref,
    Rep,
    Seq,
    Special,
    Term,
    children,
    fold,
)
from radixrt.constrained.regex import CharSet, Regex, RegexTooComplex
from radixrt.constrained.regex.automaton import Dfa
from radixrt.constrained.regex.nodes import Alternate, Chars, Concat, Repeat, Words
from radixrt.errors import InvariantError

MAX_COUNT: Final = 1_000_000
MAX_STATES: Final = 400
_INLINE_WORDS: Final = 8


def to_ebnf(productions: Productions) -> str:
    """The grammar for `GrammarCompiler.compile_grammar`; its root rule is `root`.

    Args:
        productions: pruned.

    Raises:
        NotExpressible: a control token, a repetition beyond `MAX_COUNT`, or a terminal whose automaton has more than
            `MAX_STATES` states.
    """
    try:
        return _Writer(productions).write()
    except RegexTooComplex as error:
        raise NotExpressible(str(error)) from None


class _Writer:
    """One grammar being written: its rules, and those of the terminals that they share."""

    def __init__(self, productions: Productions) -> None:
        self._productions = productions
        self._taken = {"root"}
        self._numbers: dict[str, int] = {}
        self._names = {rule: self._name(rule) for rule in productions.rules}
        self._lines: list[str] = []
        self._terminals: dict[Regex, str] = {}
        self._states: dict[Regex, str] = {}

    def write(self) -> str:
        lines = [f"root ::= {self._names[self._productions.start]}"]
        for rule, body in self._productions.rules.items():
            name = self._names[rule]
            text = fold([body], lambda expr, below, name=name: self._expression(name, expr, below))[id(body)]  # type: ignore[misc]
            lines.append(f"{name} ::= {text}")
        return "\n".join([*lines, *self._lines]) + "\n"

    def _name(self, wanted: str) -> str:
        """A name that no other rule has, near to the one that is wanted."""
        plain = re.sub(r"[^A-Za-z0-9_]+", "_", wanted)
        base = plain if plain[:1].isalpha() else f"r_{plain}"
        name = base
        while name in self._taken:
            self._numbers[base] = self._numbers.get(base, 1) + 1
            name = f"{base}_{self._numbers[base]}"
        self._taken.add(name)
        return name

    def _rule(self, wanted: str, body: str) -> str:
        name = self._name(wanted)
        self._lines.append(f"{name} ::= {body}")
        return name

    def _expression(self, rule: str, expr: Expr, below: list[str]) -> str:
        if isinstance(expr, Lit):
            return quoted(expr.text)
        if isinstance(expr, Ref):
            return self._names[expr.rule]
        if isinstance(expr, Term):
            return self._terminal(expr.regex)
        if isinstance(expr, Special):
            raise NotExpressible(f"the control token {expr.text!r} cannot be a part of an xgrammar grammar")
        if isinstance(expr, Rep):
            return self._repetition(f"{rule}_more", _grouped(expr.item, below[0]), expr)
        if isinstance(expr, Seq):
            return self._sequence(expr, below)
        if not below:
            raise InvariantError("productions that derive nothing must be pruned before they are written")
        return " | ".join(below)

    def _sequence(self, expr: Seq, below: list[str]) -> str:
        """The parts, neighboring literals joined."""
        written: list[str] = []
        literal: list[str] = []
        for part, text in zip(expr.parts, below):
            if isinstance(part, Lit):
                literal.append(part.text)
                continue
            if literal:
                written.append(quoted("".join(literal)))
                literal = []
            written.append(_grouped(part, text))
        if literal or not written:
            written.append(quoted("".join(literal)))
        return " ".join(written)

    def _repetition(self, name: str, item: str, expr: Rep) -> str:
        low, high = expr.low, expr.high
        if max(low, high or 0) > MAX_COUNT:
            raise NotExpressible(f"a repetition of {max(low, high or 0)} times; xgrammar is given at most {MAX_COUNT}")
        if high is not None or low > 1 or _is_class(expr.item):
            return (f"({item})" if item[-1] in "*+?}" else item) + _count(low, high)
        more = self._name(name)
        self._lines.append(f'{more} ::= {item} {more} | ""')
        return more if low == 0 else f"{item} {more}"

    def _terminal(self, regex: Regex) -> str:
        """The text of a terminal: a class or literal as it stands, otherwise a rule that is written once."""
        if isinstance(regex, Chars):
            return _class(regex.charset)
        if regex.text is not None:
            return quoted(regex.text)
        if isinstance(regex, Repeat) and isinstance(regex.item, Chars) and max(regex.low, regex.high or 0) <= MAX_COUNT:
            return _class(regex.item.charset) + _count(regex.low, regex.high)
        known = self._terminals.get(regex)
        if known is None:
            known = self._terminals[regex] = self._terminal_rules(regex)
        return known

    def _terminal_rules(self, regex: Regex) -> str:
        if isinstance(regex, Words):
            return self._rule("words", " | ".join(map(quoted, regex.words)))
        dfa = Dfa.of(regex, MAX_STATES)
        if dfa is not None:
            return self._right_linear(dfa)
        if isinstance(regex, Concat):
            return self._rule("terminal", " ".join(self._terminal(part) for part in regex.chain()))
        if isinstance(regex, Alternate):
            return self._rule("terminal", " | ".join(self._terminal(part) for part in regex.options))
        if isinstance(regex, Repeat) and (regex.low, regex.high) == (0, 1):
            return self._rule("terminal", f'{self._terminal(regex.item)} | ""')
        raise NotExpressible(f"a terminal has an automaton of more than {MAX_STATES} states, too slow for xgrammar")

    def _right_linear(self, dfa: Dfa) -> str:
        """A rule for each state that more than one arrow leads to or that branches; the name of the first.

        States are shared between terminals: many end alike.
        """
        into = [0] * len(dfa.arrows)
        into[0] = 2
        for arrows in dfa.arrows:
            for _, target in arrows:
                into[target] += 1

        def is_inline(state: int) -> bool:
            return into[state] == 1 and len(dfa.arrows[state]) == 1 and not dfa.accepting[state]

        def is_end(state: int) -> bool:
            return dfa.accepting[state] and not dfa.arrows[state]

        missing = []
        for state, language in enumerate(dfa.languages):
            if not is_inline(state) and (not is_end(state) or state == 0) and language not in self._states:
                self._states[language] = self._name("t")
                missing.append(state)
        for state in missing:
            options = []
            for charset, target in dfa.arrows[state]:
                parts = [_class(charset)]
                while is_inline(target):
                    charset, target = dfa.arrows[target][0]
                    parts.append(_class(charset))
                if not is_end(target):
                    parts.append(self._states[dfa.languages[target]])
                options.append(" ".join(parts))
            if dfa.accepting[state]:
                options.append('""')
            self._lines.append(f"{self._states[dfa.languages[state]]} ::= {' | '.join(options)}")
        return self._states[dfa.languages[0]]


def quoted(text: str) -> str:
    """A string literal."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _class(charset: CharSet) -> str:
    pairs = charset.pairs()
    if len(charset) == 1:
        return quoted(chr(pairs[0][0]))
    # Never as a complement: xgrammar's contains the surrogates, whose bytes are not UTF-8.
    return "[" + "".join(_range(first, last) for first, last in pairs) + "]"


def _range(first: int, last: int) -> str:
    left, right = _escaped(chr(first)), _escaped(chr(last))
    return left if first == last else left + right if last == first + 1 else f"{left}-{right}"


def _escaped(char: str) -> str:
    if char.isascii() and (char.isalnum() or char in " _:,;.{}()<>=+*/!#$%&@~'"):
        return char
    point = ord(char)
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def _count(low: int, high: int | None) -> str:
    if high is None:
        return "*" if low == 0 else "+" if low == 1 else f"{{{low},}}"
    return "?" if (low, high) == (0, 1) else f"{{{low},{high}}}"


def _is_class(expr: Expr) -> bool:
    return isinstance(expr, Term) and isinstance(expr.regex, Chars)


def _grouped(expr: Expr, text: str) -> str:
    """The text as a part of something larger."""
    return f"({text})" if children(expr) else text
