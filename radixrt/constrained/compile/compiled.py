"""`CompiledConstraint`: the result of compiling a constraint.

Importing this module loads no mask library, so that a scheduler can start before it has any.
"""

from __future__ import annotations

import msgspec

from radixrt.constrained.matcher import BackendName
from radixrt.constrained.obligations import Obligation


class CompiledConstraint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A constraint after compilation; crosses processes and lies on disk as MessagePack.

    Attributes:
        backend: which library computes the masks.
        why: reason for that library.
        source: the grammar in the library's notation.
        serialized: the grammar as the library compiled it, where that is quicker to load than the source.
        productions: result of `Productions.encode`, for shortest completions; empty for a grammar that only the library
            can read.
        shortest: tokens of a shortest output.
        specials: ids of the control tokens in the grammar.
        ignored: keywords that are not enforced, at the caller's request, as "pointer: keyword".
        compile_s: seconds of the whole compilation.
        load_s: seconds of `compile_s` that the library took to load the source; None for a plain grammar, which was not
            loaded.
        mask_s: mean seconds of a probed mask; None for a plain grammar.
        obligations: conditions that the productions do not express; guards enforce them.
        is_wide: the library's grammar has more texts than the productions; its masks are narrowed.
    """

    backend: BackendName
    why: str
    source: str
    serialized: str | None
    productions: bytes
    shortest: list[int]
    specials: list[int]
    ignored: list[str]
    compile_s: float
    load_s: float | None
    mask_s: float | None
    obligations: tuple[Obligation, ...] = ()
    is_wide: bool = False

    @property
    def min_tokens(self) -> int:
        """Tokens of a shortest output."""
        return len(self.shortest)

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.source) + len(self.serialized or "") + len(self.productions) + 8 * len(self.shortest)
