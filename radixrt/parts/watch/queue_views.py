"""`QueueViews`: views of waiting requests for readers of cache events, with the prefixes cached at present."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from radixrt.mem_cache.granules import prompt_hashes
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.messages.cache_events import QueueView
from radixrt.messages.wire import pack_i32
from radixrt.scheduler.part import Core
from radixrt.scheduler.prefix_index import common_len
from radixrt.scheduler.req import Req

HASHED_TOKENS = 65_536
"""Maximum number of prompt tokens hashed for one set of views, which takes about 1 ms, and hashed of a single prompt.
Further prompts are hashed for the next views."""


class Prefix(NamedTuple):
    """Cached prefix of a waiting request.

    Attributes:
        matched: number of tokens whose keys and values are cached.
        unlocked: number of matched tokens that no request has locked.
        continuations: number of cached continuations behind the matched tokens.
    """

    matched: int
    unlocked: int
    continuations: int


class QueueViews:
    """Makes the `QueueView`s of a reader. Hashes of a prompt are sent to the reader once."""

    def __init__(self, core: Core) -> None:
        self._cache = core.kv.cache
        self._admission = core.admission
        self._scheduler = core.scheduler
        self._sent: set[str] = set()

    def clear(self) -> None:
        """Forget what the reader was sent."""
        self._sent.clear()

    def views(self, reqs: Iterable[Req], now: float) -> list[QueueView]:
        """Return the view of each waiting request in `reqs`. The scheduler's state is not changed."""
        found = []
        find = self._admission.obstacles(now)
        sent, budget = set(), HASHED_TOKENS
        for req in reqs:
            prefix = cached_prefix(self._cache, req)
            hashes = None
            if req.rid in self._sent:
                sent.add(req.rid)
            elif budget > 0:
                ids = req.known_ids[:HASHED_TOKENS]
                hashes = prompt_hashes(pack_i32(ids), req.namespace)
                budget -= len(ids)
                sent.add(req.rid)
            name, need, free = find(req, prefix.matched, prefix.unlocked)
            if not self._scheduler.can_step:
                name = "restart"
            length, continuations = len(req.reusable_ids), prefix.continuations
            kept = self._scheduler.parts.kept_outside(req.reusable_ids, req.namespace)
            found.append(QueueView(prefix.matched, length, continuations, name, need, free, hashes, kept))
        self._sent = sent
        return found


def cached_prefix(cache: RadixCache, req: Req) -> Prefix:
    """Return the cached prefix of a request's input, without marking nodes as used."""
    key = req.reusable_ids
    node = cache.match_node(key, req.namespace)
    if node is None:
        return Prefix(0, 0, 0)
    path = list(node.path())
    start = sum(above.num_tokens for above in path) - node.num_tokens
    common = common_len(np.frombuffer(node.key_bytes, np.int32), key[start:])
    common -= common % cache.page_size
    unlocked = sum(above.num_tokens for above in path[1:] if not above.lock_ref) + (0 if node.lock_ref else common)
    return Prefix(start + common, unlocked, len(node.children) if common == node.num_tokens else 1)
