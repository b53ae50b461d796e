"""Selection among scored choices by the log-probabilities of their tokens, and the probability of each choice.

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

from radixrt.messages.client import ChoiceScores
from radixrt.messages.parts import SelectMethod


def select(
    method: SelectMethod,
    token_ids: list[list[int]],
    logprobs: Sequence[Sequence[float]],
    unconditional: Sequence[Sequence[float]] | None,
    kept: int,
) -> ChoiceScores:
    """Select one of the choices; the first one among equals.

    Args:
        token_ids: token ids of each choice.
        logprobs: log-probabilities of each choice's tokens.
        unconditional: `logprobs` without the prompt, for unconditional_likelihood_normalized.
        kept: copied to the result.
    """
    sums = [math.fsum(each) for each in logprobs]
    if method == "greedy":
        choice, scores = _greedy(token_ids, logprobs)
    else:
        if method == "unconditional_likelihood_normalized":
            assert unconditional is not None
            sums_without = [math.fsum(each) for each in unconditional]
            scores = [(a - b) / len(ids) for a, b, ids in zip(sums, sums_without, token_ids, strict=True)]
        else:
            scores = [a / len(ids) for a, ids in zip(sums, token_ids, strict=True)]
        choice = max(range(len(scores)), key=scores.__getitem__)
    return ChoiceScores(choice, sums, scores, softmax(scores), token_ids, kept)


def log_softmax(scores: Sequence[float]) -> list[float]:
    best = max(scores)
    total = best + math.log(math.fsum(math.exp(score - best) for score in scores))
    return [score - total for score in scores]


def softmax(scores: Sequence[float]) -> list[float]:
    return [math.exp(each) for each in log_softmax(scores)]


def _greedy(token_ids: list[list[int]], logprobs: Sequence[Sequence[float]]) -> tuple[int, list[float]]:
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
