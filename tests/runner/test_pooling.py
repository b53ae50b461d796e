"""Sums of hidden states over the spans of a step, and the paths that a step with spans must not take."""

from __future__ import annotations

import pytest
import torch

from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import ForwardMode
from radixrt.forward_batch.token_rows import TokenRows
from radixrt.messages.runner import ForwardStep
from radixrt.messages.wire import pack_i32
from radixrt.runner.pooling import pool
from radixrt.runner.step_result import LogitsProcessorOutput


def output(hidden: torch.Tensor) -> LogitsProcessorOutput:
    return LogitsProcessorOutput(torch.empty(0, 5), hidden)


def make_step(spans: list[int], tokens: int = 100) -> ForwardStep:
    """A prompt of many tokens, and a row that samples behind it."""
    return ForwardStep(
        1, ForwardMode.EXTEND, pack_i32([1, 2]), pack_i32([tokens, 1]), pack_i32(range(1, tokens + 2)),
        extend_lens=pack_i32([tokens, 1]), input_ids=pack_i32([3] * (tokens + 1)), samples=b"\0\1",
        pool_spans=pack_i32(spans),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spans", [[(3, 1), (99, 1)], [(0, 100)], [(2, 5), (9, 1), (10, 40)]])
def test_sums(spans: list[tuple[int, int]], dtype: torch.dtype) -> None:
    hidden = torch.randn(101, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = pool(output(hidden), make_step([number for span in spans for number in span]))
    assert found is not None
    assert found.dtype == torch.float32
    expected = torch.stack([hidden[first : first + count].double().sum(0) for first, count in spans])
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-6)


def test_a_step_without_spans_pools_nothing() -> None:
    assert pool(output(torch.zeros(101, 8)), make_step([])) is None


@pytest.mark.parametrize(
    ("spans", "wanted"), [([], [100]), ([99, 1], [99, 100]), ([100, 1], [100]), ([0, 1], None), ([0, 100], None)]
)
def test_a_step_is_narrowed_where_it_reads_the_last_tokens_of_rows(spans: list[int], wanted: list[int] | None) -> None:
    batch = BatchBuilder(2, 128, torch.device("cpu")).build(make_step(spans), narrow=True)
    assert (batch.narrowed is None) is (wanted is None)
    if wanted is not None:
        assert batch.wanted_tokens is not None
        assert batch.wanted_tokens.tolist() == batch.logits_index.tolist() == wanted
        assert (batch.sample_index is None) is (wanted == [100])
    assert batch.sample_rows.tolist() == [2]


def test_a_step_with_spans_is_not_captured() -> None:
    assert TokenRows.of(make_step([])) is not None
    assert TokenRows.of(make_step([0, 1])) is None
