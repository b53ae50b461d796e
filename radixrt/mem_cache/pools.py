"""`make_pools`: the empty pools and the prefix cache of one scheduler."""

from __future__ import annotations

from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.chunk_cache import ChunkCache
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.req_to_token_pool import ReqToTokenPool
from radixrt.mem_cache.state_slots import StateSlotAllocator


def make_pools(
    num_slots: int,
    page_size: int,
    num_states: int,
    num_rows: int,
    row_len: int,
    *,
    eviction: str,
    prefix_cache: bool,
) -> tuple[RadixCache, TokenToKVPoolAllocator, ReqToTokenPool]:
    """Return an empty cache, its allocator of KV slots, and the rows of requests.

    Args:
        num_slots: tokens that the KV pool holds.
        page_size: slots per page.
        num_states: state slots of recurrent layers, the two reserved ones included; 0 for a model without such layers.
        num_rows, row_len: number of requests with a row, and tokens of a row.
        eviction: policy of the prefix cache.
        prefix_cache: False for a cache in which no request finds the tokens of another one.

    Raises:
        ValueError: see `RadixCache`.
    """
    allocator = TokenToKVPoolAllocator(num_slots, page_size)
    states = StateSlotAllocator(num_states) if num_states else None
    cache = RadixCache(allocator, eviction, states) if prefix_cache else ChunkCache(allocator, states)
    return cache, allocator, ReqToTokenPool(num_rows, row_len)
