"""Content of a written row; count rows exist for penalized requests only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixrt.messages.runner import SamplingRow
from radixrt.runner.sampling.sampling_tables import (
    BIAS,
    DRAW,
    IN_PROMPT,
    MIN_LEN,
    ONE_OUTPUT,
    PENALTY,
    SPECIAL,
    SamplingTables,
    rows_with,
)
from radixrt.sampling_params import DrawParams
from tests.runner.sampling.sampling_reference import Params

VOCAB = 50


def test_a_write_replaces_everything():
    tables = SamplingTables(4, VOCAB, "cpu")
    full = Params(top_k=5, top_p=0.5, min_p=0.1, presence_penalty=1.0, logit_bias={1: 2.0}, min_tokens=3, stop_ids=[2])
    tables.write(full.row(3))
    assert tables.needs[3] & (BIAS | PENALTY | MIN_LEN | DRAW) == BIAS | PENALTY | MIN_LEN | DRAW
    tables.write(Params(temperature=0.0).row(3))
    assert tables.needs.tolist() == [0] * 5


def test_the_highest_operation_is_none_that_plain_sampling_performs():
    tables = SamplingTables(4, VOCAB, "cpu")
    highest = 1 << 31
    tables.needs[2] = DRAW | highest
    assert tables.needs[2] & SPECIAL == highest
    assert rows_with(tables.needs, highest, highest).tolist() == [2]


def test_a_sampling_row_is_not_filled_by_position():
    """A field that is added between others would otherwise take another one's value."""
    with pytest.raises(TypeError, match="positional"):
        SamplingRow(1, DrawParams(), 7)  # type: ignore[misc]


def test_filters_that_keep_everything_are_off():
    tables = SamplingTables(4, VOCAB, "cpu")
    tables.write(Params(top_k=VOCAB, top_p=1.0, min_p=0.0).row(1))
    assert tables.needs[1] == DRAW
    tables.write(Params(temperature=0.0, top_k=3, top_p=0.2, min_p=0.5).row(1))
    assert tables.needs[1] == 0


def test_counts_of_prompt_and_output():
    tables = SamplingTables(4, VOCAB, "cpu")
    tables.write(Params(frequency_penalty=1.0, prompt=[3, 3, 4], output=[4, 7, 7]).row(2))
    [row] = tables.counts(np.array([2])).tolist()
    expected = {3: IN_PROMPT, 4: IN_PROMPT + ONE_OUTPUT, 7: 2 * ONE_OUTPUT}
    assert {t: c for t, c in enumerate(row) if c} == expected
    tables.count(np.array([2]), torch.tensor([3]))
    assert tables.counts(np.array([2]))[0, 3] == IN_PROMPT + ONE_OUTPUT


def test_count_rows_are_allocated_for_penalties_only_and_used_again():
    tables = SamplingTables(64, VOCAB, "cpu")
    for i in range(1, 65):
        tables.write(Params().row(i))
    assert tables._counts.allocated == 0
    for i in range(1, 6):
        tables.write(Params(repetition_penalty=1.1, prompt=[i]).row(i))
    allocated = tables._counts.allocated
    assert 5 <= allocated <= 8
    for i in range(1, 6):
        assert tables.counts(np.array([i])).nonzero().tolist() == [[0, i]]
    for i in range(1, 6):
        tables.write(Params().row(i))
        tables.write(Params(repetition_penalty=1.1, prompt=[10 + i]).row(i + 20))
    assert tables._counts.allocated == allocated
    assert tables.counts(np.array([23])).nonzero().tolist() == [[0, 13]]


def test_token_ids_beyond_the_vocabulary_are_ignored():
    tables = SamplingTables(4, VOCAB, "cpu")
    p = Params(presence_penalty=1.0, logit_bias={VOCAB: 1.0}, min_tokens=1, stop_ids=[VOCAB + 5], prompt=[VOCAB + 1, 2])
    tables.write(p.row(1))
    assert tables.needs[1] == DRAW | PENALTY
    assert tables.counts(np.array([1])).nonzero().tolist() == [[0, 2]]
