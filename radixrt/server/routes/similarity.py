"""POST /v1/rerank and /v1/score: cosine similarity of embeddings, in the forms of Jina's and vLLM's API.

    /v1/rerank  {"query": str, "documents": [str] or [{"text": str}], "top_n": int, "return_documents": bool}
                -> {"id", "model", "results": [{"index", "relevance_score", "document": {"text"}}, ...], "usage"}
    /v1/score   {"text_1": str or [str], "text_2": str or [str]}: one text and each of the others, or pairs
                -> {"id", "object": "list", "created", "model", "data": [{"index", "object": "score", "score"}, ...],
                    "usage"}

Results of /v1/rerank are in descending order. Both take model, rid, priority, cache_salt, timeout and program as
/generate does, and are for models whose folder says how they embed: another model's hidden states tell little about
relevance, and a generative model scores answers exactly (/v1/decisions).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixrt.client.embedding import vectors_of
from radixrt.errors import RequestError
from radixrt.messages.client import EmbedReq, EngineReady
from radixrt.messages.wire import Float32Array
from radixrt.server.http.connection import Generated
from radixrt.server.http.errors import json_response
from radixrt.server.http.receive import receive
from radixrt.server.protocol.answers import prompt_usage
from radixrt.server.protocol.fields import RoutingFields, envelope_options
from radixrt.server.request_context import RequestContext
from radixrt.server.request_groups import Service
from radixrt.tokenizer.embedding import MAX_PROMPTS


class Document(msgspec.Struct, kw_only=True):
    text: str


class RerankRequest(RoutingFields, kw_only=True):
    """POST /v1/rerank"""

    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool | None = None


class ScoreRequest(RoutingFields, kw_only=True):
    """POST /v1/score"""

    text_1: str | list[str]
    text_2: str | list[str]


rerank_decoder = msgspec.json.Decoder(RerankRequest)
score_decoder = msgspec.json.Decoder(ScoreRequest)


async def rerank(service: Service, request: Request) -> Response:
    """See the module's docstring."""
    body, info = await receive(service, request, rerank_decoder)
    _check_embeds(info)
    context: RequestContext = request.state.context
    options = envelope_options(body, context)
    documents = [each if isinstance(each, str) else each.text for each in body.documents]
    _check_number(documents, "documents", MAX_PROMPTS - 1)
    if body.top_n is not None and body.top_n < 1:
        raise RequestError(f"top_n must be at least 1, not {str(body.top_n)[:40]}", param="top_n")
    names = ["query", *(f"documents[{i}]" for i in range(len(documents)))]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        vectors, usage = await _embed(service, context, options, [body.query, *documents], names)
        scores = (vectors[1:] @ vectors[0]).tolist()
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[: body.top_n]
        results = [{"index": i, "relevance_score": scores[i]} for i in best]
        if body.return_documents is not False:
            results = [{**each, "document": {"text": documents[each["index"]]}} for each in results]
        content = {"id": options["rid"], "model": service.model_name, "results": results, "usage": usage}
        await json_response(content)(scope, receive, send)

    return Generated(answer)


async def score(service: Service, request: Request) -> Response:
    """See the module's docstring."""
    body, info = await receive(service, request, score_decoder)
    _check_embeds(info)
    context: RequestContext = request.state.context
    options = envelope_options(body, context)
    (first, first_names), (second, second_names) = _texts(body.text_1, "text_1"), _texts(body.text_2, "text_2")
    if len(first) != len(second) and 1 not in (len(first), len(second)):
        raise RequestError(
            f"text_2 holds {len(second)} texts, and text_1 {len(first)}: give equally many, or one in one of them",
            param="text_2",
        )

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        vectors, usage = await _embed(service, context, options, first + second, first_names + second_names)
        scores = (vectors[: len(first)] * vectors[len(first) :]).sum(1).tolist()
        content = {
            "id": options["rid"],
            "object": "list",
            "created": int(time.time()),
            "model": service.model_name,
            "data": [{"index": i, "object": "score", "score": value} for i, value in enumerate(scores)],
            "usage": usage,
        }
        await json_response(content)(scope, receive, send)

    return Generated(answer)


def _check_embeds(info: EngineReady) -> None:
    if not info.declares_pooling:
        raise RequestError(
            "this model's folder does not say how it embeds (modules.json of sentence-transformers); /v1/decisions "
            "scores answers of a generative model, and /v1/embeddings returns its vectors",
            param="model", code="not_an_embedding_model",
        )  # fmt: skip


def _check_number(texts: Sequence[str], param: str, most: int) -> None:
    if not 1 <= len(texts) <= most:
        raise RequestError(f"{param} must hold 1 to {most} texts, not {len(texts)}", param=param)


def _texts(given: str | list[str], param: str) -> tuple[list[str], list[str]]:
    """Return the texts of a field and the client's name of each."""
    if isinstance(given, str):
        return [given], [param]
    _check_number(given, param, MAX_PROMPTS // 2)
    return given, [f"{param}[{i}]" for i in range(len(given))]


async def _embed(
    service: Service, context: RequestContext, options: dict[str, Any], texts: list[str], names: list[str]
) -> tuple[Float32Array, dict[str, Any]]:
    """Return float32 [len(texts), size], vectors of length 1, and the usage for the answer.

    Args:
        names: the client's name of each text, for errors.
    """
    question = EmbedReq(prompts=texts, normalize=True, **options)
    renamed = {f"prompts[{i}]": name for i, name in enumerate(names)}
    (output,) = await service.ask(context, options["rid"], [question], renamed)
    return np.asarray(vectors_of(output, len(texts))), prompt_usage(output.usage)
