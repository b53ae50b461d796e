"""Routes about tokens: POST /tokenize, POST /detokenize, GET /tokenizer_info (as vLLM has them), GET /chat_template.

    /tokenize       {"prompt": str, "add_special_tokens": bool} or {"messages": [...], ...} or {"input_parts": [...]}
                    (messages may be the prompt too, as lm-eval sends them)
                    -> {"tokens": [int], "count": int, "max_model_len": int}
    /detokenize     {"tokens": [int], "skip_special_tokens": bool} -> {"prompt": str}
    /tokenizer_info -> tokenizer_config.json as it is in use: eos_token, ..., tokenizer_class, chat_template
    /chat_template  -> {"templates": {name: Jinja source}, "special_tokens": {name: text}}, or null where there is none

A prompt is tokenized as a request with it is. add_special_tokens (true unless said otherwise) puts the model's bos
before it; skip_special_tokens (false unless said otherwise) leaves special tokens out of the text.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixrt.chat.prompt import chat_prompt
from radixrt.chat.types import ChatMessage
from radixrt.errors import RequestError
from radixrt.messages.client import EngineReady, Input, PartsInput, TextInput
from radixrt.messages.parts import TemplateText
from radixrt.messages.request import Envelope
from radixrt.server.access.request_context import RequestContext
from radixrt.server.answers.service import ChatTemplates, Detokenized, Tokens
from radixrt.server.http.errors import json_response
from radixrt.server.http.receive import admit, receive
from radixrt.server.protocol.fields import read_conversation
from radixrt.server.protocol.prompts import read_parts
from radixrt.server.serving.service import Service
from radixrt.tasks.tokenize import Detokenize, Tokenize


class TokenizeBody(msgspec.Struct, kw_only=True):
    """POST /tokenize"""

    model: str | None = None
    prompt: str | list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    input_parts: list[str | list[int] | TemplateText] | None = None
    messages: list[ChatMessage] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    allow_control_tokens: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """POST /detokenize"""

    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool | None = None


tokenize_decoder = msgspec.json.Decoder(TokenizeBody)
detokenize_decoder = msgspec.json.Decoder(DetokenizeBody)


async def tokenize(service: Service, request: Request) -> Response:
    """See the module's docstring."""
    context: RequestContext = request.state.context
    call, names, info = await receive(service, request, tokenize_decoder, partial(_tokenize, service, context))
    ids = await service.groups.run(context, call, names)
    return json_response(Tokens(ids, len(ids), info.context_length))


def _tokenize(
    service: Service, context: RequestContext, body: TokenizeBody, info: EngineReady
) -> tuple[Tokenize, dict[str, str], EngineReady]:
    """Return the task, and the client's names for its fields."""
    if [body.prompt, body.input_parts, body.messages].count(None) != 2:
        raise RequestError("exactly one of prompt, messages and input_parts is needed", param="prompt")
    if isinstance(body.prompt, str):
        raw = body.add_special_tokens is False
        given: Input = PartsInput([TemplateText(body.prompt)]) if raw else TextInput(body.prompt)
    elif body.input_parts is not None:
        given = PartsInput(read_parts(body.input_parts, info, "input_parts"))
    else:
        chat = read_conversation(body.messages or body.prompt or [], body, service.config)
        given = chat_prompt(chat, None, service.dialect)
    names = {} if body.input_parts is not None else {"input_parts": "prompt"}
    return Tokenize(given, Envelope(context.rid)), names, info


async def detokenize(service: Service, request: Request) -> Response:
    """See the module's docstring."""
    context: RequestContext = request.state.context

    def prepare(body: DetokenizeBody, info: EngineReady) -> Detokenize:
        skips = bool(body.skip_special_tokens)
        return Detokenize(body.tokens, Envelope(context.rid), skip_special_tokens=skips)

    asked = await receive(service, request, detokenize_decoder, prepare)
    return json_response(Detokenized(await service.groups.run(context, asked, {})))


async def get_tokenizer_info(service: Service, request: Request) -> Response:
    """See the module's docstring."""
    info = admit(service)
    if not info.tokenizer_info:
        raise RequestError(
            "this server has no tokenizer; start it without --skip-tokenizer-init", code="no_tokenizer", status=404
        )
    return Response(info.tokenizer_info, media_type="application/json")


async def chat_template(service: Service, request: Request) -> Response:
    """See the module's docstring."""
    info = admit(service)
    if not info.chat_templates:
        return json_response(None)
    return json_response(ChatTemplates(info.chat_templates, info.special_tokens))
