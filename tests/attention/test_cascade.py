"""What a step says of shared positions, read back; and what a rank says of the bytes that sharing saves."""

from __future__ import annotations

import numpy as np

from radixrt.attention.base import AttentionLayer
from radixrt.attention.kv_cache import kv_layer_bytes
from radixrt.forward_batch.shared_groups import SharedGroups
from radixrt.messages.wire import pack_i32


def test_groups_from_a_steps_columns() -> None:
    assert SharedGroups.from_columns(b"", b"") is None
    groups = SharedGroups.from_columns(pack_i32([0, 9, 0, 3, 9, 4, 1, 2]), pack_i32([5, 2, 0]))
    assert groups is not None
    assert groups.segments.tolist() == [[0, 9, 0, 3], [9, 4, 1, 2]]
    assert groups.ends(7).tolist() == [13, 0, 13, 0, 0, 9, 0]
    assert groups.ends(7).dtype == np.int32


def test_only_layers_without_a_window_count() -> None:
    whole, windowed = AttentionLayer(0, 32, 8, 128, 1.0), AttentionLayer(1, 32, 16, 128, 1.0, sliding_window=64)
    assert kv_layer_bytes([whole, windowed], 2) == 4096
    assert kv_layer_bytes([windowed], 2) == 0
