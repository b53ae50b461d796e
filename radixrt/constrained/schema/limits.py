"""Bounds on the work that a schema may cause, and the budget that counts the work.

An exceeded limit is reported with the place in the schema, because its author can change the schema there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from radixrt.constrained.schema.errors import Unsupported


@dataclass(frozen=True)
class Limits:
    """Bounds on one schema.

    Attributes:
        depth: nesting of the document, and of subschemas that apply to one and the same value.
        subschemas: schema objects in the document.
        nodes: nodes of the normal form (each becomes about one rule).
        branches: alternatives that are tried during the expansion of a node.
        enum_values: values of one `enum`.
        array_states: states of an array's counters (`contains`, `uniqueItems`), or of an object's property count.
        key_classes: classes of undeclared names that the patterns of an object distinguish.
        seconds: processor time of normalizing the schema and emitting the productions.
    """

    depth: int = 128
    subschemas: int = 100_000
    nodes: int = 20_000
    branches: int = 4_000
    enum_values: int = 20_000
    array_states: int = 4_000
    key_classes: int = 200
    seconds: float = 5.0


class Placed(Protocol):
    """A thing with a place in the document, which takes time to find."""

    @property
    def pointer(self) -> str: ...


class Budget:
    """Counts the work of one normalization against its limits.

    Args:
        limits: the bounds.
        deadline: on `time.thread_time`; `limits.seconds` from now if None.
    """

    def __init__(self, limits: Limits, deadline: float | None = None) -> None:
        self.limits = limits
        self.deadline = time.thread_time() + limits.seconds if deadline is None else deadline
        self.nodes = 0
        self._ticks = 0

    def restart(self) -> None:
        """Grant the full time again, for another query about the same schema."""
        self.deadline = time.thread_time() + self.limits.seconds

    def tick(self, pointer: str) -> None:
        """Count one small step; check the time every 4,096 steps. Raises Unsupported past the deadline."""
        self._ticks += 1
        if not self._ticks & 4095:
            self.check_time(pointer, "enum")

    def count_node(self, node: Placed, keyword: str) -> None:
        """Count one more node. Raises Unsupported past the limit or the deadline."""
        self.nodes += 1
        if self.nodes > self.limits.nodes:
            raise over_limit(node.pointer, keyword, f"the schema unfolds into more than {self.limits.nodes} positions")
        if time.thread_time() > self.deadline:
            self.check_time(node.pointer, keyword)

    def check_time(self, pointer: str, keyword: str) -> None:
        """Raise Unsupported past the deadline."""
        if time.thread_time() > self.deadline:
            raise over_limit(pointer, keyword, f"the schema takes more than {self.limits.seconds:g} s to work out")


def over_limit(pointer: str, keyword: str, reason: str) -> Unsupported:
    """Return the refusal for a limit that was exceeded while the keyword was processed."""
    return Unsupported(pointer, keyword, reason, "Simplify the schema there.", droppable=False)
