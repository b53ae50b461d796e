"""Embedding requests of the offline API, and their answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from radixrt.client.requests import NO_DEADLINE_S, Prompt, new_rid, token_ids
from radixrt.errors import RequestError
from radixrt.messages.client import EmbedReq, RequestOutput
from radixrt.messages.parts import Usage
from radixrt.messages.wire import Float32Array, pack_i32, unpack_f32

PROMPTS_PER_REQUEST = 64
"""Prompts of one request of a call that has more; while one is computed, the next ones are tokenized."""

_INDEXED = re.compile(r"(?:prompts|input_ids)\[(\d+)\]")


@dataclass(frozen=True)
class Embedding:
    """Embedded prompts.

    Attributes:
        vectors: float32 [n, dimensions], in the order of the prompts.
        usage: token counts of all prompts together.
    """

    vectors: Float32Array
    usage: Usage

    @staticmethod
    def of(parts: list[tuple[int, RequestOutput]]) -> Embedding:
        """Put the answers of a call together: (number of prompts, output) of each request."""
        usages = [output.usage or Usage() for _, output in parts]
        return Embedding(
            np.concatenate([vectors_of(output, count) for count, output in parts]),
            Usage(sum(u.prompt_tokens for u in usages), 0, sum(u.cached_tokens for u in usages)),
        )


@dataclass(frozen=True)
class EmbedJob:
    """One request of a call, whose prompts are those of the call from index `first` on, `count` of them."""

    request: EmbedReq
    first: int
    count: int


def embed_jobs(
    prompts: list[Prompt], *, dimensions: int | None = None, normalize: bool | None = None, priority: int = 0,
    cache_salt: str = "", timeout_s: float = NO_DEADLINE_S,
) -> list[EmbedJob]:  # fmt: skip
    """Return the requests of a call, in order; texts and token ids go in separate ones.

    Raises:
        RequestError: there is no prompt, or one has a wrong type; names it.
    """
    if not prompts:
        raise RequestError("prompts must hold at least one prompt", param="prompts")
    return [
        EmbedJob(
            EmbedReq(
                new_rid(), texts, ids, dimensions, normalize, priority=priority, cache_salt=cache_salt,
                timeout_s=timeout_s,
            ),
            first,
            count,
        )
        for first, count, texts, ids in _portions(prompts)
    ]  # fmt: skip


def _portions(prompts: list[Prompt]) -> Iterator[tuple[int, int, list[str] | None, list[bytes] | None]]:
    """Yield (index of the first prompt, number of prompts, texts or None, columns of ids or None)."""
    first = 0
    while first < len(prompts):
        texts: list[str] = []
        ids: list[bytes] = []
        for i, prompt in enumerate(prompts[first : first + PROMPTS_PER_REQUEST]):
            if isinstance(prompt, str) and not ids:
                texts.append(prompt)
            elif not isinstance(prompt, str) and not texts:
                ids.append(pack_i32(token_ids(prompt, f"prompts[{first + i}]")))
            else:
                break
        count = len(texts) or len(ids)
        yield first, count, texts or None, ids or None
        first += count


def vectors_of(output: RequestOutput, count: int) -> Float32Array:
    """Return float32 [count, dimensions], a read-only view of the answer to a request of `count` prompts.

    Raises:
        RequestError: the request was aborted.
    """
    if output.embeddings is None:
        raise RequestError("the request was aborted", code="aborted", status=499)
    return unpack_f32(output.embeddings).reshape(count, -1)


def with_caller_names(error: RequestError, name: str, first: int = 0) -> RequestError:
    """Return an engine's error with the caller's name of the list of prompts.

    Args:
        first: index of the request's first prompt in that list.
    """
    param = error.param or ""
    found = _INDEXED.fullmatch(param)
    if found is not None:
        param = f"{name}[{first + int(found[1])}]"
    elif param in ("prompts", "input_ids"):
        param = name
    else:
        return error
    message = error.message.replace(error.param or "", param, 1)
    return RequestError(message, param=param, code=error.code, status=error.status, retry_after_s=error.retry_after_s)
