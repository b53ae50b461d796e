"""Terminals that the greedy lexer of llguidance reads rightly: literals are cut, large automata become rules.

Keys of a JSON object are written with the punctuation around them, `,"name":`, because one literal is the least work.
Where `,` alone may be followed by a quote too, a lexer that reads the longest match would take the quote for the
literal's and lose every other key. The literal is then cut behind the comma; see `productions.maximal_munch`.

The multiples of a number are a small automaton, but mostly no expression of reasonable size. They are written as
right-linear rules, one for each state. The terminals of those rules are single characters, so every other terminal that
could be read in place of the first of them is written in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from radixrt.constrained.productions import NO_TEXT, Expr, Lit, NotExpressible, Productions, Ref, Seq, Term, alt
from radixrt.constrained.productions.maximal_munch import Terminal, followers, terminals_of
from radixrt.constrained.regex import EMPTY, CharSet, Regex, chars, derive
from radixrt.constrained.regex.automaton import Dfa
from radixrt.constrained.regex.derivatives import first
from radixrt.constrained.regex.multiples import MAX_STATES
from radixrt.constrained.regex.nodes import Alternate, Complement, Concat, Intersect, Words
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
    return pieces.of_cut(texts)


class _Pieces:
    """Literals being cut. A cut creates new terminals, because of which further literals may have to be cut.

    Args:
        after: for each literal, the bits of the characters that may follow the literal.
        languages: (language, bits of its first characters, bits of the following characters) of each terminal that is
            no literal.
        bits: the bit of each character.
    """

    def __init__(self, after: dict[str, int], languages: list[tuple[Regex, int, int]], bits: dict[str, int]) -> None:
        self._follow = after  # by piece
        self._parts: dict[str, list[str]] = {}  # of each piece that was cut
        self._languages = languages
        self._bits = bits
        self._ends: dict[str, set[int]] = {}
        self._beginning: dict[int, dict[str, _Group]] = {}

    def of_cut(self, texts: Iterable[str]) -> dict[str, list[str]]:
        """The pieces of each of the literals that was cut."""
        return {text: list(self._pieces(text)) for text in texts if text in self._parts}

    def _pieces(self, text: str) -> Iterator[str]:
        parts = self._parts.get(text)
        if parts is None:
            yield text
        else:
            for part in parts:
                yield from self._pieces(part)

    def cut(self) -> bool:
        """Cut the pieces as they are now, once; False if there was nothing to cut."""
        split: dict[str, list[str]] = {}
        prefixes: list[str] = []
        for piece in sorted(self._follow):
            cuts = self._ends_of_languages(piece)
            while prefixes and not piece.startswith(prefixes[-1]):
                prefixes.pop()
            if prefixes:
                goes_on = {len(one) for one in prefixes if self._follow[one] & self._bits[piece[len(one)]]}
                cuts = cuts | goes_on if goes_on else cuts
            if cuts:
                split[piece] = [piece[low:high] for low, high in pairwise([0, *sorted(cuts), len(piece)])]
            prefixes.append(piece)
        self._parts |= split
        for piece in split:
            after = self._follow.pop(piece)
            for part in reversed(list(self._pieces(piece))):
                self._follow[part] = self._follow.get(part, 0) | after
                after = self._bits[part[0]]
        return bool(split)

    def _ends_of_languages(self, piece: str) -> set[int]:
        """Offsets in the piece at which another terminal may have ended."""
        found = self._ends.get(piece)
        if found is None:
            found = self._ends[piece] = set()
            for last, group in self._beginning_with(self._bits[piece[0]]).items():
                bits = [(at, self._bits[piece[at]]) for at in _places_after(last, piece)]
                places = [(at, bit) for at, bit in bits if bit & group.follow]
                for whole, follow, listed in group.languages if places else ():
                    missing = [at for at, bit in places if follow & bit and at not in found]
                    if missing:
                        found.update(at for at in _ends_within(whole, piece, missing) if piece[:at] not in listed)
        return found

    def _beginning_with(self, bit: int) -> dict[str, _Group]:
        """Return the languages that begin with a character, grouped by the last text of their strings.

        Languages that differ only in excluded strings become a single language, from which the strings are excluded
        that all of these languages exclude.
        """
        groups = self._beginning.get(bit)
        if groups is None:
            merged: dict[tuple[Regex, int], frozenset[str]] = {}
            for regex, begins, follow in self._languages:
                if begins & bit:
                    whole, listed = without_listed(regex) if isinstance(regex, Intersect) else (regex, frozenset[str]())
                    merged[whole, follow] = merged.get((whole, follow), listed) & listed
            groups = self._beginning[bit] = {}
            for (whole, follow), listed in merged.items():
                group = groups.setdefault(_last_text(whole), _Group())
                group.follow |= follow
                group.languages.append((whole, follow, listed))
        return groups


@dataclass(slots=True)
class _Group:
    """Languages whose strings all end with the same text.

    Attributes:
        follow: bits of the characters that may follow any language of the group.
        languages: (language, bits of the following characters, excluded strings) of each language.
    """

    follow: int = 0
    languages: list[tuple[Regex, int, frozenset[str]]] = field(default_factory=list)


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
    if regex.text is not None:
        return regex.text
    if isinstance(regex, Concat):
        return _last_text(regex.chain()[-1])
    if isinstance(regex, Words):
        return _common_end(regex.words)
    if isinstance(regex, Alternate):
        return _common_end([_last_text(option) for option in regex.options])
    if isinstance(regex, Intersect):
        return max([_last_text(item) for item in regex.items if not isinstance(item, Complement)], key=len, default="")
    return ""


def _common_end(texts: Sequence[str]) -> str:
    """The longest text with which all of them end."""
    end = min(texts, key=len)
    while not all(text.endswith(end) for text in texts):
        end = end[1:]
    return end


def _places_after(last: str, piece: str) -> Iterator[int]:
    """Yield the offsets strictly inside of a piece at which a text ends."""
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
    regexes = productions.layout.terms
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
