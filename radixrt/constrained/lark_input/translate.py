"""Lark grammars as productions.

A terminal is a regular language, and a rule is a production. llguidance's lexer reads the longest terminal; the
productions have all texts of the grammar as Lark defines them, however they are split into terminals. Both are the
same where the terminals satisfy the maximal-munch rule, and then the terminals stay as they are. Otherwise the grammar
is read by single characters, as a user's EBNF is.
"""

from __future__ import annotations

import re
from typing import Final

from radixrt.constrained.lark_input.patterns import read_pattern
from radixrt.constrained.lark_input.syntax import (
    Both,
    Choice,
    Grammar,
    Name,
    Node,
    NotTranslated,
    Pattern,
    Repeated,
    Sequence,
    Text,
    Token,
    Without,
    is_terminal,
    parse_lark,
)
from radixrt.constrained.productions import Expr, Lit, Productions, Ref, Rep, Special, Term, alt, optional, seq
from radixrt.constrained.productions.expressions import GrammarTooComplex
from radixrt.constrained.productions.maximal_munch import MaximalMunch, terminals_of
from radixrt.constrained.productions.recursion import Entangled, without_left_recursion, without_right_recursion
from radixrt.constrained.productions.terminal_inference import with_terminals
from radixrt.constrained.regex import (
    ANY,
    EPSILON,
    CharSet,
    Regex,
    RegexTooComplex,
    alternate,
    chars,
    complement,
    concat,
    intersect,
    literal,
    repeat,
)
from radixrt.constrained.regex.charset import ignoring_case
from radixrt.constrained.regex.nodes import Alternate, Chars, Concat, Repeat, Words

START: Final = "start"
IGNORED: Final = "%ignored"
MAX_PAIRS: Final = 250
"""Terminals that are checked in pairs."""


def is_lark(source: str) -> bool:
    """Return whether a grammar is in Lark's notation, decided as vLLM does: no rule of it is defined by `::=`."""
    lines = (re.sub(r"(#|//).*$", "", line) for line in source.split("\n"))
    return not any("::=" in line for line in lines)


def translate(source: str) -> Productions:
    """The productions of a Lark grammar, pruned; a greedy lexer reads their terminals rightly.

    Raises:
        NotTranslated: a construct cannot be translated; the message names the construct.
        EmptyLanguage: no text satisfies the grammar.
    """
    grammar = parse_lark(source)
    if START not in grammar.definitions:
        raise NotTranslated(f"there is no rule named {START!r}, which is where the grammar starts")
    try:
        made = without_left_recursion(_Translator(grammar).productions().prune())
        if len(terminals_of(made)) <= MAX_PAIRS and not MaximalMunch().violations(made):
            made = without_right_recursion(made).prune()
        else:
            made = with_terminals(without_right_recursion(made.rewrite(_in_characters)).prune())
        made.validate()
        return made
    except Entangled as error:
        raise NotTranslated(error.message) from None
    except (RegexTooComplex, GrammarTooComplex) as error:
        raise NotTranslated(str(error)) from None


class _Translator:
    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._terminals: dict[str, Regex] = {}
        self._open: set[str] = set()

    def productions(self) -> Productions:
        rules: dict[str, Expr] = {}
        ignored = [self._regex(node) for node in self._grammar.ignored]
        if ignored:
            between = repeat(alternate(*ignored), 1)
            rules[IGNORED] = optional(Term(between))
        for name, node in self._grammar.definitions.items():
            if not is_terminal(name):
                rules[name] = self._expr(node)
        return Productions(rules, START)

    def _expr(self, node: Node) -> Expr:
        if isinstance(node, Name) and not node.is_terminal:
            if node.name not in self._grammar.definitions:
                raise NotTranslated(f"the rule {node.name!r} is not defined")
            return Ref(node.name)
        if isinstance(node, Sequence):
            return seq(*map(self._expr, node.parts))
        if isinstance(node, Choice):
            return alt(*map(self._expr, node.options))
        if isinstance(node, Repeated):
            return Rep(self._expr(node.part), node.low, node.high)
        if isinstance(node, Token):
            if re.fullmatch(r"<\[.*\]>", node.text):
                raise NotTranslated("control tokens are translated by name, not by number")
            return self._spaced(Special(node.text))
        if isinstance(node, Text) and not node.ignores_case:
            return self._spaced(Lit(node.text)) if node.text else seq()
        regex = self._regex(node)
        if regex.nullable and self._grammar.ignored:
            raise NotTranslated("a terminal that may be empty, beside %ignore, is not translated")
        return self._spaced(Term(regex))

    def _spaced(self, expr: Expr) -> Expr:
        """Return the terminal followed by ignored text. Like llguidance, ignore nothing before the first terminal."""
        return seq(expr, Ref(IGNORED)) if self._grammar.ignored else expr

    def _regex(self, node: Node) -> Regex:
        if isinstance(node, Text):
            if not node.ignores_case:
                return literal(node.text)
            return concat(*(chars(ignoring_case(CharSet.of(char))) for char in node.text))
        if isinstance(node, Pattern):
            return read_pattern(node.pattern, node.flags)
        if isinstance(node, Sequence):
            return concat(*map(self._regex, node.parts))
        if isinstance(node, Choice):
            return alternate(*map(self._regex, node.options))
        if isinstance(node, Both):
            return intersect(*map(self._regex, node.parts))
        if isinstance(node, Without):
            return intersect(ANY, complement(self._regex(node.part)))
        if isinstance(node, Repeated):
            return repeat(self._regex(node.part), node.low, node.high)
        if isinstance(node, Token) or not node.is_terminal:
            raise NotTranslated("a terminal consists of texts, patterns and other terminals")
        return self._terminal(node.name)

    def _terminal(self, name: str) -> Regex:
        found = self._terminals.get(name)
        if found is None:
            if name not in self._grammar.definitions:
                raise NotTranslated(f"the terminal {name!r} is not defined")
            if name in self._open:
                raise NotTranslated(f"the terminal {name!r} refers to itself")
            self._open.add(name)
            found = self._terminals[name] = self._regex(self._grammar.definitions[name])
        return found


def _in_characters(expr: Expr) -> Expr:
    return _characters(expr.regex) if isinstance(expr, Term) else expr


def _characters(regex: Regex) -> Expr:
    """Return the language as an expression in which every term reads a single character.

    Raises:
        NotTranslated: the language has an intersection or a complement.
    """
    if regex.text is not None:
        return Lit(regex.text) if regex.text else seq()
    if isinstance(regex, Chars):
        return Term(regex)
    if isinstance(regex, Words):
        return alt(*(Lit(word) if word else seq() for word in regex.words))
    if isinstance(regex, Concat):
        return seq(*map(_characters, regex.chain()))
    if isinstance(regex, Alternate):
        return alt(*map(_characters, regex.options))
    if isinstance(regex, Repeat):
        return Rep(_characters(regex.item), regex.low, regex.high)
    if regex is EPSILON:
        return seq()
    raise NotTranslated("terminals that are ambiguous together, one of them made by & or ~, are not translated")
