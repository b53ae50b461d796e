"""Scheduler end of sharing: finds runs of slots that several rows of a step share and that are faster to compute once.

Rows share the common prefixes of their paths through the radix tree. Each node on the paths of two or more rows is a
run of positions with the same slots for these rows. Runs nest like the nodes of the tree (a system prompt, below it a
branch, below the branch a question). So attention can be computed level by level, once per run, and merged.

A run also has costs: partial results of its rows, and scheduling. `find_runs` keeps, merges or drops runs by the cost
model of `radixrt.parts.sharing.costs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages.runner import CascadeCosts
from radixrt.messages.sections import SHARING, SharedSection, encode
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.parts.sharing.costs import DecodeSharing, PromptSharing, Run, SharingModel
from radixrt.scheduler.kv_manager import DecodeRows
from radixrt.scheduler.part import Part, Section
from radixrt.scheduler.req import Req
from radixrt.scheduler.schedule_batch import NO_CHUNKS, ByKind


class SharedColumns(NamedTuple):
    """Columns of a `SharedSection`."""

    segments: bytes = b""
    rows: bytes = b""


NOTHING = SharedColumns()
NOTHING_REPLAYED: Mapping[Req, int] = MappingProxyType({})


class Sharing(Part):
    """Adds the shared prefixes of a step's rows to the step."""

    name = SHARING

    def __init__(self, costs: CascadeCosts) -> None:
        self._planner = SharingPlanner(costs)
        self._encoded = NOTHING, b""  # the last section; consecutive decode steps often have the same one

    def section(self, kinds: ByKind, decode: DecodeRows) -> Section | None:
        rows = decode.requests
        columns = self._planner.columns(rows) if kinds is NO_CHUNKS else self._in_extend(kinds, rows)
        if not columns.segments:
            return None
        if columns is not self._encoded[0]:
            self._encoded = columns, encode(SharedSection(*columns))
        return Section(self._encoded[1])

    def _in_extend(self, kinds: ByKind, decode: list[Req]) -> SharedColumns:
        """Return the columns of an EXTEND step."""
        prompts, single = kinds.prompts, kinds.single
        return self._planner.extend_columns(
            [chunk.req for chunk in prompts],
            [len(chunk.slots) for chunk in prompts],
            [chunk.req for chunk in single] + decode,
            len(prompts) + len(kinds.fresh),
            {chunk.req: chunk.start for chunk in [*prompts, *single] if chunk.start < chunk.req.kv.protected_len},
        )


class SharingPlanner:
    """Finds the shared runs of each step. Runs of decode rows are recomputed only when the batch's rows or the ends of
    their paths change; splits of nodes change neither positions nor slots."""

    def __init__(self, costs: CascadeCosts) -> None:
        self._decode = DecodeSharing(costs)
        self._prompts = None if costs.prompts is None else PromptSharing(costs.prompts)
        self._in_extend = costs.in_extend
        self._reqs: Sequence[Req] = []
        self._nodes: list[TreeNode] = []
        self._first_row = 0
        self._columns = NOTHING

    def columns(
        self, decode: Sequence[Req], first_row: int = 0, replayed: Mapping[Req, int] = NOTHING_REPLAYED
    ) -> SharedColumns:
        """Return the columns of the decode rows, which begin at row `first_row`; empty if no run is faster.

        Each row's runs lie within its slots in the tree, so they never hold the slot of the step's own token.

        Args:
            replayed: as in `extend_columns`.
        """
        nodes = _path_ends(decode, replayed)[0] if replayed else [req.kv.last_node for req in decode]
        if nodes != self._nodes or decode != self._reqs or first_row != self._first_row:
            self._reqs, self._nodes, self._first_row = decode, nodes, first_row
            order, runs = find_runs(nodes, _path_ends(decode, replayed)[1], self._decode)
            self._columns = _pack(order, runs, first_row)
        return self._columns

    def extend_columns(
        self,
        prompts: Sequence[Req],
        queries: Sequence[int],
        single: Sequence[Req],
        first_single: int,
        replayed: Mapping[Req, int] = NOTHING_REPLAYED,
    ) -> SharedColumns:
        """Return the columns of an EXTEND step.

        Args:
            prompts: requests of the step's first rows; request i has queries[i] new tokens.
            single: requests of the rows from `first_single` on, with one new token each.
            replayed: position of the first new token of each request whose new tokens have slots in the tree. The runs
                of such a request end before this position, because attention over a run has no causal mask.
        """
        columns = self.columns(single, first_single, replayed) if self._in_extend else NOTHING
        if self._prompts is None or len(prompts) < 2:
            return columns
        nodes, lengths = _path_ends(prompts, replayed)
        order, runs = find_runs(nodes, lengths, self._prompts, queries)
        if not runs:
            return columns
        # Runs of prompts, then runs of single rows; their indices count all rows of `order`.
        behind = unpack_i32(columns.segments).reshape(-1, 4) + np.array([0, 0, len(order), 0], np.int32)
        ours = _pack(order, runs, 0)
        return SharedColumns(ours.segments + pack_i32(behind.reshape(-1)), ours.rows + columns.rows)


def _path_ends(reqs: Sequence[Req], replayed: Mapping[Req, int]) -> tuple[list[TreeNode], list[int]]:
    """Return the node in which each request's path ends, and the path's length, without replayed tokens."""
    nodes, lengths = [], []
    for req in reqs:
        node, length = req.kv.last_node, req.kv.protected_len
        end = replayed.get(req, length)
        while length > end:
            length -= node.num_tokens
            node = node.parent
        nodes.append(node)
        lengths.append(length)
    return nodes, lengths


def _pack(order: list[int], runs: list[Run], first_row: int) -> SharedColumns:
    if not runs:
        return NOTHING
    segments = [number for run in runs for number in (run.start, run.end - run.start, run.first, run.count)]
    return SharedColumns(pack_i32(segments), pack_i32([row + first_row for row in order]))


def find_runs(
    nodes: Sequence[TreeNode], lengths: Sequence[int], model: SharingModel, queries: Sequence[int] | None = None
) -> tuple[list[int], list[Run]]:
    """Return the runs that are faster to compute once than for each row.

    Args:
        nodes: node in which the path of each row ends.
        lengths: number of tokens of each row's path.
        queries: number of new tokens of each row, for models that depend on this number.

    Returns:
        The rows in depth-first order of the tree, so that the rows of each run are adjacent, and the runs, each after
        the runs above it in the tree. The list of runs is empty if all runs together do not save more than
        `model.step`. The runs of a row cover the row's positions from 0 on without a gap.
    """
    rows_at: dict[TreeNode, list[int]] = {}
    for row, (node, length) in enumerate(zip(nodes, lengths, strict=True)):
        if length:
            rows_at.setdefault(node, []).append(row)
    if len(nodes) < 2 or not _meet(rows_at, lengths, model.min_length):
        return [], []
    paths = _Paths(rows_at, lengths)
    counted = None if queries is None else _Counted(paths.order, queries, model)
    chooser = _Chooser(model)
    pending: dict[TreeNode, _Pending] = {}  # by node, until its parent is visited
    for node in reversed(paths.preorder):
        first, count = paths.firsts[node], paths.counts[node]
        if count < 2:
            continue
        children = paths.below.get(node, ())
        # A node with a single child, at which no row ends, has the rows of its child: both are one run.
        if len(children) == 1 and node not in rows_at:
            run = pending.pop(children[0])
            run.start -= node.num_tokens
        else:
            kept = [run for child in children if child in pending for run in chooser.choose(pending.pop(child))]
            end = paths.ends[node]
            run = _Pending(end - node.num_tokens, end, first, count, below=kept)
            if counted is not None:
                run.queries, run.tiles = counted.of(first, count)
        pending[node] = run
    for run in pending.values():
        chooser.choose(run)
    if chooser.saved <= model.step:
        return paths.order, []
    return paths.order, sorted(chooser.runs, key=lambda run: (run.first, run.start))


def _meet(rows_at: Mapping[TreeNode, Sequence[int]], lengths: Sequence[int], min_length: int) -> bool:
    """Return True if any two paths have their first `min_length` positions in common."""
    found = set()
    for last, rows in rows_at.items():
        end = lengths[rows[0]]
        if end < min_length:
            continue
        node, start = last, end - last.num_tokens
        while start >= min_length:
            assert node.parent is not None  # no node of a locked path is evicted
            node = node.parent
            start -= node.num_tokens
        if len(rows) > 1 or node in found:
            return True
        found.add(node)
    return False


class _Counted:
    """Prefix sums of the rows' new tokens and of their `row_tiles`, in the given order."""

    def __init__(self, order: Sequence[int], queries: Sequence[int], model: SharingModel) -> None:
        counts = [queries[row] for row in order]
        self._queries = [0, *accumulate(counts)]
        self._tiles = [0.0, *accumulate(map(model.row_tiles, counts))]

    def of(self, first: int, count: int) -> tuple[int, float]:
        end = first + count
        return self._queries[end] - self._queries[first], self._tiles[end] - self._tiles[first]


class _Paths:
    """Subtree of the nodes on the rows' paths, without the roots.

    Attributes:
        below: children of each node.
        ends: position behind each node's run.
        preorder: all nodes, each before its children.
        order: rows in preorder of their last nodes; the rows of a node's subtree are
            order[firsts[node] : firsts[node] + counts[node]].
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
                assert node.parent is not None  # no node of a locked path is evicted
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
    """Candidate run, with the chosen runs that begin at its end."""

    below: list[Run] = field(default_factory=list)


class _Chooser:
    """Decides for each run, from the leaves up: compute the run once, extend the runs below it by its positions, or
    compute its positions for each row. The result is never worse than computing all runs once, or no run."""

    def __init__(self, model: SharingModel) -> None:
        self._model = model
        self.runs: list[Run] = []
        self.saved = 0.0

    def choose(self, run: _Pending) -> list[Run]:
        """Decide for a candidate; return the chosen runs that begin at `run.start`."""
        length = run.end - run.start
        alone = run.saved(self._model) if length >= self._model.min_length else 0.0
        longer = sum(self._model.saved(length, below) for below in run.below)
        if alone > 0 and alone >= longer:
            chosen = Run(run.start, run.end, run.first, run.count, run.queries, run.tiles)
            self.runs.append(chosen)
            self.saved += alone
            return [chosen]
        for below in run.below:
            below.start = run.start
        self.saved += longer
        return run.below
