"""How a decode step's keys are shared out among the programs of the decode kernel: pure numpy, once a step.

Each row's keys are cut into blocks. The blocks of all rows stand in one list, and lane i goes through those from
lane_ptr[i] up to lane_ptr[i + 1]; every kv head has a program of its own for each lane. Rows end up in one lane or in
several neighbouring ones, whatever their lengths are, and no lane has more than one block more than another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radixrt.messages.wire import I32, Int32Array


@dataclass(frozen=True)
class DecodePlan:
    """One step's shares, int32 each.

    Attributes:
        block_ptr: [B + 1], row i has blocks [block_ptr[i], block_ptr[i + 1]).
        lane_ptr: [lanes + 1], lane i has blocks [lane_ptr[i], lane_ptr[i + 1]); lanes without any stand last.
        first_lane, last_lane: [B], the lanes that have the row's first and its last block.
    """

    block_ptr: Int32Array
    lane_ptr: Int32Array
    first_lane: Int32Array
    last_lane: Int32Array


def plan_decode(lens: Int32Array, lanes: int, block: int) -> DecodePlan:
    """Share out rows of `lens` keys each (int32 [B], at least 1) in blocks of `block` keys."""
    block_ptr = np.zeros(len(lens) + 1, I32)
    np.cumsum(-(-lens // block), out=block_ptr[1:])
    total = int(block_ptr[-1])
    used = min(lanes, total)
    # In int64: the product may be larger than 2**31.
    lane_ptr = np.minimum(np.arange(lanes + 1, dtype=np.int64), used) * total // max(used, 1)
    first = np.searchsorted(lane_ptr[: used + 1], block_ptr[:-1], side="right") - 1
    last = np.searchsorted(lane_ptr[: used + 1], block_ptr[1:] - 1, side="right") - 1
    return DecodePlan(block_ptr, lane_ptr.astype(I32), first.astype(I32), last.astype(I32))
