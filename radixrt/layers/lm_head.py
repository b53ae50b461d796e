"""The output head of a language model: hidden states to float32 logits."""

from __future__ import annotations

import torch

from radixrt.layers.formats.base import WeightFormat
from radixrt.layers.formats.checkpoint import Projection
from radixrt.layers.linear import Linear


class LMHead(Linear):
    """Logits over the vocabulary, without bfloat16 rounding where it matters.

    bfloat16 logits of 25 lie 1/8 apart, so the best tokens often tie and greedy decoding takes the wrong one: SmolLM2
    answers a plain question in another language. CUDA accumulates in float32 anyway and can return float32. On a CPU a
    float32 weight costs twice the memory traffic for each token; there, with a packed or quantized weight, whose
    products are rounded, the logits near each row's largest are recomputed in float32 from the plain weight, which
    costs next to nothing.
    """

    def __init__(self, projection: Projection, dtype: torch.dtype, weight_format: WeightFormat) -> None:
        super().__init__((projection,), False, dtype, weight_format)
        self._dtype = dtype
        self._rows: torch.Tensor | None = None
        self._float32_output = False

    def process_weights_after_loading(self) -> None:
        """Prepare the weight as `Linear` does, and keep the plain one for single rows (where it is tied, it exists
        anyway)."""
        rows = self.weight if self.format.loads_plain else None
        super().process_weights_after_loading()
        self._rows = rows if self.weight is None else None
        self._float32_output = (
            rows is not None and rows.is_cuda and rows.dtype != torch.float32 and _has_float32_output(rows)
        )

    def forward(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Compute the logits.

        Args:
            hidden: [S, in_features], in the weight's dtype or in float32.
            out: float32 [S, out_features], returned filled where that needs no copy.

        Returns:
            float32 [S, out_features].
        """
        if self._float32_output:
            assert self.weight is not None
            if out is not None:
                multiply = torch.ops.aten.mm.dtype_out
                found: torch.Tensor = multiply(hidden.to(self._dtype), self.weight.t(), torch.float32, out=out)
                return found
            return torch.mm(hidden.to(self._dtype), self.weight.t(), out_dtype=torch.float32)
        logits = super().forward(hidden).float()
        if self._rows is not None:
            self.format.refine_top(logits, hidden, self._rows)
        return logits


def _has_float32_output(weight: torch.Tensor) -> bool:
    """Return True if this torch multiplies matrices of the weight's dtype into float32."""
    try:
        logits = torch.mm(weight[:1], weight[:16].t(), out_dtype=torch.float32)
    except (TypeError, RuntimeError):  # torch before 2.8
        return False
    return logits.dtype == torch.float32
