"""top_k, top_p and min_p by kernel against the definition, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.runner.sampling.sampling_reference import Params, inverse_cdf, is_knife_edge, probabilities, splitmix_uniform

pytestmark = pytest.mark.gpu

FILTERS = [
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 300},
    {"top_p": 0.05},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.9},
    {"top_k": 300, "top_p": 0.5, "min_p": 0.05},
    {"top_p": 0.95, "min_p": 0.01},
    {},
]


def make_logits(rows: int, vocab: int, levels: int, scale: float, seed: int) -> np.ndarray:
    """float32 [rows, vocab] of at most that many different values, so that few levels make many ties."""
    rng = np.random.default_rng(seed)
    values = np.round(rng.standard_normal((rows, levels)) * scale * 64) / 64
    return np.stack([rng.choice(row, vocab) for row in values]).astype(np.float32)


def run(
    device: str, logits: np.ndarray, requests: list[Params], u: list[float]
) -> tuple[list[int], list[float], list[int]]:
    """Return each row's token, its best logit, and whether it was searched as a whole."""
    from radixrt.kernels.triton.filters import filtered_sample
    from radixrt.kernels.triton.sampling import SampleWorkspace, fused_sample

    def there(values: list[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    x = torch.from_numpy(logits).to(device)
    rows, vocab = x.shape
    out = SampleWorkspace(rows, vocab, device)
    temperature, where = there([p.temperature for p in requests], torch.float32), there(u, torch.float64)
    fused_sample(x, temperature, where, out)
    searched = filtered_sample(
        x,
        temperature,
        where,
        out,
        torch.arange(rows, dtype=torch.int32, device=device),
        there([p.top_k if 0 < p.top_k < vocab else vocab for p in requests], torch.int32),
        there([p.top_p for p in requests], torch.float64),
        there([p.min_p for p in requests], torch.float32),
    )
    return out.token_ids.tolist(), out.best.tolist(), searched.tolist()


@pytest.mark.parametrize("vocab", [71, 5003, 9000])
@pytest.mark.parametrize(("levels", "scale"), [(1000, 3.0), (5, 1.0), (1, 1.0), (40, 12.0)])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_every_row_follows_the_definition(
    triton_device: str, vocab: int, levels: int, scale: float, temperature
) -> None:
    requests = [Params(temperature=temperature, seed=i, **filters) for i, filters in enumerate(FILTERS)]
    logits = make_logits(len(requests), vocab, levels, scale, vocab + levels)
    u = [splitmix_uniform(p.seed, p.seq_len) for p in requests]
    tokens, _, _ = run(triton_device, logits, requests, u)
    decided = 0
    for x, p, where, token in zip(logits, requests, u, tokens, strict=True):
        if not is_knife_edge(x, p, where):
            decided += 1
            assert token == inverse_cdf(probabilities(x, p), where), p
    assert decided >= len(requests) // 2


def test_masked_tokens_and_broken_rows(triton_device: str) -> None:
    """Fewer tokens than top_k; a NaN; nothing at all: the latter two have token 0."""
    logits = make_logits(4, 5003, 1000, 3.0, 0)
    logits[0, :] = -np.inf
    logits[0, [7, 4999]] = [1.0, 2.0]
    logits[1, 9] = np.nan
    logits[2] = -np.inf
    requests = [Params(temperature=1.0, top_k=50, top_p=0.99)] * 4
    for u in (0.0, 0.5, 1 - 2**-53):
        tokens, best, searched = run(triton_device, logits, requests, [u] * 4)
        assert tokens[0] in (7, 4999)
        assert tokens[1:3] == [0, 0]
        assert searched == [0, 0, 0, 0]
        assert best[0] == 2.0
        assert np.isnan(best[1])
        assert best[2] == -np.inf


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval(triton_device: str, u: float) -> None:
    requests = [Params(temperature=1.0, **filters) for filters in FILTERS]
    logits = make_logits(len(requests), 5003, 1000, 3.0, 1)
    tokens, _, _ = run(triton_device, logits, requests, [u] * len(requests))
    for x, p, token in zip(logits, requests, tokens, strict=True):
        kept = np.flatnonzero(probabilities(x, p))
        assert token in kept
        if len(kept) <= 300:
            assert token == kept[0 if u == 0.0 else -1]


def drawn_range(x: np.ndarray, p: Params, token: int) -> tuple[float, float]:
    """The numbers u for which the definition draws this token; nothing (1, 0) for a token that a filter excludes by
    more than float32 may decide."""
    weights = np.exp((x.astype(np.float64) - x.max()) / p.temperature)
    ranked = np.argsort(-x, kind="stable")
    kept = np.full(len(x), p.top_k == 0)
    if p.top_k:
        kept[ranked[: p.top_k]] = True
    if p.top_p < 1.0:
        mass = np.cumsum(weights[ranked] * kept[ranked])
        kept[ranked[1:]] &= mass[:-1] < (p.top_p + 1e-5) * mass[-1]
    kept &= weights >= p.min_p
    if not kept[token]:
        return 1.0, 0.0
    cum = np.cumsum(np.where(kept, weights, 0.0))
    return (cum[token] - weights[token]) / cum[-1], cum[token] / cum[-1]


@pytest.mark.parametrize("scale", [0.3, 2.0, 9.0])
def test_candidates_of_a_sampled_row(triton_device: str, scale: float) -> None:
    """A vocabulary of which only a sample bounds the cutoff: no row is searched as a whole."""
    more: list[dict[str, float]] = [{"top_p": 0.5}, {"top_k": 2000}, {"top_k": 2000, "top_p": 0.7}]
    requests = [Params(temperature=0.8, **filters) for filters in FILTERS + more]  # type: ignore[arg-type]
    logits = np.random.default_rng(3).normal(0.0, scale, (len(requests), 70_001)).astype(np.float32)
    for u in (0.0, 0.37, 1 - 2**-53):
        tokens, _, searched = run(triton_device, logits, requests, [u] * len(requests))
        assert not any(searched)
        for x, p, token in zip(logits, requests, tokens, strict=True):
            low, high = drawn_range(x, p, token)
            assert low - 1e-4 <= u <= high + 1e-4, p


def test_rows_with_too_many_candidates_are_searched(triton_device: str) -> None:
    """Thousands of equal logits at the cutoff, of which the first are kept."""
    logits = np.zeros((2, 20_000), np.float32)
    logits[:, 7] = 1.0
    requests = [Params(temperature=1.0, top_p=0.5), Params(temperature=1.0, top_k=50)]
    tokens, _, searched = run(triton_device, logits, requests, [1 - 2**-53] * 2)
    assert searched == [1, 1]
    weight_of_7 = np.exp(1.0)
    assert tokens == [int(np.ceil(0.5 * (weight_of_7 + 19_999) - weight_of_7)), 49]
