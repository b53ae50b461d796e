"""Scoring: texts that may follow a prompt, by the log-probabilities of their tokens, and the selection of one of them.

The methods are those of SGLang (arXiv 2312.07104); the last one applies the unconditional likelihood of Brown et al.
2020 (arXiv 2005.14165, section 2.4) to each token:

- token_length_normalized: the highest mean log-probability of a choice's tokens.
- greedy: token by token. At each position the choices with the most probable next token remain; a choice that ends
  while others continue is compared to them by its mean log-probability. A choice's score is the logarithm of its
  probability if each token were sampled among the next tokens of the remaining choices.
- unconditional_likelihood_normalized: the highest mean difference between each token's log-probability and its
  log-probability without the prompt, after bos.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from radixrt.errors import RequestError, shown
from radixrt.messages.client import ClientRequest, Continuations, Input, InputRow, RequestOutput
from radixrt.messages.parts import SelectMethod, Timings, Usage
from radixrt.messages.request import Envelope
from radixrt.messages.wire import unpack_f32

UNCONDITIONAL: SelectMethod = "unconditional_likelihood_normalized"


@dataclass(frozen=True)
class Decision:
    """Scored choices, in the order in which they were given.

    Attributes:
        choice, text: index and text of the selected choice.
        logprobs: natural logarithm of the probability of each choice's tokens after the prompt.
        scores: value of each choice that the method compares; the highest is selected.
        probabilities: softmax of `scores`.
        token_ids: token ids of each choice as scored, after the prompt's first `kept` tokens.
        kept: number of prompt tokens before the choices; fewer than the prompt has if the end of its last text is
            tokenized differently together with a choice.
        prompt_token_ids: token ids of the prompt without a choice.
    """

    choice: int
    text: str
    logprobs: list[float]
    scores: list[float]
    probabilities: list[float]
    token_ids: list[list[int]]
    kept: int
    prompt_token_ids: list[int]
    usage: Usage
    timings: Timings


class Score:
    """A call of the task; see `TaskCall`.

    Args:
        choices: texts, at least one, all different.
        method: how one of them is selected.

    Raises:
        RequestError: an argument has a wrong type; names it.
    """

    def __init__(
        self,
        prompt: Input,
        choices: Sequence[str],
        envelope: Envelope,
        method: SelectMethod = "token_length_normalized",
    ) -> None:
        if method not in get_args(SelectMethod):
            known = ", ".join(get_args(SelectMethod))
            raise RequestError(f"method must be one of {known}; not {shown(method)}", param="method")
        if isinstance(choices, (str, bytes)) or not hasattr(choices, "__iter__"):
            raise RequestError(f"choices must be a list of texts, not {shown(choices)}", param="choices")
        self._choices = list(choices)
        self._method = method
        read = Continuations(self._choices, unconditional=method == UNCONDITIONAL)
        self.requests = [ClientRequest(envelope, [InputRow(prompt, continuations=read)], task="score")]

    def answer(self, outputs: Sequence[RequestOutput]) -> Decision:
        """Select one of the choices."""
        (output,) = outputs
        tokens = output.continuations
        if output.values is None or tokens is None:
            raise RequestError("the request was aborted", code="aborted", status=499)
        values = unpack_f32(output.values).tolist()
        logprobs: list[list[list[float]]] = [[], []]  # with the prompt, and without
        start = 0
        for found in logprobs if self._method == UNCONDITIONAL else logprobs[:1]:
            for ids in tokens.token_ids:
                found.append(values[start : start + len(ids)])
                start += len(ids)
        choice, sums, scores = select(self._method, tokens.token_ids, *logprobs)
        return Decision(
            choice,
            self._choices[choice],
            sums,
            scores,
            softmax(scores),
            tokens.token_ids,
            tokens.kept,
            output.prompt_token_ids,
            output.usage or Usage(),
            output.timings or Timings(),
        )


def select(
    method: SelectMethod,
    token_ids: Sequence[Sequence[int]],
    logprobs: Sequence[Sequence[float]],
    unconditional: Sequence[Sequence[float]],
) -> tuple[int, list[float], list[float]]:
    """Select a choice; among equal scores the first choice.

    Args:
        token_ids: token ids of each choice.
        logprobs: log-probabilities of each choice's tokens.
        unconditional: `logprobs` without the prompt, for unconditional_likelihood_normalized; otherwise empty.

    Returns:
        The index of the selected choice; the sum of each choice's log-probabilities; the score of each choice.
    """
    sums = [math.fsum(each) for each in logprobs]
    if method == "greedy":
        choice, scores = _greedy(token_ids, logprobs)
        return choice, sums, scores
    if method == UNCONDITIONAL:
        without = [math.fsum(each) for each in unconditional]
        scores = [(a - b) / len(ids) for a, b, ids in zip(sums, without, token_ids, strict=True)]
    else:
        scores = [a / len(ids) for a, ids in zip(sums, token_ids, strict=True)]
    return max(range(len(scores)), key=scores.__getitem__), sums, scores


def log_softmax(scores: Sequence[float]) -> list[float]:
    best = max(scores)
    total = best + math.log(math.fsum(math.exp(score - best) for score in scores))
    return [score - total for score in scores]


def softmax(scores: Sequence[float]) -> list[float]:
    return [math.exp(each) for each in log_softmax(scores)]


def _greedy(token_ids: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]) -> tuple[int, list[float]]:
    scores = [0.0] * len(token_ids)
    choice = -1
    # Groups of choices that share their first `depth` tokens, and whether these were the most probable ones.
    pending = [(list(range(len(token_ids))), 0, True)]
    while pending:
        group, depth, is_best = pending.pop()
        branches: defaultdict[int | None, list[int]] = defaultdict(list)  # by their next token, None at their end
        for i in group:
            branches[token_ids[i][depth] if depth < len(token_ids[i]) else None].append(i)
        values = {
            token: math.fsum(logprobs[members[0]]) / depth if token is None else logprobs[members[0]][depth]
            for token, members in branches.items()
        }
        shares = dict(zip(values, log_softmax(list(values.values())), strict=True))
        best = max(values, key=values.__getitem__)
        for token, members in branches.items():
            for i in members:
                scores[i] += shares[token]
            stays = is_best and token == best
            if token is not None:
                pending.append((members, depth + 1, stays))
            elif stays:
                choice = members[0]
    return choice, scores
