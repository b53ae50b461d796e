"""Constructors of regular languages, which simplify their arguments.

The simplified trees are small enough that derivatives reach the same trees again: sequences are chains; alternatives
are flat, sorted, without duplicates and factored by their common tails; counters of the same item merge. `EMPTY` is
never a part of a tree, so a tree without intersections and complements is empty only if it is `EMPTY`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from radixrt.constrained.regex.charset import NONE, CharSet
from radixrt.constrained.regex.interning import ANY, alternate_node, chars_node, concat_node, repeat_node, words_node
from radixrt.constrained.regex.nodes import EMPTY, EPSILON, Alternate, Chars, Concat, Regex, Repeat, Words

FEW: Final = 3
"""Maximum number of alternatives that are not compared pairwise."""
_LONG_CHAIN: Final = 16
_Choices: TypeAlias = tuple[CharSet, frozenset[str], frozenset[Regex], bool]
_Counted: TypeAlias = tuple[_Choices, list[tuple[int, int | None]]]
_NOTHING: Final[_Choices] = (NONE, frozenset(), frozenset(), True)


def chars(charset: CharSet) -> Regex:
    """One character of the set."""
    return chars_node(charset) if charset.edges else EMPTY


def literal(text: str) -> Regex:
    """Return the language of a single text; `EMPTY` for a text with a surrogate, because no language has such a
    text."""
    if not text.isascii() and _has_surrogate(text):
        return EMPTY
    if len(text) > 1:
        return words_node((text,))
    return chars_node(CharSet.of(text)) if text else EPSILON


def literals(texts: Iterable[str]) -> Regex:
    """Any of the texts: `alternate` of their literals, for many of them."""
    return _finite({text for text in texts if text.isascii() or not _has_surrogate(text)}, NONE)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


def concat(*parts: Regex) -> Regex:
    """The parts one after the other."""
    result = EPSILON
    run: list[str] = []
    for part in reversed(parts):
        if part.text is not None:
            run.append(part.text)
            continue
        if run:
            result = prepend(literal("".join(reversed(run))), result)
            run = []
        result = prepend(part, result)
    return prepend(literal("".join(reversed(run))), result) if run else result


def prepend(head: Regex, tail: Regex) -> Regex:
    """`concat(head, tail)`."""
    if head is EPSILON:
        return tail
    if head is EMPTY or tail is EMPTY:
        return EMPTY
    if tail is EPSILON:
        return head
    if isinstance(head, Concat):
        for part in reversed(head.chain()):
            tail = _link(part, tail)
        return tail
    return _link(head, tail)


def _link(head: Regex, tail: Regex) -> Regex:
    """A part that is not a sequence in front of a tail: joins literals and adds up counters of the same item."""
    follower, rest = (tail.head, tail.tail) if isinstance(tail, Concat) else (tail, EPSILON)
    if head.text is not None and follower.text is not None:
        joined = words_node((head.text + follower.text,))
        return joined if rest is EPSILON else concat_node(joined, rest)
    head_item, head_low, head_high = counted_as(head)
    item, low, high = counted_as(follower)
    if head_item is item:
        total = None if high is None or head_high is None else head_high + high
        joined = repeat(item, head_low + low, total)
        return joined if rest is EPSILON else concat_node(joined, rest)
    return concat_node(head, tail)


def repeat(item: Regex, low: int = 0, high: int | None = None) -> Regex:
    """Item from low to high times, without an upper bound where high is None."""
    if high is not None and low > high:
        return EMPTY
    if high == 0 or item is EPSILON:
        return EPSILON
    if item is EMPTY:
        return EMPTY if low else EPSILON
    if high == 1 and (low == 1 or item.nullable):
        return item
    if item.nullable:
        low = 0
    if isinstance(item, Repeat):
        inner_low, inner_high = item.low, item.high
        fewest = max(low, 1)
        dense = inner_high is None or (inner_high - inner_low) * fewest >= inner_low - 1 or high == fewest
        if dense and (low > 0 or inner_low <= 1):
            most = None if high is None or inner_high is None else inner_high * high
            return repeat(item.item, inner_low * low, most)
        if inner_low == 0:
            item = repeat(item.item, 1, inner_high)
            return repeat(item, 0, high)
    return repeat_node(item, low, high)


def optional(item: Regex) -> Regex:
    """Item or nothing."""
    return repeat(item, 0, 1)


def nonempty(node: Regex) -> Regex:
    """Return the nonempty strings of a language. Node has no intersection, complement or remainder."""
    if not node.nullable:
        return node
    if isinstance(node, Concat):
        options = []
        rest: Regex = node
        while isinstance(rest, Concat):
            options.append(prepend(nonempty(rest.head), rest.tail))
            rest = rest.tail
        return alternate(*options, nonempty(rest))
    if isinstance(node, Alternate):
        return alternate(*[nonempty(option) for option in node.options])
    if isinstance(node, Repeat):
        if not node.item.nullable:
            return repeat(node.item, 1, node.high)
        return prepend(nonempty(node.item), repeat(node.item, 0, None if node.high is None else node.high - 1))
    return EMPTY


def alternate(*options: Regex) -> Regex:
    """Any of the options."""
    if len(options) == 1:
        return options[0]
    # Flatten nested alternations, and sort the options by kind: single characters, texts, and all others.
    singles = NONE
    texts: set[str] = set()
    others: dict[Regex, None] = {}
    nullable = False
    pending = list(reversed(options))
    while pending:
        option = pending.pop()
        if type(option) is Chars:
            singles = option.charset if not singles.edges else singles | option.charset
        elif type(option) is Words:
            texts.update(option.words)
        elif type(option) is Alternate:
            pending.extend(option.options)
        elif option is EPSILON:
            nullable = True
        elif type(option) is Repeat and option.low == 0 and option.high == 1:
            nullable = True
            pending.append(option.item)
        elif option is ANY:
            return ANY
        elif option is not EMPTY:
            others[option] = None
    # Without other options, the language is finite and has a canonical form.
    if not others:
        made = _finite(texts, singles)
        return _or_nothing(made) if nullable else made
    # Simplify the options together. The order of the result does not depend on the order of the options, so that equal
    # alternations are the same node.
    if singles.edges:
        others[chars_node(singles)] = None
    if texts:
        others[words_node(tuple(sorted(texts)))] = None
    found = list(others)
    if len(found) > 1:
        found = absorb(_merge_counters(_factor(found)))
        if len(found) > FEW:
            found = drop_narrower(found)
    if len(found) == 1:
        made = found[0]
    else:
        made = alternate_node(tuple(sorted(found, key=_serial)))
    return _or_nothing(made) if nullable else made


def _serial(node: Regex) -> int:
    return node.serial


def _or_nothing(node: Regex) -> Regex:
    if node.nullable:
        return node
    if node is EMPTY:
        return EPSILON
    return repeat(node, 0, 1)


def _finite(texts: set[str], singles: CharSet) -> Regex:
    """Any of the texts, or one character of the set."""
    nullable = "" in texts
    short = [text for text in texts if len(text) < 2]
    if short:
        texts = texts.difference(short)
        singles = singles | CharSet.of(text for text in short if text)
    long = words_node(tuple(sorted(texts))) if texts else EMPTY
    if not singles.edges:
        made = long
    elif long is EMPTY:
        made = chars_node(singles)
    else:
        pair = (chars_node(singles), long)
        made = alternate_node(tuple(sorted(pair, key=_serial)))
    return _or_nothing(made) if nullable else made


def _factor(options: list[Regex]) -> list[Regex]:
    """Join options that end in the same tail: h1 t | h2 t | t becomes (h1 | h2 | nothing) t.

    An option that another begins with, and need not continue, is dropped: h | h t is h t where t may be nothing.
    """
    # Group the options by tail. `spare` has the heads that make an option of the same text redundant.
    heads: dict[Regex, list[Regex]] = {}
    spare: set[Regex] = set()
    for option in options:
        if isinstance(option, Concat):
            heads.setdefault(option.tail, []).append(option.head)
            if option.tail.nullable:
                spare.add(option.head)
    if spare:
        options = [option for option in options if option not in spare]
    tails = [option for option in options if option in heads]
    if not tails and not any(len(shared) > 1 for shared in heads.values()):
        return options
    # An option that is itself a shared tail joins the group with an empty head. Each group is written at the place of
    # its first option.
    for tail in tails:
        heads[tail].append(EPSILON)
    factored: dict[Regex, None] = {}
    joined: set[Regex] = set()
    for option in options:
        if not isinstance(option, Concat):
            if option not in heads:
                factored[option] = None
            continue
        shared = heads[option.tail]
        if len(shared) > 1:
            if option.tail not in joined:
                joined.add(option.tail)
                factored[prepend(alternate(*shared), option.tail)] = None
        elif option not in heads:
            factored[option] = None
    return list(factored)


def _merge_counters(options: list[Regex]) -> list[Regex]:
    """Join counters of the same item whose bounds meet: r{1,3} | r{4,6} becomes r{1,6}."""
    bounds: dict[Regex, list[tuple[int, int | None]]] = {}
    for option in options:
        if isinstance(option, Repeat):
            bounds.setdefault(option.item, []).append((option.low, option.high))
    if not bounds:
        return options
    merged: list[Regex] = []
    for option in options:
        if option in bounds:
            bounds[option].append((1, 1))
        elif not isinstance(option, Repeat):
            merged.append(option)
    for item, intervals in bounds.items():
        intervals.sort(key=_low)
        low, high = intervals[0]
        for next_low, next_high in intervals[1:]:
            if high is not None and next_low > high + 1:
                merged.append(repeat(item, low, high))
                low, high = next_low, next_high
            elif high is not None:
                high = None if next_high is None else max(high, next_high)
        merged.append(repeat(item, low, high))
    return merged


def _low(interval: tuple[int, int | None]) -> int:
    return interval[0]


# --- alternatives that are part of another one ---


def counted_as(node: Regex) -> tuple[Regex, int, int | None]:
    """The item of a node, and how often it comes at least and at most."""
    return (node.item, node.low, node.high) if isinstance(node, Repeat) else (node, 1, 1)


def absorb(options: list[Regex]) -> list[Regex]:
    """Drop options that are part of a repeated character class: abc | [a-z]{2,4} is [a-z]{2,4}."""
    wide = [option for option in options if isinstance(option, Repeat) and isinstance(option.item, Chars)]
    if not wide or len(options) == 1:
        return options
    kept = []
    for option in options:
        if not any(other is not option and within_repeat(option, other) for other in wide):
            kept.append(option)
    return kept


def drop_narrower(options: list[Regex]) -> list[Regex]:
    """Drop sequences that are certainly in another: with fewer first choices, and elsewhere in narrower counters.

    Derivatives of counted groups differ only in the rest of the current item and in how many items may follow.
    """
    kept: list[Regex] = []
    shapes: dict[tuple[int, ...], list[_Counted]] = {}
    rows: list[tuple[Regex, tuple[int, ...], _Counted]] = []
    for option in options:
        parts = option.chain() if isinstance(option, Concat) else []
        if 0 < len(parts) <= _LONG_CHAIN:
            counted = [counted_as(part) for part in parts]
            shape = tuple([item.serial for item, _, _ in counted])
            bounds = [(low, high) for _, low, high in counted]
            rows.append((option, shape, (_choices(parts[0]), bounds)))
            shapes.setdefault(shape[1:], []).append(rows[-1][2])
        else:
            kept.append(option)
    for option, shape, mine in rows:
        wider = shapes.get(shape[1:], ())
        whole = (_NOTHING, [(0, 0), *mine[1]])
        if any(other is not mine and _narrower(mine, other) for other in wider):
            shapes[shape[1:]] = [other for other in wider if other is not mine]
        elif not any(_narrower(whole, other) for other in shapes.get(shape, ())):
            kept.append(option)
    return kept


def _choices(node: Regex) -> _Choices:
    """The alternatives of a part: characters, words, other options, and whether it may be empty."""
    nullable = isinstance(node, Repeat) and node.low == 0 and node.high == 1
    item = node.item if nullable and isinstance(node, Repeat) else node
    singles, words, others = NONE, frozenset[str](), frozenset[Regex]()
    for option in item.options if isinstance(item, Alternate) else (item,):
        if isinstance(option, Chars):
            singles = option.charset
        elif isinstance(option, Words):
            words = frozenset(option.words)
        else:
            others |= {option}
    return singles, words, others, nullable


def _narrower(inner: _Counted, outer: _Counted) -> bool:
    (singles, words, others, nullable), bounds = inner
    (outer_singles, outer_words, outer_others, outer_nullable), outer_bounds = outer
    return (
        nullable <= outer_nullable
        and words <= outer_words
        and others <= outer_others
        and singles.issubset(outer_singles)
        and all(
            low >= outer_low and (outer_high is None or (high is not None and high <= outer_high))
            for (low, high), (outer_low, outer_high) in zip(bounds[1:], outer_bounds[1:])
        )
    )


def within_repeat(node: Regex, wide: Repeat) -> bool:
    """Return True if the shape of `node` shows it to be a subset of a repeated character class."""
    if node.min_length < wide.low:
        return False
    if wide.high is not None and (node.max_length is None or node.max_length > wide.high):
        return False
    return isinstance(wide.item, Chars) and node.alphabet().issubset(wide.item.charset)
