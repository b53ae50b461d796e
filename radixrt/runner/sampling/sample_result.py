"""What `Sampler` takes beside logits, and what it gives."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixrt.constrained.grammar import bitmask_words
from radixrt.executor.mask_buffer import MaskReader
from radixrt.messages.parts import LogprobColumns
from radixrt.messages.runner import GrammarMask
from radixrt.messages.wire import Int32Array, unpack_i32
from radixrt.runner.sampling.logprobs import LogprobTensors


@dataclass(frozen=True)
class Mask:
    """What a GrammarMask says.

    Attributes:
        rows: int32 [m], sampling rows.
        index: int32 [m], which of the masks each of them has.
        bits: uint32 [u, ceil(vocab / 32)], the masks.
    """

    rows: Int32Array
    index: Int32Array
    bits: npt.NDArray[np.uint32]


def unpack_mask(message: GrammarMask | None, reader: MaskReader | None, vocab_size: int) -> Mask | None:
    """What a message says; None where every row may sample anything.

    Args:
        reader: of the masks that are not in the message itself; None if all are.
    """
    if message is None or not message.rows:
        return None
    rows, index = unpack_i32(message.rows), unpack_i32(message.index)
    if message.bits or reader is None:
        bits = np.frombuffer(message.bits, np.uint32).reshape(message.num_masks, -1)
    else:
        bits = reader.read(message.offset, message.num_masks, bitmask_words(vocab_size))
    return Mask(rows, index, bits)


@dataclass(frozen=True)
class SampleResult:
    """What a step sampled, S rows, on the logits' device.

    Attributes:
        token_ids: int64 [S]; 0 for a row that failed.
        best: float32 [S], each row's largest logit once biased, penalised and masked; not finite where a row failed.
        gathered: log-probabilities of the rows that asked, in order.
        num_alternatives: for each of those rows.
    """

    token_ids: torch.Tensor
    best: torch.Tensor
    gathered: LogprobTensors | None = None
    num_alternatives: tuple[int, ...] = ()

    @property
    def logprobs(self) -> list[LogprobColumns]:
        """One entry of one position for each row that asked, in order."""
        return [] if self.gathered is None else self.gathered.rows(self.num_alternatives)

    @property
    def row_errors(self) -> list[tuple[int, str]]:
        """(row, why) of the rows that have no token."""
        best = self.best.cpu().numpy()
        return [(i, _failure(float(best[i]))) for i in np.flatnonzero(~np.isfinite(best)).tolist()]

    def to_host(self) -> SampleResult:
        """A copy in host memory: underway, if from CUDA, and there once the stream has passed this point.

        It is pinned then, from torch's own cache of pinned blocks, as in `upload_together`.
        """
        return SampleResult(
            self.token_ids.to("cpu", non_blocking=True),
            self.best.to("cpu", non_blocking=True),
            None if self.gathered is None else self.gathered.to_host(),
            self.num_alternatives,
        )


def _failure(best: float) -> str:
    if math.isnan(best):
        return "the model's logits hold NaN"
    if best > 0:
        return "the model's logits hold infinity"
    return "no token may be sampled: the grammar, min_tokens or the model's logits rule out all of them"
