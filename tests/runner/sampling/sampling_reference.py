"""Reference implementation of sampling, one row at a time in float64 with sorts and loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from radixrt.messages.runner import SamplingRow
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import DrawParams

Vector = npt.NDArray[np.float64]


@dataclass
class Params:
    """One request's parameters and tokens so far."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0
    logit_bias: dict[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop_ids: Sequence[int] = ()
    prompt: Sequence[int] = (0,)
    output: list[int] = field(default_factory=list)
    logprobs: int = -1

    @property
    def seq_len(self) -> int:
        return len(self.prompt) + len(self.output)

    def row(self, idx: int) -> SamplingRow:
        """The message that a scheduler would send now."""
        return SamplingRow(
            req_pool_idx=idx,
            draw=msgspec.convert(self, DrawParams, from_attributes=True),
            seed=self.seed,
            logit_bias=self.logit_bias,
            min_seq_len=len(self.prompt) + self.min_tokens if self.min_tokens else 0,
            stop_ids=pack_i32(list(self.stop_ids)) if self.min_tokens else b"",
            prompt_ids=pack_i32(list(self.prompt)),
            output_ids=pack_i32(self.output),
            logprobs=self.logprobs,
        )


def edited_logits(logits: npt.NDArray[np.float32], p: Params, allowed: npt.NDArray[np.bool_] | None = None) -> Vector:
    """Bias, penalties, min_tokens and the grammar's mask."""
    x = logits.astype(np.float64)
    for token, bias in p.logit_bias.items():
        x[token] += bias
    for token in set(p.prompt) | set(p.output):
        x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
    for token in set(p.output):
        x[token] -= p.frequency_penalty * p.output.count(token) + p.presence_penalty
    if len(p.output) < p.min_tokens:
        for token in p.stop_ids:
            x[token] = -np.inf
    if allowed is not None:
        x[~allowed] = -np.inf
    return x


def probabilities(x: Vector, p: Params) -> Vector:
    """The distribution that a row with temperature > 0 is drawn from."""
    weights = np.exp((x - x.max()) / p.temperature)
    order = sorted(range(len(x)), key=lambda t: (-x[t], t))
    kept = order[: p.top_k] if p.top_k > 0 else order
    if p.top_p < 1:
        mass, target, nucleus = 0.0, p.top_p * weights[kept].sum(), []
        for token in kept:
            nucleus.append(token)
            mass += weights[token]
            if mass >= target:
                break
        kept = nucleus
    kept = [t for t in kept if weights[t] >= p.min_p * weights.max()]
    result = np.zeros(len(x))
    result[kept] = weights[kept]
    return np.asarray(result / result.sum())


def inverse_cdf(probs: Vector, u: float) -> int:
    """The first token, by id, at which the running sum exceeds u."""
    return min(int(np.searchsorted(np.cumsum(probs), u, side="right")), int(np.flatnonzero(probs)[-1]))


def splitmix_uniform(seed: int, position: int) -> float:
    """The documented number of (seed, position), in Python's own integers."""
    word = 2**64 - 1
    golden = 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        return z ^ (z >> 31)

    start = mix((seed + golden) & word)
    return (mix((start + golden * (position + 1)) & word) >> 11) / 2**53


def is_knife_edge(x: Vector, p: Params, u: float, margin: float = 1e-5) -> bool:
    """Return whether float32 may decide differently: a mass near top_p, a weight near min_p, or u near a boundary.

    Where every weight is exactly 0 or 1 there is no such excuse.
    """
    weights = np.exp((x - x.max()) / p.temperature)
    if set(weights.tolist()) <= {0.0, 1.0}:
        return False
    ranked = np.sort(weights)[::-1][: p.top_k or None]
    masses = np.cumsum(ranked) / ranked.sum()
    near_p = p.top_p < 1 and bool(np.any(np.abs(masses - p.top_p) < margin))
    near_min = p.min_p > 0 and bool(np.any((np.abs(weights - p.min_p) < margin) & (weights != 1)))
    return near_p or near_min or bool(np.any(np.abs(np.cumsum(probabilities(x, p)) - u) < margin))
