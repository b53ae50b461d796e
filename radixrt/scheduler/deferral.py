"""`ComputedPrefixes`: which waiting requests had better wait for what an active one is computing right now."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.req import Req, ReqState

DEFER_TOKENS = 32
"""A waiting request is held back while an earlier one computes at least this many tokens that it could reuse."""

_TOKEN_BYTES = 4


class ComputedPrefixes:
    """The inputs of the requests in PREFILL, while one step's requests are admitted.

    Whether one of them begins with what a request begins with, cached tokens and DEFER_TOKENS more, is asked of every
    waiting request; so they are filed by their DEFER_TOKENS tokens behind each number of cached tokens that came up,
    and only those with the same ones there are compared.
    """

    def __init__(self, active: Iterable[Req], kv: KVManager) -> None:
        self._kv = kv
        self._reqs = [r for r in active if r.state is ReqState.PREFILL] if kv.cache.shares else []
        self._filed: dict[int, dict[tuple[str, bytes], list[Req]]] = {}

    def add(self, req: Req) -> None:
        """A request was admitted."""
        if self._kv.cache.shares:
            self._reqs.append(req)
            for cached, files in self._filed.items():
                _file(files, req, cached)

    def covers(self, req: Req) -> bool:
        """True while an active request is computing a prefix of this one's input that it can reuse a step later."""
        reusable = req.reusable_ids
        if not self._reqs or len(reusable) < DEFER_TOKENS:
            return False
        cached = self._kv.match_len(req)
        if len(reusable) < cached + DEFER_TOKENS:
            return False
        files = self._filed.get(cached)
        if files is None:
            files = self._filed[cached] = {}
            for other in self._reqs:
                _file(files, other, cached)
        window = reusable[cached : cached + DEFER_TOKENS].tobytes()
        same = files.get((req.namespace, window), ())
        return any(np.array_equal(other.ids[:cached], reusable[:cached]) for other in same)


def _file(files: dict[tuple[str, bytes], list[Req]], req: Req, cached: int) -> None:
    window = req.known_ids[cached : cached + DEFER_TOKENS].tobytes()
    if len(window) == _TOKEN_BYTES * DEFER_TOKENS:
        files.setdefault((req.namespace, window), []).append(req)
