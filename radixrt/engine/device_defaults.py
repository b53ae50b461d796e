"""Values of the options whose default depends on the device."""

from __future__ import annotations

import dataclasses
from typing import Any

from radixrt.config import Config

DEVICE_DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "cpu": {
        "cache": {"memory_fraction": 0.5, "kv_cache_gib": 1.0},
        "scheduler": {"max_running_requests": 64, "chunked_prefill_size": 1024, "max_gap_ms": 250.0},
    },
    "cuda": {
        "cache": {"memory_fraction": 0.9},
        "scheduler": {"max_running_requests": 256, "chunked_prefill_size": 8192, "max_gap_ms": 50.0},
    },
}
"""Values of options that were left at 0, by device. A pool whose memory_fraction was given has no further bound."""


def with_device_defaults(config: Config, device: str) -> Config:
    """Return the config with values for all options that depend on the device (cpu or cuda)."""
    settled = {}
    for section, defaults in DEVICE_DEFAULTS[device].items():
        values = getattr(config, section)
        changed = {name: value for name, value in defaults.items() if not getattr(values, name)}
        if "memory_fraction" not in changed:
            changed.pop("kv_cache_gib", None)
        settled[section] = dataclasses.replace(values, **changed)
    return dataclasses.replace(config, **settled)
