"""A step with a row for each of its tokens: order, lengths, input ids, and shared prefixes."""

from __future__ import annotations

import numpy as np

from radixrt.forward_batch.forward_batch import ForwardMode, SharedGroups
from radixrt.forward_batch.token_rows import TokenRows
from radixrt.messages.runner import ForwardStep
from radixrt.messages.wire import pack_i32
from tests.step_sections import sections


def extend(**more: object) -> ForwardStep:
    """Three new tokens of row 7, which samples; two of row 4, inside a prompt; and row 9's future token."""
    return ForwardStep(
        step_id=0, mode=1, req_pool_idx=pack_i32([7, 4, 9]), seq_lens=pack_i32([10, 2, 5]),
        out_cache_loc=pack_i32([70, 71, 72, 40, 41, 90]), extend_lens=pack_i32([3, 2, 1]),
        input_ids=pack_i32([11, 12, 13, 14, 15, -1]), samples=bytes([1, 0, 1]), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_sampling_tokens_come_first_and_attend_to_all_before_them() -> None:
    rows = TokenRows.of(extend())
    assert rows is not None
    assert rows.num_samples == 2
    assert rows.req_pool_idx.tolist() == [7, 9, 7, 7, 4, 4]
    assert rows.seq_lens.tolist() == [10, 5, 8, 9, 1, 2]
    assert rows.slots.tolist() == [72, 90, 70, 71, 40, 41]
    assert rows.given is not None
    assert rows.given.tolist() == [13, -1, 11, 12, 14, 15]
    assert rows.reread == (8 + 9 + 10 - 10) + (1 + 2 - 2)


def test_a_decode_step_has_its_rows_as_they_are() -> None:
    step = ForwardStep(0, 2, pack_i32([3, 5]), pack_i32([8, 9]), pack_i32([30, 50]))
    rows = TokenRows.of(step)
    assert rows is not None
    assert (rows.req_pool_idx.tolist(), rows.seq_lens.tolist(), rows.slots.tolist()) == ([3, 5], [8, 9], [30, 50])
    assert (rows.given, rows.num_samples, rows.shared, rows.reread) == (None, 2, None, 0)


def test_forced_tokens_of_decode_rows_leave_the_rows_as_they_are() -> None:
    """One token each, all sampled: the same as by the general way, which a row that does not sample takes."""
    columns = [pack_i32(each) for each in ([7, 4, 9], [10, 2, 5], [70, 40, 90], [1, 1, 1], [11, -1, 12])]
    shared = {"sections": sections(pack_i32([0, 1, 0, 2]), pack_i32([2, 0]))}
    rows = TokenRows.of(ForwardStep(0, 1, *columns, bytes([1, 1, 1]), **shared))  # type: ignore[arg-type]
    assert rows is not None
    assert (rows.req_pool_idx.tolist(), rows.seq_lens.tolist()) == ([7, 4, 9], [10, 2, 5])
    assert rows.slots.tolist() == [70, 40, 90]
    assert rows.given is not None
    assert (rows.given.tolist(), rows.num_samples, rows.reread) == ([11, -1, 12], 3, 0)
    assert rows.shared is not None
    assert (rows.shared.segments.tolist(), rows.shared.rows.tolist()) == ([[0, 1, 0, 2]], [2, 0])
    partly = TokenRows.of(ForwardStep(0, 1, *columns, bytes([1, 0, 1])))
    assert partly is not None
    assert (partly.req_pool_idx.tolist(), partly.num_samples) == ([7, 9, 4], 2)


def test_steps_that_sample_nothing_are_left_out() -> None:
    step = ForwardStep(0, 1, pack_i32([3]), pack_i32([2]), pack_i32([1, 2]), pack_i32([2]), pack_i32([5, 6]), b"\0")
    assert TokenRows.of(step) is None


def test_all_tokens_of_a_row_share_what_the_row_shares() -> None:
    segments, members = [[0, 1, 0, 3], [1, 3, 0, 2]], [2, 0, 1]  # rows 2, 0, 1 share a token; 2 and 0 three more
    rows = TokenRows.of(extend(sections=sections(pack_i32(np.array(segments).ravel()), pack_i32(members))))
    assert rows is not None
    assert rows.shared is not None
    assert rows.shared.segments.tolist() == [[0, 1, 0, 6], [1, 3, 0, 4]]
    assert rows.shared.rows.tolist() == [1, 2, 3, 0, 4, 5]
    assert rows.req_pool_idx[rows.shared.rows].tolist() == [9, 7, 7, 7, 4, 4]
    whole = SharedGroups(np.array(segments, np.int32), np.array(members, np.int32)).ends(3)
    by_row = dict(zip([7, 4, 9], whole.tolist(), strict=True))
    assert rows.shared.ends(6).tolist() == [by_row[i] for i in rows.req_pool_idx.tolist()]


def test_tokens_of_a_hybrid_model_are_rows_of_their_own_in_decode_steps_alone() -> None:
    """A sequence's tokens update its state in turn."""
    columns = {
        "step_id": 0, "req_pool_idx": pack_i32([1, 2]), "seq_lens": pack_i32([9, 4]),
        "sections": sections(state_src=pack_i32([5, 0]), state_dst=pack_i32([5, 6])),
    }  # fmt: skip
    decode = ForwardStep(mode=ForwardMode.DECODE, out_cache_loc=pack_i32([3, 4]), **columns)
    rows = TokenRows.of(decode)
    assert rows is not None
    assert (rows.state_src.tolist(), rows.state_dst.tolist()) == ([5, 0], [5, 6])
    extend = ForwardStep(
        mode=ForwardMode.EXTEND, out_cache_loc=pack_i32([3, 4, 7]), extend_lens=pack_i32([1, 2]),
        input_ids=pack_i32([-1, 8, 9]), samples=bytes([1, 1]), **columns,
    )  # fmt: skip
    assert TokenRows.of(extend) is None
