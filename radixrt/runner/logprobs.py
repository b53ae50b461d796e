"""Log-probabilities of tokens and of their best alternatives, in the columns that messages carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixrt.messages.parts import LogprobColumns
from radixrt.messages.wire import pack_f32, pack_i32

FLOOR = -9999.0
"""Log-probability reported for a probability of 0 or NaN, because JSON has no infinities."""

TIE_SLACK = 8
"""Number of alternatives examined beyond the requested number, so that ties are resolved by token id."""


@dataclass(frozen=True)
class LogprobTensors:
    """Log-probabilities of n tokens, on the device: float32 [n], and the alternatives, int64 and float32 [n, k]."""

    tokens: torch.Tensor
    top_ids: torch.Tensor
    top: torch.Tensor

    def to_host(self) -> LogprobTensors:
        """Return a copy in host memory; from CUDA the copy is asynchronous, in stream order."""
        tensors = (t.to("cpu", non_blocking=True) for t in (self.tokens, self.top_ids, self.top))
        return LogprobTensors(*tensors)

    def rows(self, ks: Sequence[int]) -> list[LogprobColumns]:
        """Return one message of one position for each of the n tokens, the i-th with its first ks[i] alternatives."""
        tokens, ids, top = _floored(self.tokens), self.top_ids.cpu().numpy(), _floored(self.top)
        return [
            LogprobColumns(pack_f32(tokens[i]), pack_i32(ids[i, :k]), pack_f32(top[i, :k]), k) for i, k in enumerate(ks)
        ]

    def columns(self, ks: Sequence[tuple[int, int]]) -> list[LogprobColumns]:
        """Return a message for each (number of tokens, number of their first alternatives), in order."""
        tokens, ids, top = _floored(self.tokens), self.top_ids.cpu().numpy(), _floored(self.top)
        found, first = [], 0
        for count, k in ks:
            part = slice(first, first + count)
            shown = min(k, ids.shape[1])
            found.append(
                LogprobColumns(pack_f32(tokens[part]), pack_i32(ids[part, :k]), pack_f32(top[part, :k]), shown)
            )
            first += count
        return found


def gather_logprobs(logprobs: torch.Tensor, token_ids: torch.Tensor, k: int) -> LogprobTensors:
    """Pick tokens and the k best alternatives out of normalized log-probabilities.

    Args:
        logprobs: float32 [n, vocab].
        token_ids: int64 [n].
        k: number of alternatives, best first and equal ones by id; at most the vocabulary.
    """
    tokens = logprobs.gather(1, token_ids[:, None])[:, 0]
    k = min(k, logprobs.shape[1])
    if k == 0:
        none = logprobs[:, :0]
        return LogprobTensors(tokens, none.long(), none)
    ids = logprobs.topk(min(k + TIE_SLACK, logprobs.shape[1])).indices.sort(-1).values
    top, order = logprobs.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return LogprobTensors(tokens, ids.gather(1, order)[:, :k], top[:, :k])


def _floored(values: torch.Tensor) -> npt.NDArray[np.float32]:
    """Return the values on the host, with NaN and everything below FLOOR replaced by FLOOR."""
    return np.asarray(values.nan_to_num(FLOOR, 0.0, FLOOR).clamp_(min=FLOOR).cpu().numpy())
