"""Options whose default depends on the device: the bound of the KV pool on a CPU."""

from __future__ import annotations

import dataclasses

import pytest

from radixrt.config import Config
from radixrt.config.sections import CacheConfig
from radixrt.engine.device_defaults import with_device_defaults


@pytest.mark.parametrize(
    ("device", "given", "fraction", "gib"),
    [
        ("cpu", {}, 0.5, 1.0),
        ("cpu", {"kv_cache_gib": 3.5}, 0.5, 3.5),
        ("cpu", {"memory_fraction": 0.7}, 0.7, 0.0),
        ("cpu", {"memory_fraction": 0.7, "kv_cache_gib": 2.0}, 0.7, 2.0),
        ("cuda", {}, 0.9, 0.0),
        ("cuda", {"kv_cache_gib": 8.0}, 0.9, 8.0),
    ],
)
def test_a_pool_on_a_cpu_has_a_bound_unless_its_memory_was_given(
    device: str, given: dict[str, float], fraction: float, gib: float
) -> None:
    config = dataclasses.replace(Config(), cache=CacheConfig(**given))
    settled = with_device_defaults(config, device).cache
    assert (settled.memory_fraction, settled.kv_cache_gib) == (fraction, gib)
