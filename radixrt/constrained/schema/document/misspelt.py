"""Unknown keywords whose names are near a known keyword, such as `requred`: almost certainly mistakes.

JSON Schema says that unknown keywords are annotations, so a misspelt keyword is valid and constrains nothing. Names
that resemble no keyword, such as `x-order` or `example`, are annotations on purpose, and so are `_format` and the like.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from radixrt.constrained.schema.document.dialects import ASSERTIONS, COMMENTS

_LONG: Final = 8
"""Names of so many characters may differ in two characters."""
_SHORTEST: Final = 6
"""Keywords of fewer characters resemble too many words: `cost` is an annotation, not a misspelt `const`."""
_KNOWN: Final = sorted(ASSERTIONS)
_BARE: Final = {keyword.lstrip("$").lower(): keyword for keyword in reversed(_KNOWN)}
_OTHERS: Final = COMMENTS | {"example", "id", "schema", "comment", "vocabulary", "contentSchema", "deprecated"}
"""Names of annotations, and words that stand beside keywords for other programs."""


@lru_cache(maxsize=4096)
def near_keyword(name: str) -> str | None:
    """Return the keyword that an unknown name resembles, or None."""
    if name in _OTHERS or name.startswith(("_", "x-")):
        return None
    bare = name.lstrip("$").replace("_", "").replace("-", "").lower()
    found = _BARE.get(bare) or _BARE.get(bare + "s" if len(bare) > 3 else "") or _BARE.get(bare.removesuffix("s"))
    return found if found is not None and found.lstrip("$") not in _OTHERS else _nearest(bare)


def _nearest(bare: str) -> str | None:
    """Return the first keyword that differs in one character, or in two if both are long."""
    if len(bare) < _SHORTEST - 1:
        return None
    for short, keyword in _BARE.items():
        most = 2 if min(len(short), len(bare)) >= _LONG else 1
        if len(short) >= _SHORTEST and abs(len(short) - len(bare)) <= most and _distance(short, bare) <= most:
            return keyword
    return None


def _distance(one: str, two: str) -> int:
    """Return the number of insertions, deletions, substitutions and swaps of neighbours between two words."""
    before: list[int] = []
    row = list(range(len(two) + 1))
    for i, left in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, right in enumerate(two, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (left != right))
            if i > 1 and j > 1 and left == two[j - 2] and one[i - 2] == right:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1]
