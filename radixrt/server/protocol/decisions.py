"""The typed body of /v1/decisions, and the questions of OpenAI's Decisions API: their prompts and their answers.

A question follows the input in the last user message, and the engine scores complete answers of the model: Yes or No
for a predicate, and a JSON string for a choice or a level; its closing quote prevents one answer from being a prefix of
another. Probabilities are those of these answers, relative to one another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixrt.chat.dialect import Dialect
from radixrt.chat.types import ChatMessage
from radixrt.errors import RequestError, shown, unsupported
from radixrt.messages.parts import ChatPrompt, SelectMethod, TemplateText
from radixrt.server.answers.decisions import (
    ChoiceDecision,
    ChoiceShare,
    Decision,
    LevelShare,
    PredicateDecision,
    ScoreDecision,
)
from radixrt.server.protocol.fields import RoutingFields
from radixrt.tasks.score import softmax

MAX_QUESTIONS = 400
MAX_OPTIONS = 255

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT_TYPES = ("input_text", "output_text", "text")


class InputPart(msgspec.Struct, kw_only=True):
    """Part of a content, of the types input_text, output_text, refusal and input_json."""

    type: str
    text: str | None = None
    refusal: str | None = None
    data: msgspec.Raw = msgspec.Raw()


Content = str | list[InputPart]


class InputMessage(msgspec.Struct, kw_only=True):
    role: str | None = None
    content: Content | None = None
    type: str = "message"


class Option(msgspec.Struct, kw_only=True):
    """One of a question's choices."""

    value: str | bool
    description: str | None = None


class Level(msgspec.Struct, kw_only=True):
    """One level of a score, lowest first."""

    label: str
    description: str | None = None


class Question(msgspec.Struct, kw_only=True):
    """A question of type predicate, choice (with `choices`) or score (with `levels`)."""

    type: str
    instructions: Content
    name: str | None = None
    choices: list[Option] | None = None
    levels: list[Level] | None = None


class DecisionRequest(RoutingFields, kw_only=True):
    """POST /v1/decisions; see `radixrt.server.routes.decisions`."""

    input: str | list[InputMessage] | None = None
    questions: list[Question] | None = None
    choices: list[str] | None = None
    method: SelectMethod = "token_length_normalized"
    text: str | None = None
    input_ids: list[int] | None = None
    input_parts: list[str | list[int] | TemplateText] | None = None
    messages: list[ChatMessage] | None = None
    return_prompt_ids: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    allow_control_tokens: bool | None = None


decision_decoder = msgspec.json.Decoder(DecisionRequest)


@dataclass(frozen=True)
class AskedQuestion:
    """One question in the form that the engine scores.

    Attributes:
        prompt: the input, followed by the question.
        answers: the answers to score.
    """

    question: Question
    prompt: ChatPrompt
    answers: list[str]

    def answer(self, logprobs: list[float]) -> Decision:
        """Build the question's answer from the log-probabilities of its answers."""
        name, probabilities = self.question.name, softmax(logprobs)
        if self.question.type == "predicate":
            return PredicateDecision(name, probabilities[0])
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        confidence = probabilities[best]
        if self.question.type == "choice":
            values = [option.value for option in self.question.choices or ()]
            shares = [ChoiceShare(value, share) for value, share in zip(values, probabilities, strict=True)]
            return ChoiceDecision(name, values[best], confidence, shares)
        labels = [level.label for level in self.question.levels or ()]
        levels = [LevelShare(i, label, probabilities[i]) for i, label in enumerate(labels)]
        return ScoreDecision(name, sum(i * p for i, p in enumerate(probabilities)), confidence, levels)


def read_questions(body: DecisionRequest, dialect: Dialect, *, allow_control_tokens: bool) -> list[AskedQuestion]:
    """Return the questions of a request, in order.

    Args:
        allow_control_tokens: recognize control tokens in the input and the questions.

    Raises:
        RequestError: naming the field.
    """
    questions = body.questions or []
    if not 1 <= len(questions) <= MAX_QUESTIONS:
        raise RequestError(f"questions must hold 1 to {MAX_QUESTIONS} questions", param="questions")
    if body.input is None:
        raise RequestError("input is required", param="input", code="missing_field")
    messages = _messages(body.input)
    variables = msgspec.json.encode({"enable_thinking": False, **(body.chat_template_kwargs or {})})
    asked = []
    for i, question in enumerate(questions):
        place = f"questions[{i}]"
        answers, form = _answers(question, place)
        text = f"{_text(question.instructions, f'{place}.instructions')}\n\n{form}"
        prompt = ChatPrompt(
            msgspec.json.encode(_with_question(messages, text)),
            template_kwargs=variables,
            allow_control_tokens=allow_control_tokens,
            answer_markers=dialect.answer_markers,
        )
        asked.append(AskedQuestion(question, prompt, answers))
    return asked


def _answers(question: Question, place: str) -> tuple[list[str], str]:
    """Return the answers to score, and the instruction that tells the model about them."""
    if question.type == "predicate":
        return ["Yes", "No"], "Is this true? Answer with Yes or No."
    if question.type == "choice":
        options = question.choices or []
        answers = _options([option.value for option in options], f"{place}.choices", "value")
        listed = _listed(answers, [option.description for option in options])
        return answers, f"Answer with one of these, and nothing else:\n{listed}"
    if question.type == "score":
        levels = question.levels or []
        answers = _options([level.label for level in levels], f"{place}.levels", "label")
        listed = _listed(answers, [level.description for level in levels])
        return answers, f"Answer with one of these levels, from lowest to highest, and nothing else:\n{listed}"
    raise RequestError(
        f"{place}.type must be predicate, choice or score, not {shown(question.type)}", param=f"{place}.type"
    )


def _options(values: Sequence[str | bool], place: str, field: str) -> list[str]:
    if not 2 <= len(values) <= MAX_OPTIONS:
        raise RequestError(f"{place} must hold 2 to {MAX_OPTIONS} entries", param=place)
    answers = [json.dumps(value, ensure_ascii=False) for value in values]
    for i, answer in enumerate(answers):
        if answers.index(answer) != i:
            name = f"{place}[{i}].{field}"
            raise RequestError(f"{name} is the same as that of {place}[{answers.index(answer)}]", param=name)
    return answers


def _listed(answers: Sequence[str], descriptions: Sequence[str | None]) -> str:
    lines = (f"- {a}: {d}" if d else f"- {a}" for a, d in zip(answers, descriptions, strict=True))
    return "\n".join(lines)


def _messages(given: str | list[InputMessage]) -> list[dict[str, str]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages = []
    for i, message in enumerate(given):
        place = f"input[{i}]"
        if message.type != "message":
            raise unsupported(f"{place}.type", f"an input of type {shown(message.type)}")
        role = _ROLES.get(message.role or "")
        if role is None:
            raise RequestError(
                f"{place}.role must be one of {', '.join(_ROLES)}, not {shown(message.role)}", param=f"{place}.role"
            )
        if message.content is None:
            raise RequestError(f"{place}.content is required", param=f"{place}.content", code="missing_field")
        messages.append({"role": role, "content": _text(message.content, f"{place}.content")})
    return messages


def _with_question(messages: list[dict[str, str]], question: str) -> list[dict[str, str]]:
    """Append the question to the last message if that is a user's, since many templates require roles to alternate."""
    if messages and messages[-1]["role"] == "user":
        return [*messages[:-1], {"role": "user", "content": f"{messages[-1]['content']}\n\n{question}"}]
    return [*messages, {"role": "user", "content": question}]


def _text(content: Content, place: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        name = f"{place}[{i}]"
        if part.type == "input_json":
            if not bytes(part.data):
                raise RequestError(f"{name}.data is required", param=f"{name}.data", code="missing_field")
            texts.append(bytes(part.data).decode())
            continue
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in (*_TEXT_TYPES, "refusal"):
            raise unsupported(name, f"a content part of type {shown(part.type)}")
        if text is None:
            field = "refusal" if part.type == "refusal" else "text"
            raise RequestError(f"{name}.{field} is required", param=f"{name}.{field}", code="missing_field")
        texts.append(text)
    return "\n".join(texts)
