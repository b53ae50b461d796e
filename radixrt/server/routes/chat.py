"""POST /v1/chat/completions."""

from __future__ import annotations

import time

from starlette.responses import Response

from radixrt.chat.plan import plan_chat
from radixrt.chat.types import Conversation, ToolOptions
from radixrt.messages.client import ClientRequest, EngineReady, InputRow
from radixrt.server.access.request_context import RequestContext
from radixrt.server.answers.chat import ChatEncoder
from radixrt.server.answers.parts import UsageSum
from radixrt.server.http.connection import generated
from radixrt.server.http.receive import received
from radixrt.server.protocol.fields import (
    ChatRequest,
    allows_control_tokens,
    chat_decoder,
    chat_sampling_fields,
    check_stream_options,
    envelope_of,
    kept_prompt_tokens,
    token_report,
)
from radixrt.server.serving.request_groups import RequestGroup
from radixrt.server.serving.service import Service


@received(chat_decoder)
def chat_completions(service: Service, context: RequestContext, body: ChatRequest, info: EngineReady) -> Response:
    """OpenAI's chat completions. `radixrt.server.protocol.fields.ChatRequest` lists the accepted fields."""
    envelope, stream = envelope_of(body, context), bool(body.stream)
    include_usage = check_stream_options(body.stream_options, stream)
    kept, report = kept_prompt_tokens(body, info), token_report(body)
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    plan = plan_chat(
        Conversation(
            messages=body.messages,
            template_kwargs=body.chat_template_kwargs,
            reasoning_effort=body.reasoning_effort,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            thinking_token_budget=body.thinking_token_budget,
            allow_control_tokens=allows_control_tokens(body.allow_control_tokens, service.config),
        ),
        ToolOptions(
            tools=body.tools,
            tool_choice=body.tool_choice,
            parallel_tool_calls=body.parallel_tool_calls,
            functions=body.functions,
            function_call=body.function_call,
        ),
        body,
        chat_sampling_fields(body, service.config, info),
        service.dialect,
        info.vocab_size,
        {"prompt": "messages", "input_ids": "messages", "max_tokens": limit},
    )
    requests = [ClientRequest(envelope, [InputRow(plan.prompt, keep_last=kept)], plan.sampling, stream)]
    answer_id, usage = f"chatcmpl-{envelope.rid}", UsageSum(plan.sampling.n)
    encoder = ChatEncoder(answer_id, int(time.time()), service.model_name, plan, include_usage, usage, report)
    group = RequestGroup(context, envelope.rid, requests, plan.names)
    return generated(service, group, encoder, stream=stream)
