"""`Obligation`: a condition on parts of a text that productions cannot express, because it depends on earlier parts.

The emitter of a schema records obligations beside the productions, and `guards` enforces them while a text is written.
A grammar without obligations runs without guards.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

DISTINCT_MARK: Final = "!"
"""Last character of the names of rules that derive arrays whose items must differ."""
REPEATING_MARK: Final = "?"
"""Last character of the names of rules that derive arrays of which two items must be equal; see `repeating_mark`."""

JSON_PREFIX: Final = "json_"
"""First characters of the names of rules in which guarded JSON begins, where the grammar has other text around JSON."""


class Obligation(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A condition on the units of a scope, which crosses processes with the compiled constraint.

    Attributes:
        kind: "keys": no object repeats a key; "items": marked arrays do not repeat an item; "repeats": marked arrays
            repeat an item.
        counts: some shortest completion may have to write several units that must differ, or a unit twice.
        finite: some unit has a finite language, so that all of its texts may be used up.
        ordered: the members of objects in items have a fixed order.
        pointer: of the keyword, where a condition that `counts` may turn out to be impossible.
        prefix: JSON_PREFIX where the grammar has other text around JSON.
        rule: where it `counts` in JSON inside of other text: the rule that derives the JSON.
        param: field of the request that the pointer is about, if not that of the whole constraint.
    """

    kind: Literal["keys", "items", "repeats"]
    counts: bool = False
    finite: bool = False
    ordered: bool = True
    pointer: str = ""
    prefix: str = ""
    rule: str = ""
    param: str = ""


def repeating_mark(high: int | None) -> str:
    """Return the end of the name of a rule that derives arrays of at most `high` items, of which two must be equal."""
    return f"_{high or 0}{REPEATING_MARK}"


def most_items(rule: str) -> int:
    """Return the largest number of items of the arrays of a rule whose name has a `repeating_mark`; 0 if there is
    none."""
    return int(rule[: -len(REPEATING_MARK)].rpartition("_")[2])
