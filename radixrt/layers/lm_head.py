"""The head of a language model: hidden states to float32 logits."""

from __future__ import annotations

import math

import torch

from radixrt.layers.linear import Linear

NEAR_TOP = 1 / 64
"""Logits within this part of the largest are computed again; bfloat16 rounds by at most 1/512."""

BLOCK = 64


class LMHead(Linear):
    """Logits over the vocabulary, not rounded to bfloat16 where it matters.

    bfloat16 logits of 25 lie 1/8 apart, so the best tokens often tie and greedy decoding takes the wrong one: SmolLM2
    answers a plain question in another language. CUDA adds up in float32 anyway and can leave it so. On a CPU products
    in float32 cost twice the memory traffic for each token; there, with a packed weight, the logits near each row's
    largest are made exact, which costs next to nothing.
    """

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        super().__init__(in_features, out_features, False, dtype)
        self._dtype = dtype
        self._rows: torch.Tensor | None = None
        self._wide = False

    def finalize(self) -> None:
        """As `Linear.finalize`, but the plain weight stays for single rows (where it is tied, it is there anyway)."""
        rows = self.weight
        super().finalize()
        self._rows = rows if self._packed is not None else None
        self._wide = rows is not None and rows.is_cuda and rows.dtype != torch.float32 and _multiplies_wide(rows)

    def forward(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[S, in_features] in the weight's dtype or in float32 -> float32 [S, out_features], in `out` where that can be
        done without a copy."""
        if self._wide:
            assert self.weight is not None
            if out is not None:
                product = torch.ops.aten.mm.dtype_out
                found: torch.Tensor = product(hidden.to(self._dtype), self.weight.t(), torch.float32, out=out)
                return found
            return torch.mm(hidden.to(self._dtype), self.weight.t(), out_dtype=torch.float32)
        logits = super().forward(hidden.to(self._dtype)).float()
        if self._rows is not None:
            refine_top(logits, hidden, self._rows)
        return logits


def _multiplies_wide(weight: torch.Tensor) -> bool:
    """Whether this torch leaves the product of such matrices in float32."""
    try:
        product = torch.mm(weight[:1], weight[:16].t(), out_dtype=torch.float32)
    except (TypeError, RuntimeError):  # torch before 2.8
        return False
    return product.dtype == torch.float32


def refine_top(logits: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor) -> None:
    """Replace in place the logits near each row's largest by products in float32.

    The candidates are looked for in the maxima of short blocks: comparing all logits takes ten times as long.

    Args:
        logits: float32 [S, V], contiguous.
        hidden: [S, n].
        weight: [V, n].
    """
    block = math.gcd(logits.shape[1], BLOCK)
    blocks = logits.view(logits.shape[0], -1, block)
    maxima = blocks.amax(dim=2)
    top = maxima.amax(dim=1, keepdim=True)
    threshold = top - NEAR_TOP * top.abs()
    rows, places = (maxima >= threshold).nonzero(as_tuple=True)
    found, offsets = (blocks[rows, places] >= threshold[rows]).nonzero(as_tuple=True)
    rows, ids = rows[found], places[found] * block + offsets
    logits[rows, ids] = (weight[ids].float() * hidden[rows].float()).sum(dim=1)
