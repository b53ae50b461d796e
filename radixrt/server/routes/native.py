"""POST /generate: radixrt's own route, close to SGLang's.

The request is a `radixrt.server.protocol.fields.NativeRequest`.
The answer is a `radixrt.server.answers.native.Generation` for one prompt with n = 1, otherwise a list of them,
prompt-major. A stream sends one for each delta and ends with [DONE]; an error after the first event comes as
{"error": {...}}.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from radixrt.chat.constraint import (
    FieldNames,
    RequestedConstraint,
    constraint_fields,
    field_names,
    read_constraint,
    renamed,
)
from radixrt.errors import RequestError
from radixrt.messages.client import ClientRequest, EngineReady, InputRow, PartsInput
from radixrt.sampling_params import DEFAULT_MAX_TOKENS, MAX_LOGPROBS, MAX_PROMPT_LOGPROBS, SamplingParams
from radixrt.server.access.request_context import RequestContext
from radixrt.server.answers.native import NativeEncoder, Shown
from radixrt.server.http.connection import generated
from radixrt.server.http.receive import receive
from radixrt.server.protocol.fields import (
    NativeRequest,
    NativeSampling,
    build_sampling,
    check_supported,
    envelope_of,
    native_decoder,
    native_prompt_reads,
)
from radixrt.server.protocol.prompts import make_requests, read_parts, split_prompts
from radixrt.server.routes.engine_calls import answer_call, is_engine_client
from radixrt.server.serving.request_groups import RequestGroup
from radixrt.server.serving.service import Service
from radixrt.tasks.generate import expand_n


async def generate(service: Service, request: Request) -> Response:
    """See the module's docstring; clients of the engine are answered by `radixrt.server.routes.engine_calls`."""
    if is_engine_client(request):
        return await answer_call(service, request)
    return await receive(service, request, native_decoder, partial(_answer, service, request.state.context))


def _answer(service: Service, context: RequestContext, body: NativeRequest, info: EngineReady) -> Response:
    check_supported(body)
    envelope, stream = envelope_of(body, context), bool(body.stream)
    param, given = _the_prompt(body)
    asked = _read_constraint(body)
    names = {"prompt": param, "messages": param, "input_ids": param}
    names |= _prefixed({**_field_names(body, asked), "stop": "stop"})
    sampling = native_sampling(body, asked, info.vocab_size)
    if body.input_parts is None:
        requests = make_requests(split_prompts(given, param), param, sampling, info, envelope, stream=stream)
    else:
        parts = read_parts(body.input_parts, info, param)
        requests = [ClientRequest(envelope, [InputRow(PartsInput(parts))], sampling, stream)]
    shown = Shown(max(body.logprob_start_len or 0, 0), bool(body.return_prompt_ids), body.encoding_format == "base64")
    rids = [one.rid for request in requests for one in expand_n(request)]
    single = len(rids) == 1 and not (body.input_parts is None and _is_batch(given))
    encoder = NativeEncoder(rids, shown, single)
    return generated(service, RequestGroup(context, envelope.rid, requests, names), encoder, stream=stream)


def _the_prompt(body: NativeRequest) -> tuple[str, Any]:
    """Return the name and the value of the one prompt field that is given."""
    fields = {"text": body.text, "input_ids": body.input_ids, "input_parts": body.input_parts}
    given = [(name, value) for name, value in fields.items() if value is not None]
    if len(given) != 1:
        raise RequestError("exactly one of text, input_ids and input_parts is needed", param="text")
    return given[0]


def _is_batch(given: Any) -> bool:
    return isinstance(given, list) and not isinstance(given[0], int)


def _read_constraint(body: NativeRequest) -> RequestedConstraint | None:
    try:
        return read_constraint(body.sampling_params or NativeSampling())
    except RequestError as error:
        raise _in_sampling_params(error) from None


def _in_sampling_params(error: RequestError) -> RequestError:
    return RequestError(
        error.message, param=f"sampling_params.{error.param}", code=error.code, status=error.status
    )  # fmt: skip


def _field_names(body: NativeRequest, asked: RequestedConstraint | None) -> FieldNames:
    """The client's names for the fields of `SamplingParams`."""
    renamed_limit = body.sampling_params is not None and body.sampling_params.max_new_tokens is not None
    return field_names(asked, max_tokens="max_new_tokens" if renamed_limit else "max_tokens")


def _prefixed(names: FieldNames) -> dict[str, str]:
    return {field: f"sampling_params.{name}" for field, name in names.items()}


def native_sampling(body: NativeRequest, asked: RequestedConstraint | None, vocab_size: int) -> SamplingParams:
    given = body.sampling_params or NativeSampling()
    logprobs, reads = given.logprobs, native_prompt_reads(body, given)
    if body.return_logprob:
        top = body.top_logprobs_num or 0
        of_prompt = body.logprob_start_len is not None and body.logprob_start_len >= 0
        most = min(MAX_PROMPT_LOGPROBS if of_prompt else MAX_LOGPROBS, vocab_size)
        if not 0 <= top <= most:
            raise RequestError(f"top_logprobs_num must be between 0 and {most}", param="top_logprobs_num")
        logprobs = top if logprobs is None else logprobs
        if of_prompt and reads["prompt_logprobs"] is None:
            reads["prompt_logprobs"] = top
    max_tokens = given.max_tokens if given.max_new_tokens is None else given.max_new_tokens
    try:
        return build_sampling(
            given,
            vocab_size,
            max_tokens=DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
            logprobs=logprobs,
            detokenize=given.detokenize is not False,
            **reads,
            **constraint_fields(asked, given.structured),
        )
    except RequestError as error:
        raise _in_sampling_params(renamed(error, _field_names(body, asked))) from None
