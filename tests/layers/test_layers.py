"""Layers against their definitions and against torch's own operations."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from radixrt.attention.base import AttentionLayer
from radixrt.layers.formats.checkpoint import whole_weight
from radixrt.layers.formats.plain import Plain, pack_weight
from radixrt.layers.linear import Linear
from radixrt.layers.lm_head import LMHead
from radixrt.layers.ops import TorchOps
from radixrt.layers.rotary import RopeSpec, inverse_frequencies, rotary_table

OPS = TorchOps()
PLAIN = Plain(OPS)


def linear(columns: int, rows: int, bias: bool, dtype: torch.dtype) -> Linear:
    return Linear([whole_weight("", rows, columns)], bias, dtype, PLAIN)


def filled(layer: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in list(layer.named_parameters()):
        values = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        layer.register_parameter(name, nn.Parameter(values, requires_grad=False))
    return layer


@pytest.mark.parametrize("rows", [1, 3, 16, 65])
@pytest.mark.parametrize("bias", [False, True])
def test_packed_linear_equals_plain(rows: int, bias: bool) -> None:
    layer = filled(linear(96, 160, bias, torch.bfloat16))
    assert isinstance(layer, Linear)
    assert layer.weight is not None
    weight, offset = layer.weight, layer.bias
    x = torch.randn(rows, 96, generator=torch.Generator().manual_seed(1)).bfloat16()
    exact = F.linear(x.float(), weight.float(), None if offset is None else offset.float())
    layer.process_weights_after_loading()
    with torch.inference_mode():
        y = layer(x)
    assert y.shape == (rows, 160)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), exact, atol=0.02, rtol=0.01)


def test_processing_drops_the_plain_weight_only_when_it_packs() -> None:
    packs = filled(linear(32, 32, False, torch.bfloat16))
    plain = filled(linear(32, 32, False, torch.float32))
    assert isinstance(packs, Linear)
    assert isinstance(plain, Linear)
    can = pack_weight(torch.zeros(32, 32, dtype=torch.bfloat16)) is not None
    packs.process_weights_after_loading()
    plain.process_weights_after_loading()
    assert (packs.weight is None) == can
    assert plain.weight is not None


def test_linear_without_packing_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixrt.layers.formats.plain.pack_weight", lambda weight: None)
    layer = filled(linear(32, 48, True, torch.bfloat16))
    assert isinstance(layer, Linear)
    layer.process_weights_after_loading()
    assert layer.weight is not None
    x = torch.randn(4, 32).bfloat16()
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm(dtype: torch.dtype) -> None:
    weight = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(dtype)
    x = torch.randn(15, 64).to(dtype)
    exact = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + 1e-5) * weight.double()
    found = TorchOps().add_rms_norm(x, None, weight, 1e-5, dtype)
    torch.testing.assert_close(found.double(), exact, atol=1e-5 if dtype == torch.float32 else 0.03, rtol=0.01)


SPECS = [
    RopeSpec(10000.0),
    RopeSpec(5e5, "linear", 4.0),
    RopeSpec(5e5, "llama3", 8.0, 1.0, 4.0, 64),
    RopeSpec(5e5, "yarn", 8.0, original_context_length=64, attention_factor=0.1 * math.log(8.0) + 1),
    RopeSpec(
        150000.0, "yarn", 32.0, original_context_length=64, beta_fast=16.0, beta_slow=2.0, truncate=False,
        attention_factor=1.25,
    ),
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_equals_transformers(spec: RopeSpec, dtype: torch.dtype) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    parameters = {"rope_type": spec.kind, "rope_theta": spec.theta, "factor": spec.factor}
    if spec.kind == "llama3":
        parameters |= {
            "low_freq_factor": spec.low_freq_factor,
            "high_freq_factor": spec.high_freq_factor,
            "original_max_position_embeddings": spec.original_context_length,
        }
    if spec.kind == "yarn":
        parameters |= {
            "original_max_position_embeddings": spec.original_context_length,
            "beta_fast": spec.beta_fast,
            "beta_slow": spec.beta_slow,
            "truncate": spec.truncate,
        }
        if spec.attention_factor == 1.25:  # else it is derived from the factor
            parameters["attention_factor"] = spec.attention_factor
    if spec.kind == "default":
        del parameters["factor"]
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=4, max_position_embeddings=512, rope_parameters=parameters
    )
    theirs = LlamaRotaryEmbedding(config)
    assert torch.equal(inverse_frequencies(spec, 32), theirs.inv_freq)
    positions = torch.tensor([0, 1, 77, 511, 5])
    q, k = torch.randn(5, 4, 32).to(dtype), torch.randn(5, 2, 32).to(dtype)
    cos, sin = theirs(q, positions[None])
    q_theirs, k_theirs = apply_rotary_pos_emb(q[None].transpose(1, 2), k[None].transpose(1, 2), cos, sin)
    table = rotary_table(spec, 32, 512, dtype, torch.device("cpu"))
    layer = AttentionLayer(0, 4, 2, 32, 1.0)
    ours_q, ours_k, _ = OPS.prepare_heads(
        torch.cat((q, k, k), 1), layer, positions, table, None, None, 0.0, None, positions
    )
    assert ours_k is not None
    theirs_both = torch.cat((q_theirs, k_theirs), 1)[0].transpose(0, 1)
    # One rounding in place of three.
    ours = torch.cat((ours_q, ours_k), 1)
    torch.testing.assert_close(ours, theirs_both, atol=1e-6 if dtype == torch.float32 else 0.04, rtol=1e-5)


@pytest.mark.parametrize(("rows", "vocab"), [(1, 640), (5, 640), (3, 601)])
def test_lm_head_is_exact_near_the_top(rows: int, vocab: int) -> None:
    layer = filled(LMHead(whole_weight("lm_head", vocab, 96), torch.bfloat16, PLAIN))
    assert isinstance(layer, LMHead)
    assert layer.weight is not None
    weight = layer.weight
    hidden = torch.randn(rows, 96, generator=torch.Generator().manual_seed(1))
    exact = hidden @ weight.float().T
    layer.process_weights_after_loading()
    logits = layer(hidden)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, exact, atol=0.3, rtol=0.01)
    if pack_weight(weight) is not None:
        top = exact.amax(1, keepdim=True)
        near = exact >= top * (1 - 1 / 128)
        torch.testing.assert_close(logits[near], exact[near])
