"""`KVCache`: the keys and values of every slot, and the number of slots that fit into memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from radixrt.attention.base import AttentionLayer
from radixrt.errors import ConfigError


class KVCache:
    """A tensor of keys and a tensor of values for each layer, indexed by slot.

    Attributes:
        k, v: by layer, [page_size + num_slots, num_kv_heads, head_dim]; the first page is padding. Memory is committed
            by the operating system as slots are first written.
        page_size: tokens of a page.
        dtype: of keys and values in the pool.
    """

    def __init__(
        self, layers: Sequence[AttentionLayer], num_slots: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        def pool(layer: AttentionLayer) -> torch.Tensor:
            # Empty, not zeros: zeroing would commit all of the memory at once. Only the padding page is read before it
            # is written, so its values must be finite.
            shape = (page_size + num_slots, layer.num_kv_heads, layer.head_dim)
            slots = torch.empty(shape, dtype=dtype, device=device)
            slots[:page_size].view(torch.uint8).zero_()
            return slots

        self.k = [pool(layer) for layer in layers]
        self.v = [pool(layer) for layer in layers]
        self.page_size = page_size
        self.dtype = dtype


def bytes_per_token(layers: Sequence[AttentionLayer], dtype: torch.dtype) -> int:
    """Return the bytes of one token's keys and values in all layers."""
    return sum(2 * layer.num_kv_heads * layer.head_dim * dtype.itemsize for layer in layers)


def size_pool(
    *,
    wanted: int | None,
    free_bytes: int,
    fraction: float,
    token_bytes: int,
    page_size: int,
    max_requests: int,
    context_length: int,
    reserved_bytes: int = 0,
    most_bytes: int = 0,
) -> int:
    """Return the number of slots of the pool, a multiple of the page size.

    Args:
        wanted: number of tokens that the user configured; None to size the pool from memory. A configured pool may be
            smaller than a request of the context length, and then bounds requests; a pool sized from memory may not.
        free_bytes: free memory of the device.
        fraction: fraction of the free memory that the pool and `reserved_bytes` may take together.
        max_requests: maximum number of requests that run at once.
        context_length: longest sequence of one request, in tokens.
        reserved_bytes: for recurrent states.
        most_bytes: bound of a pool sized from memory, unless one request of the context length needs more; 0: none.

    Raises:
        ConfigError: the configured number of tokens does not fit, or, if none is configured, one request of the context
            length does not; the message names the options to change.
    """
    if wanted is not None:
        free_bytes -= reserved_bytes
        if wanted * token_bytes > free_bytes:
            raise ConfigError(
                f"kv_cache_tokens={wanted} needs {wanted * token_bytes / 2**30:.1f} GiB, but only "
                f"{free_bytes / 2**30:.1f} GiB are free; at most {free_bytes // token_bytes} tokens fit"
            )
        return wanted // page_size * page_size
    pool_bytes = max(0, int(free_bytes * fraction) - reserved_bytes)
    pages = pool_bytes // (token_bytes * page_size)
    pages_of_request = -(-context_length // page_size)
    if pages < pages_of_request:
        needed = pages_of_request * page_size * token_bytes / 2**30
        most = f" to at most {pages * page_size}" if pages else ""
        raise ConfigError(
            f"one request of context_length={context_length} needs {needed:.2f} GiB, but the KV pool gets"
            f" {pool_bytes / 2**30:.2f} GiB, {fraction:.0%} of the free memory; lower"
            f" context_length{most}, free memory or raise memory_fraction, or set kv_cache_tokens, which then bounds"
            " requests"
        )
    useful = max_requests * pages_of_request
    if most_bytes:
        useful = min(useful, max(pages_of_request, most_bytes // (token_bytes * page_size)))
    return min(pages, useful) * page_size
