"""Stop strings combined with a constraint, such that an output that ends with a stop string is a complete text of the
constraint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from radixrt.constrained.productions import (
    Alt,
    AnyOrder,
    Expr,
    Lit,
    Productions,
    Ref,
    Rep,
    Seq,
    Special,
    Term,
    alt,
    optional,
    seq,
)
from radixrt.constrained.regex import (
    ANY,
    ANY_CHAR,
    EMPTY,
    CharSet,
    Regex,
    RegexTooComplex,
    alternate,
    chars,
    complement,
    concat,
    derive,
    intersect,
    is_empty,
    literal,
    literals,
)
from radixrt.constrained.regex import optional as optionally
from radixrt.errors import RequestError, shown

MAX_STEPS = 200_000
MAX_COUNTED = 64
"""Maximum count of repetitions that is tracked exactly. A larger count is treated as unbounded."""


def regex_with_stops(regex: Regex, stops: Sequence[str]) -> Regex:
    """Return the texts of `regex`, each optionally followed by a stop string. Texts that contain a stop string are
    excluded.

    Raises:
        RequestError: every text of `regex` contains a stop string.
    """
    if _is_apart(regex, stops):
        return concat(regex, optionally(literals(_reachable(stops))))
    # Texts without a stop string; and, for each stop string, texts followed by it in which no stop string ends sooner,
    # and no longer stop string ends at the same position.
    any_stop = literals(stops)
    sooner = complement(concat(ANY, any_stop, ANY_CHAR, ANY))
    options = [intersect(regex, complement(concat(ANY, any_stop, ANY)))]
    for stop in stops:
        longer = [other for other in stops if other != stop and other.endswith(stop)]
        options.append(intersect(concat(regex, literal(stop)), sooner, complement(concat(ANY, literals(longer)))))
    made = alternate(*options)
    if is_empty(made) and not is_empty(regex):
        raise RequestError(
            "each text of the regex has a stop string in it; a stop string comes behind the text, so leave it out of "
            "the regex or of stop",
            param="stop",
        )
    return made


def grammar_with_stops(productions: Productions, stops: Sequence[str]) -> Productions:
    """Return the texts of a grammar, where no text contains a stop string. If no stop string can begin inside of a
    text, a stop string may follow the text.

    Args:
        productions: pruned.

    Raises:
        RequestError: a text of the grammar holds a stop string.
    """
    # A terminal in which a stop string may begin needs the full check. Then no stop string may follow the text.
    for expr in productions.layout.order:
        regex = expr.regex if isinstance(expr, Term) else None
        if isinstance(expr, Lit | Special):
            regex = literal(expr.text)
        if regex is not None and not _is_apart(regex, stops):
            check_stops(productions, stops)
            return productions
    end = optional(alt(*(Lit(stop) for stop in _reachable(stops))))
    rules = dict(productions.rules)
    start = productions.start
    while start in rules:
        start += "_"
    return Productions({start: seq(Ref(productions.start), end), **rules}, start)


def check_stops(productions: Productions, stops: Sequence[str]) -> None:
    """Refuse stop strings that a text of the grammar can hold outside of free text at which the output may end.

    Args:
        productions: pruned.

    Raises:
        RequestError: names the stop string.
    """
    for stop in stops:
        try:
            found = f"a text of the constraint can hold {shown(stop)}" if _Search(productions, stop).finds() else ""
        except RegexTooComplex:
            found = f"the constraint is too complex to tell whether a text of it can hold {shown(stop)}"
        if found:
            raise RequestError(
                f"stop: {found}, and would be cut there; leave that stop string out, or write a constraint that cannot "
                "produce it",
                param="stop",
            )


class _Search:
    """Runs the automaton that searches a stop string (Knuth-Morris-Pratt) over all texts of a grammar at once.

    A state is the number of characters of the stop string with which the text so far ends. The last state, the whole
    stop string, is never left. Sets of states are bit masks.
    """

    def __init__(self, productions: Productions, stop: str) -> None:
        self._productions = productions
        self._stop = stop
        self._found = 1 << len(stop)
        self._letters = CharSet.of(stop)
        self._moves = _moves(stop)
        self._terminals: dict[tuple[Regex, int], int] = {}
        self._rules: dict[tuple[str, int], int] = {(productions.start, 0): 0}
        self._steps = 0

    def finds(self) -> bool:
        """Return True if a text holds the stop string.

        Raises:
            RegexTooComplex: it takes too long to tell.
        """
        while True:
            before = dict(self._rules)
            for rule, state in before:
                reached = self._after(self._productions.rules[rule], 1 << state)
                if reached & self._found:
                    return True
                self._rules[rule, state] = reached
            if self._rules == before:
                return False

    def _after(self, expr: Expr, states: int) -> int:
        """Return the states after a text of the expression that began in any state of `states`."""
        self._count()
        if states & self._found:
            return self._found
        if isinstance(expr, Seq):
            for part in expr.parts:
                states = self._after(part, states)
            return states
        if isinstance(expr, Alt):
            reached = 0
            for option in expr.options:
                reached |= self._after(option, states)
            return reached
        if isinstance(expr, Rep):
            return self._repeated(expr, states)
        if isinstance(expr, AnyOrder):
            return self._in_any_order(expr, states)
        reached = 0
        for state in _members(states):
            reached |= self._after_leaf(expr, state)
        return reached

    def _after_leaf(self, expr: Lit | Term | Ref | Special, state: int) -> int:
        if isinstance(expr, Ref):
            return self._rules.setdefault((expr.rule, state), 0)
        if isinstance(expr, Lit):
            return 1 << self._read(state, expr.text)
        if isinstance(expr, Special):  # shown as its text, or not at all
            return 1 << self._read(state, expr.text) | 1 << state
        if expr.mark is not None:
            return self._found if state else 1 << self._read(0, expr.mark)
        known = self._terminals.get((expr.regex, state))
        if known is None:
            known = self._terminals[expr.regex, state] = self._after_terminal(expr.regex, state)
        return known

    def _in_any_order(self, expr: AnyOrder, states: int) -> int:
        """Same as `_after`, for parts without bounds: a stop string that only bounds exclude counts as found."""
        reached = 0
        for part in expr.parts:
            reached |= self._after(part.first, states)
        while True:
            before = reached
            for part in expr.parts:
                reached |= self._after(part.later, reached)
            if reached == before or reached & self._found:
                return reached

    def _repeated(self, expr: Rep, states: int) -> int:
        counted = min(expr.low, MAX_COUNTED)
        for _ in range(counted):
            states = self._after(expr.item, states)
        whole = states
        most = None if expr.high is None or expr.high > MAX_COUNTED else expr.high - counted
        while most is None or most > 0:
            states = self._after(expr.item, states)
            if not states & ~whole:
                break
            whole |= states
            most = None if most is None else most - 1
        return whole

    def _after_terminal(self, regex: Regex, state: int) -> int:
        reached = 0
        seen = {(regex, state)}
        pending = [(regex, state)]
        while pending:
            self._count()
            regex, state = pending.pop()
            reached |= (1 << state) if regex.nullable else 0
            for charset in regex.classes():
                target = derive(regex, chr(charset.edges[0]))
                if target is EMPTY or is_empty(target):
                    continue
                afters = {self._moves[state].get(char, 0) for char in charset & self._letters}
                if charset - self._letters:
                    afters.add(0)
                for after in afters:
                    if after == len(self._stop):
                        return self._found
                    if (target, after) not in seen:
                        seen.add((target, after))
                        pending.append((target, after))
        return reached

    def _read(self, state: int, text: str) -> int:
        for char in text:
            state = state if state == len(self._stop) else self._moves[state].get(char, 0)
        return state

    def _count(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise RegexTooComplex("stop strings")


def _moves(stop: str) -> list[dict[str, int]]:
    """The state after each character that does not lead to state 0, for each state but the last."""
    moves: list[dict[str, int]] = [{stop[0]: 1}]
    failed = 0
    for at in range(1, len(stop)):
        moves.append({**moves[failed], stop[at]: at + 1})
        failed = moves[failed].get(stop[at], 0)
    return moves


def _members(states: int) -> Iterable[int]:
    return (at for at in range(states.bit_length()) if states >> at & 1)


def _is_apart(regex: Regex, stops: Sequence[str]) -> bool:
    """Return True if no text of the regex has a character that a stop string begins with."""
    first = chars(CharSet.of({stop[0] for stop in stops}))
    try:
        return is_empty(intersect(regex, concat(ANY, first, ANY)))
    except RegexTooComplex:
        return False


def _reachable(stops: Sequence[str]) -> list[str]:
    """Return the stop strings that can end a text: if another stop string ends inside of a string, it comes sooner."""
    return [stop for stop in stops if not any(other in stop[:-1] for other in stops)]
