"""POST /v1/rerank and /v1/score: relevance of documents to queries, in the forms of Jina's and vLLM's API.

    /v1/rerank  {"query": str, "documents": [str] or [{"text": str}], "top_n": int, "return_documents": bool}
    /v1/score   {"text_1": str or [str], "text_2": str or [str]}, or the same as "queries" and "documents": one text and
                each of the others, or pairs

`radixrt.server.answers.pooling` has the types of the answers. For clients of vLLM they are also served as /rerank,
/v2/rerank and /score. Results of /v1/rerank are in descending order. Both take instruction (the task, for models whose
template has one), use_activation (false for logits), and model, rid, priority, cache_salt, timeout and program as
/generate does. The model decides how a pair is scored; see `radixrt.tokenizer.relevance`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixrt.client.pooled import rows_of
from radixrt.errors import RequestError
from radixrt.messages.client import RelevanceReq
from radixrt.server.answers.parts import PromptUsage, prompt_usage
from radixrt.server.answers.pooling import Ranked, RankedDocument, Ranking, Scored, Scores
from radixrt.server.http.connection import answered
from radixrt.server.http.receive import receive
from radixrt.server.protocol.fields import RoutingFields, envelope_options
from radixrt.server.request_context import RequestContext
from radixrt.server.service import Service
from radixrt.tokenizer.pooled_state import MAX_PROMPTS

Named = tuple[list[str], list[str]]
"""Texts, and the client's name of each."""


class Document(msgspec.Struct, kw_only=True):
    text: str


class RelevanceFields(RoutingFields, kw_only=True):
    """Fields that both routes share."""

    instruction: str | None = None
    use_activation: bool | None = None


class RerankRequest(RelevanceFields, kw_only=True):
    """POST /v1/rerank"""

    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool | None = None


class ScoreRequest(RelevanceFields, kw_only=True):
    """POST /v1/score"""

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None


rerank_decoder = msgspec.json.Decoder(RerankRequest)
score_decoder = msgspec.json.Decoder(ScoreRequest)


async def rerank(service: Service, request: Request) -> Response:
    """See the module's docstring."""
    body, _ = await receive(service, request, rerank_decoder)
    context: RequestContext = request.state.context
    options = envelope_options(body, context)
    documents = [each if isinstance(each, str) else each.text for each in body.documents]
    _check_number(documents, "documents", MAX_PROMPTS - 1)
    if body.top_n is not None and body.top_n < 1:
        raise RequestError(f"top_n must be at least 1, not {str(body.top_n)[:40]}", param="top_n")
    named = [f"documents[{i}]" for i in range(len(documents))]

    async def answer() -> Ranking:
        scores, usage = await _relate(
            service, context, options, body, ([body.query], ["query"]), (documents, named), retrieves=True
        )
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[: body.top_n]
        results = [Ranked(i, scores[i]) for i in best]
        if body.return_documents is not False:
            results = [Ranked(i, scores[i], RankedDocument(documents[i])) for i in best]
        return Ranking(options["rid"], service.model_name, results, usage)

    return answered(answer)


async def score(service: Service, request: Request) -> Response:
    """See the module's docstring."""
    body, _ = await receive(service, request, score_decoder)
    context: RequestContext = request.state.context
    options = envelope_options(body, context)
    first, second = _pairs(body)

    async def answer() -> Scores:
        scores, usage = await _relate(service, context, options, body, first, second, retrieves=False)
        return Scores(
            id=options["rid"],
            created=int(time.time()),
            model=service.model_name,
            data=[Scored(index=i, score=value) for i, value in enumerate(scores)],
            usage=usage,
        )

    return answered(answer)


def _pairs(body: ScoreRequest) -> tuple[Named, Named]:
    """Return the texts of both sides."""
    sides = ("text_1", "text_2") if body.queries is None and body.documents is None else ("queries", "documents")
    if sides[0] == "queries" and (body.text_1 is not None or body.text_2 is not None):
        raise RequestError("text_1 and text_2 are other names of queries and documents; give one pair", param="text_1")
    first, second = (_texts(getattr(body, name), name) for name in sides)
    if len(first[0]) != len(second[0]) and 1 not in (len(first[0]), len(second[0])):
        raise RequestError(
            f"{sides[1]} holds {len(second[0])} texts, and {sides[0]} {len(first[0])}: give equally many, or one in "
            "one of them",
            param=sides[1],
        )
    return first, second


def _check_number(texts: Sequence[str], param: str, most: int) -> None:
    if not 1 <= len(texts) <= most:
        raise RequestError(f"{param} must hold 1 to {most} texts, not {len(texts)}", param=param)


def _texts(given: str | list[str] | None, param: str) -> Named:
    if given is None:
        raise RequestError(f"{param} is missing", param=param)
    if isinstance(given, str):
        return [given], [param]
    _check_number(given, param, MAX_PROMPTS // 2)
    return given, [f"{param}[{i}]" for i in range(len(given))]


async def _relate(
    service: Service, context: RequestContext, options: dict[str, Any], body: RelevanceFields, queries: Named,
    documents: Named, *, retrieves: bool,
) -> tuple[list[float], PromptUsage]:  # fmt: skip
    """Return the score of each pair, and the usage for the answer."""
    question = RelevanceReq(
        queries=queries[0], documents=documents[0], instruction=body.instruction,
        activation=body.use_activation is not False, retrieves=retrieves, **options,
    )  # fmt: skip
    renamed = {f"queries[{i}]": name for i, name in enumerate(queries[1])}
    renamed |= {f"documents[{i}]": name for i, name in enumerate(documents[1])}
    (output,) = await service.groups.ask(context, options["rid"], [question], renamed)
    pairs = max(len(queries[0]), len(documents[0]))
    return rows_of(output.pooled_scores, pairs)[:, 0].tolist(), prompt_usage(output.usage)
