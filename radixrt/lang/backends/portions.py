"""Calls with more texts than one request may hold: their portions, which are sent one after another, and their answers
put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

import numpy as np

from radixrt.client.pooled_answers import Embedding
from radixrt.client.relevance import RankedDocument, Reranking
from radixrt.lang.backends.base import EmbedCall, RerankCall
from radixrt.messages.parts import Usage

TEXTS_AT_ONCE = 512
"""Texts of one HTTP request; radixrt and OpenAI take 2,048 at most."""

ENGINE_TEXTS_AT_ONCE = 2047
"""Texts of one request to an engine in this process, a query not included."""


async def embed_in_portions(call: EmbedCall, size: int, ask: Callable[[EmbedCall], Awaitable[Embedding]]) -> Embedding:
    """Embed at most `size` texts at a time; raises as `ask` does."""
    if len(call.texts) <= size:
        return await ask(call)
    starts = range(0, len(call.texts), size)
    found = [await ask(dataclasses.replace(call, texts=call.texts[i : i + size])) for i in starts]
    return Embedding(np.concatenate([each.vectors for each in found]), _sum([each.usage for each in found]))


async def rerank_in_portions(
    call: RerankCall, size: int, ask: Callable[[RerankCall], Awaitable[Reranking]]
) -> Reranking:
    """Rank at most `size` documents at a time; the usage counts the query once for each portion. Raises as `ask`."""
    if len(call.documents) <= size:
        return await ask(call)
    results: list[RankedDocument] = []
    usages: list[Usage] = []
    for start in range(0, len(call.documents), size):
        found = await ask(dataclasses.replace(call, documents=call.documents[start : start + size]))
        results += [dataclasses.replace(each, index=start + each.index) for each in found.results]
        usages.append(found.usage)
    results.sort(key=lambda each: (-each.score, each.index))
    return Reranking(results[: call.top_n], _sum(usages))


def _sum(usages: list[Usage]) -> Usage:
    return Usage(sum(each.prompt_tokens for each in usages), 0, sum(each.cached_tokens for each in usages))
