"""Identity of a namespace in records and trees of tiers, which discloses neither the client's salt nor the API key.

The server makes the namespaces of an API key, or of a group of keys, by putting its name before the client's salt
(`radixrt.server.access.tenants`): `k5:alice` and a salt, `g4:team` and a salt. An identity has a hash of this beginning
besides the hash of the whole namespace, so that everything of a key can be found and dropped.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b

from radixrt.mem_cache.granules import HASH_BYTES, seed_of

ID_BYTES = 2 * HASH_BYTES
_OWNED = re.compile(r"[kg](\d{1,4}):")


@lru_cache(maxsize=1024)
def namespace_id(namespace: str) -> bytes:
    """Return the identity of a namespace, ID_BYTES bytes: its seed, and the hash of its owner."""
    return seed_of(namespace) + _owner_hash(owner_of(namespace))


def owner_of(namespace: str) -> str:
    """Return the beginning of a namespace that names an API key or a group; "" if there is none."""
    found = _OWNED.match(namespace)
    end = found.end() + int(found[1]) if found else 0
    return namespace[:end] if found and end <= len(namespace) else ""


def is_of(identity: bytes, namespace: str, *, whole_owner: bool) -> bool:
    """Return True if an identity is the one of a namespace, or, with `whole_owner`, of any namespace of an owner.

    Args:
        namespace: a namespace, or the value of `owner_of`.
    """
    return identity[HASH_BYTES:] == _owner_hash(namespace) if whole_owner else identity == namespace_id(namespace)


def _owner_hash(name: str) -> bytes:
    data = name.encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=HASH_BYTES, person=b"radixrt-owner").digest()
