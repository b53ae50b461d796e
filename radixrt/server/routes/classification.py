"""POST /classify (and /v1/classify): scores of the labels of a sequence classification model, as vLLM has it.

input | messages    exactly one. str, [str], [int] or [[int]]: one prompt or at most 2,048, as texts or as token ids; or
                    one conversation for the chat template, with chat_template_kwargs, add_generation_prompt (false
                    unless given), continue_final_message and allow_control_tokens as /v1/chat/completions has them
use_activation      false for logits; by default what the model's own files make of them
model, rid, priority, cache_salt, timeout, program (as /generate has it)
-> `radixrt.server.answers.pooling.Classification`
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from starlette.responses import Response

from radixrt.chat.prompt import chat_prompt
from radixrt.chat.types import ChatMessage
from radixrt.client.validation import MAX_ROWS
from radixrt.errors import RequestError
from radixrt.messages.client import EngineReady, Input
from radixrt.server.access.request_context import RequestContext
from radixrt.server.answers.parts import prompt_usage
from radixrt.server.answers.pooling import Classification, Classified
from radixrt.server.http.connection import answered
from radixrt.server.http.receive import received
from radixrt.server.protocol.fields import RoutingFields, envelope_of, read_conversation
from radixrt.server.protocol.prompts import read_inputs
from radixrt.server.serving.service import Service
from radixrt.tasks.classify import Classify


class ClassificationRequest(RoutingFields, kw_only=True):
    """POST /classify"""

    input: str | list[str | int | list[int]] | None = None
    messages: list[ChatMessage] | None = None
    use_activation: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    allow_control_tokens: bool | None = None


classification_decoder = msgspec.json.Decoder(ClassificationRequest)


@received(classification_decoder)
def classify(service: Service, context: RequestContext, body: ClassificationRequest, info: EngineReady) -> Response:
    """See the module's docstring."""
    envelope = envelope_of(body, context)
    inputs = _inputs(body, service, info)
    asked = Classify(info, inputs, envelope, activation=body.use_activation is not False, at_once=MAX_ROWS)

    async def answer() -> Classification:
        found = await service.groups.run(context, asked, {})
        labeled = zip(found.labels, found.scores.tolist(), strict=True)
        return Classification(
            id=envelope.rid,
            created=int(time.time()),
            model=service.model_name,
            data=[Classified(i, label, row, len(row)) for i, (label, row) in enumerate(labeled)],
            usage=prompt_usage(found.usage, completion_tokens=0),
        )

    return answered(answer)


def _inputs(body: ClassificationRequest, service: Service, info: EngineReady) -> list[Input]:
    if (body.input is None) == (body.messages is None):
        raise RequestError("exactly one of input and messages is needed", param="input")
    if body.input is not None:
        return read_inputs(body.input, info)
    if body.add_generation_prompt is None:
        body.add_generation_prompt = False
    chat = read_conversation(body.messages or [], body, service.config)
    return [chat_prompt(chat, None, service.dialect)]
