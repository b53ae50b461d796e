"""`ScoreState`: one live scoring request, from its choices' tokens to its decision."""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.messages.client import RequestOutput, ScoreReq
from radixrt.messages.parts import FINISH_STOP, Finish, FinishError
from radixrt.messages.scheduler import TokenDelta, TokenizedScoreReq
from radixrt.messages.wire import pack_i32, unpack_f32
from radixrt.tokenizer.choice_tree import ChoiceTree
from radixrt.tokenizer.choices import ChoiceTokens
from radixrt.tokenizer.selection import select

UNCONDITIONAL = "unconditional_likelihood_normalized"


class ScoreState:
    """What a scoring request asks of the scheduler, and what it answers its client.

    Args:
        bos: tokens that begin a text, for the method that scores the choices without the prompt.

    Attributes:
        stop_found: False; as `RequestState` has it.
    """

    stop_found = False

    def __init__(self, req: ScoreReq, tokens: ChoiceTokens, bos: Sequence[int]) -> None:
        self._req = req
        self._tokens = tokens
        self._prefixes = [tokens.prompt_ids[: tokens.kept]]
        if req.method == UNCONDITIONAL:
            self._prefixes.append(list(bos))
        self._trees = [ChoiceTree(len(prefix), tokens.token_ids) for prefix in self._prefixes]

    def request(self) -> TokenizedScoreReq:
        """For the scheduler; call it once."""
        req = self._req
        return TokenizedScoreReq(
            req.rid,
            [pack_i32(prefix) for prefix in self._prefixes],
            [row for i, tree in enumerate(self._trees) for row in tree.rows(i)],
            req.priority,
            req.cache_salt,
            req.timeout_s,
            req.program,
        )

    def take(self, delta: TokenDelta) -> RequestOutput | None:
        """What goes to the client now."""
        finish = delta.finish
        if finish is None:
            return None
        decision = None
        if finish.reason == FINISH_STOP and delta.scores is not None:
            logprobs = self._by_choice(unpack_f32(delta.scores).tolist())
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
        """For each prefix, the log-probabilities of each choice's tokens."""
        found = []
        start = 0
        for tree in self._trees:
            found.append([[scores[start + edge] for edge in edges] for edges in tree.edges()])
            start += tree.num_edges
        return found
