"""Which decode rows share which runs of slots, and where computing a run once for all of them pays.

Decode rows share what their paths through the radix tree have in common. Each node that two or more rows go through is
a run of positions with the same slots for all of them; runs nest as the tree does (a system prompt, below it a branch,
below that a question), so attention can be computed level by level, once for each run, and merged.

A run costs something too: a partial result for each of its rows, and work to schedule. `CascadeCosts` weighs that
against what it saves, and `find_runs` keeps, merges or drops runs by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages import pack_i32
from radixrt.scheduler.req import Req

CUDA_BYTES_PER_US = 4.0e6
"""What decode attention reads of keys and values in a microsecond on the device that the figures below are for."""
CUDA_STEP_US = 10.0
CUDA_RUN_US = 0.1


@dataclass(frozen=True)
class CascadeCosts:
    """What sharing costs in one layer of one step, in the currency of what it saves: tokens whose keys and values one
    row would have read for itself. A run of `length` positions read once for `count` rows saves (count - 1) * length of
    them, but each row still computes with it.

    Attributes:
        step_tokens: fixed cost of a step that shares anything: the kernels that a plain step does not launch.
        run_tokens: of each run.
        row_tokens: of each row of a run: its partial result is written and read again.
        compute: what computing a position costs a row of a run, beside reading and computing it alone; at most 0.5.
        min_length: shorter runs are not computed on their own.
        in_extend: decode rows that ride in a step with prompt chunks share as well.
    """

    step_tokens: float
    run_tokens: float
    row_tokens: float
    compute: float = 0.0
    min_length: int = 16
    in_extend: bool = False

    def saved(self, length: int, count: int) -> float:
        """What reading positions once for so many rows saves, other costs aside; not below 0 for two or more."""
        return length * (count * (1 - self.compute) - 1)

    @staticmethod
    def for_device(device: str, kv_layer_bytes: int) -> CascadeCosts | None:
        """The costs on a device, or None if nothing can be shared there.

        Args:
            device: as in `RunnerReady`, "cpu" or "cuda:0" and the like.
            kv_layer_bytes: keys and values of one token in one layer on one rank; 0 if no layer can share.
        """
        if kv_layer_bytes < 1:
            return None
        if device.startswith("cuda"):
            tokens_per_us = CUDA_BYTES_PER_US / kv_layer_bytes
            return CascadeCosts(
                step_tokens=CUDA_STEP_US * tokens_per_us, run_tokens=CUDA_RUN_US * tokens_per_us, row_tokens=8.0,
                compute=1 / 16, in_extend=True,
            )  # fmt: skip
        return CascadeCosts(
            step_tokens=0.0, run_tokens=40.0, row_tokens=2.0, compute=0.3, min_length=32, in_extend=True
        )  # fmt: skip


@dataclass(slots=True)
class Run:
    """Positions [start, end) that hold the same slots for order[first : first + count], see `find_runs`."""

    start: int
    end: int
    first: int
    count: int

    def saved(self, costs: CascadeCosts) -> float:
        """Tokens saved by computing the run once, its own costs taken off."""
        read = costs.saved(self.end - self.start, self.count)
        return read - costs.run_tokens - self.count * costs.row_tokens


class SharedColumns(NamedTuple):
    """`ForwardStep.shared_segments` and `ForwardStep.shared_rows`."""

    segments: bytes = b""
    rows: bytes = b""


NOTHING = SharedColumns()


class SharingPlanner:
    """The shared runs of each step. They are found anew only when the batch's rows or the ends of their paths change;
    nodes that are split meanwhile change neither positions nor slots."""

    def __init__(self, costs: CascadeCosts) -> None:
        self.costs = costs
        self._reqs: Sequence[Req] = []
        self._nodes: list[TreeNode] = []
        self._first_row = 0
        self._columns = NOTHING

    def columns(self, decode: Sequence[Req], first_row: int = 0) -> SharedColumns:
        """The columns of a step whose decode rows, from `first_row` on, are these requests; empty if nothing pays.

        Each row's runs lie within what it has in the tree, so they never hold the slot of the step's own token.
        """
        nodes = [req.last_node for req in decode]
        if nodes != self._nodes or decode != self._reqs or first_row != self._first_row:
            self._reqs, self._nodes, self._first_row = decode, nodes, first_row
            order, runs = find_runs(nodes, [req.protected_len for req in decode], self.costs)
            self._columns = _pack(order, runs, first_row)
        return self._columns


def _pack(order: list[int], runs: list[Run], first_row: int) -> SharedColumns:
    if not runs:
        return NOTHING
    segments = [number for run in runs for number in (run.start, run.end - run.start, run.first, run.count)]
    return SharedColumns(pack_i32(segments), pack_i32([row + first_row for row in order]))


def find_runs(nodes: Sequence[TreeNode], lengths: Sequence[int], costs: CascadeCosts) -> tuple[list[int], list[Run]]:
    """The runs that are worth computing once.

    Args:
        nodes, lengths: of each row, where its path ends in the tree and how many tokens the path has.

    Returns:
        The rows in depth-first order of the tree, so that those of each run lie together, and the runs, each after
        those that it lies below; none if they do not save `costs.step_tokens` together. Runs of one row join up: they
        cover its positions from 0 on without a gap.
    """
    rows_at: dict[TreeNode, list[int]] = {}
    for row, (node, length) in enumerate(zip(nodes, lengths, strict=True)):
        if length:
            rows_at.setdefault(node, []).append(row)
    if len(nodes) < 2 or not rows_at:
        return [], []
    paths = _Paths(rows_at, lengths)
    chooser = _Chooser(costs)
    pending: dict[TreeNode, _Pending] = {}  # of each node whose parent has not been seen yet
    for node in reversed(paths.preorder):
        count = paths.counts[node]
        if count < 2:
            continue
        children = paths.below.get(node, ())
        if len(children) == 1 and node not in rows_at:
            run = pending.pop(children[0])  # the same rows: one run
            run.start -= node.num_tokens
        else:
            kept = [run for child in children if child in pending for run in chooser.choose(pending.pop(child))]
            end = paths.ends[node]
            run = _Pending(end - node.num_tokens, end, paths.firsts[node], count, kept)
        pending[node] = run
    for run in pending.values():
        chooser.choose(run)
    if chooser.saved <= costs.step_tokens:
        return paths.order, []
    return paths.order, sorted(chooser.runs, key=lambda run: (run.first, run.start))


class _Paths:
    """The part of the tree that the rows' paths go through, the roots left out.

    Attributes:
        below: children by node.
        ends: position behind each node's run.
        preorder: nodes, each before those below it.
        order: rows in that order; those of a node's subtree are order[firsts[node] : firsts[node] + counts[node]].
    """

    def __init__(self, rows_at: dict[TreeNode, list[int]], lengths: Sequence[int]) -> None:
        self.below: dict[TreeNode, list[TreeNode]] = {}
        self.ends: dict[TreeNode, int] = {}
        tops = self._climb(rows_at, lengths)
        self.preorder: list[TreeNode] = []
        self.order: list[int] = []
        self.firsts: dict[TreeNode, int] = {}
        self._descend(tops, rows_at)
        self.counts = {node: len(rows) for node, rows in rows_at.items()}
        for node in reversed(self.preorder):
            below = sum(self.counts[child] for child in self.below.get(node, ()))
            self.counts[node] = self.counts.get(node, 0) + below

    def _climb(self, rows_at: dict[TreeNode, list[int]], lengths: Sequence[int]) -> list[TreeNode]:
        tops = []
        for last, rows in rows_at.items():
            node, end = last, lengths[rows[0]]
            while node not in self.ends:
                self.ends[node] = end
                end -= node.num_tokens
                if end == 0:
                    tops.append(node)
                    break
                assert node.parent is not None  # ours: a locked path is whole
                self.below.setdefault(node.parent, []).append(node)
                node = node.parent
        return tops

    def _descend(self, tops: list[TreeNode], rows_at: dict[TreeNode, list[int]]) -> None:
        stack = tops[::-1]
        while stack:
            node = stack.pop()
            self.preorder.append(node)
            self.firsts[node] = len(self.order)
            self.order.extend(rows_at.get(node, ()))
            stack.extend(self.below.get(node, ()))


@dataclass(slots=True)
class _Pending(Run):
    """A run that is not chosen yet, and the chosen ones that begin where it ends."""

    below: list[Run]


class _Chooser:
    """Decides run by run, those below first: compute it on its own, let the runs below it begin further up, or leave it
    to its rows. Never worse than computing every run on its own, or none."""

    def __init__(self, costs: CascadeCosts) -> None:
        self._costs = costs
        self.runs: list[Run] = []
        self.saved = 0.0

    def choose(self, run: _Pending) -> list[Run]:
        """The chosen runs that begin where `run` does."""
        length = run.end - run.start
        alone = run.saved(self._costs) if length >= self._costs.min_length else 0.0
        longer = sum(self._costs.saved(length, below.count) for below in run.below)
        if alone > 0 and alone >= longer:
            chosen = Run(run.start, run.end, run.first, run.count)
            self.runs.append(chosen)
            self.saved += alone
            return [chosen]
        for below in run.below:
            below.start = run.start
        self.saved += longer
        return run.below
