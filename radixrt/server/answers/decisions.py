"""Answers of /v1/decisions."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from radixrt.server.answers.base import Answer
from radixrt.server.answers.parts import InputUsage


class ChoiceMeta(Answer):
    """About scored choices."""

    id: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_s: float
    prefill_s: float


class ScoredChoices(Answer):
    """Scores of texts that may follow a prompt.

    A choice's log-probability covers its tokens after the first `kept` tokens of the prompt: after all of them, unless
    the prompt's last text is tokenized otherwise with a choice behind it.
    """

    choice: int
    text: str
    probabilities: list[float]
    logprobs: list[float | None]
    scores: list[float]
    token_ids: list[list[int]]
    kept: int
    meta_info: ChoiceMeta
    prompt_ids: list[int] | UnsetType = UNSET


class ChoiceShare(Answer):
    """Probability of one option of a question."""

    value: str | bool
    probability: float


class LevelShare(Answer):
    """Probability of one level of a question."""

    value: int
    label: str
    probability: float


class QuestionUsage(Answer):
    """Tokens of the prompt of one question, and the number of them that came from the cache."""

    input_tokens: int
    cached_tokens: int


class PredicateDecision(Answer, tag_field="type", tag="predicate"):
    """Probability that a predicate is true."""

    name: str | None
    probability: float
    label_mass: float
    usage: QuestionUsage


class ChoiceDecision(Answer, tag_field="type", tag="choice"):
    """The most probable option, and its probability as the confidence."""

    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[ChoiceShare]
    label_mass: float
    usage: QuestionUsage


class ScoreDecision(Answer, tag_field="type", tag="score"):
    """The expected level, counted from 0, and the probability of the most probable one as the confidence."""

    name: str | None
    score: float
    confidence: float
    probabilities: list[LevelShare]
    label_mass: float
    usage: QuestionUsage


Decision = PredicateDecision | ChoiceDecision | ScoreDecision


class Decisions(Answer):
    """Answers to questions."""

    model: str
    answers: list[Decision]
    usage: InputUsage
