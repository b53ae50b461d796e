"""POST /v1/decisions: probabilities of given answers, from prefills alone; nothing is generated.

Two forms. With `questions` it is OpenAI's Decisions API, and its clients work:

    {"model", "input": str or messages, "questions": [
        {"type": "predicate", "name", "instructions"},
        {"type": "choice", "name", "instructions", "choices": [{"value": str | bool, "description"}, ...]},
        {"type": "score", "name", "instructions", "levels": [{"label", "description"}, ...]}]}
    -> `radixrt.server.answers.decisions.Decisions`

Messages of the user may hold pictures, {"type": "input_image", "image_url", "detail"}. Pictures elsewhere and calls of
tools are refused by name. `radixrt.server.protocol.questions` documents the prompt of a question and the probabilities
of its answers, which `temperature` (default: the server's) changes. Each answer has two members beside OpenAI's:
`label_mass` and `usage`.

With `choices` it is radixrt's own, the route behind `rt.select`: texts that may follow a prompt, scored as they are.

    text | input_ids | input_parts | messages
                        exactly one: the prompt, as /generate and /v1/chat/completions take it (one of them)
    choices             [str], all different
    method              "token_length_normalized", "greedy" or "unconditional_likelihood_normalized"; see
                        `radixrt.tasks.score`
    return_prompt_ids   answer with the prompt's token ids
    model, rid, priority, cache_salt, timeout, program (as /generate has it)
    -> `radixrt.server.answers.decisions.ScoredChoices`
"""

from __future__ import annotations

from msgspec import UNSET
from starlette.responses import Response

from radixrt.chat.prompt import chat_prompt
from radixrt.errors import RequestError
from radixrt.messages.client import EngineReady, Input, PartsInput, TextInput, TokenInput
from radixrt.messages.wire import pack_i32
from radixrt.server.access.request_context import RequestContext
from radixrt.server.answers.decisions import ChoiceMeta, Decisions, ScoredChoices
from radixrt.server.answers.parts import InputUsage, ReasoningTokens, clean_logprob
from radixrt.server.http.connection import answered
from radixrt.server.http.receive import received
from radixrt.server.protocol.decisions import AskedQuestion, DecisionRequest, decision_decoder, read_questions
from radixrt.server.protocol.fields import allows_control_tokens, envelope_of, read_conversation
from radixrt.server.protocol.prompts import check_ids, read_parts
from radixrt.server.protocol.questions import shares, temperature_of
from radixrt.server.routes.scored_questions import prompt_usage, question_usage, score_calls
from radixrt.server.serving.request_groups import RequestGroup
from radixrt.server.serving.service import Service
from radixrt.tasks.prompts import token_ids
from radixrt.tasks.score import Decision, Score

PROMPTS = ("text", "input_ids", "input_parts", "messages")


@received(decision_decoder)
def decisions(service: Service, context: RequestContext, body: DecisionRequest, info: EngineReady) -> Response:
    """See the module's docstring."""
    envelope = envelope_of(body, context)
    temperature = temperature_of(body.temperature, service.decision_temperature)
    if (body.questions is None) == (body.choices is None):
        raise RequestError("exactly one of questions and choices is needed", param="questions")
    asked = None
    if body.questions is not None:
        asked = read_questions(
            body, service.dialect, allow_control_tokens=allows_control_tokens(body.allow_control_tokens, service.config)
        )
    if asked is None:
        names = {"prompt": "text"}
        calls = [Score(_prompt(body, service, info), body.choices or [], envelope, body.method)]
    else:
        names = {"messages": "input"}
        calls = score_calls(asked, envelope)

    async def answer() -> Decisions | ScoredChoices:
        requests = [call.requests[0] for call in calls]
        outputs = await service.groups.collect(RequestGroup(context, envelope.rid, requests, names))
        found = [call.answer([output]) for call, output in zip(calls, outputs, strict=True)]
        return (
            _scored_choices(body, envelope.rid, found[0])
            if asked is None
            else _decisions(service, asked, found, temperature)
        )

    return answered(answer)


def _prompt(body: DecisionRequest, service: Service, info: EngineReady) -> Input:
    """Return the prompt, given in exactly one form."""
    if sum(getattr(body, name) is not None for name in PROMPTS) != 1:
        raise RequestError(f"exactly one of {', '.join(PROMPTS)} is needed", param="text")
    if body.input_ids is not None:
        if body.input_ids:
            check_ids(body.input_ids, "input_ids", info)
        return TokenInput(pack_i32(token_ids(body.input_ids, "input_ids")))
    if body.input_parts is not None:
        return PartsInput(read_parts(body.input_parts, info, "input_parts"))
    if body.messages is not None:
        return chat_prompt(read_conversation(body.messages, body, service.config), None, service.dialect)
    return TextInput(body.text or "")


# --- the answers ---


def _scored_choices(body: DecisionRequest, rid: str, found: Decision) -> ScoredChoices:
    usage, timings = found.usage, found.timings
    meta = ChoiceMeta(
        rid, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, timings.queue_s, timings.prefill_s
    )
    return ScoredChoices(
        found.choice,
        found.text,
        found.probabilities,
        [clean_logprob(value) for value in found.logprobs],
        found.scores,
        found.token_ids,
        found.kept,
        meta,
        found.prompt_token_ids if body.return_prompt_ids else UNSET,
    )


def _decisions(service: Service, asked: list[AskedQuestion], found: list[Decision], temperature: float) -> Decisions:
    answers = [
        each.answer(shares(decision.logprobs, temperature), question_usage(decision))
        for each, decision in zip(asked, found, strict=True)
    ]
    tokens, details = prompt_usage(found)
    return Decisions(service.model_name, answers, InputUsage(tokens, details, 0, ReasoningTokens(0), tokens))
