"""Prompts of calls as inputs of rows, and the envelope of a call's requests."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from radixrt.errors import RequestError, shown
from radixrt.messages.client import Input, PartsInput, TextInput, TokenInput
from radixrt.messages.parts import ProgramHint, PromptPart, TemplateText
from radixrt.messages.request import Envelope
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.tasks.messages import Messages, is_messages

Prompt = str | Sequence[int]
"""A text or token ids."""

Part = str | Sequence[int] | TemplateText
"""Part of a prompt: a user's text, token ids, or a text that the chat template wrote."""

ScoredPrompt = Prompt | Sequence[Part]
"""A text, token ids, or parts (see `PartsInput`)."""

NO_DEADLINE_S = 1e9
"""Timeout of offline requests: their caller waits for them; `request_timeout_s` is for servers."""


def new_rid() -> str:
    """Return a unique request id."""
    return uuid.uuid4().hex


def new_envelope(
    *,
    priority: int = 0,
    cache_salt: str = "",
    timeout_s: float = NO_DEADLINE_S,
    program: ProgramHint | None = None,
) -> Envelope:
    """Return the envelope of a new request of an offline call."""
    return Envelope(new_rid(), priority, cache_salt, timeout_s, program)


def take_envelope(options: dict[str, Any]) -> Envelope:
    """Remove the options of a call that concern its envelope, and return the envelope."""
    names = ("priority", "cache_salt", "timeout_s", "program")
    return new_envelope(**{name: options.pop(name) for name in names if name in options})


def split(prompts: Prompt | Messages | Sequence[Prompt | Messages]) -> tuple[list[Prompt | Messages], bool]:
    """Return the prompts as a list, and whether the argument was a single prompt: a text, a flat list of token ids, or
    messages.

    Raises:
        RequestError: the argument is neither a prompt nor a list of prompts.
    """
    if isinstance(prompts, str):
        return [prompts], True
    if not hasattr(prompts, "__iter__") or isinstance(prompts, (bytes, dict)):
        raise RequestError(
            f"prompts must be texts, lists of token ids or messages, not {shown(prompts)}", param="prompt"
        )
    given: list[Prompt | Messages] = list(prompts)  # type: ignore[arg-type]
    if is_messages(given) or (given and not any(hasattr(p, "__len__") for p in given)):
        return [given], True  # type: ignore[list-item]
    return given, False


def input_of(prompt: ScoredPrompt) -> Input:
    """Return the input for a prompt of any form.

    Raises:
        RequestError: the prompt has a wrong type.
    """
    if isinstance(prompt, str):
        return TextInput(prompt)
    if hasattr(prompt, "__iter__") and any(hasattr(part, "__len__") or hasattr(part, "template") for part in prompt):
        return PartsInput(pack_parts(prompt))  # type: ignore[arg-type]  # told from token ids by its elements
    return TokenInput(pack_i32(token_ids(prompt, "prompt")))


def inputs_of(prompts: Sequence[Prompt | Messages], name: str) -> list[Input]:
    """Return the inputs for texts and token ids of the list `name`; raises RequestError naming the prompt."""
    return [
        TextInput(prompt, f"{name}[{i}]")
        if isinstance(prompt, str)
        else TokenInput(pack_i32(token_ids(prompt, f"{name}[{i}]")), f"{name}[{i}]")
        for i, prompt in enumerate(prompts)
    ]


def pack_parts(parts: Sequence[Part], param: str = "input_parts") -> list[PromptPart]:
    """Convert a prompt in parts to the parts of an input.

    Raises:
        RequestError: a part has a wrong type; names it with its index.
    """
    packed: list[PromptPart] = []
    for i, part in enumerate(parts):
        packed.append(part if isinstance(part, (str, TemplateText)) else token_ids(part, f"{param}[{i}]").tolist())
    return packed


def token_ids(ids: object, param: str) -> Int32Array:
    """Convert a flat sequence of integers to int32[n]; raises RequestError naming `param`."""
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
