"""Draws have the exact distribution, and draws of different seeds and positions are independent."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixrt.runner.sampling import draw
from radixrt.runner.sampling.sampler import Sampler
from radixrt.runner.sampling.sampling_tables import SamplingTables, uniforms
from tests.runner.sampling.sampling_reference import Params, edited_logits, probabilities

VOCAB = 300


def chi_square_z(counts: np.ndarray, expected: np.ndarray) -> float:
    """Pearson's statistic as a standard normal (Wilson and Hilferty 1931), cells below 5 pooled into one."""
    small = expected < 5
    counts = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    df = len(counts) - 1
    return float(((statistic / df) ** (1 / 3) - (1 - 2 / (9 * df))) / np.sqrt(2 / (9 * df)))


def draws(logits: np.ndarray, p: Params, seeds: range, positions: range) -> np.ndarray:
    """int64 [len(positions), len(seeds)], from one row of logits."""
    tables = SamplingTables(len(seeds), len(logits), "cpu")
    for i, seed in enumerate(seeds):
        tables.write(Params(**{**vars(p), "seed": seed}).row(i + 1))
    idx = np.arange(1, len(seeds) + 1)
    batch = torch.from_numpy(np.tile(logits, (len(seeds), 1)))
    sampler = Sampler(tables)
    return np.array([sampler.sample(batch.clone(), idx, np.full(len(idx), n)).token_ids.numpy() for n in positions])


@pytest.mark.parametrize(
    "p",
    [
        Params(),
        Params(temperature=0.6),
        Params(top_k=20),
        Params(top_p=0.8),
        Params(min_p=0.05),
        Params(temperature=1.5, top_k=100, top_p=0.9, min_p=0.01),
        Params(logit_bias={3: 2.0, 5: -3.0}),
        Params(repetition_penalty=1.5, prompt=list(range(50))),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "min_p", "all", "bias", "repetition"],
)
def test_draws_have_the_exact_distribution(p):
    logits = (np.random.default_rng(3).standard_normal(VOCAB) * 1.5).astype(np.float32)
    expected = probabilities(edited_logits(logits, p), p)
    # With a penalty each draw would count towards the next, so there every draw has a seed of its own.
    penalised = p.repetition_penalty != 1
    found = draws(logits, p, range(4000), range(10, 11)) if penalised else draws(logits, p, range(250), range(10, 90))
    counts = np.bincount(found.ravel(), minlength=VOCAB)
    assert counts[expected == 0].sum() == 0
    assert abs(chi_square_z(counts, expected * found.size)) < 4


def test_one_seed_over_positions_and_one_position_over_seeds():
    logits = np.log(np.arange(1, 41, dtype=np.float32))
    expected = np.arange(1, 41) / np.arange(1, 41).sum()
    along = draws(logits, Params(), range(5, 6), range(8000)).ravel()
    across = draws(logits, Params(), range(-4000, 4000), range(17, 18)).ravel()
    for found in (along, across):
        assert abs(chi_square_z(np.bincount(found, minlength=40), expected * found.size)) < 4


@pytest.mark.parametrize(("seed_step", "position_step"), [(0, 1), (1, 0), (1, 1), (1, -1), (2**32, 0), (0, 1024)])
def test_neighbours_in_seed_and_position_are_independent(seed_step, position_step):
    seeds, positions = np.meshgrid(np.arange(400, dtype=np.int64), np.arange(1, 401, dtype=np.int64))
    u = uniforms(seeds.ravel(), positions.ravel())
    v = uniforms(seeds.ravel() + seed_step, positions.ravel() + position_step)
    cells = np.bincount((u * 16).astype(int) * 16 + (v * 16).astype(int), minlength=256)
    assert abs(chi_square_z(cells, np.full(256, u.size / 256))) < 4
    assert abs(np.corrcoef(u, v)[0, 1]) < 4 / np.sqrt(u.size)
    assert (u >= 0).all()
    assert (u < 1).all()


def test_low_bits_of_the_uniform_are_random_too():
    u = uniforms(np.full(100_000, 9, np.int64), np.arange(100_000))
    low = np.bincount(((u * 2**53).astype(np.int64) % 64), minlength=64)
    assert abs(chi_square_z(low, np.full(64, len(u) / 64))) < 4
    assert len(np.unique(u)) == len(u)


def test_tokens_of_weight_zero_are_never_drawn():
    weights = torch.zeros(6, 4 * draw.BLOCK)
    weights[:, [70, 71, 200]] = torch.tensor([1.0, 1e-30, 3.0])
    last = 1 - 2.0**-53
    u = torch.tensor([0.0, 0.24999, 0.25, 0.2500001, 0.999, last], dtype=torch.float64)
    found = draw.inverse_cdf(weights, u).tolist()
    assert found[:2] == [70, 70]
    assert found[2] in (71, 200)
    assert found[3:] == [200, 200, 200]


def test_the_end_of_the_range_stays_within_the_weights():
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(512, 10 * draw.BLOCK, generator=generator)
    weights[:, 500:] = 0.0
    u = torch.full((512,), 1 - 2.0**-53, dtype=torch.float64)
    assert (draw.inverse_cdf(weights, u) <= 499).all()
    assert (draw.inverse_cdf(weights, torch.zeros_like(u)) == (weights > 0).int().argmax(-1)).all()
