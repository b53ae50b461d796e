"""POST /v1/systemone: typed questions about a state, answered by probabilities; nothing is generated.

It is TypeSafe's System One API, and its clients work:

    {"model", "state": str, object or list, "questions": {name: one of
        {"type": "noul", "instructions", "criteria": {"true", "false"}},
        {"type": "choice", "instructions", "criteria": {option: description or null, ...}},
        {"type": "score", "instructions", "criteria": [description, ...]}},
     "assets": {name: {"type": "image", "data_base64" or "part", "detail"}}}
    -> `radixrt.server.answers.systemone.SystemOneResponse`

The prompts of a request share the state, whose keys and values are computed once. `instructions` and descriptions may
be texts, objects or lists. An asset is a picture: it stands wherever its name occurs in a string of the state, of
instructions or of a description. The body is JSON, or a form (multipart/form-data) with the JSON in a part named
`request` and the files of pictures in other parts, which assets name. A request may have a `temperature` of its own
and the fields of other routes (rid, priority, cache_salt, timeout, program). Each answer has two members beside
TypeSafe's: `label_mass` and `usage`. `radixrt.server.protocol.questions` documents the prompt of a question and the
probabilities of its answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from radixrt.messages.client import EngineReady
from radixrt.server.access.request_context import RequestContext
from radixrt.server.answers.systemone import SystemOneResponse, SystemOneUsage
from radixrt.server.http.connection import answered
from radixrt.server.http.forms import Form
from radixrt.server.http.receive import receive
from radixrt.server.protocol.fields import allows_control_tokens, envelope_of
from radixrt.server.protocol.questions import shares, temperature_of
from radixrt.server.protocol.systemone import SystemOneRequest, read_named_questions, systemone_decoder
from radixrt.server.routes.scored_questions import prompt_usage, question_usage, score_calls
from radixrt.server.serving.request_groups import RequestGroup
from radixrt.server.serving.service import Service


async def systemone(service: Service, request: Request) -> Response:
    """See the module's docstring."""
    form = Form(request.headers.get("content-type", ""))

    def prepare(body: SystemOneRequest, info: EngineReady) -> Response:
        return _prepare(service, request.state.context, body, form.files)

    return await receive(service, request, systemone_decoder, prepare, form)


def _prepare(service: Service, context: RequestContext, body: SystemOneRequest, files: Mapping[str, bytes]) -> Response:
    envelope = envelope_of(body, context)
    temperature = temperature_of(body.temperature, service.decision_temperature)
    allowed = allows_control_tokens(body.allow_control_tokens, service.config)
    asked = read_named_questions(body, service.dialect, files=files, allow_control_tokens=allowed)
    calls = score_calls(asked.values(), envelope)

    async def answer() -> SystemOneResponse:
        requests = [call.requests[0] for call in calls]
        names = {"messages": "state"}
        outputs = await service.groups.collect(RequestGroup(context, envelope.rid, requests, names))
        found = [call.answer([output]) for call, output in zip(calls, outputs, strict=True)]
        answers = {
            name: each.answer(shares(one.logprobs, temperature), question_usage(one))
            for (name, each), one in zip(asked.items(), found, strict=True)
        }
        return SystemOneResponse(service.model_name, answers, SystemOneUsage(*prompt_usage(found), 0))

    return answered(answer)
