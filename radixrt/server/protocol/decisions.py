"""The typed body of /v1/decisions, and the questions of OpenAI's Decisions API: their prompts and their answers.

`radixrt.server.protocol.questions` documents the prompt of a question and the probabilities of its answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixrt.chat.dialect import Dialect
from radixrt.chat.images import instead_of, read_image
from radixrt.chat.types import ChatMessage
from radixrt.errors import RequestError, shown, unsupported
from radixrt.messages.parts import ChatPrompt, ImageInput, SelectMethod, TemplateText
from radixrt.server.answers.decisions import (
    ChoiceDecision,
    ChoiceShare,
    Decision,
    LevelShare,
    PredicateDecision,
    QuestionUsage,
    ScoreDecision,
)
from radixrt.server.protocol.fields import RoutingFields
from radixrt.server.protocol.questions import (
    Asker,
    Message,
    QuestionForm,
    Shares,
    ask_choice,
    ask_level,
    ask_predicate,
    check_number,
    json_answers,
    json_text,
)

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT_TYPES = ("input_text", "output_text", "text")


class InputPart(msgspec.Struct, kw_only=True):
    """Part of a content, of the types input_text, output_text, refusal, input_json and, of the user, input_image."""

    type: str
    text: str | None = None
    image_url: str | None = None
    detail: str | None = None
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
    temperature: float | None = None
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
    answers: Sequence[str]

    def answer(self, found: Shares, usage: QuestionUsage) -> Decision:
        """Build the question's answer from the probabilities of its answers."""
        name, probabilities, mass = self.question.name, found.probabilities, found.label_mass
        if self.question.type == "predicate":
            return PredicateDecision(name, probabilities[0], label_mass=mass, usage=usage)
        if self.question.type == "choice":
            values = [option.value for option in self.question.choices or ()]
            options = [ChoiceShare(value, share) for value, share in zip(values, probabilities, strict=True)]
            best = values[found.best]
            return ChoiceDecision(name, best, found.confidence, options, label_mass=mass, usage=usage)
        labels = [level.label for level in self.question.levels or ()]
        levels = [LevelShare(i, label, probabilities[i]) for i, label in enumerate(labels)]
        return ScoreDecision(name, found.expected_level, found.confidence, levels, label_mass=mass, usage=usage)


def read_questions(body: DecisionRequest, dialect: Dialect, *, allow_control_tokens: bool) -> list[AskedQuestion]:
    """Return the questions of a request, in order.

    Args:
        allow_control_tokens: recognize control tokens in the input and the questions.

    Raises:
        RequestError: naming the field.
    """
    questions = body.questions or []
    check_number(len(questions))
    if body.input is None:
        raise RequestError("input is required", param="input", code="missing_field")
    images: list[ImageInput] = []
    messages = _messages(body.input, images)
    asker = Asker(messages, dialect, body.chat_template_kwargs or {}, allow_control_tokens, images)
    asked = []
    for i, question in enumerate(questions):
        form = _form(question, f"questions[{i}]")
        asked.append(AskedQuestion(question, asker.prompt(form), form.answers))
    return asked


def _form(question: Question, place: str) -> QuestionForm:
    text = _content(question.instructions, f"{place}.instructions", None)
    assert isinstance(text, str)
    if question.type == "predicate":
        return ask_predicate(text)
    if question.type == "choice":
        options = question.choices or []
        answers = json_answers([option.value for option in options], f"{place}.choices", "value")
        return ask_choice(text, answers, [option.description for option in options])
    if question.type == "score":
        levels = question.levels or []
        answers = json_answers([level.label for level in levels], f"{place}.levels", "label")
        return ask_level(text, answers, [level.description for level in levels])
    raise RequestError(
        f"{place}.type must be predicate, choice or score, not {shown(question.type)}", param=f"{place}.type"
    )


def _messages(given: str | list[InputMessage], images: list[ImageInput]) -> list[Message]:
    """Return the input as messages of a chat; its pictures are appended to `images`."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Message] = []
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
        pictures = images if role == "user" else None
        messages.append({"role": role, "content": _content(message.content, f"{place}.content", pictures)})
    return messages


def _content(content: Content, place: str, images: list[ImageInput] | None) -> str | list[Message]:
    """Return a content as a text, or, if it has pictures, as a list of parts.

    Args:
        images: pictures of the content are appended; None where there can be no pictures.
    """
    if isinstance(content, str):
        return content
    parts: list[Message] = []
    texts: list[str] = []
    for i, part in enumerate(content):
        name = f"{place}[{i}]"
        if part.type != "input_image":
            texts.append(_part_text(part, name))
            continue
        if images is None:
            raise RequestError(f"{name}: images go into messages of the user in input", param=name)
        images.append(read_image(part.image_url, part.detail, name, "image_url"))
        if texts:
            parts.append({"type": "text", "text": "\n".join(texts)})
            texts = []
        parts.append({"type": "image"})
    text = "\n".join(texts)
    if not parts:
        return text
    return [*parts, {"type": "text", "text": text}] if texts else parts


def _part_text(part: InputPart, name: str) -> str:
    if part.type == "input_json":
        if not bytes(part.data):
            raise RequestError(f"{name}.data is required", param=f"{name}.data", code="missing_field")
        return json_text(part.data, f"{name}.data")
    text = part.refusal if part.type == "refusal" else part.text
    if part.type not in (*_TEXT_TYPES, "refusal"):
        instead = instead_of(part.type, "input_image")
        raise unsupported(name, f"a content part of type {shown(part.type)}", instead=instead)
    if text is None:
        field = "refusal" if part.type == "refusal" else "text"
        raise RequestError(f"{name}.{field} is required", param=f"{name}.{field}", code="missing_field")
    return text
