"""POST /v1/decisions: probabilities of given answers, from prefills alone; nothing is generated.

Two forms. With `questions` it is OpenAI's Decisions API, and its clients work:

    {"model", "input": str or messages, "questions": [
        {"type": "predicate", "name", "instructions"},
        {"type": "choice", "name", "instructions", "choices": [{"value": str | bool, "description"}, ...]},
        {"type": "score", "name", "instructions", "levels": [{"label", "description"}, ...]}]}
    -> `radixrt.server.answers.decisions.Decisions`

Images and tool calls in the input are refused by name. `radixrt.server.protocol.decisions` documents the prompt of a
question.

With `choices` it is radixrt's own, the route behind `rt.select`: texts that may follow a prompt, scored as they are.

    text | input_ids | input_parts | messages
                        exactly one: the prompt, as /generate and /v1/chat/completions take it (one of them)
    choices             [str], all different
    method              "token_length_normalized", "greedy" or "unconditional_likelihood_normalized"; see
                        `radixrt.tokenizer.selection`
    return_prompt_ids   answer with the prompt's token ids
    model, rid, priority, cache_salt, timeout, program (as /generate has it)
    -> `radixrt.server.answers.decisions.ScoredChoices`
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from radixrt.chat.prompt import chat_prompt
from radixrt.client.requests import token_ids
from radixrt.errors import RequestError
from radixrt.messages.client import ChoiceScores, EngineReady, RequestOutput, ScoreReq
from radixrt.messages.parts import Timings, Usage
from radixrt.messages.wire import pack_i32
from radixrt.server.answers.decisions import ChoiceMeta, Decisions, ScoredChoices
from radixrt.server.answers.parts import InputDetails, InputUsage, ReasoningTokens, clean_logprob
from radixrt.server.http.connection import answered
from radixrt.server.http.receive import receive
from radixrt.server.protocol.decisions import AskedQuestion, DecisionRequest, decision_decoder, read_questions
from radixrt.server.protocol.fields import allows_control_tokens, envelope_options, read_conversation
from radixrt.server.protocol.prompts import check_ids, read_parts
from radixrt.server.request_context import RequestContext
from radixrt.server.service import Service

PROMPTS = ("text", "input_ids", "input_parts", "messages")


async def decisions(service: Service, request: Request) -> Response:
    """See the module's docstring."""
    body, info = await receive(service, request, decision_decoder)
    context: RequestContext = request.state.context
    options = envelope_options(body, context)
    if (body.questions is None) == (body.choices is None):
        raise RequestError("exactly one of questions and choices is needed", param="questions")
    asked = None
    if body.questions is not None:
        asked = read_questions(
            body, service.dialect, allow_control_tokens=allows_control_tokens(body.allow_control_tokens, service.config)
        )
    if asked is None:
        names = {"prompt": "text"}
        requests = [_score_request(body, service, info, options)]
    else:
        names = {"messages": "input"}
        requests = [
            ScoreReq(**{**options, "rid": f"{options['rid']}-q{i}"}, choices=each.answers, chat=each.prompt)
            for i, each in enumerate(asked)
        ]

    async def answer() -> Decisions | ScoredChoices:
        deltas = await service.groups.ask(context, options["rid"], requests, names)
        return _scored_choices(body, options["rid"], deltas[0]) if asked is None else _decisions(service, asked, deltas)

    return answered(answer)


def _score_request(body: DecisionRequest, service: Service, info: EngineReady, options: dict[str, Any]) -> ScoreReq:
    """Build the request from the prompt, given in exactly one form, and the choices."""
    if sum(getattr(body, name) is not None for name in PROMPTS) != 1:
        raise RequestError(f"exactly one of {', '.join(PROMPTS)} is needed", param="text")
    prompt: dict[str, Any] = {"prompt": body.text}
    if body.input_ids is not None:
        if body.input_ids:
            check_ids(body.input_ids, "input_ids", info)
        prompt = {"input_ids": pack_i32(token_ids(body.input_ids, "input_ids"))}
    elif body.input_parts is not None:
        prompt = {"parts": read_parts(body.input_parts, info, "input_parts")}
    elif body.messages is not None:
        chat = read_conversation(body.messages, body, service.config)
        prompt = {"chat": chat_prompt(chat, None, service.dialect)}
    return ScoreReq(**options, **prompt, choices=body.choices or [], method=body.method)


# --- the answers ---


def _scores(delta: RequestOutput) -> ChoiceScores:
    if delta.decision is None:
        raise RequestError("the request was aborted", code="aborted", status=499)
    return delta.decision


def _scored_choices(body: DecisionRequest, rid: str, delta: RequestOutput) -> ScoredChoices:
    found, usage, timings = _scores(delta), delta.usage or Usage(), delta.timings or Timings()
    meta = ChoiceMeta(
        rid, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, timings.queue_s, timings.prefill_s
    )
    return ScoredChoices(
        found.choice,
        (body.choices or [])[found.choice],
        found.probabilities,
        [clean_logprob(value) for value in found.logprobs],
        found.scores,
        found.token_ids,
        found.kept,
        meta,
        delta.prompt_token_ids if body.return_prompt_ids and delta.prompt_ids is not None else UNSET,
    )


def _decisions(service: Service, asked: list[AskedQuestion], deltas: list[RequestOutput]) -> Decisions:
    answers = [each.answer(_scores(delta)) for each, delta in zip(asked, deltas, strict=True)]
    usages = [delta.usage or Usage() for delta in deltas]
    tokens = sum(usage.prompt_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in usages)
    details = InputDetails(cached, tokens - cached)
    return Decisions(service.model_name, answers, InputUsage(tokens, details, 0, ReasoningTokens(0), tokens))
