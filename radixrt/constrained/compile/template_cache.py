"""`TemplateCache`: the constraints that are compiled and loaded, the least recently used ones leaving first."""

from __future__ import annotations

from collections import OrderedDict

from radixrt.constrained.compile.compiler import CompiledConstraint
from radixrt.constrained.text_grammar import GrammarTemplate

BASE_BYTES = 64 * 1024
BYTES_PER_BYTE = 40
"""Memory of a loaded grammar for each byte of its compiled form: parser tables, lexer states, recognizer states."""
BYTES_PER_BUILDING_S = 300_000_000
"""Lexer states that slow masks build."""


class TemplateCache:
    """At most `max_bytes`, by estimate: libraries do not say what a grammar takes, and build much of it later."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, tuple[GrammarTemplate, CompiledConstraint]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        return sum(_size(*entry) for entry in self._entries.values())

    def get(self, key: str) -> tuple[GrammarTemplate, CompiledConstraint] | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: str, template: GrammarTemplate, compiled: CompiledConstraint) -> None:
        """Keep it; one that alone is larger than the cache stays until the next one comes."""
        self._entries[key] = (template, compiled)
        surplus = self.num_bytes - self._max_bytes
        while surplus > 0 and len(self._entries) > 1:
            _, oldest = self._entries.popitem(last=False)
            surplus -= _size(*oldest)


def _size(template: GrammarTemplate, compiled: CompiledConstraint) -> int:
    return BASE_BYTES + BYTES_PER_BYTE * compiled.size + int(BYTES_PER_BUILDING_S * template.building_s)
