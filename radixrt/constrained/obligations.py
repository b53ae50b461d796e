"""`Obligation`: a condition on parts of a text that productions cannot express, because it depends on earlier parts.

The emitter of a schema records obligations beside the productions, and `guards` enforces them while a text is written.
A grammar without obligations runs without guards.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Obligation(msgspec.Struct, frozen=True, array_like=True):
    """A condition on the units of a scope, which crosses processes with the compiled constraint.

    Attributes:
        kind: "keys": no object repeats a key.
        counts: some shortest completion may have to write several units that must differ.
        finite: some unit has a finite language, so that all of its texts may be used up.
    """

    kind: Literal["keys"]
    counts: bool = False
    finite: bool = False
