"""Prompts in parts, from the forms that callers have to the form of the wire."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radixrt.errors import RequestError, shown
from radixrt.messages.parts import PromptPart, TemplateText
from radixrt.messages.wire import Int32Array

Part = str | Sequence[int] | TemplateText
"""A user's text, token ids, or a text of the chat template."""


def pack_parts(parts: Sequence[Part], param: str = "input_parts") -> list[PromptPart]:
    """The parts of a `GenerateReq`.

    Raises:
        RequestError: a part is none of the three; names it with its index.
    """
    packed: list[PromptPart] = []
    for i, part in enumerate(parts):
        packed.append(part if isinstance(part, (str, TemplateText)) else token_ids(part, f"{param}[{i}]").tolist())
    return packed


def token_ids(ids: object, param: str) -> Int32Array:
    """A flat sequence of integers as int32[n]; raises RequestError naming `param`."""
    try:
        array = np.asarray(ids)
    except (TypeError, ValueError, OverflowError):
        array = np.empty((), object)
    whole = array.ndim == 1 and (array.dtype.kind in "iu" or not len(array))
    if not whole or (len(array) and not -(2**31) <= array.min() <= array.max() < 2**31):
        raise RequestError(
            f"{param} must be a text or a list of token ids, which are integers; not {shown(ids)}", param=param
        )
    return array.astype(np.int32)
