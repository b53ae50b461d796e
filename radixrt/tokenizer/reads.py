"""Rows that read values from forward passes, and `ReadState`: state of a live request that generates nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radixrt.messages.client import ContinuationTokens, InputRow, RequestOutput
from radixrt.messages.parts import FINISH_STOP, Finish, FinishError
from radixrt.messages.reads import LogprobRead
from radixrt.messages.request import Row, pooled_row
from radixrt.messages.scheduler import TokenDelta
from radixrt.messages.wire import Int32Array, pack_f32, pack_i32, unpack_f32
from radixrt.tokenizer.choices import ChoiceTokens


def read_row(ids: bytes, wanted: InputRow) -> Row:
    """Return the row of an int32[n] prompt with the reads of the client's row, which has no continuations."""
    if wanted.pooling is not None:
        return pooled_row(ids, wanted.pooling)
    last = len(ids) // 4 - 1
    return Row(ids, logprobs=LogprobRead(pack_i32([last] * len(wanted.targets)), pack_i32(wanted.targets)))


class _Node:
    """Node of a `ChoiceTree`; `edge` is the index of the edge from its parent, in the order of the scores."""

    __slots__ = ("children", "edge")

    def __init__(self) -> None:
        self.children: dict[int, _Node] = {}
        self.edge = -1


class ChoiceTree:
    """Prefix tree of the choices' tokens after one prefix.

    Choices with the same first tokens share them. A sequence must be computed only up to tokens that are followed by
    others: a choice's last token never is, so that choices of one token each are one row with no token after the
    prefix.

    Args:
        prefix_len: number of tokens before the choices, at least one.
        choices: token ids of each choice, at least one.
    """

    def __init__(self, prefix_len: int, choices: Sequence[Sequence[int]]) -> None:
        self._prefix_len = prefix_len
        self._root = _Node()
        self._paths: list[list[_Node]] = []
        for ids in choices:
            node, path = self._root, []
            for token in ids:
                node = node.children.setdefault(token, _Node())
                path.append(node)
            self._paths.append(path)
        self.num_edges = 0

    def rows(self, prefix: int) -> list[Row]:
        """Rows that score all edges of the tree: one for each path to an inner node without inner children.

        Each position is scored by the first row that reaches it.

        Args:
            prefix: index of the prefix in the request.
        """
        rows = []
        pending: list[tuple[_Node, list[int]]] = [(self._root, [])]
        while pending:
            node, path = pending.pop()
            positions: list[int] = []
            targets: list[int] = []
            while True:
                for token, child in node.children.items():
                    child.edge = self.num_edges
                    self.num_edges += 1
                    positions.append(self._prefix_len - 1 + len(path))
                    targets.append(token)
                inner = [(token, child) for token, child in node.children.items() if child.children]
                if not inner:
                    break
                pending += [(child, [*path, token]) for token, child in inner[:0:-1]]
                token, node = inner[0]
                path.append(token)
            rows.append(Row(pack_i32(path), prefix, LogprobRead(pack_i32(positions), pack_i32(targets))))
        return rows

    def edges(self) -> list[list[int]]:
        """Indices of the edges of each choice's tokens, as numbered by `rows`."""
        return [[node.edge for node in path] for path in self._paths]


class ReadState:
    """Converts the values that the rows of a request read to a RequestOutput.

    Args:
        prompt_ids: int32[n] column that the output carries; None for an output without prompt ids.
        continuations: tokens of the request's continuations.
        order: int32[n], index of each value of the output among the scheduler's values; None for the scheduler's order.

    Attributes:
        stop_found: always False; see `RequestState`.
    """

    stop_found = False

    def __init__(
        self,
        rid: str,
        prompt_ids: bytes | None = None,
        continuations: ContinuationTokens | None = None,
        order: Int32Array | None = None,
    ) -> None:
        self._rid = rid
        self._prompt_ids = prompt_ids
        self._continuations = continuations
        self._order = order

    def take(self, delta: TokenDelta) -> RequestOutput | None:
        """Return the output to send to the client, or None before the finish."""
        finish = delta.finish
        if finish is None:
            return None
        values = None
        if finish.reason == FINISH_STOP and delta.values is not None:
            read = delta.values
            values = read.logprobs[0].token_logprobs if read.logprobs else read.hidden
            if self._order is not None:
                values = pack_f32(unpack_f32(values)[self._order])
        return RequestOutput(
            self._rid,
            finish=finish,
            usage=delta.usage,
            timings=delta.timings,
            prompt_ids=self._prompt_ids,
            values=values,
            continuations=self._continuations,
        )

    def fail(self, message: str) -> RequestOutput:
        """End the request with an error (status 500)."""
        return RequestOutput(self._rid, finish=Finish("error", error=FinishError(message)))


def read_continuations(
    rid: str, tokens: ChoiceTokens, bos: Sequence[int] | None, prompt_ids: bytes
) -> tuple[ReadState, list[Row], list[bytes]]:
    """Return the state of a request that reads continuations, its rows and their prefixes.

    Args:
        bos: tokens that begin a text, to read the continuations after them too; None for only after the prompt.
        prompt_ids: int32[n] column that the output carries.
    """
    prefixes = [tokens.prompt_ids[: tokens.kept], *([] if bos is None else [list(bos)])]
    rows: list[Row] = []
    order: list[int] = []
    start = 0
    for i, prefix in enumerate(prefixes):
        tree = ChoiceTree(len(prefix), tokens.token_ids)
        rows += tree.rows(i)
        order += [start + edge for edges in tree.edges() for edge in edges]
        start += tree.num_edges
    found = ContinuationTokens(tokens.token_ids, tokens.kept)
    state = ReadState(rid, prompt_ids, found, np.array(order, np.int32))
    return state, rows, [pack_i32(prefix) for prefix in prefixes]
