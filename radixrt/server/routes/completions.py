"""POST /v1/completions."""

from __future__ import annotations

import codecs
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixrt.chat.constraint import (
    RequestedConstraint,
    constraint_fields,
    field_names,
    read_constraint,
    renamed,
)
from radixrt.errors import RequestError
from radixrt.messages.client import EngineReady, RequestOutput, TokenLogprob
from radixrt.messages.parts import FillInTokens
from radixrt.sampling_params import MAX_N, SamplingParams
from radixrt.server.http.connection import DONE, generated
from radixrt.server.http.receive import receive
from radixrt.server.protocol.answers import TokenReport, UsageSum, clean_logprob, constraint_body, finish_reason
from radixrt.server.protocol.fields import (
    COMPLETION_MAX_TOKENS,
    MAX_TOP_LOGPROBS,
    CompletionRequest,
    asked_hidden_states,
    asked_prompt_logprobs,
    build_sampling,
    check_stream_options,
    completion_decoder,
    kept_prompt_tokens,
    routing_options,
)
from radixrt.server.protocol.prompts import FILL_IN_NAMES, Prompt, fill_in, make_requests, split_prompts
from radixrt.server.request_context import RequestContext
from radixrt.server.request_groups import RequestGroup
from radixrt.server.service import Service


async def completions(service: Service, request: Request) -> Response:
    """OpenAI's text completions. `radixrt.server.protocol.fields.CompletionRequest` lists the accepted fields."""
    body, info = await receive(service, request, completion_decoder)
    context: RequestContext = request.state.context
    options = routing_options(body, context)
    include_usage = check_stream_options(body.stream_options, options["stream"])
    prompts = split_prompts(body.prompt, "prompt")
    kept = kept_prompt_tokens(body, info)
    if kept is not None:
        options["truncate_prompt_tokens"] = kept
        prompts = [prompt if isinstance(prompt, str) else prompt[-kept:] for prompt in prompts]
    asked = read_constraint(body)
    names = field_names(asked, input_ids="prompt", messages="prompt", **FILL_IN_NAMES)
    sampling = completion_sampling(body, asked, info.vocab_size, prompts, stream=options["stream"])
    requests = make_requests(prompts, "prompt", sampling, info, options)
    if body.suffix:
        tokens = fill_in_tokens(body, info)
        pairs = zip(requests, prompts, strict=True)
        requests = [fill_in(request, prompt, body.suffix, tokens) for request, prompt in pairs]
    report = TokenReport(
        ids=bool(body.return_token_ids),
        as_ids=bool(body.return_tokens_as_token_ids),
        of_prompt=body.prompt_logprobs is not None,
    )
    choices = [
        Choice(index, prompts[index // sampling.n] if body.echo else None, body.logprobs is not None, report)
        for index in range(len(prompts) * sampling.n)
    ]
    head = {
        "id": f"cmpl-{options['rid']}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": service.model_name,
    }

    encoder = CompletionEncoder(head, choices, include_usage, UsageSum(sampling.n), wanted=body.n or 1)
    return generated(service, RequestGroup(context, options["rid"], requests, names), encoder, stream=options["stream"])


def completion_sampling(
    body: CompletionRequest, asked: RequestedConstraint | None, vocab_size: int, prompts: list[Prompt], *, stream: bool
) -> SamplingParams:
    """Return the sampling of every prompt; its `n` is the request's `best_of`, where that is more."""
    structured = constraint_fields(asked, body.structured)
    if body.logprobs is not None and not 0 <= body.logprobs <= MAX_TOP_LOGPROBS:
        raise RequestError(f"logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="logprobs")
    logprobs = None if body.logprobs is None else min(body.logprobs, vocab_size)
    sampled = _best_of(body, stream=stream)
    ranked = {} if sampled is None else {"n": sampled}
    own_logprobs = logprobs if sampled is None else logprobs or 0  # those of the sampled tokens rank the choices
    if body.echo and asked is not None:
        raise RequestError(f"echo would put the prompt before what {asked.field} asks for; leave it out", param="echo")
    max_tokens = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if max_tokens == 0 and not body.echo:
        raise RequestError("max_tokens must be at least 1 without echo", param="max_tokens")
    prompt_logprobs = logprobs if body.echo else asked_prompt_logprobs(body)
    if body.echo and body.prompt_logprobs is not None:
        raise RequestError("echo and prompt_logprobs exclude each other; ask for one", param="prompt_logprobs")
    if body.echo and body.truncate_prompt_tokens is not None:
        raise RequestError(
            "echo and truncate_prompt_tokens exclude each other; leave one out", param="truncate_prompt_tokens"
        )
    if body.echo and prompt_logprobs is None and (max_tokens == 0 or not isinstance(prompts[0], str)):
        # Token ids are echoed as the text of their log-probability rows, and only such a request may generate nothing.
        prompt_logprobs = 0
    try:
        return build_sampling(
            body,
            vocab_size,
            max_tokens=max_tokens,
            logprobs=own_logprobs,
            prompt_logprobs=prompt_logprobs,
            return_hidden_states=asked_hidden_states(body),
            **structured,
            **ranked,
        )
    except RequestError as error:
        raise renamed(error, field_names(asked)) from None


def fill_in_tokens(body: CompletionRequest, info: EngineReady) -> FillInTokens:
    """Return the tokens for writing the text between `prompt` and `suffix`."""
    if info.fill_in is None:
        raise RequestError(
            "suffix: this model's tokenizer has no control tokens for filling in the middle", param="suffix",
            code="unsupported_parameter",
        )  # fmt: skip
    for name in ("echo", "truncate_prompt_tokens"):
        if getattr(body, name):
            raise RequestError(f"{name} and suffix exclude each other; leave one out", param=name)
    return info.fill_in


def _best_of(body: CompletionRequest, *, stream: bool) -> int | None:
    """Number of completions of which the best are chosen; None if all are returned."""
    wanted, sampled = 1 if body.n is None else body.n, body.best_of
    if sampled is None or sampled == wanted or wanted < 1:
        return None  # an n below 1 is refused by its own name
    if not wanted <= sampled <= MAX_N:
        raise RequestError(f"best_of must be between n ({wanted}) and {MAX_N}, not {sampled}", param="best_of")
    if stream:
        raise RequestError("best_of compares whole completions, so it cannot be streamed", param="best_of")
    return sampled


def _mean_logprob(output: RequestOutput) -> float:
    """Mean log-probability of the tokens that were sampled; 0 if there are none."""
    known = [row.logprob for row in output.logprobs or [] if row.logprob is not None]
    return sum(known) / len(known) if known else 0.0


class Choice:
    """One choice of the response, whole or as parts of a stream, with the state for text offsets and echo.

    Args:
        echo: the prompt to put in front, or None.
    """

    def __init__(self, index: int, echo: Prompt | None, with_logprobs: bool, report: TokenReport) -> None:
        self.report = report
        self._begun = False
        self.index = index
        self._echo = echo
        self._with_logprobs = with_logprobs
        self._chars = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def part(self, output: RequestOutput) -> dict[str, Any]:
        """Build the choice for one output. With echo, the choice of the first output begins with the prompt."""
        text = output.text
        rows: list[TokenLogprob] = []
        if self._echo is not None:
            text = self._echoed(self._echo, output.prompt_logprobs or []) + text
            rows += output.prompt_logprobs or []
            self._echo = None
        rows += output.logprobs or []
        part: dict[str, Any] = {
            "index": self.index,
            "text": text,
            "logprobs": self._legacy_logprobs(rows) if self._with_logprobs else None,
            "finish_reason": None,
        }
        if self.report.ids:
            part["token_ids"] = output.token_ids
        if not self._begun:
            self._begun = True
            part |= self.report.prompt_body(output)
        if output.finish is not None:
            part["finish_reason"] = finish_reason(output.finish)
            part["stop_reason"] = output.finish.matched
            enforced = constraint_body(output)
            if enforced is not None:
                part["radixrt"] = enforced
        return part

    @staticmethod
    def _echoed(prompt: Prompt, rows: list[TokenLogprob]) -> str:
        if isinstance(prompt, str):
            return prompt
        return b"".join(row.data for row in rows).decode("utf-8", "replace")

    def _legacy_logprobs(self, rows: list[TokenLogprob]) -> dict[str, Any]:
        """OpenAI's older form: parallel lists, alternatives as {text: logprob}; the chosen token is among them.

        text_offset counts characters from the start of the choice's text, over the tokens' bytes: a character that
        spans tokens begins where its last byte does.
        """
        offsets: list[int] = []
        for row in rows:
            offsets.append(self._chars)
            self._chars += len(self._decoder.decode(row.data))
        return {
            "tokens": [self.report.name(row) for row in rows],
            "token_logprobs": [clean_logprob(row.logprob) for row in rows],
            "top_logprobs": [_alternatives(row, self.report) for row in rows],
            "text_offset": offsets,
        }


def _alternatives(row: TokenLogprob, report: TokenReport) -> dict[str, float | None] | None:
    if row.logprob is None:
        return None
    found: dict[str, float | None] = {}
    for top in (*row.top, row):
        found.setdefault(report.name(top), clean_logprob(top.logprob))
    return found


class CompletionEncoder:
    """Encodes the outputs of a completion request; constant parts of a stream are encoded once.

    Args:
        wanted: number of completions of each prompt that are returned, those with the highest mean log-probability;
            `usage.n` of them are sampled.
    """

    def __init__(
        self, head: dict[str, Any], choices: list[Choice], include_usage: bool, usage: UsageSum, *, wanted: int
    ) -> None:  # fmt: skip
        self._wanted = wanted
        self._head = head
        self._choices = choices
        self._usage = usage
        self._include_usage = include_usage
        self._prefix = b'data: %b,"system_fingerprint":null,"choices":[' % msgspec.json.encode(head)[:-1]
        self._suffix = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._plain_end = b',"logprobs":null,"finish_reason":null}' + self._suffix
        self._plain = [self._prefix + b'{"index":%d,"text":' % choice.index for choice in choices]
        self._started: set[int] = set()

    def body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        for choice, output in zip(self._choices, outputs, strict=True):
            self._usage.add(choice.index, output.usage)
        sampled = self._usage.n
        whole: list[dict[str, Any]] = []
        for first in range(0, len(outputs), sampled):
            each = list(range(first, first + sampled))
            if self._wanted < sampled:
                each = sorted(each, key=lambda i: -_mean_logprob(outputs[i]))[: self._wanted]
            whole += [self._choices[i].part(outputs[i]) | {"index": len(whole) + k} for k, i in enumerate(each)]
        return {**self._head, "choices": whole, "usage": self._usage.body(), "system_fingerprint": None}

    def event(self, index: int, output: RequestOutput) -> bytes:
        choice = self._choices[index]
        if index in self._started and output.finish is None and not output.logprobs and not choice.report.ids:
            if not output.text:
                return b""
            return self._plain[index] + msgspec.json.encode(output.text) + self._plain_end
        self._started.add(index)
        part = choice.part(output)
        self._usage.add(index, output.usage)
        if part["text"] or part["finish_reason"] or part["logprobs"] or part.get("token_ids"):
            return self._prefix + msgspec.json.encode(part) + self._suffix
        return b""

    def last_event(self) -> bytes:
        if not self._include_usage:
            return DONE
        return self._prefix + b'],"usage":%b}\n\n' % msgspec.json.encode(self._usage.body()) + DONE
