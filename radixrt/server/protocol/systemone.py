"""The typed body of /v1/systemone, the questions of TypeSafe's System One API, and their answers.

`radixrt.server.protocol.questions` documents the prompt of a question and the probabilities of its answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixrt.chat.dialect import Dialect
from radixrt.errors import RequestError, shown
from radixrt.messages.parts import ChatPrompt
from radixrt.server.answers.decisions import QuestionUsage
from radixrt.server.answers.systemone import ChoiceAnswer, NoulAnswer, ScoreAnswer, SystemOneAnswer
from radixrt.server.protocol.assets import Asset, Assets, read_assets
from radixrt.server.protocol.fields import RoutingFields
from radixrt.server.protocol.questions import (
    Asker,
    Message,
    QuestionForm,
    Shares,
    ask_choice,
    ask_number,
    ask_predicate,
    check_number,
    json_answers,
    json_text,
)

MAX_LEVELS = 10

_BOX = "box is not supported: answers are scored, not measured in an image; use noul, choice or score"
_criteria_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_levels_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class SystemOneQuestion(msgspec.Struct, kw_only=True):
    """A question of type noul (`criteria`: an object with the members true and false), choice (`criteria`: an object of
    options and their descriptions) or score (`criteria`: a list of levels, lowest first)."""

    type: str
    instructions: msgspec.Raw = msgspec.Raw()
    criteria: msgspec.Raw = msgspec.Raw()


class SystemOneRequest(RoutingFields, kw_only=True):
    """POST /v1/systemone; see `radixrt.server.routes.systemone`."""

    state: msgspec.Raw = msgspec.Raw()
    questions: dict[str, SystemOneQuestion] | None = None
    assets: dict[str, Asset] | None = None
    temperature: float | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    allow_control_tokens: bool | None = None


systemone_decoder = msgspec.json.Decoder(SystemOneRequest)


@dataclass(frozen=True)
class NamedQuestion:
    """One question in the form that the engine scores.

    Attributes:
        prompt: the state, followed by the question.
        answers: the answers to score.
        options: names of the options of a choice.
        legend: descriptions of the levels of a score.
    """

    type: str
    prompt: ChatPrompt
    answers: Sequence[str]
    options: Sequence[str]
    legend: Sequence[msgspec.Raw]

    def answer(self, found: Shares, usage: QuestionUsage) -> SystemOneAnswer:
        """Build the question's answer from the probabilities of its answers."""
        probabilities, mass = found.probabilities, found.label_mass
        if self.type == "noul":
            return NoulAnswer(probabilities[0], mass, usage)
        if self.type == "choice":
            named = dict(zip(self.options, probabilities, strict=True))
            return ChoiceAnswer(self.options[found.best], found.confidence, named, mass, usage)
        legend = {str(i): text for i, text in enumerate(self.legend)}
        levels = {str(i): share for i, share in enumerate(probabilities)}
        return ScoreAnswer(found.expected_level, found.confidence, legend, levels, mass, usage)


def read_named_questions(
    body: SystemOneRequest, dialect: Dialect, *, files: Mapping[str, bytes], allow_control_tokens: bool
) -> dict[str, NamedQuestion]:
    """Return the questions of a request by their names, in order.

    Args:
        files: pictures in the parts of the form that the request is; none if it is JSON.
        allow_control_tokens: recognize control tokens in the state and the questions.

    Raises:
        RequestError: naming the field.
    """
    questions = body.questions or {}
    check_number(len(questions))
    assets = read_assets(body.assets, files)
    if _is_null(body.state):
        raise RequestError("state is required", param="state", code="missing_field")
    text = _text(body.state, "state", assets)
    content, images = (text, []) if assets is None else assets.split(text)
    messages: list[Message] = [{"role": "user", "content": content}]
    asker = Asker(messages, dialect, body.chat_template_kwargs or {}, allow_control_tokens, images, assets)
    asked = {name: _asked(question, f"questions.{name}", asker) for name, question in questions.items()}
    if assets is not None:
        assets.check_used()
    return asked


def _asked(question: SystemOneQuestion, place: str, asker: Asker) -> NamedQuestion:
    options: list[str] = []
    legend: list[msgspec.Raw] = []

    def text_of(given: msgspec.Raw, field: str) -> str:
        return _text(given, f"{place}.{field}", asker.assets)

    text = text_of(question.instructions, "instructions")
    if question.type == "noul":
        form = _ask_noul(text, question.criteria, place, asker.assets)
    elif question.type == "choice":
        criteria = _object(question.criteria, f"{place}.criteria", "an object of options and their descriptions")
        options = list(criteria)
        answers = json_answers(options, f"{place}.criteria", "name")
        form = ask_choice(text, answers, [text_of(value, f"criteria.{name}") for name, value in criteria.items()])
    elif question.type == "score":
        legend = _levels(question.criteria, f"{place}.criteria")
        form = ask_number(text, [text_of(level, f"criteria[{i}]") for i, level in enumerate(legend)])
    else:
        name = f"{place}.type"
        wrong = _BOX if question.type == "box" else f"must be noul, choice or score, not {shown(question.type)}"
        raise RequestError(f"{name} {wrong}", param=name)
    return NamedQuestion(question.type, asker.prompt(form), form.answers, options, legend)


def _ask_noul(text: str, given: msgspec.Raw, place: str, assets: Assets | None) -> QuestionForm:
    criteria = (
        {} if _is_null(given) else _object(given, f"{place}.criteria", "an object with the members true and false")
    )
    if unknown := criteria.keys() - {"true", "false"}:
        name = f"{place}.criteria.{min(unknown)}"
        raise RequestError(f"{name} is unknown: the criteria of a noul are true and false", param=name)
    described = [
        f"{answer} means: {meaning}"
        for answer, name in (("Yes", "true"), ("No", "false"))
        if (meaning := _text(criteria.get(name, msgspec.Raw()), f"{place}.criteria.{name}", assets))
    ]
    if not text and not described:
        raise RequestError(
            f"{place} needs instructions, or criteria that say what yes or no means", param=f"{place}.instructions"
        )
    return ask_predicate("\n\n".join(filter(None, (text, "\n".join(described)))))


def _levels(given: msgspec.Raw, place: str) -> list[msgspec.Raw]:
    try:
        levels = _levels_decoder.decode(given)
    except msgspec.DecodeError:
        raise RequestError(f"{place} must be a list of the levels' descriptions, lowest first", param=place) from None
    if not 1 <= len(levels) <= MAX_LEVELS:
        raise RequestError(f"{place} must hold 1 to {MAX_LEVELS} levels", param=place)
    return levels


def _object(given: msgspec.Raw, place: str, wanted: str) -> dict[str, msgspec.Raw]:
    try:
        return _criteria_decoder.decode(json_text(given, place))
    except msgspec.DecodeError:
        raise RequestError(f"{place} must be {wanted}", param=place) from None


def _is_null(given: msgspec.Raw) -> bool:
    return bytes(given) in (b"", b"null")


def _text(given: msgspec.Raw, place: str, assets: Assets | None) -> str:
    """Return a text as it is, and an object or a list as the JSON that the client wrote; "" for null. Marks stand for
    the pictures in it.

    Raises:
        RequestError: another JSON value.
    """
    if _is_null(given):
        return ""
    text = json_text(given, place)
    if text[0] == '"':
        text = str(msgspec.json.decode(text))
        return text if assets is None else assets.mark(text)
    if text[0] not in "{[":
        raise RequestError(f"{place} must be a text, an object or a list", param=place)
    return text if assets is None else assets.mark_json(text)
