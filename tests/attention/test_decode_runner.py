"""The decode plan gives every lane an equal, contiguous share of all blocks, for rows of any lengths."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from radixrt.attention.decode_runner import plan_decode


@given(
    lens=st.lists(st.integers(1, 5000), min_size=1, max_size=40),
    lanes=st.integers(1, 100),
    block=st.sampled_from([16, 32, 64]),
)
def test_every_block_has_one_lane_and_lanes_differ_by_a_block(lens: list[int], lanes: int, block: int) -> None:
    plan = plan_decode(np.array(lens, np.int32), lanes, block)
    counts = np.diff(plan.block_ptr)
    assert counts.tolist() == [-(-n // block) for n in lens]
    total = int(plan.block_ptr[-1])
    shares = np.diff(plan.lane_ptr)
    assert plan.lane_ptr[0] == 0
    assert plan.lane_ptr[-1] == total
    used = min(lanes, total)
    assert (shares[:used] >= 1).all()
    assert (shares[used:] == 0).all()
    assert shares[:used].max() - shares[:used].min() <= 1
    lane_of = np.repeat(np.arange(lanes), shares)
    row_of = np.repeat(np.arange(len(lens)), counts)
    for row in range(len(lens)):
        mine = lane_of[row_of == row]
        assert plan.first_lane[row] == mine.min()
        assert plan.last_lane[row] == mine.max()


def test_long_rows_do_not_overflow() -> None:
    plan = plan_decode(np.full(512, 2**22, np.int32), 66, 64)
    assert plan.lane_ptr[-1] == 2**25
    assert (np.diff(plan.lane_ptr) > 0).all()


def test_a_short_row_is_one_lane_s() -> None:
    plan = plan_decode(np.array([10, 64, 1], np.int32), 2, 64)
    assert plan.block_ptr.tolist() == [0, 1, 2, 3]
    assert plan.lane_ptr.tolist() == [0, 1, 3]
    assert plan.first_lane.tolist() == plan.last_lane.tolist() == [0, 1, 1]
