"""`ClassificationHead`: pooled hidden states to logits over the labels of a sequence classification model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from radixrt.layers.linear import meta_parameter


class ClassificationHead(nn.Module):
    """A linear layer without a bias, in float32 on every rank: it is small, and its output is compared.

    It commutes with the sums of hidden states that a step pools, because it has no bias.
    """

    def __init__(self, in_features: int, labels: int) -> None:
        super().__init__()
        self.weight = meta_parameter(labels, in_features, dtype=torch.float32)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """float32 [Q, in_features] -> float32 [Q, labels]."""
        return F.linear(pooled, self.weight)
