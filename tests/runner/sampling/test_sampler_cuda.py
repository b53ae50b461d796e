"""The Sampler on CUDA: the same tokens as on the CPU, and no wait for the device before the results are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixrt.runner.sampling.sampler import Sampler
from radixrt.runner.sampling.sampling_tables import SamplingTables
from radixrt.runner.step_result import SampleResult
from tests.runner.sampling.sampling_reference import Params
from tests.runner.sampling.test_sampler import MIXED, random_logits, step_mask

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def tables_with(requests: list[Params], vocab: int, device: str) -> SamplingTables:
    tables = SamplingTables(len(requests), vocab, device)
    for i, p in enumerate(requests):
        tables.write(p.row(i + 1))
    return tables


def steps(device: str, vocab: int, num_steps: int) -> list[SampleResult]:
    """Some decode steps of the mixed requests, each twice, with a mask over a few rows."""
    requests = [Params(**{**vars(p), "seed": i}) for i, p in enumerate(MIXED * 2)]
    n = len(requests)
    sampler = Sampler(tables_with(requests, vocab, device))
    idx = np.arange(1, n + 1, dtype=np.int32)
    lens = np.array([p.seq_len for p in requests], np.int32)
    allowed = np.random.default_rng(5).random((3, vocab)) < 0.5
    mask = step_mask([0, 4, 9], allowed)
    sampler.masks_changed(mask.slots)
    batches = [
        torch.from_numpy(random_logits(n, vocab, seed=s)).bfloat16().float().to(device) for s in range(num_steps)
    ]
    if device == "cpu":
        return [sampler.sample(logits, idx, lens + s, mask) for s, logits in enumerate(batches)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        return [sampler.sample(logits, idx, lens + s, mask).to_host() for s, logits in enumerate(batches)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()


@pytest.mark.parametrize("vocab", [4099, 128256])
def test_the_same_tokens_as_on_the_cpu_without_waiting(vocab):
    here, there = steps("cpu", vocab, 4), steps("cuda", vocab, 4)
    ours = torch.stack([r.token_ids for r in here])
    theirs = torch.stack([r.token_ids for r in there])
    assert (ours == theirs).float().mean() > 0.98  # exp differs in its last bit, so a draw may fall on the other side
    for a, b in zip(here, there, strict=True):
        assert [c.k for c in a.logprobs] == [c.k for c in b.logprobs]
        assert a.row_errors == b.row_errors == []


def test_rows_fail_alone_on_cuda_too():
    requests = [Params(temperature=t, top_p=p) for t in (0.0, 1.0) for p in (1.0, 0.9)]
    sampler = Sampler(tables_with(requests, 1000, "cuda"))
    logits = torch.from_numpy(random_logits(4, 1000)).cuda()
    logits[1, 5] = torch.nan
    logits[3] = -torch.inf
    result = sampler.sample(logits, np.arange(1, 5), np.full(4, 3))
    assert [i for i, _ in result.row_errors] == [1, 3]
    assert result.token_ids[[1, 3]].tolist() == [0, 0]
