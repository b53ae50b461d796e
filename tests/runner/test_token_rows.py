"""A runner that computes each new token as a row of its own gets the logits of one that extends rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from radixrt.forward_batch.forward_batch import ForwardBatch, ForwardMode
from radixrt.forward_batch.token_rows import TokenRows
from radixrt.messages.runner import ForwardStep
from radixrt.messages.wire import Int32Array
from radixrt.runner.model_runner import ModelRunner
from tests.runner.test_narrowed_steps import run, runner, steps


def decode_batch(runner: ModelRunner, rows: TokenRows) -> ForwardBatch:
    """The rows as a DECODE batch whose input ids are known, as a captured step has them."""

    def there(values: Int32Array) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64))

    table, idx = runner.batches.req_to_token, there(rows.req_pool_idx)
    positions, slots = there(rows.seq_lens - 1), there(rows.slots)
    table[idx, positions] = slots.int()
    assert rows.given is not None
    given = there(rows.given)
    return ForwardBatch.of_decode_rows(
        torch.where(given < 0, runner.batches.future_token_ids[idx], given), positions, idx, there(rows.seq_lens),
        slots, torch.arange(len(idx)), table, seq_lens_cpu=rows.seq_lens, req_pool_indices_cpu=rows.req_pool_idx,
        sample_rows=idx[: rows.num_samples],
    )  # fmt: skip


@torch.inference_mode()
def run_rows(runner: ModelRunner, step: ForwardStep, rows: TokenRows) -> torch.Tensor:
    """Float32 [S, vocab], the logits of a step's sampling rows; their future tokens are the largest."""
    runner.prepare(step)  # for its row writes and sampling rows
    logits = runner.forward(decode_batch(runner, rows)).next_token_logits[: rows.num_samples]
    samples = torch.from_numpy(rows.req_pool_idx[: rows.num_samples].astype(np.int64))
    runner.batches.future_token_ids[samples] = logits.argmax(-1)
    return logits


@pytest.mark.parametrize("backend", ["torch_native", "cpu"])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_logits_are_those_of_extended_rows(kind: str, backend: str, tiny_model: Callable[[str], Path]) -> None:
    compared = 0
    folder = tiny_model(kind)
    with runner(folder, attention_backend=backend) as whole, runner(folder, attention_backend=backend) as flat:
        for step in steps(3):
            assert step.mode == ForwardMode.EXTEND
            expected = run(whole, step)[1].next_token_logits
            rows = TokenRows.of(step)
            if rows is None:
                run(flat, step)
                continue
            found = run_rows(flat, step, rows)
            torch.testing.assert_close(found, expected[: len(found)], atol=1e-4, rtol=1e-4)
            compared += len(found)
    assert compared > 10
