"""Slots of recurrent states, as a step names them and as batches of captures have them."""

from __future__ import annotations

import torch

from radixrt.forward_batch.forward_batch import BatchBuilder, ForwardMode
from radixrt.messages.runner import ForwardStep
from radixrt.messages.state_slots import SCRATCH_STATE
from radixrt.messages.wire import pack_i32


def step(mode: ForwardMode, lens: list[int]) -> ForwardStep:
    extend = {"extend_lens": pack_i32(lens), "input_ids": pack_i32([5] * sum(lens)), "samples": bytes([1] * len(lens))}
    return ForwardStep(
        step_id=0, mode=mode, req_pool_idx=pack_i32(range(1, len(lens) + 1)), seq_lens=pack_i32([9] * len(lens)),
        out_cache_loc=pack_i32(range(1, sum(lens) + 1)), state_src=pack_i32([0, 7][: len(lens)]),
        state_dst=pack_i32([3, 7][: len(lens)]), **(extend if mode is ForwardMode.EXTEND else {}),
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


def test_a_capture_has_the_scratch_slot_or_static_buffers() -> None:
    builder = BatchBuilder(4, 16, torch.device("cpu"))
    dummy = builder.build_dummy_extend(3).states
    assert dummy is not None
    assert dummy.src.tolist() == dummy.dst.tolist() == [SCRATCH_STATE] * 3
    buffers = [torch.zeros(2, dtype=torch.int64) for _ in range(5)]
    captured = builder.build_captured(*buffers).states
    assert captured is not None
    assert (captured.src is buffers[3], captured.dst is buffers[4], captured.lens) == (True, True, None)
