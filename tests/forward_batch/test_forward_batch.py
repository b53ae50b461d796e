"""The narrowed batch of a prefill step, when a step has none, and the groups of a step's columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from radixrt.forward_batch.batch_builder import MIN_SAVED_TOKENS, BatchBuilder
from radixrt.forward_batch.forward_batch import ForwardBatch, ForwardMode, SharedGroups
from radixrt.messages.runner import ForwardStep
from radixrt.messages.wire import pack_i32
from tests.step_sections import sections

ROWS = [(300, 200, 1), (90, 90, 0), (70, 70, 1), (41, 1, 1), (12, 1, 1)]
"""Sequence length, new tokens, whether the row samples; the last two rows extend by their future token."""


def make_step(rows: list[tuple[int, int, int]], **columns: Any) -> ForwardStep:
    lens, extends, samples = zip(*rows, strict=True)
    ids = np.concatenate([np.full(n, 7 + i) if n > 1 else np.array([-1]) for i, n in enumerate(extends)])
    return ForwardStep(
        step_id=0, mode=1, req_pool_idx=pack_i32(np.arange(len(rows)) * 2 + 3), seq_lens=pack_i32(lens),
        out_cache_loc=pack_i32(np.arange(sum(extends)) + 1000), extend_lens=pack_i32(extends), input_ids=pack_i32(ids),
        samples=bytes(samples), **columns,
    )  # fmt: skip


def build(step: ForwardStep, *, narrow: bool = True, sizes: tuple[int, ...] = ()) -> ForwardBatch:
    builder = BatchBuilder(200, 512, torch.device("cpu"), sizes)
    builder.future_token_ids[:] = torch.arange(201) + 50
    return builder.build(step, narrow=narrow)


def test_the_rows_that_sample_with_their_last_positions() -> None:
    batch = build(make_step(ROWS))
    narrowed = batch.narrowed
    assert narrowed is not None
    assert narrowed.narrowed is None
    assert narrowed.mode is ForwardMode.DECODE
    assert narrowed.num_tokens == 4
    assert narrowed.max_seq_len == 300
    assert narrowed.req_pool_indices.tolist() == narrowed.req_pool_indices_cpu.tolist() == [3, 7, 9, 11]
    assert narrowed.seq_lens.tolist() == narrowed.seq_lens_cpu.tolist() == [300, 70, 41, 12]
    assert narrowed.extend_lens_cpu.tolist() == [1] * 4
    assert narrowed.logits_index.tolist() == [0, 1, 2, 3]
    for name in ("input_ids", "positions", "out_cache_loc"):
        assert torch.equal(getattr(narrowed, name), getattr(batch, name)[batch.logits_index])
    assert narrowed.input_ids.tolist() == [7, 9, 59, 61]
    assert narrowed.positions.tolist() == [299, 69, 40, 11]
    columns = ("input_ids", "positions", "req_pool_indices", "seq_lens", "out_cache_loc", "logits_index")
    assert all(getattr(narrowed, name).dtype == torch.int64 for name in columns)
    assert narrowed.seq_lens_cpu.dtype == narrowed.extend_lens_cpu.dtype == np.int32


def test_rows_that_sample_are_padded() -> None:
    """Padding repeats the first token; in the narrowed batch, padding rows read the one token of row and slot 0."""
    batch, plain = build(make_step(ROWS), sizes=(3, 6, 8)), build(make_step(ROWS))
    assert batch.logits_index.tolist() == [*plain.logits_index.tolist(), 0, 0]
    assert torch.equal(batch.sample_rows, plain.sample_rows)
    narrowed, without = batch.narrowed, plain.narrowed
    assert narrowed is not None
    assert without is not None
    assert narrowed.num_tokens == 6
    assert narrowed.req_pool_indices.tolist() == narrowed.req_pool_indices_cpu.tolist() == [3, 7, 9, 11, 0, 0]
    assert narrowed.seq_lens.tolist() == narrowed.seq_lens_cpu.tolist() == [300, 70, 41, 12, 1, 1]
    for name in ("positions", "out_cache_loc"):
        assert getattr(narrowed, name).tolist() == [*getattr(without, name).tolist(), 0, 0]
    assert narrowed.seq_lens_cpu.dtype == narrowed.extend_lens_cpu.dtype == np.int32
    whole = build(make_step(ROWS), narrow=False, sizes=(3, 6, 8))
    assert torch.equal(whole.logits_index, batch.logits_index)


@pytest.mark.parametrize(("samples", "sizes"), [(0, (2, 4)), (4, (2, 4)), (4, (1, 2))])
def test_numbers_of_samples_that_need_no_padding(samples: int, sizes: tuple[int, ...]) -> None:
    """No sampling row, as many as one of the sizes, and more than the largest size."""
    rows = [(100, 80, int(i < samples)) for i in range(5)]
    batch = build(make_step(rows), sizes=sizes)
    assert batch.logits_index.shape == batch.sample_rows.shape == (samples,)
    assert batch.narrowed is not None
    assert batch.narrowed.num_tokens == samples


def test_nothing_else_of_the_batch_changes() -> None:
    step = make_step(ROWS)
    batch, whole = replace(build(step), narrowed=None, wanted_tokens=None), build(step, narrow=False)
    for name, value in vars(whole).items():
        assert np.array_equal(getattr(batch, name), value), name


def test_none_of_its_rows_may_sample() -> None:
    narrowed = build(make_step([(300, 200, 0), (90, 90, 0)])).narrowed
    assert narrowed is not None
    assert narrowed.num_tokens == 0


def test_few_tokens_are_not_left_out() -> None:
    assert build(make_step([(400, MIN_SAVED_TOKENS + 1, 1)])).narrowed is not None
    assert build(make_step([(400, MIN_SAVED_TOKENS, 1)])).narrowed is None
    assert build(make_step([(400, 1, 1)] * (MIN_SAVED_TOKENS + 8))).narrowed is None


def test_what_decode_rows_share_goes_along() -> None:
    shared = {"sections": sections(pack_i32([0, 8, 0, 2]), pack_i32([4, 3]))}
    narrowed = build(make_step(ROWS, **shared)).narrowed
    assert narrowed is not None
    assert narrowed.shared is not None
    assert narrowed.shared.segments.tolist() == [[0, 8, 0, 2]]
    assert narrowed.shared.rows.tolist() == [3, 2]


def test_groups_go_along_whole_or_not_at_all() -> None:
    groups = SharedGroups(np.array([[0, 8, 0, 2]], np.int32), np.array([4, 3], np.int32))
    assert groups.among(np.array([True, True, True, False, True])) is None


def test_groups_from_a_steps_columns() -> None:
    assert SharedGroups.of(make_step(ROWS)) is None
    shared = sections(pack_i32([0, 9, 0, 3, 9, 4, 1, 2]), pack_i32([5, 2, 0]))
    groups = SharedGroups.of(make_step(ROWS, sections=shared))
    assert groups is not None
    assert groups.segments.tolist() == [[0, 9, 0, 3], [9, 4, 1, 2]]
    assert groups.ends(7).tolist() == [13, 0, 13, 0, 0, 9, 0]
    assert groups.ends(7).dtype == np.int32
