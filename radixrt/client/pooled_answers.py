"""Answers of the offline API about prompts that generate nothing: `Embedding` and `Classification`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radixrt.client.pooled import Answered, rows_of
from radixrt.messages.parts import Usage
from radixrt.messages.wire import Float32Array


@dataclass(frozen=True)
class Embedding:
    """Embedded prompts.

    Attributes:
        vectors: float32 [n, dimensions], in the order of the prompts.
        usage: token counts of all prompts together.
    """

    vectors: Float32Array
    usage: Usage

    @staticmethod
    def of(answered: Answered) -> Embedding:
        """Put the answers of a call together."""
        vectors = np.concatenate([rows_of(output.embeddings, count) for count, output in answered])
        return Embedding(vectors, _usage(answered))


@dataclass(frozen=True)
class Classification:
    """Classified prompts.

    Attributes:
        scores: float32 [n, labels], in the order of the prompts: probabilities, or what else the model's files make of
            its logits; the reward of a reward model.
        classes: names of the labels.
        usage: token counts of all prompts together.
    """

    scores: Float32Array
    classes: tuple[str, ...]
    usage: Usage

    @property
    def labels(self) -> list[str]:
        """The label with the highest score of each prompt."""
        return [self.classes[i] for i in self.scores.argmax(1).tolist()]

    @staticmethod
    def of(answered: Answered, classes: tuple[str, ...]) -> Classification:
        """Put the answers of a call together."""
        scores = np.concatenate([rows_of(output.pooled_scores, count) for count, output in answered])
        return Classification(scores, classes, _usage(answered))


def _usage(answered: Answered) -> Usage:
    usages = [output.usage or Usage() for _, output in answered]
    return Usage(sum(u.prompt_tokens for u in usages), 0, sum(u.cached_tokens for u in usages))
