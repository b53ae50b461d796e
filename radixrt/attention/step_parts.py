"""The parts of a step that go through different kernels, planned: see `extend_parts` for how a step is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from radixrt.attention.cascade_plan import Tile
from radixrt.attention.decode_runner import DecodeRows
from radixrt.attention.prompt_cascade import SharedPrompts
from radixrt.messages.wire import Int32Array

Window = int | None
"""A kind of layer, by its sliding window."""


@dataclass(frozen=True)
class FreshPart:
    """Tokens [first, end) of a step, of prompts that begin in it: they read the keys and values that come with them.

    Attributes:
        wrappers: FlashInfer's, planned, by window.
    """

    first: int
    end: int
    wrappers: dict[Window, Any]


@dataclass(frozen=True)
class PagedPart:
    """The first tokens of a step, of rows that read the pool by pages: with several queries, or with one where these
    are too few for a part.

    Attributes:
        own: (first token, the one behind the last, FlashInfer's wrappers by window, planned) for each kernel that they
            go through; over what each row has for itself.
        shared: what they share; None if nothing.
    """

    own: list[tuple[int, int, dict[Window, Any]]]
    shared: SharedPrompts | None


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


Part = PagedPart | FreshPart | DecodePart


def within(window: Window, starts: Int32Array, lens: Int32Array) -> Int32Array:
    """The positions (int32 [B]) at which the keys of each row's last query begin."""
    return starts if window is None else np.maximum(starts, lens - window)
