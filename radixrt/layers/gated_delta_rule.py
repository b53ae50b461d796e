"""The gated delta rule in torch (Yang, Kautz and Hatamizadeh, arXiv 2412.06464), by tokens and by chunks.

With a state S [v_dim, k_dim] of a value head, each token computes, in float32:

    S = exp(g) * S;  S = S + beta * (v - S k) k^T;  out = S q

where k and q have length 1, and q is divided by the square root of k_dim. A chunk of tokens does so as matrix products
(Yang et al., arXiv 2406.06484): with L the strictly lower triangle of beta * k k^T, weighted by the decay between two
tokens, the values that are added are (I + L)^-1 (beta * v - beta * exp(cumulative g) * k S^T).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from radixrt.forward_batch.state_rows import StateRows
from radixrt.messages.wire import Int32Array

CHUNK = 64
"""Tokens of a chunk. The work within chunks grows with it, the number of sequential products shrinks."""
NORM_EPS = 1e-6


def gated_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, pool: torch.Tensor,
    rows: StateRows,
) -> torch.Tensor:  # fmt: skip
    """Update each row's states token by token, and read them.

    Args:
        q, k: [T, k_heads, k_dim], not normalized; any stride between tokens, like v.
        v: [T, v_heads, v_dim].
        g: float32 [T, v_heads], logarithm of the decay, at most 0.
        beta: float32 [T, v_heads], between 0 and 1.
        pool: float32 [slots, v_heads, v_dim, k_dim].

    Returns:
        [T, v_heads, v_dim], contiguous, in v's dtype.
    """
    q, k = _normalized(q) * q.shape[-1] ** -0.5, _normalized(k)
    if rows.lens is None:
        return _single_tokens(q, k, v.float(), g, beta, pool, rows.src, rows.dst).to(v.dtype)
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    # Rows of one token would fill a chunk with padding.
    for single in (True, False):
        chosen = np.flatnonzero((rows.lens == 1) == single)
        if not len(chosen):
            continue
        which = torch.from_numpy(chosen).to(v.device)
        src, dst = rows.src[which], rows.dst[which]
        tokens = _tokens_of(rows.lens, chosen, v.device)
        parts = q[tokens], k[tokens], v[tokens].float(), g[tokens], beta[tokens]
        if single:
            out[tokens] = _single_tokens(*parts, pool, src, dst).to(v.dtype)
        else:
            out[tokens] = _chunks(*parts, pool, src, dst, rows.lens[chosen]).to(v.dtype)
    return out


def _normalized(x: torch.Tensor) -> torch.Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPS)


def _tokens_of(lens: Int32Array, rows: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return int64, the packed tokens of some rows."""
    starts, counts = (np.cumsum(lens) - lens)[rows], lens[rows]
    before = np.cumsum(counts) - counts
    return torch.from_numpy(np.arange(counts.sum()) + np.repeat(starts - before, counts)).to(device)


def _single_tokens(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, pool: torch.Tensor,
    src: torch.Tensor, dst: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """As `gated_delta_rule` with rows of one token; q and k are normalized, and all numbers are float32."""
    share = v.shape[1] // k.shape[1]
    q, k = (x.repeat_interleave(share, dim=1)[..., None] for x in (q, k))
    state = pool[src] * g.exp()[..., None, None]
    added = (v[..., None] - state @ k) * beta[..., None, None]
    state = torch.addcmul(state, added, k.transpose(-1, -2))
    pool.index_copy_(0, dst, state)
    return (state @ q)[..., 0]


@dataclass(frozen=True)
class _Chunks:
    """Quantities of N chunks that do not depend on earlier ones, float32.

    Attributes:
        values, read: [N, v_heads, CHUNK, v_dim], [N, v_heads, CHUNK, k_dim]: the values that are added to the state
            are values - read S^T.
        queries, keys: [N, v_heads, CHUNK, k_dim], decayed since the chunk's beginning, and until its end.
        attention: [N, v_heads, CHUNK, CHUNK], of each query to the values added in the chunk.
        decay: [N, v_heads, 1, 1], of the whole chunk.
    """

    values: torch.Tensor
    read: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    attention: torch.Tensor
    decay: torch.Tensor


def _chunks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, pool: torch.Tensor,
    src: torch.Tensor, dst: torch.Tensor, lens: Int32Array,
) -> torch.Tensor:  # fmt: skip
    """As `_single_tokens` for rows of `lens` tokens, int32 [B]. The first chunks of all rows are computed together,
    then the second ones, and so on."""
    counts = -(-lens // CHUNK)
    first = np.cumsum(counts) - counts
    places = np.arange(len(v)) + np.repeat(first * CHUNK - (np.cumsum(lens) - lens), lens)
    at = torch.from_numpy(places).to(v.device)
    size = int(counts.sum()) * CHUNK
    # Padding tokens have beta 0 and a decay of 1, so they leave a state as it is.
    padded = (x.new_zeros(size, *x.shape[1:]).index_copy_(0, at, x) for x in (q, k, v, g, beta))
    chunks = _independent(*(x.view(-1, CHUNK, *x.shape[1:]).transpose(1, 2) for x in padded))
    out = torch.empty_like(chunks.values)
    state = pool[src]
    for step in range(int(counts.max())):
        rows = np.flatnonzero(counts > step)
        which = torch.from_numpy(first[rows] + step).to(v.device)
        among = torch.from_numpy(rows).to(v.device)
        before = state[among]
        added = chunks.values[which] - chunks.read[which] @ before.transpose(-1, -2)
        out[which] = chunks.queries[which] @ before.transpose(-1, -2) + chunks.attention[which] @ added
        state[among] = before * chunks.decay[which] + added.transpose(-1, -2) @ chunks.keys[which]
    pool.index_copy_(0, dst, state)
    return out.transpose(1, 2).flatten(0, 1)[at]


def _independent(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> _Chunks:
    """Compute all that does not depend on the state before a chunk.

    Args:
        q, k: [N, k_heads, CHUNK, k_dim], v: [N, v_heads, CHUNK, v_dim]; g and beta: [N, v_heads, CHUNK].
    """
    share = v.shape[1] // k.shape[1]
    since = g.cumsum(-1)
    between = (since[..., :, None] - since[..., None, :]).masked_fill_(_above(since.device), -torch.inf).exp_()
    keys = k.repeat_interleave(share, dim=1)
    products = (k @ k.transpose(-1, -2)).repeat_interleave(share, dim=1)
    triangle = products.mul_(between).mul_(beta[..., None])
    right = torch.cat((v, keys * since.exp()[..., None]), dim=-1) * beta[..., None]
    solved = torch.linalg.solve_triangular(triangle, right, upper=False, unitriangular=True)
    values, read = torch.split(solved, [v.shape[-1], k.shape[-1]], dim=-1)
    return _Chunks(
        values=values,
        read=read,
        queries=q.repeat_interleave(share, dim=1) * since.exp()[..., None],
        keys=keys * (since[..., -1:] - since).exp()[..., None],
        attention=(q @ k.transpose(-1, -2)).repeat_interleave(share, dim=1).mul_(between),
        decay=since[..., -1, None, None].exp(),
    )


def _above(device: torch.device) -> torch.Tensor:
    """Return bool [CHUNK, CHUNK], the pairs of a token and a later one."""
    return torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=device).triu_(1)
