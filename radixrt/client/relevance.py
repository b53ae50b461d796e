"""Calls of the offline API about the relevance of documents to queries: requests, and the answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from radixrt.client.pooled import rows_of
from radixrt.client.requests import NO_DEADLINE_S, new_rid
from radixrt.errors import RequestError, shown
from radixrt.messages.client import RelevanceReq, RequestOutput
from radixrt.messages.parts import ProgramHint, Usage
from radixrt.messages.wire import Float32Array


@dataclass(frozen=True)
class RankedDocument:
    """A document of `Engine.rerank`. `index`: its place among the documents of the call."""

    index: int
    score: float
    document: str


@dataclass(frozen=True)
class Reranking:
    """Documents in descending order of their relevance to a query.

    Attributes:
        results: the best first; of equal ones, the first of the call.
        usage: token counts of all pairs together.
    """

    results: list[RankedDocument]
    usage: Usage

    @staticmethod
    def of(request: RelevanceReq, output: RequestOutput, top_n: int | None) -> Reranking:
        """Read the answer to a request with one query."""
        scores = rows_of(output.pooled_scores, len(request.documents))[:, 0].tolist()
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[:top_n]
        results = [RankedDocument(i, scores[i], request.documents[i]) for i in best]
        return Reranking(results, output.usage or Usage())


@dataclass(frozen=True)
class Relevance:
    """Scored pairs of a query and a document.

    Attributes:
        scores: float32 [pairs].
        usage: token counts of all pairs together.
    """

    scores: Float32Array
    usage: Usage

    @staticmethod
    def of(request: RelevanceReq, output: RequestOutput) -> Relevance:
        """Read the answer to a request."""
        pairs = max(len(request.queries), len(request.documents))
        return Relevance(rows_of(output.pooled_scores, pairs)[:, 0], output.usage or Usage())


def rerank_request(query: str, documents: Sequence[str], top_n: int | None, **options: Any) -> RelevanceReq:
    """Build the request of `Engine.rerank`; raises as `relevance_request` does."""
    if not isinstance(query, str):
        raise RequestError(f"query must be a text, not {shown(query)}", param="query")
    if top_n is not None and (type(top_n) is not int or top_n < 1):
        raise RequestError(f"top_n must be an integer of at least 1, not {shown(top_n)}", param="top_n")
    if isinstance(documents, str):
        raise RequestError("documents must be a list of texts, not one text", param="documents")
    return relevance_request(query, documents, retrieves=True, **options)


def relevance_request(
    queries: str | Sequence[str], documents: str | Sequence[str], *, retrieves: bool = False,
    instruction: str | None = None, activation: bool = True, priority: int = 0, cache_salt: str = "",
    timeout_s: float = NO_DEADLINE_S, program: ProgramHint | None = None,
) -> RelevanceReq:  # fmt: skip
    """Build the request of a call.

    Raises:
        RequestError: an argument has a wrong type; names it.
        TypeError: an unknown option.
    """
    return RelevanceReq(
        new_rid(), _texts(queries, "queries"), _texts(documents, "documents"), instruction, activation, retrieves,
        priority, cache_salt, timeout_s, program,
    )  # fmt: skip


def _texts(given: str | Sequence[str], name: str) -> list[str]:
    if isinstance(given, str):
        return [given]
    if not hasattr(given, "__iter__"):
        raise RequestError(f"{name} must be a text or a list of texts, not {shown(given)}", param=name)
    return list(given)
