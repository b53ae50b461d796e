"""What clients may send to /v1/decisions; see `radixrt.server.protocol.fields` for what holds for all routes."""

from __future__ import annotations

from typing import Any

import msgspec

from radixrt.chat.types import ChatMessage
from radixrt.messages.parts import SelectMethod, TemplateText
from radixrt.server.protocol.fields import RoutingFields


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


decision_decoder = msgspec.json.Decoder(DecisionRequest)
