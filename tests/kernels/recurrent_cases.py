"""Steps of recurrent layers over ragged rows and shared states, and their results in float64, token by token."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from radixrt.forward_batch.state_rows import StateRows
from radixrt.layers.recurrence import GatedDeltaShape, GatedDeltaWeights, RecurrenceOps
from radixrt.messages.state_slots import SCRATCH_STATE, ZERO_STATE

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TOLERANCE = {BF16: 2e-2, F16: 3e-3, F32: 2e-5}
"""Relative to the largest number of a result: activations are rounded several times on their way."""
TAPS = 4
LENGTHS = {
    "short": ([1, 3, 2, 1], [0, 2, 2, 5], [3, 4, 6, 5]),
    "edges": ([31, 32, 33, 63, 64, 65], [0, 3, 3, 0, 6, 3], [2, 4, 5, 7, 6, 8]),
    "long": ([200, 1, 70], [2, 0, 3], [2, 4, 3]),
}
"""Numbers of tokens of each row, and the slots they read and write."""


@dataclass(frozen=True)
class Case:
    """One layer, its pools, and the rows of one step."""

    shape: GatedDeltaShape
    weights: GatedDeltaWeights
    projected: torch.Tensor
    conv_pool: torch.Tensor
    states: torch.Tensor
    rows: StateRows


def make_rows(device: str, lens: list[int], src: list[int], dst: list[int], *, decode: bool = False) -> StateRows:
    starts = torch.tensor([0, *np.cumsum(lens)], device=device)
    host = None if decode else np.array(lens, np.int32)
    return StateRows(torch.tensor(src, device=device), torch.tensor(dst, device=device), starts, host)


def make_case(device: str, heads: tuple[int, int], dim: int, dtype: torch.dtype, rows: StateRows, slots: int) -> Case:
    """Draw numbers of the sizes that trained models have: slow and fast decay, and keys that repeat."""
    generator = torch.Generator().manual_seed(7)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    shape = GatedDeltaShape(*heads, dim, dim)
    tokens, v_heads = int(rows.starts[-1]), shape.v_heads
    features = normal(tokens, shape.in_features)
    keys = slice(shape.k_heads * dim, 2 * shape.k_heads * dim)
    features[:, keys] += 2 * normal(1, shape.k_heads * dim)  # keys of neighbouring tokens point the same way
    # Heads whose result is next to nothing hold no right digit of 8 bits; this eps keeps them small behind the norm.
    eps = 1e-6 if dtype == F32 else 0.1
    weights = GatedDeltaWeights(
        (normal(shape.channels, TAPS) * 0.5).to(device, dtype),
        torch.linspace(-4, 1, v_heads).to(device), normal(v_heads).to(device), (1 + 0.2 * normal(dim)).to(device), eps,
    )  # fmt: skip
    conv_pool = normal(slots, shape.channels, TAPS - 1)
    states = normal(slots, v_heads, dim, dim) * 0.3
    conv_pool[ZERO_STATE], states[ZERO_STATE] = 0, 0
    # A token's features lie in a wider row, as if other projections stood behind them.
    wide = torch.zeros(tokens, shape.in_features + 16)
    wide[:, : shape.in_features] = features
    projected = wide.to(device, dtype)[:, : shape.in_features]
    return Case(shape, weights, projected, conv_pool.to(device, dtype), states.to(device), rows)


def reference(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The result and both pools in float64, on the CPU, token by token."""
    shape, dim = case.shape, case.shape.k_dim
    x, conv_pool, states = (each.double().cpu() for each in (case.projected, case.conv_pool, case.states))
    conv_weight, a_log, dt_bias, norm = (
        each.double().cpu() for each in (case.weights.conv, case.weights.a_log, case.weights.dt_bias, case.weights.norm)
    )
    key_size, value_size, share = shape.k_heads * dim, shape.v_heads * dim, shape.v_heads // shape.k_heads
    starts, src, dst = case.rows.starts.tolist(), case.rows.src.tolist(), case.rows.dst.tolist()
    new_conv, new_states, out = conv_pool.clone(), states.clone(), torch.empty(len(x), value_size, dtype=torch.float64)
    for row, (begin, end) in enumerate(itertools.pairwise(starts)):
        window, state = conv_pool[src[row]].T, states[src[row]].clone()
        for token in range(begin, end):
            qkv, z, b, a = x[token].split([shape.channels, value_size, shape.v_heads, shape.v_heads])
            window = torch.cat((window, qkv[None]))
            mixed = F.silu((window * conv_weight.T).sum(0))
            window = window[1:]
            q, k, v = mixed.split([key_size, key_size, value_size])
            q, k = (
                (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(share, 0)
                for part in (q.view(-1, dim), k.view(-1, dim))
            )
            state *= (-a_log.exp() * F.softplus(a + dt_bias)).exp()[:, None, None]
            added = b.sigmoid()[:, None] * (v.view(-1, dim) - (state @ k[..., None])[..., 0])
            state += added[..., None] * k[:, None, :]
            result = (state @ q[..., None])[..., 0] * dim**-0.5
            result = result / (result.square().mean(-1, keepdim=True) + case.weights.eps).sqrt() * norm
            out[token] = (result * F.silu(z.view_as(result))).flatten()
        if dst[row] != SCRATCH_STATE:
            new_conv[dst[row]], new_states[dst[row]] = window.T, state
    return out, new_conv, new_states


def check_step(case: Case, ops: RecurrenceOps, used: slice = slice(None)) -> None:
    """Compare a step with the reference; `used` are the tokens of the result that mean something."""
    expected, conv_pool, states = reference(case)
    out = ops.gated_delta_net(case.projected, case.shape, case.weights, case.conv_pool, case.states, case.rows)
    tolerance = TOLERANCE[case.projected.dtype]

    def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
        assert (found.double().cpu() - wanted).abs().max() <= tolerance * wanted.abs().max()

    close(out[used], expected[used])
    close(case.states, states)
    assert torch.equal(case.conv_pool.double().cpu(), conv_pool)


def check_short_conv(ops: RecurrenceOps, device: str, lens: list[int], *, decode: bool) -> None:
    """Compare two steps of LFM2's convolution with the reference."""
    generator, channels = torch.Generator().manual_seed(3), 160
    weight = torch.randn(channels, 3, generator=generator).to(device)
    found_pool = torch.randn(6, channels, 2, generator=generator).to(device)
    found_pool[ZERO_STATE] = 0
    pool = found_pool.clone()
    for src, dst in (([0, 3, 3], [2, 4, 5]), ([2, 4, 5], [2, 3, 5])):
        rows = make_rows(device, lens, src, dst, decode=decode)
        bcx = torch.randn(sum(lens), 3 * channels, generator=generator).to(device)
        expected = RecurrenceOps().short_conv(bcx, weight, pool, rows)
        torch.testing.assert_close(ops.short_conv(bcx, weight, found_pool, rows), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found_pool, pool)


def check_chains(ops: RecurrenceOps, device: str, dtype: torch.dtype, dim: int = 16) -> None:
    """Rows that go on from one another leave exactly the states, and have exactly the results, of separate steps."""
    lens, src, dst, chains = [1, 40, 2, 33, 1, 5], [3, 4, 5, 0, 6, 7], [4, 5, 3, 2, 7, 6], [0, 3, 4, 6]
    rows = replace(make_rows(device, lens, src, dst), chains=np.array(chains))
    case = make_case(device, (1, 2), dim, dtype, rows, 9)
    generator, channels = torch.Generator().manual_seed(3), 64
    weight = torch.randn(channels, 3, generator=generator).to(device, dtype)
    short_pool = torch.randn(9, channels, 2, generator=generator).to(device, dtype)
    bcx = torch.randn(sum(lens), 3 * channels, generator=generator).to(device, dtype)

    def compute(at: torch.Tensor, part: StateRows, pools: list[torch.Tensor]) -> list[torch.Tensor]:
        net = ops.gated_delta_net(case.projected[at], case.shape, case.weights, pools[0], pools[1], part)
        return [net, ops.short_conv(bcx[at], weight, pools[2], part)]

    pools, expected_pools = ([x.clone() for x in (case.conv_pool, case.states, short_pool)] for _ in range(2))
    found = compute(torch.arange(sum(lens), device=device), rows, pools)
    expected = [torch.empty_like(x) for x in found]
    for wave in ([0, 3, 4], [1, 5], [2]):
        part = make_rows(device, *([column[row] for row in wave] for column in (lens, src, dst)))
        at = torch.cat([torch.arange(sum(lens[:row]), sum(lens[: row + 1]), device=device) for row in wave])
        for to, result in zip(expected, compute(at, part, expected_pools), strict=True):
            to[at] = result
    for mine, theirs in zip([*found, *pools], [*expected, *expected_pools], strict=True):
        assert torch.equal(mine, theirs)
