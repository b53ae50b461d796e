"""Drawing by kernel against the inverse of the cumulative sum in float64, and against softmax by counting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixrt.runner.sampling.sampling_tables import uniforms

pytestmark = pytest.mark.gpu

F32, BF16 = torch.float32, torch.bfloat16
VOCABS = [1, 63, 1000, 4096, 4097, 49152, 70001]


def logits_of(rows: int, vocab: int, scale: float = 3.0, seed: int = 0) -> torch.Tensor:
    """float32, rounded to bfloat16 so that there are ties, as a model's are."""
    return (torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale).bfloat16().float()


def sample(
    device: str, logits: torch.Tensor, temperature: list[float], u: np.ndarray | list[float]
) -> tuple[list[int], list[float]]:
    from radixrt.kernels.triton.sampling import fused_sample

    where = torch.tensor(np.asarray(u), dtype=torch.float64, device=device)
    ids, best = fused_sample(logits.to(device), torch.tensor(temperature, device=device), where)
    assert ids.dtype == torch.int64
    assert best.dtype == torch.float32
    return ids.tolist(), best.tolist()


def cumulative(row: torch.Tensor, temperature: float) -> np.ndarray:
    wide = row.double().numpy()
    return np.exp((wide - wide.max()) / temperature).cumsum()


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
def test_greedy_takes_the_first_largest(triton_device: str, vocab: int, dtype: torch.dtype) -> None:
    logits = logits_of(5, vocab)
    logits[1] = 0.0
    logits[2, vocab // 2 :] = logits[2].max()
    ids, best = sample(triton_device, logits.to(dtype), [0.0, 0.0, -1.0, 0.0, 0.0], [0.9] * 5)
    assert ids == [int(row.numpy().argmax()) for row in logits]
    assert best == logits.amax(1).tolist()


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("temperature", [0.05, 0.6, 1.0, 8.0, 1e-6])
def test_draws_fall_where_they_should(triton_device: str, vocab: int, temperature: float) -> None:
    """The token's part of [0, 1) holds u, give or take what float32 weights make of its borders."""
    rows = 4
    logits = logits_of(rows, vocab, seed=vocab)
    u = np.array([0.0, 1 - 2**-53, *np.random.default_rng(vocab).random(rows - 2)])
    ids, best = sample(triton_device, logits, [temperature] * rows, u)
    assert best == logits.amax(1).tolist()
    for row, token, where in zip(logits, ids, u, strict=True):
        cum = cumulative(row, temperature)
        low, high = (cum[token - 1] if token else 0.0) / cum[-1], cum[token] / cum[-1]
        assert low - 2e-6 <= where <= high + 2e-6
        assert high > low, "a token of weight 0 is never drawn"


def test_greedy_and_drawn_rows_together(triton_device: str) -> None:
    logits = logits_of(6, 9000)
    u = np.linspace(0.1, 0.9, 6)
    temperature = [0.0, 0.7, 0.0, 1.0, 2.0, -1.0]
    together, _ = sample(triton_device, logits, temperature, u)
    alone = [sample(triton_device, logits[i : i + 1], temperature[i : i + 1], u[i : i + 1])[0][0] for i in range(6)]
    assert together == alone


def test_masked_tokens_are_never_drawn(triton_device: str) -> None:
    logits = logits_of(8, 10000)
    allowed = torch.zeros(10000, dtype=torch.bool)
    allowed[[5, 4200, 9999]] = True
    logits[:, ~allowed] = -torch.inf
    ids, _ = sample(triton_device, logits, [1.0] * 7 + [0.0], [0.0, 0.2, 0.4, 0.6, 0.8, 0.99, 1 - 2**-53, 0.5])
    assert set(ids) <= {5, 4200, 9999}


def test_rows_that_fail(triton_device: str) -> None:
    """NaN is noticed wherever it lies; no finite logit, or an infinite one, gives token 0 and says so."""
    logits = logits_of(7, 9001)
    logits[0, 9000] = torch.nan
    logits[1, 0] = torch.nan
    logits[2] = -torch.inf
    logits[3, 77] = torch.inf
    logits[4] = torch.nan
    for temperature in (0.0, 1.0):
        ids, best = sample(triton_device, logits, [temperature] * 7, [0.5] * 7)
        assert ids[:5] == [0] * 5
        assert [np.isnan(b) for b in best] == [True, True, False, False, True, False, False]
        assert best[2:4] == [-np.inf, np.inf]
        alone, _ = sample(triton_device, logits[5:], [temperature] * 2, [0.5] * 2)
        assert ids[5:] == alone


def test_rows_of_a_wider_tensor(triton_device: str) -> None:
    wide = logits_of(4, 6000)
    ids, best = sample(triton_device, wide, [0.0] * 4, [0.0] * 4)
    view = torch.full((4, 7001), 1e9)
    view[:, :6000] = wide
    assert sample(triton_device, view[:, :6000], [0.0] * 4, [0.0] * 4) == (ids, best)


def test_a_workspace_is_used_again(triton_device: str) -> None:
    from radixrt.kernels.triton.sampling import SampleWorkspace, fused_sample

    workspace = SampleWorkspace(8, 5000, triton_device)
    for rows in (8, 3):
        logits = logits_of(rows, 5000, seed=rows).to(triton_device)
        u = torch.full((rows,), 0.3, dtype=torch.float64, device=triton_device)
        temperature = torch.ones(rows, device=triton_device)
        ids, best = fused_sample(logits, temperature, u, workspace)
        assert ids.data_ptr() == workspace.token_ids.data_ptr()
        fresh, fresh_best = fused_sample(logits, temperature, u)
        assert torch.equal(ids, fresh)
        assert torch.equal(best, fresh_best)
    with pytest.raises(ValueError, match="workspace"):
        fused_sample(torch.zeros(9, 5000, device=triton_device), temperature, u, workspace)


@pytest.mark.parametrize(("vocab", "temperature"), [(12, 1.0), (5003, 0.7)])
def test_chi_square(triton_device: str, vocab: int, temperature: float) -> None:
    """2e5 draws, by (seed, position), against softmax: below the 99.9 % point of chi-square, with fixed seeds.

    Under the interpreter, which takes 10 ms for a draw, few.
    """
    draws = 200_000 if triton_device == "cuda" else 500
    [row] = logits_of(1, vocab, 2.0, seed=vocab)
    counts = np.zeros(vocab)
    batch = 500
    for start in range(0, draws, batch):
        u = uniforms(np.full(batch, 11), np.arange(start, start + batch))
        ids, _ = sample(triton_device, row.expand(batch, vocab), [temperature] * batch, u)
        counts += np.bincount(ids, minlength=vocab)
    p = (row.double() / temperature).softmax(0).numpy()
    order = np.argsort(-p)
    # Tokens by probability, in bins of at least 50 expected draws.
    bins = np.floor(np.cumsum(p[order]) * draws / 50).astype(int)
    observed, expected = np.bincount(bins, counts[order]), np.bincount(bins, p[order] * draws)
    used = expected >= 20
    statistic = float(((observed - expected)[used] ** 2 / expected[used]).sum())
    freedom = int(used.sum()) - 1
    # Wilson and Hilferty's approximation of the 99.9 % point.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert statistic < limit
