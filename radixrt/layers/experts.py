"""`FusedExperts`: the gated MLPs of a mixture of experts, whose `WeightFormat` keeps the weights of all together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from radixrt.layers.formats.base import WeightFormat
from radixrt.layers.formats.checkpoint import ParameterSources, Projection
from radixrt.layers.linear import dropped, meta_parameter
from radixrt.layers.swiglu import BiasedSwiGLU, ClampedSwiGLU

GATE_UP, DOWN = "gate_up_proj", "down_proj"


class FusedExperts(nn.Module):
    """E MLPs, of which a token is computed by a few: down(silu(gate(x)) * up(x)), without biases, or with biases and
    a clamped gate.

    Where the format has no kernel for all experts, the experts are computed one by one.

    A parameter of a format is named after both weights: a plain weight is `gate_up_proj` and `down_proj`, and other
    tensors are called, for example, `gate_up_proj_scales`.

    Args:
        count: E.
        gate_up: of each expert, the rows of gate, then those of up, on this rank.
        down: of each expert.
        dtype: of plain weights.
        swiglu: of experts with biases; None for SiLU-gated ones without.

    Attributes:
        gate_up_proj: of a plain format, [E, 2 * intermediate_size, hidden_size]: rows of gate, then those of up.
        down_proj: of a plain format, [E, hidden_size, intermediate_size].
        gate_up_bias, down_bias: float32 [E, 2 * intermediate_size] and [E, hidden_size]; None without biases.
        sources: the tensors that fill the parameters of both weights, by the names of these.
        num_weights: numbers that both weights have on this rank.
    """

    def __init__(
        self,
        count: int,
        gate_up: Sequence[Projection],
        down: Sequence[Projection],
        dtype: torch.dtype,
        weight_format: WeightFormat,
        swiglu: ClampedSwiGLU | None = None,
    ) -> None:
        super().__init__()
        self.format = weight_format
        self.sources: ParameterSources = {}
        self._stored: dict[str, dict[str, str]] = {}
        rows = {}
        for weight, projections in ((GATE_UP, gate_up), (DOWN, down)):
            stored = weight_format.parameters(projections, dtype)
            self._stored[weight] = {kind: weight if kind == "weight" else f"{weight}_{kind}" for kind in stored}
            for kind, parameter in stored.items():
                name, (all_rows, *columns) = self._stored[weight][kind], parameter.shape
                setattr(self, name, meta_parameter(count, all_rows // count, *columns, dtype=parameter.dtype))
                self.sources[name] = parameter.sources
            rows[weight] = sum(each.height for each in projections) // count
        self.num_weights = count * (rows[GATE_UP] * gate_up[0].width + rows[DOWN] * down[0].width)
        self._swiglu = swiglu
        self.gate_up_bias = self.down_bias = None
        if swiglu is not None:
            self.gate_up_bias = meta_parameter(count, rows[GATE_UP], dtype=torch.float32)
            self.down_bias = meta_parameter(count, rows[DOWN], dtype=torch.float32)
        self._count = count
        self._gate_up: Any = None
        self._down: Any = None
        self._biased: BiasedSwiGLU | None = None

    def process_weights_after_loading(self) -> None:
        """Bring the loaded weights into the layout that the format multiplies by. Called once."""
        if self._swiglu is not None and self.gate_up_bias is not None and self.down_bias is not None:
            self._biased = BiasedSwiGLU(self._swiglu, self.gate_up_bias.detach(), self.down_bias.detach())
        tensors = {
            weight: {kind: self.get_parameter(name).detach() for kind, name in names.items()}
            for weight, names in self._stored.items()
        }
        self._gate_up, self._down = self.format.prepare_experts(
            tensors[GATE_UP], tensors[DOWN], biased=self._biased is not None
        )
        for weight, made in ((GATE_UP, self._gate_up), (DOWN, self._down)):
            for kind in dropped(tensors[weight], made):
                setattr(self, self._stored[weight][kind], None)

    @property
    def is_compiled(self) -> bool:
        """See `WeightFormat.is_compiled`; of the loaded weights."""
        return self.format.is_compiled(self._gate_up) and self.format.is_compiled(self._down)

    @property
    def kernels(self) -> str:
        """See `WeightFormat.kernels`; of the loaded weights."""
        return self.format.kernels(self._gate_up)

    def forward(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of the outputs of each token's experts.

        Args:
            x: [T, hidden_size].
            experts: integers [T, k], different ones for a token.
            weights: float32 [T, k].

        Returns:
            [T, hidden_size] in the dtype of x; added up in float32, in an order that depends on the token alone.
        """
        out = self.format.experts(self._gate_up, self._down, x, experts, weights, self._biased)
        return self._run_one_by_one(x, experts, weights) if out is None else out

    def _run_one_by_one(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """As `forward`, in the order of the experts' indices."""
        chosen = experts.flatten()
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=self._count).tolist()
        tokens, scales = order // experts.shape[1], weights.flatten()[order, None]
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        start = 0
        for expert, count in enumerate(counts):
            if not count:
                continue
            rows = tokens[start : start + count]
            out = self._run_expert(expert, x[rows])
            total.index_add_(0, rows, out.float() * scales[start : start + count])
            start += count
        return total.to(x.dtype)

    def _run_expert(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """[n, hidden_size] -> [n, hidden_size], with the rounding of linear layers in the same format."""
        gate_up, down = self.format.expert(self._gate_up, index), self.format.expert(self._down, index)
        biased = self._biased
        if biased is None:
            return self.format.linear(down, self.format.silu_and_mul(gate_up, x, None), None)
        inner = biased.swiglu.apply(self.format.linear(gate_up, x, None) + biased.gate_up[index])
        return self.format.linear(down, inner, None) + biased.down[index]
