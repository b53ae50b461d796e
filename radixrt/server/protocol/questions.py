"""Typed questions about an input: the prompt of a question, and the probabilities of its answers.

A question follows the input in the last user message, and the engine scores complete answers of the model: Yes or No
for a predicate, a JSON string for a choice or a labelled level, a digit for a numbered level. An answer is never a
prefix of another answer: the closing quote of a JSON string prevents that.

Each probability is the one of an answer among the given answers: the softmax of the answers' log-probabilities, divided
by the temperature of the request or the server (`decision_temperature`). The confidence of a question is its largest
probability. `label_mass` tells how far the model agrees to answer with one of the answers at all; no temperature
changes that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from radixrt.chat.dialect import Dialect
from radixrt.config.validation import DECISION_TEMPERATURES
from radixrt.errors import RequestError
from radixrt.messages.parts import ChatPrompt, ImageInput
from radixrt.server.protocol.assets import Assets, Part
from radixrt.tasks.score import softmax

MAX_QUESTIONS = 400
MAX_OPTIONS = 255

Message = dict[str, Any]
"""Message for chat templates: {"role", "content"}. The content is a text, or a list of parts if it has pictures."""

YES_OR_NO = ("Yes", "No")


class Shares(NamedTuple):
    """Probabilities of the answers to a question.

    Attributes:
        probabilities: of each answer among all of them; their sum is 1.
        label_mass: probability that the model's text begins with one of the answers, from 0 to 1.
    """

    probabilities: list[float]
    label_mass: float

    @property
    def best(self) -> int:
        """Index of the most probable answer; among equal ones of the first."""
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @property
    def confidence(self) -> float:
        """Probability of the most probable answer."""
        return max(self.probabilities)

    @property
    def expected_level(self) -> float:
        """Mean of the levels 0, 1, ... by their probabilities."""
        return sum(i * p for i, p in enumerate(self.probabilities))


def shares(logprobs: Sequence[float], temperature: float) -> Shares:
    """Return the probabilities of a question's answers.

    Args:
        logprobs: natural logarithm of the probability of each whole answer.
        temperature: divides them; above 0.
    """
    scaled = [value / temperature for value in logprobs]
    return Shares(softmax(scaled), min(math.fsum(math.exp(value) for value in logprobs), 1.0))


@dataclass(frozen=True)
class QuestionForm:
    """A question as the model reads it.

    Attributes:
        text: the question, with the instruction that names the answers.
        answers: the texts to score.
    """

    text: str
    answers: Sequence[str]


@dataclass(frozen=True)
class Asker:
    """Writes the prompts of questions about one input.

    Attributes:
        messages: the input, as messages of a chat.
        template_kwargs: variables of the chat template. Reasoning is off unless they say otherwise: an answer is scored
            where the model would begin it.
        allow_control_tokens: recognize control tokens in the input and the questions.
        images: pictures of the input, in the order of its parts.
        assets: pictures whose marks are in the texts of questions.
    """

    messages: list[Message]
    dialect: Dialect
    template_kwargs: dict[str, Any]
    allow_control_tokens: bool
    images: Sequence[ImageInput] = ()
    assets: Assets | None = None

    def prompt(self, form: QuestionForm) -> ChatPrompt:
        question, images = (form.text, []) if self.assets is None else self.assets.split(form.text)
        return ChatPrompt(
            msgspec.json.encode(self._with_question(question)),
            template_kwargs=msgspec.json.encode({"enable_thinking": False, **self.template_kwargs}),
            allow_control_tokens=self.allow_control_tokens,
            answer_markers=self.dialect.answer_markers,
            images=[*self.images, *images],
        )

    def _with_question(self, question: str | list[Part]) -> list[Message]:
        """Append the question to the last message if that is a user's, since many templates require roles to
        alternate."""
        messages = self.messages
        if not (messages and messages[-1]["role"] == "user"):
            return [*messages, {"role": "user", "content": question}]
        content = messages[-1]["content"]
        if isinstance(question, str):
            question = f"\n\n{question}"
            content = content + question if isinstance(content, str) else [*content, *_as_parts(question)]
        else:
            content = [*_as_parts(content), *_as_parts("\n\n"), *question]
        return [*messages[:-1], {"role": "user", "content": content}]


def _as_parts(content: str | list[Part]) -> list[Part]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def check_number(count: int) -> None:
    """Raise RequestError unless a request has a number of questions that the engine takes."""
    if not 1 <= count <= MAX_QUESTIONS:
        raise RequestError(f"questions must hold 1 to {MAX_QUESTIONS} questions", param="questions")


def temperature_of(given: float | None, default: float) -> float:
    """Return the temperature of a request's probabilities, or the server's if the request has none.

    Raises:
        RequestError: it is out of range.
    """
    if given is None:
        return default
    low, high = DECISION_TEMPERATURES
    if not low <= given <= high:
        raise RequestError(f"temperature must be between {low:g} and {high:g}", param="temperature")
    return given


def json_text(given: msgspec.Raw, place: str) -> str:
    """Return a JSON value as the client wrote it; raises RequestError naming its place if it is not valid UTF-8."""
    try:
        return bytes(given).decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"{place} is not valid UTF-8: {error.reason}", param=place, code="invalid_utf8") from None


def ask_predicate(question: str) -> QuestionForm:
    return QuestionForm(f"{question}\n\nIs this true? Answer with Yes or No.", YES_OR_NO)


def ask_choice(question: str, answers: Sequence[str], descriptions: Sequence[str | None]) -> QuestionForm:
    """Ask for one of some answers, which are JSON texts."""
    listed = _listed(answers, descriptions)
    return QuestionForm(_joined(question, f"Answer with one of these, and nothing else:\n{listed}"), answers)


def ask_level(question: str, answers: Sequence[str], descriptions: Sequence[str | None]) -> QuestionForm:
    """Ask for one of some levels, lowest first, whose labels are JSON texts."""
    listed = _listed(answers, descriptions)
    form = f"Answer with one of these levels, from lowest to highest, and nothing else:\n{listed}"
    return QuestionForm(_joined(question, form), answers)


def ask_number(question: str, descriptions: Sequence[str]) -> QuestionForm:
    """Ask for the number of one of at most ten levels, counted from 0."""
    answers = [str(i) for i in range(len(descriptions))]
    listed = "\n".join(f"{answer}: {text}" for answer, text in zip(answers, descriptions, strict=True))
    form = f"Answer with the number of one of these levels, from lowest to highest, and nothing else:\n{listed}"
    return QuestionForm(_joined(question, form), answers)


def json_answers(values: Sequence[str | bool], place: str, field: str) -> list[str]:
    """Return the JSON texts of a question's answers.

    Args:
        place, field: names of the list and of an entry's value, for errors.

    Raises:
        RequestError: too few or too many values, or two equal ones.
    """
    if not 2 <= len(values) <= MAX_OPTIONS:
        raise RequestError(f"{place} must hold 2 to {MAX_OPTIONS} entries", param=place)
    answers = [json.dumps(value, ensure_ascii=False) for value in values]
    first: dict[str, int] = {}
    for i, answer in enumerate(answers):
        if first.setdefault(answer, i) != i:
            name = f"{place}[{i}].{field}"
            raise RequestError(f"{name} is the same as that of {place}[{first[answer]}]", param=name)
    return answers


def _joined(question: str, form: str) -> str:
    return f"{question}\n\n{form}" if question else form


def _listed(answers: Sequence[str], descriptions: Sequence[str | None]) -> str:
    lines = (f"- {a}: {d}" if d else f"- {a}" for a, d in zip(answers, descriptions, strict=True))
    return "\n".join(lines)
