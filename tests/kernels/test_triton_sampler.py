"""The Sampler with the kernels against itself with torch, and what of it a captured graph may hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixrt.runner.sampling.sampler import Sampler
from radixrt.runner.sampling.sampling_tables import SamplingTables, upload_together
from radixrt.runner.step_result import SampleResult
from tests.runner.sampling.sampling_reference import Params
from tests.runner.sampling.test_sampler import MIXED, random_logits, step_mask

pytestmark = pytest.mark.gpu

VOCAB = 5003


def make_sampler(requests: list[Params], device: str, fused: bool) -> Sampler:
    tables = SamplingTables(len(requests), VOCAB, device)
    for i, p in enumerate(requests):
        tables.write(p.row(i + 1))
    return Sampler(tables, rowwise=False, fused=fused)


def mixed_steps(device: str, fused: bool) -> list[SampleResult]:
    """Steps of all kinds of requests, twice each, with a mask over a few rows."""
    requests = [Params(**{**vars(p), "seed": i}) for i, p in enumerate(MIXED * 2)]
    n = len(requests)
    sampler = make_sampler(requests, device, fused)
    idx = np.arange(1, n + 1, dtype=np.int32)
    lens = np.array([p.seq_len for p in requests], np.int32)
    mask = step_mask([0, 4, 9], np.random.default_rng(5).random((3, VOCAB)) < 0.5)
    sampler.masks_changed(mask.slots)
    batches = [torch.from_numpy(random_logits(n, VOCAB, seed=s)).bfloat16().float().to(device) for s in range(6)]
    return [sampler.sample(logits, idx, lens + s, mask).to_host() for s, logits in enumerate(batches)]


def test_same_tokens_as_torch(triton_device: str) -> None:
    ours, theirs = mixed_steps(triton_device, True), mixed_steps(triton_device, False)
    # exp differs in its last bit, so a draw may fall on the other side of a border.
    assert (
        torch.stack([r.token_ids for r in ours]) == torch.stack([r.token_ids for r in theirs])
    ).float().mean() > 0.97
    torch.testing.assert_close(torch.stack([r.best for r in ours]), torch.stack([r.best for r in theirs]))
    for a, b in zip(ours, theirs, strict=True):
        assert [c.k for c in a.logprobs] == [c.k for c in b.logprobs]
        assert a.row_errors == b.row_errors == []


def test_rows_fail_alone(triton_device: str) -> None:
    requests = [Params(temperature=t, top_p=p) for t in (0.0, 1.0) for p in (1.0, 0.9)]
    logits = torch.from_numpy(random_logits(4, VOCAB)).to(triton_device)
    logits[1, 5], logits[3] = torch.nan, -torch.inf
    result = make_sampler(requests, triton_device, True).sample(logits, np.arange(1, 5), np.full(4, 3))
    assert [i for i, _ in result.row_errors] == [1, 3]
    assert result.token_ids[[1, 3]].tolist() == [0, 0]


def test_which_rows_are_plain(triton_device: str) -> None:
    requests = [
        Params(temperature=0.0),
        Params(temperature=0.7),
        Params(temperature=0.7, top_k=5),
        Params(temperature=0.0, repetition_penalty=1.2),
        Params(temperature=0.0, logit_bias={3: 1.0}),
    ]
    sampler = make_sampler(requests, triton_device, True)
    assert sampler.plain(np.array([1, 2]))
    assert sampler.plain(np.array([0, 1])), "padding is greedy"
    assert not any(sampler.plain(np.array([1, i])) for i in (3, 4, 5))
    without = make_sampler(requests, triton_device, False)
    assert not without.plain(np.array([1]))
    with pytest.raises(RuntimeError, match="triton"):
        without.workspace(4)


def plain_case(device: str) -> tuple[Sampler, np.ndarray, np.ndarray, torch.Tensor]:
    requests = [Params(temperature=t, seed=i) for i, t in enumerate((0.0, 0.5, 1.0, 2.0, 0.0, 1.0))]
    logits = torch.from_numpy(random_logits(6, VOCAB)).to(device)
    return make_sampler(requests, device, True), np.arange(1, 7), np.full(6, 9), logits


def test_sample_plain_equals_sample(triton_device: str) -> None:
    sampler, idx, lens, logits = plain_case(triton_device)
    expected = sampler.sample(logits, idx, lens)
    temperature, u = upload_together(sampler.plain_inputs(idx, lens), logits.device)
    found = sampler.sample_plain(logits, temperature, u, sampler.workspace(8))
    assert torch.equal(found.token_ids, expected.token_ids)
    assert torch.equal(found.best, expected.best)
    assert found.row_errors == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_sample_plain_in_a_graph() -> None:
    sampler, idx, lens, logits = plain_case("cuda")
    temperature, u = upload_together(sampler.plain_inputs(idx, lens), logits.device)
    workspace = sampler.workspace(8)
    sampler.sample_plain(logits, temperature, u, workspace)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = sampler.sample_plain(logits, temperature, u, workspace)
    for step in range(3):
        fresh = torch.from_numpy(random_logits(6, VOCAB, seed=step)).cuda()
        logits.copy_(fresh)
        for static, value in zip((temperature, u), sampler.plain_inputs(idx, lens + step), strict=True):
            static.copy_(torch.from_numpy(value))
        graph.replay()
        expected = sampler.sample(fresh, idx, lens + step)
        assert torch.equal(result.token_ids, expected.token_ids)
        assert torch.equal(result.best, expected.best)
