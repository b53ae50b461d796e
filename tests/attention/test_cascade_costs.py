"""Costs of sharing prefixes that a rank reports to the scheduler."""

from __future__ import annotations

import msgspec

from radixrt.attention.base import AttentionLayer
from radixrt.attention.cascade_costs import cascade_costs, kv_layer_bytes, query_size
from radixrt.messages.runner import FromRunner, RunnerReady


def test_only_layers_without_a_window_count() -> None:
    whole, windowed = AttentionLayer(0, 32, 8, 128, 1.0), AttentionLayer(1, 32, 16, 128, 1.0, sliding_window=64)
    assert kv_layer_bytes([whole, windowed], 2) == 4096
    assert kv_layer_bytes([windowed], 2) == 0
    assert query_size([whole, windowed]) == 4096
    assert query_size([windowed]) == 0


def test_costs_cross_the_wire_and_differ_by_device() -> None:
    for device in ("cpu", "cuda"):
        costs = cascade_costs(device, 4096, 4096)
        assert costs is not None
        assert (costs.prompts is not None) == (device == "cuda")
        ready = RunnerReady(0, 100, 512, device, "bfloat16", costs)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(ready), type=FromRunner) == ready
        assert cascade_costs(device, 0, 4096) is None
