"""Log-probabilities and sums of hidden states of a step, and the paths that a step with reads must not take."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import ForwardMode
from radixrt.forward_batch.token_rows import TokenRows
from radixrt.messages.runner import ForwardStep
from radixrt.messages.sections import READS, ReadSection, encode
from radixrt.messages.wire import pack_i32, unpack_f32
from radixrt.parts.reads import runner
from radixrt.parts.reads.runner import StepReader
from radixrt.runner.step_result import LogitsProcessorOutput
from tests.runner.sampling.test_sampler import VOCAB, random_logits
from tests.runner.test_logprobs import check, exact


def output(hidden: torch.Tensor) -> LogitsProcessorOutput:
    return LogitsProcessorOutput(torch.empty(0, 5), hidden)


def make_step(section: ReadSection | None, tokens: int = 100) -> ForwardStep:
    """A prompt of many tokens, and a row that samples behind it."""
    return ForwardStep(
        1, ForwardMode.EXTEND, pack_i32([1, 2]), pack_i32([tokens, 1]), pack_i32(range(1, tokens + 2)),
        extend_lens=pack_i32([tokens, 1]), input_ids=pack_i32([3] * (tokens + 1)), samples=b"\0\1",
        sections={} if section is None else {READS: encode(section)},
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spans", [[(3, 1), (99, 1)], [(0, 100)], [(2, 5), (9, 1), (10, 40)]])
def test_sums(spans: list[tuple[int, int]], dtype: torch.dtype) -> None:
    hidden = torch.randn(101, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    section = ReadSection(spans=pack_i32([number for span in spans for number in span]))
    found = StepReader(lambda states: states).read(output(hidden), section).message()
    assert found.logprobs == []
    expected = torch.stack([hidden[first : first + count].double().sum(0) for first, count in spans])
    torch.testing.assert_close(
        torch.from_numpy(unpack_f32(found.hidden).copy()).view(-1, 8).double(), expected, atol=1e-5, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("spans", "wanted"), [([], [100]), ([99, 1], [99, 100]), ([100, 1], [100]), ([0, 1], None), ([0, 100], None)]
)
def test_a_step_is_narrowed_where_it_reads_the_last_tokens_of_rows(spans: list[int], wanted: list[int] | None) -> None:
    section = ReadSection(spans=pack_i32(spans)) if spans else None
    batch = BatchBuilder(2, 128, torch.device("cpu")).build(make_step(section), narrow=True)
    assert (batch.narrowed is None) is (wanted is None)
    if wanted is not None:
        assert batch.wanted_tokens is not None
        assert batch.wanted_tokens.tolist() == batch.logits_index.tolist() == wanted
        assert (batch.sample_index is None) is (wanted == [100])
    assert batch.sample_rows.tolist() == [2]


@pytest.mark.parametrize("section", [ReadSection(spans=pack_i32([0, 1])), ReadSection(pack_i32([0]), pack_i32([1]))])
def test_a_step_with_reads_is_not_captured(section: ReadSection) -> None:
    assert TokenRows.of(make_step(None)) is not None
    assert TokenRows.of(make_step(section)) is None


@pytest.mark.parametrize("tops", [(0, 0), (4, 1), (0, 3)])
@pytest.mark.parametrize("slice_rows", [1, 7, 128])
def test_targets_of_two_rows(tops: tuple[int, int], slice_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SLICE_ROWS", slice_rows)
    logits = random_logits(30, seed=4)
    # The first row scores each of its positions, the second a few, one of them twice.
    index = [*range(11), 12, 12, 20, 29]
    targets = np.random.default_rng(1).integers(0, VOCAB, len(index)).astype(np.int32)
    sizes: list[int] = []

    def head(states: torch.Tensor) -> torch.Tensor:
        sizes.append(len(states))
        return states

    section = ReadSection(pack_i32(index), pack_i32(targets), pack_i32([11, tops[0], 4, tops[1]]))
    first, second = StepReader(head).read(output(torch.from_numpy(logits)), section).logprobs
    check(first, exact(logits[index[:11]]), targets[:11].tolist(), tops[0])
    check(second, exact(logits[index[11:]]), targets[11:].tolist(), tops[1])
    assert sum(sizes) == 14
    assert max(sizes) <= slice_rows


def test_bfloat16_logits_are_normalized_in_float32() -> None:
    logits = torch.from_numpy(random_logits(2)).bfloat16()
    section = ReadSection(pack_i32([0, 1]), pack_i32([3, 4]), pack_i32([2, 0]))
    (columns,) = StepReader(lambda states: states).read(output(logits), section).logprobs
    expected = exact(logits.float().numpy())[[0, 1], [3, 4]]
    assert unpack_f32(columns.token_logprobs) == pytest.approx(expected, abs=1e-4)
