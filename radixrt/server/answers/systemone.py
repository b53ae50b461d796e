"""Answers of /v1/systemone."""

from __future__ import annotations

import msgspec

from radixrt.server.answers.base import Answer
from radixrt.server.answers.decisions import QuestionUsage
from radixrt.server.answers.parts import InputDetails


class NoulAnswer(Answer, tag_field="type", tag="noul"):
    """Probability that the answer is yes."""

    noul: float
    label_mass: float
    usage: QuestionUsage


class ChoiceAnswer(Answer, tag_field="type", tag="choice"):
    """The most probable option, its probability as the confidence, and the probability of each option."""

    choice: str
    confidence: float
    probabilities: dict[str, float]
    label_mass: float
    usage: QuestionUsage


class ScoreAnswer(Answer, tag_field="type", tag="score"):
    """The expected level, counted from 0, the probability of the most probable level as the confidence, and the
    description and probability of each level."""

    score: float
    confidence: float
    legend: dict[str, msgspec.Raw]
    probabilities: dict[str, float]
    label_mass: float
    usage: QuestionUsage


SystemOneAnswer = NoulAnswer | ChoiceAnswer | ScoreAnswer


class SystemOneUsage(Answer):
    """Tokens of the prompts of all questions. Nothing is generated."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int


class SystemOneResponse(Answer):
    """Answers to questions about a state, by the names of the questions."""

    model: str
    answers: dict[str, SystemOneAnswer]
    usage: SystemOneUsage
