"""xgrammar: an Earley parser over character-level rules with masks computed ahead. The only module that imports it.

Importing it loads torch: 2.2 s, 260 MB, and the interpreter held for up to 0.2 s at a time, so it happens when a
request first needs it. Measured here (49,152 tokens): compiling takes 2 ms to minutes and cannot be interrupted, a mask
1 to 10 us where the grammar suits it and up to half a second where not, a fork 1 us, accept 1 us. It takes control
tokens for text and knows no grammar symbol for them; the masks are cut down by `TextGrammar`.

A compiled grammar crosses processes as JSON where that is worth it: 75 KB in memory are 0.16 MB of JSON, written in
4.5 ms and read in 2.2 ms, but 17 MB are 362 MB, written in 26 s and read in 4 s. Smaller ones are compiled again.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

from radixrt.constrained.backends.borders import Borders
from radixrt.constrained.backends.lark import written_count
from radixrt.constrained.grammar import Bitmask, bitmask_words
from radixrt.constrained.matcher import GrammarBackend, GrammarError, Matcher
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
    children,
    fold,
)
from radixrt.constrained.regex import CharSet, Regex, RegexTooComplex
from radixrt.constrained.regex.automaton import Dfa
from radixrt.constrained.regex.nodes import Alternate, Chars, Concat, Repeat, Words
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.errors import InvariantError

MAX_SERIALIZED_BYTES = 1024 * 1024
"""A larger one takes longer to load than it is worth: 17 MB in memory are 362 MB of text, 4 s to load."""


class XgrammarBackend(GrammarBackend):
    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._xgrammar: Any = xgrammar
        self._vocabulary = vocabulary
        self._borders = Borders(vocabulary)
        names = {i: text.encode() for text, i in vocabulary.control_tokens.items()}
        tokens = [data or names.get(i, b"") for i, data in enumerate(vocabulary.table)]
        self._info = xgrammar.TokenizerInfo(
            tokens, xgrammar.VocabType.RAW, vocab_size=vocabulary.vocab_size, stop_token_ids=list(vocabulary.eos_ids)
        )
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)

    def write(self, productions: Productions) -> str:
        return to_ebnf(productions)

    def load(self, source: str, serialized: str | None = None) -> Matcher:
        try:
            if serialized is not None:
                compiled = self._xgrammar.CompiledGrammar.deserialize_json(serialized, self._info)
            else:
                compiled = self._compiler.compile_grammar(source)
        except Exception as error:  # the library raises bare RuntimeError, whose text quotes the whole grammar
            raise GrammarError(f"xgrammar refuses the grammar: {_reason(error)}") from None
        return XgrammarMatcher(self._xgrammar.GrammarMatcher(compiled), self._vocabulary, self._borders, compiled)

    def serialize(self, prototype: Matcher) -> str | None:
        assert isinstance(prototype, XgrammarMatcher)
        if prototype.compiled.memory_size_bytes > MAX_SERIALIZED_BYTES // 2:
            return None
        text: str = prototype.compiled.serialize_json()
        return text if len(text) <= MAX_SERIALIZED_BYTES else None


class XgrammarMatcher(Matcher):
    """See the module's docstring."""

    __slots__ = ("_borders", "_matcher", "_vocabulary", "compiled")

    def __init__(self, matcher: Any, vocabulary: Vocabulary, borders: Borders, compiled: Any) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._borders = borders
        self.compiled = compiled

    def fill(self, row: Bitmask) -> None:
        self._matcher.fill_next_token_bitmask(row.view(np.int32)[None])

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)

    def may_end(self) -> bool:
        return bool(self._matcher.is_completed())

    def must_end(self) -> bool:
        if not self._matcher.is_completed():
            return False
        row = np.zeros(bitmask_words(self._vocabulary.vocab_size), np.uint32)
        self.fill(row)
        return not np.bitwise_and(row, self._vocabulary.text_mask).any()

    def forced(self) -> list[int]:
        try:
            text: str = self._matcher.find_jump_forward_string()
        except UnicodeDecodeError:  # the forced bytes are the rest of a character
            return []
        if not text:
            return []
        after = self._matcher.fork()
        if not after.accept_string(text):
            raise GrammarError("xgrammar does not take the text that it forces")
        row = np.zeros(bitmask_words(self._vocabulary.vocab_size), np.uint32)
        after.fill_next_token_bitmask(row.view(np.int32)[None])
        row &= self._vocabulary.text_mask
        return self._borders.certain_tokens(text.encode(), self._borders.first_bytes(row))

    def fork(self) -> Matcher:
        return XgrammarMatcher(self._matcher.fork(), self._vocabulary, self._borders, self.compiled)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:200] if lines else type(error).__name__


# --- productions in the EBNF of xgrammar ---


MAX_STATES: Final = 400
"""States of the largest automaton that xgrammar compiles in reasonable time."""
MAX_COUNT: Final = 1_000_000


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
    """Writes a grammar in xgrammar's EBNF: a rule for each rule of the productions, and for each shared terminal."""

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
        """Return an unused rule name that resembles `wanted`."""
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
        if isinstance(expr, AnyOrder):
            raise NotExpressible("xgrammar has no counts, which parts in any order need; leave out structured.backend")
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
            return (f"({item})" if item[-1] in "*+?}" else item) + written_count(low, high)
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
            return _class(regex.item.charset) + written_count(regex.low, regex.high)
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
        """Write an automaton as rules; return the name of the start state's rule.

        A state with a single incoming and a single outgoing arrow is written inside of its predecessor, all other
        states become rules. Terminals share the rules of states with the same language, because many terminals end
        alike.
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

        # Name all missing rules first, because rules of states may refer to one another.
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


def _is_class(expr: Expr) -> bool:
    return isinstance(expr, Term) and isinstance(expr.regex, Chars)


def _grouped(expr: Expr, text: str) -> str:
    """The text as a part of something larger."""
    return f"({text})" if children(expr) else text
