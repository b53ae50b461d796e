"""Attention sinks against a softmax over one more score, in float64."""

from __future__ import annotations

import math

import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("tokens", "heads", "dim"), [(1, 64, 64), (7, 3, 80), (33, 8, 256)])
def test_equals_a_softmax_with_one_more_score(triton_device: str, tokens: int, heads: int, dim: int) -> None:
    from radixrt.kernels.triton.sinks import apply_sinks

    generator = torch.Generator().manual_seed(heads)
    scores = torch.randn(tokens, heads, 20, generator=generator, dtype=torch.float64) * 4
    values = torch.randn(tokens, heads, 20, dim, generator=generator, dtype=torch.float64)
    sinks = torch.linspace(-60.0, 60.0, heads) if heads > 3 else torch.tensor([0.0, 200.0, -200.0])
    probabilities = torch.cat((scores, sinks.double()[:, None].expand(tokens, heads, 1)), -1).softmax(-1)[..., :-1]
    expected = torch.einsum("thn,thnd->thd", probabilities, values)
    out = torch.einsum("thn,thnd->thd", scores.softmax(-1), values).to(torch.float32).to(triton_device)
    lse = (scores.logsumexp(-1) / math.log(2.0)).float().to(triton_device)
    apply_sinks(out, lse, sinks.to(triton_device))
    torch.testing.assert_close(out.cpu().double(), expected, atol=1e-5, rtol=1e-5)
    both = torch.logaddexp(scores.logsumexp(-1), sinks.double()) / math.log(2.0)
    torch.testing.assert_close(lse.cpu().double(), both, atol=1e-5, rtol=1e-6)


def test_an_empty_part_is_all_sink(triton_device: str) -> None:
    from radixrt.kernels.triton.sinks import apply_sinks

    out = torch.full((2, 4, 16), torch.nan, dtype=torch.float16, device=triton_device)
    lse = torch.full((2, 4), -torch.inf, device=triton_device)
    apply_sinks(out, lse, torch.zeros(4, device=triton_device))
    assert not out.any()
    assert not lse.any()


def test_no_tokens(triton_device: str) -> None:
    from radixrt.kernels.triton.sinks import apply_sinks

    apply_sinks(torch.empty(0, 4, 16, device=triton_device), torch.empty(0, 4, device=triton_device),
                torch.zeros(4, device=triton_device))  # fmt: skip
