"""`RecurrenceOps`: the operations of recurrent layers on packed tokens and pools of states; a reference in torch.

The tokens of a step's rows stand one behind the other; `StateRows` says which tokens are whose, and which slots of the
pools each row reads and writes. A kernel for a device overrides the two operations of whole layers, or the parts that
they are composed of. All of them read a row's state before they write any; the two operations of whole layers compute
the rows of a chain in order, and their parts get rows without chains.

    short_conv        [B | C | x] -> C * conv(B * x)                                             LFM2
    gated_delta_net   [q | k | v | z | b | a] -> norm(delta rule(silu(conv(q, k, v)))) * silu(z)   Qwen3-Next, Qwen3.5
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from radixrt.forward_batch.state_rows import StateRows
from radixrt.layers.gated_delta_rule import gated_delta_rule


@dataclass(frozen=True)
class GatedDeltaShape:
    """Heads of a gated delta net on one rank. Key head i serves the v_heads / k_heads neighbouring value heads from
    i * v_heads / k_heads on."""

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int

    @property
    def channels(self) -> int:
        """Channels of the convolution: those of q, then of k, then of v."""
        return 2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim

    @property
    def in_features(self) -> int:
        """Columns of the input of `RecurrenceOps.gated_delta_net`."""
        return self.channels + self.v_heads * (self.v_dim + 2)


@dataclass(frozen=True)
class GatedDeltaWeights:
    """Weights of a gated delta net other than its projections.

    Attributes:
        conv: [channels, taps], in the dtype of weights.
        a_log, dt_bias: float32 [v_heads].
        norm: float32 [v_dim], and the eps of that norm.
    """

    conv: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    norm: torch.Tensor
    eps: float


class RecurrenceOps:
    """The reference in torch, on any device. With `rows.lens` None it can be captured by a CUDA graph."""

    def verify(self, shape: GatedDeltaShape, taps: int, dtype: torch.dtype, device: torch.device) -> None:
        """Compare the kernels of gated delta nets with the reference, and use those that are right alone."""

    def short_conv(self, bcx: torch.Tensor, weight: torch.Tensor, pool: torch.Tensor, rows: StateRows) -> torch.Tensor:
        """Mix the tokens of each row by LFM2's gated short convolution.

        Args:
            bcx: [T, 3 * channels]: the gate before the convolution, the gate behind it, and its input.
            weight: [channels, taps], in the dtype of weights.
            pool: as for `causal_conv`; holds products of the first gate and the input.

        Returns:
            [T, channels], in bcx's dtype.
        """
        if rows.chains is not None:
            out = bcx.new_empty(len(bcx), bcx.shape[1] // 3)
            for tokens, wave in rows.divided():
                out[tokens] = self.short_conv(bcx[tokens], weight, pool, wave)
            return out
        before, behind, x = bcx.chunk(3, dim=-1)
        return behind * self.causal_conv(before * x, weight, pool, rows, silu=False)

    def gated_delta_net(
        self, projected: torch.Tensor, shape: GatedDeltaShape, weights: GatedDeltaWeights, conv_pool: torch.Tensor,
        state_pool: torch.Tensor, rows: StateRows,
    ) -> torch.Tensor:  # fmt: skip
        """Mix the tokens of each row by a gated delta net (Yang, Kautz and Hatamizadeh, arXiv 2412.06464).

        Args:
            projected: [T, shape.in_features]: q and k of the key heads, v and z of the value heads, then for each
                value head b and a, each of the six in one block; any stride between tokens.
            conv_pool, state_pool: as `pool` of `causal_conv` and of `gated_delta_rule`.

        Returns:
            [T, v_heads * v_dim], contiguous, in projected's dtype.
        """
        tokens, value_size = projected.shape[0], shape.v_heads * shape.v_dim
        if rows.chains is not None:
            mixed = projected.new_empty(tokens, value_size)
            for at, wave in rows.divided():
                part = projected[at]
                mixed[at] = self.gated_delta_net(part, shape, weights, conv_pool, state_pool, wave)
            return mixed
        qkv, z, b, a = torch.split(projected, [shape.channels, value_size, shape.v_heads, shape.v_heads], dim=-1)
        qkv = self.causal_conv(qkv, weights.conv, conv_pool, rows, silu=True)
        key_size = shape.k_heads * shape.k_dim
        q, k, v = torch.split(qkv, [key_size, key_size, value_size], dim=-1)
        out = self.gated_delta_rule(
            q.view(tokens, shape.k_heads, shape.k_dim), k.view(tokens, shape.k_heads, shape.k_dim),
            v.view(tokens, shape.v_heads, shape.v_dim), log_decay(a, weights), b.float().sigmoid(), state_pool, rows,
        )  # fmt: skip
        normed = F.rms_norm(out.float(), (shape.v_dim,), weights.norm, weights.eps)
        return (normed * F.silu(z.float()).view_as(normed)).to(projected.dtype).flatten(1)

    def causal_conv(
        self, x: torch.Tensor, weight: torch.Tensor, pool: torch.Tensor, rows: StateRows, *, silu: bool
    ) -> torch.Tensor:
        """Convolve each channel with the tokens of its row, and those before the row that the pool holds.

        Args:
            x: [T, channels]; any stride between tokens.
            weight: [channels, taps]; the last tap multiplies the token itself.
            pool: [slots, channels, taps - 1] in x's dtype, the last inputs of each sequence, oldest first.
            silu: apply SiLU to the result.

        Returns:
            [T, channels], contiguous, computed in float32 and rounded to x's dtype.
        """
        earlier = weight.shape[1] - 1
        lens = None if rows.lens is None else torch.tensor(rows.lens, dtype=torch.int64, device=x.device)
        first = _first_inputs(rows, lens, earlier, x)
        inputs = x.new_empty(x.shape[0] + earlier * len(rows.src), x.shape[1])
        offsets = torch.arange(earlier, device=x.device)
        # `inputs` holds the state of each row before its tokens, so a token's first input stands at its row's place
        # plus its number in the row.
        heads = rows.starts[:-1] + earlier * torch.arange(len(rows.src), device=x.device)
        inputs[(heads[:, None] + offsets).flatten()] = pool[rows.src].transpose(1, 2).flatten(0, 1)
        inputs[first + earlier] = x
        out = inputs[first].float() * weight[:, 0].float()
        for tap in range(1, earlier + 1):
            out.addcmul_(inputs[first + tap].float(), weight[:, tap].float())
        ends = heads + (rows.starts[1:] - rows.starts[:-1])
        last = inputs[(ends[:, None] + offsets).flatten()].view(len(rows.src), earlier, -1)
        pool.index_copy_(0, rows.dst, last.transpose(1, 2))
        return (F.silu(out) if silu else out).to(x.dtype)

    def gated_delta_rule(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
        pool: torch.Tensor, rows: StateRows,
    ) -> torch.Tensor:  # fmt: skip
        """Update each row's states token by token, and read them; see `gated_delta_rule`."""
        return gated_delta_rule(q, k, v, g, beta, pool, rows)


def log_decay(a: torch.Tensor, weights: GatedDeltaWeights) -> torch.Tensor:
    """Return the logarithm of each head's decay, float32 [T, v_heads], at most 0."""
    return -weights.a_log.exp() * F.softplus(a.float() + weights.dt_bias)


def _first_inputs(rows: StateRows, lens: torch.Tensor | None, earlier: int, x: torch.Tensor) -> torch.Tensor:
    """Return int64 [T], the index of the oldest input of each token, among the rows' states and tokens."""
    tokens = torch.arange(x.shape[0], device=x.device)
    if lens is None:
        return tokens * (1 + earlier)
    row = torch.repeat_interleave(torch.arange(len(lens), device=x.device), lens, output_size=x.shape[0])
    return tokens + earlier * row
