"""`Program`: a running program as the scheduler knows it, with its branches and the nodes that it holds; `Reserved`.

Written by `radixrt.scheduler.programs.Programs` alone.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages.parts import ProgramHint


@dataclass(eq=False)
class Hold:
    """One reason to keep a node.

    Attributes:
        tokens: number of tokens of the node's path that are the program's own and not counted by a hold above.
    """

    node: TreeNode
    retention: int
    tokens: int


@dataclass(eq=False)
class Branch:
    """The node in which a branch's last call ended.

    Attributes:
        own_from: number of tokens at the start of its path that are not the branch's own: those of its fork, and those
            that were cached before its first call.
    """

    node: TreeNode
    own_from: int
    hold: Hold | None


@dataclass(eq=False)
class Program:
    """One running program, as far as its hints describe it.

    Attributes:
        number: how many programs were known before it.
        live: number of its requests that have not ended.
        seen_at: time of its last request.
        priority: of its last request.
        tokens: sum of the tokens of its holds.
        longest_prompt: tokens of the longest prompt of its admitted calls; 0 before the first.
        growth: tokens that it is left room to grow by; 0 before a call that goes on is admitted.
        is_growing: such a call was admitted, and calls are open or branches go on.
    """

    id: str
    number: int
    seen_at: float
    priority: int = 0
    live: int = 0
    tokens: int = 0
    longest_prompt: int = 0
    growth: int = 0
    is_growing: bool = False
    forks: dict[TreeNode, Hold] = field(default_factory=dict)
    branches: dict[str, Branch] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class ProgramCall:
    """One request, or one scoring or embedding request, as a call of a program.

    Attributes:
        program: None where nothing is cached, so that hints are of no use.
        hint: None for a row of a group, whose call the group is.
        lease_len: number of leading tokens to lease for a fork once they are in the tree; 0 for none, or done.
    """

    program: Program | None
    hint: ProgramHint | None
    lease_len: int = 0


class Reserved(NamedTuple):
    """Tokens that programs reserve, at one moment.

    Attributes:
        numbers: of these programs, ascending.
        sums: sum of the tokens of the first 0, 1, ... of them.
    """

    numbers: list[int]
    sums: list[int]

    def before(self, program: Program | None) -> int:
        """Tokens that a call of a program leaves to those that began earlier, and a call of none to all."""
        return self.sums[-1 if program is None else bisect_left(self.numbers, program.number)]
