"""Tools in programs: the offer, the constraint of the output, and the calls in it.

The constraint makes every call valid; see `radixrt.constrained.tags.tools`. The program runs the called function and
appends `rt.role("tool", result)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixrt.chat.dialect import Dialect, make_dialect
from radixrt.chat.tool_parser import read_tool_calls
from radixrt.chat.tools import OfferedTools, offer_tools
from radixrt.constrained.tags.tools import HERMES, LLAMA3, tools_constraint
from radixrt.errors import RequestError
from radixrt.lang.backends.base import Backend, Unsupported
from radixrt.messages.parts import TemplateText
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer.chat_template import ChatTemplate

Definition = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Offer:
    """Tools that a gen offers.

    Attributes:
        given: definitions as in the OpenAI API.
        choice: "auto", "required", or the name of the tool that must be called.
        read: the checked definitions and choice.
    """

    given: Sequence[Definition]
    choice: str
    read: OfferedTools

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """Definitions in the form that chat templates take."""
        found: list[dict[str, Any]] = msgspec.json.decode(self.read.definitions)
        return found


def offer(tools: Sequence[Definition], choice: str) -> Offer:
    """Check definitions.

    Raises:
        RequestError: a field is malformed; names it.
    """
    return Offer(tuple(tools), choice, offer_tools(tools, choice))


async def find_dialect(backend: Backend, template: ChatTemplate) -> Dialect:
    """The tool dialect of the model behind a backend."""
    tokens = {}
    for marker in (*HERMES.markers, *LLAMA3.markers):
        try:
            ids = await backend.tokenize([TemplateText(marker)])
        except (RequestError, Unsupported):
            continue
        if len(ids) == 1:
            tokens[marker] = ids[0]
    return make_dialect(template, tokens=tokens)


def constrained(sampling: SamplingParams, offered: Offer, dialect: Dialect) -> SamplingParams:
    """Sampling parameters under which the answer's calls are valid."""
    source = tools_constraint(
        offered.read.tools,
        dialect.tool_format,
        required=offered.read.required,
        parallel=offered.read.parallel,
        tokens=dialect.tokens,
    )
    shows_markers = any(marker in dialect.tokens for marker in dialect.tool_format.markers)
    return msgspec.structs.replace(
        sampling,
        structural_tag=source,
        skip_special_tokens=sampling.skip_special_tokens and not shows_markers,
    )


def read_calls(text: str, offered: Offer, dialect: Dialect) -> tuple[str, list[dict[str, Any]]]:
    """The text of an answer beside its calls, and the calls as in the OpenAI API."""
    names = [tool.name for tool in offered.read.tools]
    return read_tool_calls(text, dialect.tool_format, names)
