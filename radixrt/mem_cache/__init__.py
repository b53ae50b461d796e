"""Ownership of KV slots and state slots by requests and cached prefixes: integers only, no tensors, no torch."""

from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.chunk_cache import ChunkCache
from radixrt.mem_cache.radix_cache import EVICTION_POLICIES, RadixCache
from radixrt.mem_cache.req_to_token_pool import ReqToTokenPool
from radixrt.mem_cache.results import InsertResult, MatchResult
from radixrt.mem_cache.state_slots import StateSlotAllocator
from radixrt.mem_cache.tree_node import TreeNode

__all__ = [
    "EVICTION_POLICIES",
    "ChunkCache",
    "InsertResult",
    "MatchResult",
    "RadixCache",
    "ReqToTokenPool",
    "StateSlotAllocator",
    "TokenToKVPoolAllocator",
    "TreeNode",
]
