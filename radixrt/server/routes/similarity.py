"""POST /v1/rerank and /v1/score: relevance of documents to queries, in the forms of Jina's and vLLM's API.

    /v1/rerank  {"query": str, "documents": [str] or [{"text": str}], "top_n": int, "return_documents": bool}
    /v1/score   {"text_1": str or [str], "text_2": str or [str]}, or the same as "queries" and "documents": one text and
                each of the others, or pairs

`radixrt.server.answers.pooling` has the types of the answers. For clients of vLLM they are also served as /rerank,
/v2/rerank and /score. Results of /v1/rerank are in descending order. Both take instruction (the task, for models whose
template has one), use_activation (false for logits), and model, rid, priority, cache_salt, timeout and program as
/generate does. The model decides how a pair is scored; see `radixrt.tasks.rerank`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from starlette.responses import Response

from radixrt.client.validation import MAX_ROWS
from radixrt.errors import RequestError
from radixrt.messages.client import EngineReady, TextInput
from radixrt.server.access.request_context import RequestContext
from radixrt.server.answers.parts import prompt_usage
from radixrt.server.answers.pooling import Ranked, RankedDocument, Ranking, Scored, Scores
from radixrt.server.http.connection import answered
from radixrt.server.http.receive import received
from radixrt.server.protocol.fields import RoutingFields, envelope_of
from radixrt.server.serving.service import Service
from radixrt.tasks.rerank import Relate, Rerank, texts_of


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


@received(rerank_decoder)
def rerank(service: Service, context: RequestContext, body: RerankRequest, info: EngineReady) -> Response:
    """See the module's docstring."""
    envelope = envelope_of(body, context)
    documents = [each if isinstance(each, str) else each.text for each in body.documents]
    _check_number(documents, "documents", MAX_ROWS - 1)
    if body.top_n is not None and body.top_n < 1:
        raise RequestError(f"top_n must be at least 1, not {str(body.top_n)[:40]}", param="top_n")
    asked = Rerank(
        info,
        TextInput(body.query, "query"),
        texts_of(documents, "documents"),
        envelope,
        body.top_n,
        instruction=body.instruction,
        activation=body.use_activation is not False,
    )

    async def answer() -> Ranking:
        found = await service.groups.run(context, asked, {})
        results = [Ranked(each.index, each.score) for each in found.results]
        if body.return_documents is not False:
            results = [Ranked(each.index, each.score, RankedDocument(each.document)) for each in found.results]
        return Ranking(envelope.rid, service.model_name, results, prompt_usage(found.usage))

    return answered(answer)


@received(score_decoder)
def score(service: Service, context: RequestContext, body: ScoreRequest, info: EngineReady) -> Response:
    """See the module's docstring."""
    envelope = envelope_of(body, context)
    sides, activation = _pairs(body), body.use_activation is not False
    asked = Relate(info, *sides, envelope, instruction=body.instruction, activation=activation)

    async def answer() -> Scores:
        found = await service.groups.run(context, asked, {})
        return Scores(
            id=envelope.rid,
            created=int(time.time()),
            model=service.model_name,
            data=[Scored(index=i, score=value) for i, value in enumerate(found.scores.tolist())],
            usage=prompt_usage(found.usage),
        )

    return answered(answer)


def _pairs(body: ScoreRequest) -> tuple[list[TextInput], list[TextInput]]:
    """Return the texts of both sides."""
    sides = ("text_1", "text_2") if body.queries is None and body.documents is None else ("queries", "documents")
    if sides[0] == "queries" and (body.text_1 is not None or body.text_2 is not None):
        raise RequestError("text_1 and text_2 are other names of queries and documents; give one pair", param="text_1")
    first, second = (_texts(getattr(body, name), name) for name in sides)
    if len(first) != len(second) and 1 not in (len(first), len(second)):
        raise RequestError(
            f"{sides[1]} holds {len(second)} texts, and {sides[0]} {len(first)}: give equally many, or one in "
            "one of them",
            param=sides[1],
        )
    return first, second


def _check_number(texts: Sequence[str], param: str, most: int) -> None:
    if not 1 <= len(texts) <= most:
        raise RequestError(f"{param} must hold 1 to {most} texts, not {len(texts)}", param=param)


def _texts(given: str | list[str] | None, param: str) -> list[TextInput]:
    if given is None:
        raise RequestError(f"{param} is missing", param=param)
    if isinstance(given, str):
        return [TextInput(given, param)]
    _check_number(given, param, MAX_ROWS // 2)
    return texts_of(given, param)
