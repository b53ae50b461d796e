"""`ScoreState`: state of one live scoring request, from the tokens of its choices to the selected choice."""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.messages.client import RequestOutput, ScoreReq
from radixrt.messages.parts import FINISH_STOP, Finish, FinishError
from radixrt.messages.request import Envelope, LogprobRead, Request, Row
from radixrt.messages.scheduler import TokenDelta
from radixrt.messages.wire import pack_i32, unpack_f32
from radixrt.tokenizer.choices import ChoiceTokens
from radixrt.tokenizer.selection import select

UNCONDITIONAL = "unconditional_likelihood_normalized"


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
            prefix: index of the prefix in the scoring request.
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


class ScoreState:
    """Builds a request's rows for the scheduler and converts their scores to its RequestOutput.

    Args:
        bos: tokens that begin a text, for the method that also scores the choices without the prompt.

    Attributes:
        stop_found: always False; see `RequestState`.
    """

    stop_found = False

    def __init__(self, req: ScoreReq, tokens: ChoiceTokens, bos: Sequence[int]) -> None:
        self._req = req
        self._tokens = tokens
        self._prefixes = [tokens.prompt_ids[: tokens.kept]]
        if req.method == UNCONDITIONAL:
            self._prefixes.append(list(bos))
        self._trees = [ChoiceTree(len(prefix), tokens.token_ids) for prefix in self._prefixes]

    def request(self) -> Request:
        """Build the request to the scheduler; must be called once."""
        req = self._req
        return Request(
            Envelope(req.rid, req.priority, req.cache_salt, req.timeout_s, req.program),
            [row for i, tree in enumerate(self._trees) for row in tree.rows(i)],
            [pack_i32(prefix) for prefix in self._prefixes],
        )

    def take(self, delta: TokenDelta) -> RequestOutput | None:
        """Return the output to send to the client, or None before the finish."""
        finish = delta.finish
        if finish is None:
            return None
        decision = None
        if finish.reason == FINISH_STOP and delta.values is not None:
            logprobs = self._by_choice(unpack_f32(delta.values.logprobs[0].token_logprobs).tolist())
            without = logprobs[1] if len(logprobs) > 1 else None
            decision = select(self._req.method, self._tokens.token_ids, logprobs[0], without, self._tokens.kept)
        return RequestOutput(
            self._req.rid,
            finish=finish,
            usage=delta.usage,
            timings=delta.timings,
            prompt_ids=pack_i32(self._tokens.prompt_ids),
            decision=decision,
        )

    def fail(self, message: str) -> RequestOutput:
        """End the request with an error (status 500)."""
        return RequestOutput(self._req.rid, finish=Finish("error", error=FinishError(message)))

    def _by_choice(self, scores: list[float]) -> list[list[list[float]]]:
        """Log-probabilities of each choice's tokens, for each prefix."""
        found = []
        start = 0
        for tree in self._trees:
            found.append([[scores[start + edge] for edge in edges] for edges in tree.edges()])
            start += tree.num_edges
        return found
