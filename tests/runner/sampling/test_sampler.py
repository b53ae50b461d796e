"""The Sampler equals the reference row by row, and a row's token does not depend on the other rows of the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.executor.mask_table import Mask
from radixrt.runner.sampling import draw
from radixrt.runner.sampling.sampler import Sampler
from radixrt.runner.sampling.sampling_tables import SamplingTables, uniforms
from radixrt.runner.step_result import SampleResult
from tests.runner.sampling.sampling_reference import (
    Params,
    edited_logits,
    inverse_cdf,
    is_knife_edge,
    probabilities,
    splitmix_uniform,
)

VOCAB = 71  # a multiple of neither 32 nor draw.BLOCK
both_ways = pytest.mark.parametrize("rowwise", [True, False], ids=["rowwise", "dense"])


class Bench:
    """A Sampler with some requests, at req_pool_idx 1 and on."""

    def __init__(self, requests: list[Params], vocab: int = VOCAB, rowwise: bool | None = None) -> None:
        self.requests = requests
        self.tables = SamplingTables(len(requests) + 1, vocab, "cpu")
        for i, p in enumerate(requests):
            self.tables.write(p.row(i + 1))
        self.sampler = Sampler(self.tables, rowwise=rowwise)

    def sample(self, logits: np.ndarray, which: list[int] | None = None, mask=None) -> SampleResult:
        """One step of the requests `which`, whose rows of logits these are."""
        which = list(range(len(self.requests))) if which is None else which
        lens = np.array([self.requests[i].seq_len for i in which], np.int32)
        idx = np.array(which, np.int32) + 1
        return self.sampler.sample(torch.from_numpy(logits.astype(np.float32)).clone(), idx, lens, mask)


def step_mask(rows: list[int], allowed: np.ndarray) -> Mask:
    """Create a mask of some rows from bool [m, vocab]; equal rows share one mask."""
    padded = np.pad(allowed, ((0, 0), (0, -allowed.shape[1] % 32)))
    words = np.packbits(padded, axis=1, bitorder="little").view("<u4")
    masks, index = np.unique(words, axis=0, return_inverse=True)
    return Mask(np.array(rows, np.int32), index.reshape(-1).astype(np.int32), masks)


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 0, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * scale).astype(np.float32)


tokens = st.integers(0, VOCAB - 1)
params = st.builds(
    Params,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.0, 2.5]),
    top_p=st.sampled_from([1.0, 1.0, 0.05, 0.5, 0.9, 0.999]),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 40, VOCAB, 1000]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -1.5, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.0, -0.5, 1.1]),
    seed=st.integers(-(2**63), 2**63 - 1),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, -1.0, 2.5, 100.0]), max_size=4),
    min_tokens=st.sampled_from([0, 0, 1, 3, 6]),
    stop_ids=st.lists(tokens, max_size=4, unique=True),
    prompt=st.lists(tokens, min_size=1, max_size=8),
    output=st.lists(tokens, max_size=6),
)


def make_logits(seed: int, levels: int, scale: float) -> np.ndarray:
    """float32 [VOCAB] of at most that many different values, 1/64 apart or more."""
    rng = np.random.default_rng(seed)
    return rng.choice(np.round(rng.standard_normal(levels) * scale * 64) / 64, VOCAB).astype(np.float32)


values = st.builds(make_logits, st.integers(0, 10**6), st.sampled_from([1, 2, 5, 1000]), st.sampled_from([0.5, 3, 12]))
masks = st.one_of(st.none(), st.lists(tokens, min_size=1, max_size=20))


@both_ways
@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(params, values, masks), min_size=1, max_size=6))
def test_every_row_follows_the_definition(rowwise, rows):
    bench = Bench([p for p, _, _ in rows], rowwise=rowwise)
    logits = np.array([v for _, v, _ in rows], np.float32)
    masked = [i for i, (_, _, ids) in enumerate(rows) if ids is not None]
    allowed = np.zeros((len(rows), VOCAB), bool)
    for i in masked:
        allowed[i, rows[i][2]] = True
    mask = step_mask(masked, allowed[masked]) if masked else None
    result = bench.sample(logits, mask=mask)
    errors = dict(result.row_errors)
    for i, (p, _, ids) in enumerate(rows):
        x = edited_logits(logits[i], p, allowed[i] if ids is not None else None)
        token = int(result.token_ids[i])
        if np.isneginf(x).all():
            assert "rule out all" in errors[i]
            assert token == 0
            continue
        assert i not in errors
        if p.temperature == 0:
            assert x[token] >= x.max() - 1e-5
        elif not is_knife_edge(x, p, splitmix_uniform(p.seed, p.seq_len)):
            assert token == inverse_cdf(probabilities(x, p), splitmix_uniform(p.seed, p.seq_len))


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31 - 1))
def test_uniform_is_the_documented_function(seed, position):
    [u] = uniforms(np.array([seed]), np.array([position], np.int32))
    assert u == splitmix_uniform(seed, position)


def kept_tokens(logits: np.ndarray, p: Params, rowwise: bool, draws: int = 400) -> set[int]:
    """The tokens that turn up among many draws from one distribution."""
    bench = Bench([Params(**{**vars(p), "seed": s}) for s in range(draws)], len(logits), rowwise)
    return set(bench.sample(np.tile(logits, (draws, 1))).token_ids.tolist())


@both_ways
@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (Params(top_k=3), {4, 5, 6}),
        (Params(top_p=0.5), {4, 5}),  # 4 equal tokens: two of them are exactly half
        (Params(top_p=0.51), {4, 5, 6}),
        (Params(top_p=1e-9), {4}),
        (Params(top_k=4, top_p=0.75), {4, 5, 6}),
        (Params(top_k=2, top_p=0.5), {4}),  # top_p's mass is of what top_k left
        (Params(min_p=1.0), {4, 5, 6, 7}),
        (Params(temperature=1e-9), {4, 5, 6, 7}),
    ],
)
def test_ties_go_to_the_lowest_ids(p, expected, rowwise):
    logits = np.full(2000, -300.0, np.float32)
    logits[4:8] = 5.0
    assert kept_tokens(logits, p, rowwise) == expected


@pytest.mark.parametrize("vocab", [1000, 1024, 5000])
@pytest.mark.parametrize("top_p", [0.1, 0.25, 0.9, 0.999999])
def test_top_p_over_equal_tokens_keeps_exactly_its_share(vocab, top_p):
    expected = int(np.ceil(np.float64(top_p) * vocab))
    logits = torch.zeros(3, vocab)
    temperature, tops = torch.ones(3), torch.full((3,), top_p, dtype=torch.float64)
    weights = draw.token_weights(logits, logits[:, 0], temperature)
    kept = draw.top_p_cutoff(logits, temperature, tops, weights).apply(weights, logits)[:, :vocab]
    assert kept.count_nonzero(1).tolist() == [expected] * 3
    assert kept[:, :expected].all()
    u = np.array([0.0, 0.5, 1 - 2.0**-53])
    drawn = [draw.draw_row(logits[0].numpy(), 0.0, x, 1.0, vocab, top_p, 0.0) for x in u]
    assert drawn == np.floor(u * expected).astype(int).tolist()


@pytest.mark.parametrize("scale", [0.01, 0.5, 3.0, 10.0])
@pytest.mark.parametrize("p", [Params(top_p=0.95), Params(top_k=700), Params(top_k=3000, top_p=0.6), Params(min_p=0.1)])
def test_both_ways_agree_on_a_large_vocabulary(scale, p):
    requests = [Params(**{**vars(p), "seed": s}) for s in range(40)]
    logits = torch.from_numpy(random_logits(40, 9001, scale=scale)).bfloat16().float().numpy()
    found = [Bench(requests, 9001, rowwise).sample(logits).token_ids for rowwise in (True, False)]
    assert torch.equal(*found)
    for i in range(3):
        expected = inverse_cdf(probabilities(logits[i].astype(np.float64), p), splitmix_uniform(i, 1))
        assert abs(int(found[0][i]) - expected) <= (2 if scale < 1 else 0)


MIXED = [
    Params(temperature=0.0),
    Params(temperature=0.8),
    Params(temperature=1.0, top_p=0.9),
    Params(temperature=1.0, top_k=50),
    Params(temperature=0.6, top_k=300, top_p=0.95, min_p=0.02),
    Params(temperature=1.2, min_p=0.05),
    Params(temperature=0.0, repetition_penalty=1.2, prompt=[3, 5]),
    Params(temperature=1.0, frequency_penalty=0.5, presence_penalty=0.2, output=[7, 7, 9]),
    Params(temperature=1.0, logit_bias={11: 20.0}),
    Params(temperature=1.0, min_tokens=9, stop_ids=[1, 2, 3]),
    Params(temperature=1.0, logprobs=3),
]


@both_ways
@pytest.mark.parametrize("vocab", [4099, 49152])
def test_a_row_draws_the_same_alone_and_in_any_batch(vocab, rowwise):
    requests = [Params(**{**vars(MIXED[i % len(MIXED)]), "seed": i}) for i in range(32)]
    logits = torch.from_numpy(random_logits(32, vocab)).bfloat16().float().numpy()
    together = Bench(requests, vocab, rowwise).sample(logits)
    for i in range(32):
        alone = Bench(requests, vocab, rowwise).sample(logits[i : i + 1], [i])
        assert alone.token_ids.tolist() == [int(together.token_ids[i])]
    order = np.random.default_rng(1).permutation(32)[:20]
    some = Bench(requests, vocab, rowwise).sample(logits[order], order.tolist())
    assert some.token_ids.tolist() == together.token_ids[torch.from_numpy(order)].tolist()


@pytest.mark.parametrize("vocab", [4099, 49152])
def test_weights_have_the_same_bits_alone_and_in_a_batch(vocab):
    logits = torch.from_numpy(random_logits(32, vocab, scale=8.0))
    temperature = torch.linspace(0.1, 2.0, 32)
    weights = draw.token_weights(logits, logits.amax(-1), temperature)
    sums = draw._block_sums(weights)
    for i in range(32):
        one = draw.token_weights(logits[i : i + 1].clone(), logits[i : i + 1].amax(-1), temperature[i : i + 1])
        assert torch.equal(one[0], weights[i])
        assert torch.equal(draw._block_sums(one)[0], sums[i])


def test_greedy_rows_are_untouched_by_their_neighbours():
    logits = random_logits(len(MIXED))
    result = Bench(MIXED).sample(logits)
    assert int(result.token_ids[0]) == logits[0].argmax()
    assert int(result.token_ids[6]) == edited_logits(logits[6], MIXED[6]).argmax()


def test_greedy_takes_the_first_of_equal_tokens():
    logits = np.zeros((2, VOCAB), np.float32)
    logits[:, [9, 4, 60]] = 2.5
    assert Bench([Params(temperature=0.0)] * 2).sample(logits).token_ids.tolist() == [4, 4]


def test_plain_greedy_leaves_the_logits_alone():
    bench = Bench([Params(temperature=0.0)] * 3)
    logits = torch.from_numpy(random_logits(3))
    before = logits.clone()
    result = bench.sampler.sample(logits, np.array([1, 2, 3]), np.array([5, 5, 5]))
    assert torch.equal(logits, before)
    assert result.token_ids.dtype == torch.int64
    assert (result.logprobs, result.row_errors) == ([], [])


def test_sampled_tokens_are_counted():
    p = Params(temperature=0.0, frequency_penalty=1.0, prompt=[1])
    bench = Bench([p])
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 3:6] = [1.5, 1.25, 1.0]
    seen = []
    for _ in range(6):
        expected = int(edited_logits(logits[0], p).argmax())
        token = int(bench.sample(logits).token_ids[0])
        assert token == expected
        p.output.append(token)
        seen.append(token)
    assert seen == [3, 4, 5, 3, 4, 0]


@pytest.mark.parametrize("kind", [{}, {"repetition_penalty": 1.4}, {"frequency_penalty": 0.8, "top_p": 0.9}])
def test_a_row_written_again_after_retraction_draws_as_before(kind):
    p = Params(seed=77, prompt=[4, 5, 6], **kind)
    logits = [random_logits(1, seed=s) for s in range(12)]
    bench = Bench([p])
    for step in range(11):
        p.output.append(int(bench.sample(logits[step]).token_ids[0]))
    expected = bench.sample(logits[11]).token_ids.tolist()
    assert Bench([p]).sample(logits[11]).token_ids.tolist() == expected
    elsewhere = SamplingTables(9, VOCAB, "cpu")
    elsewhere.write(Params(repetition_penalty=3.0, prompt=[9] * 5, logit_bias={0: 100.0}).row(7))
    elsewhere.write(p.row(7))
    result = Sampler(elsewhere).sample(torch.from_numpy(logits[11]).clone(), np.array([7]), np.array([p.seq_len]))
    assert result.token_ids.tolist() == expected


def test_min_tokens_ends_at_its_length():
    p = Params(temperature=0.0, min_tokens=2, stop_ids=[8, 9], prompt=[1, 1])
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [8, 9, 10]] = [9.0, 8.0, 7.0]
    bench = Bench([p])
    found = []
    for _ in range(3):
        found.append(int(bench.sample(logits).token_ids[0]))
        p.output.append(found[-1])
    assert found == [10, 10, 8]


def test_mask_rows_in_any_order_over_all_rows():
    bench = Bench([Params(temperature=0.0)] * 3)
    allowed = np.zeros((3, VOCAB), bool)
    allowed[[0, 1, 2], [70, 31, 32]] = True
    result = bench.sample(random_logits(3), mask=step_mask([2, 0, 1], allowed))
    assert result.token_ids.tolist() == [31, 32, 70]


def test_rows_have_a_mask_in_common():
    bench = Bench([Params(temperature=0.0)] * 4)
    allowed = np.zeros((3, VOCAB), bool)
    allowed[[0, 1, 2], [70, 31, 70]] = True
    mask = step_mask([3, 0, 1], allowed)
    assert len(mask.table) == 2
    logits = random_logits(4)
    assert bench.sample(logits, mask=mask).token_ids.tolist() == [31, 70, int(logits[2].argmax()), 70]


@both_ways
def test_rows_that_cannot_be_sampled_fail_alone(rowwise):
    requests = [Params(temperature=t, top_p=p, repetition_penalty=1.1) for t in (0.0, 1.0) for p in (1.0, 0.9)] * 2
    logits = random_logits(8)
    logits[0, 5] = logits[1, 6] = np.nan
    logits[2, 7] = np.inf
    logits[3] = -np.inf
    allowed = np.zeros((1, VOCAB), bool)
    result = Bench(requests, rowwise=rowwise).sample(logits, mask=step_mask([6], allowed))
    errors = dict(result.row_errors)
    assert sorted(errors) == [0, 1, 2, 3, 6]
    assert "NaN" in errors[0]
    assert "NaN" in errors[1]
    assert "infinity" in errors[2]
    assert "rule out all" in errors[3]
    assert "rule out all" in errors[6]
    assert result.token_ids[[0, 1, 2, 3, 6]].tolist() == [0] * 5
    healthy = Bench(requests, rowwise=rowwise).sample(logits[[4, 5, 7]], [4, 5, 7])
    assert result.token_ids[[4, 5, 7]].tolist() == healthy.token_ids.tolist()


def test_an_empty_step_samples_nothing():
    result = Bench([Params()]).sample(np.zeros((0, VOCAB), np.float32), [])
    assert result.token_ids.shape == (0,)
    assert (result.logprobs, result.row_errors) == ([], [])
