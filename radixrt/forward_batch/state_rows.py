"""`StateRows`: the slots of recurrent states that the rows of a step read and write."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radixrt.messages.wire import Int32Array


@dataclass(frozen=True)
class StateRows:
    """B rows of T packed tokens, as recurrent layers see them.

    Row i holds the tokens [starts[i], starts[i + 1]), at least one. It begins with the state in slot src[i], and leaves
    the state after its last token in slot dst[i]; the two may be equal. No two rows write the same slot, and no row
    reads a slot that another one writes, except for `SCRATCH_STATE`. Several rows may read the same slot.

    Attributes:
        src, dst: int64 [B], on the runner's device.
        starts: int64 [B + 1], on the runner's device.
        lens: int32 [B], numbers of tokens, on the host; None if each row has one token, as in a DECODE step. Only such
            rows are captured by a CUDA graph.
    """

    src: torch.Tensor
    dst: torch.Tensor
    starts: torch.Tensor
    lens: Int32Array | None
