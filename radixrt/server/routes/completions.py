"""POST /v1/completions."""

from __future__ import annotations

from starlette.responses import Response

from radixrt.chat.constraint import (
    RequestedConstraint,
    constraint_fields,
    field_names,
    read_constraint,
    renamed,
)
from radixrt.errors import RequestError
from radixrt.messages.client import EngineReady
from radixrt.messages.parts import FillInTokens
from radixrt.sampling_params import MAX_N, SamplingParams
from radixrt.server.access.request_context import RequestContext
from radixrt.server.answers.completions import Choice, CompletionEncoder
from radixrt.server.http.connection import generated
from radixrt.server.http.receive import received
from radixrt.server.protocol.fields import (
    COMPLETION_MAX_TOKENS,
    MAX_TOP_LOGPROBS,
    CompletionRequest,
    build_sampling,
    check_stream_options,
    completion_decoder,
    envelope_of,
    kept_prompt_tokens,
    prompt_reads,
    token_report,
)
from radixrt.server.protocol.prompts import FILL_IN_NAMES, Prompt, fill_in, make_requests, split_prompts
from radixrt.server.serving.request_groups import RequestGroup
from radixrt.server.serving.service import Service


@received(completion_decoder)
def completions(service: Service, context: RequestContext, body: CompletionRequest, info: EngineReady) -> Response:
    """OpenAI's text completions. `radixrt.server.protocol.fields.CompletionRequest` lists the accepted fields."""
    envelope, stream = envelope_of(body, context), bool(body.stream)
    include_usage = check_stream_options(body.stream_options, stream)
    prompts = split_prompts(body.prompt, "prompt")
    kept, report = kept_prompt_tokens(body, info), token_report(body)
    if kept is not None:
        prompts = [prompt if isinstance(prompt, str) else prompt[-kept:] for prompt in prompts]
    asked = read_constraint(body)
    names = field_names(asked, input_ids="prompt", messages="prompt", **FILL_IN_NAMES)
    sampling = completion_sampling(body, asked, info.vocab_size, prompts, stream=stream)
    requests = make_requests(prompts, "prompt", sampling, info, envelope, stream=stream, keep_last=kept)
    if body.suffix:
        tokens = fill_in_tokens(body, info)
        pairs = zip(requests, prompts, strict=True)
        requests = [fill_in(request, prompt, body.suffix, tokens) for request, prompt in pairs]
    choices = [
        Choice(index, prompts[index // sampling.n] if body.echo else None, body.logprobs is not None, report)
        for index in range(len(prompts) * sampling.n)
    ]
    encoder = CompletionEncoder(
        f"cmpl-{envelope.rid}",
        service.model_name,
        choices,
        sampled=sampling.n,
        wanted=body.n or 1,
        include_usage=include_usage,
    )
    return generated(service, RequestGroup(context, envelope.rid, requests, names), encoder, stream=stream)


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
    reads = prompt_reads(body)
    if body.echo and body.prompt_logprobs is not None:
        raise RequestError("echo and prompt_logprobs exclude each other; ask for one", param="prompt_logprobs")
    if body.echo and body.truncate_prompt_tokens is not None:
        raise RequestError(
            "echo and truncate_prompt_tokens exclude each other; leave one out", param="truncate_prompt_tokens"
        )
    if body.echo:
        # Token ids are echoed as the text of their log-probability rows, and only such a request may generate nothing.
        needs_rows = max_tokens == 0 or not isinstance(prompts[0], str)
        reads["prompt_logprobs"] = 0 if logprobs is None and needs_rows else logprobs
    try:
        return build_sampling(
            body,
            vocab_size,
            max_tokens=max_tokens,
            logprobs=own_logprobs,
            **reads,
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
