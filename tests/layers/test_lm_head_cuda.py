"""The output head on CUDA: logits that bfloat16 would round, exactly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from radixrt.layers.formats.checkpoint import whole_weight
from radixrt.layers.formats.plain import Plain
from radixrt.layers.lm_head import LMHead
from radixrt.layers.ops import TorchOps

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize(("rows", "vocab"), [(1, 640), (5, 640), (3, 601), (64, 49152)])
def test_logits_are_not_rounded(rows: int, vocab: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    layer = LMHead(whole_weight("lm_head", vocab, 96), torch.bfloat16, Plain(TorchOps()))
    weight = torch.randn(vocab, 96, generator=generator, device="cuda").bfloat16()
    layer.register_parameter("weight", nn.Parameter(weight, requires_grad=False))
    layer.process_weights_after_loading()
    hidden = torch.randn(rows, 96, generator=generator, device="cuda").bfloat16()
    logits = layer(hidden)
    assert logits.dtype == torch.float32
    exact = hidden.double() @ weight.double().T
    torch.testing.assert_close(logits.double(), exact, atol=1e-4, rtol=1e-5)
