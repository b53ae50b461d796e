"""The reference of recurrent layers equals transformers' slow paths, however rows are cut and mixed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers.models.qwen3_5 import modeling_qwen3_5 as theirs

from radixrt.forward_batch.state_rows import StateRows
from radixrt.layers.recurrence import GatedDeltaShape, GatedDeltaWeights, RecurrenceOps
from radixrt.messages.state_slots import SCRATCH_STATE, ZERO_STATE
from tests.kernels.recurrent_cases import check_chains

SHAPE = GatedDeltaShape(k_heads=2, v_heads=4, k_dim=16, v_dim=8)
TAPS, SLOTS = 4, 12
CUTS: dict[str, list[tuple[int, ...]]] = {
    "whole": [(130, 1, 5, 64, 2)],
    "tokens": [(1, 1, 1, 1), (1, 0, 1, 1), (1, 0, 0, 1), (1, 0, 0, 1)],
    "chunks": [(3, 1, 2, 1, 1), (65, 0, 3, 63, 1), (62, 0, 0, 0, 0)],
}
"""Numbers of tokens of each sequence, by step; a sequence without tokens is no row of the step."""


def rows_of(lens: list[int], src: list[int], dst: list[int]) -> StateRows:
    """Rows of so many tokens; as decode rows if each has one."""
    starts = torch.tensor([0, *np.cumsum(lens)])
    single = all(n == 1 for n in lens)
    return StateRows(torch.tensor(src), torch.tensor(dst), starts, None if single else np.array(lens, np.int32))


def random_weights(generator: torch.Generator) -> GatedDeltaWeights:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    a_log = torch.rand(SHAPE.v_heads, generator=generator).mul_(0.3).log()
    return GatedDeltaWeights(
        normal(SHAPE.channels, TAPS) * 0.4, a_log, normal(SHAPE.v_heads), 1 + 0.2 * normal(SHAPE.v_dim), 1e-6
    )


def reference(projected: torch.Tensor, weights: GatedDeltaWeights) -> torch.Tensor:
    """One whole sequence [T, in_features] by transformers' functions, token by token."""
    value_size = SHAPE.v_heads * SHAPE.v_dim
    qkv, z, b, a = projected.split([SHAPE.channels, value_size, SHAPE.v_heads, SHAPE.v_heads], dim=-1)
    qkv = theirs.causal_conv1d_fn(qkv.T[None], weights.conv, activation="silu")[0].T
    key_size = SHAPE.k_heads * SHAPE.k_dim
    q, k, v = qkv.split([key_size, key_size, value_size], dim=-1)
    g = -weights.a_log.exp() * F.softplus(a + weights.dt_bias)
    out, _ = theirs.torch_recurrent_gated_delta_rule(
        q.reshape(1, -1, SHAPE.k_heads, SHAPE.k_dim), k.reshape(1, -1, SHAPE.k_heads, SHAPE.k_dim),
        v.reshape(1, -1, SHAPE.v_heads, SHAPE.v_dim), g=g[None], beta=b.sigmoid()[None], initial_state=None,
        output_final_state=False, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    norm = theirs.Qwen3_5RMSNormGated(SHAPE.v_dim, eps=weights.eps)
    norm.weight.data.copy_(weights.norm)
    return norm(out[0], z.view(-1, SHAPE.v_heads, SHAPE.v_dim)).flatten(1)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("cuts", CUTS)
@torch.inference_mode()
def test_gated_delta_net_equals_transformers(cuts: str, in_place: bool) -> None:
    """Rows are computed in steps, and read and write a slot in turn: the same one, or two of their own."""
    generator = torch.Generator().manual_seed(0)
    weights = random_weights(generator)
    inputs = [
        torch.randn(sum(column), SHAPE.in_features, generator=generator) for column in zip(*CUTS[cuts], strict=True)
    ]
    conv = torch.full((SLOTS, SHAPE.channels, TAPS - 1), torch.nan)
    states = torch.full((SLOTS, SHAPE.v_heads, SHAPE.v_dim, SHAPE.k_dim), torch.nan)
    for pool in (conv, states):
        pool[[ZERO_STATE, SCRATCH_STATE]] = 0
    done, slots, found = [0] * len(inputs), [ZERO_STATE] * len(inputs), [[] for _ in inputs]
    for step in CUTS[cuts]:
        active = [i for i, n in enumerate(step) if n]
        lens = [step[i] for i in active]
        dst = [2 + i if in_place or slots[i] != 2 + i else 7 + i for i in active]
        packed = torch.cat([inputs[i][done[i] : done[i] + n] for i, n in zip(active, lens, strict=True)])
        out = RecurrenceOps().gated_delta_net(
            packed, SHAPE, weights, conv, states, rows_of(lens, [slots[i] for i in active], dst)
        )
        for i, n, slot, part in zip(active, lens, dst, out.split(lens), strict=True):
            done[i], slots[i] = done[i] + n, slot
            found[i].append(part)
    for x, parts in zip(inputs, found, strict=True):
        torch.testing.assert_close(torch.cat(parts), reference(x, weights), atol=2e-5, rtol=1e-5)
    assert not conv[ZERO_STATE].any()
    assert not states[ZERO_STATE].any()


@torch.inference_mode()
def test_several_rows_begin_with_one_state() -> None:
    """A fork: both rows go on from slot 2, which stays as it was."""
    generator = torch.Generator().manual_seed(1)
    weights = random_weights(generator)
    trunk, *branches = (torch.randn(n, SHAPE.in_features, generator=generator) for n in (20, 3, 1))
    conv = torch.zeros(5, SHAPE.channels, TAPS - 1)
    states = torch.zeros(5, SHAPE.v_heads, SHAPE.v_dim, SHAPE.k_dim)
    ops = RecurrenceOps()
    ops.gated_delta_net(trunk, SHAPE, weights, conv, states, rows_of([20], [ZERO_STATE], [2]))
    before = conv[2].clone(), states[2].clone()
    out = ops.gated_delta_net(torch.cat(branches), SHAPE, weights, conv, states, rows_of([3, 1], [2, 2], [3, 4]))
    for branch, part in zip(branches, out.split([3, 1]), strict=True):
        whole = reference(torch.cat((trunk, branch)), weights)
        torch.testing.assert_close(part, whole[20:], atol=2e-5, rtol=1e-5)
    assert torch.equal(conv[2], before[0])
    assert torch.equal(states[2], before[1])


@torch.inference_mode()
def test_short_conv_gates_before_and_behind() -> None:
    generator = torch.Generator().manual_seed(2)
    channels, taps = 6, 3
    weight, bcx = torch.randn(channels, taps, generator=generator), torch.randn(9, 3 * channels, generator=generator)
    pool = torch.zeros(3, channels, taps - 1)
    ops = RecurrenceOps()
    parts = [
        ops.short_conv(bcx[first:end], weight, pool, rows_of([end - first], [2 if first else ZERO_STATE], [2]))
        for first, end in ((0, 1), (1, 6), (6, 7), (7, 9))
    ]
    before, behind, x = bcx.chunk(3, dim=-1)
    expected = behind * theirs.causal_conv1d_fn((before * x).T[None], weight)[0].T
    torch.testing.assert_close(torch.cat(parts), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(pool[2], (before * x)[-2:].T)


@torch.inference_mode()
def test_rows_that_go_on_from_one_another() -> None:
    check_chains(RecurrenceOps(), "cpu", torch.float32)
