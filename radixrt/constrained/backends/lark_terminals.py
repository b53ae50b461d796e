"""Terminals that the greedy lexer of llguidance reads rightly: literals are cut, large automata become rules.

Keys of a JSON object are written with the punctuation around them, `,"name":`, because one literal is the least work.
Where `,` alone may be followed by a quote too, a lexer that reads the longest match would take the quote for the
literal's and lose every other key. The literal is then cut behind the comma; see `productions.maximal_munch`.

The multiples of a number are a small automaton, but mostly no expression of reasonable size. They are written as
right-linear rules, one for each state. The terminals of those rules are single characters, so every other terminal that
could be read in place of the first of them is written in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise

from radixrt.constrained.productions import NO_TEXT, Expr, Lit, NotExpressible, Productions, Ref, Seq, Term, alt
from radixrt.constrained.productions.maximal_munch import Terminal, followers, terminals_of
from radixrt.constrained.regex import EMPTY, CharSet, Regex, chars, derive
from radixrt.constrained.regex.automaton import MAX_STATES, Dfa
from radixrt.constrained.regex.derivatives import first
from radixrt.constrained.regex.nodes import Concat, Intersect
from radixrt.constrained.regex.search import without_listed

# --- cutting literals ---


def cut_literals(productions: Productions) -> dict[str, list[str]]:
    """The pieces of each literal that has to be cut.

    Then no literal continues where another terminal ends and such a character may follow it.
    """
    terminals = terminals_of(productions)
    texts = [one for one in terminals if isinstance(one, str)]
    bits = {char: 1 << place for place, char in enumerate(dict.fromkeys("".join(texts)))}
    begins = {one: _begins(one, bits) for one in terminals}
    after = followers(productions, begins)
    languages = [(one, begins[one], after[one]) for one in terminals if isinstance(one, Regex) and after[one]]
    pieces = _Pieces({text: after[text] for text in texts}, languages, bits)
    while pieces.cut():
        pass
    return {text: parts for text, parts in pieces.parts.items() if len(parts) > 1}


class _Pieces:
    """Literals being cut; each cut makes pieces, which other literals may have to be cut for.

    Args:
        after: the bits that may follow each literal.
        languages: the other terminals with the bits that they begin with and that may follow them.
        bits: of each character.

    Attributes:
        parts: each literal in its pieces.
    """

    def __init__(self, after: dict[str, int], languages: list[tuple[Regex, int, int]], bits: dict[str, int]) -> None:
        self.parts = {text: [text] for text in after}
        self._after = after
        self._languages = languages
        self._bits = bits
        self._ends: dict[str, set[int]] = {}
        self._beginning: dict[int, dict[int, dict[Regex, frozenset[str]]]] = {}

    def cut(self) -> bool:
        """Cut the pieces as they are now, once; False if there was nothing to cut."""
        follow: dict[str, int] = {}
        for text, parts in self.parts.items():
            bits_after = self._after[text]
            for piece in reversed(parts):
                follow[piece] = follow.get(piece, 0) | bits_after
                bits_after = self._bits[piece[0]]
        split: dict[str, list[str]] = {}
        prefixes: list[str] = []
        for piece in sorted(follow):
            while prefixes and not piece.startswith(prefixes[-1]):
                prefixes.pop()
            cuts = {len(one) for one in prefixes if follow[one] & self._bits[piece[len(one)]]}
            cuts |= self._ends_of_languages(piece)
            if cuts:
                split[piece] = [piece[low:high] for low, high in pairwise([0, *sorted(cuts), len(piece)])]
            prefixes.append(piece)
        if split:
            for text, parts in self.parts.items():
                self.parts[text] = [small for piece in parts for small in split.get(piece, (piece,))]
        return bool(split)

    def _ends_of_languages(self, piece: str) -> set[int]:
        """Offsets in the piece at which another terminal may have ended."""
        found = self._ends.get(piece)
        if found is None:
            found = self._ends[piece] = set()
            places: dict[str, list[tuple[int, int]]] = {}
            for follow, wholes in self._beginning_with(self._bits[piece[0]]).items():
                for whole, listed in wholes.items():
                    last = _last_text(whole)
                    if last not in places:
                        places[last] = [(at, self._bits[piece[at]]) for at in _places_after(last, piece)]
                    missing = [at for at, bit in places[last] if follow & bit and at not in found]
                    if missing:
                        found.update(at for at in _ends_within(whole, piece, missing) if piece[:at] not in listed)
        return found

    def _beginning_with(self, bit: int) -> dict[int, dict[Regex, frozenset[str]]]:
        """The languages that begin with a character, by the bits that may follow them.

        Languages that differ only in strings that are excluded from them are one, without the strings that all exclude.
        """
        languages = self._beginning.get(bit)
        if languages is None:
            languages = self._beginning[bit] = {}
            for regex, begins, follow in self._languages:
                if begins & bit:
                    whole, listed = without_listed(regex) if isinstance(regex, Intersect) else (regex, frozenset[str]())
                    wholes = languages.setdefault(follow, {})
                    wholes[whole] = wholes.get(whole, listed) & listed
        return languages


def _begins(terminal: Terminal, bits: dict[str, int]) -> int:
    if isinstance(terminal, str):
        return bits[terminal[0]]
    begins = first(terminal)
    if len(begins) < len(bits):
        return sum([bits.get(char, 0) for char in begins])
    return sum([bit for char, bit in bits.items() if char in begins])


@lru_cache(maxsize=1024)
def _last_text(regex: Regex) -> str:
    """A text with which every string of the language ends."""
    return regex.chain()[-1].text or "" if isinstance(regex, Concat) else ""


def _places_after(last: str, piece: str) -> Iterator[int]:
    """Yield the offsets within a piece, not its ends, at which a text ends."""
    at = piece.find(last)
    while 0 <= at < len(piece) - len(last):
        if at + len(last):
            yield at + len(last)
        at = piece.find(last, at + 1)


def _ends_within(regex: Regex, text: str, offsets: list[int]) -> list[int]:
    """The offsets, in order, at which a string of the language may end."""
    found: list[int] = []
    at = 0
    for offset in offsets:
        while at < offset:
            regex = derive(regex, text[at])
            if regex is EMPTY:
                return found
            at += 1
        if regex.nullable:
            found.append(offset)
    return found


# --- terminals as right-linear rules ---


def with_linear_rules(productions: Productions, is_terminal: Callable[[Regex], bool]) -> Productions:
    """The same language, every `Term` being one that `is_terminal` takes; the same object where all are already.

    Raises:
        NotExpressible: the automaton of a terminal has more than `MAX_STATES` states.
    """
    leaves = [expr for expr in productions.layout.order if isinstance(expr, Lit | Term)]
    regexes = dict.fromkeys(expr.regex for expr in leaves if isinstance(expr, Term))
    linear = {regex for regex in regexes if not is_terminal(regex)}
    if not linear:
        return productions
    read = CharSet(())
    for regex in linear:
        read = read | regex.alphabet()
    while True:
        more = {regex for regex in regexes if regex not in linear and regex.max_length != 1 and first(regex) & read}
        if not more:
            break
        linear |= more
        for regex in more:
            read = read | regex.alphabet()
    rules: dict[str, Expr] = {}
    entries = {regex: _add_rules(regex, rules) for regex in regexes if regex in linear}

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Term) and expr.regex in entries:
            return Ref(entries[expr.regex])
        if isinstance(expr, Lit) and len(expr.text) > 1 and expr.text[0] in read:
            return Seq(tuple(map(Lit, expr.text)))
        return expr

    return Productions({**productions.rewrite(visit).rules, **rules}, productions.start)


def _add_rules(regex: Regex, rules: dict[str, Expr]) -> str:
    """Adds a rule for each state of the automaton; the name of the first."""
    dfa = Dfa.of(regex, MAX_STATES)
    if dfa is None:
        raise NotExpressible(f"a terminal has an automaton of more than {MAX_STATES} states")
    base = len(rules)

    def name(state: int) -> str:
        return f"state~{base + state}"  # no name that anyone else gives

    for state, arrows in enumerate(dfa.arrows):
        options: list[Expr] = [Seq((Term(chars(charset)), Ref(name(target)))) for charset, target in arrows]
        if dfa.accepting[state]:
            options.append(NO_TEXT)
        rules[name(state)] = alt(*options)
    return name(0)
