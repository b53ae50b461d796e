"""The size of the KV pool, from memory or as configured."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.attention.kv_cache import size_pool
from radixrt.errors import ConfigError

TOKEN_BYTES = 100
LIMITS: dict[str, Any] = {
    "wanted": None, "free_bytes": 200 * TOKEN_BYTES, "fraction": 0.5, "token_bytes": TOKEN_BYTES, "page_size": 1,
    "max_requests": 8, "context_length": 50,
}  # fmt: skip


def pool(**changes: Any) -> int:
    return size_pool(**{**LIMITS, **changes})


def test_a_pool_from_memory_holds_what_fits_and_what_is_useful() -> None:
    assert pool() == 100
    assert pool(max_requests=1) == 50
    assert pool(page_size=16) == 96
    assert pool(page_size=16, max_requests=1) == 64, "a whole number of pages for the longest request"


def test_a_pool_from_memory_stays_under_its_bound_but_holds_the_longest_request() -> None:
    assert pool(most_bytes=80 * TOKEN_BYTES) == 80
    assert pool(most_bytes=80 * TOKEN_BYTES, page_size=16) == 80
    assert pool(most_bytes=20 * TOKEN_BYTES) == 50
    assert pool(most_bytes=1000 * TOKEN_BYTES) == 100
    assert pool(most_bytes=20 * TOKEN_BYTES, wanted=90) == 90, "a configured pool has its size"


@pytest.mark.parametrize(("page_size", "context_length"), [(1, 101), (16, 97), (128, 1)])
def test_a_pool_from_memory_must_hold_the_longest_request(page_size: int, context_length: int) -> None:
    fitting = 100 // page_size * page_size
    if fitting:
        assert pool(page_size=page_size, context_length=fitting) == fitting
    with pytest.raises(ConfigError, match=f"context_length={context_length} ") as refused:
        pool(page_size=page_size, context_length=context_length)
    message = str(refused.value)
    assert all(way in message for way in ("lower context_length", "raise memory_fraction", "set kv_cache_tokens"))
    assert (f"at most {fitting}," in message) == bool(fitting)


def test_less_than_no_memory_is_refused_too() -> None:
    with pytest.raises(ConfigError, match=r"0\.00 GiB"):
        pool(free_bytes=-5)


def test_a_configured_pool_may_bound_requests_and_must_fit() -> None:
    assert pool(wanted=35, page_size=16) == 32
    with pytest.raises(ConfigError, match="at most 200 tokens fit"):
        pool(wanted=201)
