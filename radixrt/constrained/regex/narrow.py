"""Intersections with a repeated character class, done on the structure of the other side.

Such a class says two things: which characters may occur, and how many. The first is applied to every class inside the
other expression; the second is shared out among its parts where only few ways of sharing out are possible.
"""

from __future__ import annotations

from typing import Final

from radixrt.constrained.regex.algebra import alternate, chars, concat, literals, repeat
from radixrt.constrained.regex.base import EMPTY, Regex
from radixrt.constrained.regex.charset import CharSet
from radixrt.constrained.regex.nodes import EPSILON, Alternate, Chars, Concat, Repeat, Words, subterms

_MAX_WAYS: Final = 16
_MAX_CLIPS: Final = 200


def narrow(node: Regex, charset: CharSet, low: int, high: int | None) -> Regex | None:
    """The strings of node made of low to high characters of charset, if an expression of similar size says so.

    Node has no intersection, complement or remainder.
    """
    if not node.alphabet().issubset(charset):
        node = restrict(node, charset)
    return _Clipper().clip(node, low, high)


def restrict(node: Regex, charset: CharSet) -> Regex:
    """The strings of node made of characters of charset. Node has no intersection, complement or remainder."""
    made: dict[Regex, Regex] = {EMPTY: EMPTY, EPSILON: EPSILON}
    for part in subterms(node):
        if isinstance(part, Chars):
            made[part] = chars(part.charset & charset)
        elif isinstance(part, Words):
            made[part] = literals([word for word in part.words if CharSet.of(word).issubset(charset)])
        elif isinstance(part, Concat):
            made[part] = concat(made[part.head], made[part.tail])
        elif isinstance(part, Alternate):
            made[part] = alternate(*[made[option] for option in part.options])
        elif isinstance(part, Repeat):
            made[part] = repeat(made[part.item], part.low, part.high)
    return made[node]


class _Clipper:
    """Bounds lengths, within a budget of steps."""

    def __init__(self) -> None:
        self._left = _MAX_CLIPS

    def clip(self, node: Regex, low: int, high: int | None) -> Regex | None:
        """The strings of node with low to high characters; None if that would take a large expression."""
        shortest, longest = node.min_length, node.max_length
        if shortest >= low and (high is None or (longest is not None and longest <= high)):
            return node
        if (high is not None and shortest > high) or (longest is not None and longest < low):
            return EMPTY
        self._left -= 1
        if self._left < 0:
            return None
        if isinstance(node, Words):
            return literals([word for word in node.words if low <= len(word) and (high is None or len(word) <= high)])
        if isinstance(node, Repeat):
            return self._clip_repeat(node, low, high)
        if isinstance(node, Concat):
            return self._clip_chain(node.chain(), low, high)
        assert isinstance(node, Alternate)
        options = []
        for option in node.options:
            clipped = self.clip(option, low, high)
            if clipped is None:
                return None
            options.append(clipped)
        return alternate(*options)

    def _clip_repeat(self, node: Repeat, low: int, high: int | None) -> Regex | None:
        size = node.item.min_length
        if node.item.max_length == size:
            fewest = max(node.low, -(-low // size))
            most = node.high if high is None else high // size if node.high is None else min(node.high, high // size)
            return repeat(node.item, fewest, most)
        if high is None or size == 0:
            return None
        times = range(node.low, min(high // size, node.high if node.high is not None else high) + 1)
        if len(times) > _MAX_WAYS:
            return None
        if len(times) == 1:
            return self._clip_chain([node.item] * times[0], low, high) if times[0] <= _MAX_WAYS else None
        options = []
        for count in times:
            clipped = self.clip(repeat(node.item, count, count), low, high)
            if clipped is None:
                return None
            options.append(clipped)
        return alternate(*options)

    def _clip_chain(self, parts: list[Regex], low: int, high: int | None) -> Regex | None:
        """Tries the lengths of the part that has the fewest to choose from."""
        variable = [at for at, part in enumerate(parts) if part.min_length != part.max_length]
        shortest = sum(part.min_length for part in parts)
        if len(variable) == 1:
            at = variable[0]
            others = shortest - parts[at].min_length
            inner = self.clip(parts[at], max(low - others, 0), None if high is None else high - others)
            return None if inner is None else concat(*parts[:at], inner, *parts[at + 1 :])
        if not variable:
            return concat(*parts) if low <= shortest and (high is None or shortest <= high) else EMPTY
        ways, at = min((_ways(parts[at], shortest, low, high), at) for at in variable)
        if ways > _MAX_WAYS:
            return None
        part = parts[at]
        options = []
        for size in range(part.min_length, part.min_length + ways):
            if high is None and size - part.min_length + shortest >= low:
                rest = self.clip(part, size, None)
                clipped = None if rest is None else concat(*parts[:at], rest, *parts[at + 1 :])
            else:
                exact = self.clip(part, size, size)
                if exact is EMPTY:
                    continue
                clipped = None if exact is None else self._clip_chain([*parts[:at], exact, *parts[at + 1 :]], low, high)
            if clipped is None:
                return None
            options.append(clipped)
        return alternate(*options)


def _ways(part: Regex, shortest: int, low: int, high: int | None) -> int:
    """How many lengths of a part need to be told apart, where all parts together are at least `shortest`.

    With an upper bound these are all lengths that leave room for the others; without one, those that leave something
    for the others to make up, and one for all that do not.
    """
    others = shortest - part.min_length
    longest = max(low - others, part.min_length) if high is None else high - others
    if part.max_length is not None:
        longest = min(longest, part.max_length)
    return longest - part.min_length + 1
