"""Chain hashes of granules: a prefix of a prompt as a few bytes, for readers of cache events and routers of replicas.

A granule is GRANULE_TOKENS tokens. The hash of granule k is taken over the hash of granule k - 1 and the tokens of the
granule, so it covers the namespace and all tokens up to the granule's end. Two prompts have the same hash k if and only
if they share these tokens (but for collisions of 64 bits), so a bisection finds the longest prefix known to an index.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

GRANULE_TOKENS = 64
"""Tokens of a granule; part of the meaning of every hash."""

HASH_BYTES = 8
_GRANULE_BYTES = 4 * GRANULE_TOKENS


@lru_cache(maxsize=256)
def seed_of(namespace: str) -> bytes:
    """Return the hash before the first granule of a namespace; it does not disclose the namespace's name."""
    return blake2b(namespace.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES, person=b"radixrt").digest()


def chain_hashes(before: bytes, tokens: bytes) -> bytes:
    """Return the hashes of the whole granules of `tokens`, HASH_BYTES each; tokens after the last one are ignored.

    Args:
        before: hash of the granule before these tokens, or the namespace's seed.
        tokens: int32 column that begins where a granule begins.
    """
    hashes = []
    for end in range(_GRANULE_BYTES, len(tokens) + 1, _GRANULE_BYTES):
        before = blake2b(before + tokens[end - _GRANULE_BYTES : end], digest_size=HASH_BYTES).digest()
        hashes.append(before)
    return b"".join(hashes)


def split_hashes(hashes: bytes) -> list[bytes]:
    """Return the hash of each granule."""
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


def prompt_hashes(tokens: bytes, namespace: str = "") -> bytes:
    """Return the hashes of the whole granules of a prompt, an int32 column."""
    return chain_hashes(seed_of(namespace), tokens)
