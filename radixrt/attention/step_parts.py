"""The parts of a step that go through different kernels, planned: see `extend_parts` for how a step is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from radixrt.attention.cascade_plan import Tile
from radixrt.attention.decode_runner import DecodeRows
from radixrt.messages import Int32Array

Window = int | None
"""A kind of layer, by its sliding window."""


@dataclass(frozen=True)
class PromptPart:
    """Tokens [first, end) of a step, of rows with several queries, or with one where these are too few for a part.

    Attributes:
        wrappers: FlashInfer's, planned, by window.
        fresh: they read the keys and values that come with them, not the pool.
    """

    first: int
    end: int
    wrappers: dict[Window, Any]
    fresh: bool = False


@dataclass(frozen=True)
class DecodePart:
    """Tokens [first, end) of a step, each the one query of its row.

    Attributes:
        rows: by window.
        tile: of what they share; None if nothing.
    """

    first: int
    end: int
    rows: dict[Window, DecodeRows]
    tile: Tile | None = None


def within(window: Window, starts: Int32Array, lens: Int32Array) -> Int32Array:
    """The positions (int32 [B]) at which the keys of each row's last query begin."""
    return starts if window is None else np.maximum(starts, lens - window)
