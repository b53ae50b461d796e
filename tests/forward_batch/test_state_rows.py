"""Slots of recurrent states, as a step names them and as batches of captures have them."""

from __future__ import annotations

import torch

from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import ForwardMode
from radixrt.messages.runner import ForwardStep
from radixrt.messages.state_slots import SCRATCH_STATE
from radixrt.messages.wire import pack_i32
from tests.step_sections import sections


def step(mode: ForwardMode, lens: list[int], cuts: bytes = b"") -> ForwardStep:
    extend = {"extend_lens": pack_i32(lens), "input_ids": pack_i32([5] * sum(lens)), "samples": bytes([1] * len(lens))}
    return ForwardStep(
        step_id=0, mode=mode, req_pool_idx=pack_i32(range(1, len(lens) + 1)), seq_lens=pack_i32([9] * len(lens)),
        out_cache_loc=pack_i32(range(1, sum(lens) + 1)), sections=sections(state_src=pack_i32([0, 7][: len(lens)]),
        state_dst=pack_i32([3, 7][: len(lens)]), state_cuts=cuts), **(extend if mode is ForwardMode.EXTEND else {}),
    )  # fmt: skip


def test_rows_of_a_step() -> None:
    builder = BatchBuilder(4, 16, torch.device("cpu"))
    builder.future_token_ids.fill_(6)
    batch = builder.build(step(ForwardMode.EXTEND, [4, 2]), narrow=True)
    assert batch.states is not None
    assert (batch.states.src.tolist(), batch.states.dst.tolist()) == ([0, 7], [3, 7])
    assert batch.states.starts.tolist() == [0, 4, 6]
    assert batch.states.lens is not None
    assert batch.states.lens.tolist() == [4, 2]
    for single in (step(ForwardMode.EXTEND, [1, 1]), step(ForwardMode.DECODE, [1, 1])):
        states = builder.build(single).states
        assert states is not None
        assert states.lens is None, "as in a captured step"
        assert states.starts.tolist() == [0, 1, 2]


def test_rows_are_divided_where_they_leave_states() -> None:
    builder = BatchBuilder(4, 16, torch.device("cpu"))
    cuts = pack_i32([0, 1, 4, 0, 3, 5, 1, 1, 6])
    states = builder.build(step(ForwardMode.EXTEND, [4, 2], cuts)).states
    assert states is not None
    assert states.src.tolist() == [0, 4, 5, 7, 6]
    assert states.dst.tolist() == [4, 5, 3, 6, 7]
    assert states.starts.tolist() == [0, 1, 3, 4, 5, 6]
    assert states.lens is not None
    assert states.lens.tolist() == [1, 2, 1, 1, 1]
    assert states.chains is not None
    assert states.chains.tolist() == [0, 3, 5]
    assert [wave.tolist() for wave in states.waves()] == [[0, 3], [1, 4], [2]]
    waves = [(tokens.tolist(), rows.src.tolist(), rows.starts.tolist()) for tokens, rows in states.divided()]
    assert waves == [([0, 4], [0, 7], [0, 1, 2]), ([1, 2, 5], [4, 6], [0, 2, 3]), ([3], [5], [0, 1])]


def test_a_capture_has_the_scratch_slot_or_static_buffers() -> None:
    builder = BatchBuilder(4, 16, torch.device("cpu"))
    dummy = builder.build_dummy_extend(3).states
    assert dummy is not None
    assert dummy.src.tolist() == dummy.dst.tolist() == [SCRATCH_STATE] * 3
    buffers = [torch.zeros(2, dtype=torch.int64) for _ in range(5)]
    captured = builder.build_captured(*buffers).states
    assert captured is not None
    assert (captured.src is buffers[3], captured.dst is buffers[4], captured.lens) == (True, True, None)
