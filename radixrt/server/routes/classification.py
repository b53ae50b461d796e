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
from starlette.requests import Request
from starlette.responses import Response

from radixrt.chat.constraint import FieldNames
from radixrt.chat.prompt import chat_prompt
from radixrt.chat.types import ChatMessage
from radixrt.client.pooled import rows_of, with_caller_names
from radixrt.errors import RequestError
from radixrt.messages.client import ClassifyReq, EngineReady, RequestOutput
from radixrt.server.answers.parts import prompt_usage
from radixrt.server.answers.pooling import Classification, Classified
from radixrt.server.http.connection import answered
from radixrt.server.http.receive import receive
from radixrt.server.protocol.fields import RoutingFields, envelope_options, read_conversation
from radixrt.server.protocol.prompts import read_input
from radixrt.server.request_context import RequestContext
from radixrt.server.service import Service


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


async def classify(service: Service, request: Request) -> Response:
    """See the module's docstring."""
    body, info = await receive(service, request, classification_decoder)
    context: RequestContext = request.state.context
    options = envelope_options(body, context)
    given, count, names = _prompts(body, service, info)
    question = ClassifyReq(**given, activation=body.use_activation is not False, **options)

    async def answer() -> Classification:
        try:
            (output,) = await service.groups.ask(context, options["rid"], [question], names)
        except RequestError as error:
            raise with_caller_names(error, "input") from None
        return _body(service, options["rid"], info, output, count)

    return answered(answer)


def _prompts(
    body: ClassificationRequest, service: Service, info: EngineReady
) -> tuple[dict[str, Any], int, FieldNames]:
    """Return the request's field with the prompts, their number, and the client's names for the engine's fields."""
    if (body.input is None) == (body.messages is None):
        raise RequestError("exactly one of input and messages is needed", param="input")
    if body.messages is not None:
        if body.add_generation_prompt is None:
            body.add_generation_prompt = False
        chat = read_conversation(body.messages, body, service.config)
        return {"chat": chat_prompt(chat, None, service.dialect)}, 1, {}
    assert body.input is not None
    return read_input(body.input, info)


def _body(service: Service, rid: str, info: EngineReady, output: RequestOutput, count: int) -> Classification:
    scores = rows_of(output.pooled_scores, count)
    best = scores.argmax(1).tolist()
    return Classification(
        id=rid,
        created=int(time.time()),
        model=service.model_name,
        data=[Classified(i, info.labels[best[i]], row, len(row)) for i, row in enumerate(scores.tolist())],
        usage=prompt_usage(output.usage, completion_tokens=0),
    )
